"""What workers do most: reserve, start, finish. The hot path of the SQLite storage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from operator import itemgetter
from typing import TypeVar

from packhorse.core import transitions
from packhorse.core.errors import WorkerNotFound
from packhorse.core.event import Kind
from packhorse.core.fair_share import in_turns
from packhorse.core.job import RANK_FORCED, Job, Token
from packhorse.core.outcome import Completed, Outcome, Verdict
from packhorse.storage.sql.finishing import Finishing
from packhorse.storage.sql.rows import FIELDS, Row, from_json, job_of, to_json
from packhorse.storage.sql.transaction import Place
from packhorse.storage.sql.working import Hand
from packhorse.storage.sqlite.keeper import SQLiteKeeper
from packhorse.storage.sqlite.rows import LARGE_ARGS, reserved_plain_job
from packhorse.storage.sqlite.statements import SQL
from packhorse.storage.sqlite.transaction import Transaction

R = TypeVar("R")

_seq_of = itemgetter(FIELDS.index("seq"))


_LINES_AT_ONCE = 32
"""How many queues of one rank share the turns at once: a job alone costs more than one among others of its queue."""
_LONG_RUN = 16
"""So many jobs that came one after the other, on average, are worth a statement of their own."""
_MOST_DEALT = 10_000
"""How many reserved jobs are remembered; those of workers that have died are never asked for again."""


_Ended = tuple[Job, Completed, int]
"""A job, its outcome, and when it started."""
_Row = tuple[int, int, int | None, str | None]
"""What a completed job's row is told: its seq, how long ago it started, and ran until, its result."""


def _are_many_equals(queues: Sequence[str], weights: Mapping[str, int]) -> bool:
    """Are these so many that they share the turns in parts, and of the same weight?"""
    return len(queues) > _LINES_AT_ONCE and len({weights[queue] for queue in queues}) == 1


def _counted(lines: Sequence[str], weights: Mapping[str, int], wanted: int) -> int:
    """Up to how many jobs the length of each of these lines matters. With very many of the same weight, none can have
    much more than its part."""
    if not _are_many_equals(lines, weights):
        return wanted
    return min(wanted, max(10, 4 * wanted // _LINES_AT_ONCE))


class _NotHeldError(Exception):
    """Somebody else has one of the jobs by now that were dealt here."""


class Working(SQLiteKeeper, Finishing):
    _last_lines: dict[int, str]
    _dealt: dict[str, Job]

    # --- reserve --------------------------------------------------------------------------------------------------

    def reserve(self, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        self._notifier.note_version(queues)
        jobs = self._write("reserve", lambda tx: self._reserve(tx, owner, queues, limit))
        self._notify_next(len(jobs), limit, queues)
        return jobs

    def _notify_next(self, got: int, limit: int, queues: Iterable[str]) -> None:
        """Woken for nothing: the ring was for somebody else. Got all that was asked for: there may be more."""
        if got == 0:
            self._notifier.pass_on(queues)
        elif got >= limit:
            self._notifier.notify()

    def _reserve(self, tx: Transaction, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        if tx.execute(SQL["worker_exists"], (owner,)).fetchone() is None:
            raise WorkerNotFound(owner)
        if tx.mark is not None:  # the storage is moved: finishing goes on, and this with it
            return []
        self._promote(tx, 100)
        if not self._expire_all(tx):
            return []
        paused = {row[0] for row in tx.execute(SQL["paused_queues"]).fetchall()}
        every = list(queues)
        unpaused = [queue for queue in every if queue not in paused]
        taken: list[Job] = []
        rank = tx.execute(SQL["next_rank"], (-1,)).fetchone()[0]
        while rank is not None and len(taken) < limit:
            wanted = limit - len(taken)
            served = every if rank == RANK_FORCED else unpaused
            if rank in self._last_lines and _are_many_equals(served, queues):
                taken += self._take_round(tx, owner, rank, served, queues, wanted)
                continue
            counted = _counted(served, queues, wanted)
            lines = self._lines(tx, rank, served, counted)
            if len(lines) <= 1:  # how long it is need not be known; the turns that it has had count all the same
                batch = [job for queue in lines for job in self._take(tx, owner, rank, queue, wanted)]
                self._turns.share(dict.fromkeys(lines, len(batch)), queues, len(batch))
            else:
                heads = self._heads(tx, rank, self._turns.share(lines, queues, wanted))
                batch = self._take_heads(tx, owner, rank, heads)
                batch = in_turns(batch, queues)
            taken += batch
            may_have_more = len(lines) == _LINES_AT_ONCE or (counted < wanted and counted in lines.values())
            if not may_have_more:
                rank = tx.execute(SQL["next_rank"], (rank,)).fetchone()[0]
        return taken

    def _lines(self, tx: Transaction, rank: int, queues: Sequence[str], counted: int) -> dict[str, int]:
        """Which of these queues have jobs of this rank, and how many, up to what matters; of a single one that is not
        asked. With very many, a part of them: the next call begins behind."""
        if len(queues) <= 1:
            return dict.fromkeys(queues, counted)
        asked = to_json(self._from_last(rank, queues) if len(queues) > _LINES_AT_ONCE else queues)
        answer = tx.execute(SQL["lines_with_jobs"], (asked, rank, _LINES_AT_ONCE, counted)).fetchone()
        found: dict[str, int] = dict(from_json(answer[0]))
        if len(found) == _LINES_AT_ONCE:
            self._last_lines[rank] = next(reversed(found))
        return found

    def _from_last(self, rank: int, queues: Sequence[str]) -> list[str]:
        """These queues, but first those behind the one that was the last to be served."""
        last = self._last_lines.get(rank)
        start = queues.index(last) + 1 if last in queues else 0
        return [*queues[start:], *queues[:start]]

    def _take_round(
        self, tx: Transaction, owner: str, rank: int, queues: Sequence[str], weights: Mapping[str, int], wanted: int
    ) -> list[Job]:
        """As many jobs from each of the next of these queues, which are equals, without asking how long their lines
        are. Where that does not suffice, the lines are few or short by now, and the next call asks."""
        fewest = -(-wanted // _LINES_AT_ONCE)
        # So that it comes out even: queues that are served alike stay side by side, as do their jobs in the file.
        each = min(range(fewest, fewest + fewest // 3 + 1), key=lambda number: wanted % number)
        asked = (to_json(self._from_last(rank, queues)), rank, each, wanted)
        heads: dict[str, list[Row]] = {}
        for row in from_json(tx.execute(SQL["next_of_lines"], asked).fetchone()[0]):
            heads.setdefault(row[-2], []).append(row)
        jobs = self._take_heads(tx, owner, rank, heads)
        self._turns.share({queue: len(rows) for queue, rows in heads.items()}, weights, len(jobs))
        if len(jobs) < wanted:
            del self._last_lines[rank]
        else:
            self._last_lines[rank] = next(reversed(heads))
        return in_turns(jobs, weights)

    def _take(self, tx: Transaction, owner: str, rank: int, queue: str, limit: int) -> list[Job]:
        rows = from_json(tx.execute(SQL["head_of_line"], (rank, queue, limit)).fetchone()[0])
        if not rows:
            return []
        first, last = rows[0][1], rows[-1][1]
        others = [row[1] for row in rows if not row[-1]]
        before = self._jobs_by_seq(tx, others) if others else {}
        jobs = [
            reserved_plain_job(row[:-1], queue, rank, owner, tx.now)
            if row[-1]
            else transitions.reserved(before[row[1]], owner, tx.now).job
            for row in rows
        ]
        packed = [(job.id, job.fence) for job in jobs]
        pack = tx.events.add_batch(Kind.RESERVED, tx.now, [(queue, len(jobs))], "reserved", owner, packed)
        take = SQL["take_any"] if others else SQL["take_plain"]
        # In line between the first and the last there are these jobs and no others.
        tx.execute(take, (owner, tx.now, pack, rank, queue, first, last))
        if others:
            self._put_old_packs(tx, others)
        self._note_taken(tx, queue, jobs)
        return jobs

    def _take_heads(self, tx: Transaction, owner: str, rank: int, heads: Mapping[str, list[Row]]) -> list[Job]:
        """As `_take` from each of these lines, with fewer statements where all jobs are plain."""
        jobs: list[Job] = []
        lines: list[tuple[str, int]] = []
        others: list[Job] = []
        for queue, rows in heads.items():
            if not all(row[-1] for row in rows):
                others += self._take(tx, owner, rank, queue, len(rows))
                continue
            line = [reserved_plain_job(row[:-2], queue, rank, owner, tx.now) for row in rows]
            lines.append((queue, len(line)))
            self._note_taken(tx, queue, line)
            jobs += line
        if jobs:
            packed = [(job.id, job.fence) for job in jobs]
            pack = tx.events.add_batch(Kind.RESERVED, tx.now, lines, "reserved", owner, packed)
            tx.execute(SQL["take_scattered"], (owner, tx.now, pack, to_json([job.seq for job in jobs])))
        return jobs + others

    def _heads(self, tx: Transaction, rank: int, shares: Mapping[str, int]) -> dict[str, list[Row]]:
        """The heads of these lines, of each as many as its share. Nearly equal shares are asked for at once."""
        heads: dict[str, list[Row]] = {queue: [] for queue in shares}
        most = max(shares.values(), default=0)
        is_even = most * len(shares) <= sum(shares.values()) + len(shares)
        for share in [most] if is_even else set(shares.values()):
            asked = to_json([queue for queue in shares if is_even or shares[queue] == share])
            for row in from_json(tx.execute(SQL["heads_of_lines"], (asked, rank, share)).fetchone()[0]):
                heads[row[-2]].append(row)
        return {queue: rows[: shares[queue]] for queue, rows in heads.items()}

    def _note_taken(self, tx: Transaction, queue: str, jobs: Sequence[Job]) -> None:
        tasks = [job.task for job in jobs]
        for task in set(tasks):
            tx.move((queue, task, "queued"), (queue, task, "reserved"), tasks.count(task))
        self._deal(jobs)

    def _jobs_by_seq(self, tx: Transaction, seqs: Sequence[int]) -> dict[int, Job]:
        rows = tx.execute(SQL["jobs_by_seqs"], (to_json(seqs),)).fetchall()
        return {_seq_of(row): job_of(row) for row in rows}

    def _put_old_packs(self, tx: Transaction, seqs: Sequence[int]) -> None:
        for job_id, packs in tx.execute(SQL["long_packs"], (to_json(seqs),)).fetchall():
            tx.execute(SQL["put_old_packs"], (job_id, packs, tx.now))
            tx.execute(SQL["clear_packs"], (job_id,))

    def _deal(self, jobs: Sequence[Job]) -> None:
        """Remember what finishing will need of those that are held for the first time. Whether they still are is asked
        then."""
        if len(self._dealt) > _MOST_DEALT:
            self._dealt.clear()
        self._dealt.update([(job.id, job) for job in jobs if job.fence == 1 and len(job.args) <= LARGE_ARGS])

    # --- start ----------------------------------------------------------------------------------------------------

    def start(self, tokens: Sequence[Token], agos: Sequence[int] = ()) -> list[Verdict]:
        if not tokens:
            return []
        return self._write("start", lambda tx: self._start(tx, tokens, agos or [0] * len(tokens)))

    def _start(self, tx: Transaction, tokens: Sequence[Token], agos: Sequence[int]) -> list[Verdict]:
        hands = self._hands(tx, tokens)
        verdicts = []
        for token, ago in zip(tokens, agos, strict=True):
            hand = hands.get(token.job_id)
            if hand is None or not hand.is_held_by(token):
                verdicts.append(Verdict.STALE)
            elif hand.state == "running":
                verdicts.append(Verdict.REPEATED)
            else:
                self._dealt.pop(token.job_id, None)  # it is no longer as it was dealt
                started_at = max(tx.now - ago, hand.queued_at or 0)
                tx.execute(SQL["start_job"], (started_at, tx.now, hand.seq))
                self._note_started(tx, hand, started_at)
                tx.move((hand.queue, hand.task, "reserved"), (hand.queue, hand.task, "running"))
                hands[hand.id] = hand._replace(state="running")
                verdicts.append(Verdict.ACCEPTED)
        return verdicts

    def _note_started(self, tx: Transaction, hand: Hand, at: int) -> None:
        tx.events.add([hand.event(at, "started", "running")])

    # --- finish ---------------------------------------------------------------------------------------------------

    def finish(self, outcomes: Sequence[Outcome]) -> list[Verdict]:
        if not outcomes:
            return []
        return self._end("finish", lambda tx: self._finish(tx, outcomes))

    def _end(self, name: str, work: Callable[[Transaction], R]) -> R:
        """As `_write`. Where somebody else has a job by now that was dealt here, all is undone and done once more: what
        was dealt is forgotten by then, and everything is looked up."""
        try:
            return self._write(name, work)
        except _NotHeldError:
            return self._write(name, work)

    def finish_and_reserve(
        self, outcomes: Sequence[Outcome], owner: str, queues: Mapping[str, int], limit: int
    ) -> tuple[list[Verdict], list[Job]]:
        self._notifier.note_version(queues)

        def work(tx: Transaction) -> tuple[list[Verdict], list[Job]]:
            return self._finish(tx, outcomes), self._reserve(tx, owner, queues, limit)

        verdicts, jobs = self._end("finish_and_reserve", work)
        self._notify_next(len(jobs), limit, queues)
        return verdicts, jobs

    def _finish(self, tx: Transaction, outcomes: Sequence[Outcome]) -> list[Verdict]:
        dealt = self._completed_of_dealt(outcomes)
        if dealt:
            self._complete_dealt(tx, list(dealt.values()))
        if len(dealt) == len(outcomes):
            return [Verdict.ACCEPTED] * len(outcomes)
        others = [outcome for outcome in outcomes if outcome.token.job_id not in dealt]
        verdicts = iter(self._finish_others(tx, others))
        return [Verdict.ACCEPTED if outcome.token.job_id in dealt else next(verdicts) for outcome in outcomes]

    def _completed_of_dealt(self, outcomes: Sequence[Outcome]) -> dict[str, tuple[Job, Completed]]:
        """The completed ones among jobs that this process has reserved for the first time: what the storage would have
        to look up is known of them."""
        found: dict[str, tuple[Job, Completed]] = {}
        for outcome in outcomes:
            job = self._dealt.pop(outcome.token.job_id, None)
            if job is not None and type(outcome) is Completed and outcome.token.fence == job.fence:
                found[job.id] = (job, outcome)
        if len({outcome.token.job_id for outcome in outcomes}) < len(outcomes):
            return {}  # several outcomes of one job: the first counts, and only the others' way keeps to that
        return found

    def _complete_dealt(self, tx: Transaction, completed: Sequence[tuple[Job, Completed]]) -> None:
        """As `_complete`, if all of these are still held as they were dealt; else `_NotHeldError`."""
        now = tx.now
        runs: dict[Place, list[tuple[int, int]]] = {}
        alike: dict[str, dict[str, list[_Ended]]] = {}  # by owner and queue
        for job, outcome in completed:
            queued_at = job.queued_at or 0
            started_at = max(now - outcome.ago - outcome.ran, queued_at)
            alike.setdefault(outcome.token.owner, {}).setdefault(job.queue, []).append((job, outcome, started_at))
            runs.setdefault((job.queue, job.task, "reserved"), []).append((outcome.ran, started_at - queued_at))
        for owner, queues in alike.items():
            lines = [(queue, len(ended)) for queue, ended in queues.items()]
            ended = list(chain.from_iterable(queues.values()))
            begun = [(job.id, 1, started_at - now) for job, _, started_at in ended]
            done = [(job.id, 1, 0, {"ran": outcome.ran}) for job, outcome, _ in ended]
            packs = tx.events.add_batch(Kind.STARTED, now, lines, "running", owner, begun)
            packs += tx.events.add_batch(Kind.COMPLETED, now, lines, "completed", owner, done)
            rows = [
                (job.seq, now - started_at, now - started_at - outcome.ran if outcome.ran > 0 else None, outcome.result)
                for job, outcome, started_at in ended
            ]
            if _complete_rows(tx, owner, packs, rows) < len(rows):
                raise _NotHeldError
        self._count_completed(tx, runs)

    def _complete(self, tx: Transaction, completed: Sequence[tuple[Hand, Completed]]) -> None:
        now = tx.now
        rows = []
        runs: dict[Place, list[tuple[int, int]]] = {}
        for hand, outcome in completed:
            started_at = hand.started_at
            if hand.state == "reserved":
                started_at = max(now - outcome.ago - outcome.ran, hand.queued_at or 0)
                self._note_started(tx, hand, started_at)
            started_at = now if started_at is None else started_at
            begins = 1 if hand.state == "reserved" else 0
            ran_until = transitions.ran_until(started_at, outcome.ran)
            rows.append((hand.owner, started_at, ran_until, now, now, begins, outcome.result, hand.seq))
            tx.events.add([hand.event(now, "completed", "completed", f'{{"ran":{outcome.ran}}}')])
            waited = 0 if hand.queued_at is None else started_at - hand.queued_at
            runs.setdefault((hand.queue, hand.task, hand.state), []).append((outcome.ran, waited))
        tx.executemany(SQL["complete_job"], rows)
        self._count_completed(tx, runs)


def _complete_rows(tx: Transaction, owner: str, packs: str, rows: list[_Row]) -> int:
    """Complete these rows; answers how many of them were still held."""
    rows.sort()
    gaps = [place for place in range(1, len(rows)) if rows[place][0] - rows[place - 1][0] > 1]
    if len(gaps) * _LONG_RUN >= len(rows):
        return tx.execute(SQL["complete_scattered"], (owner, tx.now, packs, to_json(rows))).rowcount
    number = 0
    for start, end in pairwise([0, *gaps, len(rows)]):
        run = rows[start:end]
        seqs, starts, ends, results = zip(*run, strict=True)
        are_alike = results.count(results[0]) == len(results)  # as where tasks return nothing; it is soon said then
        told = (None, results[0]) if are_alike else (to_json(results), None)
        values = (owner, tx.now, packs, seqs[0], seqs[-1], to_json(starts), to_json(ends), *told)
        number += tx.execute(SQL["complete_together"], values).rowcount
    return number
