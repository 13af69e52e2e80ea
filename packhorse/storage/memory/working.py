"""What workers do: reserve, start, finish, release, check in, write log lines."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from packhorse.core import transitions
from packhorse.core.errors import WorkerNotFound
from packhorse.core.fair_share import in_turns
from packhorse.core.job import QUEUED, RANK_FORCED, RANKS, Job, Operation, Token, is_legal
from packhorse.core.outcome import Outcome, Verdict
from packhorse.storage.memory.keeper import Keeper, atomic
from packhorse.storage.records import LONGEST_LINE, CheckIn, CheckInAnswer, LogKind, LogLine, dropped_lines, lost_with


class Working(Keeper):
    supports_threaded_wait = True

    @atomic
    def reserve(self, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        if owner not in self._workers:
            raise WorkerNotFound(owner)
        self._look(queues)
        self.promote(limit=100)
        self.expire(limit=len(self._jobs))
        taken: list[Job] = []
        for rank in RANKS:
            lines = self._lines(rank, queues)
            shares = self._turns.share({name: len(line) for name, line in lines.items()}, queues, limit - len(taken))
            chosen = [job for name, share in shares.items() for job in lines[name][:share]]
            reserved = [self._keep(job, transitions.reserved(job, owner, self.now())) for job in chosen]
            taken += in_turns(reserved, queues)
        return taken

    def _lines(self, rank: int, queues: Collection[str]) -> dict[str, list[Job]]:
        lines: dict[str, list[Job]] = {}
        for job in sorted(self._jobs.values(), key=lambda job: job.seq):
            is_open = rank == RANK_FORCED or not self._queues[job.queue].is_paused
            if job.state is QUEUED and job.rank == rank and job.queue in queues and is_open:
                lines.setdefault(job.queue, []).append(job)
        return lines

    @atomic
    def finish_and_reserve(
        self, outcomes: Sequence[Outcome], owner: str, queues: Mapping[str, int], limit: int
    ) -> tuple[list[Verdict], list[Job]]:
        if owner not in self._workers:
            raise WorkerNotFound(owner)
        return super().finish_and_reserve(outcomes, owner, queues, limit)

    @atomic
    def start(self, tokens: Sequence[Token], agos: Sequence[int] = ()) -> list[Verdict]:
        verdicts = []
        for token, ago in zip(tokens, agos or [0] * len(tokens), strict=True):
            job = self._held_by(token)
            if job is None:
                verdicts.append(Verdict.STALE)
            elif not is_legal(Operation.START, job.state):
                verdicts.append(Verdict.REPEATED)
            else:
                self._keep(job, transitions.started(job, self.now(), ago))
                verdicts.append(Verdict.ACCEPTED)
        return verdicts

    @atomic
    def finish(self, outcomes: Sequence[Outcome]) -> list[Verdict]:
        return [self._finish(outcome) for outcome in outcomes]

    def _finish(self, outcome: Outcome) -> Verdict:
        job = self._held_by(outcome.token)
        if job is not None:
            self._keep(job, transitions.settled(job, outcome, self.now()), outcome.ran)
            return Verdict.ACCEPTED
        return Verdict.REPEATED if self._has_ended(outcome.token) else Verdict.STALE

    @atomic
    def release(self, tokens: Sequence[Token], why: str) -> list[Verdict]:
        return [self._release(token, why) for token in tokens]

    def _release(self, token: Token, why: str) -> Verdict:
        job = self._held_by(token)
        if job is not None:
            self._keep(job, transitions.released(job, self.now(), why))
            return Verdict.ACCEPTED
        return Verdict.REPEATED if self._has_ended(token) else Verdict.STALE

    def _held_by(self, token: Token) -> Job | None:
        job = self._jobs.get(token.job_id)
        if job is None or (job.owner, job.fence) != (token.owner, token.fence):
            return None
        return job

    def _has_ended(self, token: Token) -> bool:
        """Did exactly this attempt end already, with an outcome? Rescue and release raise the fence."""
        job = self._jobs.get(token.job_id)
        return job is not None and (job.owner, job.last_owner, job.fence) == (None, token.owner, token.fence)

    @atomic
    def check_in(self, checkins: Sequence[CheckIn]) -> list[CheckInAnswer]:
        answers = []
        for one in checkins:
            job = self._held_by(one.token)
            if job is None:
                answers.append(CheckInAnswer.STALE)
                continue
            job, lines = transitions.checked_in(job, self.now(), one.message, one.progress, one.progress_text)
            self._jobs[job.id] = job
            if not one.is_logged:
                self._write_lines(job, [LogLine(text, LogKind(kind)) for kind, text in lines], keep=1_000)
            answers.append(CheckInAnswer.GO_ON if job.abort_at is None else CheckInAnswer.STOP)
        return answers

    @atomic
    def append_log(self, token: Token, lines: Sequence[LogLine], *, keep: int = 1_000) -> Verdict:
        if self._held_by(token) is None and not self._has_ended(token):
            return Verdict.STALE
        self._write_lines(self._jobs[token.job_id], lines, keep)
        return Verdict.ACCEPTED

    def _write_lines(self, job: Job, lines: Sequence[LogLine], keep: int) -> None:
        if not lines:
            return
        log = self._log.setdefault(job.id, [])
        for line in lines:
            self._log_id += 1
            message, attempt = line.message[:LONGEST_LINE], line.attempt or transitions.attempt_of_lines(job)
            at = self.now() - line.ago
            log.append(LogLine(message, line.kind, at, attempt, self._log_id))
        if len(log) > keep:
            gone = [line.message for line in log[: len(log) - keep + 1]]
            del log[: len(log) - keep]
            log[:1] = [replace(line, message=dropped_lines(lost_with(gone)), kind=LogKind.LOG) for line in log[:1]]
