"""Jobs, events, queues and workers in the form in which programs read them.

The command line prints these with --json and the HTTP API answers with them, so both say the same. Times are ISO 8601
in UTC, durations are seconds, and JSON that is stored as text comes out exactly as it is, so that also numbers beyond
2^53 survive.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from packhorse.core.clock import SECOND, to_datetime
from packhorse.core.event import Event, Kind, Subject
from packhorse.core.job import ABORTED, HELD, OF_TASK, Job, Operation, Reason, State, effective
from packhorse.core.outcome import Failure
from packhorse.monitor.event_objects import event_queue
from packhorse.monitor.schedules import describe_schedule, late_by
from packhorse.monitor.served_queues import queues_served_by
from packhorse.storage.checks import is_sound_json
from packhorse.storage.records import (
    ActionResult,
    ClientInfo,
    FailureGroup,
    Health,
    LogKind,
    LogLevel,
    LogLine,
    OperationTimes,
    Point,
    QueueInfo,
    ScheduleInfo,
    TaskInfo,
    Tick,
    WorkerInfo,
)

Moment = str | None
"""ISO 8601 in UTC, to the microsecond."""
Seconds = float | None


def iso(at: int | None) -> Moment:
    """A stored time in UTC, to the microsecond."""
    return None if at is None else to_datetime(at).isoformat(timespec="microseconds").replace("+00:00", "Z")


def seconds(duration: int | None) -> Seconds:
    """A stored duration in seconds; whole ones as whole numbers."""
    if duration is None:
        return None
    return duration // SECOND if duration % SECOND == 0 else duration / SECOND


def stored_json(text: str | None) -> msgspec.Raw | None:
    """JSON text that is to be part of other JSON, on one line; as text, if somebody has garbled it."""
    if text is None:
        return None
    if not is_sound_json(text):
        text = msgspec.json.encode(text.encode("utf-8", "backslashreplace").decode()).decode()
    return msgspec.Raw(text.replace("\n", " ").replace("\r", " ").encode())


# --- jobs -------------------------------------------------------------------------------------------------------------


class JobFields(msgspec.Struct, kw_only=True):
    """Everything about a job but its place in line."""

    id: str
    task: str
    queue: str
    state: State
    priority: int
    owner: str | None  # the worker that holds it now
    last_owner: str | None
    attempts: int
    failures: int
    halts: int
    losses: int
    snoozes: int
    max_attempts: int
    attempt: int  # which try this is or will be: failures + 1; of a dead job, which was its last
    attempts_left: int  # max_attempts - failures
    max_halts: int
    rank: int  # who is reserved first: 0 recovered, 1 forced, 2 halted once, 3 … 12 for priority 10 … 1
    is_forced: bool
    is_halted: bool
    reason: Reason | None
    cause: str | None
    progress: int | None
    progress_text: str | None
    checkin: str | None
    unique_key: str | None
    persistent: bool
    created_by: str | None
    schedule: str | None
    created_at: Moment
    updated_at: Moment
    due_at: Moment
    queued_at: Moment
    started_at: Moment
    finished_at: Moment
    checkin_at: Moment
    abort_at: Moment
    timeout: Seconds
    idle_timeout: Seconds
    expires: Seconds
    total_timeout: Seconds
    took: Seconds  # how long its latest attempt ran, as its worker measured it, or has run by now
    args: msgspec.Raw | None
    result: msgspec.Raw | None
    error: msgspec.Raw | None
    meta: msgspec.Raw | None
    backoff: msgspec.Raw | None
    from_task: list[str]  # the options that are not the job's own: as its task says now


_TIMES = ("created_at", "updated_at", "due_at", "queued_at", "started_at", "finished_at", "checkin_at", "abort_at")
_DURATIONS = ("timeout", "idle_timeout", "expires", "total_timeout")
STORED_JSON = ("args", "result", "error", "meta", "backoff")
_AS_THEY_ARE = tuple(
    name
    for name in JobFields.__struct_fields__
    if name not in (*_TIMES, *_DURATIONS, "took", "from_task", *STORED_JSON)
)


def plain_fields(job: Job, now: int | None = None) -> dict[str, Any]:
    """What `JobFields` is made of, by name. How long a job runs already is told where it is said what time it is."""
    job = effective(job, None)
    return {
        **{name: getattr(job, name) for name in _AS_THEY_ARE},
        **{name: iso(getattr(job, name)) for name in _TIMES},
        **{name: seconds(getattr(job, name)) for name in _DURATIONS},
        "took": seconds(job.took(now)),
        **{name: stored_json(getattr(job, name)) for name in STORED_JSON},
        "from_task": list(job.from_task),
    }


def job_fields(job: Job, now: int | None = None) -> JobFields:
    """Everything about a job but its place in line."""
    return JobFields(**plain_fields(job, now))


def holder_fields(job: Job, workers: Iterable[WorkerInfo]) -> dict[str, Any]:
    """Where the worker runs that holds this job: `host` and `pid`, None if nobody does."""
    worker = next((each for each in workers if each.id == job.owner), None)
    return {"host": worker.host if worker else None, "pid": worker.pid if worker else None}


class EventFields(msgspec.Struct):
    """One fact of a history. `queue` of a worker is what it serves: names with commas between, or `*`. `object`, if it
    was asked for, is the job or the worker as it was after that; `unknown` in it names what nothing tells any more."""

    kind: Kind
    at: Moment
    subject: Subject
    job_id: str | None
    queue: str | None
    state: str | None
    owner: str | None
    fence: int | None
    data: dict[str, Any] | None
    id: int
    object: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET


def event_fields(event: Event, *, object: bool = False) -> EventFields:
    """An event; with its `object` if that was asked for."""
    fields = {name: getattr(event, name) for name in EventFields.__struct_fields__}
    data = {name: value for name, value in (event.data or {}).items() if name != "object"} or None
    told = object_fields(event) if object else msgspec.UNSET
    return EventFields(**{**fields, "at": iso(event.at), "queue": event_queue(event), "data": data, "object": told})


def object_fields(event: Event) -> dict[str, Any] | None:
    """What the event is about, as it was then, in the form in which it is told of now."""
    if event.object is None:
        return None
    if event.subject is not Subject.JOB:
        return {**event.object, "joined_at": iso(event.object.get("joined_at"))}
    known = {name: _told(name, value) for name, value in event.object.items() if name in JobFields.__struct_fields__}
    job = Job(**{**_NOTHING, **event.object})
    if job.max_attempts == OF_TASK:  # what its task said at that time nobody has kept
        known.pop("max_attempts", None)
    known |= {name: getattr(job, name) for name, needed in _DERIVED.items() if all(each in known for each in needed)}
    unknown = [name for name in JobFields.__struct_fields__ if name not in known and name not in _ONLY_NOW]
    return {**known, "unknown": unknown} if unknown else known


_NOTHING: dict[str, Any] = {
    **dict.fromkeys(("id", "task", "queue", "args", "state"), ""),
    **dict.fromkeys(("seq", "priority", "rank", "created_at", "updated_at"), 0),
}
_ONLY_NOW = ("took", "from_task")  # of a job as it is, not as it was
_DERIVED = {
    "attempt": ("failures", "state"),
    "attempts_left": ("failures", "max_attempts"),
    "is_forced": ("rank",),
    "is_halted": ("halts", "reason"),
}


def _told(name: str, value: Any) -> Any:
    if name in _TIMES:
        return iso(value)
    if name in _DURATIONS:
        return seconds(value)
    return stored_json(value) if name in STORED_JSON else value


class LogFields(msgspec.Struct):
    """A line that a job wrote."""

    message: str
    kind: LogKind
    level: LogLevel
    at: Moment
    attempt: int
    id: int


def log_fields(line: LogLine) -> LogFields:
    """A line of a job's log."""
    return LogFields(line.message, line.kind, line.level, iso(line.at), line.attempt, line.id)


class ActionFields(msgspec.Struct):
    """The result of an action on one job; `state` is its state now. `stale`: the job had changed since the operator saw
    it, and was skipped. `requested`: a worker holds it and was asked to stop it; it ends as aborted, unless it
    completes first."""

    id: str
    changed: bool
    state: State | None
    conflict: str | None
    stale: bool
    requested: bool


def action_fields(operation: Operation, answer: ActionResult) -> ActionFields:
    """The result of an action on one job. A job that a worker holds may complete before the abort reaches it."""
    requested = operation is Operation.ABORT and answer.changed and answer.state is not ABORTED
    return ActionFields(answer.job_id, answer.changed, answer.state, answer.conflict, answer.stale, requested)


# --- queues, tasks, schedules -----------------------------------------------------------------------------------------


class QueueFields(msgspec.Struct, kw_only=True):
    """A queue. `count` is how many wait in line, `latency` how long the oldest of them has, in seconds, and `running`
    how many are in workers' hands."""

    name: str
    counts: dict[State, int]
    paused_at: Moment
    paused_by: str | None
    paused_why: str | None
    paused_until: Moment
    oldest_queued_at: Moment
    is_paused: bool
    count: int
    running: int
    latency: Seconds


def queue_fields(queue: QueueInfo, now: int) -> QueueFields:
    """A queue, as it is now."""
    times = {name: iso(getattr(queue, name)) for name in ("paused_at", "paused_until", "oldest_queued_at")}
    oldest = queue.oldest_queued_at
    return QueueFields(
        **{**msgspec.structs.asdict(queue), **times},
        is_paused=queue.is_paused,
        count=queue.counts.get(State.QUEUED, 0),
        running=sum(queue.counts.get(state, 0) for state in HELD),
        latency=None if oldest is None else max(0, now - oldest) / SECOND,
    )


class TaskFields(msgspec.Struct):
    """A task name that somebody enqueued or a worker announced; `announced_at` null: no worker ever has."""

    name: str
    queue: str
    options: dict[str, Any]
    announced_at: Moment


def task_fields(task: TaskInfo) -> TaskFields:
    """A task name."""
    return TaskFields(task.name, task.queue, task.options, iso(task.announced_at))


class TickFields(msgspec.Struct):
    """One slot of a schedule and what became of it."""

    slot: Moment
    outcome: str
    at: Moment
    job_id: str | None


def tick_fields(tick: Tick) -> TickFields:
    """A tick."""
    return TickFields(iso(tick.slot), tick.outcome, iso(tick.at), tick.job_id)


class ScheduleFields(msgspec.Struct, kw_only=True):
    """A recurring plan."""

    name: str
    task: str
    queue: str
    cron: str
    tz: str
    args: msgspec.Raw | None
    missed: str
    overlap: str
    next_at: Moment
    skipped_at: Moment  # a slot that an operator said to leave out
    last_at: Moment
    last_job_id: str | None
    paused_at: Moment
    paused_by: str | None
    updated_at: Moment


def schedule_fields(schedule: ScheduleInfo) -> ScheduleFields:
    """A schedule."""
    skipped = schedule.options.get("skip")
    return ScheduleFields(
        name=schedule.name,
        task=schedule.task,
        queue=schedule.queue or schedule.task,
        cron=schedule.cron,
        tz=schedule.tz,
        args=stored_json(schedule.args),
        missed=schedule.missed,
        overlap=schedule.overlap,
        next_at=iso(schedule.next_at),
        skipped_at=iso(skipped) if isinstance(skipped, int) else None,
        last_at=iso(schedule.last_at),
        last_job_id=schedule.last_job_id,
        paused_at=iso(schedule.paused_at),
        paused_by=schedule.paused_by,
        updated_at=iso(schedule.updated_at),
    )


class ShownSchedule(ScheduleFields, kw_only=True):
    """A schedule; `says` is its cron text in words, `coming` its next slots, `late_by` how many seconds ago it was due,
    if nobody has seen to that."""

    is_paused: bool
    says: str
    coming: list[Moment]
    late_by: Seconds


def shown_schedule(schedule: ScheduleInfo, now: int) -> ShownSchedule:
    """A schedule as programs are told of it."""
    says, coming = describe_schedule(schedule, now)
    late = late_by(schedule, now)
    return ShownSchedule(
        **msgspec.structs.asdict(schedule_fields(schedule)),
        is_paused=schedule.paused_at is not None,
        says=says,
        coming=[] if schedule.paused_at is not None else [iso(at) for at in coming],
        late_by=None if late is None else late / SECOND,
    )


# --- workers and clients ----------------------------------------------------------------------------------------------


class WorkerFields(msgspec.Struct, kw_only=True):
    """A worker or a foreman; `holds` is its number of jobs. `queues` has the patterns that it serves, too, and `*` if
    it serves every queue that holds jobs of its tasks."""

    id: str
    subject: Subject
    foreman: str | None
    host: str
    pid: int
    queues: list[str]
    concurrency: int
    info: dict[str, Any]
    report: dict[str, Any]
    joined_at: Moment
    beat_at: Moment
    is_alive: bool
    holds: int
    code_version: str | None


def worker_fields(worker: WorkerInfo, *, is_alive: bool, holds: int) -> WorkerFields:
    """A worker or a foreman."""
    times = {"joined_at": iso(worker.joined_at), "beat_at": iso(worker.beat_at)}
    facts = {"is_alive": is_alive, "holds": holds, "code_version": worker.code_version}
    return WorkerFields(**{**msgspec.structs.asdict(worker), **times, **facts, "queues": queues_served_by(worker)})


class ClientFields(msgspec.Struct):
    """Somebody who enqueues or subscribes."""

    id: str
    name: str
    info: dict[str, Any]
    joined_at: Moment
    beat_at: Moment
    subscriptions: int


def client_fields(client: ClientInfo) -> ClientFields:
    """A client."""
    times = iso(client.joined_at), iso(client.beat_at)
    return ClientFields(client.id, client.name, client.info, *times, client.subscriptions)


# --- records ----------------------------------------------------------------------------------------------------------


class FailureFields(msgspec.Struct):
    """All failures of one cause, told as one. Versions are those of your own code, as far as workers were told them. It
    is silenced until `silenced_until`, or until one of another version than `silenced_version` comes. `counts` says how
    many there were in each interval, by its beginning, if a span was asked for."""

    cause: str
    task: str
    pattern: str
    place: str | None
    number: int
    first_at: Moment
    last_at: Moment
    last_job_id: str
    silenced_until: Moment | None
    silenced_by: str | None
    first_version: str | None
    last_version: str | None
    silenced_version: str | None
    counts: dict[str, int]


class CauseFields(FailureFields, kw_only=True):
    """A cause with what became of its jobs, and its latest failure as long as that job is there. Of very many jobs so
    many are counted as an exact number takes no long look."""

    retrying: int
    dead: int
    aborted: int
    example: Failure | None


def failure_fields(group: FailureGroup) -> FailureFields:
    """A group of failures."""
    until = group.silenced_until
    times = {
        "first_at": iso(group.first_at),
        "last_at": iso(group.last_at),
        "silenced_until": None if until is None else iso(until),
        "counts": {iso(at): number for at, number in group.counts.items()},
    }
    return FailureFields(**{**msgspec.structs.asdict(group), **times})


class PointFields(msgspec.Struct):
    """What happened to one task of one queue in one interval. `ran` and `waited` are sums in seconds; the other values
    are counts, among them how many attempts had waited, and ran, for at most so long and longer than the step before:
    `wait_1ms`, `wait_1.5ms` … `run_100000s`, `run_longer`."""

    at: Moment
    queue: str
    task: str
    values: dict[str, float]


def point_fields(point: Point) -> PointFields:
    """A point of a chart."""
    sums: dict[str, float] = {name: point.values[name] / SECOND for name in ("ran", "waited") if name in point.values}
    return PointFields(iso(point.at), point.queue, point.task, {**point.values, **sums})


class OperationFields(msgspec.Struct, kw_only=True):
    """How one kind of call has gone in the process that answers, in seconds. `wait` is contention, `run` is load."""

    name: str
    calls: int
    wait_mean: float
    wait_max: float
    run_mean: float
    run_p95: float
    run_max: float


def operation_fields(times: OperationTimes) -> OperationFields:
    """The times of one kind of call."""
    spans = ("wait_mean", "wait_max", "run_mean", "run_p95", "run_max")
    return OperationFields(
        name=times.name, calls=times.calls, **{name: getattr(times, name) / SECOND for name in spans}
    )


class HealthFields(msgspec.Struct, kw_only=True):
    """How the storage is; no `problems` means well. `notes` are good to know and can wait."""

    kind: str
    url: str
    version: str
    schema: int
    latency: float
    size: int | None
    free: int | None
    connections_open: int
    connections_in_use: int
    busy_retries: int
    operations: list[OperationFields]
    facts: dict[str, Any]
    problems: list[str]
    notes: list[str]


def health_fields(health: Health) -> HealthFields:
    """How the storage is."""
    fields = {name: getattr(health, name) for name in HealthFields.__struct_fields__}
    operations = [operation_fields(times) for times in health.operations]
    return HealthFields(**{**fields, "latency": health.latency / SECOND, "operations": operations})
