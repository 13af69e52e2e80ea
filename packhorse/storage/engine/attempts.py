"""What workers do: reserve, start, finish, release, check in, log. Storages with a fast way of their own for the hot
calls do not use those here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from packhorse.core import transitions
from packhorse.core.errors import WorkerNotFound
from packhorse.core.fair_share import FairShare, in_turns
from packhorse.core.job import Job, Operation, Token, is_legal
from packhorse.core.outcome import Outcome, Verdict
from packhorse.core.transitions import Transition
from packhorse.storage.contract import BATCH
from packhorse.storage.engine import maintenance
from packhorse.storage.records import LONGEST_LINE, CheckIn, CheckInAnswer, LogKind, LogLine, WorkerInfo
from packhorse.storage.transaction import FullTransaction, Transaction

_LINES_KEPT = 1_000


def reserve(tx: FullTransaction, owner: str, queues: Mapping[str, int], limit: int, fair_share: FairShare) -> list[Job]:
    """See `Storage.reserve`."""
    require_worker(tx, owner)
    maintenance.promote(tx, limit=100)
    while maintenance.expire(tx, limit=BATCH) == BATCH:
        pass
    taken: list[Job] = []
    for _, lines in sorted(tx.lines(queues, limit).items()):
        available = {queue: len(line) for queue, line in lines.items()}
        shares = fair_share.share(available, queues, limit - len(taken))
        jobs = [job for queue, share in shares.items() for job in lines[queue][:share]]
        taken += in_turns([tx.keep(job, transitions.reserved(job, owner, tx.now)) for job in jobs], queues)
        if len(taken) == limit:
            break
    return taken


def require_worker(tx: Transaction, owner: str) -> None:
    if owner not in tx.records(WorkerInfo, [owner]):
        raise WorkerNotFound(owner)


def start(tx: Transaction, tokens: Sequence[Token], agos: Sequence[int]) -> list[Verdict]:
    jobs, verdicts = tx.jobs([token.job_id for token in tokens]), []
    for token, ago in zip(tokens, agos or [0] * len(tokens), strict=True):
        job = jobs.get(token.job_id)
        if job is None or not is_held_by(job, token):
            verdicts.append(Verdict.STALE)
        elif not is_legal(Operation.START, job.state):
            verdicts.append(Verdict.REPEATED)
        else:
            jobs[job.id] = tx.keep(job, transitions.started(job, tx.now, ago))
            verdicts.append(Verdict.ACCEPTED)
    return verdicts


def finish(tx: Transaction, outcomes: Sequence[Outcome]) -> list[Verdict]:
    jobs, verdicts = tx.jobs([outcome.token.job_id for outcome in outcomes]), []
    for outcome in outcomes:
        job = jobs.get(outcome.token.job_id)
        if job is not None and is_held_by(job, outcome.token):
            jobs[job.id] = tx.keep(job, transitions.settled(job, outcome, tx.now), outcome.ran)
            verdicts.append(Verdict.ACCEPTED)
        else:
            verdicts.append(_late_verdict(job, outcome.token))
    return verdicts


def release(tx: Transaction, tokens: Sequence[Token], why: str) -> list[Verdict]:
    jobs, verdicts = tx.jobs([token.job_id for token in tokens]), []
    for token in tokens:
        job = jobs.get(token.job_id)
        if job is not None and is_held_by(job, token):
            jobs[job.id] = tx.keep(job, transitions.released(job, tx.now, why))
            verdicts.append(Verdict.ACCEPTED)
        else:
            verdicts.append(_late_verdict(job, token))
    return verdicts


def check_in(tx: FullTransaction, checkins: Sequence[CheckIn]) -> list[CheckInAnswer]:
    jobs, answers = tx.jobs([checkin.token.job_id for checkin in checkins]), []
    for checkin in checkins:
        job = jobs.get(checkin.token.job_id)
        if job is None or not is_held_by(job, checkin.token):
            answers.append(CheckInAnswer.STALE)
            continue
        changed, lines = transitions.checked_in(job, tx.now, checkin.message, checkin.progress, checkin.progress_text)
        jobs[job.id] = job = tx.keep(job, Transition(changed, []))
        if not checkin.is_logged:
            _add_lines(tx, job, [LogLine(text, LogKind(kind)) for kind, text in lines], _LINES_KEPT)
        answers.append(CheckInAnswer.GO_ON if job.abort_at is None else CheckInAnswer.STOP)
    return answers


def append_log(tx: FullTransaction, token: Token, lines: Sequence[LogLine], keep: int) -> Verdict:
    job = tx.jobs([token.job_id]).get(token.job_id)
    if job is None or not (is_held_by(job, token) or was_ended_by(job, token)):
        return Verdict.STALE
    _add_lines(tx, job, lines, keep)
    return Verdict.ACCEPTED


def _add_lines(tx: FullTransaction, job: Job, lines: Sequence[LogLine], keep: int) -> None:
    present = transitions.attempt_of_lines(job)
    dated = [
        replace(line, message=line.message[:LONGEST_LINE], at=tx.now - line.ago, attempt=line.attempt or present, ago=0)
        for line in lines
    ]
    if dated:
        tx.add_log_lines(job, dated, keep)


# --- tokens -----------------------------------------------------------------------------------------------------------


def is_held_by(job: Job, token: Token) -> bool:
    return (job.owner, job.fence) == (token.owner, token.fence)


def was_ended_by(job: Job, token: Token) -> bool:
    """Return whether exactly this attempt ended, with an outcome. Rescue and release raise the fence."""
    return (job.owner, job.last_owner, job.fence) == (None, token.owner, token.fence)


def _late_verdict(job: Job | None, token: Token) -> Verdict:
    return Verdict.REPEATED if job is not None and was_ended_by(job, token) else Verdict.STALE
