"""For the tests of Packhorse's users: jobs run immediately, in the test's own process.

    with testing(app) as t:
        order_book(7)
        t.assert_enqueued(send_notice, {"user_id": 7})
        t.drain()

Nothing is faked: the worker's own code stores, reserves, runs and finishes the jobs, on a storage in memory with a
clock that the test turns. Only what needs other processes is missing: no time limit is enforced, no child process
starts, no worker dies.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from packhorse.client.announcements import announce
from packhorse.client.app import Packhorse
from packhorse.client.job import JobHandle
from packhorse.client.task import Task
from packhorse.core import clock
from packhorse.core.clock import SECOND, Duration, ManualClock, from_datetime, microseconds, to_datetime
from packhorse.core.codec import encode_args
from packhorse.core.context import JobContext
from packhorse.core.errors import BadArguments, BadValue, PackhorseError, TaskNotFound, did_you_mean
from packhorse.core.event import Kind
from packhorse.core.job import RETRYING, SCHEDULED, Job
from packhorse.core.outcome import Failed, Outcome, Released, Retry, Verdict
from packhorse.core.task import RegisteredTask
from packhorse.foreman.chores.chore import Chore
from packhorse.foreman.chores.end_pauses import EndPauses
from packhorse.foreman.chores.expire import Expire
from packhorse.foreman.chores.promote import Promote
from packhorse.foreman.chores.schedules import TickSchedules
from packhorse.monitor.text import span_text
from packhorse.storage import Storage, open_storage
from packhorse.storage.records import Filter, WorkerInfo
from packhorse.worker import attempt
from packhorse.worker.fetcher import UNKNOWN_WAIT
from packhorse.worker.finisher import OutcomeQueue
from packhorse.worker.held_job import HeldJob, WorkerStop
from packhorse.worker.job_log import JobLogWriter
from packhorse.worker.logging import capture_logging
from packhorse.worker.middleware import Chain, compose
from packhorse.worker.outcomes import of_stopped
from packhorse.worker.queues import ServedQueues
from packhorse.worker.results import EndedJob, HandlerCall, ResultHandlers

T = TypeVar("T")

MOST_RUNS = 10_000
"""After so many attempts in one `drain` without a limit, a task seems to enqueue itself without end."""
MOST_MOMENTS = 10_000
"""The most slots of schedules and delays in one `turn`."""
_OWNER = "testing"
_DELAYED = frozenset({SCHEDULED, RETRYING})
_SHOWN = 10


@contextmanager
def testing(app: Packhorse, *, now: datetime | None = None) -> Iterator[JobTester]:  # noqa: PT028 - it is not a test
    """Keep the app's jobs in memory inside a `with` block, under a clock that stands still until it is turned. It
    starts at `now`, by default the time of this machine."""
    shown = ManualClock(clock.now() if now is None else from_datetime(now, "now"))
    with app._state.test_storage(open_storage("memory://", now=shown)):
        yield JobTester(app, shown)


testing.__test__ = False  # type: ignore[attr-defined]  # else pytest would take it for one, by its name


class JobTester:
    """Runs and checks the jobs of one test; `testing` yields it."""

    def __init__(self, app: Packhorse, shown: ManualClock) -> None:
        self.app = app
        self._clock = shown
        self._storage = app.storage
        self._log_writer = JobLogWriter(self._storage, app.settings.keep_log_lines)
        self._handlers = _SynchronousHandlers(app)
        self._chores: list[Chore] = [
            Promote(self._storage),
            TickSchedules(self._storage),
            Expire(self._storage),
            EndPauses(self._storage),
        ]
        self._storage.join(WorkerInfo(_OWNER, queues=sorted(self._queues(None)), concurrency=1))
        announce(self._storage, app.announcements())
        app.put_schedules()

    # --- time -----------------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The time of the clock."""
        return to_datetime(self._clock())

    def turn(self, by: Duration) -> None:
        """Turn the clock forward, as if a foreman had run all the time: delayed jobs become queued when they are due,
        schedules tick at every slot, jobs that have waited for too long are aborted. Runs no job."""
        until = self._clock() + microseconds(by, "turn")
        self.tick()
        for moment in itertools.islice(self._moments(until), MOST_MOMENTS):
            self._clock.set(moment)
            self.tick()
        if next(self._moments(until), None) is not None:
            raise PackhorseError(
                f"more than {MOST_MOMENTS:,} slots of schedules and delays lie in this turn of the clock",
                hint="turn it in smaller steps, or pause the schedule that ticks so often: app.pause_schedule(…)",
            )
        self._clock.set(until)
        self.tick()

    def tick(self) -> None:
        """Run the foreman's chores: promote what is due, tick the schedules, end what has expired."""
        self._storage.heartbeat({_OWNER: {}})
        self.app.put_schedules()
        for chore in self._chores:
            while chore.run() == 0:  # there is more
                pass

    def _moments(self, until: int) -> Iterator[int]:
        """The next moment up to this one when a schedule ticks, a job is due or a pause ends, repeatedly."""
        while True:
            now, due_in = self._clock(), self._storage.next_due()
            coming = [schedule.next_at for schedule in self._storage.schedules() if schedule.paused_at is None]
            coming += [] if due_in is None else [now + due_in]
            coming += [queue.paused_until for queue in self._storage.queues() if queue.paused_until is not None]
            moment = min((at for at in coming if at > now), default=None)
            if moment is None or moment > until:
                return
            yield moment

    # --- running --------------------------------------------------------------------------------------------------

    def drain(
        self, queue: str | None = None, *, limit: int | None = None, with_retries: bool = False, raises: bool = False
    ) -> list[JobHandle[Any]]:
        """Run the jobs that are due, in the order in which a worker would take them, until none is left, including new
        ones. Return the jobs that ran, each once.

        `queue` limits it to one queue, and `limit` is the maximum of attempts. With `with_retries` the clock is turned
        to each next retry, snooze or delay, until every job has ended; schedules do not tick meanwhile. With `raises`,
        the first error of a task or of a result handler is raised here, once it is stored.
        """
        ran: dict[str, None] = {}
        for number in itertools.count():
            if number == limit or (job := self._next(queue, with_retries)) is None:
                break
            if limit is None and number == MOST_RUNS:
                self._storage.release([job.token], "the test has run too many jobs")
                raise PackhorseError(
                    f"jobs still come in after {MOST_RUNS:,} attempts, now of {job.task}",
                    hint="a task that enqueues or snoozes itself never ends; say how many to run: drain(limit=…)",
                )
            ran[job.id] = None
            self._run(job, raises)
        return [job for job in map(self.app.get_or_none, ran) if job is not None]

    def run(self, job: JobHandle[T] | str, *, raises: bool = False) -> JobHandle[T]:
        """Run this job once, now, regardless of what it waits for. Raises WrongState if it has ended; with `raises`,
        the error of the task."""
        handle: JobHandle[T] = self.app.get(job if isinstance(job, str) else job.id)
        self.app.registry.get(handle.task)
        handle.force_start(by="the test")
        forced = []
        while (taken := self._storage.reserve(_OWNER, {handle.queue: 1}, 1)) and taken[0].id != handle.id:
            forced.append(taken[0].token)
        self._storage.release(forced, "the test runs another job")
        for reserved in taken:  # none, if it has expired
            self._run(reserved, raises)
        return handle.refresh()

    def _queues(self, only: str | None) -> dict[str, int]:
        """The queues that a worker of the app would serve, with their weights, or only this one."""
        served = ServedQueues(self.app.registry)
        served.look_into(self._storage.tallies())
        if only is None:
            return served.queues
        known = {*served.queues, *(queue.name for queue in self._storage.queues())}
        if only not in known:
            raise BadValue(f"there is no queue {only!r}{did_you_mean(only, known)}")
        return {only: served.queues.get(only, 1)}

    def _next(self, queue: str | None, with_retries: bool) -> Job | None:
        """The next job that a worker would take."""
        queues = self._queues(queue)
        while True:
            jobs = self._storage.reserve(_OWNER, queues, 1)
            if jobs and jobs[0].task in self.app.registry:
                return jobs[0]
            if jobs:  # as the fetcher does: another worker may know its task
                self._storage.finish([Released(jobs[0].token, "its task is not known here", delay=UNKNOWN_WAIT)])
            elif not (with_retries and self._turn_to_next(queue)):
                return None

    def _turn_to_next(self, queue: str | None) -> bool:
        """Turn the clock to the moment when the next job of a known task is due. Return False if there is none."""
        filters = [Filter(states=_DELAYED, queue=queue, task=task.name) for task in self.app.registry]
        due = [job.due_at for each in filters for job in self._storage.find(each, limit=1).jobs]
        moments = [at for at in due if at is not None]
        if moments:
            self._clock.set(max(min(moments), self._clock()))
        return bool(moments)

    def _run(self, job: Job, raises: bool) -> None:
        """Run one attempt, and the result handlers after it."""
        raised: list[BaseException] = []
        outcome = _outside_event_loop(lambda: self._attempt(job, self.app.registry.get(job.task), raised))
        for error in raised:
            # What is not an error of the task, such as Ctrl-C or pytest.fail(), ends the test.
            if not isinstance(error, Exception | SystemExit | asyncio.CancelledError):
                raise error
            if raises and not isinstance(error, Retry):
                raise error
        if raises and not raised and isinstance(outcome, Failed) and outcome.retry_in is None:
            _ = self.app.get(job.id).result  # JobFailed says why it could not be called, or its result not be stored

    def _attempt(self, job: Job, task: RegisteredTask, raised: list[BaseException]) -> Outcome:
        """Do what an executor, the finisher and the worker's loop do, in sequence; errors are added to `raised`."""
        chain, is_async = compose(task, self.app.middlewares, loop=None)
        held = _HeldInTest(job, task, _collecting_errors(chain, is_async, raised), is_async, self._storage)
        self._log_writer.mark_running([held])
        with capture_logging():
            returned = _call(held, self.app.settings.result_limit)
        queue = OutcomeQueue(wake=lambda: None, code_version=self.app.settings.code_version)
        queue.put(held, returned)
        ((_, outcome),) = queue.take_now(1)
        self._log_writer.write([held])
        (verdict,) = self._storage.finish([outcome])
        if verdict is not Verdict.STALE:
            self._handlers.put(job, outcome)
            raised += self._handlers.take_errors()
        return outcome

    # --- what was enqueued ----------------------------------------------------------------------------------------

    def enqueued(self, task: Task[..., Any] | str | None = None, /, **args: Any) -> list[JobHandle[Any]]:
        """All jobs enqueued since the block began, in order and in any state; with a task or arguments, only those that
        match."""
        name = None if task is None else self._name_of(task)
        wanted = self._plain(name, args)
        jobs = reversed(list(self.app.jobs(task=name)))
        return [job for job in jobs if self._has(job, wanted)]

    def assert_enqueued(
        self,
        task: Task[..., Any] | str,
        args: Mapping[str, Any] | None = None,
        *,
        count: int | None = None,
        delay: Duration | None = None,
    ) -> list[JobHandle[Any]]:
        """Fail unless a job of this task was enqueued with these arguments among its own; return all that match.

        `count` is the exact number of jobs. With `delay`, only jobs that were enqueued with that delay count, to the
        second; 0 means without a delay.
        """
        found = self.enqueued(task, **args or {})
        if delay is not None:
            found = [job for job in found if abs(self._delay_of(job) - microseconds(delay, "delay")) < SECOND]
        if len(found) == count or (count is None and found):
            return found
        wanted = _call_text(self._name_of(task), args or {}, delay)
        number = "no job" if not found else f"{len(found)} jobs" if len(found) > 1 else "1 job"
        verb = "were" if len(found) > 1 else "was"
        instead = "" if count is None else f" instead of {count}"
        raise AssertionError(f"{number} of {wanted} {verb} enqueued{instead}; {self._list_of_all()}")

    def assert_not_enqueued(self, task: Task[..., Any] | str, args: Mapping[str, Any] | None = None) -> None:
        """Fail if a job of this task was enqueued with these arguments among its own."""
        found = self.enqueued(task, **args or {})
        if found:
            wanted = _call_text(self._name_of(task), args or {}, None)
            raise AssertionError(f"{wanted} was enqueued, and should not have been; {self._list_of_all()}")

    def _name_of(self, task: Task[..., Any] | str) -> str:
        if isinstance(task, Task):
            if task._app is not self.app._state:
                raise BadValue(f"the task {task.name} belongs to another app")
            return task.name
        # The task may be elsewhere, but a name similar to one of ours is a mistake, which would go unnoticed.
        near = did_you_mean(task, self.app.registry.names())
        if task not in self.app.registry and near:
            raise TaskNotFound(f"there is no task {task!r}{near}")
        return task

    def _plain(self, name: str | None, args: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as they are stored."""
        if name is not None and name in self.app.registry:
            signature = self.app.registry.get(name).signature
            for each in args:
                if each not in signature.names and not signature.takes_any_name:
                    what = f"{name} has no argument {each!r}{did_you_mean(each, signature.names)}"
                    raise BadArguments(what, argument=each)
        plain: dict[str, Any] = msgspec.json.decode(encode_args(args))
        return plain

    def _has(self, job: JobHandle[Any], wanted: Mapping[str, Any]) -> bool:
        known = job.task in self.app.registry
        defaults = self.app.registry.get(job.task).signature.plain_defaults if known else {}
        args = {**msgspec.json.decode(encode_args(defaults)), **job.args}
        return all(name in args and args[name] == value for name, value in wanted.items())

    def _delay_of(self, job: JobHandle[Any]) -> int:
        """The delay with which it was enqueued."""
        (added,) = [event for event in job.events() if event.kind is Kind.ADDED]
        due_at: int = (added.data or {}).get("due_at", added.at)
        return due_at - added.at

    def _list_of_all(self) -> str:
        jobs = self.enqueued()
        if not jobs:
            return "nothing was"
        lines = [f"\n  {_call_text(job.task, job.args, self._delay_of(job) / SECOND)}" for job in jobs[:_SHOWN]]
        more = f"\n  … and {len(jobs) - _SHOWN} more" if len(jobs) > _SHOWN else ""
        return f"enqueued were:{''.join(lines)}{more}"


def _call_text(task: str, args: Mapping[str, Any], delay: Duration | None) -> str:
    shown = f"{task}({', '.join(f'{name}={value!r}' for name, value in args.items())})"
    later = 0 if delay is None else microseconds(delay)
    return f"{shown} in {span_text(later)}" if later else shown


# --- one attempt, in this thread ----------------------------------------------------------------------------------


class _HeldInTest(HeldJob):
    """A held job that notices immediately that it should stop; in a worker, the foreman reports it."""

    __slots__ = ("_storage",)

    def __init__(self, job: Job, task: RegisteredTask, chain: Chain, is_async: bool, storage: Storage) -> None:
        super().__init__(job, task, chain, is_async, WorkerStop(), now=0.0)
        self._storage = storage
        self.claim()
        self.begin(0)

    def is_stopping(self) -> bool:
        for stop in self._storage.abort_requests([_OWNER]):
            if stop.token == self.job.token and self.stop_reason is None:
                self.stop(stop.reason, "it was aborted")
        return super().is_stopping()


class _SynchronousHandlers(ResultHandlers):
    """Result handlers that are called in this thread, before `put` returns; failing ones are retried without a wait."""

    def __init__(self, app: Packhorse) -> None:
        super().__init__(app)
        self._is_closing = True  # makes all calls now, including retries
        self._errors: list[BaseException] = []

    def put(self, job: Job, outcome: Outcome) -> bool:
        if not self.wants(job.task):
            return False
        self._ended.append(EndedJob(job, outcome))
        self._work()
        return True

    def _note(self, call: HandlerCall, error: BaseException) -> None:
        super()._note(call, error)
        self._errors.append(error)

    def take_errors(self) -> list[BaseException]:
        """The errors of handlers since the last call."""
        errors, self._errors = self._errors, []
        return errors


def _call(held: HeldJob, result_limit: int) -> Outcome:
    if not held.is_async:
        return attempt.run(held.job, held.task, held.chain, held, result_limit)
    try:
        return asyncio.run(attempt.arun(held.job, held.task, held.chain, held, result_limit))
    except asyncio.CancelledError as error:
        return of_stopped(held) or attempt.failed_with(held.job, held.task, error, held.ran)


def _collecting_errors(chain: Chain, is_async: bool, raised: list[BaseException]) -> Chain:
    """The chain, which also adds its error to `raised`: the outcome keeps only its text."""

    def call(job: JobContext) -> Any:
        try:
            return chain(job)
        except BaseException as error:
            raised.append(error)
            raise

    async def acall(job: JobContext) -> Any:
        try:
            return await chain(job)
        except BaseException as error:
            raised.append(error)
            raise

    return acall if is_async else call


def _outside_event_loop(function: Callable[[], T]) -> T:
    """Call the function where no event loop runs, because it may need its own: in an async test, in another thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        has_loop = False
    else:
        has_loop = True
    if not has_loop:  # outside the `except`, which would become the context of a task's error
        return function()
    here = contextvars.copy_context()
    with ThreadPoolExecutor(1, "packhorse-testing") as thread:
        return thread.submit(here.run, function).result()
