"""The worker process: puts the parts together, and ends in order.

    storage ⇄ desk → executors (threads, event loop, children) → attempt → finisher → desk

The desk runs in the main thread, where signals arrive; the foreman's messages come in on a thread of their own.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from packhorse import __version__
from packhorse.app import Packhorse
from packhorse.board import Board
from packhorse.errors import StorageError, StorageUnavailable, WorkerNotFound
from packhorse.job import Job, Reason
from packhorse.middleware import Chain, compose, is_async
from packhorse.outcome import Outcome
from packhorse.results import ResultHandlers
from packhorse.stacks import Stack, cut
from packhorse.storage.contract import Storage
from packhorse.storage.records import WorkerInfo
from packhorse.task import RegisteredTask, TaskOptions
from packhorse.worker.capture import capture_logging
from packhorse.worker.desk import Desk
from packhorse.worker.executors import Executor
from packhorse.worker.executors.coroutine import CoroutineExecutor
from packhorse.worker.executors.process import ProcessExecutor
from packhorse.worker.executors.thread import ThreadExecutor
from packhorse.worker.fetcher import Fetcher
from packhorse.worker.nursery import Nursery
from packhorse.worker.report import Report, dump_stacks
from packhorse.worker.seat import Seat
from packhorse.worker.slots import Slots
from packhorse.worker.stacks import coroutine_text, thread_stacks, title_of

log = logging.getLogger("packhorse.worker")

CONDEMNED = 70
"""Exit code of a worker that must be replaced because a job of its would not end."""
WRITING_DOWN = 1.0
"""Seconds that a condemned worker has, in the end, to write down what it knows."""
LEASE_IN_DANGER = 0.8
"""The part of a lease without a heartbeat after which a worker begins nothing more."""


class Limits(msgspec.Struct, frozen=True):
    """When a worker makes room for a fresh one, and how patient it is."""

    max_jobs: int | None = None
    max_rss: int | None = None  # bytes
    stop_grace: float = 30.0
    abort_grace: float = 2.0
    lease: float = 15.0
    neighbours: float = 10.0  # seconds that other jobs get when the worker is condemned

    @property
    def last_seconds(self) -> float:
        """The longest that a condemned worker lives: its other jobs finish, are then asked to end, and all is written
        down, while handlers of results get their time."""
        return self.neighbours + 2 * self.abort_grace + WRITING_DOWN


class WorkerProcess:
    """One worker. `run` returns the exit code."""

    def __init__(
        self,
        app: Packhorse,
        storage: Storage,
        owner: str,
        *,
        concurrency: int = 10,
        queues: list[str] | None = None,
        foreman: str | None = None,
        board: Board | None = None,
        limits: Limits | None = None,
        say: Callable[[dict[str, Any]], object] = lambda message: None,
        burst: bool = False,
        nursery: Nursery | None = None,
        max_jobs_per_child: int | None = None,
    ) -> None:
        self.app = app
        self.owner = owner
        self.concurrency = concurrency
        self.limits = limits or Limits()
        self._storage = storage
        self._foreman = foreman
        self._board = board
        self._say = say
        self._burst = burst
        self._tasks = {task.name: task for task in app.registry if queues is None or task.queue in queues}
        self.queues = _weights(self._tasks.values())
        self._chains: dict[str, tuple[Chain, bool]] = {}
        self._stopping: list[bool] = []  # shared with the seats: non-empty asks the jobs to end
        self._drain_until: float | None = None
        self._condemned: str | None = None
        self._told_why = "stopped"  # the foreman says more, which is what operators read about this worker's end
        self._quits = False
        self._drains = False
        self._handlers = ResultHandlers(app)
        slots = Slots(board, concurrency, self._executor_of)
        self.desk = Desk(
            storage,
            owner,
            self.queues,
            Fetcher(concurrency),
            self._executor_of,
            slots,
            self._seat_for,
            abort_grace=self.limits.abort_grace,
            last_seconds=self.limits.last_seconds,
            keep_lines=app.settings.keep_log_lines,
            max_jobs=self.limits.max_jobs,
            may_begin=self._may_begin,
            on_stored=self._on_stored if app.has_result_handlers else None,
            condemn=self._condemn,
            lend=lambda work: self._threads.lend(work),
            code_version=app.settings.code_version,
        )
        self._report = Report(self.desk, concurrency, say, self.limits.max_rss, storage.measured)
        limit = app.settings.result_limit
        self._threads = ThreadExecutor(slots, self.desk.finisher, limit, self._condemn)
        self._coroutines = CoroutineExecutor(slots, self.desk.finisher, limit)
        self._children: ProcessExecutor | None = None
        if nursery is not None:
            self._children = ProcessExecutor(
                nursery, slots, self.desk.finisher, max_jobs=max_jobs_per_child, condemn=self._condemn
            )

    # --- life -----------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Work until told to stop, or until there is a reason to make room for a fresh worker."""
        self._join_patiently()
        try:
            with capture_logging():
                while not self._is_over():
                    self.desk.turn()
                    self._report.tell()
                    self._look_at_limits()
        except WorkerNotFound:
            log.error("worker %s was struck off: it had fallen silent; what it holds belongs to others now", self.owner)
            return 1
        finally:
            self._close()
        return CONDEMNED if self._condemned else 0

    def _join_patiently(self) -> None:
        """A worker that is started while the storage is away waits for it, as a working one does."""
        pause = 0.05
        while not (self._quits or self._drains):
            try:
                self._join()
            except StorageUnavailable as error:
                log.warning("the storage does not answer; this worker waits for it: %s", error)
                time.sleep(random.uniform(0.5, 1.0) * pause)
                pause = min(5.0, pause * 2)
            else:
                return

    def _join(self) -> None:
        self._storage.join(
            WorkerInfo(
                self.owner,
                foreman=self._foreman,
                host=socket.gethostname(),
                pid=os.getpid(),
                queues=sorted(self.queues),
                concurrency=self.concurrency,
                info=self._about(),
            )
        )
        self._storage.announce([task for task in self.app.announcements() if task.name in self._tasks])
        self.app.put_schedules()  # also those that came with the file just saved, or the version just deployed
        self._say({"say": "online", "pid": os.getpid(), "tasks": sorted(self._tasks), "queues": self.queues})

    def _about(self) -> dict[str, Any]:
        about = {"tasks": sorted(self._tasks), "python": sys.version.split()[0], "version": __version__}
        version = self.app.settings.code_version
        return about if version is None else {**about, "code_version": version}

    def _is_over(self) -> bool:
        if self._quits:
            return True
        if self._condemned is not None:
            self._drain(self.limits.neighbours)
        elif self._drains:
            self.drain()
        if self._drain_until is None:
            return self._burst and self._is_empty()
        if not self.desk.seats and not self.desk.finisher:
            return True
        return self._end_what_is_left(time.monotonic())

    def _is_empty(self) -> bool:
        """For `--burst`: nothing here, and nothing in the storage that could be run now."""
        return not self.desk.seats and self.desk.found_nothing

    def _end_what_is_left(self, now: float) -> bool:
        assert self._drain_until is not None
        if now < self._drain_until:
            return False
        if not self._stopping:
            # The grace is over: check-ins answer True from here on, and whoever still runs a moment later is handed
            # back by leaving. That counts nowhere.
            self._stopping.append(True)
            self._drain_until = now + self.limits.abort_grace
            for seat in list(self.desk.seats.values()):
                self._executor_of(seat).stop(seat, hard=False)
            return False
        return True

    def _close(self) -> None:
        """Hand back whatever is left before ending the threads: better to run a job twice than to lose it."""
        self.desk.hand_all_back("its worker ends")
        for executor in (self._threads, self._coroutines, self._children):
            if executor is not None:
                executor.close()
        with suppress(StorageError):
            self.desk.write_down_the_rest()
            self._handlers.close(timeout=self.limits.abort_grace)
            self._storage.record_stat(self.owner, self._report.figures())
            self._storage.leave(self.owner, why=self._condemned or self._told_why)
        self._say({"say": "leaving", "why": self._condemned or "drained", "done": self.desk.done})

    # --- what the foreman and signals may ask ---------------------------------------------------------------------

    def drain(self) -> None:
        """Take no more jobs, let the running ones finish within the grace, then end."""
        self._drain(self.limits.stop_grace)

    def _drain(self, grace: float) -> None:
        until = time.monotonic() + grace
        if self._drain_until is None:
            self._drain_until = until
            self.quiet()
            self.desk.hand_all_back("its worker was told to stop")
        elif not self._stopping:
            # One that was told to stop, and is condemned while it waits for its jobs, waits no longer than any other.
            self._drain_until = min(self._drain_until, until)

    def drain_soon(self) -> None:
        """`drain`, from a signal handler: only a mark, the desk does the rest between two steps."""
        self._drains = True
        self.desk.ring()

    def quiet(self) -> None:
        """Take no more jobs."""
        self.desk.takes_jobs = False
        self.desk.ring()

    def quit(self) -> None:
        """End now; what runs is handed back."""
        self._stopping.append(True)
        self._quits = True
        self.desk.takes_jobs = False
        self.desk.ring()

    def handle(self, message: dict[str, Any]) -> None:
        """A message from the foreman."""
        self._told_why = message.get("why") or self._told_why
        match message.get("do"):
            case "drain":
                self.drain_soon()
            case "quit":
                self.quit()
            case "quiet":
                self.quiet()
            case "stop":
                self.desk.stop_job(message["job_id"], message["fence"], Reason(message["reason"]))
            case "dump":
                dump_stacks()
            case "stacks":
                self._tell_stacks(int(message["order"]))

    def _tell_stacks(self, order: int) -> None:
        """Where everything stands here. What runs in children follows, each when it answers."""
        waiting = [(seat, coroutine_text(coroutine)) for seat, coroutine in self._coroutines.coroutines()]
        found = [*(Stack(title_of(seat), text, seat.job.id) for seat, text in waiting if text), *thread_stacks()]

        def tell(seat: Seat, text: str) -> None:
            child = Stack(title_of(seat), text, seat.job.id)
            self._say({"say": "stack", "order": order, "stack": msgspec.to_builtins(child)})

        busy = self._children.busy if self._children is not None else 0
        self._say({"say": "stacks", "order": order, "items": msgspec.to_builtins(cut(found)), "more": busy})
        if self._children is not None:
            self._children.ask_stacks(tell)  # only now: the foreman drops the answer to what it has not heard of yet

    # --- seating --------------------------------------------------------------------------------------------------

    def _seat_for(self, job: Job) -> Seat:
        task = self._tasks.get(job.task) or self.app.registry.get(job.task)
        chain, is_async = self._chain_of(task)
        return Seat(job, task, chain, is_async, self._stopping, time.monotonic())

    def _chain_of(self, task: RegisteredTask) -> tuple[Chain, bool]:
        if task.name not in self._chains:
            self._chains[task.name] = compose(task, self.app.middlewares, self._coroutines.loop)
        return self._chains[task.name]

    def _executor_of(self, seat: Seat) -> Executor:
        if self._children is not None and is_isolated(seat.task, seat.job):
            return self._children
        return self._coroutines if seat.is_async else self._threads

    def _may_begin(self) -> bool:
        """Not while the foreman's heartbeats do not get through: others may be about to take over what we hold."""
        return self._board is None or self._board.beat_age() < self.limits.lease * LEASE_IN_DANGER

    # --- what comes after -----------------------------------------------------------------------------------------

    def _on_stored(self, seat: Seat, outcome: Outcome) -> None:
        self._handlers.put(seat.job, outcome)

    def _condemn(self, why: str) -> None:
        """A job will not end: finish what is beside it for a while, then make room for a fresh process. Only a mark, as
        with `drain_soon`, for it may come from any thread."""
        if self._condemned is None:
            log.error("%s; this worker will be replaced", why)
            self._condemned = why
            self._say({"say": "condemned", "why": why})
            self.quiet()

    def _look_at_limits(self) -> None:
        if self._drain_until is not None:
            return
        if self.limits.max_jobs is not None and self.desk.done >= self.limits.max_jobs:
            self._make_room(f"it has run {self.desk.done} jobs")
        elif self.limits.max_rss is not None and self._report.rss > self.limits.max_rss:
            self._make_room(f"it has grown to {self._report.rss:,} bytes")

    def _make_room(self, why: str) -> None:
        log.info("this worker makes room for a fresh one: %s", why)
        self._say({"say": "leaving", "why": why, "done": self.desk.done})
        self.drain()


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
    return limited.timeout is not None or limited.idle_timeout is not None


def _weights(tasks: Any) -> dict[str, int]:
    """The queues of these tasks; one that several tasks share has the weight of the heaviest."""
    weights: dict[str, int] = {}
    for task in tasks:
        weights[task.queue] = max(weights.get(task.queue, 1), task.options.weight)
    return weights
