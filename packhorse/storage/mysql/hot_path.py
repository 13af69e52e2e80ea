"""Enqueue, reserve and finish on MySQL: what every job passes through. The engine could do all of it.

Own code because it was measured: rows are locked where no other transaction has locked them, and changed by their
primary keys; one round trip reads what to take, and one writes everything. The engine would need a trip for each step.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

import pymysql

from packhorse.core import transitions
from packhorse.core.clock import MINUTE
from packhorse.core.errors import WorkerNotFound
from packhorse.core.fair_share import FairShare, in_turns
from packhorse.core.job import LOWEST_PRIORITY, RANK_FORCED, RANKS, RESERVED, Job, NewJob, Token, rank_of
from packhorse.core.metrics import MINUTES
from packhorse.core.outcome import Completed, Outcome, Verdict
from packhorse.storage.engine import attempts, maintenance
from packhorse.storage.mysql.connection import MySQLConnection, UnexpectedRowCountError
from packhorse.storage.mysql.database import Database
from packhorse.storage.mysql.literals import RawSQL, literal, rendered
from packhorse.storage.mysql.notifier import Notifier
from packhorse.storage.mysql.transaction import MySQLTransaction, portions
from packhorse.storage.records import Enqueued
from packhorse.storage.sql.rows import FIELDS, Row, job_of, to_json
from packhorse.storage.sql.scan_cursor import ScanCursor
from packhorse.storage.sql.server import ServerStorage
from packhorse.storage.sql.storage import expire_all
from packhorse.storage.sql.transaction import Place, Shared

R = TypeVar("R")
_Remembered = dict[str, tuple[Job, Completed]]

_seq_of = itemgetter(FIELDS.index("seq"))

_QUEUES_AT_A_TIME = 32
"""How many queues of one rank share a call."""
_MOST_REMEMBERED = 10_000
"""How many reserved jobs are remembered; those of workers that died are never finished."""
_COMPLETED_AT_A_TIME = 100
"""The server looks for each job among all of its statement."""
_SHORT_RESULT = 4_000

_Line = tuple[str, int, int]
"""(queue, rank, how many)."""
_CompletedRow = tuple[int, int, int | None, str | None]
"""A completed job: its seq, when it started, until when it ran, its result."""

_unusual_values = attrgetter(
    "due_at", "timeout", "idle_timeout", "expires", "total_timeout", "unique", "created_by", "subscriber", "schedule",
    "backoff", "meta", "copied_from", "chosen",
)  # fmt: skip
_NOTHING_UNUSUAL = (None,) * 13
_NOW = RawSQL("@packhorse_now")
_MINUTE = RawSQL(f"@packhorse_now - @packhorse_now % {MINUTE}")


class _NotPlainError(Exception):
    """One of the ids is stored already, because a call is repeated whose answer was lost; or the storage is moved."""


class HotPath:
    """The fast calls of one storage."""

    def __init__(
        self, storage: ServerStorage, db: Database, shared: Shared, notifier: Notifier, fair_share: FairShare
    ) -> None:
        self._storage = storage
        self._db = db
        self._sql = shared.sql
        self._notifier = notifier
        self._names = shared.names
        self._fair_share = fair_share
        self.cursor = ScanCursor(slow=0.05, skips_ranks=True)
        self._last_queue: dict[int, str] = {}  # by rank: the last of very many queues that was served
        self._reserved: dict[str, Job] = {}  # by this process, for the first time: finishing need not read them
        self._found_nothing = False  # by the latest reserve
        self._paused: set[str] = set()  # queues that were paused when a reserve looked last

    # --- enqueue --------------------------------------------------------------------------------------------------

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued] | None:
        """None: the jobs need a transaction."""
        if not all(map(_is_plain, jobs)) or not self._names.have_all(jobs):
            return None
        try:
            return self._enqueue_plain(jobs)
        except _NotPlainError:
            return None

    def _enqueue_plain(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Store all in one trip, which also reads the time."""
        now = _NOW
        script = ["START TRANSACTION", rendered(self._sql["set_now"], (self._storage.moment(),))]
        for some in portions(jobs):
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
        self._storage.note_deltas(len(deltas))
        queues = {new.queue for new in jobs}
        if any(new.priority > LOWEST_PRIORITY for new in jobs):
            self.cursor.forget(queues)
        self._notifier.notify(queues)
        return [Enqueued(new.id) for new in jobs]

    # --- reserve --------------------------------------------------------------------------------------------------

    def reserve(self, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        if self._found_nothing and not self._is_worth_it(owner, queues):
            return []
        jobs = self._storage.write("reserve", lambda tx: self._reserve(tx, owner, queues, limit))
        self._remember(jobs)
        return jobs

    def _is_worth_it(self, owner: str, queues: Mapping[str, int]) -> bool:
        """An idle worker looks before it begins a transaction."""
        ((is_known, late, has_work, due_in),) = self._db.read(
            "reserve", self._sql["glance"], (owner, self._storage.moment(), to_json(list(queues)))
        )
        if not is_known:
            raise WorkerNotFound(owner)
        self._storage.due_seen = (time.monotonic(), due_in)
        return bool(late or has_work)

    def _reserve(self, tx: MySQLTransaction, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        if tx.mark is not None:  # the storage is moved: jobs are finished, and none is reserved
            limit = 0
        names = sorted(queues)
        first = [self._render("gate", owner, tx.now), self._render("paused_queues", to_json(names))]
        # Jobs of a single queue are picked in the same trip, if its pause is as this process remembers it.
        single = self._picks(names[0], limit) if len(names) == 1 and limit > 0 else []
        began_at = time.perf_counter()
        gate, answer, *picked = tx.send([*first, *single])
        paused = {row[0] for row in answer.rows}
        was_paused, self._paused = self._paused & set(names), (self._paused - set(names)) | paused
        is_known, late = gate.rows[0]
        if not is_known:
            raise WorkerNotFound(owner)
        if limit <= 0:
            return []
        if late:
            maintenance.promote(tx, 100)
            if not expire_all(tx):
                return []
        if not single:
            jobs = self._take_turns(tx, owner, queues, limit, paused)
        else:
            if late or was_paused != paused:
                picked = tx.send(self._picks(names[0], limit))
            rows = [row for one in picked for row in one.rows]
            jobs = self._from_one(tx, owner, queues, rows[:limit])
        self.cursor.note(queues, jobs, time.perf_counter() - began_at, is_all=len(jobs) < limit)
        return jobs

    def _picks(self, queue: str, limit: int) -> list[str]:
        """The statements that pick the first jobs of a single queue."""
        low, high = (RANK_FORCED, RANK_FORCED) if queue in self._paused else (RANKS[0], RANKS[-1])
        return [self._render("pick", queue, stretch, limit) for stretch in self._stretches(queue, low, high)]

    def _stretches(self, queue: str, low: int, high: int) -> list[RawSQL]:
        """A queue from a rank to a rank, in one part, or without what need not be scanned again."""
        if not self.cursor.is_set([queue]):
            return [_stretch(low, high, 0)]
        return [_stretch(*one) for one in self.cursor.ranges(queue, low, high)]

    def _from_one(self, tx: MySQLTransaction, owner: str, queues: Mapping[str, int], rows: Sequence[Row]) -> list[Job]:
        """Take jobs of a single queue. Its turns count, though there is no other queue."""
        jobs = self._taken(tx, owner, rows)
        for _, group in itertools.groupby(jobs, key=lambda job: job.rank):
            number = len(list(group))
            self._fair_share.share(dict.fromkeys(queues, number), queues, number)
        return jobs

    def _take_turns(
        self, tx: MySQLTransaction, owner: str, queues: Mapping[str, int], limit: int, paused: set[str]
    ) -> list[Job]:
        every = sorted(queues)
        taken: list[Job] = []
        ranks = self._next_ranks(tx, [(queue, RANK_FORCED if queue in paused else RANKS[0]) for queue in every])
        while ranks and len(taken) < limit:
            rank = min(ranks.values())
            waiting = [queue for queue in every if ranks.get(queue) == rank]
            lines = self._some_of(rank, [queue for queue in waiting if rank == RANK_FORCED or queue not in paused])
            shares = self._shares(tx, rank, lines, queues, limit - len(taken))
            batch = self._take(tx, owner, [(queue, rank, share) for queue, share in shares.items()])
            taken += in_turns(batch, queues)
            # The queues that had their turn have no more jobs of this rank, or others took them.
            for queue in lines or waiting:
                del ranks[queue]
            if rank < RANKS[-1] and len(taken) < limit:
                ranks |= self._next_ranks(tx, [(queue, rank + 1) for queue in lines if queue not in paused])
        return taken

    def _next_ranks(self, tx: MySQLTransaction, asked: Sequence[tuple[str, int]]) -> dict[str, int]:
        """The lowest rank in which each queue has jobs, from a given rank on."""
        if not asked:
            return {}
        whole = [queue for queue, low in asked if low == RANKS[0] and not self.cursor.is_set([queue])]
        parts = [f"({self._render('first_ranks', to_json(whole))})"] if whole else []
        parts += [
            f"({self._render('next_rank', queue, stretch)})"
            for queue, low in sorted(set(asked) - {(queue, RANKS[0]) for queue in whole})
            for stretch in self._stretches(queue, low, RANKS[-1])
        ]
        ranks: dict[str, int] = {}
        for queue, rank in tx.send([" UNION ALL ".join(parts)])[0].rows:
            ranks[queue] = min(rank, ranks.get(queue, rank))
        return ranks

    def _some_of(self, rank: int, queues: Sequence[str]) -> Sequence[str]:
        """Of very many queues a part: the next call begins after it."""
        if len(queues) <= _QUEUES_AT_A_TIME:
            return queues
        start = bisect_right(queues, self._last_queue.get(rank, ""))
        some = [*queues[start:], *queues[:start]][:_QUEUES_AT_A_TIME]
        self._last_queue[rank] = some[-1]
        return some

    def _shares(
        self, tx: MySQLTransaction, rank: int, lines: Sequence[str], weights: Mapping[str, int], limit: int
    ) -> dict[str, int]:
        if not lines:
            return {}
        asked = " UNION ALL ".join(
            f"({self._render('length_of_line', queue, self._stretches(queue, rank, rank)[0], limit)})"
            for queue in lines
        )
        lengths = dict(tx.send([asked])[0].fetchall())
        return self._fair_share.share({queue: lengths[queue] for queue in lines}, weights, limit)

    def _take(self, tx: MySQLTransaction, owner: str, lines: Sequence[_Line]) -> list[Job]:
        if not lines:
            return []
        picks = [
            self._render("pick", queue, self._stretches(queue, rank, rank)[0], share) for queue, rank, share in lines
        ]
        answers = tx.send(picks)
        return self._taken(tx, owner, [row for answer in answers for row in answer.rows])

    def _taken(self, tx: MySQLTransaction, owner: str, rows: Sequence[Row]) -> list[Job]:
        """Reserve the jobs in these rows."""
        if not rows:
            return []
        now = tx.now
        others = [row[1] for row in rows if not row[-1]]
        before = self._jobs_by_seq(tx, others) if others else {}
        jobs = [
            _reserved_plain_job(row, owner, now) if row[-1] else transitions.reserved(before[row[1]], owner, now).job
            for row in rows
        ]
        tx.defer(self._sql["take"], (owner, now, to_json([job.seq for job in jobs])))
        for job in jobs:
            tx.event_rows.append((now, "reserved", "job", job.id, job.queue, "reserved", owner, job.fence, ""))
            tx.move((job.queue, job.task, "queued"), (job.queue, job.task, "reserved"))
        return jobs

    def _jobs_by_seq(self, tx: MySQLTransaction, seqs: Sequence[int]) -> dict[int, Job]:
        rows = tx.execute(self._sql["jobs_by_seqs"], (to_json(seqs),)).fetchall()
        return {_seq_of(row): job_of(row) for row in rows}

    def _remember(self, jobs: Sequence[Job]) -> None:
        """Remember what finishing needs of these jobs. It checks whether they are still held."""
        self._found_nothing = not jobs
        if len(self._reserved) > _MOST_REMEMBERED:
            self._reserved.clear()
        self._reserved.update({job.id: job for job in jobs if job.fence == 1})

    def _render(self, name: str, *values: Any) -> str:
        return rendered(self._sql[name], values)

    # --- finish ---------------------------------------------------------------------------------------------------

    def forget(self, tokens: Sequence[Token]) -> None:
        """These jobs have started, and are no longer as they were reserved."""
        for token in tokens:
            self._reserved.pop(token.job_id, None)

    def finish(self, outcomes: Sequence[Outcome]) -> list[Verdict]:
        if not outcomes:
            return []

        def call(remembered: _Remembered) -> list[Verdict]:
            return self._storage.write("finish", lambda tx: self._finish(tx, outcomes, remembered))

        return self._finish_remembered(outcomes, call)

    def finish_and_reserve(
        self, outcomes: Sequence[Outcome], owner: str, queues: Mapping[str, int], limit: int
    ) -> tuple[list[Verdict], list[Job]]:
        def call(remembered: _Remembered) -> tuple[list[Verdict], list[Job]]:
            def work(tx: MySQLTransaction) -> tuple[list[Verdict], list[Job]]:
                verdicts = self._finish(tx, outcomes, remembered)
                if any(type(outcome) is not Completed for outcome in outcomes):
                    self.cursor.forget()  # some of them may be queued again, before all others
                return verdicts, self._reserve(tx, owner, queues, limit)

            return self._storage.write("finish_and_reserve", work)

        verdicts, jobs = self._finish_remembered(outcomes, call)
        self._remember(jobs)
        return verdicts, jobs

    def _finish_remembered(self, outcomes: Sequence[Outcome], call: Callable[[_Remembered], R]) -> R:
        """Finish with what this process remembers of the jobs, or if one of them has changed, with what is stored."""
        remembered = self._remembered_completed(outcomes)
        try:
            return call(remembered)
        except UnexpectedRowCountError:
            return call({})
        finally:
            for outcome in outcomes:
                self._reserved.pop(outcome.token.job_id, None)

    def _remembered_completed(self, outcomes: Sequence[Outcome]) -> _Remembered:
        """The completed ones of the remembered jobs."""
        found: _Remembered = {}
        for outcome in outcomes:
            job = self._reserved.get(outcome.token.job_id)
            if job is None or type(outcome) is not Completed or outcome.token != job.token:
                continue
            if len(outcome.result or "") <= _SHORT_RESULT:
                found[job.id] = (job, outcome)
        if len({outcome.token.job_id for outcome in outcomes}) < len(outcomes):
            return {}  # of several outcomes of one job the first counts, which needs the jobs to be read
        return found

    def _finish(self, tx: MySQLTransaction, outcomes: Sequence[Outcome], remembered: _Remembered) -> list[Verdict]:
        self._complete_remembered(tx, list(remembered.values()))
        others = [outcome for outcome in outcomes if outcome.token.job_id not in remembered]
        verdicts = iter(attempts.finish(tx, others) if others else [])
        return [Verdict.ACCEPTED if outcome.token.job_id in remembered else next(verdicts) for outcome in outcomes]

    def _complete_remembered(self, tx: MySQLTransaction, completed: Sequence[tuple[Job, Completed]]) -> None:
        """Complete jobs as `transitions.settled` does, without reading them. All must be held as they were reserved, or
        the commit raises UnexpectedRowCountError."""
        now = tx.now
        runs: dict[Place, list[tuple[int, int]]] = {}
        held: dict[str, list[_CompletedRow]] = {}  # by owner
        for job, outcome in completed:
            owner, queued_at = outcome.token.owner, job.queued_at or 0
            started_at = max(now - outcome.ago - outcome.ran, queued_at)
            row = (job.seq, started_at, transitions.ran_until(started_at, outcome.ran), outcome.result)
            held.setdefault(owner, []).append(row)
            data = f'{{"ran":{outcome.ran}}}'
            tx.event_rows.append((started_at, "started", "job", job.id, job.queue, "running", owner, 1, ""))
            tx.event_rows.append((now, "completed", "job", job.id, job.queue, "completed", owner, 1, data))
            runs.setdefault((job.queue, job.task, "reserved"), []).append((outcome.ran, started_at - queued_at))
        for owner, rows in held.items():
            rows.sort()
            for some in _parts(rows):
                seqs = [row[0] for row in some]
                starts, ends, results = (_by_seq([(row[0], row[place]) for row in some]) for place in (1, 2, 3))
                values = (owner, now, starts, ends, results, to_json(seqs))
                tx.defer(self._sql["complete_dealt"], values, expected=len(some))
        tx.count_completed(runs)


def _reserved_plain_job(row: Row, owner: str, now: int) -> Job:
    """The job in a row of `PLAIN`, just reserved."""
    (job_id, seq, task, queue, args, priority, rank, created_at, queued_at, first_queued_at, max_attempts,
     max_halts, unique_key, _) = row  # fmt: skip
    return Job(
        job_id, seq, task, queue, args, RESERVED, priority, rank, created_at, now, None, queued_at, first_queued_at,
        None, None, None, owner, None, 1, 0, 0, 0, 0, 0, max_attempts, max_halts, unique_key=unique_key,
    )  # fmt: skip


def _stretch(low: int, high: int, start: int) -> RawSQL:
    """A part of a queue. A single rank is not written as a range: MariaDB would sort, and lock, the whole queue."""
    ranks = f"`rank` = {low}" if low == high else f"`rank` BETWEEN {low} AND {high}"
    return RawSQL(f"{ranks} AND seq >= {start}" if start else ranks)


def _by_seq(pairs: Sequence[tuple[int, Any]]) -> RawSQL:
    """The value that belongs to each seq, as an expression."""
    values = {value for _, value in pairs}
    if len(values) == 1:
        return RawSQL(literal(values.pop()))
    return RawSQL(f"CASE seq {' '.join([f'WHEN {seq} THEN {literal(value)}' for seq, value in pairs])} END")


def _parts(rows: Sequence[R]) -> Iterator[Sequence[R]]:
    for start in range(0, len(rows), _COMPLETED_AT_A_TIME):
        yield rows[start : start + _COMPLETED_AT_A_TIME]


def _is_plain(new: NewJob) -> bool:
    return new.delay <= 0 and not new.persistent and _unusual_values(new) == _NOTHING_UNUSUAL
