"""What workers do most: reserve, start, finish. The hot path of the MySQL storage: rows are locked where nobody else
has locked them, then changed by their primary keys; a trip for the picking, and one for all that is written."""

from __future__ import annotations

import itertools
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from packhorse.core import transitions
from packhorse.core.errors import WorkerNotFound
from packhorse.core.fair_share import in_turns
from packhorse.core.job import RANK_FORCED, RANKS, RESERVED, Job, Token
from packhorse.core.outcome import Completed, Outcome, Verdict
from packhorse.storage.mysql.connection import UnexpectedRowCountError
from packhorse.storage.mysql.keeper import MySQLKeeper
from packhorse.storage.mysql.literals import RawSQL, literal, rendered
from packhorse.storage.mysql.transaction import Transaction
from packhorse.storage.sql.finishing import Finishing
from packhorse.storage.sql.rows import FIELDS, Row, job_of, to_json
from packhorse.storage.sql.scan_cursor import ScanCursor
from packhorse.storage.sql.transaction import Place
from packhorse.storage.sql.working import Hand

R = TypeVar("R")
_Dealt = dict[str, tuple[Job, Completed]]

_seq_of = itemgetter(FIELDS.index("seq"))

_LINES_AT_ONCE = 32
"""How many queues of one rank share the turns at once."""
_MOST_DEALT = 10_000
"""How many reserved jobs are remembered; those of workers that have died are never asked for again."""
_COMPLETED_AT_ONCE = 100
"""The server looks for each job among all of its statement."""
_SHORT_RESULT = 4_000

_Line = tuple[str, int, int]
"""(queue, rank, how many)."""
_Row = tuple[int, int, int | None, str | None]
"""What a completed job's row is told: its seq, when it started, until when it ran, its result."""


class Working(MySQLKeeper, Finishing):
    _last_lines: dict[int, str]
    _dealt: dict[str, Job]
    _found_nothing: bool  # by the latest reservation
    _cursor: ScanCursor
    _paused: set[str]  # queues that were paused when a reservation looked last

    # --- reserve --------------------------------------------------------------------------------------------------

    def reserve(self, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        if self._found_nothing and not self._is_worth_it(owner, queues):
            return []
        jobs = self._write("reserve", lambda tx: self._reserve(tx, owner, queues, limit))
        self._deal(jobs)
        return jobs

    def _is_worth_it(self, owner: str, queues: Mapping[str, int]) -> bool:
        """An idle worker looks before it begins a transaction."""
        ((is_known, late, has_work, due_in),) = self._db.read(
            "reserve", self._sql["glance"], (owner, self._moment(), to_json(list(queues)))
        )
        if not is_known:
            raise WorkerNotFound(owner)
        self._due_seen = (time.monotonic(), due_in)
        return bool(late or has_work)

    def _reserve(self, tx: Transaction, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        if tx.mark is not None:  # the storage is moved: finishing goes on, and this with it
            limit = 0
        every = sorted(queues)
        first = [self._render("gate", owner, tx.now), self._render("paused_queues", to_json(every))]
        # Of a lone queue jobs are picked at once, if it is as this process remembers it.
        lone = self._picks(every[0], limit) if len(every) == 1 and limit > 0 else []
        began_at = time.perf_counter()
        gate, answer, *picked = tx.ask([*first, *lone])
        paused = {row[0] for row in answer.rows}
        was_paused, self._paused = self._paused & set(every), (self._paused - set(every)) | paused
        is_known, late = gate.rows[0]
        if not is_known:
            raise WorkerNotFound(owner)
        if limit <= 0:
            return []
        if late:
            self._promote(tx, 100)
            if not self._expire_all(tx):
                return []
        if not lone:
            jobs = self._take_turns(tx, owner, queues, limit, paused)
        else:
            if late or was_paused != paused:
                picked = tx.ask(self._picks(every[0], limit))
            rows = [row for one in picked for row in one.rows]
            jobs = self._from_one(tx, owner, queues, rows[:limit])
        self._cursor.note(queues, jobs, time.perf_counter() - began_at, is_all=len(jobs) < limit)
        return jobs

    def _picks(self, queue: str, limit: int) -> list[str]:
        """What takes the first jobs of a lone queue."""
        low, high = (RANK_FORCED, RANK_FORCED) if queue in self._paused else (RANKS[0], RANKS[-1])
        return [self._render("pick", queue, stretch, limit) for stretch in self._stretches(queue, low, high)]

    def _stretches(self, queue: str, low: int, high: int) -> list[RawSQL]:
        """The line of a queue, from a rank to a rank: all of it in one, but for what need not be walked again."""
        if not self._cursor.is_set([queue]):
            return [_stretch(low, high, 0)]
        return [_stretch(*one) for one in self._cursor.ranges(queue, low, high)]

    def _from_one(self, tx: Transaction, owner: str, queues: Mapping[str, int], rows: Sequence[Row]) -> list[Job]:
        """A lone queue needs no turns; those that it has had count all the same."""
        jobs = self._taken(tx, owner, rows)
        for _, group in itertools.groupby(jobs, key=lambda job: job.rank):
            number = len(list(group))
            self._turns.share(dict.fromkeys(queues, number), queues, number)
        return jobs

    def _take_turns(
        self, tx: Transaction, owner: str, queues: Mapping[str, int], limit: int, paused: set[str]
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
            # The part that had its turn has nothing of this rank any more, or others were quicker.
            for queue in lines or waiting:
                del ranks[queue]
            if rank < RANKS[-1] and len(taken) < limit:
                ranks |= self._next_ranks(tx, [(queue, rank + 1) for queue in lines if queue not in paused])
        return taken

    def _next_ranks(self, tx: Transaction, asked: Sequence[tuple[str, int]]) -> dict[str, int]:
        """The lowest rank of each queue, from a given one on, in which it has jobs."""
        if not asked:
            return {}
        whole = [queue for queue, low in asked if low == RANKS[0] and not self._cursor.is_set([queue])]
        parts = [f"({self._render('first_ranks', to_json(whole))})"] if whole else []
        parts += [
            f"({self._render('next_rank', queue, stretch)})"
            for queue, low in sorted(set(asked) - {(queue, RANKS[0]) for queue in whole})
            for stretch in self._stretches(queue, low, RANKS[-1])
        ]
        ranks: dict[str, int] = {}
        for queue, rank in tx.ask([" UNION ALL ".join(parts)])[0].rows:
            ranks[queue] = min(rank, ranks.get(queue, rank))
        return ranks

    def _some_of(self, rank: int, queues: Sequence[str]) -> Sequence[str]:
        """Of very many queues a part: the next call begins behind it."""
        if len(queues) <= _LINES_AT_ONCE:
            return queues
        start = bisect_right(queues, self._last_lines.get(rank, ""))
        some = [*queues[start:], *queues[:start]][:_LINES_AT_ONCE]
        self._last_lines[rank] = some[-1]
        return some

    def _shares(
        self, tx: Transaction, rank: int, lines: Sequence[str], weights: Mapping[str, int], limit: int
    ) -> dict[str, int]:
        if not lines:
            return {}
        asked = " UNION ALL ".join(
            f"({self._render('length_of_line', queue, self._stretches(queue, rank, rank)[0], limit)})"
            for queue in lines
        )
        lengths = dict(tx.ask([asked])[0].fetchall())
        return self._turns.share({queue: lengths[queue] for queue in lines}, weights, limit)

    def _take(self, tx: Transaction, owner: str, lines: Sequence[_Line]) -> list[Job]:
        if not lines:
            return []
        picks = [
            self._render("pick", queue, self._stretches(queue, rank, rank)[0], share) for queue, rank, share in lines
        ]
        answers = tx.ask(picks)
        return self._taken(tx, owner, [row for answer in answers for row in answer.rows])

    def _taken(self, tx: Transaction, owner: str, rows: Sequence[Row]) -> list[Job]:
        """Picked rows become reserved jobs."""
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

    def _jobs_by_seq(self, tx: Transaction, seqs: Sequence[int]) -> dict[int, Job]:
        rows = tx.execute(self._sql["jobs_by_seqs"], (to_json(seqs),)).fetchall()
        return {_seq_of(row): job_of(row) for row in rows}

    def _deal(self, jobs: Sequence[Job]) -> None:
        """Remember what finishing will need of these. Whether they are still held is asked then."""
        self._found_nothing = not jobs
        if len(self._dealt) > _MOST_DEALT:
            self._dealt.clear()
        self._dealt.update({job.id: job for job in jobs if job.fence == 1})

    def _render(self, name: str, *values: Any) -> str:
        return rendered(self._sql[name], values)

    # --- start ----------------------------------------------------------------------------------------------------

    def start(self, tokens: Sequence[Token], agos: Sequence[int] = ()) -> list[Verdict]:
        if not tokens:
            return []
        verdicts = self._write("start", lambda tx: self._start(tx, tokens, agos or [0] * len(tokens)))
        for token in tokens:
            self._dealt.pop(token.job_id, None)  # it is no longer as it was dealt
        return verdicts

    def _start(self, tx: Transaction, tokens: Sequence[Token], agos: Sequence[int]) -> list[Verdict]:
        hands = self._hands(tx, tokens)
        verdicts = []
        begun: list[tuple[int, int]] = []  # (seq, started_at)
        for token, ago in zip(tokens, agos, strict=True):
            hand = hands.get(token.job_id)
            if hand is None or not hand.is_held_by(token):
                verdicts.append(Verdict.STALE)
            elif hand.state == "running":
                verdicts.append(Verdict.REPEATED)
            else:
                started_at = max(tx.now - ago, hand.queued_at or 0)
                begun.append((hand.seq, started_at))
                tx.event_rows.append(hand.event(started_at, "started", "running"))
                tx.move((hand.queue, hand.task, "reserved"), (hand.queue, hand.task, "running"))
                hands[hand.id] = hand._replace(state="running")
                verdicts.append(Verdict.ACCEPTED)
        if begun:
            tx.defer(self._sql["start_jobs"], (tx.now, _by_seq(begun), to_json([seq for seq, _ in begun])))
        return verdicts

    # --- finish ---------------------------------------------------------------------------------------------------

    def finish(self, outcomes: Sequence[Outcome]) -> list[Verdict]:
        if not outcomes:
            return []

        def call(dealt: _Dealt) -> list[Verdict]:
            return self._write("finish", lambda tx: self._finish(tx, outcomes, dealt))

        return self._from_memory(outcomes, call)

    def finish_and_reserve(
        self, outcomes: Sequence[Outcome], owner: str, queues: Mapping[str, int], limit: int
    ) -> tuple[list[Verdict], list[Job]]:
        def call(dealt: _Dealt) -> tuple[list[Verdict], list[Job]]:
            def work(tx: Transaction) -> tuple[list[Verdict], list[Job]]:
                verdicts = self._finish(tx, outcomes, dealt)
                if any(type(outcome) is not Completed for outcome in outcomes):
                    self._cursor.forget()  # some of them may be in line again, before all others
                return verdicts, self._reserve(tx, owner, queues, limit)

            return self._write("finish_and_reserve", work)

        verdicts, jobs = self._from_memory(outcomes, call)
        self._deal(jobs)
        return verdicts, jobs

    def _from_memory(self, outcomes: Sequence[Outcome], call: Callable[[_Dealt], R]) -> R:
        """Finish by what this process remembers of the jobs; if one of them is no longer so, by what is stored."""
        dealt = self._completed_of_dealt(outcomes)
        try:
            return call(dealt)
        except UnexpectedRowCountError:
            return call({})
        finally:
            for outcome in outcomes:
                self._dealt.pop(outcome.token.job_id, None)

    def _completed_of_dealt(self, outcomes: Sequence[Outcome]) -> _Dealt:
        """The completed ones among jobs that this process has reserved for the first time: what the storage would have
        to look up is known of them."""
        found: _Dealt = {}
        for outcome in outcomes:
            job = self._dealt.get(outcome.token.job_id)
            if job is None or type(outcome) is not Completed or outcome.token != job.token:
                continue
            if len(outcome.result or "") <= _SHORT_RESULT:
                found[job.id] = (job, outcome)
        if len({outcome.token.job_id for outcome in outcomes}) < len(outcomes):
            return {}  # several outcomes of one job: the first counts, and only the others' way keeps to that
        return found

    def _finish(self, tx: Transaction, outcomes: Sequence[Outcome], dealt: _Dealt) -> list[Verdict]:
        self._complete_dealt(tx, list(dealt.values()))
        others = [outcome for outcome in outcomes if outcome.token.job_id not in dealt]
        verdicts = iter(self._finish_others(tx, others))
        return [Verdict.ACCEPTED if outcome.token.job_id in dealt else next(verdicts) for outcome in outcomes]

    def _complete_dealt(self, tx: Transaction, completed: Sequence[tuple[Job, Completed]]) -> None:
        """Complete these, all of which must still be held as they were dealt. As `_complete`."""
        now = tx.now
        runs: dict[Place, list[tuple[int, int]]] = {}
        held: dict[str, list[_Row]] = {}  # by owner
        for job, outcome in completed:
            owner, queued_at = outcome.token.owner, job.queued_at or 0
            started_at = max(now - outcome.ago - outcome.ran, queued_at)
            row = (job.seq, started_at, transitions.ran_until(started_at, outcome.ran), outcome.result)
            held.setdefault(owner, []).append(row)
            told = f'{{"ran":{outcome.ran}}}'
            tx.event_rows.append((started_at, "started", "job", job.id, job.queue, "running", owner, 1, ""))
            tx.event_rows.append((now, "completed", "job", job.id, job.queue, "completed", owner, 1, told))
            runs.setdefault((job.queue, job.task, "reserved"), []).append((outcome.ran, started_at - queued_at))
        for owner, rows in held.items():
            rows.sort()
            for some in _portions(rows):
                seqs = [row[0] for row in some]
                begun, until, results = (_by_seq([(row[0], row[place]) for row in some]) for place in (1, 2, 3))
                values = (owner, now, begun, until, results, to_json(seqs))
                tx.defer(self._sql["complete_dealt"], values, expected=len(some))
        self._count_completed(tx, runs)

    def _complete(self, tx: Transaction, completed: Sequence[tuple[Hand, Completed]]) -> None:
        now = tx.now
        runs: dict[Place, list[tuple[int, int]]] = {}
        for hand, outcome in completed:
            started_at = hand.started_at
            begins = hand.state == "reserved"
            if begins:
                started_at = max(now - outcome.ago - outcome.ran, hand.queued_at or 0)
                tx.event_rows.append(hand.event(started_at, "started", "running"))
            started_at = now if started_at is None else started_at
            ran_until = transitions.ran_until(started_at, outcome.ran)
            row = (hand.owner, started_at, ran_until, now, begins, outcome.result, hand.seq)
            tx.defer(self._sql["complete_job"], row)
            tx.event_rows.append(hand.event(now, "completed", "completed", f'{{"ran":{outcome.ran}}}'))
            waited = 0 if hand.queued_at is None else started_at - hand.queued_at
            runs.setdefault((hand.queue, hand.task, hand.state), []).append((outcome.ran, waited))
        self._count_completed(tx, runs)


def _reserved_plain_job(row: Row, owner: str, now: int) -> Job:
    """The job in a row of `PLAIN`, just reserved."""
    (job_id, seq, task, queue, args, priority, rank, created_at, queued_at, first_queued_at, max_attempts,
     max_halts, unique_key, _) = row  # fmt: skip
    return Job(
        job_id, seq, task, queue, args, RESERVED, priority, rank, created_at, now, None, queued_at, first_queued_at,
        None, None, None, owner, None, 1, 0, 0, 0, 0, 0, max_attempts, max_halts, unique_key=unique_key,
    )  # fmt: skip


def _stretch(low: int, high: int, start: int) -> RawSQL:
    """A part of a line. A single rank is not said as a range: MariaDB would sort, and lock, the whole line."""
    ranks = f"`rank` = {low}" if low == high else f"`rank` BETWEEN {low} AND {high}"
    return RawSQL(f"{ranks} AND seq >= {start}" if start else ranks)


def _by_seq(pairs: Sequence[tuple[int, Any]]) -> RawSQL:
    """The value that belongs to each seq, as an expression."""
    values = {value for _, value in pairs}
    if len(values) == 1:
        return RawSQL(literal(values.pop()))
    return RawSQL(f"CASE seq {' '.join([f'WHEN {seq} THEN {literal(value)}' for seq, value in pairs])} END")


def _portions(rows: Sequence[R]) -> Iterator[Sequence[R]]:
    for start in range(0, len(rows), _COMPLETED_AT_ONCE):
        yield rows[start : start + _COMPLETED_AT_ONCE]
