"""A job as users hold it: look at it, wait for it, steer it.

Handles come from `enqueue` and from the app's `get` and `jobs`. A handle shows the job as it was when it last looked;
`refresh` looks again, and so do `wait`, `result` and `why`. One that comes fresh from `enqueue` has not looked at all
and reads the storage only when it is asked for something that it does not know. One that a coroutine gets, from
`aenqueue` or another async method, does not even do that, because it would hold up the event loop: it shows the job
as it was written, until `arefresh`. The async name of a method is its name with an `a` in front; `aresult` is the one
for `wait`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Generic, NamedTuple, Self, TypeVar, Unpack

import msgspec

from packhorse.client.home import Home
from packhorse.client.job_builder import JobKeywords, JobTemplate
from packhorse.client.refused import refused
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
from packhorse.storage.records import Enqueued, EventFilter, LogLine, Placement, Steered

R_co = TypeVar("R_co", covariant=True)
Numbered = TypeVar("Numbered", Event, LogLine)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25  # seconds between two looks of `wait`
_LOOKS = 3  # how often `why` looks again at a job that changes while it is looked at


class Progress(NamedTuple):
    """How far a running job says it is."""

    percent: int
    text: str | None


class JobHandle(msgspec.Struct, Generic[R_co], eq=False, weakref=True):
    """One job. `R_co` is the type of its result."""

    _app: Home
    id: str
    is_new: bool = False
    """Whether this call added the job; False when it is a unique twin that was there before, or was looked up."""
    _new: NewJob | None = None
    _record: Job | None = None
    _written_at: int | None = None  # about when, if it is to show `_new` as it was written then
    _is_for_coroutine: bool = False  # an async method answered it: it does not ask the storage on an event loop
    _is_gone: bool = False  # as the last look or step has shown

    @classmethod
    def of(cls, app: Home, record: Job, *, for_coroutine: bool = False) -> Self:
        """A job that was looked up."""
        return cls(app, record.id, _record=record, _is_for_coroutine=for_coroutine)

    def __repr__(self) -> str:
        known = self._record or self._new
        state = f" {self._record.state}" if self._record else ""
        return f"<Job {self.id}{f' {known.task}' if known else ''}{state}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    # --- what was asked for: known without a look -----------------------------------------------------------------

    @property
    def task(self) -> str:
        """The name of its task."""
        return self._known.task

    @property
    def queue(self) -> str:
        """The queue that it waits in."""
        return self._known.queue

    @property
    def args(self) -> dict[str, Any]:
        """Its arguments by name, as plain JSON values; a new dict each time."""
        decoded: dict[str, Any] = msgspec.json.decode(self._known.args)
        return decoded

    @property
    def meta(self) -> dict[str, Any]:
        """What `using(meta=…)` noted about it."""
        decoded: dict[str, Any] = msgspec.json.decode(self._known.meta or "{}")
        return decoded

    @property
    def priority(self) -> int:
        """From 1, for regular jobs, to 10."""
        return self._known.priority

    @property
    def max_attempts(self) -> int:
        """How often it may be tried."""
        return self._known.max_attempts or self._app.options_of(self._known.task).max_attempts

    @property
    def _known(self) -> Job | NewJob:
        return self._record or self._new or self.record

    # --- what a look shows ----------------------------------------------------------------------------------------

    @property
    def record(self) -> Job:
        """The stored job itself, with every field, as of the last look. Of one that comes from `aenqueue` and was not
        looked at since: as it was written, with times by the clock of this machine and a `seq` of 0."""
        if self._record is None and self._new is not None and self._written_at is not None:
            self._record = added_job(self._new, 0, self._written_at)
        if self._record is None and self._is_gone and not self._may_ask():
            raise JobNotFound(self.id)
        if self._record is None:
            self.refresh()
        assert self._record is not None
        return self._record

    def _may_ask(self) -> bool:
        """Whether there is time to ask the storage: a job of a coroutine must not hold up its event loop."""
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
        """The stored job with the options that it leaves to its task; `from_task` names these."""
        return self._app.effective_job(self.record)

    def refresh(self) -> Self:
        """Look again. Raises JobNotFound if the job is gone."""
        self._record, self._written_at = self._app.storage.get(self.id), None
        return self._found()

    def _found(self) -> Self:
        self._is_gone = self._record is None
        if self._is_gone:
            raise JobNotFound(self.id)
        return self

    @property
    def state(self) -> State:
        """Where it stands, as of the last look; a State compares equal to its text: `job.state == "queued"`."""
        return self.record.state

    @property
    def status(self) -> str:
        """The state in four words: queued, started, completed, failed."""
        if self.state in WAITING:
            return "queued"
        if self.state in HELD:
            return "started"
        return "completed" if self.state is COMPLETED else "failed"

    @property
    def is_finished(self) -> bool:
        """Whether it ended: completed, dead or aborted."""
        return self.state in FINAL

    @property
    def attempt(self) -> int:
        """Which try this is or will be, counting from 1."""
        return self.record.attempt

    @property
    def attempts(self) -> int:
        """How often it was begun."""
        return self.record.attempts

    @property
    def attempts_left(self) -> int:
        """How many tries it has left."""
        return self.effective.attempts_left

    @property
    def failures(self) -> int:
        """How often the task raised or ran too long."""
        return self.record.failures

    @property
    def halts(self) -> int:
        """How often its worker died under it."""
        return self.record.halts

    @property
    def progress(self) -> Progress | None:
        """What its running attempt last said: percent and text."""
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
        """When it was enqueued. All times are in UTC and the storage's."""
        return to_datetime(self.record.created_at)

    @property
    def abort_requested(self) -> bool:
        """Whether it was asked to stop while a worker held it. It ends as aborted, unless it completes first."""
        return self.record.abort_at is not None

    @property
    def updated_at(self) -> datetime:
        """When anything about it last changed."""
        return to_datetime(self.record.updated_at)

    @property
    def due_at(self) -> datetime | None:
        """When a scheduled or retrying job comes into line."""
        return _datetime(self.record.due_at)

    @property
    def queued_at(self) -> datetime | None:
        """When it last came into line."""
        return _datetime(self.record.queued_at)

    @property
    def started_at(self) -> datetime | None:
        """When its latest attempt began."""
        return _datetime(self.record.started_at)

    @property
    def finished_at(self) -> datetime | None:
        """When it ended."""
        return _datetime(self.record.finished_at)

    # --- the result -----------------------------------------------------------------------------------------------

    @property
    def result(self) -> R_co:
        """What the task returned. Looks again unless the job had ended, or comes from an async method and is asked on
        an event loop; raises WrongState if it has not ended, and JobFailed if it ended dead or aborted."""
        if not self.is_finished and self._may_ask():
            self.refresh()
        return self._result()

    def wait(self, timeout: Duration | None = None, *, in_task: bool = False) -> R_co:
        """Wait until the job has ended, and return its result.

        Raises JobFailed if it ended dead or aborted, WaitTimeout after `timeout`, JobNotFound if it is deleted. Inside
        a task it raises WaitRefused: a task that waits keeps its slot, and when all slots wait nothing runs. Who knows
        that other workers run the job says `in_task=True`.
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
        if not self.is_finished:  # it may have ended just now
            raise self._not_in_time(timeout, why)

    async def _await_end(self, timeout: Duration | None) -> None:
        from asyncio import sleep

        for pause in _pauses(timeout):
            if (await self.arefresh()).is_finished:
                return
            await sleep(pause)
        why = await self.awhy()
        if not self.is_finished:
            raise self._not_in_time(timeout, why)

    def _result(self) -> R_co:
        job = self.record
        if job.state not in FINAL:
            hint = "wait for it with job.wait()" if self._may_ask() else "wait for it with await job.aresult()"
            raise WrongState(self.id, "read the result of", job.state, hint=hint)
        if job.state is not COMPLETED:
            raise job_failed(job)
        if job.result is None:
            return None  # type: ignore[return-value]
        signature = self._app._signature_of(job.task)
        value: R_co = decode_result(job.result, signature.result_hint if signature else Any)
        return value

    def _not_in_time(self, timeout: Duration | None, why: str) -> WaitTimeout:
        waited = span_text(microseconds(timeout or 0, "timeout"))
        hint = None
        if self._app._is_rehearsed and self.record.state in WAITING:
            why, hint = "in packhorse.testing no worker runs beside the test", "run it first: drain(), or run(job)"
        what = f"job {self.id} ({self.task}) did not end within {waited}: it is {self.state}"
        return WaitTimeout(self.id, what, why=why, hint=hint)

    # --- its history ----------------------------------------------------------------------------------------------

    def events(self, *, object: bool = False) -> list[Event]:
        """Everything that happened to it, the oldest first; also when it is deleted already. With `object` each event
        has the job as it was after it: `event.object["state"]`."""
        storage = self._app.storage
        found = _all_of(lambda after: storage.events(EventFilter(job_id=self.id, after=after), limit=BATCH))
        return with_objects(storage, found) if object else found

    def logs(self) -> list[LogLine]:
        """The lines that it wrote, the oldest first."""
        storage = self._app.storage
        return _all_of(lambda after: storage.log_lines(self.id, after=after, limit=BATCH))

    def why(self, *, span: Callable[[int], str] = span_text) -> str:
        """Why the job is where it is, as a clause: "its queue mail is paused by anna since …". `span` says how a
        duration, in microseconds, is written."""
        storage, lease = self._app.storage, self._app.settings.lease
        job = self.refresh().record
        seen = look_around(storage, lease, job)
        for _ in range(_LOOKS):
            before, job = job, self.refresh().record
            if (job.state, job.rank, job.fence) == (before.state, before.rank, before.fence):
                break
            # Somebody has taken or moved it meanwhile, and what was seen is of the past.
            seen = look_around(storage, lease, job)
        return explain(self._app.effective_job(job), msgspec.structs.replace(seen, span=span))

    # --- steering: `by` is who, for the record --------------------------------------------------------------------
    # A job whose state does not allow the step is left alone: WrongState. One that is gone: JobNotFound.

    def abort(self, *, by: str | None = None) -> Self:
        """Stop it for good. A waiting job ends at once; a running one is asked to stop and made to if it does not. One
        that completes before it hears of it is completed: `job.state` and `job.abort_requested` say what is certain."""
        return self._steered(Operation.ABORT, self._app.storage.abort([self.id], by=by))

    def force_start(self, *, by: str | None = None) -> Self:
        """Run it next, whatever its delay, its retry wait, or a pause of its queue."""
        return self._steered(Operation.FORCE_START, self._app.storage.force_start([self.id], by=by))

    def set_priority(self, priority: int, *, by: str | None = None) -> Self:
        """Move it in line: 1 for regular jobs, up to 10."""
        priority = TaskOptions().with_(priority=priority).priority
        return self._steered(Operation.SET_PRIORITY, self._app.storage.set_priority([self.id], priority, by=by))

    def set_queue(self, queue: str, *, by: str | None = None) -> Self:
        """Put it in another queue. It keeps its priority and its age; a running or completed job stays where it is."""
        queue = check_name(queue, "queue name")
        return self._steered(Operation.SET_QUEUE, self._app.storage.set_queue([self.id], queue, by=by))

    def retry(self, *, by: str | None = None) -> Self:
        """Give a dead or aborted job all its tries again, or a retrying one its next try now."""
        return self._steered(Operation.RETRY, self._app.storage.retry([self.id], by=by))

    def delete(self, *, force: bool = False, timeout: Duration = 30, by: str | None = None) -> None:
        """Remove it with its log lines; its events stay. `force` aborts a running one and waits for its end first,
        for `timeout` at most."""
        if force and self._ask_to_stop(by):
            self._wait_for_end(timeout)
        self._steered(Operation.DELETE, self._app.storage.delete([self.id], by=by))
        self._is_gone = True

    def copy(self, args: Mapping[str, Any] | None = None, **options: Unpack[JobKeywords]) -> JobHandle[R_co]:
        """Enqueue a new job like this one; `args` replaces all its arguments, and options change as in `using`.

        >>> job.copy(args=job.args | {"user_id": 2}, priority=9)
        """
        return enqueue_job(self._app, self._copied(args, options), options.get("connection"))

    def _ask_to_stop(self, by: str | None) -> bool:
        """Abort the job if a worker holds it, and say so."""
        if self.refresh().state not in HELD:
            return False
        self._app.storage.abort([self.id], by=by)
        return True

    def _copied(self, args: Mapping[str, Any] | None, options: Mapping[str, Any]) -> NewJob:
        if args is not None:
            return self._app._checked(self.record.task, lambda: self._changed(args, options))
        template = JobTemplate.of_copy(
            self.record, self._app.settings.payload_limit, self._app._signature_of(self.task)
        )
        return template.changed(options).fill_again(self.args)

    def _changed(self, args: Mapping[str, Any], options: Mapping[str, Any]) -> NewJob:
        job, app = self.record, self._app
        template = JobTemplate.of_copy(job, app.settings.payload_limit, app._signature_to_check(job.task))
        return template.changed(options).fill_again(args)

    def _steered(self, operation: Operation, answers: list[Steered]) -> Self:
        (answer,) = answers
        self._record = self._new = self._written_at = None  # all may be out of date now
        self._is_gone = answer.state is None
        if answer.state is None:
            raise JobNotFound(self.id)
        if answer.conflict is not None:
            raise NotUnique(answer.conflict, self.record.unique_key or "")
        if not answer.changed:
            raise refused(self.id, operation, answer.state)
        return self

    # --- the same for coroutines ----------------------------------------------------------------------------------

    async def arefresh(self) -> Self:
        """`refresh`, for coroutines; many at once share one read."""
        self._record, self._written_at = await self._app._courier.share(self._app._get_each, self.id), None
        return self._found()

    async def aevents(self, *, object: bool = False) -> list[Event]:
        """`events`, for coroutines."""
        return await self._app._courier.call(self.events, object=object)

    async def alogs(self) -> list[LogLine]:
        """`logs`, for coroutines."""
        return await self._app._courier.call(self.logs)

    async def awhy(self, *, span: Callable[[int], str] = span_text) -> str:
        """`why`, for coroutines."""
        return await self._app._courier.call(self.why, span=span)

    async def aabort(self, *, by: str | None = None) -> Self:
        """`abort`, for coroutines."""
        return await self._app._courier.call(self._looked_at, partial(self.abort, by=by))

    async def aforce_start(self, *, by: str | None = None) -> Self:
        """`force_start`, for coroutines."""
        return await self._app._courier.call(self._looked_at, partial(self.force_start, by=by))

    async def aset_priority(self, priority: int, *, by: str | None = None) -> Self:
        """`set_priority`, for coroutines."""
        return await self._app._courier.call(self._looked_at, partial(self.set_priority, priority, by=by))

    async def aset_queue(self, queue: str, *, by: str | None = None) -> Self:
        """`set_queue`, for coroutines."""
        return await self._app._courier.call(self._looked_at, partial(self.set_queue, queue, by=by))

    async def aretry(self, *, by: str | None = None) -> Self:
        """`retry`, for coroutines."""
        return await self._app._courier.call(self._looked_at, partial(self.retry, by=by))

    async def adelete(self, *, force: bool = False, timeout: Duration = 30, by: str | None = None) -> None:
        """`delete`, for coroutines."""
        if force and await self._app._courier.call(self._ask_to_stop, by):
            await self._await_end(timeout)
        await self._app._courier.call(self.delete, by=by)

    async def acopy(self, args: Mapping[str, Any] | None = None, **options: Unpack[JobKeywords]) -> JobHandle[R_co]:
        """`copy`, for coroutines."""
        await self.arefresh()
        return await aenqueue_job(self._app, await self._app._courier.call(self._copied, args, options))

    def _looked_at(self, steer: Callable[[], Self]) -> Self:
        """This job after a step, or after one that was refused, with a look at what became of it: on the event loop
        there is no time for one."""
        last = self._record, self._new, self._written_at
        try:
            return steer()
        finally:
            if self._record is None and self._new is None:  # they were out of date
                try:
                    self.refresh()
                except JobNotFound:
                    pass  # which whoever asks it for more will be told
                except BaseException:
                    self._record, self._new, self._written_at = last
                    raise


# --- new ones -----------------------------------------------------------------------------------------------------


def enqueue_job(app: Home, new: NewJob, connection: Any = None, *, has_own_id: bool = False) -> JobHandle[Any]:
    """Put this job in; with a connection, as a part of its transaction. `has_own_id`: its caller has chosen its id."""
    if app.hooks.before_enqueue is not None:
        new = app.hooks.before_enqueue(new)
    (answer,) = app._submit([new], connection)
    return handle_of(app, new, answer, has_own_id=has_own_id and connection is None)


async def aenqueue_job(app: Home, new: NewJob, *, has_own_id: bool = False) -> JobHandle[Any]:
    """`enqueue_job`, for coroutines; many at once share one write."""
    if app.hooks.before_enqueue is not None:
        new = await app._courier.call(app.hooks.before_enqueue, new)
    answer = await app._courier.share(app._submit, new)
    if has_own_id and _is_repeated(new, answer):
        handle = await app._courier.call(handle_of, app, new, answer, has_own_id=True)
        handle._is_for_coroutine = True
        return handle
    handle = handle_of(app, new, answer)
    handle._is_for_coroutine = True
    if handle._new is None:  # a twin that was there before
        handle._record = await app._courier.share(app._get_each, handle.id)
    else:
        handle._written_at = app.storage.approximate_now()
    return handle


def for_coroutine(app: Home, handles: list[JobHandle[Any]]) -> list[JobHandle[Any]]:
    """These handles, fresh from `enqueue`, to be used where nothing may wait for the storage: each shows its job as it
    was written. Those that were there before are looked up."""
    now = app.storage.approximate_now()
    twins = [handle for handle in handles if handle._new is None]
    for start in range(0, len(twins), BATCH):
        some = twins[start : start + BATCH]
        for handle, record in zip(some, app._get_each([one.id for one in some]), strict=True):
            handle._record = record
    for handle in handles:
        handle._written_at, handle._is_for_coroutine = now, True
    return handles


def _is_repeated(new: NewJob, answer: Enqueued) -> bool:
    """Was a job of this id there before?"""
    return answer.job_id == new.id and answer.placement is Placement.KEPT


def check_same_call(stored: Job, new: NewJob) -> None:
    """JobExists if this stored job, of the same id, is another call."""
    if stored.task != new.task:
        raise JobExists(new.id, "task and arguments")
    if msgspec.json.decode(stored.args) != msgspec.json.decode(new.args):
        raise JobExists(new.id, "arguments")


def handle_of(app: Home, new: NewJob, answer: Enqueued, *, has_own_id: bool = False) -> JobHandle[Any]:
    """The job that now stands for this one. Under an id that its caller chose, only the same call may be made again;
    another one is a JobExists."""
    if has_own_id and _is_repeated(new, answer):
        handle: JobHandle[Any] = JobHandle(app, new.id, _record=app.storage.get(new.id))
        check_same_call(handle.record, new)
        return handle
    # An answer `kept` under our own id is a repeated call whose first answer was lost: the job is new all the same.
    if answer.job_id == new.id:
        return JobHandle(app, new.id, True, new)
    return JobHandle(app, answer.job_id)


# --- looking again and again ----------------------------------------------------------------------------------------


def _pauses(timeout: Duration | None) -> Iterator[float]:
    """How long to sleep after each look: short at first, then longer; the last look is when `timeout` is over."""
    deadline = None if timeout is None else time.monotonic() + microseconds(timeout, "timeout") / SECOND
    pause = _FIRST_PAUSE
    while True:
        left = pause if deadline is None else deadline - time.monotonic()
        if left <= 0:
            yield 0.0
            return
        yield min(pause, left)
        pause = min(pause * 1.5, _LONGEST_PAUSE)


def _all_of(read: Callable[[int], list[Numbered]]) -> list[Numbered]:
    """Every page of what is numbered in rising order; `read` answers what comes after a number."""
    found: list[Numbered] = []
    while page := read(found[-1].id if found else 0):
        found += page
        if len(page) < BATCH:
            break
    return found


def _datetime(at: int | None) -> datetime | None:
    return None if at is None else to_datetime(at)


def job_failed(job: Job) -> JobFailed:
    """The error that tells how this job, which is dead or aborted, came to its end."""
    if job.state is ABORTED:
        # One that was aborted may carry the error of an earlier attempt, which is not why it ended.
        return JobFailed(job.id, job.task, job.state, job.reason, abort_reason(job))
    error = Failure.from_json(job.error) if job.error else None
    return JobFailed(job.id, job.task, job.state, job.reason, error.summary() if error else None)
