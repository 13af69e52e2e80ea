"""What workers do that need not be the fastest: release, check in, write log lines; and what every worker's call asks
first: who holds this job?"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from packhorse.core import transitions
from packhorse.core.job import Job, Token
from packhorse.core.outcome import Verdict
from packhorse.core.transitions import Transition
from packhorse.storage.records import LONGEST_LINE, CheckIn, CheckInAnswer, LogKind, LogLine, dropped_lines, lost_with
from packhorse.storage.sql.keeper import Keeper
from packhorse.storage.sql.rows import EventRow, to_json
from packhorse.storage.sql.transaction import Transaction


class Hand(NamedTuple):
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

    def event(self, at: int, kind: str, state: str, data: str = "") -> EventRow:
        """The row of an event about this job."""
        return (at, kind, "job", self.id, self.queue, state, self.owner or "", self.fence, data)

    def was_ended_by(self, token: Token) -> bool:
        """Rescue raises the fence, so nobody but the token's own worker can have ended this attempt."""
        return self.owner is None and self.last_owner == token.owner and self.fence == token.fence


class Working(Keeper):
    def _hands(self, tx: Transaction, tokens: Sequence[Token]) -> dict[str, Hand]:
        rows = tx.execute(self._sql["held_by_ids"], (to_json([token.job_id for token in tokens]),)).fetchall()
        return {row[0]: Hand._make(row) for row in rows}

    # --- release --------------------------------------------------------------------------------------------------

    def release(self, tokens: Sequence[Token], why: str) -> list[Verdict]:
        def work(tx: Transaction) -> list[Verdict]:
            change = functools.partial(transitions.released, now=tx.now, why=why)
            return [self._settle(tx, token, change) for token in tokens]

        return self._write("release", work)

    def _settle(self, tx: Transaction, token: Token, change: Callable[[Job], Transition]) -> Verdict:
        job = self._jobs(tx, [token.job_id]).get(token.job_id)
        if job is not None and (job.owner, job.fence) == (token.owner, token.fence):
            self._keep(tx, job, change(job))
            return Verdict.ACCEPTED
        has_ended = job is not None and (job.owner, job.last_owner, job.fence) == (None, token.owner, token.fence)
        return Verdict.REPEATED if has_ended else Verdict.STALE

    # --- signs of life ----------------------------------------------------------------------------------------------

    def check_in(self, checkins: Sequence[CheckIn]) -> list[CheckInAnswer]:
        return self._write("check_in", lambda tx: [self._check_in(tx, checkin) for checkin in checkins])

    def _check_in(self, tx: Transaction, checkin: CheckIn) -> CheckInAnswer:
        token = checkin.token
        job = self._jobs(tx, [token.job_id]).get(token.job_id)
        if job is None or (job.owner, job.fence) != (token.owner, token.fence):
            return CheckInAnswer.STALE
        after, lines = transitions.checked_in(job, tx.now, checkin.message, checkin.progress, checkin.progress_text)
        self._keep(tx, job, Transition(after, []))
        if not checkin.is_logged:
            self._write_lines(tx, after, [LogLine(text, LogKind(kind)) for kind, text in lines], keep=1_000)
        return CheckInAnswer.GO_ON if after.abort_at is None else CheckInAnswer.STOP

    def append_log(self, token: Token, lines: Sequence[LogLine], *, keep: int = 1_000) -> Verdict:
        def work(tx: Transaction) -> Verdict:
            hand = self._hands(tx, [token]).get(token.job_id)
            if hand is None or not (hand.is_held_by(token) or hand.was_ended_by(token)):
                return Verdict.STALE
            self._write_lines(tx, self._jobs(tx, [token.job_id])[token.job_id], lines, keep)
            return Verdict.ACCEPTED

        return self._write("append_log", work)

    def _write_lines(self, tx: Transaction, job: Job, lines: Sequence[LogLine], keep: int) -> None:
        if not lines:
            return
        now, present = tx.now, transitions.attempt_of_lines(job)
        rows = [
            (job.id, now - line.ago, line.attempt or present, line.kind.value, line.message[:LONGEST_LINE])
            for line in lines
        ]
        tx.executemany(self._sql["put_log_line"], rows)
        last_gone = tx.execute(self._sql["last_line_above"], (job.id, keep)).fetchone()
        if last_gone is not None:
            gone = [row[0] for row in tx.execute(self._sql["lines_to_drop"], (job.id, last_gone[0])).fetchall()]
            tx.execute(self._sql["drop_lines"], (job.id, last_gone[0]))
            tx.execute(self._sql["say_dropped"], (dropped_lines(lost_with(gone)), job.id))
