"""Load: threads that enqueue and threads that work on one storage, through whatever happens to its server.

They behave as clients and worker loops do: a failed enqueue may have stored its jobs or not; outcomes are kept and sent
again; after a lost reserve the worker looks up what it holds. The sets and counters say what the storage acknowledged.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator

from packhorse.conformance.builders import new_job
from packhorse.core.errors import StorageUnavailable, WorkerNotFound
from packhorse.core.job import HELD
from packhorse.core.outcome import Completed, Outcome, Verdict
from packhorse.storage.contract import Storage
from packhorse.storage.records import Filter, WorkerInfo
from packhorse.storage.redis import Redis
from tests.children import PATIENCE, until

_workers = itertools.count(1)


class Load:
    """Runs from `start` until `drain`."""

    def __init__(self, url: str, producers: int = 2, workers: int = 2) -> None:
        self.storage = Redis.from_url(url)
        self.acknowledged: set[str] = set()  # enqueue returned
        self.unsure: set[str] = set()  # it raised: they may be stored or not
        self.accepted: Counter[str] = Counter()  # how often an outcome was accepted as the first
        self.verdicts: Counter[Verdict] = Counter()
        self.rejoined = 0
        self._joined = 0
        self.failures: list[BaseException] = []
        self._stops = threading.Event()
        self._ends = threading.Event()
        self._lock = threading.Lock()
        self._producers = producers
        calls = [self._produce] * producers + [self._work] * workers
        self._threads = [
            threading.Thread(target=self._watched, args=(call, number), daemon=True)
            for number, call in enumerate(calls)
        ]

    def start(self) -> None:
        """Return when the workers have joined."""
        for thread in self._threads:
            thread.start()
        workers = len(self._threads) - self._producers
        until(lambda: self.failures or self._joined >= workers, "the workers have joined")

    def until_acknowledged(self, more: int) -> None:
        """Wait until so many more jobs are enqueued."""
        goal = len(self.acknowledged) + more
        until(lambda: len(self.acknowledged) >= goal or self.failures, f"{goal} jobs are enqueued")

    def drain(self) -> None:
        """Enqueue no more jobs, and wait until all are finished."""
        self._stops.set()
        for producer in self._threads[: self._producers]:
            producer.join(PATIENCE)
        until(lambda: self.failures or self._is_empty(), "every job is finished")
        self._ends.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        self.storage.close()
        if self.failures:
            raise self.failures[0]

    def _is_empty(self) -> bool:
        unfinished = [one for one in self.storage.tallies() if one.state not in ("completed", "dead", "aborted")]
        return not any(one.number for one in unfinished)

    def _watched(self, call: object, number: int) -> None:
        try:
            call(number)  # type: ignore[operator]
        except BaseException as error:
            self.failures.append(error)

    def _produce(self, number: int) -> None:
        for batch in itertools.count():
            if self._stops.is_set():
                return
            ids = [f"{number}-{batch}-{place}" for place in range(5)]
            try:
                self.storage.enqueue([new_job(job_id) for job_id in ids])
            except StorageUnavailable:
                self.unsure.update(ids)
                continue
            self.acknowledged.update(ids)

    def _work(self, number: int) -> None:
        owner = self._join()
        outcomes: dict[str, Outcome] = {}
        may_hold_more = False
        while not self._ends.is_set():
            try:
                if may_hold_more:
                    for job in self._held(owner):
                        outcomes.setdefault(job.id, Completed(job.token, ran=1))
                    may_hold_more = False
                may_hold_more = True  # unless the answer arrives
                sent = list(outcomes.values())
                verdicts, jobs = self.storage.finish_and_reserve(sent, owner, {"mail": 1}, 10)
                may_hold_more = False
            except StorageUnavailable:
                continue
            except WorkerNotFound:
                owner, outcomes, may_hold_more = self._join(), {}, False
                self.rejoined += 1
                continue
            self._note(sent, verdicts)
            outcomes = {job.id: Completed(job.token, ran=1) for job in jobs}
            if not jobs:
                time.sleep(0.001)

    def _held(self, owner: str) -> list[object]:
        return self.storage.find(Filter(states=HELD, owner=owner), limit=100).jobs  # type: ignore[return-value]

    def _join(self) -> str:
        owner = f"worker-{next(_workers)}"
        while not self._ends.is_set():
            with contextlib.suppress(StorageUnavailable):
                self.storage.join(WorkerInfo(id=owner))
                with self._lock:
                    self._joined += 1
                break
        return owner

    def _note(self, outcomes: list[Outcome], verdicts: list[Verdict]) -> None:
        with self._lock:
            self.verdicts.update(verdicts)
            for outcome, verdict in zip(outcomes, verdicts, strict=True):
                self.accepted[outcome.token.job_id] += verdict is Verdict.ACCEPTED


@contextlib.contextmanager
def load_on(url: str) -> Iterator[Load]:
    load = Load(url)
    load.start()
    try:
        yield load
    finally:
        load._stops.set()
        load._ends.set()


def stored_ids(storage: Storage) -> set[str]:
    """Every job that is there."""
    found, cursor = set(), None
    while True:
        page = storage.find(Filter(), cursor=cursor, limit=1_000)
        found |= {job.id for job in page.jobs}
        if (cursor := page.next) is None:
            return found
