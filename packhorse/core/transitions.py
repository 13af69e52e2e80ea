"""What each operation does to a job: pure functions from a job to the changed job and its events.

The storage engine calls them under the lock of a job. The hot paths of the storages do the same in SQL or Lua. Whether
a change is legal is in the table in `job.py`; a storage looks there first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from packhorse.core.event import Event, Kind
from packhorse.core.job import (
    ABORTED,
    COMPLETED,
    DEAD,
    FINAL,
    HELD,
    QUEUED,
    RANK_FORCED,
    RANK_HALTED,
    RANK_RECOVERED,
    RESERVED,
    RETRYING,
    RUNNING,
    SCHEDULED,
    UNFINISHED,
    USUAL_ATTEMPTS,
    WAITING,
    Job,
    NewJob,
    Reason,
    State,
    UniqueLock,
    rank_of,
)
from packhorse.core.outcome import Completed, Failed, Failure, Halted, Outcome, Overrun, Released, Snoozed, Stopped

_KEPT_WHEN_REPLACED = (
    "id", "created_at", "created_by", "first_queued_at", "fence", "last_owner",
    "attempts", "halts", "losses", "snoozes",
)  # fmt: skip
LONGEST_TOLD = 500
"""How many characters of arguments and errors an event keeps."""
CHOSEN = (
    "priority", "task", "unique_key", "persistent", "schedule", "backoff", "max_attempts", "max_halts",
    "timeout", "idle_timeout", "expires", "total_timeout",
)  # fmt: skip
"""What callers choose for a job besides its arguments. The event `replaced` has the values before that differed."""


class Transition(NamedTuple):
    """A job after a change, and the events to record with it."""

    job: Job
    events: list[Event]


def added(new: NewJob, seq: int, now: int) -> Transition:
    """A client enqueued it: queued now, or scheduled if it is due later."""
    job = added_job(new, seq, now)
    return Transition(job, [_event(job, Kind.ADDED, now, **(added_facts(new, job) or {}))])


def added_job(new: NewJob, seq: int, now: int) -> Job:
    """The new job without its event, for storages that store thousands at a time. Positional arguments take a third of
    the time."""
    due_at = new.due_at if new.due_at is not None else now + new.delay
    waits = due_at > now
    queued_at = None if waits else now
    job = Job(
        new.id, seq, new.task, new.queue, new.args, SCHEDULED if waits else QUEUED, new.priority,
        rank_of(new.priority), now, now, due_at if waits else None, queued_at, queued_at,
        None, None, None, None, None,  # started_at, ran_until, finished_at, owner, last_owner
        0, 0, 0, 0, 0, 0,  # fence, attempts, failures, halts, losses, snoozes
        new.max_attempts, new.max_halts, new.timeout, new.idle_timeout, new.expires, new.total_timeout,
        unique_key=new.unique.key if new.unique else None, persistent=new.persistent, created_by=new.created_by,
        schedule=new.schedule, backoff=new.backoff, meta=new.meta,
    )  # fmt: skip
    if job.expires is not None or job.total_timeout is not None:
        job = _with_expiry(job)
    return job


def added_facts(new: NewJob, job: Job) -> dict[str, Any] | None:
    """Facts for the event of a new job."""
    if job.due_at is None and new.copied_from is None and new.chosen is None:
        return None
    facts: dict[str, Any] = {} if job.due_at is None else {"due_at": job.due_at}
    if new.copied_from:
        facts["copied_from"] = new.copied_from
    if new.chosen is not None:
        facts["chosen"] = new.chosen
    return facts or None


def replaced(job: Job, new: NewJob, now: int) -> Transition:
    """A new job with the same unique key replaces the call of this waiting one. Counters stay, so that a job that kills
    its workers cannot hide behind new arguments."""
    twin = added_job(new, job.seq, now)
    before = {name: getattr(job, name) for name in CHOSEN if getattr(job, name) != getattr(twin, name)}
    told: dict[str, Any] = {"args": job.args[:LONGEST_TOLD], "twin": new.id, "due_at": twin.due_at, "before": before}
    told["chosen"] = new.chosen
    kept = {name: getattr(job, name) for name in _KEPT_WHEN_REPLACED}
    rank = job.rank if job.rank <= RANK_HALTED else twin.rank
    job = _with_expiry(replace(twin, rank=rank, **kept))
    return Transition(job, [_event(job, Kind.REPLACED, now, **told)])


def promoted(job: Job, now: int) -> Transition:
    """A scheduled or retrying job is due."""
    kind = Kind.QUEUED if job.state is SCHEDULED else Kind.READDED
    job = _queued(job, now, rank=job.rank)
    return Transition(job, [_event(job, kind, now)])


def reserved(job: Job, owner: str, now: int) -> Transition:
    """A worker takes it. Every older token is invalid from now on."""
    job = _with_expiry(
        replace(
            job,
            state=RESERVED,
            owner=owner,
            fence=job.fence + 1,
            updated_at=now,
            progress=None,
            progress_text=None,
            checkin=None,
            checkin_at=None,
        )
    )
    return Transition(job, [_event(job, Kind.RESERVED, now)])


def started(job: Job, now: int, ago: int = 0) -> Transition:
    """Its worker started it so long ago, but not before it was queued."""
    at = max(now - ago, job.queued_at or 0)
    job = replace(job, state=RUNNING, attempts=job.attempts + 1, started_at=at, updated_at=now)
    return Transition(job, [_event(job, Kind.STARTED, at)])


def settled(job: Job, outcome: Outcome, now: int) -> Transition:
    """An attempt ended. A job that was never marked as running (a short one) is marked on the way; one that was
    released before it began (`ran` is 0) is not."""
    events: list[Event] = []
    if job.state is RESERVED and not (isinstance(outcome, Released) and outcome.ran == 0):
        job, events = started(job, now, outcome.ago + outcome.ran)
    left, ends = _ended(job, outcome, now)
    if job.state is RUNNING and job.started_at is not None:
        left = replace(left, ran_until=ran_until(job.started_at, outcome.ran))
        if outcome.ran > 0 and not isinstance(outcome, Completed):
            end, *others = ends
            ends = [replace(end, data={**(end.data or {}), "ran": outcome.ran}), *others]
    return Transition(left, events + ends)


def ran_until(started_at: int, ran: int) -> int | None:
    """When an attempt that began then ended; None: nothing has measured it."""
    return started_at + ran if ran > 0 else None


def _ended(job: Job, outcome: Outcome, now: int) -> Transition:
    match outcome:
        case Completed():
            return _completed(job, outcome, now)
        case Failed():
            return _failed(job, outcome, now)
        case Snoozed():
            return _snoozed(job, outcome, now)
        case Stopped():
            if outcome.failure is None:
                return _stopped(job, now, job.abort_reason or outcome.reason)
            job = _blamed(job, outcome.failure)
            return _stopped(job, now, job.abort_reason or outcome.reason, **_told(outcome.failure))
        case Overrun():
            return _overrun(job, outcome, now)
        case Released():
            return released(job, now, outcome.why, outcome.delay)
        case Halted():
            return rescued(job, now, outcome.why, version=outcome.version)


def _completed(job: Job, outcome: Completed, now: int) -> Transition:
    left = _left(job, COMPLETED, now, result=outcome.result, reason=None, error=None, cause=None)
    return Transition(left, [_event(left, Kind.COMPLETED, now, owner=job.owner, ran=outcome.ran)])


def _failed(job: Job, outcome: Failed, now: int) -> Transition:
    job = _blamed(replace(job, failures=job.failures + 1, reason=outcome.reason), outcome.failure)
    facts = _told(outcome.failure)
    if job.abort_at is not None:
        return _stopped(job, now, job.abort_reason or Reason.ABORTED, failures=job.failures, **facts)
    # The limit of attempts is the job's own. A job without one leaves it to its task, whose worker sends it.
    most = max(job.max_attempts, outcome.max_attempts or 0) or USUAL_ATTEMPTS
    if outcome.retry_in is None or job.failures >= most:
        if outcome.reason is Reason.JOB_TIMEOUT:
            return _stopped(job, now, outcome.reason, failures=job.failures, **facts)
        facts["reason"] = outcome.reason
        left = _left(job, DEAD, now)
        return Transition(left, [_event(left, Kind.BROKEN, now, owner=job.owner, **facts)])
    facts |= {"reason": outcome.reason, "retry_in": outcome.retry_in}
    if outcome.retry_in > 0:
        left = _left(job, RETRYING, now, due_at=now + outcome.retry_in, rank=rank_of(job.priority))
        left = _with_expiry(left)
        return Transition(left, [_event(left, Kind.FAILED, now, owner=job.owner, **facts)])
    left = _queued(_left(job, RETRYING, now), now, rank=rank_of(job.priority))
    failed = replace(_event(left, Kind.FAILED, now, owner=job.owner, **facts), state=RETRYING)
    return Transition(left, [failed, _event(left, Kind.READDED, now, why="failed")])


def _overrun(job: Job, outcome: Overrun, now: int) -> Transition:
    """The fence rises, as in a rescue: its worker may still run it, and must not end the next attempt."""
    failure = Failure("Timeout", outcome.why, worker=job.owner)
    failed = Failed(outcome.token, failure, outcome.retry_in, Reason.JOB_TIMEOUT, max_attempts=outcome.max_attempts)
    left, (ended, *others) = _failed(job, failed, now)
    ended = replace(ended, data={**(ended.data or {}), "why": outcome.why})
    return Transition(replace(left, fence=job.fence + 1), [ended, *others])


def _snoozed(job: Job, outcome: Snoozed, now: int) -> Transition:
    job = replace(job, snoozes=job.snoozes + 1)
    if job.abort_at is not None:
        return _stopped(job, now, job.abort_reason or Reason.ABORTED, snoozes=job.snoozes)
    left = _left(_halted_no_more(job), SCHEDULED, now, due_at=now + outcome.delay, rank=rank_of(job.priority))
    left = _with_expiry(left)
    return Transition(left, [_event(left, Kind.SNOOZED, now, owner=job.owner, delay=outcome.delay)])


def _stopped(job: Job, now: int, reason: Reason, **facts: Any) -> Transition:
    """`facts`: who wanted it, and what else has changed with it: error, counters, why it was taken back."""
    left = _left(job, ABORTED, now, reason=reason)
    return Transition(left, [_event(left, Kind.ABORTED, now, owner=job.owner, reason=reason, **facts)])


def released(job: Job, now: int, why: str, delay: int = 0, *, ran: bool = False) -> Transition:
    """Handed back unharmed: no failure and no halt is counted. A job that had not begun keeps its rank, and so does a
    forced one. With a delay it is queued later. `ran`: the job had begun although the storage does not know it."""
    begun: list[Event] = []
    if ran and job.state is RESERVED:
        job, begun = started(job, now)
    kept = _halted_no_more(job) if job.state is RUNNING else job
    if job.abort_at is not None:
        left, events = _stopped(job, now, job.abort_reason or Reason.ABORTED, why=why)
    elif delay:
        left = _with_expiry(_left(kept, SCHEDULED, now, due_at=now + delay))
        events = [_event(left, Kind.READDED, now, owner=job.owner, why=why, delay=delay)]
    else:
        left = _queued(_left(kept, QUEUED, now), now, rank=kept.rank)
        events = [_event(left, Kind.READDED, now, owner=job.owner, why=why)]
    # The token has ended without an outcome. A later outcome must be stale, not repeated.
    return Transition(replace(left, fence=job.fence + 1), begun + events)


def rescued(
    job: Job, now: int, why: str, *, ran: bool = False, recovered: bool = False, version: str | None = None
) -> Transition:
    """Its worker died or fell silent. Only a job that had begun counts a halt.

    `ran`: the job had begun although the storage does not know it. `recovered`: its whole application died."""
    events: list[Event] = []
    if ran and job.state is RESERVED:
        job, events = started(job, now)
    had_begun = job.state is RUNNING
    owner = job.owner
    job = replace(job, losses=job.losses + 1, halts=job.halts + had_begun)
    if job.abort_at is not None:
        counted = {"losses": job.losses, "halts": job.halts if had_begun else None}
        ended = _stopped(job, now, job.abort_reason or Reason.ABORTED, why=why, **counted)
    elif not had_begun:
        left = _queued(_left(job, QUEUED, now), now, rank=job.rank)
        ended = Transition(left, [_event(left, Kind.READDED, now, owner=owner, why=why, losses=job.losses)])
    else:
        ended = _halted(job, now, why, recovered, version)
    # The fence rises here too: a late result of the old worker is stale, not repeated.
    return Transition(replace(ended.job, fence=job.fence + 1), events + ended.events)


def _halted(job: Job, now: int, why: str, recovered: bool, version: str | None) -> Transition:
    job = _blamed(replace(job, reason=Reason.RUNNER_TIMEOUT), Failure("WorkerDied", why, version=version))
    facts: dict[str, Any] = {"why": why, "halts": job.halts}
    if version is not None:
        facts["version"] = version
    if job.halts >= job.max_halts:
        left = _left(job, DEAD, now)
        return Transition(left, [_event(left, Kind.BROKEN, now, owner=job.owner, reason=left.reason, **facts)])
    ordinary = RANK_HALTED if job.halts == 1 else rank_of(job.priority)
    left = _queued(_left(job, QUEUED, now), now, rank=RANK_RECOVERED if recovered else ordinary)
    halted = _event(left, Kind.HALTED, now, owner=job.owner, **facts)
    return Transition(left, [halted, _event(left, Kind.READDED, now, why="recovered" if recovered else "halted")])


def aborted(job: Job, now: int, by: str | None, reason: Reason = Reason.ABORTED) -> Transition:
    """Stop it: a waiting job ends now; a held one is asked to stop, and its worker ends it."""
    if job.state not in HELD:
        return _stopped(job, now, reason, by=by)
    if job.abort_at is not None:
        return Transition(job, [])
    job = replace(job, abort_at=now, abort_reason=reason, updated_at=now, expire_at=None)
    return Transition(job, [_event(job, Kind.ABORT_ASKED, now, reason=reason, by=by)])


def expired(job: Job, now: int) -> Transition:
    """It waited or lived too long."""
    return aborted(job, now, None, Reason.JOB_TIMEOUT)


def forced(job: Job, now: int, by: str | None) -> Transition:
    """It goes next, before any delay, retry wait, or pause of its queue."""
    if job.state is QUEUED:
        job = replace(job, rank=RANK_FORCED, updated_at=now)
    else:
        job = _queued(job, now, rank=RANK_FORCED)
    return Transition(job, [_event(job, Kind.FORCE_STARTED, now, by=by)])


def reprioritised(job: Job, priority: int, now: int, by: str | None) -> Transition:
    """A new priority. A forced, halted or recovered job keeps its better rank."""
    facts: dict[str, Any] = {"from": job.priority, "to": priority, "by": by}
    rank = job.rank if job.rank <= RANK_HALTED else rank_of(priority)
    job = replace(job, priority=priority, rank=rank, updated_at=now)
    return Transition(job, [_event(job, Kind.PRIORITY_CHANGED, now, **facts)])


def moved_to_queue(
    job: Job, queue: str, now: int, by: str | None, options: Mapping[str, Any] | None = None
) -> Transition:
    """Another queue, in which it stands by its rank and its age, and other options. A job that is in that queue and has
    these options stays as it is."""
    fields = {name: value for name, value in (options or {}).items() if getattr(job, name) != value}
    if job.queue == queue and not fields:
        return Transition(job, [])
    before = {name: getattr(job, name) for name in fields}
    facts: dict[str, Any] = {"from": job.queue, "to": queue, "by": by, "before": before or None}
    if "priority" in fields and job.rank > RANK_HALTED:
        fields["rank"] = rank_of(fields["priority"])
    job = replace(job, queue=queue, updated_at=now, **fields)
    if before and job.state in WAITING:
        job = _with_expiry(job)
    return Transition(job, [_event(job, Kind.QUEUE_CHANGED, now, **facts)])


def retried(job: Job, now: int, by: str | None) -> Transition:
    """An operator gives a finished job all its attempts again, or runs the next one of a retrying job now."""
    if job.state is not RETRYING:
        job = replace(
            job,
            failures=0,
            halts=0,
            finished_at=None,
            reason=None,
            abort_at=None,
            abort_reason=None,
            first_queued_at=None,
        )
    job = _queued(job, now, rank=rank_of(job.priority))
    return Transition(job, [_event(job, Kind.RETRIED, now, by=by), _event(job, Kind.READDED, now, why="retried")])


def checked_in(
    job: Job, now: int, message: str | None, progress: int | None, progress_text: str | None
) -> tuple[Job, list[tuple[str, str]]]:
    """A check-in. The second value goes into the job's log: (kind, text)."""
    if progress is not None:
        job = replace(job, progress=progress, progress_text=progress_text)
    if message is not None:
        job = replace(job, checkin=message)
    return replace(job, checkin_at=now, updated_at=now), said(message, progress, progress_text)


def said(message: str | None, progress: int | None, progress_text: str | None) -> list[tuple[str, str]]:
    """A check-in as lines for the job's log: (kind, text)."""
    lines: list[tuple[str, str]] = []
    if progress is not None:
        lines.append(("progress", f"{progress} % {progress_text or ''}".rstrip()))
    if message is not None:
        lines.append(("checkin", message))
    return lines


def attempt_of_lines(job: Job) -> int:
    """The attempt of new log lines that do not name one: the present one, or the one that has just ended."""
    return job.attempt if job.state in HELD or job.state is COMPLETED else max(1, job.failures)


def holds(job: Job, lock: UniqueLock, taken_at: int, now: int) -> bool:
    """Return whether this job still holds the unique key that it took at `taken_at`."""
    if lock.period is not None:
        # A job that failed or was aborted does not keep others out.
        return now < taken_at + lock.period and (job.state in UNFINISHED or job.state is COMPLETED)
    # A reserved job may have begun, and a new call may bring newer arguments: "start" ends when the job is reserved.
    return job.state in (WAITING if lock.until == "start" else UNFINISHED)


def handled(job: Job, now: int, client: str) -> Event:
    """A subscriber acknowledged the outcome."""
    return _event(job, Kind.HANDLED, now, client=client)


def deleted(job: Job, now: int, by: str | None) -> Event:
    """The last event of a job that is deleted."""
    return replace(_event(job, Kind.DELETED, now, by=by), state=job.state)


def _halted_no_more(job: Job) -> Job:
    """It ran again, and its worker did not die."""
    reason = None if job.reason is Reason.RUNNER_TIMEOUT else job.reason
    rank = rank_of(job.priority) if job.rank in (RANK_RECOVERED, RANK_HALTED) else job.rank
    return replace(job, reason=reason, rank=rank)


def _blamed(job: Job, failure: Failure) -> Job:
    return replace(job, error=failure.to_json(), cause=failure.cause(job.task))


def _told(failure: Failure) -> dict[str, Any]:
    """Facts for an event: the first characters of the error, and the version of the code."""
    told = {"error": failure.summary()[:LONGEST_TOLD]}
    return told if failure.version is None else {**told, "version": failure.version}


def _left(job: Job, state: State, now: int, **fields: Any) -> Job:
    """The job after its worker. Only the outcome knows how long it ran."""
    fields = {"expire_at": None, "due_at": None, "finished_at": now if state in FINAL else None, **fields}
    if job.state is RUNNING:
        fields["ran_until"] = None
    return replace(job, state=state, owner=None, last_owner=job.owner or job.last_owner, updated_at=now, **fields)


def _queued(job: Job, now: int, rank: int) -> Job:
    """The job, queued now."""
    return _with_expiry(
        replace(
            job,
            state=QUEUED,
            rank=rank,
            due_at=None,
            queued_at=now,
            first_queued_at=job.first_queued_at if job.first_queued_at is not None else now,
            updated_at=now,
        )
    )


def _with_expiry(job: Job) -> Job:
    """The job with the time at which it expires, if it has one."""
    moments: list[int] = []
    if job.total_timeout is not None and job.first_queued_at is not None:
        moments.append(job.first_queued_at + job.total_timeout)
    if job.expires is not None and job.state is QUEUED and job.queued_at is not None:
        moments.append(job.queued_at + job.expires)
    expire_at = min(moments) if moments else None
    return job if job.expire_at == expire_at else replace(job, expire_at=expire_at)


def _event(job: Job, kind: Kind, at: int, *, owner: str | None = None, **facts: Any) -> Event:
    told = {name: value for name, value in facts.items() if value is not None}
    return Event(
        kind=kind,
        at=at,
        job_id=job.id,
        queue=job.queue,
        state=job.state,
        owner=owner or job.owner,
        fence=job.fence or None,
        data=told or None,
    )
