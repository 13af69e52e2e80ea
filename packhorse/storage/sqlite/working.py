"""What workers do most: reserve, start, finish. The hot path of the SQLite storage."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter

from packhorse import changes
from packhorse.errors import WorkerNotFound
from packhorse.job import RANK_FORCED, Job, Token
from packhorse.outcome import Completed, Outcome, Verdict
from packhorse.series import measure_runs
from packhorse.storage.sql import working
from packhorse.storage.sql.rows import FIELDS, job_of, to_json
from packhorse.storage.sql.transaction import Place
from packhorse.storage.sql.working import Hand
from packhorse.storage.sqlite.keeper import SQLiteKeeper
from packhorse.storage.sqlite.statements import SQL
from packhorse.storage.sqlite.transaction import Transaction

_seq_of = itemgetter(FIELDS.index("seq"))


_LINES_AT_ONCE = 100
"""How many queues of one rank share the turns at once."""


class Working(SQLiteKeeper, working.Working):
    _last_lines: dict[int, str]

    # --- reserve --------------------------------------------------------------------------------------------------

    def reserve(self, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        self._bell.look()
        jobs = self._db.write("reserve", lambda tx: self._reserve(tx, owner, queues, limit))
        self._hand_bell_on(len(jobs), limit)
        return jobs

    def _hand_bell_on(self, got: int, limit: int) -> None:
        """Woken for nothing: the ring was for somebody else. Got all that was asked for: there may be more."""
        if got == 0:
            self._bell.pass_on()
        elif got >= limit:
            self._bell.ring()

    def _reserve(self, tx: Transaction, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        if tx.execute(SQL["worker_exists"], (owner,)).fetchone() is None:
            raise WorkerNotFound(owner)
        self._promote(tx, 100)
        self._expire(tx, 100)
        paused = {row[0] for row in tx.execute(SQL["paused_queues"]).fetchall()}
        every = sorted(queues)
        unpaused = [queue for queue in every if queue not in paused]
        taken: list[Job] = []
        rank = tx.execute(SQL["next_rank"], (-1,)).fetchone()[0]
        while rank is not None and len(taken) < limit:
            lines = self._lines(tx, rank, every if rank == RANK_FORCED else unpaused)
            shares = self._shares(tx, rank, lines, queues, limit - len(taken))
            batch = [job for queue, share in shares.items() for job in self._take(tx, owner, rank, queue, share)]
            if len(lines) == 1:  # it was not asked how long it is; the turns that it has had count all the same
                self._turns.share({lines[0]: len(batch)}, queues, len(batch))
            batch.sort(key=lambda job: job.seq)
            taken += batch
            if len(lines) < _LINES_AT_ONCE:  # else this rank may have more
                rank = tx.execute(SQL["next_rank"], (rank,)).fetchone()[0]
        return taken

    def _lines(self, tx: Transaction, rank: int, queues: Sequence[str]) -> list[str]:
        """Which of these queues have jobs of this rank. With very many, a part of them: the next call begins behind."""
        if len(queues) <= 1:
            return list(queues)
        start = bisect_right(queues, self._last_lines.get(rank, "")) if len(queues) > _LINES_AT_ONCE else 0
        asked = to_json([*queues[start:], *queues[:start]])
        found = [row[0] for row in tx.execute(SQL["lines_with_jobs"], (asked, rank, _LINES_AT_ONCE)).fetchall()]
        if len(found) == _LINES_AT_ONCE:
            self._last_lines[rank] = found[-1]
        return found

    def _shares(
        self, tx: Transaction, rank: int, lines: Sequence[str], weights: Mapping[str, int], limit: int
    ) -> dict[str, int]:
        if len(lines) <= 1:
            return dict.fromkeys(lines, limit)
        lengths = {line: tx.execute(SQL["length_of_line"], (rank, line, limit)).fetchone()[0] for line in lines}
        return self._turns.share(lengths, weights, limit)

    def _take(self, tx: Transaction, owner: str, rank: int, queue: str, limit: int) -> list[Job]:
        rows = tx.execute(SQL["take_from_line"], (owner, tx.now, rank, queue, limit)).fetchall()
        rows.sort(key=_seq_of)  # RETURNING promises no order
        jobs = [job_of(row) for row in rows]
        tx.event_rows += [(tx.now, "reserved", "job", job.id, queue, "reserved", owner, job.fence, "") for job in jobs]
        for task, number in Counter([job.task for job in jobs]).items():
            tx.move((queue, task, "queued"), (queue, task, "reserved"), number)
        return jobs

    # --- start ----------------------------------------------------------------------------------------------------

    def start(self, tokens: Sequence[Token]) -> list[Verdict]:
        if not tokens:
            return []
        return self._db.write("start", lambda tx: self._start(tx, tokens))

    def _start(self, tx: Transaction, tokens: Sequence[Token]) -> list[Verdict]:
        hands = self._hands(tx, tokens)
        verdicts = []
        for token in tokens:
            hand = hands.get(token.job_id)
            if hand is None or not hand.is_held_by(token):
                verdicts.append(Verdict.STALE)
            elif hand.state == "running":
                verdicts.append(Verdict.REPEATED)
            else:
                tx.execute(SQL["start_job"], (tx.now, tx.now, hand.seq))
                self._note_started(tx, hand, tx.now)
                tx.move((hand.queue, hand.task, "reserved"), (hand.queue, hand.task, "running"))
                hands[hand.id] = hand._replace(state="running")
                verdicts.append(Verdict.ACCEPTED)
        return verdicts

    def _note_started(self, tx: Transaction, hand: Hand, at: int) -> None:
        tx.event_rows.append(hand.event(at, "started", "running"))

    # --- finish ---------------------------------------------------------------------------------------------------

    def finish(self, outcomes: Sequence[Outcome]) -> list[Verdict]:
        if not outcomes:
            return []
        return self._db.write("finish", lambda tx: self._finish(tx, outcomes))

    def finish_and_reserve(
        self, outcomes: Sequence[Outcome], owner: str, queues: Mapping[str, int], limit: int
    ) -> tuple[list[Verdict], list[Job]]:
        self._bell.look()

        def work(tx: Transaction) -> tuple[list[Verdict], list[Job]]:
            return self._finish(tx, outcomes), self._reserve(tx, owner, queues, limit)

        verdicts, jobs = self._db.write("finish_and_reserve", work)
        self._hand_bell_on(len(jobs), limit)
        return verdicts, jobs

    def _finish(self, tx: Transaction, outcomes: Sequence[Outcome]) -> list[Verdict]:
        hands = self._hands(tx, [outcome.token for outcome in outcomes])
        others = [outcome.token.job_id for outcome in outcomes if type(outcome) is not Completed]
        jobs = self._jobs(tx, others) if others else {}
        verdicts: list[Verdict] = []
        completed: list[tuple[Hand, Completed]] = []
        for outcome in outcomes:
            token = outcome.token
            hand = hands.get(token.job_id)
            if hand is None or not hand.is_held_by(token):
                ended = hand is not None and hand.was_ended_by(token)
                verdicts.append(Verdict.REPEATED if ended else Verdict.STALE)
                continue
            if type(outcome) is Completed:
                completed.append((hand, outcome))
            else:
                job = jobs[token.job_id]
                kept = self._keep(tx, job, changes.settled(job, outcome, tx.now), outcome.ran)
                hand = hand._replace(fence=kept.fence)
            # A second outcome of the same attempt in this batch finds it ended, as it should.
            hands[token.job_id] = hand._replace(owner=None, last_owner=token.owner)
            verdicts.append(Verdict.ACCEPTED)
        self._complete(tx, completed)
        return verdicts

    def _complete(self, tx: Transaction, completed: Sequence[tuple[Hand, Completed]]) -> None:
        """The commonest ending, said in SQL: as `changes.settled` does it, without reading whole jobs."""
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
            rows.append((hand.owner, started_at, now, now, begins, outcome.result, hand.seq))
            tx.event_rows.append(hand.event(now, "completed", "completed", f'{{"ran":{outcome.ran}}}'))
            waited = 0 if hand.queued_at is None else started_at - hand.queued_at
            runs.setdefault((hand.queue, hand.task, hand.state), []).append((outcome.ran, waited))
        tx.executemany(SQL["complete_job"], rows)
        for place, times in runs.items():
            queue, task, _ = place
            tx.move(place, (queue, task, "completed"), len(times))
            tx.measures[queue, task, "completed"] = tx.measures.get((queue, task, "completed"), 0) + len(times)
            measure_runs(tx.measures, queue, task, times)
