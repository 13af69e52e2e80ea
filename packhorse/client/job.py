"""A job as users hold it: read it, wait for it, operate on it.

Handles come from `enqueue` and from the app's `get` and `jobs`. A handle shows the job as of its last read; `refresh`
reads it again, and so do `wait`, `result` and `why`. A handle fresh from `enqueue` has not read the job yet, and does
so when it is asked for something that it does not know. A handle from an async method never reads by itself, because
that would block the event loop: it shows the job as it was written, until `arefresh`. The async name of a method is its
name with an `a` in front; `aresult` is the one for `wait`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from datetime import datetime
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Self, TypeVar, Unpack

import msgspec

from packhorse.client.app_state import AppState
from packhorse.client.async_bridge import AsyncBridge, async_twin
from packhorse.client.job_builder import JobKeywords, JobTemplate
from packhorse.core.clock import SECOND, Duration, microseconds, to_datetime
from packhorse.core.codec import decode_result
from packhorse.core.context import refuse_to_wait
from packhorse.core.errors import JobExists, JobFailed, JobNotFound, NotUnique, WaitTimeout, WrongState
from packhorse.core.event import Event
from packhorse.core.job import (
    ABORTED,
    COMPLETED,
    FINAL,
    HELD,
    WAITING,
    EffectiveJob,
    Job,
    NewJob,
    Operation,
    Reason,
    State,
)
from packhorse.core.outcome import Failure
from packhorse.core.task import TaskOptions, check_name
from packhorse.core.transitions import added_job
from packhorse.monitor.event_objects import with_objects
from packhorse.monitor.text import abort_reason, span_text
from packhorse.monitor.why import explain, look_around
from packhorse.storage import BATCH
from packhorse.storage.records import ActionResult, Enqueued, EventFilter, LogLine, Placement

R_co = TypeVar("R_co", covariant=True)
P = ParamSpec("P")
Handle = TypeVar("Handle", bound="JobHandle[Any]")
Numbered = TypeVar("Numbered", Event, LogLine)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25  # seconds between two reads of `wait`
_MAX_READS = 3  # how often `why` starts again because the job changes meanwhile


class Progress(NamedTuple):
    """The progress that a running job reports."""

    percent: int
    text: str | None


def _operation_twin(
    method: Callable[Concatenate[Handle, P], Handle],
) -> Callable[Concatenate[Handle, P], Coroutine[Any, Any, Handle]]:
    """`async_twin` for an operation; it also reads the job afterwards, because a coroutine must not read it later."""
    name = method.__name__

    @functools.wraps(method)
    async def twin(self: Handle, /, *args: P.args, **kwargs: P.kwargs) -> Handle:
        operate = functools.partial(getattr(self, name), *args, **kwargs)
        return await self._bridge.call(self._operate_and_read, operate)

    twin.__name__, twin.__doc__ = f"a{name}", f"`{name}`, for coroutines."
    return twin


class JobHandle(msgspec.Struct, Generic[R_co], eq=False, weakref=True):
    """One job. `R_co` is the type of its result."""

    _app: AppState
    id: str
    is_new: bool = False
    """Did this call add the job? False for a job that was there before, found by its unique key or by a lookup."""
    _new: NewJob | None = None
    _record: Job | None = None
    _written_at: int | None = None  # set if the handle shows `_new` as it was written at about this time
    _is_for_coroutine: bool = False  # comes from an async method: must not read the storage on the event loop
    _is_gone: bool = False  # the last read or operation did not find the job

    @classmethod
    def of(cls, app: AppState, record: Job, *, for_coroutine: bool = False) -> Self:
        """The handle of a stored job."""
        return cls(app, record.id, _record=record, _is_for_coroutine=for_coroutine)

    def __repr__(self) -> str:
        known = self._record or self._new
        state = f" {self._record.state}" if self._record else ""
        return f"<Job {self.id}{f' {known.task}' if known else ''}{state}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def _bridge(self) -> AsyncBridge:
        return self._app.bridge

    # --- what was enqueued: known without a read ------------------------------------------------------------------

    @property
    def task(self) -> str:
        """The name of its task."""
        return self._known.task

    @property
    def queue(self) -> str:
        """The queue of the job."""
        return self._known.queue

    @property
    def args(self) -> dict[str, Any]:
        """Its arguments by name, as plain JSON values; a new dict each time."""
        decoded: dict[str, Any] = msgspec.json.decode(self._known.args)
        return decoded

    @property
    def meta(self) -> dict[str, Any]:
        """What `using(meta=…)` attached to it."""
        decoded: dict[str, Any] = msgspec.json.decode(self._known.meta or "{}")
        return decoded

    @property
    def priority(self) -> int:
        """From 1, for regular jobs, to 10."""
        return self._known.priority

    @property
    def max_attempts(self) -> int:
        """The most attempts that it gets."""
        return self._known.max_attempts or self._app.options_of(self._known.task).max_attempts

    @property
    def _known(self) -> Job | NewJob:
        return self._record or self._new or self.record

    # --- what a read shows ----------------------------------------------------------------------------------------

    @property
    def record(self) -> Job:
        """The stored job itself, with every field, as of the last read. After `aenqueue`, until the first read: as it
        was written, with times by the clock of this machine and a `seq` of 0."""
        if self._record is None and self._new is not None and self._written_at is not None:
            self._record = added_job(self._new, 0, self._written_at)
        if self._record is None and self._is_gone and not self._may_read():
            raise JobNotFound(self.id)
        if self._record is None:
            self.refresh()
        assert self._record is not None
        return self._record

    def _may_read(self) -> bool:
        """May it read the storage here? A handle from an async method must not block the event loop."""
        if not self._is_for_coroutine:
            return True
        from asyncio import get_running_loop

        try:
            get_running_loop()
        except RuntimeError:
            return True
        return False

    @property
    def effective(self) -> EffectiveJob:
        """The stored job with the options that it leaves to its task filled in; `from_task` names these."""
        return self._app.effective_job(self.record)

    def refresh(self) -> Self:
        """Read the job again. Raises JobNotFound if it is gone."""
        self._record, self._written_at = self._app.storage.get(self.id), None
        return self._checked()

    def _checked(self) -> Self:
        self._is_gone = self._record is None
        if self._is_gone:
            raise JobNotFound(self.id)
        return self

    @property
    def state(self) -> State:
        """Its state as of the last read; a State compares equal to its text: `job.state == "queued"`."""
        return self.record.state

    @property
    def status(self) -> str:
        """The state as one of four words: queued, started, completed, failed."""
        if self.state in WAITING:
            return "queued"
        if self.state in HELD:
            return "started"
        return "completed" if self.state is COMPLETED else "failed"

    @property
    def is_finished(self) -> bool:
        """Has it ended: completed, dead or aborted?"""
        return self.state in FINAL

    @property
    def attempt(self) -> int:
        """The number of this or the next attempt, counting from 1."""
        return self.record.attempt

    @property
    def attempts(self) -> int:
        """How many attempts have started."""
        return self.record.attempts

    @property
    def attempts_left(self) -> int:
        """How many attempts are left."""
        return self.effective.attempts_left

    @property
    def failures(self) -> int:
        """How often the task raised or ran too long."""
        return self.record.failures

    @property
    def halts(self) -> int:
        """How often its worker died while it ran."""
        return self.record.halts

    @property
    def progress(self) -> Progress | None:
        """What its running attempt last reported: percent and text."""
        job = self.record
        return None if job.progress is None else Progress(job.progress, job.progress_text)

    @property
    def reason(self) -> Reason | None:
        """Why the last attempt or the whole job ended badly."""
        return self.record.reason

    @property
    def error(self) -> Failure | None:
        """The last failure: type, message, traceback."""
        text = self.record.error
        return None if text is None else Failure.from_json(text)

    @property
    def worker(self) -> str | None:
        """The worker that holds it, or held it last."""
        return self.record.owner or self.record.last_owner

    @property
    def created_at(self) -> datetime:
        """When it was enqueued. All times are UTC, by the storage's clock."""
        return to_datetime(self.record.created_at)

    @property
    def abort_requested(self) -> bool:
        """Was it asked to stop while a worker held it? It ends as aborted, unless it completes first."""
        return self.record.abort_at is not None

    @property
    def updated_at(self) -> datetime:
        """When anything about it last changed."""
        return to_datetime(self.record.updated_at)

    @property
    def due_at(self) -> datetime | None:
        """When a scheduled or retrying job becomes queued."""
        return _datetime(self.record.due_at)

    @property
    def queued_at(self) -> datetime | None:
        """When it was last queued."""
        return _datetime(self.record.queued_at)

    @property
    def started_at(self) -> datetime | None:
        """When its latest attempt started."""
        return _datetime(self.record.started_at)

    @property
    def finished_at(self) -> datetime | None:
        """When it ended."""
        return _datetime(self.record.finished_at)

    # --- the result -----------------------------------------------------------------------------------------------

    @property
    def result(self) -> R_co:
        """What the task returned. Reads the job again unless it has ended, or the handle is from an async method and
        used on an event loop. Raises WrongState if it has not ended, and JobFailed if it ended dead or aborted."""
        if not self.is_finished and self._may_read():
            self.refresh()
        return self._result()

    def wait(self, timeout: Duration | None = None, *, in_task: bool = False) -> R_co:
        """Wait until the job has ended, and return its result.

        Raises JobFailed if it ended dead or aborted, WaitTimeout after `timeout`, JobNotFound if it is deleted. Inside
        a task it raises WaitRefused: a waiting task keeps its slot, and when all slots wait nothing runs. If other
        workers run the job, pass `in_task=True`.
        """
        refuse_to_wait(f"job {self.id}", in_task)
        self._wait_for_end(timeout)
        return self._result()

    async def aresult(self, timeout: Duration | None = None, *, in_task: bool = False) -> R_co:
        """`wait`, for coroutines."""
        refuse_to_wait(f"job {self.id}", in_task)
        await self._await_end(timeout)
        return self._result()

    def _wait_for_end(self, timeout: Duration | None) -> None:
        for pause in _pauses(timeout):
            if self.refresh().is_finished:
                return
            time.sleep(pause)
        why = self.why()
        if not self.is_finished:  # `why` has read it again
            raise self._timed_out(timeout, why)

    async def _await_end(self, timeout: Duration | None) -> None:
        from asyncio import sleep

        for pause in _pauses(timeout):
            if (await self.arefresh()).is_finished:
                return
            await sleep(pause)
        why = await self.awhy()
        if not self.is_finished:
            raise self._timed_out(timeout, why)

    def _result(self) -> R_co:
        job = self.record
        if job.state not in FINAL:
            hint = "wait for it with job.wait()" if self._may_read() else "wait for it with await job.aresult()"
            raise WrongState(self.id, "read the result of", job.state, hint=hint)
        if job.state is not COMPLETED:
            raise job_failed(job)
        if job.result is None:
            return None  # type: ignore[return-value]
        signature = self._app.signature_of(job.task)
        value: R_co = decode_result(job.result, signature.result_hint if signature else Any)
        return value

    def _timed_out(self, timeout: Duration | None, why: str) -> WaitTimeout:
        waited = span_text(microseconds(timeout or 0, "timeout"))
        hint = None
        if self._app.is_test and self.record.state in WAITING:
            why, hint = "inside packhorse.testing no worker runs", "run the job first: drain(), or run(job)"
        what = f"job {self.id} ({self.task}) did not end within {waited}: it is {self.state}"
        return WaitTimeout(self.id, what, why=why, hint=hint)

    # --- its history ----------------------------------------------------------------------------------------------

    def events(self, *, object: bool = False) -> list[Event]:
        """Everything that happened to it, the oldest first; available even after it is deleted. With `object`, each
        event carries the job as it was after it: `event.object["state"]`."""
        storage = self._app.storage
        found = _all_pages(lambda after: storage.events(EventFilter(job_id=self.id, after=after), limit=BATCH))
        return with_objects(storage, found) if object else found

    def logs(self) -> list[LogLine]:
        """The lines that it logged, the oldest first."""
        storage = self._app.storage
        return _all_pages(lambda after: storage.log_lines(self.id, after=after, limit=BATCH))

    def why(self, *, span: Callable[[int], str] = span_text) -> str:
        """Why the job is in its state, as a clause: "its queue mail is paused by anna since …". `span` formats a
        duration in microseconds."""
        storage, lease = self._app.storage, self._app.settings.lease
        job = self.refresh().record
        surroundings = look_around(storage, lease, job)
        for _ in range(_MAX_READS):
            before, job = job, self.refresh().record
            if (job.state, job.rank, job.fence) == (before.state, before.rank, before.fence):
                break
            surroundings = look_around(storage, lease, job)  # the job has changed meanwhile
        return explain(self._app.effective_job(job), msgspec.structs.replace(surroundings, span=span))

    async def arefresh(self) -> Self:
        """`refresh`, for coroutines; concurrent calls share one read."""
        self._record, self._written_at = await self._bridge.share(self._app.read_jobs, self.id), None
        return self._checked()

    aevents = async_twin(events)
    alogs = async_twin(logs)
    awhy = async_twin(why)

    # --- operations: `by` says who, for the record ----------------------------------------------------------------
    # They raise JobNotFound if the job is gone, and WrongState if its state does not allow the operation.

    def abort(self, *, by: str | None = None) -> Self:
        """Stop it for good. A waiting job ends immediately; a running one is asked to stop, then forced to. If it
        completes before it notices, it is completed: see `job.state` and `job.abort_requested`."""
        return self._operated(Operation.ABORT, self._app.storage.abort([self.id], by=by))

    def force_start(self, *, by: str | None = None) -> Self:
        """Run it next, regardless of its delay, its retry wait, or a pause of its queue."""
        return self._operated(Operation.FORCE_START, self._app.storage.force_start([self.id], by=by))

    def set_priority(self, priority: int, *, by: str | None = None) -> Self:
        """Change its priority: 1 for regular jobs, up to 10."""
        priority = TaskOptions().with_(priority=priority).priority
        return self._operated(Operation.SET_PRIORITY, self._app.storage.set_priority([self.id], priority, by=by))

    def set_queue(self, queue: str, *, by: str | None = None) -> Self:
        """Move it to another queue. It keeps its priority and its age; a running or completed job is not moved."""
        queue = check_name(queue, "queue name")
        return self._operated(Operation.SET_QUEUE, self._app.storage.set_queue([self.id], queue, by=by))

    def retry(self, *, by: str | None = None) -> Self:
        """Give a dead or aborted job all its attempts again, or a retrying one its next attempt now."""
        return self._operated(Operation.RETRY, self._app.storage.retry([self.id], by=by))

    aabort = _operation_twin(abort)
    aforce_start = _operation_twin(force_start)
    aset_priority = _operation_twin(set_priority)
    aset_queue = _operation_twin(set_queue)
    aretry = _operation_twin(retry)

    def delete(self, *, force: bool = False, timeout: Duration = 30, by: str | None = None) -> None:
        """Remove it with its log lines; its events stay. `force` aborts a running job and waits for its end first, up
        to `timeout`."""
        if force and self._abort_if_held(by):
            self._wait_for_end(timeout)
        self._operated(Operation.DELETE, self._app.storage.delete([self.id], by=by))
        self._is_gone = True

    async def adelete(self, *, force: bool = False, timeout: Duration = 30, by: str | None = None) -> None:
        """`delete`, for coroutines."""
        if force and await self._bridge.call(self._abort_if_held, by):
            await self._await_end(timeout)
        await self._bridge.call(self.delete, by=by)

    def copy(self, args: Mapping[str, Any] | None = None, **options: Unpack[JobKeywords]) -> JobHandle[R_co]:
        """Enqueue a new job like this one; `args` replaces all its arguments, and options change as in `using`.

        >>> job.copy(args=job.args | {"user_id": 2}, priority=9)
        """
        return enqueue_job(self._app, self._new_copy(args, options), options.get("connection"))

    async def acopy(self, args: Mapping[str, Any] | None = None, **options: Unpack[JobKeywords]) -> JobHandle[R_co]:
        """`copy`, for coroutines."""
        await self.arefresh()
        return await aenqueue_job(self._app, await self._bridge.call(self._new_copy, args, options))

    def _abort_if_held(self, by: str | None) -> bool:
        """Abort the job if a worker holds it, and return whether one does."""
        if self.refresh().state not in HELD:
            return False
        self._app.storage.abort([self.id], by=by)
        return True

    def _new_copy(self, args: Mapping[str, Any] | None, options: Mapping[str, Any]) -> NewJob:
        job, app, limit = self.record, self._app, self._app.settings.payload_limit
        if args is None:
            template = JobTemplate.of_copy(job, limit, app.signature_of(job.task))
            return template.changed(options).fill_again(self.args)

        def fill() -> NewJob:
            template = JobTemplate.of_copy(job, limit, app.signature_to_check(job.task))
            return template.changed(options).fill_again(args)

        return app.with_fresh_announcements(job.task, fill)

    def _operated(self, operation: Operation, results: list[ActionResult]) -> Self:
        (result,) = results
        self._record = self._new = self._written_at = None  # all may be out of date now
        self._is_gone = result.state is None
        if result.state is None:
            raise JobNotFound(self.id)
        if result.conflict is not None:
            raise NotUnique(result.conflict, self.record.unique_key or "")
        if not result.changed:
            hint = _what_to_do_instead(operation, result.state)
            raise WrongState(self.id, _VERBS[operation], result.state, hint=hint)
        return self

    def _operate_and_read(self, operate: Callable[[], Self]) -> Self:
        """Perform the operation, then read the job, also if the operation was refused: the coroutine that called it
        must not read later."""
        last = self._record, self._new, self._written_at
        try:
            return operate()
        finally:
            if self._record is None and self._new is None:  # they were out of date
                try:
                    self.refresh()
                except JobNotFound:
                    pass  # the next use of the handle raises it
                except BaseException:
                    self._record, self._new, self._written_at = last
                    raise


_VERBS = {
    Operation.ABORT: "abort",
    Operation.FORCE_START: "force start",
    Operation.SET_PRIORITY: "set the priority of",
    Operation.SET_QUEUE: "move",
    Operation.RETRY: "retry",
    Operation.DELETE: "delete",
}


def _what_to_do_instead(operation: Operation, state: State) -> str:
    """The hint for an operation that the storage refused because of the job's state."""
    match operation:
        case Operation.SET_PRIORITY:
            return "it has ended and no longer waits"
        case Operation.SET_QUEUE if state not in HELD and state is not COMPLETED:
            return "it is in that queue already"
        case Operation.DELETE:
            return "abort it first, or delete it with force, which does both"
        case Operation.ABORT:
            return "it has ended already"
    if state in WAITING:
        return "it is queued already; force start runs it next"
    if state in HELD:
        return "a worker has it already"
    if state is COMPLETED:
        return "it has done its work; to run it again, copy it"
    return "retry it first"


# --- enqueueing -----------------------------------------------------------------------------------------------------


def enqueue_job(app: AppState, new: NewJob, connection: Any = None, *, has_own_id: bool = False) -> JobHandle[Any]:
    """Store a job; with a connection, within its transaction. `has_own_id`: the caller has chosen its id."""
    if app.hooks.before_enqueue is not None:
        new = app.hooks.before_enqueue(new)
    if connection is not None:
        (answer,) = app.enqueue([new], connection)
        return handle_of(app, new, answer)
    (answer,) = app.storage.enqueue([new])
    if answer.job_id == new.id and not has_own_id:
        return JobHandle(app, new.id, True, new)
    return handle_of(app, new, answer, has_own_id=has_own_id)


async def aenqueue_job(app: AppState, new: NewJob, *, has_own_id: bool = False) -> JobHandle[Any]:
    """`enqueue_job`, for coroutines; concurrent calls share one write."""
    if app.hooks.before_enqueue is not None:
        new = await app.bridge.call(app.hooks.before_enqueue, new)
    answer = await app.bridge.share(app.enqueue, new)
    if has_own_id and _existed(new, answer):
        handle = await app.bridge.call(handle_of, app, new, answer, has_own_id=True)
        handle._is_for_coroutine = True
        return handle
    handle = handle_of(app, new, answer)
    handle._is_for_coroutine = True
    if handle._new is None:  # a unique job that was there before
        handle._record = await app.bridge.share(app.read_jobs, handle.id)
    else:
        handle._written_at = app.storage.approximate_now()
    return handle


def for_coroutine(app: AppState, handles: list[JobHandle[Any]]) -> list[JobHandle[Any]]:
    """These handles, fresh from `enqueue`, for use on the event loop: each shows its job as it was written. Jobs that
    were there before are read now."""
    now = app.storage.approximate_now()
    existing = [handle for handle in handles if handle._new is None]
    for start in range(0, len(existing), BATCH):
        some = existing[start : start + BATCH]
        for handle, record in zip(some, app.read_jobs([one.id for one in some]), strict=True):
            handle._record = record
    for handle in handles:
        handle._written_at, handle._is_for_coroutine = now, True
    return handles


def handle_of(app: AppState, new: NewJob, answer: Enqueued, *, has_own_id: bool = False) -> JobHandle[Any]:
    """The handle of the job that enqueueing `new` led to: itself, or one that was there before. Raises JobExists if
    the caller has chosen an id that another call has."""
    if has_own_id and _existed(new, answer):
        handle: JobHandle[Any] = JobHandle(app, new.id, _record=app.storage.get(new.id))
        check_same_call(handle.record, new)
        return handle
    # Under an id of ours, `kept` means a repeated call whose first answer was lost: the job is new nevertheless.
    if answer.job_id == new.id:
        return JobHandle(app, new.id, True, new)
    return JobHandle(app, answer.job_id)


def _existed(new: NewJob, answer: Enqueued) -> bool:
    """Was there a job with this id before?"""
    return answer.job_id == new.id and answer.placement is Placement.KEPT


def check_same_call(stored: Job, new: NewJob) -> None:
    """Raise JobExists if this stored job, which has the same id, is another call."""
    if stored.task != new.task:
        raise JobExists(new.id, "task and arguments")
    if msgspec.json.decode(stored.args) != msgspec.json.decode(new.args):
        raise JobExists(new.id, "arguments")


# --- waiting and paging -----------------------------------------------------------------------------------------------


def _pauses(timeout: Duration | None) -> Iterator[float]:
    """The seconds to sleep after each read: short at first, then longer; the last read is when `timeout` is over."""
    deadline = None if timeout is None else time.monotonic() + microseconds(timeout, "timeout") / SECOND
    pause = _FIRST_PAUSE
    while True:
        left = pause if deadline is None else deadline - time.monotonic()
        if left <= 0:
            yield 0.0
            return
        yield min(pause, left)
        pause = min(pause * 1.5, _LONGEST_PAUSE)


def _all_pages(read: Callable[[int], list[Numbered]]) -> list[Numbered]:
    """The items of all pages; `read` returns those after an id, in rising order."""
    found: list[Numbered] = []
    while page := read(found[-1].id if found else 0):
        found += page
        if len(page) < BATCH:
            break
    return found


def _datetime(at: int | None) -> datetime | None:
    return None if at is None else to_datetime(at)


def job_failed(job: Job) -> JobFailed:
    """The error for a dead or aborted job: it says how the job ended."""
    if job.state is ABORTED:
        # An aborted job may carry the error of an earlier attempt, which is not why it ended.
        return JobFailed(job.id, job.task, job.state, job.reason, abort_reason(job))
    error = Failure.from_json(job.error) if job.error else None
    return JobFailed(job.id, job.task, job.state, job.reason, error.summary() if error else None)
