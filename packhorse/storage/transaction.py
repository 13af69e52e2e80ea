"""What a storage supplies to the engine: one transaction, in which an operation reads, decides and writes.

`storage/engine/` has every operation once, as a function over a `Transaction`. A storage supplies the transaction, its
queries, and its own fast versions of the hot calls.

Rules for a transaction:

1. All or nothing. An exception undoes everything that it has written.
2. What it has read stays true until it commits. SQL locks the rows. Redis compares what it has read with what is
   stored when it commits, and runs the operation again with a new transaction if something has changed. An operation
   therefore has no effect outside of its transaction.
3. It reads its own writes.
4. `now` is the same for everything in it.
5. To avoid deadlocks, an operation takes its locks in this order: names (`know`), unique keys (`lock_keys`),
   workers and clients (`records`), jobs. A lock that another transaction has is waited for, unless the method says
   that it skips.
6. A read takes all the ids that the operation needs, so that each storage can fetch them in one trip. A later read of
   some of them costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from packhorse.core.event import Event
from packhorse.core.job import Job, NewJob, State
from packhorse.core.metrics import Level
from packhorse.core.transitions import Transition
from packhorse.storage.records import ClientInfo, LogLine, QueueInfo, ScheduleInfo, TaskInfo, Tick, WorkerInfo

R = TypeVar("R")
Record = TypeVar("Record", QueueInfo, ScheduleInfo, WorkerInfo, ClientInfo)


class Transaction(Protocol):
    """Reads and writes of one operation."""

    @property
    def now(self) -> int:
        """The storage's clock, in microseconds since 1970."""
        ...

    def nested(self, work: Callable[[Any], R]) -> R:
        """Run `work` with a transaction inside of this one. An exception undoes only what `work` has written."""
        ...

    # --- jobs -----------------------------------------------------------------------------------------------------

    def jobs(self, job_ids: Collection[str], *, with_keys: bool = False) -> dict[str, Job]:
        """Lock and return the jobs that exist among these, by id. `with_keys` locks their unique keys first."""
        ...

    def stored(self, job_ids: Collection[str]) -> set[str]:
        """Return which of these ids are stored. Locks nothing."""
        ...

    def insert(self, jobs: Sequence[NewJob]) -> None:
        """Store new jobs in this order, with their events and counts; each takes its unique key. Wake a worker. The
        caller has locked the keys and has checked that ids and keys are free."""
        ...

    def keep(self, before: Job, change: Transition, ran: int | None = None) -> Job:
        """Store a changed job with its events. Update tallies, charts (`ran` is how long the attempt ran) and failure
        groups. Wake a worker if the job came into line or moved forward in it. Return the job."""
        ...

    def remove(self, jobs: Sequence[Job], by: str | None) -> None:
        """Delete jobs with their log lines, subscribers and unique keys. Record that `by` deleted them; events stay."""
        ...

    # --- unique keys ----------------------------------------------------------------------------------------------

    def lock_keys(self, keys: Collection[str]) -> None:
        """Lock these unique keys, whether taken or free. A storage with one writer does nothing."""
        ...

    def holders(self, keys: Collection[str]) -> dict[str, Job]:
        """Lock and return the jobs that hold these unique keys now, by key (`transitions.holds`)."""
        ...

    def retake_key(self, key: str, job_id: str) -> None:
        """Give a free unique key to this job again, without a period. If the job took it last, nothing changes."""
        ...

    def replaced_by(self, call_ids: Collection[str]) -> dict[str, str]:
        """Return the jobs that took the calls with these ids in place of their own, by id of the call."""
        ...

    def remember_replaced(self, call_id: str, job_id: str) -> None:
        """Remember that this job took the call with this id, so that a repeated call gets the same answer."""
        ...

    # --- lists of jobs for maintenance: locked. All but `held_jobs` skip jobs that another transaction has locked -----

    def due_jobs(self, limit: int) -> list[Job]:
        """Return scheduled and retrying jobs whose time has come, the earliest first."""
        ...

    def expired_jobs(self, limit: int) -> list[Job]:
        """Return jobs whose `expire_at` has passed, the earliest first."""
        ...

    def held_jobs(self, owners: Collection[str], limit: int) -> list[Job]:
        """Return jobs that these workers hold, the oldest first. Wait for jobs that another transaction has locked."""
        ...

    def lost_jobs(self, silent: Collection[str], limit: int) -> list[Job]:
        """Return jobs that these owners hold, and jobs whose owner is no worker when their rows are read, the oldest
        first. `silent` comes from `silent_owners`."""
        ...

    def unowned_jobs(self, limit: int) -> list[Job]:
        """Return reserved and running jobs without an owner, changed by hand or by a bug. Looking for them is
        expensive, so a storage may skip it in most calls (`storage/unowned_jobs.py`)."""
        ...

    def prunable_jobs(self, state: State, before: int, limit: int) -> list[Job]:
        """Return jobs that ended in this state up to `before`, the earliest first, without persistent jobs, jobs with
        subscribers and jobs that hold a unique key."""
        ...

    # --- records: queues, schedules, workers, clients ----------------------------------------------------------------

    def records(self, kind: type[Record], names: Collection[str]) -> dict[str, Record]:
        """Lock and return the records of this kind that exist among these names or ids. A queue comes without its
        counts, a client without its number of subscriptions."""
        ...

    def add(self, record: WorkerInfo) -> bool:
        """Store a worker under a new id. False: the id is taken, and nothing changes."""
        ...

    def put(self, record: QueueInfo | ScheduleInfo | WorkerInfo | ClientInfo | TaskInfo) -> None:
        """Store this record in place of the one with the same name or id. A queue keeps its counts."""
        ...

    def delete(self, record: ScheduleInfo | ClientInfo) -> None:
        """Delete this record; with a client, its subscriptions."""
        ...

    def delete_idle_worker(self, owner: str) -> WorkerInfo | None:
        """Delete a worker that holds no job, and return its record. None: it holds jobs, or it is unknown. The caller
        has locked the worker (`records`, `silent_owners`): one that another transaction has locked is skipped."""
        ...

    def know(self, queues: Collection[str], tasks: Mapping[str, str] = ...) -> None:
        """Make these queues known, and these tasks with the queue of each. Known names stay as they are."""
        ...

    def put_order(self, order: str) -> None:
        """Set in which order workers serve queues of one rank: `turns` or `created`."""
        ...

    def put_ticks(self, ticks: Sequence[Tick]) -> None:
        """Add these ticks to those of their schedule."""
        ...

    # --- workers and clients ----------------------------------------------------------------------------------------

    def silent_owners(self, first: int, last: int, lease: int) -> list[str]:
        """Lock and return the workers that are not beating (`WorkerInfo.is_beating`). Skip those that another
        transaction has locked.

        An unknown owner holds jobs and has no record that could be locked. A storage returns unknown owners only if
        they cannot join before the commit: it has one writer, or it compares at the commit. In the others `lost_jobs`
        finds their jobs."""
        ...

    def worker(self, owner: str) -> WorkerInfo | None:
        """Return the record of a worker. Lock nothing."""
        ...

    def silent_clients(self, before: int, limit: int) -> list[str]:
        """Return the ids of clients whose last sign of life is from `before` or earlier, the earliest first."""
        ...

    def subscribe(self, job_id: str, client_id: str) -> None:
        """The client wants the outcome of this job. Raise `ClientNotFound` if it is unknown.

        The client cannot be deleted before the commit: its row is locked, or compared at the commit. A deletion waits
        for that lock. Several transactions may subscribe one client at a time. MySQL locks nothing in a caller's
        transaction."""
        ...

    def unsubscribe(self, job_id: str, client_id: str) -> None:
        """The client no longer wants the outcome of this job."""
        ...

    def subscribers(self, job_ids: Collection[str]) -> Mapping[str, Collection[str]]:
        """Return the clients that want the outcomes of these jobs. A job without any is missing."""
        ...

    def subscriptions(self, client_id: str, limit: int) -> list[str]:
        """Return the ids of the jobs whose outcomes this client wants, sorted."""
        ...

    # --- history ----------------------------------------------------------------------------------------------------

    def record(self, events: Iterable[Event]) -> None:
        """Store these events. A job that they are about was read or changed in this transaction."""
        ...

    def silence(self, cause: str, until: int | None, by: str | None, version: str | None) -> tuple[str, bool] | None:
        """Set or clear (all None) the silence of the failures of this cause. Return their task and whether they had a
        silence before; None: no failure has this cause."""
        ...

    # --- wake-up ----------------------------------------------------------------------------------------------------

    def wake(self, queues: Iterable[str]) -> None:
        """Wake a worker for each of these queues when this transaction commits."""
        ...


class FullTransaction(Transaction, Protocol):
    """What the engine's own `reserve`, `check_in`, `append_log`, `prune` and `roll_up` need besides. A storage that has
    its own versions of these does not supply it."""

    def lines(self, queues: Collection[str], limit: int) -> dict[int, dict[str, list[Job]]]:
        """Return the queued jobs of these queues by rank and queue, up to `limit` of each, the oldest first. A paused
        queue has only forced jobs."""
        ...

    def add_log_lines(self, job: Job, lines: Sequence[LogLine], keep: int) -> None:
        """Add lines, with time and attempt, to a job's log. Above `keep` lines drop the oldest; the first of the rest
        says how many are gone (`records.dropped_lines`)."""
        ...

    def prune_history(self, before: int, limit: int) -> tuple[int, bool]:
        """Delete events, ticks, replaced calls and failure groups from `before` or earlier, up to `limit` of each. The
        newest event stays. Return how many events went, and whether there are more."""
        ...

    def fold_measures(self, level: Level, into: Level | None, before: int) -> None:
        """Add the numbers of this level up to `before` to a coarser level and delete them. None: only delete them."""
        ...
