"""A transaction on the SQLite file; see `sql/transaction.py`."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, TypeVar

from packhorse.core import transitions
from packhorse.core.event import Event, Kind
from packhorse.core.job import Job, NewJob, State
from packhorse.storage.sql.rows import Row, event_row, to_json
from packhorse.storage.sql.transaction import Shared, SQLTransaction, is_soon
from packhorse.storage.sqlite.event_writer import BatchedJob, BulkInsert, EventWriter, events_of
from packhorse.storage.sqlite.rows import LARGE_ARGS, UPDATE_JOB, changed_row, insert_of
from packhorse.storage.sqlite.statements import SQL
from packhorse.storage.transfer import decode, may_go_on

R = TypeVar("R")

_ADD_TALLY = BulkInsert(
    "packhorse_tally",
    ("queue", "task", "state", "number"),
    "ON CONFLICT (queue, task, state) DO UPDATE SET number = number + excluded.number",
)
_ADD_MEASURE = BulkInsert(
    "packhorse_measure",
    ("level", "at", "queue", "task", "counted", "amount"),
    "ON CONFLICT (level, at, queue, task, counted) DO UPDATE SET amount = amount + excluded.amount",
)


class SQLiteTransaction(SQLTransaction):
    """One operation, under the file's write lock."""

    __slots__ = ("_connection", "events", "execute", "executemany")

    executemany: Callable[[str, Any], sqlite3.Cursor]

    def __init__(
        self,
        connection: sqlite3.Connection | sqlite3.Cursor,
        shared: Shared,
        now: int,
        within: SQLiteTransaction | None = None,
    ) -> None:
        super().__init__(shared, now)
        self.events: EventWriter = EventWriter(connection, within.events if within is not None else None)
        self._connection = connection
        self.execute = connection.execute
        self.executemany = connection.executemany

    def nested(self, work: Callable[[SQLiteTransaction], R]) -> R:
        own = SQLiteTransaction(self._connection, self._shared, self.now, self)
        self.execute("SAVEPOINT nested")
        try:
            result = work(own)
        except Exception:
            with suppress(sqlite3.Error):  # a full disk has rolled everything back by itself
                self.execute("ROLLBACK TO nested")
                self.execute("RELEASE nested")
            raise
        self.execute("RELEASE nested")
        self.absorb(own)
        return result

    def absorb(self, other: SQLiteTransaction) -> None:
        self.events.absorb(other.events)
        super().absorb(other)

    def record(self, events: Iterable[Event]) -> None:
        self.events.add([event_row(event) for event in events])

    def flush(self) -> None:
        """Write what was collected."""
        self.events.flush(self.now)
        _ADD_TALLY.insert(self._connection, [(*key, number) for key, number in self.tallies.items() if number])
        _ADD_MEASURE.insert(self._connection, self._counted())

    # --- jobs -----------------------------------------------------------------------------------------------------

    def _save(self, before: Job, job: Job) -> None:
        self.execute(UPDATE_JOB, changed_row(job))
        if job.args != before.args:
            self.save_large_args([job])

    def save_large_args(self, jobs: Iterable[Job]) -> None:
        """Long arguments are not in the row, which is written with every change of state."""
        for job in jobs:
            if len(job.args) > LARGE_ARGS:
                self.execute(SQL["put_large_args"], (job.seq, job.args))

    def _insert(self, jobs: Sequence[NewJob]) -> None:
        if len(jobs) == 1:
            self.insert_one(jobs[0])
            return
        seq = self._last_seq()
        added = [transitions.added_job(new, seq + place, self.now) for place, new in enumerate(jobs, start=1)]
        batches = self._record_added(jobs, added)
        rows: dict[str, list[Row]] = {}
        for job in added:
            statement, row = insert_of(job, batches.get(job.id, ""))
            rows.setdefault(statement, []).append(row)
        for statement, values in rows.items():
            self.executemany(statement, values)
        self.save_large_args(added)
        for (queue, task, state), number in Counter([(job.queue, job.task, job.state) for job in added]).items():
            self.count_added((queue, task, state.value), number)
        self.wakes = self.wakes or any(is_soon(job.due_at, self.now) for job in added)

    def insert_one(self, new: NewJob) -> None:
        """Raises IntegrityError, and has done nothing, if the id is stored already."""
        job, events = transitions.added(new, self._last_seq() + 1, self.now)
        self.execute(*insert_of(job))
        self.record(events)
        self.save_large_args([job])
        self.count_added((job.queue, job.task, job.state.value), 1)
        self.wakes = self.wakes or is_soon(job.due_at, self.now)

    def _last_seq(self) -> int:
        """The number of the last job. Raises `StorageClosed` if the storage is being moved: this statement reads the
        mark too, so that enqueueing needs none for it."""
        seq, mark = self.execute(SQL["last_seq_and_move"]).fetchone()
        if mark is not None:
            may_go_on(decode(mark), "enqueue")
        return int(seq)

    def _record_added(self, new_jobs: Sequence[NewJob], added: Sequence[Job]) -> dict[str, str]:
        """Record the event of each. Returns the event batch of those that are in one."""
        alike: dict[State, dict[str, list[BatchedJob]]] = {}
        for new, job in zip(new_jobs, added, strict=True):
            facts = transitions.added_facts(new, job)
            batched = (job.id, 0) if facts is None else (job.id, 0, 0, facts)
            alike.setdefault(job.state, {}).setdefault(job.queue, []).append(batched)
        batches: dict[str, str] = {}
        for state, queues in alike.items():
            counts = [(queue, len(jobs)) for queue, jobs in queues.items()]
            jobs = list(chain.from_iterable(queues.values()))
            batch = self.events.add_batch(Kind.ADDED, self.now, counts, state.value, "", jobs)
            if batch:
                batches.update(dict.fromkeys([job_id for job_id, *_ in jobs], batch))
        return batches

    def remove(self, jobs: Sequence[Job], by: str | None) -> None:
        if jobs:
            numbers = to_json([job.seq for job in jobs])
            self.execute(SQL["remember_last_seq"], (max(job.seq for job in jobs),))
            self.execute(SQL["keep_packs_of_gone"], (self.now, numbers))
            self.execute(SQL["delete_large_args"], (numbers,))
        super().remove(jobs, by)

    def lock_keys(self, keys: Collection[str]) -> None:
        """There is one writer."""

    def _count_failure(self, row: Row) -> None:
        self.execute(SQL["count_failure"], row)

    def _write_names(self, tasks: Mapping[str, str], queues: Sequence[str]) -> None:
        for task, queue in tasks.items():
            self.execute(SQL["know_task"], (task, queue))
        for queue in queues:
            self.execute(SQL["know_queue"], (queue,))

    # --- pruning events -----------------------------------------------------------------------------------------------

    def _drop_events(self, before: int, limit: int) -> tuple[int, bool]:
        oldest = self.execute(SQL["oldest_events"], (limit + 1,)).fetchall()
        dropped, more = (0, False) if not oldest or oldest[0][1] > before else self._drop_rows(oldest, before, limit)
        # The references to events of deleted jobs go after the events.
        first = self.execute(SQL["oldest_events"], (1,)).fetchall()
        self.execute(SQL["delete_old_packs"], (limit, min([before, *(at - 1 for _, at, _ in first)])))
        return dropped, more

    def _drop_rows(self, oldest: Sequence[Row], before: int, limit: int) -> tuple[int, bool]:
        """Of these rows of (id, at, span), drop at most `limit` old events. Whole batches are not read; what is left of
        one that is only partly old is written again."""
        newest = self.execute(SQL["newest_event"]).fetchone()[0]
        dropped = seen = 0
        more = False
        for number, at, span in oldest:
            if seen > limit:
                break
            size = span + 1
            if at <= before and number < newest and dropped + size <= limit and seen + size <= limit + 1:
                self.execute(SQL["delete_event"], (number,))
                dropped += size
            else:
                events = events_of(self.execute(SQL["event_row"], (number,)).fetchone())
                window = events[: limit + 1 - seen]
                old = [event for event in window if event.at <= before and event.id < newest]
                going = {event.id for event in old[: limit - dropped]}
                more = more or len(old) > len(going)
                dropped += len(going)
                if going:
                    self.execute(SQL["delete_event"], (number,))
                    self.events.put_back([event for event in events if event.id not in going])
            seen += size
        return dropped, more
