"""Jobs into MySQL: one trip for plain ones, however many. What becomes of unique ones, and all that is read, is in
`sql/in_and_out.py`."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import pymysql

from packhorse.core import transitions
from packhorse.core.clock import MINUTE, SECOND
from packhorse.core.job import LOWEST_PRIORITY, QUEUED, NewJob, State, rank_of
from packhorse.core.metrics import MINUTES
from packhorse.storage.external_connection import elsewhere
from packhorse.storage.mysql.address import Address
from packhorse.storage.mysql.connection import MySQLConnection
from packhorse.storage.mysql.driver_errors import DUPLICATE, LOST_RACES, NOT_THERE, code_of
from packhorse.storage.mysql.external_connection import joined
from packhorse.storage.mysql.keeper import MySQLKeeper
from packhorse.storage.mysql.literals import RawSQL, rendered
from packhorse.storage.mysql.transaction import Transaction
from packhorse.storage.records import Enqueued, Placement, QueueInfo, look_into
from packhorse.storage.sql import in_and_out
from packhorse.storage.sql.rows import Row, to_json
from packhorse.storage.sql.scan_cursor import ScanCursor
from packhorse.storage.transfer import may_go_on

_SOON = 2 * SECOND
_AT_ONCE = 250_000
"""Bytes of arguments that are sent in one statement: written down they may be twice as many, and a server may take no
more than a million at once."""

# The values of `insert_jobs`, in their order.
_stored_values = attrgetter(
    "id", "task", "queue", "args", "state", "priority", "rank", "created_at", "updated_at", "due_at", "queued_at",
    "first_queued_at", "max_attempts", "max_halts", "timeout", "idle_timeout", "expires", "total_timeout", "expire_at",
    "unique_key", "persistent", "created_by", "schedule", "backoff", "meta",
)  # fmt: skip
_unusual_values = attrgetter(
    "due_at", "timeout", "idle_timeout", "expires", "total_timeout", "unique", "created_by", "subscriber", "schedule",
    "backoff", "meta", "copied_from", "chosen",
)  # fmt: skip
_NOTHING_UNUSUAL = (None,) * 13
_NOW = RawSQL("@packhorse_now")
_MINUTE = RawSQL(f"@packhorse_now - @packhorse_now % {MINUTE}")


class InAndOut(MySQLKeeper, in_and_out.InAndOut):
    address: Address
    _own_id: str | None
    _cursor: ScanCursor

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if not jobs:
            return []
        if all(map(_is_plain, jobs)) and not self._unknown(jobs):
            try:
                return self._enqueue_plain(jobs)
            except _NotPlainError:
                pass
        return super().enqueue(jobs)

    # --- the quick way --------------------------------------------------------------------------------------------

    def _enqueue_plain(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """All in one trip, the time included."""
        now = _NOW
        script = ["START TRANSACTION", rendered(self._sql["set_now"], (self._moment(),))]
        for some in _portions(jobs):
            rows = [
                (new.id, new.task, new.queue, new.args, "queued", new.priority, rank_of(new.priority), now, now, now,
                 now, new.max_attempts, new.max_halts)
                for new in some
            ]  # fmt: skip
            script.append(rendered(self._sql["insert_plain_jobs"], (rows,)))
        events = [(now, "added", "job", new.id, new.queue, "queued", None, None, None) for new in jobs]
        script.append(rendered(self._sql["put_events"], (events,)))
        deltas: list[Row] = []
        for (queue, task), number in Counter([(new.queue, new.task) for new in jobs]).items():
            deltas.append(("tally", 0, queue, task, "queued", number))
            deltas.append((MINUTES.name, _MINUTE, queue, task, "added", number))
        script += [rendered(self._sql["put_deltas"], (deltas,)), "COMMIT"]

        def work(connection: MySQLConnection) -> None:
            try:
                connection.script(script)
            except pymysql.IntegrityError as error:
                raise _NotPlainError from error

        self._db.read_with("enqueue", work)
        self._counting(len(deltas))
        queues = {new.queue for new in jobs}
        if any(new.priority > LOWEST_PRIORITY for new in jobs):
            self._cursor.forget(queues)
        self._notifier.notify(queues)
        return [Enqueued(new.id) for new in jobs]

    # --- the sure way ---------------------------------------------------------------------------------------------

    def enqueue_within(self, connection: object, jobs: Sequence[NewJob]) -> list[Enqueued]:
        # By a connection of our own: making tables is not for the caller's transaction, and a name that it made known
        # would be locked until it ends, for everybody else who comes with that name.
        here = self._storage_id()
        names = self._unknown(jobs)
        if names:
            # Each statement for itself, so this waits for nobody who waits for the caller.
            may_go_on(self.move(), "enqueue")
            self._db.read_with("know", lambda own: self._know(own, names))
            self._remember(jobs)
        if not jobs:
            return []
        try:
            with joined(connection, self._sql, self._dialect) as external:
                self._check_place(external, here)
                mark, now = external.execute(self._sql["share_writing"]).fetchone()
                tx = Transaction(external, int(now) if self._clock is None else self._clock(), mark, is_external=True)
                may_go_on(self._mark_of(tx), "enqueue")
                enqueued = self._enqueue(tx, jobs)
                tx.flush()
        except pymysql.Error as error:
            if code_of(error) in LOST_RACES:
                raise  # his transaction has lost a race: whoever makes it again waits for just this error
            raise self._db.told(error) from error
        return enqueued

    def _storage_id(self) -> str:
        """What tells these tables from all others."""
        if self._own_id is None:
            ((self._own_id,),) = self._db.read("whereabouts", self._sql["which_storage"])
        return self._own_id

    def _check_place(self, connection: MySQLConnection, here: str) -> None:
        try:
            there = connection.execute(self._sql["which_storage"]).fetchone()[0]
        except Exception as error:
            if code_of(getattr(error, "orig", error)) not in NOT_THERE:
                raise
            there = None
        if there != here:
            raise elsewhere("another server", self.address.shown)

    def _enqueue(self, tx: Transaction, jobs: Sequence[NewJob]) -> list[Enqueued]:
        self._know(tx, self._unknown(jobs))
        if any(new.unique or new.subscriber for new in jobs):
            self._lock_keys(tx, {new.unique.key for new in jobs if new.unique})
            return self._enqueue_each(tx, jobs)
        try:
            tx.nested(lambda own: self._insert(own, jobs))
        except pymysql.IntegrityError as error:
            _must_be_known_id(error)
            return [self._enqueue_one(tx, new) for new in jobs]
        return [Enqueued(new.id) for new in jobs]

    def _stored_among(self, tx: Any, job_ids: Sequence[str]) -> set[str]:
        return {row[0] for row in tx.execute(self._sql["jobs_by_ids"], (to_json(list(job_ids)),)).fetchall()}

    def _put_locks(self, tx: Any, locks: Sequence[tuple[str, str, int | None, str]]) -> None:
        tx.execute(self._sql["put_locks"], ([(*lock, tx.now) for lock in locks],))

    def _insert_run(self, tx: Any, run: Sequence[NewJob]) -> None:
        if not run:
            return
        try:
            tx.nested(lambda own: super(InAndOut, self)._insert_run(own, run))
        except pymysql.IntegrityError as error:
            _must_be_known_id(error)
            for new in run:
                self._enqueue_one(tx, new)

    def _enqueue_one(self, tx: Any, new: NewJob) -> Enqueued:
        try:
            return super()._enqueue_one(tx, new)
        except pymysql.IntegrityError as error:
            _must_be_known_id(error)
            return Enqueued(new.id, Placement.KEPT)  # another was quicker with the very same job

    def _insert(self, tx: Transaction, jobs: Sequence[NewJob]) -> None:
        stored = [transitions.added_job(new, 0, tx.now) for new in jobs]
        for some in _portions(stored):
            tx.execute(self._sql["insert_jobs"], ([_stored_values(job) for job in some],))
        for new, job in zip(jobs, stored, strict=True):
            facts = transitions.added_facts(new, job)
            data = "" if facts is None else to_json(facts)
            tx.event_rows.append((tx.now, "added", "job", job.id, job.queue, job.state.value, "", 0, data))
        for (queue, task, state), number in Counter([(job.queue, job.task, job.state) for job in stored]).items():
            tx.move(None, (queue, task, state.value), number)
            tx.measures[queue, task, "added"] = tx.measures.get((queue, task, "added"), 0) + number
        # A sleeper has asked when the next job is due, and would oversleep one that is due sooner.
        if any(job.due_at is None or job.due_at < tx.now + _SOON for job in stored):
            tx.wakes = True

    # --- queues ---------------------------------------------------------------------------------------------------

    def queues(self) -> list[QueueInfo]:
        def work(connection: MySQLConnection) -> list[QueueInfo]:
            paused: dict[str, list[Any]] = {}
            counts: defaultdict[str, dict[State, int]] = defaultdict(dict)
            for name, state, number, *rest in connection.rows(self._sql["all_queues"]):
                if state:
                    counts[name][State(state)] = number
                else:
                    paused[name] = [number, *rest]
            oldest = self._oldest(connection, [name for name, numbers in counts.items() if numbers.get(QUEUED)])
            return [
                QueueInfo(name, counts.get(name, {}), at, by, why, until, oldest.get(name))
                for name, (at, by, why, until) in sorted(paused.items())
            ]

        return self._db.read_with("queues", work)

    def _oldest(self, connection: MySQLConnection, queues: list[str]) -> dict[str, int]:
        """Since when the oldest job in line of each of these queues waits; see `look_into`. In two trips: in MariaDB
        a part of a statement cannot look a little into each of the lines that another part finds."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        unsure: list[tuple[str, int]] = []
        if not queues:
            return {}
        for queue, rank, since, is_oldest in connection.rows(self._sql["first_in_line"], (to_json(queues),)):
            found[queue].append(since)
            if not is_oldest:
                unsure.append((queue, rank))
        depth = look_into(len(unsure))
        if depth > 1:
            few = connection.executemany(self._sql["oldest_in_line"], [(*line, depth) for line in unsure])
            for (queue, _), answer in zip(unsure, few, strict=True):
                found[queue] += [since for (since,) in answer.rows if since is not None]  # None: all taken meanwhile
        return {queue: min(times) for queue, times in found.items()}

    # --- names ----------------------------------------------------------------------------------------------------

    def _unknown(self, jobs: Sequence[NewJob]) -> list[tuple[str, str]]:
        """The names, of task and queue, that this process has not seen for a while."""
        now = time.monotonic()
        names = dict.fromkeys((new.task, new.queue) for new in jobs)
        return [name for name in names if self._known.get(name, 0.0) < now]

    def _know(self, tx: Any, names: Iterable[tuple[str, str]]) -> None:
        """Looks first, without a lock: whoever writes a name that is there would have to wait for its other writers."""
        pairs = list(names)
        if not pairs:
            return
        asked = [to_json([task for task, _ in pairs]), to_json([queue for _, queue in pairs])]
        tasks = {row[0] for row in tx.execute(self._sql["known_tasks"], (asked[0],)).fetchall()}
        queues = {row[0] for row in tx.execute(self._sql["known_queues"], (asked[1],)).fetchall()}
        first = {task: queue for task, queue in reversed(pairs) if task not in tasks}
        tx.executemany(self._sql["know_task"], sorted(first.items()))
        tx.executemany(self._sql["know_queue"], sorted({(queue,) for _, queue in pairs if queue not in queues}))


class _NotPlainError(Exception):
    """One of the ids is stored already, because somebody repeats a call whose answer was lost; or the storage is
    moved."""


def _must_be_known_id(error: pymysql.IntegrityError) -> None:
    """Only a repeated id may be taken for a repeated call; anything else that the server refuses is an error."""
    if code_of(error) != DUPLICATE or "packhorse_job_id" not in str(error):
        raise error


def _is_plain(new: NewJob) -> bool:
    return new.delay <= 0 and not new.persistent and _unusual_values(new) == _NOTHING_UNUSUAL


def _portions(jobs: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Jobs in such numbers that a statement does not get too long."""
    start = length = 0
    for place, job in enumerate(jobs):
        own = len(job.args) if job.args.isascii() else len(job.args.encode(errors="replace"))
        if length and length + own > _AT_ONCE:
            yield jobs[start:place]
            start, length = place, 0
        length += own
    yield jobs[start:]
