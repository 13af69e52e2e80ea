"""What workers do: reserve, start, finish, release, check in, write log lines. The hot path of the storage."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from packhorse import changes
from packhorse.changes import Changed
from packhorse.errors import WorkerNotFound
from packhorse.job import RANK_FORCED, Job, Token
from packhorse.outcome import Completed, Outcome, Verdict
from packhorse.series import measure_run
from packhorse.storage.records import CheckIn, CheckInAnswer, LogKind, LogLine
from packhorse.storage.sqlite.keeper import SQL, Keeper
from packhorse.storage.sqlite.rows import FIELDS, job_of, to_json
from packhorse.storage.sqlite.transaction import Transaction

_SEQ = FIELDS.index("seq")
_LINES_AT_ONCE = 100
"""How many queues of one rank are looked at in one call; the next call goes on behind them."""


class _Hand(NamedTuple):
    """What finishing must know of a held job."""

    id: str
    seq: int
    queue: str
    task: str
    state: str
    owner: str | None
    fence: int
    last_owner: str | None
    queued_at: int | None
    started_at: int | None

    def is_held_by(self, token: Token) -> bool:
        return self.owner == token.owner and self.fence == token.fence

    def was_ended_by(self, token: Token) -> bool:
        """Rescue raises the fence, so nobody but the token's own worker can have ended this attempt."""
        return self.owner is None and self.last_owner == token.owner and self.fence == token.fence


class Working(Keeper):
    _last_line: str

    # --- reserve --------------------------------------------------------------------------------------------------

    def reserve(self, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        self._bell.look()
        return self._db.write("reserve", lambda tx: self._reserve(tx, owner, queues, limit))

    def _reserve(self, tx: Transaction, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        if tx.execute(SQL["worker_exists"], (owner,)).fetchone() is None:
            raise WorkerNotFound(owner)
        self._promote(tx, 100)
        paused = {row[0] for row in tx.execute(SQL["paused_queues"]).fetchall()}
        taken: list[Job] = []
        rank = -1
        while len(taken) < limit:
            rank = tx.execute(SQL["next_rank"], (rank,)).fetchone()[0]
            if rank is None:
                break
            lines = self._lines(tx, rank, queues, paused if rank != RANK_FORCED else set())
            for queue, share in self._shares(tx, rank, lines, queues, limit - len(taken)).items():
                taken += self._take(tx, owner, rank, queue, share)
        return taken

    def _lines(self, tx: Transaction, rank: int, queues: Mapping[str, int], paused: set[str]) -> list[str]:
        """The queues of ours that have jobs of this rank. With very many, a different part of them each time."""
        found = self._lines_after(tx, rank, "")
        if len(found) == _LINES_AT_ONCE:
            more = self._lines_after(tx, rank, self._last_line)
            found = more or found
            self._last_line = found[-1] if len(more) == _LINES_AT_ONCE else ""
        return [queue for queue in found if queue in queues and queue not in paused]

    def _lines_after(self, tx: Transaction, rank: int, queue: str) -> list[str]:
        rows = tx.execute(SQL["lines_of_rank"], (rank, queue, _LINES_AT_ONCE)).fetchall()
        return [row[0] for row in rows]

    def _shares(
        self, tx: Transaction, rank: int, lines: Sequence[str], weights: Mapping[str, int], limit: int
    ) -> dict[str, int]:
        if len(lines) == 1:
            return {lines[0]: limit}
        lengths = {line: tx.execute(SQL["length_of_line"], (rank, line, limit)).fetchone()[0] for line in lines}
        return self._turns.share(lengths, weights, limit)

    def _take(self, tx: Transaction, owner: str, rank: int, queue: str, limit: int) -> list[Job]:
        rows = tx.execute(SQL["take_from_line"], (owner, tx.now, rank, queue, limit)).fetchall()
        rows.sort(key=lambda row: row[_SEQ])  # RETURNING promises no order
        jobs = [job_of(row) for row in rows]
        for job in jobs:
            tx.event_rows.append((tx.now, "reserved", "job", job.id, queue, "reserved", owner, job.fence, None))
            tx.move((queue, job.task, "queued"), (queue, job.task, "reserved"))
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

    def _note_started(self, tx: Transaction, hand: _Hand, at: int) -> None:
        tx.event_rows.append((at, "started", "job", hand.id, hand.queue, "running", hand.owner, hand.fence, None))

    def _hands(self, tx: Transaction, tokens: Sequence[Token]) -> dict[str, _Hand]:
        rows = tx.execute(SQL["held_by_ids"], (to_json([token.job_id for token in tokens]),)).fetchall()
        return {row[0]: _Hand._make(row) for row in rows}

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

        return self._db.write("finish_and_reserve", work)

    def _finish(self, tx: Transaction, outcomes: Sequence[Outcome]) -> list[Verdict]:
        hands = self._hands(tx, [outcome.token for outcome in outcomes])
        verdicts: list[Verdict] = []
        completed: list[tuple[Any, ...]] = []
        for outcome in outcomes:
            token = outcome.token
            hand = hands.get(token.job_id)
            if hand is None or not hand.is_held_by(token):
                ended = hand is not None and hand.was_ended_by(token)
                verdicts.append(Verdict.REPEATED if ended else Verdict.STALE)
                continue
            if type(outcome) is Completed:
                completed.append(self._complete(tx, hand, outcome))
            else:
                job = self._jobs(tx, [token.job_id])[token.job_id]
                self._keep(tx, job, changes.settled(job, outcome, tx.now))
            hands[hand.id] = hand._replace(owner=None, last_owner=token.owner)
            verdicts.append(Verdict.ACCEPTED)
        tx.executemany(SQL["complete_job"], completed)
        return verdicts

    def _complete(self, tx: Transaction, hand: _Hand, outcome: Completed) -> tuple[Any, ...]:
        """The commonest ending, said in SQL: as `changes.settled` does it, without reading the whole job."""
        now, started_at, begins = tx.now, hand.started_at, 0
        if hand.state == "reserved":
            started_at, begins = now - outcome.ago - outcome.ran, 1
            self._note_started(tx, hand, started_at)
        data = f'{{"ran":{outcome.ran}}}'
        tx.event_rows.append((now, "completed", "job", hand.id, hand.queue, "completed", hand.owner, hand.fence, data))
        key = (hand.queue, hand.task, "completed")
        tx.move((hand.queue, hand.task, hand.state), key)
        tx.measures[key] = tx.measures.get(key, 0) + 1
        started_at = started_at or now
        measure_run(tx.measures, hand.queue, hand.task, now - started_at, started_at - (hand.queued_at or started_at))
        return (hand.owner, started_at, now, now, begins, outcome.result, hand.seq)

    # --- release --------------------------------------------------------------------------------------------------

    def release(self, tokens: Sequence[Token], why: str) -> list[Verdict]:
        def work(tx: Transaction) -> list[Verdict]:
            change = functools.partial(changes.released, now=tx.now, why=why)
            return [self._settle(tx, token, change) for token in tokens]

        return self._db.write("release", work)

    def _settle(self, tx: Transaction, token: Token, change: Callable[[Job], Changed]) -> Verdict:
        job = self._jobs(tx, [token.job_id]).get(token.job_id)
        if job is None or job.fence != token.fence:
            return Verdict.STALE
        if job.owner == token.owner:
            self._keep(tx, job, change(job))
            return Verdict.ACCEPTED
        return Verdict.REPEATED if (job.owner, job.last_owner) == (None, token.owner) else Verdict.STALE

    # --- signs of life ----------------------------------------------------------------------------------------------

    def check_in(self, checkins: Sequence[CheckIn]) -> list[CheckInAnswer]:
        return self._db.write("check_in", lambda tx: [self._check_in(tx, checkin) for checkin in checkins])

    def _check_in(self, tx: Transaction, checkin: CheckIn) -> CheckInAnswer:
        token = checkin.token
        job = self._jobs(tx, [token.job_id]).get(token.job_id)
        if job is None or (job.owner, job.fence) != (token.owner, token.fence):
            return CheckInAnswer.STALE
        after, lines = changes.checked_in(job, tx.now, checkin.message, checkin.progress, checkin.progress_text)
        self._keep(tx, job, Changed(after, []))
        self._write_lines(tx, after, [LogLine(text, LogKind(kind)) for kind, text in lines], keep=1_000)
        return CheckInAnswer.GO_ON if after.abort_at is None else CheckInAnswer.STOP

    def append_log(self, token: Token, lines: Sequence[LogLine], *, keep: int = 1_000) -> Verdict:
        def work(tx: Transaction) -> Verdict:
            hand = self._hands(tx, [token]).get(token.job_id)
            if hand is None or not (hand.is_held_by(token) or hand.was_ended_by(token)):
                return Verdict.STALE
            self._write_lines(tx, self._jobs(tx, [token.job_id])[token.job_id], lines, keep)
            return Verdict.ACCEPTED

        return self._db.write("append_log", work)

    def _write_lines(self, tx: Transaction, job: Job, lines: Sequence[LogLine], keep: int) -> None:
        rows = [(job.id, tx.now, job.attempts, line.kind.value, line.message) for line in lines]
        tx.executemany(SQL["put_log_line"], rows)
        tx.execute(SQL["trim_log"], (job.id, keep))
