"""What workers do most: reserve, start, finish. The hot path of the PostgreSQL storage: one statement each, and the
finish of one batch with the reservation of the next in one round trip."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from packhorse.core import transitions
from packhorse.core.clock import SECOND
from packhorse.core.errors import StorageError, WorkerNotFound
from packhorse.core.fair_share import in_turns
from packhorse.core.job import RANK_FORCED, RANKS, Job, Token
from packhorse.core.outcome import Completed, Outcome, Verdict
from packhorse.storage.contract import named_queues
from packhorse.storage.postgres.connection import PostgresConnection
from packhorse.storage.postgres.keeper import PostgresKeeper
from packhorse.storage.postgres.transaction import Transaction
from packhorse.storage.sql import working
from packhorse.storage.sql.rows import job_of, to_json
from packhorse.storage.sql.scan_cursor import ScanCursor
from packhorse.storage.sql.working import Hand

_SOME_TRIES = 3
_LINES_AT_ONCE = 100
"""How many lines share the turns of one call."""
_LOOK_EVERY = 1.9
"""Seconds between two looks of a worker that sleeps on and was not rung for. Whoever enqueues a job that is due within
two seconds rings, so none that was not there at the last look comes before the next."""


class _Line(msgspec.Struct):
    """How many to take of a queue's jobs, of ranks from `low` to `high`, beginning with the number `start`."""

    queue: str
    low: int
    high: int
    share: int
    start: int = 0


class _Start(msgspec.Struct):
    """Where to begin looking for jobs of a queue and a rank."""

    queue: str
    rank: int
    start: int


class _Begun(msgspec.Struct):
    """A job that runs, as the statement reads it."""

    job_id: str
    owner: str
    fence: int
    ago: int


class _Told(msgspec.Struct):
    """An outcome as the statement reads it."""

    id: str
    owner: str
    fence: int
    result: str | None
    ran: int
    ago: int


class Working(PostgresKeeper, working.Working):
    _last_line: str
    _cursor: ScanCursor
    _in_vain: tuple[float, int | None] | None = None  # when nothing was found last, and when the next is due after that
    _in_vain_for: str | None = None  # the worker that looked

    # --- reserve --------------------------------------------------------------------------------------------------

    def reserve(self, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        self._in_vain = None
        taken: list[Job] = []  # each batch in it is committed: nothing that fails later may forget one
        try:
            is_late = self._db.read_with(
                "reserve", lambda connection: self._take(connection, owner, queues, limit, taken)
            )
            if is_late and self._write("promote", self._see_to_time):
                self._db.read_with(
                    "reserve", lambda connection: self._take(connection, owner, queues, limit, taken, anyway=True)
                )
        except StorageError:
            if not taken:
                raise
        self._counting(_counted_for(taken))
        if taken:
            self._notifier.remove_rows(queues)
        else:
            self._in_vain, self._in_vain_for = self._due_seen, owner
        return taken

    def wait_and_reserve(self, owner: str, queues: Mapping[str, int], limit: int, timeout: float) -> list[Job]:
        is_rung = self._notifier.wait(timeout, list(queues))
        queues = named_queues(queues)
        looked = self._in_vain if self._in_vain_for == owner else None
        if is_rung or looked is None or self._clock is not None or not self._notifier.has_lasting_row(queues):
            return self.reserve(owner, queues, limit)
        ago = time.monotonic() - looked[0]
        due_in = None if looked[1] is None else looked[1] - round(ago * SECOND)
        if ago >= _LOOK_EVERY or (due_in is not None and due_in <= 0):
            return self.reserve(owner, queues, limit)
        self._due_seen = (time.monotonic(), due_in)
        return []

    def _see_to_time(self, tx: Transaction) -> bool:
        self._promote(tx, 100)
        return self._expire_all(tx)

    def _take(
        self,
        connection: PostgresConnection,
        owner: str,
        queues: Mapping[str, int],
        limit: int,
        taken: list[Job],
        *,
        anyway: bool = False,
    ) -> bool:
        """Add jobs to `taken`. True: somebody must see first to those that are due or have expired."""
        for _ in range(_SOME_TRIES):  # others may be quicker at what was seen in line
            wanted = limit - len(taken)
            lines = self._lines(connection, owner, queues, wanted, anyway)
            if not lines:
                return lines is None
            rows = connection.execute(self._sql["take"], self._asked(owner, lines, wanted, anyway)).fetchall()
            batch, is_late = self._taken(connection, owner, queues, rows, wanted)
            taken += batch
            missed = sum(line.share for line in lines) - len(batch) if len(queues) > 1 else 0
            if is_late or len(taken) >= limit or missed <= 0:
                return is_late
        return False

    def _asked(self, owner: str, lines: Sequence[_Line], limit: int, anyway: bool) -> tuple[Any, ...]:
        return owner, self._moment(), to_json(lines), limit, anyway

    def _lines(
        self, connection: PostgresConnection, owner: str, queues: Mapping[str, int], limit: int, anyway: bool = False
    ) -> list[_Line] | None:
        """What to take from where; None: time must be seen to first. A lone queue needs no turns."""
        if len(queues) == 1:
            connection.searched_for, connection.paused = 0, ()
            return self._lone_line(queues, limit)
        most = max(_LINES_AT_ONCE, limit)  # each has one job at least, so nobody needs more lines than that
        statement, told = self._where(queues)
        began_at = time.perf_counter()
        rows = connection.execute(
            statement, (told, limit, owner, self._moment(), anyway, self._last_line, most)
        ).fetchall()
        connection.searched_for, connection.paused = round((time.perf_counter() - began_at) * SECOND), rows[0][6] or ()
        if len(rows) == most:
            self._last_line = self._behind(rows)
        is_known, is_late, due_in = rows[0][:3]
        if not is_known:
            raise WorkerNotFound(owner)
        self._due_seen = (time.monotonic(), due_in)
        return None if is_late else self._shares([row[3:6] for row in rows if row[3] is not None], queues, limit)

    def _where(self, queues: Mapping[str, int]) -> tuple[str, str]:
        """The statement that looks for lines, and what it is told."""
        if not self._cursor.is_set(queues):
            return self._sql["lines"], to_json(sorted(queues))
        starts = [
            _Start(queue, rank, start)
            for queue in sorted(queues)
            for low, high, start in self._cursor.ranges(queue)
            for rank in range(low, high + 1)
        ]
        return self._sql["lines_from"], to_json(starts)

    def _behind(self, rows: Sequence[tuple[Any, ...]]) -> str:
        """The queue that the lines of the lowest rank came to: the next call begins behind it."""
        lowest: list[str] = [queue for _, _, _, rank, queue, *_ in rows if rank == rows[0][3]]
        return max((queue for queue in lowest if queue > self._last_line), default=lowest[-1])

    def _lone_line(self, queues: Mapping[str, int], limit: int) -> list[_Line]:
        if not self._cursor.is_set(queues):
            return [_Line(queue, RANKS[0], RANKS[-1], limit) for queue in queues]
        return [
            _Line(queue, low, high, limit, start) for queue in queues for low, high, start in self._cursor.ranges(queue)
        ]

    def _shares(self, rows: Sequence[tuple[int, str, int]], weights: Mapping[str, int], limit: int) -> list[_Line]:
        """Rank by rank, turns by weight."""
        lines: list[_Line] = []
        for rank, group in itertools.groupby(rows, key=itemgetter(0)):
            lengths = {queue: length for _, queue, length in group}
            shares = self._turns.share(lengths, weights, limit)
            lines += [
                _Line(queue, rank, rank, share, self._cursor.start(queue, rank)) for queue, share in shares.items()
            ]
            limit -= sum(shares.values())
            if limit <= 0:
                break
        return lines

    def _taken(
        self,
        connection: PostgresConnection,
        owner: str,
        queues: Mapping[str, int],
        rows: Sequence[tuple[Any, ...]],
        wanted: int,
    ) -> tuple[list[Job], bool]:
        is_known, is_late, due_in, took = rows[0][:4]
        if not is_known:
            raise WorkerNotFound(owner)
        jobs = [job_of(row[4:]) for row in rows if row[4] is not None]
        if not jobs:
            self._due_seen = (time.monotonic(), due_in)
        if len(queues) == 1:  # it had no rivals; the turns that it has had count all the same
            for _, group in itertools.groupby(jobs, key=lambda job: job.rank):
                number = len(list(group))
                self._turns.share(dict.fromkeys(queues, number), queues, number)
        # The jobs of a paused queue were skipped, and may come before all that were found: remember nothing about it. A
        # lone queue may be paused if it gave only forced jobs.
        is_open = len(queues) > 1 or (jobs and jobs[-1].rank > RANK_FORCED)
        walked = [queue for queue in queues if queue not in connection.paused] if is_open else []
        self._cursor.note(walked, jobs, (took + connection.searched_for) / SECOND, is_all=len(jobs) < wanted)
        return jobs if len(queues) == 1 else in_turns(jobs, queues), is_late

    # --- start ----------------------------------------------------------------------------------------------------

    def start(self, tokens: Sequence[Token], agos: Sequence[int] = ()) -> list[Verdict]:
        if not tokens:
            return []
        each = dict(zip(reversed(tokens), reversed(agos or [0] * len(tokens)), strict=True))  # of two the first counts
        once = [_Begun(token.job_id, token.owner, token.fence, ago) for token, ago in each.items()]
        once.sort(key=lambda begun: begun.job_id)
        rows = self._db.run("start", self._sql["start_jobs"], (to_json(once), self._moment()))
        self._counting(rows[0][1] if rows else 0)
        started = {job_id for job_id, _ in rows}
        hands = {} if len(started) == len(tokens) else self._hands_now(tokens)
        verdicts = []
        for token in tokens:
            hand = hands.get(token.job_id)
            if token.job_id in started and (hand is None or hand.is_held_by(token)):
                started.discard(token.job_id)
                verdicts.append(Verdict.ACCEPTED)
            elif hand is not None and hand.is_held_by(token):
                verdicts.append(Verdict.REPEATED)
            else:
                verdicts.append(Verdict.STALE)
        return verdicts

    def _hands_now(self, tokens: Sequence[Token]) -> dict[str, Hand]:
        rows = self._db.read("start", self._sql["hands_of"], (to_json([token.job_id for token in tokens]),))
        return {row[0]: Hand._make(row) for row in rows}

    # --- finish ---------------------------------------------------------------------------------------------------

    def finish(self, outcomes: Sequence[Outcome]) -> list[Verdict]:
        if not outcomes:
            return []
        if not _are_plain(outcomes):
            return self._write("finish", lambda tx: self._finish(tx, outcomes))
        rows = self._db.run("finish", self._sql["complete"], (_told(outcomes), self._moment(), None))
        self._counting(rows[0][1] if rows else 0)
        return self._verdicts(outcomes, rows)

    def finish_and_reserve(
        self, outcomes: Sequence[Outcome], owner: str, queues: Mapping[str, int], limit: int
    ) -> tuple[list[Verdict], list[Job]]:
        if not outcomes:
            return [], self.reserve(owner, queues, limit)
        if not _are_plain(outcomes):
            verdicts = self._write("finish", lambda tx: self._finish(tx, outcomes, owner))
            return verdicts, self.reserve(owner, queues, limit)
        accepted, (taken, is_late) = self._db.read_with(
            "finish_and_reserve", lambda connection: self._complete_and_take(connection, outcomes, owner, queues, limit)
        )
        self._counting((accepted[0][1] if accepted else 0) + _counted_for(taken))
        verdicts = self._verdicts(outcomes, accepted)
        return verdicts, self.reserve(owner, queues, limit) if is_late else taken

    def _complete_and_take(
        self,
        connection: PostgresConnection,
        outcomes: Sequence[Outcome],
        owner: str,
        queues: Mapping[str, int],
        limit: int,
    ) -> tuple[list[Any], tuple[list[Job], bool]]:
        """One round trip for a lone queue; two when turns have to be shared out in between."""
        told = (_told(outcomes), self._moment(), owner)
        lines = self._lines(connection, owner, queues, limit)
        if lines is None:
            return connection.execute(self._sql["complete"], told).fetchall(), ([], True)
        with connection.pipeline() as pipeline:  # one transaction, committed when all has been sent
            completed = pipeline.execute(self._sql["complete"], told)
            taken = pipeline.execute(self._sql["take"], self._asked(owner, lines, limit, anyway=False))
        return completed.fetchall(), self._taken(connection, owner, queues, taken.fetchall(), limit)

    def _verdicts(self, outcomes: Sequence[Outcome], rows: Sequence[tuple[str, int]]) -> list[Verdict]:
        if len(rows) == len(outcomes):
            return [Verdict.ACCEPTED] * len(outcomes)
        accepted = {row[0] for row in rows}
        hands = self._hands_now([outcome.token for outcome in outcomes if outcome.token.job_id not in accepted])
        verdicts = []
        for outcome in outcomes:
            hand = hands.get(outcome.token.job_id)
            if outcome.token.job_id in accepted:
                verdicts.append(Verdict.ACCEPTED)
            else:
                ended = hand is not None and hand.was_ended_by(outcome.token)
                verdicts.append(Verdict.REPEATED if ended else Verdict.STALE)
        return verdicts

    def _finish(self, tx: Transaction, outcomes: Sequence[Outcome], reserving: str | None = None) -> list[Verdict]:
        """Any outcomes, one by one, as `changes.settled` decides."""
        if reserving is not None and tx.execute(self._sql["worker_exists"], (reserving,)).fetchone() is None:
            raise WorkerNotFound(reserving)
        jobs = self._jobs(tx, {outcome.token.job_id for outcome in outcomes})
        verdicts: list[Verdict] = []
        for outcome in outcomes:
            token = outcome.token
            job = jobs.get(token.job_id)
            if job is not None and (job.owner, job.fence) == (token.owner, token.fence):
                jobs[job.id] = self._keep(tx, job, transitions.settled(job, outcome, tx.now), outcome.ran)
                verdicts.append(Verdict.ACCEPTED)
                continue
            ended = job is not None and (job.owner, job.last_owner, job.fence) == (None, token.owner, token.fence)
            verdicts.append(Verdict.REPEATED if ended else Verdict.STALE)
        return verdicts


def _are_plain(outcomes: Sequence[Outcome]) -> bool:
    """Do all of them say that a job is complete, each of another job?"""
    return all(type(outcome) is Completed for outcome in outcomes) and (
        len(outcomes) == 1 or len({outcome.token.job_id for outcome in outcomes}) == len(outcomes)
    )


def _counted_for(taken: Sequence[Job]) -> int:
    """How many rows the statement that took these jobs has added to what is counted."""
    return 2 * len({(job.queue, job.task) for job in taken})


def _told(outcomes: Sequence[Any]) -> str:
    """In the order of their ids, in which everybody locks jobs."""
    told = [_Told(one.token.job_id, one.token.owner, one.token.fence, one.result, one.ran, one.ago) for one in outcomes]
    told.sort(key=lambda one: one.id)
    return to_json(told)
