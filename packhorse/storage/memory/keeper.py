"""What all groups of operations share: the dictionaries, the lock that makes each call one atomic step, and keeping
what became of a job with its events, measures and failures."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec.structs import replace

from packhorse.core import clock, transitions
from packhorse.core.event import Event, Kind, Subject
from packhorse.core.fair_share import FairShare
from packhorse.core.job import QUEUED, Job, UniqueLock
from packhorse.core.metrics import CAUSE_MINUTES, CAUSED, MINUTES, Measures, has_failed, measure, measure_deleted
from packhorse.core.outcome import Failure
from packhorse.core.transitions import Transition
from packhorse.storage.beds import Beds
from packhorse.storage.contract import Storage
from packhorse.storage.records import (
    ClientInfo,
    FailureGroup,
    LogLine,
    QueueInfo,
    ScheduleInfo,
    TaskInfo,
    Tick,
    WorkerInfo,
)
from packhorse.storage.transfer import Move, may_go_on, quiet_answer

P = ParamSpec("P")
R = TypeVar("R")
K = TypeVar("K", bound="Keeper")


def atomic(call: Callable[Concatenate[K, P], R]) -> Callable[Concatenate[K, P], R]:
    """Nobody sees anything of this call before it has ended. While the storage is moved, only some may go on."""

    @functools.wraps(call)
    def locked(self: K, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            if may_go_on(self._move, call.__name__):
                return call(self, *args, **kwargs)
            self._look()  # there is nothing to be woken for
            answer: R = quiet_answer(call.__name__)
            return answer

    return locked


class Keeper(Storage):
    """The part of the memory storage that every group of operations builds on."""

    def __init__(self, now: clock.Now = clock.now) -> None:
        self._now = now
        self._lock = threading.RLock()
        self._beds = Beds(self._lock)
        self._unheard: set[str] = set()  # queues for which somebody rang while nobody slept, until the next `reserve`
        self._is_called = False  # all are, also who is about to lie down
        self._move: Move | None = None
        self._order: str | None = None
        self._jobs: dict[str, Job] = {}
        self._seq = 0
        self._locks: dict[str, tuple[str, UniqueLock, int]] = {}  # key -> job, lock, taken at
        self._replaced: dict[str, tuple[str, int]] = {}  # call that has replaced a job's own -> that job, at
        self._events: list[Event] = []
        self._event_id = 0
        self._log: dict[str, list[LogLine]] = {}
        self._log_id = 0
        self._queues: dict[str, QueueInfo] = {}
        self._tasks: dict[str, TaskInfo] = {}
        self._workers: dict[str, WorkerInfo] = {}
        self._clients: dict[str, ClientInfo] = {}
        self._subscribers: dict[str, list[str]] = {}  # job -> clients
        self._schedules: dict[str, ScheduleInfo] = {}
        self._ticks: list[Tick] = []
        self._failures: dict[str, FailureGroup] = {}
        self._measures: dict[tuple[str, int, str, str, str], int] = {}  # level, at, queue, task, counted
        self._turns = FairShare()

    def now(self) -> int:
        return self._now()

    def approximate_now(self) -> int:
        return self._now()

    # --- finding and keeping --------------------------------------------------------------------------------------

    def _holder(self, key: str) -> Job | None:
        """The job that holds this unique key now. A lock is only a pointer: the job's own state says if it holds."""
        job_id, lock, taken_at = self._locks.get(key, ("", UniqueLock(key), 0))
        job = self._jobs.get(job_id)
        if job is None:
            return None
        return job if transitions.holds(job, lock, taken_at, self.now()) else None

    def _keep(self, before: Job | None, change: Transition, ran: int | None = None) -> Job:
        """Store a changed job with its events and measures; wake somebody when it came into line."""
        job = change.job
        self._jobs[job.id] = job
        for event in change.events:
            self._record(event)
        measures: Measures = {}
        measure(measures, before, job, ran)
        self._add_measures(measures)
        if has_failed(before, job):
            self._count_failure(job)
        is_in_line = before is not None and (before.state, before.queue) == (QUEUED, job.queue)
        if job.state is QUEUED and (not is_in_line or (before is not None and job.rank < before.rank)):
            self._wake([job.queue])
        return job

    def _add_measures(self, measures: Measures) -> None:
        at = MINUTES.start_of(self.now())
        for (queue, task, counted), amount in measures.items():
            key = (MINUTES.name, at, queue, task, counted)
            self._measures[key] = self._measures.get(key, 0) + amount

    def _count_failure(self, job: Job) -> None:
        if job.error is None or job.cause is None:
            return
        failure, now = Failure.from_json(job.error), self.now()
        old = self._failures.get(job.cause)
        if old is None:
            about = (job.cause, job.task, failure.pattern(), failure.place)
            old = FailureGroup(*about, 0, now, now, job.id, first_version=failure.version)
        self._failures[job.cause] = replace(
            old.heard(failure.version), number=old.number + 1, place=failure.place, last_at=now, last_job_id=job.id
        )
        key = (CAUSE_MINUTES.name, CAUSE_MINUTES.start_of(now), job.cause, job.task, CAUSED)
        self._measures[key] = self._measures.get(key, 0) + 1

    def _record(self, event: Event) -> None:
        self._event_id += 1
        self._events.append(replace(event, id=self._event_id))

    def _record_about(
        self, subject: Subject, kind: Kind, *, queue: str | None = None, owner: str | None = None, **facts: Any
    ) -> None:
        told = {name: value for name, value in facts.items() if value is not None}
        self._record(Event(kind, self.now(), subject, queue=queue, owner=owner, data=told or None))

    def _remove(self, job: Job, by: str | None) -> None:
        self._record(transitions.deleted(job, self.now(), by))
        measures: Measures = {}
        measure_deleted(measures, job)
        self._add_measures(measures)
        del self._jobs[job.id]
        self._log.pop(job.id, None)
        self._subscribers.pop(job.id, None)
        if job.unique_key and self._locks.get(job.unique_key, ("",))[0] == job.id:
            del self._locks[job.unique_key]

    def _forget_client(self, client_id: str) -> None:
        self._clients.pop(client_id, None)
        for job_id in [job_id for job_id, clients in self._subscribers.items() if client_id in clients]:
            self._unsubscribe(client_id, job_id)

    def _unsubscribe(self, client_id: str, job_id: str) -> None:
        self._subscribers[job_id].remove(client_id)
        if not self._subscribers[job_id]:
            del self._subscribers[job_id]

    def _wake(self, queues: Iterable[str]) -> None:
        """There may be work in each of these queues: wake one who serves it."""
        self._unheard.update(queue for queue in queues if not self._beds.ring([queue]))

    def _look(self, queues: Iterable[str] | None = None) -> None:
        """Somebody looks for work in these queues, or in all."""
        self._is_called = False
        if queues is None:
            self._unheard.clear()
        else:
            self._unheard.difference_update(queues)
