"""What SQLite, PostgreSQL and MySQL share: the engine over SQL transactions, and the queries.

The operations are in `storage/engine/`. A database adds its connections, its transaction, the hot path, how events are
stored, and how waiting workers are woken.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from packhorse.core.event import Event
from packhorse.core.fair_share import FairShare
from packhorse.core.job import QUEUED, Job, Reason, State, Token
from packhorse.storage.broken_records import facts_in
from packhorse.storage.contract import BATCH
from packhorse.storage.engine import Engine, maintenance, workers
from packhorse.storage.records import (
    AbortRequest,
    ClientInfo,
    Count,
    EventFilter,
    FailureGroup,
    Filter,
    LogLine,
    Page,
    Point,
    PollResult,
    QueueInfo,
    Rescued,
    ScheduleInfo,
    Span,
    Tally,
    TaskInfo,
    Tick,
    WorkerInfo,
    log_kind,
)
from packhorse.storage.sql.lists import JobLists
from packhorse.storage.sql.rows import client_of, job_of, schedule_of, to_json, worker_of
from packhorse.storage.sql.statements import Dialect
from packhorse.storage.sql.transaction import Database, Shared, SQLConnection, SQLTransaction
from packhorse.storage.sql.transfer import Transfers
from packhorse.storage.transfer import Dumped, Move, Section, decode, may_go_on, poll_result, quiet_answer

R = TypeVar("R")

_EXPIRED_AT_A_TIME = 100
_MOST_EXPIRED = 2_000
_REASONS = frozenset(reason.value for reason in Reason)
_amounts = msgspec.json.Decoder(dict[str, int]).decode


class SQLStorage(Engine[SQLTransaction]):
    """Jobs in an SQL database."""

    _db: Database
    _sql: Mapping[str, str]  # its statements, by name
    _dialect: Dialect
    _shared: Shared
    _lists: JobLists
    _transfers: Transfers
    _fair_share: FairShare

    # --- writing --------------------------------------------------------------------------------------------------

    def _write(self, name: str, work: Callable[[Any], R]) -> R:
        """Run `work` in a transaction. While the storage is moved, only some operations may run."""

        def gated(tx: SQLTransaction) -> R:
            tx.mark = self._read_mark(tx)
            if may_go_on(tx.mark, name):
                return work(tx)
            answer: R = quiet_answer(name)
            return answer

        return self._db.write(name, gated)

    def _read_mark(self, tx: Any) -> Move | None:
        """The mark of a move, which stays as it is for the whole of this transaction."""
        return self._transfers.mark_in(tx)

    def moment(self) -> Any:
        """The value that statements take as the time."""
        return self.now()

    def rescue(
        self, *, lease: int, why: str, recovered: bool = False, limit: int = 500, at: int | None = None
    ) -> list[Rescued]:
        """With a look for unowned jobs now and then, and without a transaction if there is nothing to rescue."""
        called_at = self.now() if at is None else at
        queues = self._unowned_queues()
        if not queues and not self._has_lost(called_at, lease):
            return []

        def work(tx: SQLTransaction) -> list[Rescued]:
            tx.unowned_queues = queues
            return workers.rescue(tx, lease, why, recovered, limit, called_at)

        return self._write("rescue", work)

    def _unowned_queues(self) -> list[str]:
        """Return the queues that may have jobs without an owner."""
        unowned = self._shared.unowned
        rows = self._db.read("rescue", self._sql["unowned_queues"]) if unowned.is_time() else []
        return unowned.worth_a_look(queue for (queue,) in rows)

    def _has_lost(self, called_at: int, lease: int) -> bool:
        """Whether a worker is silent, or holds jobs and is unknown. A read that saves most transactions, where these
        take several round trips."""
        return True

    # --- jobs -----------------------------------------------------------------------------------------------------

    def get(self, job_id: str) -> Job | None:
        found = self.get_many([job_id])
        return found[0] if found else None

    def get_many(self, job_ids: Sequence[str]) -> list[Job]:
        rows = self._db.read("get", self._sql["jobs_by_ids"], (to_json(list(job_ids)),))
        jobs = {row[0]: job_of(row) for row in rows}
        return [jobs[job_id] for job_id in job_ids if job_id in jobs]

    def find(self, where: Filter, *, cursor: str | None = None, limit: int = 50) -> Page:
        return self._lists.find(where, cursor, limit)

    def find_by_id(self, part: str, *, cursor: str | None = None, limit: int = 50) -> Page:
        ids, following = self._lists.ids_with(part, cursor, limit)
        return Page(self.get_many(ids) if ids else [], following)

    def count(self, where: Filter, *, cap: int = 10_000) -> Count:
        return self._lists.count(where, cap, self.tallies)

    def tallies(self) -> list[Tally]:
        rows = self._db.read("tallies", self._sql["all_tallies"])
        return [Tally(queue, task, State(state), number) for queue, task, state, number in rows]

    def queues(self) -> list[QueueInfo]:
        def work(connection: SQLConnection) -> list[QueueInfo]:
            counts: dict[str, dict[State, int]] = defaultdict(dict)
            for queue, _, state, number in connection.execute(self._sql["all_tallies"]).fetchall():
                counts[queue][State(state)] = counts[queue].get(State(state), 0) + number
            waiting = [queue for queue, numbers in counts.items() if numbers.get(QUEUED)]
            asked = (to_json(waiting),)
            oldest = dict(connection.execute(self._sql["oldest_in_line"], asked).fetchall()) if waiting else {}
            return [
                QueueInfo(name, counts.get(name, {}), at, by, why, until, oldest.get(name))
                for name, at, by, why, until in connection.execute(self._sql["all_queues"]).fetchall()
            ]

        return self._db.read_with("queues", work)

    def tasks(self) -> list[TaskInfo]:
        rows = self._db.read("tasks", self._sql["all_tasks"])
        return [TaskInfo(name, queue, facts_in(options), at) for name, queue, options, at in rows]

    def next_due(self) -> int | None:
        ((due_at,),) = self._db.read("next_due", self._sql["next_due"])
        return self._unless_moved(None if due_at is None else due_at - self.now())

    def _unless_moved(self, due_in: int | None) -> int | None:
        """A storage that is moved promotes nothing: a worker that waited for it would never sleep again."""
        if due_in is None or due_in > 0:
            return due_in
        return None if self.move() is not None else 0

    # --- schedules, workers, clients ----------------------------------------------------------------------------------

    def schedules(self) -> list[ScheduleInfo]:
        return [schedule_of(row) for row in self._db.read("schedules", self._sql["all_schedules"])]

    def ticks(self, name: str, *, limit: int = 50) -> list[Tick]:
        return [Tick(*row) for row in self._db.read("ticks", self._sql["latest_ticks"], (name, limit))]

    def workers(self) -> list[WorkerInfo]:
        return [worker_of(row) for row in self._db.read("workers", self._sql["all_workers"])]

    def abort_requests(self, owners: Sequence[str]) -> list[AbortRequest]:
        rows = self._db.read("stops", self._sql["jobs_to_stop"], (to_json(list(owners)),))
        return [abort_request_of(row) for row in rows]

    def poll(self, foreman: str, owners: Sequence[str], *, after: int = 0) -> PollResult:
        asked = (self.moment(), to_json(list(owners)), foreman, after)
        (row,) = self._db.read("outlook", self._sql["outlook"], asked)
        now, stops, queued, ordered, held, mark, due_at, expire_at, next_at, resume_at, order = row
        return poll_result(
            now,
            decode(mark),
            stops=bool(stops),
            queued=bool(queued),
            ordered=bool(ordered),
            held=bool(held),
            due_at=due_at,
            expire_at=expire_at,
            next_at=next_at,
            resume_at=resume_at,
            order=order,
        )

    def clients(self) -> list[ClientInfo]:
        return [client_of(row) for row in self._db.read("clients", self._sql["all_clients"])]

    def subscribers(self, job_id: str) -> list[str]:
        rows = self._db.read("subscribers", self._sql["subscribers_of"], (to_json([job_id]),))
        return [client_id for _, client_id in rows]

    def outcomes_for(self, client_id: str, *, limit: int = 100) -> list[Job]:
        return [job_of(row) for row in self._db.read("outcomes_for", self._sql["outcomes_for"], (client_id, limit))]

    # --- history ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def events(self, where: EventFilter, *, limit: int = 100, newest_first: bool = False) -> list[Event]: ...

    def log_lines(self, job_id: str, *, after: int = 0, limit: int = 1_000) -> list[LogLine]:
        rows = self._db.read("log_lines", self._sql["log_of"], (job_id, after, limit))
        return [LogLine(message, log_kind(kind), *rest) for message, kind, *rest in rows]

    def failures(self, *, limit: int = 50, span: Span | None = None) -> list[FailureGroup]:
        found = [FailureGroup(*row) for row in self._db.read("failures", self._sql["latest_failures"], (limit,))]
        if span is None or not found:
            return found
        counts: dict[str, dict[int, int]] = {group.cause: {} for group in found}
        start = span.level.start_of(self.now() - span.length)
        asked = (span.level.width, to_json(span.cause_levels), start, to_json(list(counts)))
        for cause, at, number in self._db.read("failures", self._sql["cause_series"], asked):
            counts[cause][at] = number
        return [replace(group, counts=counts[group.cause]) for group in found]

    def series(self, span: Span, *, queue: str | None = None, task: str | None = None) -> list[Point]:
        level, start = span.level, span.level.start_of(self.now() - span.length)
        if span.levels == [level.name]:
            rows = self._db.read("series", self._sql["series_of_level"], (level.name, start, queue, task))
        else:
            asked = (level.width, to_json(span.levels), start, queue, task)
            rows = self._db.read("series", self._sql["series"], asked)
        return [Point(at, its_queue, its_task, _amounts(amounts)) for at, its_queue, its_task, amounts in rows]

    def totals(self) -> dict[str, int]:
        return dict(self._db.read("totals", self._sql["totals"]))

    # --- copying to another storage -----------------------------------------------------------------------------------

    def move(self) -> Move | None:
        return self._transfers.move()

    def set_move(self, move: Move | None, *, expected: Move | None) -> bool:
        return self._transfers.set_move(move, expected)

    def dump(self, section: Section, *, cursor: str | None = None, limit: int = BATCH) -> Dumped:
        return self._transfers.dump(section, cursor, limit)

    def load(self, section: Section, rows: Sequence[Any], move: Move, *, expected: Move) -> bool:
        return self._transfers.load(section, rows, move, expected)


def expire_all(tx: SQLTransaction) -> bool:
    """Abort all jobs that waited or lived too long, before others are reserved. False: there are more than one
    transaction should take. The caller reserves nothing then, is woken immediately, and tries again."""
    for _ in range(_MOST_EXPIRED // _EXPIRED_AT_A_TIME):
        if maintenance.expire(tx, _EXPIRED_AT_A_TIME) < _EXPIRED_AT_A_TIME:
            return True
    tx.wakes = True
    return False


def abort_request_of(row: Sequence[Any]) -> AbortRequest:
    """A row of (id, owner, fence, reason) of a held job."""
    job_id, owner, fence, reason = row
    return AbortRequest(Token(job_id, owner, fence), Reason(reason) if reason in _REASONS else Reason.ABORTED)
