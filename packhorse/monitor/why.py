"""Why does this job wait? The answer is one clause, from what the storage knows.

`job.why()`, the command line and the web pages use it. `look_around` reads what matters for the job's state; `explain`
puts it in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from packhorse.core.clock import DAY, SECOND, to_datetime
from packhorse.core.event import Event, Kind, Subject
from packhorse.core.job import ABORTED, FINAL, HELD, QUEUED, UNFINISHED, Job, Reason, State, effective
from packhorse.core.outcome import Failure
from packhorse.monitor.liveness import (
    IdleForeman,
    accepting_workers,
    idle_foremen,
    idle_text,
    is_alive,
    is_quiet,
    quiet_text,
    resume_command,
)
from packhorse.monitor.served_queues import SERVES, matches_patterns, serves, strings_in
from packhorse.monitor.text import abort_reason, pause_text, span_text
from packhorse.storage import Storage
from packhorse.storage.records import EventFilter, Filter, QueueInfo, Tally, TaskInfo, WorkerInfo
from packhorse.storage.transfer import problems

_SUMMARY_LIMIT = 120
_GIVEN_UP = "did not end when asked"  # also in the failure of such a run


class Surroundings(msgspec.Struct, frozen=True):
    """What is known of a job's surroundings. A finished job needs little more than `now`."""

    now: int
    lease: int = 15 * SECOND  # workers silent for longer do not count
    queue: QueueInfo | None = None
    task: TaskInfo | None = None
    workers: Sequence[WorkerInfo] = ()
    ahead: int | None = None  # jobs of its queue that go first; None: too many to count
    held: Sequence[Tally] = ()  # jobs held by workers
    closed: str | None = None  # says that the storage is being moved, or was
    aborts: Sequence[Event] = ()  # the events of an aborted job: asked to stop, and ended
    span: Callable[[int], str] = span_text  # how a duration is written


def explain(job: Job, seen: Surroundings) -> str:
    """The most important reason why the job is where it is, as a clause: "its queue mail is paused by anna"."""
    job = effective(job, seen.task.options if seen.task else None)
    reason = _reason(job, seen)
    beside = _run_beside(job, seen)
    return f"{reason}; {beside}" if beside and _GIVEN_UP not in reason else reason


def _reason(job: Job, seen: Surroundings) -> str:
    match job.state:
        case State.SCHEDULED:
            return _scheduled(job, seen)
        case State.RETRYING:
            return _retrying(job, seen)
        case State.QUEUED:
            return _queued(job, seen)
        case State.RESERVED | State.RUNNING:
            return (_lost(job, seen) or _held(job, seen)) + _asked_to_stop(job, seen)
        case State.COMPLETED:
            return f"it was completed {_ago(job.finished_at, seen)}"
        case State.DEAD:
            return _dead(job, seen)
        case State.ABORTED:
            return _aborted(job, seen)


# --- waiting ----------------------------------------------------------------------------------------------------------


def _scheduled(job: Job, seen: Surroundings) -> str:
    word = "it asked to be called again" if job.snoozes else "it is delayed"
    return _until(word, job, seen)


def _retrying(job: Job, seen: Surroundings) -> str:
    return _until(f"attempt {job.failures} of {job.max_attempts} failed{_error(job)}; it waits for the next", job, seen)


def _until(word: str, job: Job, seen: Surroundings) -> str:
    if seen.closed:
        return seen.closed
    due_at = job.due_at or 0
    if due_at > seen.now:
        joint = "at" if word.endswith("again") else "until"
        return f"{word} {joint} {_moment(due_at)} (in {seen.span(due_at - seen.now)})"
    rest = _no_workers(seen) or "it joins the line when a worker next looks"
    return f"it has been due for {seen.span(seen.now - due_at)}; {rest}"


def _queued(job: Job, seen: Surroundings) -> str:
    return _obstacle(job, seen) or _place_in_line(job, seen)


def _obstacle(job: Job, seen: Surroundings) -> str | None:
    """What keeps every worker from taking it, however long it waits."""
    if seen.closed:
        return seen.closed
    if seen.queue and seen.queue.is_paused and not job.is_forced:
        return _paused(seen.queue, seen.now)
    if problem := _no_workers(seen):
        return problem
    serving = [worker for worker in _alive(seen) if serves(worker, job.queue, [job.task])]
    if not serving:
        return _unserved(job, seen)
    if not _takers(serving, seen):
        return _none_of(serving, seen)
    if seen.task is None or seen.task.announced_at is None:
        return f"no worker knows the task {job.task}"
    return None


def _unserved(job: Job, seen: Surroundings) -> str:
    """No worker takes it: those that serve its queue do not know its task, or none serves the queue."""
    if any(matches_patterns(job.queue, strings_in(worker.info.get(SERVES))) for worker in _alive(seen)):
        return f"no running worker knows the task {job.task}"
    return f"no running worker serves the queue {job.queue}"


def _none_of(serving: Sequence[WorkerInfo], seen: Surroundings) -> str:
    """Say that these workers, the only ones that serve the queue, take no jobs."""
    foremen = {worker.foreman for worker in serving}
    idle = [each for each in _idlers(seen) if each.foreman.id in foremen]
    return _no_takers(idle) if idle else quiet_text(serving)


def _no_workers(seen: Surroundings) -> str | None:
    """Say that no worker runs, or none that takes jobs; None if one does."""
    if _takers(_alive(seen), seen):
        return None
    idle = _idlers(seen)
    foremen = [each for each in seen.workers if each.subject is Subject.FOREMAN and _is_alive(each, seen)]
    if idle and len(idle) == len(foremen):
        return _no_takers(idle)
    idle_ids = {each.foreman.id for each in idle}
    if quiet := [each for each in _alive(seen) if is_quiet(each) and each.foreman not in idle_ids]:
        return quiet_text(quiet)
    if foremen:
        return _about_to_start(next(each for each in foremen if each.id not in idle_ids), seen)
    beats = [worker.beat_at for worker in seen.workers if worker.subject is Subject.WORKER]
    if not beats:
        return "no worker is running"
    who = "the only worker has been" if len(beats) == 1 else f"all {len(beats)} workers have been"
    return f"{who} silent for {seen.span(seen.now - max(beats))}: none may be running any more"


def _about_to_start(foreman: WorkerInfo, seen: Surroundings) -> str:
    wait = foreman.report.get("next_start_in")
    when = "is about to start one"
    if isinstance(wait, int | float) and 0 < wait < DAY / SECOND:
        when = f"starts one in {seen.span(round(wait * SECOND))}"
    return f"no worker is running yet; the foreman {foreman.host}:{foreman.pid} {when}"


def _takers(workers: Sequence[WorkerInfo], seen: Surroundings) -> list[WorkerInfo]:
    """The workers among these that take jobs."""
    taking = {worker.id for worker in accepting_workers(seen.workers, seen.now, seen.lease)}
    return [worker for worker in workers if worker.id in taking]


def _idlers(seen: Surroundings) -> list[IdleForeman]:
    return idle_foremen(seen.workers, seen.now, seen.lease)


def _no_takers(idle: Sequence[IdleForeman]) -> str:
    order = resume_command(idle)
    return idle_text(idle) + (f"; `{order}` has {'it' if len(idle) == 1 else 'them'} go on" if order else "")


def _alive(seen: Surroundings) -> list[WorkerInfo]:
    return [each for each in seen.workers if each.subject is Subject.WORKER and _is_alive(each, seen)]


def _is_alive(process: WorkerInfo, seen: Surroundings) -> bool:
    return is_alive(process, seen.now, seen.lease)


def _paused(queue: QueueInfo, now: int) -> str:
    since = f" since {_moment(queue.paused_at or 0)}"
    return f"its queue {queue.name} is paused{pause_text(queue, now, since)}"


def _place_in_line(job: Job, seen: Surroundings) -> str:
    again = " again, because its worker died" if job.is_halted else ""
    rest = "a worker is about to take it" if _has_free_slot(job, seen) else "waits for a free slot"
    if job.is_forced:
        return f"it was forced to start, and {rest}"
    if seen.ahead is None:
        return f"it waits in line{again}; {_very_many(seen)} of its queue go first"
    if seen.ahead == 0:
        return f"it is next in its queue{again}, and {rest}"
    jobs = "1 job" if seen.ahead == 1 else f"{seen.ahead:,} jobs"
    return f"it waits in line{again}; {jobs} of its queue {'goes' if seen.ahead == 1 else 'go'} first"


def _very_many(seen: Surroundings) -> str:
    waiting = seen.queue.counts.get(State.QUEUED, 0) if seen.queue else 0
    return f"very many of the {waiting:,} jobs" if waiting else "very many jobs"


def _has_free_slot(job: Job, seen: Surroundings) -> bool:
    """Do the workers that serve its queue hold fewer jobs than they can run? This counts the jobs in the storage, not
    in reports, including those from queues that match only their patterns."""
    serving = [worker for worker in _takers(_alive(seen), seen) if serves(worker, job.queue, [job.task])]
    theirs = (held for held in seen.held if any(serves(worker, held.queue, [held.task]) for worker in serving))
    return sum(held.number for held in theirs) < sum(worker.concurrency for worker in serving)


# --- held -------------------------------------------------------------------------------------------------------------


def _lost(job: Job, seen: Surroundings) -> str | None:
    """Say that no worker holds it, or that its worker has been silent for longer than its lease, and whether a foreman
    will take the job back; None if its worker is alive."""
    worker = next((each for each in seen.workers if each.id == job.owner), None)
    if job.owner is not None and (worker is None or _is_alive(worker, seen)):
        return None
    foremen = [each for each in seen.workers if each.subject is Subject.FOREMAN and _is_alive(each, seen)]
    if foremen:
        rest = f"the foreman {foremen[0].host}:{foremen[0].pid} is about to take it back"
    else:
        rest = "no foreman is there to take it back: `packhorse work` starts one"
    if worker is None:
        return f"no worker holds it; {rest}"
    return f"its worker {job.owner} has been silent for {seen.span(seen.now - worker.beat_at)}; {rest}"


def _held(job: Job, seen: Surroundings) -> str:
    if job.state is State.RESERVED:
        return f"worker {job.owner} has taken it"
    since = f" for {seen.span(seen.now - job.started_at)}" if job.started_at is not None else ""
    progress = "" if job.progress is None else f", {job.progress} % done"
    return f"it runs on worker {job.owner}{since}{progress}"


def _asked_to_stop(job: Job, seen: Surroundings) -> str:
    return "" if job.abort_at is None else f"; it was asked to stop {_ago(job.abort_at, seen)}"


# --- given up ---------------------------------------------------------------------------------------------------------


def still_running_text(
    job: Job, now: int, workers: Iterable[WorkerInfo], span: Callable[[int], str] = span_text
) -> str | None:
    """Say that the last run of an aborted or retrying job was given up but may still continue, if its worker is among
    these."""
    left = _goes_on(job) + (job.finished_at or job.updated_at) - now
    if job.state not in (State.ABORTED, State.RETRYING) or left <= 0:
        return None
    worker = Failure.goes_on_in(job.error)
    if worker is not None and all(each.id != worker for each in workers):
        return None
    return f"its last run {_GIVEN_UP}, and may go on for {span(left)}, until its worker is replaced"


def _run_beside(job: Job, seen: Surroundings) -> str | None:
    """The same, also for a job that will run again as long as that worker is there."""
    if still_running := still_running_text(job, seen.now, seen.workers, seen.span):
        return still_running
    worker = Failure.goes_on_in(job.error) if job.state in UNFINISHED else None
    if worker is not None and any(each.id == worker for each in _alive(seen)):
        return f"its last run {_GIVEN_UP}, and it does not start again while that run continues in worker {worker}"
    return None


def _goes_on(job: Job) -> int:
    return (Failure.from_json(job.error).goes_on or 0) if job.error else 0


# --- finished ---------------------------------------------------------------------------------------------------------


def _dead(job: Job, seen: Surroundings) -> str:
    if job.reason is Reason.RUNNER_TIMEOUT:
        times = "once" if job.halts == 1 else f"{job.halts} times"
        return f"it died {_ago(job.finished_at, seen)}, because its worker died under it {times}"
    attempt = f"attempt {job.failures} of {job.max_attempts}{_final(job)}"
    return f"it died {_ago(job.finished_at, seen)} after {attempt}{_error(job)}"


_FINAL = {
    "give_up_on": "give_up_on names its error",
    "retry_on": "retry_on does not name its error",
    "per_error": "per_error allows no more for its error",
    "arguments": "its arguments do not fit the task",
    "waits": "a task must not wait for another job",
    "result": "its work is done, only the result cannot be kept",
}


def _final(job: Job) -> str:
    """Why it was the last attempt, although more were allowed."""
    because = _FINAL.get(Failure.from_json(job.error).final or "") if job.error else None
    return f" (it is not tried again: {because})" if because and job.failures < job.max_attempts else ""


def _aborted(job: Job, seen: Surroundings) -> str:
    by = next((event.data["by"] for event in reversed(seen.aborts) if event.data and "by" in event.data), None)
    cause = f"by {by}" if by else f"because {abort_reason(job, seen.span)}"
    return f"it was aborted {_ago(job.finished_at, seen)}, {cause}"


# --- words ------------------------------------------------------------------------------------------------------------


def _error(job: Job) -> str:
    if job.error is None:
        return ""
    summary = Failure.from_json(job.error).summary().partition("\n")[0]
    return f" with {summary[:_SUMMARY_LIMIT]}{'…' if len(summary) > _SUMMARY_LIMIT else ''}"


def _ago(at: int | None, seen: Surroundings) -> str:
    return f"{seen.span(seen.now - (at or 0))} ago"


def _moment(at: int) -> str:
    return f"{to_datetime(at):%Y-%m-%d %H:%M:%S} UTC"


# --- the surroundings of a job ----------------------------------------------------------------------------------------


_LOOKED_AHEAD = 500
"""How many jobs are counted; beyond that the text says "very many"."""


def look_around(storage: Storage, lease: int, job: Job) -> Surroundings:
    """Read the surroundings as they are now; the job may change meanwhile."""
    if job.state is ABORTED:
        workers = storage.workers() if Failure.goes_on_in(job.error) else ()
        return Surroundings(storage.now(), lease, workers=workers, aborts=_aborts(storage, job.id))
    if job.state in FINAL:
        return Surroundings(storage.now(), lease)
    if job.state in HELD:
        return Surroundings(storage.now(), lease, workers=storage.workers())
    moving = "".join(problems(storage.move())) or None
    if job.state is not QUEUED:
        return Surroundings(storage.now(), lease, workers=storage.workers(), closed=moving)
    line = storage.find(Filter(states=frozenset({QUEUED}), queue=job.queue), limit=_LOOKED_AHEAD).jobs
    return Surroundings(
        now=storage.now(),
        lease=lease,
        queue=next((queue for queue in storage.queues() if queue.name == job.queue), None),
        task=next((task for task in storage.tasks() if task.name == job.task), None),
        workers=storage.workers(),
        held=[tally for tally in storage.tallies() if tally.state in HELD],
        ahead=next((place for place, other in enumerate(line) if other.id == job.id), None),
        closed=moving,
    )


def _aborts(storage: Storage, job_id: str) -> list[Event]:
    """The events of its last life that say who aborted it."""
    events = [event for kind in (Kind.ABORT_ASKED, Kind.ABORTED) for event in _latest(storage, job_id, kind)]
    begun = max((event.id for event in _latest(storage, job_id, Kind.RETRIED)), default=0)
    return [event for event in events if event.id > begun]


def _latest(storage: Storage, job_id: str, kind: Kind) -> list[Event]:
    return storage.events(EventFilter(job_id=job_id, kind=kind), limit=1, newest_first=True)
