"""The executor pool: where the jobs of a worker run. It has the tasks, the slots, and the executors behind them.

The fetcher makes held jobs here, the loop lines them up, the timeouts stop them. Which executor a job gets, whether it
may run in this process, and whether short jobs run one after the other is decided here and nowhere else.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence

from packhorse.client.app import Packhorse
from packhorse.core.job import Job
from packhorse.core.outcome import Released
from packhorse.core.task import RegisteredTask, TaskOptions
from packhorse.worker.config import WorkerConfig
from packhorse.worker.executors import Executor
from packhorse.worker.executors.coroutine import CoroutineExecutor
from packhorse.worker.executors.fork_server import ForkServer
from packhorse.worker.executors.process import ProcessExecutor
from packhorse.worker.executors.slots import PendingStarts, Slots
from packhorse.worker.executors.thread import ThreadExecutor
from packhorse.worker.finisher import OutcomeQueue
from packhorse.worker.held_job import HeldJob, WorkerStop
from packhorse.worker.middleware import Chain, compose, is_async
from packhorse.worker.pace import Pace
from packhorse.worker.queues import ServedQueues
from packhorse.worker.shared_status import SharedStatus

LEASE_IN_DANGER = 0.8
"""The part of a lease without a heartbeat after which a worker begins nothing more."""


class ExecutorPool:
    """Of one worker. Outcomes go into `outcomes`. `report_stuck` is called with the reason if the whole process must be
    replaced. Isolated jobs need a fork server; without one they run beside the others."""

    def __init__(
        self,
        app: Packhorse,
        config: WorkerConfig,
        outcomes: OutcomeQueue,
        report_stuck: Callable[[str], None],
        *,
        shared_status: SharedStatus | None = None,
        fork_server: ForkServer | None = None,
    ) -> None:
        self.outcomes = outcomes
        self.report_stuck = report_stuck
        limits, result_limit = config.limits, app.settings.result_limit
        self.tasks = {task.name: task for task in app.registry}
        self.served_queues = ServedQueues(self.tasks.values(), config.queues)
        self.pace = Pace(config.concurrency)
        self.starts = PendingStarts(outcomes.wake)
        self.slots = Slots(shared_status, config.concurrency, self._first_executor_of)
        self.threads = ThreadExecutor(self.slots, outcomes, result_limit, report_stuck)
        self.coroutines = CoroutineExecutor(self.slots, outcomes, result_limit)
        self.children: ProcessExecutor | None = None
        if fork_server is not None:
            self.children = ProcessExecutor(
                fork_server, self.slots, outcomes, max_jobs=limits.max_jobs_per_child, report_stuck=report_stuck
            )
        self._app = app
        self._shared_status = shared_status
        self._longest_silence = limits.lease * LEASE_IN_DANGER
        self._chains: dict[str, tuple[Chain, bool]] = {}
        self._stop = WorkerStop()

    # --- beginning ------------------------------------------------------------------------------------------------

    def hold(self, job: Job) -> HeldJob:
        """A held job for a reserved job. Raises TaskNotFound."""
        task = self.tasks.get(job.task) or self._app.registry.get(job.task)
        chain, is_async = self._chain_of(task)
        return HeldJob(job, task, chain, is_async, self._stop, time.monotonic())

    def _chain_of(self, task: RegisteredTask) -> tuple[Chain, bool]:
        if task.name not in self._chains:
            self._chains[task.name] = compose(task, self._app.middlewares, self.coroutines.loop)
        return self._chains[task.name]

    def line_up(self, held_jobs: Sequence[HeldJob]) -> None:
        """Begin these jobs as soon as there are slots. If all are short and run on threads, they go one after the other
        through one slot."""
        durations = self.pace.tasks
        kinds = {(held.task.name, held.is_async) for held in held_jobs}
        long = {task for task, _ in kinds if durations.are_long(task)}
        for held in held_jobs:
            if held.job.losses > 0 or held.job.max_halts <= 1 or held.task.name in long:
                held.starts_first = True
        are_short = all(not is_async and durations.are_short(task) for task, is_async in kinds)
        if are_short:
            shorten_switch_interval()
        else:
            restore_switch_interval()
        self.slots.line_up(held_jobs, narrow=are_short)

    def widen(self) -> None:
        """A short job takes longer than the others did: let those that wait use all slots."""
        restore_switch_interval()
        self.slots.widen()

    def executor_of(self, held: HeldJob) -> Executor:
        """The executor that runs the job."""
        if self.children is not None and is_isolated(held.task, held.job):
            return self.children
        return self.coroutines if held.is_async else self.threads

    def _first_executor_of(self, held: HeldJob) -> Executor:
        """The executor that gets the job when it has a slot."""
        return self.starts if held.starts_first else self.executor_of(held)

    def may_begin(self) -> bool:
        """False while the foreman's heartbeats do not get through: others may be about to take over these jobs."""
        return self._shared_status is None or self._shared_status.beat_age() < self._longest_silence

    def note_look(self) -> None:
        """This worker enforces time limits; the foreman need not."""
        if self._shared_status is not None:
            self._shared_status.note_look()

    # --- ending ---------------------------------------------------------------------------------------------------

    def hand_back(self, held: HeldJob, why: str) -> bool:
        """Release this job uncounted, unless it has begun: the claim decides who has it."""
        if not held.claim():
            return False
        self.slots.give_up(held)
        self.outcomes.put(held, Released(held.job.token, why))
        return True

    def ask_to_stop(self) -> None:
        """From now on every check-in answers that the job should stop."""
        self._stop.is_wanted = True
        if self.children is not None:
            self.children.ask_to_stop()

    def interrupt(self, held_jobs: Iterable[HeldJob] = ()) -> None:
        """The grace period is over: stop these jobs, whatever they do."""
        self._stop.is_wanted = self._stop.is_forced = True
        for held in held_jobs:
            self.executor_of(held).stop(held, hard=False)

    @property
    def is_interrupting(self) -> bool:
        """Is the grace period over?"""
        return self._stop.is_forced

    def close(self) -> None:
        """End the executors: no more jobs will come."""
        self._stop.is_forced = True  # a job that is cancelled from now on was interrupted, and has not failed
        for executor in (self.threads, self.coroutines, self.children):
            if executor is not None:
                executor.close()


def is_isolated(task: RegisteredTask, job: Job | None = None) -> bool:
    """Does this task run in a child process?

    A plain function with a time limit does, unless its options say otherwise: nothing else can end it for sure. So does
    a task with a memory limit, and a job whose worker died while it ran: if that job is the cause, it takes no other
    along again.
    """
    options = task.options
    if options.isolate is not None:
        return options.isolate
    if job is not None and job.halts > 0:
        return True
    if options.memory_limit is not None:
        return True
    if not _has_time_limit(options) and (job is None or not _has_time_limit(job)):
        return False
    return not is_async(task.function)


def _has_time_limit(limited: TaskOptions | Job) -> bool:
    return bool(limited.timeout or limited.idle_timeout)


# --- the interpreter lock ---------------------------------------------------------------------------------------------

SHORT_INTERVAL = 0.000_7
"""Seconds. The loop takes the interpreter lock a few times in each round trip to the storage. A thread that runs short
jobs one after the other would make it wait for milliseconds each time. Much less is worse: the two threads would only
pass the lock to and fro, and drain a quarter fewer jobs."""

_usual_intervals: list[float] = []  # the interval before it was shortened; one pop is one atomic step


def shorten_switch_interval() -> None:
    """Make threads pass the interpreter lock on sooner. Threads that compute lose by it."""
    if not _usual_intervals:
        _usual_intervals.append(sys.getswitchinterval())
        sys.setswitchinterval(SHORT_INTERVAL)


def restore_switch_interval() -> None:
    """Undo `shorten_switch_interval`; costs next to nothing if there is nothing to undo."""
    if _usual_intervals:
        sys.setswitchinterval(_usual_intervals.pop())
