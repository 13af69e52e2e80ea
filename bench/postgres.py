"""Packhorse on PostgreSQL beside the bare loops: enqueue one by one, in bulk, from threads; reserve + finish."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.bare_postgres import OWNER, Bare
from bench.measure import race, rate
from bench.sqlite import MANY, SINGLE, THREADS, Result, noop
from packhorse import Packhorse
from packhorse.outcome import Completed
from packhorse.storage.records import WorkerInfo

TAKEN = 100
_numbers = itertools.count(1)


class Contest:
    """Everything that is measured on one server."""

    def __init__(self, url: str) -> None:
        self._url = url

    @contextmanager
    def _app(self) -> Iterator[Packhorse]:
        schema = f"bench_{next(_numbers)}"
        with Packhorse(f"{self._url}?schema={schema}") as app:
            app.task(noop)
            app.storage.join(WorkerInfo(OWNER))  # makes the schema: not part of what is measured
            yield app

    @contextmanager
    def _bare(self) -> Iterator[Bare]:
        with self._app():
            pass
        bare = Bare(self._url, f"bench_{next(_numbers) - 1}")
        next(_numbers)
        yield bare
        bare.close()

    def single(self, _: Path) -> float:
        with self._app() as app:
            task = app.task(noop)
            return rate(SINGLE, lambda: [task.enqueue(user_id=1, email="a@b.c") for _ in range(SINGLE)])

    def bare_single(self, _: Path) -> float:
        with self._bare() as bare:
            return rate(SINGLE, lambda: bare.enqueue(SINGLE))

    def threads(self, _: Path) -> float:
        with self._app() as app:
            task = app.task(noop)

            def one() -> None:
                for _ in range(SINGLE // THREADS):
                    task.enqueue(user_id=1, email="a@b.c")

            def work() -> None:
                threads = [threading.Thread(target=one) for _ in range(THREADS)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

            return rate(SINGLE, work)

    def many(self, _: Path) -> float:
        with self._app() as app:
            return rate(MANY, lambda: _fill(app))

    def bare_many(self, _: Path) -> float:
        with self._bare() as bare:
            return rate(MANY, lambda: bare.enqueue_many(MANY, 1_000))

    def drain(self, _: Path) -> float:
        with self._app() as app:
            _fill(app)

            def work() -> None:
                outcomes: list[Completed] = []
                while True:
                    _, jobs = app.storage.finish_and_reserve(outcomes, OWNER, {"noop": 1}, TAKEN)
                    if not jobs:
                        return
                    outcomes = [Completed(job.token, "null", ran=1) for job in jobs]

            return rate(MANY, work)

    def bare_drain(self, _: Path) -> float:
        with self._bare() as bare:
            bare.enqueue_many(MANY, 1_000)
            return rate(MANY, lambda: bare.drain(TAKEN))


def _fill(app: Packhorse) -> None:
    task = app.task(noop)
    for _ in range(MANY // 1_000):
        app.enqueue_many([task.call(user_id=1, email="a@b.c") for _ in range(1_000)])


def results(url: str, rounds: int) -> list[Result]:
    """Every line of the table; the bare loop of a line runs in the same rounds."""
    contest = Contest(url)
    single, threads, bare_single = race([contest.single, contest.threads, contest.bare_single], rounds)
    many, bare_many = race([contest.many, contest.bare_many], rounds)
    drain, bare_drain = race([contest.drain, contest.bare_drain], rounds)
    return [
        Result("enqueue, one by one", single, bare_single, 0.7),
        Result(f"enqueue from {THREADS} threads", threads, bare_single, None),
        Result("enqueue_many, 1,000 at a time", many, bare_many, None),
        Result(f"reserve + finish, {TAKEN} at a time", drain, bare_drain, 0.4),
    ]
