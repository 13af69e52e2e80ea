"""The executor pool: where the jobs of a worker run. Its tasks with their chains, its slots, and the executors behind
them.

The loop held jobs jobs and has them line up here; the timeouts ends them here. Which executor a job gets, and whether
it may
run in this very process, is decided here and nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from packhorse.client.app import Packhorse
from packhorse.core.job import Job
from packhorse.core.outcome import Released
from packhorse.core.task import RegisteredTask, TaskOptions
from packhorse.worker.config import WorkerConfig
from packhorse.worker.executors import Executor
from packhorse.worker.executors.coroutine import CoroutineExecutor
from packhorse.worker.executors.fork_server import ForkServer
from packhorse.worker.executors.process import ProcessExecutor
from packhorse.worker.executors.slots import Slots
from packhorse.worker.executors.starts import PendingStarts
from packhorse.worker.executors.thread import ThreadExecutor
from packhorse.worker.finisher import Finisher
from packhorse.worker.held_job import HeldJob, WorkerStop
from packhorse.worker.middleware import Chain, compose, is_async
from packhorse.worker.queues import ServedQueues
from packhorse.worker.shared_status import SharedStatus

LEASE_IN_DANGER = 0.8
"""The part of a lease without a heartbeat after which a worker begins nothing more."""


class ExecutorPool:
    """Of one worker. Outcomes go into the `finisher`; `condemn` is told why the whole process must be replaced, if it
    must. Isolated jobs need a fork server; without one they run beside the others."""

    def __init__(
        self,
        app: Packhorse,
        config: WorkerConfig,
        finisher: Finisher,
        condemn: Callable[[str], None],
        *,
        shared_status: SharedStatus | None = None,
        fork_server: ForkServer | None = None,
    ) -> None:
        self.finisher = finisher
        self.condemn = condemn
        limits, result_limit = config.limits, app.settings.result_limit
        self.tasks = {task.name: task for task in app.registry}
        self.served_queues = ServedQueues(self.tasks.values(), config.queues)
        self.starts = PendingStarts(finisher.ring)
        self.slots = Slots(shared_status, config.concurrency, self._first_executor_of)
        self.threads = ThreadExecutor(self.slots, finisher, result_limit, condemn)
        self.coroutines = CoroutineExecutor(self.slots, finisher, result_limit)
        self.children: ProcessExecutor | None = None
        if fork_server is not None:
            self.children = ProcessExecutor(
                fork_server, self.slots, finisher, max_jobs=limits.max_jobs_per_child, condemn=condemn
            )
        self._app = app
        self._shared_status = shared_status
        self._longest_silence = limits.lease * LEASE_IN_DANGER
        self._chains: dict[str, tuple[Chain, bool]] = {}
        self._stop = WorkerStop()

    # --- seating --------------------------------------------------------------------------------------------------

    def hold(self, job: Job) -> HeldJob:
        """A held job for a job that was reserved. Raises TaskNotFound."""
        task = self.tasks.get(job.task) or self._app.registry.get(job.task)
        chain, is_async = self._chain_of(task)
        return HeldJob(job, task, chain, is_async, self._stop, time.monotonic())

    def _chain_of(self, task: RegisteredTask) -> tuple[Chain, bool]:
        if task.name not in self._chains:
            self._chains[task.name] = compose(task, self._app.middlewares, self.coroutines.loop)
        return self._chains[task.name]

    def executor_of(self, held: HeldJob) -> Executor:
        """The one that runs it."""
        if self.children is not None and is_isolated(held.task, held.job):
            return self.children
        return self.coroutines if held.is_async else self.threads

    def _first_executor_of(self, held: HeldJob) -> Executor:
        """The one that gets it when it has a slot."""
        return self.starts if held.starts_first else self.executor_of(held)

    def may_begin(self) -> bool:
        """Not while the foreman's heartbeats do not get through: others may be about to take over what we hold."""
        return self._shared_status is None or self._shared_status.beat_age() < self._longest_silence

    def note_look(self) -> None:
        """Time limits are looked at, which the foreman does not have to do."""
        if self._shared_status is not None:
            self._shared_status.note_look()

    # --- ending ---------------------------------------------------------------------------------------------------

    def hand_back(self, held: HeldJob, why: str) -> bool:
        """Hand this job back uncounted, unless it has begun: the claim decides who has it."""
        if not held.claim():
            return False
        self.slots.give_up(held)
        self.finisher.put(held, Released(held.job.token, why))
        return True

    def ask_to_stop(self) -> None:
        """From here on every check-in answers that the job should stop."""
        self._stop.is_wanted = True
        if self.children is not None:
            self.children.ask_to_stop()

    def cut_short(self, held_jobs: Iterable[HeldJob] = ()) -> None:
        """The grace is over: whatever these do, they are told to end."""
        self._stop.is_wanted = self._stop.is_forced = True
        for held in held_jobs:
            self.executor_of(held).stop(held, hard=False)

    @property
    def is_cutting_short(self) -> bool:
        """Is the grace over?"""
        return self._stop.is_forced

    def close(self) -> None:
        """No more will come."""
        self._stop.is_forced = True  # whatever is cancelled from here on was cut short, and has not failed
        for executor in (self.threads, self.coroutines, self.children):
            if executor is not None:
                executor.close()


def is_isolated(task: RegisteredTask, job: Job | None = None) -> bool:
    """Does this task run in a child process? A plain function with a time limit does, unless it says otherwise: nothing
    else can end it for sure. So does whatever has a limit of memory, and a job whose worker died under it: should it be
    the one that kills, it takes nobody else along again."""
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
