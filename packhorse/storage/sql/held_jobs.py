"""What finishing must know of held jobs, for databases that read, decide and write in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from packhorse.core import transitions
from packhorse.core.job import Token
from packhorse.core.metrics import measure_runs
from packhorse.core.outcome import Completed, Outcome, Verdict
from packhorse.storage.sql.rows import EventRow, to_json
from packhorse.storage.sql.transaction import Place, SQLTransaction


class HeldJob(NamedTuple):
    """The columns that finishing reads."""

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
        """Whether exactly this attempt ended, with an outcome. Rescue and release raise the fence."""
        return self.owner is None and self.last_owner == token.owner and self.fence == token.fence

    def event(self, at: int, kind: str, state: str, data: str = "") -> EventRow:
        """The row of an event about this job."""
        return (at, kind, "job", self.id, self.queue, state, self.owner or "", self.fence, data)


class Complete(Protocol):
    """Writes completed jobs as `transitions.settled` does, without reading whole jobs."""

    def __call__(self, tx: Any, completed: Sequence[tuple[HeldJob, Completed]], /) -> None: ...


def read_held(tx: SQLTransaction, sql: Mapping[str, str], tokens: Sequence[Token]) -> dict[str, HeldJob]:
    rows = tx.execute(sql["held_by_ids"], (to_json([token.job_id for token in tokens]),)).fetchall()
    return {row[0]: HeldJob._make(row) for row in rows}


def finish(
    tx: SQLTransaction, sql: Mapping[str, str], outcomes: Sequence[Outcome], complete: Complete
) -> list[Verdict]:
    """Finish attempts whose jobs must be read first."""
    if not outcomes:
        return []
    held_jobs = read_held(tx, sql, [outcome.token for outcome in outcomes])
    others = [outcome.token.job_id for outcome in outcomes if type(outcome) is not Completed]
    jobs = tx.jobs(others) if others else {}
    verdicts: list[Verdict] = []
    completed: list[tuple[HeldJob, Completed]] = []
    for outcome in outcomes:
        token = outcome.token
        held = held_jobs.get(token.job_id)
        if held is None or not held.is_held_by(token):
            ended = held is not None and held.was_ended_by(token)
            verdicts.append(Verdict.REPEATED if ended else Verdict.STALE)
            continue
        if type(outcome) is Completed:
            completed.append((held, outcome))
        else:
            job = jobs[token.job_id]
            kept = tx.keep(job, transitions.settled(job, outcome, tx.now), outcome.ran)
            held = held._replace(fence=kept.fence)
        # A second outcome of the same attempt in this batch finds it ended.
        held_jobs[token.job_id] = held._replace(owner=None, last_owner=token.owner)
        verdicts.append(Verdict.ACCEPTED)
    complete(tx, completed)
    return verdicts


def count_completed(tx: SQLTransaction, runs: Mapping[Place, Sequence[tuple[int, int]]]) -> None:
    """Count completed jobs. `runs` has how long each ran and waited, by where it was counted before."""
    for place, times in runs.items():
        queue, task, _ = place
        tx.move(place, (queue, task, "completed"), len(times))
        tx.measures[queue, task, "completed"] = tx.measures.get((queue, task, "completed"), 0) + len(times)
        measure_runs(tx.measures, queue, task, times)
