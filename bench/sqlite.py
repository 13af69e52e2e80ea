"""Packhorse on SQLite beside the bare loops: enqueue one by one, in bulk, from threads, asyncio; reserve + finish."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench import bare_sqlite
from bench.measure import race, rate
from packhorse import Packhorse
from packhorse.outcome import Completed
from packhorse.storage.records import WorkerInfo

SINGLE, MANY, BATCH, THREADS = 2_000, 20_000, 200, 8


class Result(NamedTuple):
    """One line of the table."""

    what: str
    ours: float
    bare: float
    floor: float | None

    @property
    def share(self) -> float:
        return self.ours / self.bare

    @property
    def is_reached(self) -> bool:
        return self.floor is None or self.share >= self.floor


def noop(user_id: int, email: str) -> None:
    """The job that does nothing."""


@contextmanager
def _app(directory: Path) -> Iterator[Packhorse]:
    with Packhorse(f"sqlite:///{directory / 'jobs.db'}") as app:
        app.task(noop)
        app.storage.join(WorkerInfo(bare_sqlite.OWNER))  # opens the file: not part of what is measured
        yield app


def _single(directory: Path) -> float:
    with _app(directory) as app:
        task = app.task(noop)
        return rate(SINGLE, lambda: [task.enqueue(user_id=1, email="a@b.c") for _ in range(SINGLE)])


def _bare_single(directory: Path) -> float:
    connection = bare_sqlite.open_bare(directory / "jobs.db")
    return rate(SINGLE, lambda: bare_sqlite.enqueue(connection, SINGLE, 1))


def _many(directory: Path) -> float:
    with _app(directory) as app:
        task = app.task(noop)

        def work() -> None:
            for _ in range(MANY // 1_000):
                app.enqueue_many([task.call(user_id=1, email="a@b.c") for _ in range(1_000)])

        return rate(MANY, work)


def _bare_many(directory: Path) -> float:
    connection = bare_sqlite.open_bare(directory / "jobs.db")
    return rate(MANY, lambda: bare_sqlite.enqueue(connection, MANY, 1_000))


def _threads(directory: Path) -> float:
    with _app(directory) as app:
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


def _asyncio(directory: Path) -> float:
    with _app(directory) as app:
        task = app.task(noop)

        async def work() -> None:
            for _ in range(SINGLE * 2 // 500):
                await asyncio.gather(*(task.aenqueue(user_id=1, email="a@b.c") for _ in range(500)))

        return rate(SINGLE * 2, lambda: asyncio.run(work()))


def _drain(directory: Path) -> float:
    with _app(directory) as app:
        task = app.task(noop)
        for _ in range(MANY // 1_000):
            app.enqueue_many([task.call(user_id=1, email="a@b.c") for _ in range(1_000)])

        def work() -> None:
            outcomes: list[Completed] = []
            while True:
                _, jobs = app.storage.finish_and_reserve(outcomes, bare_sqlite.OWNER, {"noop": 1}, BATCH)
                if not jobs:
                    return
                outcomes = [Completed(job.token, "null", ran=1) for job in jobs]

        return rate(MANY, work)


def _bare_drain(directory: Path) -> float:
    connection = bare_sqlite.open_bare(directory / "jobs.db")
    bare_sqlite.enqueue(connection, MANY, 1_000)
    return rate(MANY, lambda: bare_sqlite.drain(connection, BATCH))


def results(rounds: int) -> list[Result]:
    """Every line of the table; the bare loop of a line runs in the same rounds."""
    single, threads, coroutines, bare_single = race([_single, _threads, _asyncio, _bare_single], rounds)
    many, bare_many = race([_many, _bare_many], rounds)
    drain, bare_drain = race([_drain, _bare_drain], rounds)
    return [
        Result("enqueue, one by one", single, bare_single, 0.6),
        Result(f"enqueue from {THREADS} threads", threads, bare_single, None),
        Result("aenqueue, 500 at once", coroutines, bare_single, None),
        Result("enqueue_many, 1,000 at a time", many, bare_many, 0.4),
        Result(f"reserve + finish, {BATCH} at a time", drain, bare_drain, 0.4),
    ]
