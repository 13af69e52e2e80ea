"""The transaction that the engine works with, in SQL: see `storage/transaction.py` for what each method does.

Events, tallies and measures are collected while an operation runs and written together just before the commit: a batch
of a hundred jobs updates one tally, not a hundred. Each database adds what differs.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

from packhorse.core import transitions
from packhorse.core.clock import SECOND
from packhorse.core.errors import ClientNotFound
from packhorse.core.event import Event
from packhorse.core.job import QUEUED, WAITING, Job, NewJob, State, UniqueLock
from packhorse.core.metrics import (
    CAUSE_MINUTES,
    CAUSED,
    MINUTES,
    Level,
    Measures,
    has_failed,
    measure,
    measure_deleted,
    measure_runs,
)
from packhorse.core.outcome import Failure
from packhorse.core.transitions import Transition
from packhorse.storage.records import (
    ClientInfo,
    LogLine,
    QueueInfo,
    ScheduleInfo,
    TaskInfo,
    Tick,
    WorkerInfo,
    count_lost,
    dropped_lines,
)
from packhorse.storage.sql.rows import (
    Row,
    client_of,
    job_of,
    queue_of,
    schedule_of,
    schedule_row,
    to_json,
    worker_of,
    worker_row,
)
from packhorse.storage.sql.statements import Dialect
from packhorse.storage.transfer import Move
from packhorse.storage.unowned_jobs import UnownedSearch

R = TypeVar("R")
Record = TypeVar("Record", QueueInfo, ScheduleInfo, WorkerInfo, ClientInfo)

Place = tuple[str, str, str]
"""Where a job is counted: its queue, its task, its state."""

_KNOWN_FOR = 300.0
"""Seconds for which a process trusts that a name it has written is still there."""
_SOON = 2 * SECOND


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class SQLConnection(Protocol):
    """Executes statements."""

    def execute(self, sql: str, values: Sequence[Any] = ..., /) -> Cursor: ...


class Database(Protocol):
    """One database and this process's connections to it."""

    def write(self, name: str, work: Callable[[Any], R], /) -> R:
        """Run `work` in a transaction, committed when this returns; all of it or nothing."""

    def read(self, name: str, sql: str, values: Sequence[Any] = ..., /) -> list[Any]:
        """All rows of one query, as of one moment."""

    def read_with(self, name: str, work: Callable[[Any], R], /) -> R:
        """Several queries on one connection."""


class Write(Protocol):
    """`SQLStorage._write`."""

    def __call__(self, name: str, work: Callable[[Any], R], /) -> R: ...


class KnownNames:
    """Tasks and queues that this process has written lately, and need not write again."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], float] = {}  # ("task" or "queue", name) -> when it is written again

    def has(self, kind: str, name: str) -> bool:
        return self._until.get((kind, name), 0.0) >= time.monotonic()

    def have_all(self, jobs: Sequence[NewJob]) -> bool:
        now, until = time.monotonic(), self._until
        return all(
            until.get(("task", new.task), 0.0) >= now and until.get(("queue", new.queue), 0.0) >= now for new in jobs
        )

    def add(self, written: Iterable[tuple[str, str]]) -> None:
        """These names are committed."""
        until = time.monotonic() + _KNOWN_FOR
        self._until.update(dict.fromkeys(written, until))

    def clear(self) -> None:
        self._until.clear()


class Shared:
    """What the transactions of one storage share."""

    def __init__(self, sql: Mapping[str, str], dialect: Dialect) -> None:
        self.sql = sql
        self.dialect = dialect
        self.names = KnownNames()
        self.unowned = UnownedSearch()


def place_of(job: Job) -> Place:
    """Where this job is counted."""
    return (job.queue, job.task, job.state.value)


def is_soon(due_at: int | None, now: int) -> bool:
    """A waiting worker has asked when the next job is due, and would miss one that is due sooner."""
    return due_at is None or due_at < now + _SOON


class SQLTransaction(ABC):
    """One operation on an SQL database."""

    __slots__ = (
        "_jobs", "_shared", "_sql", "causes", "mark", "measures", "names", "now", "read_outside", "tallies",
        "unowned_queues", "wakes",
    )  # fmt: skip

    execute: Callable[..., Cursor]
    executemany: Callable[[str, Any], object]

    def __init__(self, shared: Shared, now: int) -> None:
        self.now = now
        self.mark: Move | None = None  # of a move of this storage
        self.tallies: dict[Place, int] = {}
        self.measures: Measures = {}
        self.causes: dict[tuple[str, str], int] = {}  # cause and task of what failed -> how often
        self.names: list[tuple[str, str]] = []  # tasks and queues that this transaction has written
        self.wakes = False
        self.unowned_queues: Sequence[str] = ()  # those that `unowned_jobs` looks through
        # Set in a caller's transaction: reads jobs on a connection of our own.
        self.read_outside: Callable[[Sequence[str]], list[Job]] | None = None
        self._shared = shared
        self._sql = shared.sql
        self._jobs: dict[str, Job | None] = {}  # read or changed by this transaction, by id

    # --- what each database does --------------------------------------------------------------------------------------

    @abstractmethod
    def _save(self, before: Job, job: Job) -> None:
        """Write a changed job."""

    @abstractmethod
    def _insert(self, jobs: Sequence[NewJob]) -> None:
        """Write new jobs with their events and counts. Set `wakes`."""

    @abstractmethod
    def _count_failure(self, row: Row) -> None:
        """Count a failure of its cause: (cause, task, pattern, place, number, first_at, last_at, last_job_id,
        version)."""

    @abstractmethod
    def nested(self, work: Callable[[Any], R]) -> R: ...

    @abstractmethod
    def record(self, events: Iterable[Event]) -> None: ...

    @abstractmethod
    def _write_names(self, tasks: Mapping[str, str], queues: Sequence[str]) -> None:
        """Write tasks, each with its queue, and queues, unless they are there."""

    @abstractmethod
    def _drop_events(self, before: int, limit: int) -> tuple[int, bool]:
        """Delete at most `limit` events from `before` or earlier. Return how many, and whether there are more."""

    @abstractmethod
    def lock_keys(self, keys: Collection[str]) -> None: ...

    # --- counting -----------------------------------------------------------------------------------------------------

    def move(self, before: Place | None, after: Place | None, number: int = 1) -> None:
        """Count jobs that went from one place to another; None: they are new, or were deleted."""
        tallies = self.tallies
        if before is not None:
            tallies[before] = tallies.get(before, 0) - number
        if after is not None:
            tallies[after] = tallies.get(after, 0) + number

    def count_added(self, place: Place, number: int) -> None:
        self.move(None, place, number)
        key = (place[0], place[1], "added")
        self.measures[key] = self.measures.get(key, 0) + number

    def count_completed(self, runs: Mapping[Place, Sequence[tuple[int, int]]]) -> None:
        """Count completed jobs. `runs` has how long each ran and waited, by where it was counted before."""
        for place, times in runs.items():
            queue, task, _ = place
            self.move(place, (queue, task, "completed"), len(times))
            self.measures[queue, task, "completed"] = self.measures.get((queue, task, "completed"), 0) + len(times)
            measure_runs(self.measures, queue, task, times)

    def _counted(self) -> list[Row]:
        """What was counted, as rows: (level, at, queue, task, counted, amount)."""
        at = MINUTES.start_of(self.now)
        rows: list[Row] = [(MINUTES.name, at, *key, amount) for key, amount in self.measures.items()]
        if self.causes:
            rows += [(CAUSE_MINUTES.name, at, *its, CAUSED, number) for its, number in self.causes.items()]
        return rows

    def absorb(self, other: Any) -> None:
        """Take over what a finished nested transaction has collected."""
        for tally, number in other.tallies.items():
            self.tallies[tally] = self.tallies.get(tally, 0) + number
        for measured, amount in other.measures.items():
            self.measures[measured] = self.measures.get(measured, 0) + amount
        for its, number in other.causes.items():
            self.causes[its] = self.causes.get(its, 0) + number
        self.names += other.names
        self.wakes = self.wakes or other.wakes
        self._jobs.clear()

    # --- jobs -----------------------------------------------------------------------------------------------------

    def jobs(self, job_ids: Collection[str], *, with_keys: bool = False) -> dict[str, Job]:
        unread = [job_id for job_id in dict.fromkeys(job_ids) if job_id not in self._jobs]
        if unread:
            asked = (to_json(unread),)
            if with_keys:
                keys = {row[0] for row in self.execute(self._sql["unique_keys_of"], asked).fetchall()}
                self.lock_keys(keys)
            rows = self.execute(self._sql["lock_jobs"], asked).fetchall()
            self._jobs |= dict.fromkeys(unread)
            self._jobs |= {row[0]: job_of(row) for row in rows}
        return {job_id: job for job_id in job_ids if (job := self._jobs[job_id]) is not None}

    def stored(self, job_ids: Collection[str]) -> set[str]:
        rows = self.execute(self._sql["stored_among"], (to_json(list(job_ids)),)).fetchall()
        return {row[0] for row in rows}

    def insert(self, jobs: Sequence[NewJob]) -> None:
        taken = {new.unique.key: new for new in jobs if new.unique}  # the last one holds a key
        if taken:
            self._put_keys(
                [
                    (key, new.id, new.unique.period, new.unique.until, self.now)
                    for key, new in sorted(taken.items())
                    if new.unique
                ]
            )
        for new in jobs:
            self._jobs.pop(new.id, None)
        self._insert(jobs)

    def _put_keys(self, rows: Sequence[Row]) -> None:
        """Each is a key, the job that takes it, a period, until when, and now."""
        self.executemany(self._sql["put_lock"], rows)

    def keep(self, before: Job, change: Transition, ran: int | None = None) -> Job:
        job = change.job
        self._jobs[job.id] = job
        self._save(before, job)
        self.record(change.events)
        measure(self.measures, before, job, ran)
        self.move(place_of(before), place_of(job))
        if job.cause is not None and has_failed(before, job):
            failure = Failure.from_json(job.error or "{}")
            about = (job.cause, job.task, failure.pattern(), failure.place)
            self._count_failure((*about, 1, self.now, self.now, job.id, failure.version))
            self.causes[job.cause, job.task] = self.causes.get((job.cause, job.task), 0) + 1
        if job.state is QUEUED and (place_of(before) != place_of(job) or job.rank < before.rank):
            self.wakes = True
        return job

    def remove(self, jobs: Sequence[Job], by: str | None) -> None:
        if not jobs:
            return
        numbers, ids = to_json([job.seq for job in jobs]), to_json([job.id for job in jobs])
        self.execute(self._sql["delete_jobs"], (numbers,))
        self.execute(self._sql["delete_log"], (ids,))
        self.execute(self._sql["delete_subscribers"], (ids,))
        keys = [job.unique_key for job in jobs if job.unique_key]
        if keys:
            self.execute(self._sql["delete_locks"], (to_json(keys), ids))
        for job in jobs:
            self._jobs[job.id] = None
            self.move(place_of(job), None)
            measure_deleted(self.measures, job)
        self.record(transitions.deleted(job, self.now, by) for job in jobs)

    # --- unique keys ----------------------------------------------------------------------------------------------

    def holders(self, keys: Collection[str]) -> dict[str, Job]:
        locks = self.execute(self._sql["get_locks"], (to_json(sorted(keys)),)).fetchall() if keys else []
        jobs = self._holding_jobs({row[1] for row in locks}) if locks else {}
        return {
            key: jobs[job_id]
            for key, job_id, period, until, taken_at in locks
            if job_id in jobs and transitions.holds(jobs[job_id], UniqueLock(key, period, until), taken_at, self.now)
        }

    def _holding_jobs(self, job_ids: set[str]) -> dict[str, Job]:
        """The jobs that took unique keys. In a caller's transaction only waiting ones are locked, so that they do not
        start before its end. Workers want to finish the others, and that transaction may last; it may also see old
        versions of them, so they are read outside of it."""
        if self.read_outside is None:
            return self.jobs(job_ids)
        seen = {job.id: job for job in self.read_outside(sorted(job_ids)) if job.state not in WAITING}
        return {**self.jobs(job_ids - seen.keys()), **seen}

    def retake_key(self, key: str, job_id: str) -> None:
        self.execute(self._sql["retake_lock"], (key, job_id, self.now))

    def replaced_by(self, call_ids: Collection[str]) -> dict[str, str]:
        return dict(self.execute(self._sql["replaced_by"], (to_json(list(call_ids)),)).fetchall())

    def remember_replaced(self, call_id: str, job_id: str) -> None:
        self.execute(self._sql["put_replaced"], (call_id, job_id, self.now))

    # --- lists of jobs for maintenance --------------------------------------------------------------------------------

    def due_jobs(self, limit: int) -> list[Job]:
        return [job_of(row) for row in self.execute(self._sql["due_jobs"], (self.now, limit)).fetchall()]

    def expired_jobs(self, limit: int) -> list[Job]:
        return [job_of(row) for row in self.execute(self._sql["expired_jobs"], (self.now, limit)).fetchall()]

    def held_jobs(self, owners: Collection[str], limit: int) -> list[Job]:
        asked = (to_json(sorted(owners)), limit)
        return [job_of(row) for row in self.execute(self._sql["held_jobs"], asked).fetchall()]

    def lost_jobs(self, silent: Collection[str], limit: int) -> list[Job]:
        asked = (to_json(sorted(silent)), limit)
        return [job_of(row) for row in self.execute(self._sql["lost_jobs"], asked).fetchall()]

    def unowned_jobs(self, limit: int) -> list[Job]:
        found: list[Job] = []
        for queue in self.unowned_queues:
            rows = self.execute(self._sql["unowned_jobs"], (queue, limit)).fetchall()
            self._shared.unowned.found(queue, len(rows))
            found += [job_of(row) for row in rows]
        return found

    def prunable_jobs(self, state: State, before: int, limit: int) -> list[Job]:
        asked = (state.value, before, self.now, limit)
        return [job_of(row) for row in self.execute(self._sql["prunable_jobs"], asked).fetchall()]

    # --- records --------------------------------------------------------------------------------------------------

    def records(self, kind: type[Record], names: Collection[str]) -> dict[str, Record]:
        asked = (to_json(sorted(set(names))),)
        found: dict[str, Any]
        if kind is QueueInfo:
            found = {row[0]: queue_of(row) for row in self.execute(self._sql["lock_queues"], asked).fetchall()}
        elif kind is ScheduleInfo:
            found = {row[0]: schedule_of(row) for row in self.execute(self._sql["lock_schedules"], asked).fetchall()}
        elif kind is WorkerInfo:
            found = {row[0]: worker_of(row) for row in self.execute(self._sql["lock_workers"], asked).fetchall()}
        else:
            found = {row[0]: client_of(row) for row in self.execute(self._sql["lock_clients"], asked).fetchall()}
        return {name: cast("Record", found[name]) for name in names if name in found}

    def add(self, record: WorkerInfo) -> bool:
        return self.execute(self._sql["add_worker"], worker_row(record)).rowcount > 0

    def put(self, record: QueueInfo | ScheduleInfo | WorkerInfo | ClientInfo | TaskInfo) -> None:
        if isinstance(record, QueueInfo):
            about = (record.paused_at, record.paused_by, record.paused_why, record.paused_until)
            self.execute(self._sql["set_pause"], (record.name, *about))
        elif isinstance(record, ScheduleInfo):
            self.execute(self._sql["put_schedule"], schedule_row(record))
        elif isinstance(record, WorkerInfo):
            self.execute(self._sql["put_worker"], worker_row(record))
        elif isinstance(record, ClientInfo):
            values = (record.id, record.name, to_json(record.info), record.joined_at, record.beat_at)
            self.execute(self._sql["put_client"], values)
        else:
            task = (record.name, record.queue, to_json(record.options), record.announced_at)
            self.execute(self._sql["announce_task"], task)

    def delete(self, record: ScheduleInfo | ClientInfo) -> None:
        if isinstance(record, ScheduleInfo):
            self.execute(self._sql["delete_schedule"], (record.name,))
        else:
            self.execute(self._sql["delete_client"], (record.id,))
            self.execute(self._sql["delete_subscriptions"], (record.id,))

    def delete_idle_worker(self, owner: str) -> WorkerInfo | None:
        row = self.execute(self._sql["idle_worker"], (owner,)).fetchone()
        if row is None:
            return None
        self.execute(self._sql["delete_worker"], (owner,))
        return worker_of(row)

    def know(self, queues: Collection[str], tasks: Mapping[str, str] = {}) -> None:
        has = self._shared.names.has
        new_tasks = {task: queue for task, queue in sorted(tasks.items()) if not has("task", task)}
        new_queues = sorted(queue for queue in queues if not has("queue", queue))
        if new_tasks or new_queues:
            self._write_names(new_tasks, new_queues)
            self.names += [*(("task", task) for task in new_tasks), *(("queue", queue) for queue in new_queues)]

    def put_order(self, order: str) -> None:
        self.execute(self._sql["put_order"], (order,))

    def put_ticks(self, ticks: Sequence[Tick]) -> None:
        rows = [(one.schedule, one.slot, one.outcome, one.at, one.job_id) for one in ticks]
        self.executemany(self._sql["put_tick"], rows)

    # --- workers and clients ------------------------------------------------------------------------------------------

    def silent_owners(self, first: int, last: int, lease: int) -> list[str]:
        rows = self.execute(self._sql["silent_workers"], (first, last, lease)).fetchall()
        return sorted(row[0] for row in rows)

    def worker(self, owner: str) -> WorkerInfo | None:
        row = self.execute(self._sql["worker"], (owner,)).fetchone()
        return None if row is None else worker_of(row)

    def silent_clients(self, before: int, limit: int) -> list[str]:
        return [row[0] for row in self.execute(self._sql["silent_clients"], (before, limit)).fetchall()]

    def subscribe(self, job_id: str, client_id: str) -> None:
        if not self._client_exists(client_id):
            raise ClientNotFound(client_id)
        self.execute(self._sql["add_subscriber"], (job_id, client_id))

    def _client_exists(self, client_id: str) -> bool:
        return self.execute(self._sql["client_exists"], (client_id,)).fetchone() is not None

    def unsubscribe(self, job_id: str, client_id: str) -> None:
        self.execute(self._sql["delete_subscriber"], (job_id, client_id))

    def subscribers(self, job_ids: Collection[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        if job_ids:
            rows = self.execute(self._sql["subscribers_of"], (to_json(list(job_ids)),)).fetchall()
            for job_id, client_id in rows:
                found.setdefault(job_id, []).append(client_id)
        return found

    def subscriptions(self, client_id: str, limit: int) -> list[str]:
        return [row[0] for row in self.execute(self._sql["wanted_by"], (client_id, limit)).fetchall()]

    # --- history ----------------------------------------------------------------------------------------------------

    def add_log_lines(self, job: Job, lines: Sequence[LogLine], keep: int) -> None:
        rows = [(job.id, line.at, line.attempt, line.kind.value, line.message) for line in lines]
        self.executemany(self._sql["put_log_line"], rows)
        last = self.execute(self._sql["last_line_above"], (job.id, keep)).fetchone()
        if last is not None:
            dropped = [row[0] for row in self.execute(self._sql["lines_to_drop"], (job.id, last[0])).fetchall()]
            self.execute(self._sql["drop_lines"], (job.id, last[0]))
            self.execute(self._sql["say_dropped"], (dropped_lines(count_lost(dropped)), job.id))

    def silence(self, cause: str, until: int | None, by: str | None, version: str | None) -> tuple[str, bool] | None:
        row = self.execute(self._sql["get_silence"], (cause,)).fetchone()
        if row is None:
            return None
        self.execute(self._sql["silence_failure"], (until, by, version, cause))
        task, had_silence = row
        return task, bool(had_silence)

    def prune_history(self, before: int, limit: int) -> tuple[int, bool]:
        self.execute(self._sql["delete_ticks"], (limit, before))
        self.execute(self._sql["delete_replaced"], (limit, before))
        self.execute(self._sql["delete_failures"], (before,))
        return self._drop_events(before, limit)

    def fold_measures(self, level: Level, into: Level | None, before: int) -> None:
        if into is not None:
            self.execute(self._sql["fold_measures"], (into.name, into.width, level.name, before))
        self.execute(self._sql["drop_folded_measures"], (level.name, before))

    # --- wake-up ----------------------------------------------------------------------------------------------------

    def wake(self, queues: Iterable[str]) -> None:
        self.wakes = True
