"""Jobs: list, create, look at one, steer one, and steer many by a filter.

The structs are what comes in and goes out, and the OpenAPI document is made of them; the endpoints read by
`call.reader` and change by `call.actions`, as the pages do.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from packhorse.client.job import JobHandle
from packhorse.client.job_builder import NewCall
from packhorse.core.clock import from_datetime
from packhorse.core.errors import BadValue, PackhorseError
from packhorse.core.job import Job, Operation
from packhorse.core.outcome import Failure
from packhorse.monitor.actions import JobAction
from packhorse.monitor.filters import chooses_some, expand_names, parse_moment, parse_words_apart
from packhorse.monitor.liveness import has_free_slot
from packhorse.monitor.serializers import (
    STORED_JSON,
    ActionFields,
    EventFields,
    JobFields,
    action_fields,
    event_fields,
    holder_fields,
    iso,
    plain_fields,
)
from packhorse.monitor.text import call_text, shorten
from packhorse.storage import BATCH
from packhorse.storage.records import ActionResult, Filter
from packhorse.web.api.endpoint import Call, delete, get, post
from packhorse.web.security.operator import Role
from packhorse.web.security.redaction import HIDDEN

LONG_CALL = 120
_LONG_JSON = 2_000
_EXAMPLES = 3
_UNKNOWN_QUEUE = '"new": true makes it'

Limit = Annotated[int, Meta(ge=1, le=200)]
Priority = Annotated[int, Meta(ge=1, le=10)]
Name = Annotated[str, Meta(pattern="^[A-Za-z0-9_.:-]{1,128}$")]


# --- what comes in ----------------------------------------------------------------------------------------------------


class FilterQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which jobs. `q` takes filter words such as `state:dead args.user_id:42 since:2h`; the others say the same, one by
    one."""

    q: str | None = None
    state: str | None = None
    queue: str | None = None
    task: str | None = None
    worker: str | None = None
    owner: str | None = None  # the same as `worker`
    cause: str | None = None
    schedule: str | None = None
    key: str | None = None
    priority: str | None = None  # at least, or compared: `=3`
    attempts: str | None = None  # `2`, `>1`
    took: str | None = None  # `>30s`
    waited: str | None = None
    id: str | None = None  # how it begins
    error: str | None = None
    text: str | None = None
    since: str | None = None
    until: str | None = None
    order: Literal["created", "due", "finished", "took"] | None = None


class JobsQuery(FilterQuery, kw_only=True, forbid_unknown_fields=True):
    """Which jobs, from where on, and how many."""

    cursor: str | None = None
    limit: Limit = 50
    count: bool = False


class CountQuery(FilterQuery, kw_only=True, forbid_unknown_fields=True):
    """Which jobs, and from where on."""

    cursor: str | None = None


class AfterQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """From where on, and how many; `after` is the id of the last one seen."""

    after: Annotated[int, Meta(ge=0, le=2**62)] = 0
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1_000


class JobEventsQuery(AfterQuery, kw_only=True, forbid_unknown_fields=True):
    """The same; with `object=1` each has the job as it was after it."""

    object: bool = False


class JobOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How a job is to be run; what is left out is as its task says. Durations are seconds, or text such as "10m"."""

    queue: Name | msgspec.UnsetType = msgspec.UNSET
    priority: Priority | msgspec.UnsetType = msgspec.UNSET
    delay: float | str | msgspec.UnsetType = msgspec.UNSET
    at: str | msgspec.UnsetType = msgspec.UNSET  # ISO 8601
    retries: Annotated[int, Meta(ge=0, le=1_000_000)] | msgspec.UnsetType = msgspec.UNSET  # one less than max_attempts
    max_attempts: Annotated[int, Meta(ge=1, le=1_000_000)] | msgspec.UnsetType = msgspec.UNSET
    max_halts: Annotated[int, Meta(ge=1, le=1_000)] | msgspec.UnsetType = msgspec.UNSET
    backoff: float | str | list[float | str] | dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    timeout: float | str | msgspec.UnsetType | None = msgspec.UNSET
    idle_timeout: float | str | msgspec.UnsetType | None = msgspec.UNSET
    expires: float | str | msgspec.UnsetType | None = msgspec.UNSET
    total_timeout: float | str | msgspec.UnsetType | None = msgspec.UNSET
    unique: bool | str | list[str] | dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    persistent: bool | msgspec.UnsetType = msgspec.UNSET
    meta: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    subscriber: str | msgspec.UnsetType = msgspec.UNSET


class NewJobBody(JobOptions, kw_only=True, forbid_unknown_fields=True):
    """A new job. With an `id` of your own, a repeated request adds only one job. `known: false` accepts any task name
    and any arguments."""

    task: Name
    args: dict[str, Any] = {}
    id: Annotated[str, Meta(pattern=r"^[0-9A-Za-z_-]{8,64}$")] | None = None
    known: bool = True


NewJobs = Annotated[list[NewJobBody], Meta(min_length=1, max_length=BATCH)]
"""Many new jobs: all are stored, or none."""


class CopyBody(JobOptions, kw_only=True, forbid_unknown_fields=True):
    """What the copy changes. `args` replaces all arguments; masked values stay as they are."""

    args: dict[str, Any] | None = None


class PriorityBody(msgspec.Struct, forbid_unknown_fields=True):
    """10 is the most urgent, 1 the least."""

    priority: Priority


class QueueBody(msgspec.Struct, forbid_unknown_fields=True):
    """The queue to move the job to. Without `new`, a queue that does not exist is refused."""

    queue: Annotated[str, Meta(min_length=1)]
    new: bool = False


class BulkBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to do to which jobs: those in `ids`, or all that fit `filter`, as far as they have not changed since
    `seen_at`, the moment at which the list was seen; of those that fit, that is now unless it is said. One answer
    covers what can be done in two seconds; `cursor` continues. `new` is of set_queue: the queue may be new."""

    action: Literal["abort", "force_start", "retry", "set_priority", "set_queue", "delete"]
    filter: str | None = None
    ids: Annotated[list[str], Meta(max_length=1_000)] | None = None
    seen_at: str | None = None
    cursor: str | None = None
    priority: Priority | None = None
    queue: str | None = None
    new: bool = False
    preview: bool = False

    @property
    def job_action(self) -> JobAction:
        return JobAction(Operation(self.action), priority=self.priority, queue=self.queue, new_queue=self.new)


# --- what goes out ----------------------------------------------------------------------------------------------------


class ListedJob(JobFields, kw_only=True):
    """A job in a list. Long arguments, results and tracebacks are left out; `cut` names them."""

    call: str
    cut: list[str]


class ShownJob(JobFields, kw_only=True):
    """A job, and why it is where it is; `host` and `pid` are those of the worker that holds it."""

    call: str
    why: str
    host: str | None
    pid: int | None


class CreatedJob(JobFields, kw_only=True):
    """A new job; `is_new` false: a unique twin was there before, and this is it. `worker_available` says whether a
    worker that serves its queue had a free slot by its last heartbeat."""

    is_new: bool
    worker_available: bool


class CountFields(msgspec.Struct):
    """How many; `exact` false: at least so many."""

    number: int
    exact: bool


class CountPart(msgspec.Struct):
    """How many were counted by this call; `next` is the cursor from which to count on, null: these are all."""

    number: int
    next: str | None


class JobPage(msgspec.Struct):
    """Some of the jobs. `next` is the cursor of the next page; it may be there although this one is short."""

    items: list[ListedJob]
    next: str | None
    seen_at: str
    count: CountFields | None = None


class EventPage(msgspec.Struct):
    """Events; `last` is the `after` of the next page, `next` the `before` of the one further back. There may be more
    although a page is empty: one look goes over a bounded number of events."""

    items: list[EventFields]
    last: int
    next: int | None = None


class BulkAnswer(msgspec.Struct, kw_only=True):
    """What was done, or would be. `skipped` says why some were not; `next` continues with the rest."""

    changed: int
    skipped: dict[str, int]
    next: str | None
    seen_at: str
    count: CountFields | None = None
    examples: list[ListedJob] = []


# --- shapes -----------------------------------------------------------------------------------------------------------


def listed(job: Job, now: int) -> ListedJob:
    """A job for a list."""
    fields = plain_fields(job, now)
    long = [name for name in STORED_JSON if len(getattr(job, name) or "") > _LONG_JSON]
    fields |= dict.fromkeys(long)
    if job.error is not None:
        failure = Failure.from_json(job.error)
        if failure.traceback is not None or "error" in long:
            short = msgspec.structs.replace(failure, traceback=None, message=shorten(failure.message, _LONG_JSON))
            fields["error"] = msgspec.Raw(msgspec.json.encode(short))
            long = sorted({*long, "error"})
    return ListedJob(**fields, call=short_call(job), cut=long)


def short_call(job: Job) -> str:
    """The call, cut to the length of a line."""
    if job.args == HIDDEN:  # stored arguments have no spaces
        return f"{job.task}(…)"
    if len(job.args) > _LONG_JSON:
        return f"{job.task}(… {len(job.args):,} characters)"
    return shorten(call_text(job), LONG_CALL)


def filter_of(call: Call, query: FilterQuery) -> Filter:
    """The filter that a query means."""
    named = [f"{name}:{value}" for name in _WORDS if (value := getattr(query, name)) is not None]
    return parse_words_apart([*expand_names([query.q or ""], call.web.filters), *named], call.reader.now())


_WORDS = tuple(field for field in FilterQuery.__struct_fields__ if field != "q")


def options_of(body: JobOptions) -> dict[str, Any]:
    """The options that a body names, as the client takes them."""
    names = JobOptions.__struct_fields__
    given = {name: value for name in names if (value := getattr(body, name)) is not msgspec.UNSET}
    if "at" in given:
        given["at"] = moment_of(given["at"])
    return given


def moment_of(text: str) -> datetime:
    moment = datetime.fromisoformat(text) if _is_iso(text) else parse_moment(text)
    if moment.tzinfo is None:
        raise BadValue(f"{text!r} has no time zone", hint="write 2030-01-31T07:00Z")
    return moment


def _is_iso(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


# --- looking ----------------------------------------------------------------------------------------------------------


@get("/jobs")
def list_jobs(call: Call, query: JobsQuery) -> JobPage:
    """Jobs that fit: those in line by rank, then age, finished ones by the latest, others by the newest."""
    now = call.reader.now()
    where = filter_of(call, query)
    page = call.reader.find(where, query.cursor, query.limit)
    counted = call.reader.count(where) if query.count else None
    count = CountFields(counted.number, counted.exact) if counted else None
    return JobPage([listed(job, now) for job in page.jobs], page.next, str(iso(now)), count)


@get("/count")
def count_jobs(call: Call, query: CountQuery) -> CountPart:
    """How many jobs fit, exactly. A step takes about a second: as long as there is a `next`, ask again with it as
    `cursor`, and add up."""
    return CountPart(*call.reader.count_on(filter_of(call, query), query.cursor))


@get("/jobs/{id}")
def get_job(call: Call, id: str) -> ShownJob:
    """Everything about a job, and why it is where it is."""
    job = call.reader.get(id)
    runner = holder_fields(job, call.reader.workers())
    fields = plain_fields(job, call.reader.now())
    return ShownJob(**fields, **runner, call=short_call(job), why=call.reader.why(id))


@get("/jobs/{id}/events")
def get_job_events(call: Call, id: str, query: JobEventsQuery) -> EventPage:
    """What happened to a job, the oldest first; also when it is deleted already."""
    events = call.reader.history.of_job(id, query.limit, query.after)
    if query.object:
        events = call.reader.history.with_objects(events)
    return EventPage([event_fields(event, object=query.object) for event in events], events.last)


# --- creating ---------------------------------------------------------------------------------------------------------


@post("/jobs", status=201)
def create_job(call: Call, body: NewJobBody | NewJobs) -> CreatedJob | list[CreatedJob]:
    """Enqueue a job. 201: it is new; 200: a unique twin was there before, or the same call under its `id`. 409: the
    `id` is that of another call. An array enqueues all of its jobs or none, and the answer is an array with one for
    each, in the same order; 200: none of them is new."""
    if not isinstance(body, list):
        return _created(call, call.actions.enqueue_all([_new_call(call, body)]))[0]
    calls = [_numbered(call, body, place) for place in range(len(body))]
    return _created(call, call.actions.enqueue_all(calls))


def _new_call(call: Call, body: NewJobBody) -> NewCall[Any]:
    return call.actions.new_call(body.task, body.args, options_of(body), known=body.known, job_id=body.id)


def _numbered(call: Call, bodies: list[NewJobBody], place: int) -> NewCall[Any]:
    """One of many; what is wrong with it says which it is."""
    try:
        return _new_call(call, bodies[place])
    except PackhorseError as error:
        error.what = f"job {place + 1} of {len(bodies)}: {error.what}"
        raise


@post("/jobs/{id}/copy", status=201)
def copy_job(call: Call, id: str, body: CopyBody) -> CreatedJob:
    """Enqueue a new job like this one, with other arguments or options where they are given."""
    return _created(call, [call.actions.copy(id, body.args, options_of(body))])[0]


def _created(call: Call, handles: Sequence[JobHandle[Any]]) -> list[CreatedJob]:
    jobs, workers = call.reader.get_all([handle.id for handle in handles]), call.reader.presence().here
    return [
        CreatedJob(**plain_fields(job), is_new=handle.is_new, worker_available=has_free_slot(workers, job))
        for handle, job in zip(handles, jobs, strict=True)
    ]


# --- actions ----------------------------------------------------------------------------------------------------------


def _apply(call: Call, id: str, action: JobAction) -> ActionFields:
    before = call.actions.apply(action, id, new_queue_hint=_UNKNOWN_QUEUE)
    after = call.web.storage.get(id)
    return action_fields(action.operation, ActionResult(id, True, after.state if after else before.state))


@post("/jobs/{id}/abort")
def abort_job(call: Call, id: str) -> ActionFields:
    """Abort a job. A waiting job ends immediately. A running job is asked to stop, then forced to: `requested` is true.
    It ends as aborted, unless it completes first."""
    return _apply(call, id, JobAction(Operation.ABORT))


@post("/jobs/{id}/force_start")
def force_start_job(call: Call, id: str) -> ActionFields:
    """Run a waiting job next, regardless of its delay, its retry wait, or a pause of its queue."""
    return _apply(call, id, JobAction(Operation.FORCE_START))


@post("/jobs/{id}/retry")
def retry_job(call: Call, id: str) -> ActionFields:
    """Give a dead or aborted job all its attempts again, or start the next attempt of a retrying job now."""
    return _apply(call, id, JobAction(Operation.RETRY))


@post("/jobs/{id}/priority")
def set_job_priority(call: Call, id: str, body: PriorityBody) -> ActionFields:
    """Change the priority of a waiting job."""
    return _apply(call, id, JobAction(Operation.SET_PRIORITY, priority=body.priority))


@post("/jobs/{id}/queue")
def set_job_queue(call: Call, id: str, body: QueueBody) -> ActionFields:
    """Move a job that may still run, and does not run now, to another queue. It keeps its priority and its age."""
    return _apply(call, id, JobAction(Operation.SET_QUEUE, queue=body.queue, new_queue=body.new))


@delete("/jobs/{id}")
def delete_job(call: Call, id: str) -> ActionFields:
    """Remove a waiting or finished job with its log; its events stay."""
    return _apply(call, id, JobAction(Operation.DELETE))


# --- many -------------------------------------------------------------------------------------------------------------


@post("/bulk")
def bulk(call: Call, body: BulkBody) -> BulkAnswer:
    """Abort, force_start, retry, set_priority, set_queue or delete many jobs. Deleting needs the role admin."""
    call.operator.require(Role.ADMIN if body.job_action.operation is Operation.DELETE else Role.OPERATE)
    now = call.reader.now()
    if body.ids is not None:
        return _these(call, body, now)
    if not (body.filter or "").strip():
        raise BadValue(
            "the request names no jobs: it has neither filter nor ids", hint='e.g. {"filter": "state:dead task:resize"}'
        )
    seen_at = _seen_at(body) or now
    words = expand_names([body.filter or ""], call.web.filters)
    where = parse_words_apart(words, seen_at)
    if not chooses_some(words, seen_at):
        raise BadValue(
            "the filter has no condition and would mean every job", hint='{"filter": "finished"} are all that ended'
        )
    if body.preview:
        return _preview(call, body.job_action, where, now)
    call.actions.check(body.job_action, new_queue_hint=_UNKNOWN_QUEUE)
    done = call.actions.apply_to_matching(body.job_action, where, seen_at, body.cursor)
    return BulkAnswer(changed=done.changed, skipped=done.skipped, next=done.next, seen_at=str(iso(seen_at)))


def _these(call: Call, body: BulkBody, now: int) -> BulkAnswer:
    if body.filter is not None or body.preview:
        raise BadValue("ids cannot be combined with filter or preview", hint='e.g. {"action": "retry", "ids": ["…"]}')
    call.actions.check(body.job_action, new_queue_hint=_UNKNOWN_QUEUE)
    seen_at = _seen_at(body)
    done = call.actions.apply_to_ids(body.job_action, body.ids or [], seen_at)
    return BulkAnswer(changed=done.changed, skipped=done.skipped, next=None, seen_at=str(iso(seen_at or now)))


def _seen_at(body: BulkBody) -> int | None:
    return from_datetime(moment_of(body.seen_at)) if body.seen_at else None


def _preview(call: Call, action: JobAction, where: Filter, now: int) -> BulkAnswer:
    where = action.legal(where)
    counted = call.reader.count(where)
    examples = [listed(job, now) for job in call.reader.find(where, None, _EXAMPLES).jobs]
    return BulkAnswer(
        changed=0,
        skipped={},
        next=None,
        seen_at=str(iso(now)),
        count=CountFields(counted.number, counted.exact),
        examples=examples,
    )
