"""The worker process: puts the parts together, and ends in order.

    storage ⇄ loop: fetcher → executor pool (threads, event loop, children) → attempt → finisher

The loop runs in the main thread, where signals arrive. The foreman's messages come in on a thread of their own.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from packhorse.client.announcements import announce
from packhorse.client.app import Packhorse
from packhorse.core.errors import BadValue, StorageError, StorageUnavailable, WorkerNotFound
from packhorse.core.job import Reason
from packhorse.core.version import __version__
from packhorse.monitor.served_queues import SERVES
from packhorse.monitor.stacks import Stack, limit_stacks
from packhorse.monitor.text import count_text
from packhorse.storage.contract import Storage
from packhorse.storage.records import LEASE_S, START, WorkerInfo
from packhorse.worker.config import WorkerConfig
from packhorse.worker.executors.fork_server import ForkServer
from packhorse.worker.executors.pool import ExecutorPool
from packhorse.worker.finisher import OutcomeQueue
from packhorse.worker.held_job import HeldJob
from packhorse.worker.ipc import EXIT_STUCK, Message
from packhorse.worker.job_log import JobLogWriter
from packhorse.worker.logging import capture_logging
from packhorse.worker.loop import Wakeup, WorkerLoop
from packhorse.worker.pace import LONGEST_WAIT
from packhorse.worker.results import ResultHandlers
from packhorse.worker.shared_status import SharedStatus
from packhorse.worker.spool import OutcomeSpooler, SpoolFile
from packhorse.worker.stacks import coroutine_text, dump_stacks, thread_stacks, title_of
from packhorse.worker.stats import WorkerStats

log = logging.getLogger("packhorse.worker")

HAND_BACK = 0.5
"""Seconds at least for handing back the jobs that still run, and for outcomes that come in meanwhile."""


class _EmptyRequest:
    """A caller waits until nothing is left to run."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.is_fresh = True  # answers of the storage from before the request do not count


class WorkerProcess:
    """One worker. `run` returns the exit code; `send` sends the foreman a message. What jobs log through `logging`,
    from `log_level` on, goes into their own logs too."""

    def __init__(
        self,
        app: Packhorse,
        storage: Storage,
        config: WorkerConfig,
        *,
        shared_status: SharedStatus | None = None,
        fork_server: ForkServer | None = None,
        send: Callable[[Message], object] = lambda message: None,
        log_level: int = logging.INFO,
    ) -> None:
        self.app = app
        self.config = config
        self._owner = config.owner
        self._limits = config.limits
        self._storage = storage
        self._send = send
        self._log_level = log_level
        self._empty_requests: deque[_EmptyRequest] = deque()
        self._drain_until: float | None = None
        self._stuck_reason: str | None = None  # why the whole process must be replaced
        self._stuck_at = 0.0
        self.makes_way = False  # in a program: another worker may start, and `linger` takes over this one
        self._lingers = False
        self._leave_reason = "stopped"  # operators read it; the foreman sends a better one
        self._quits = self._drains = False
        self._found_nothing = False  # in a burst: it exits because nothing is left to run
        self._handlers = ResultHandlers(app)
        wakeup = Wakeup(storage)
        outcomes = OutcomeQueue(wakeup.wake, app.settings.code_version, shared_status=shared_status)
        self.executors = ExecutorPool(
            app, config, outcomes, self._report_stuck, shared_status=shared_status, fork_server=fork_server
        )
        log_writer = JobLogWriter(storage, app.settings.keep_log_lines)
        on_stored = self._handlers.put if app.has_result_handlers else None
        spool = SpoolFile(Path(config.spool)) if config.spool is not None else None
        self._spooler = OutcomeSpooler(spool, outcomes.unwritten, outcomes.waiting_for)
        self.loop = WorkerLoop(storage, config, self.executors, log_writer, wakeup, self._spooler, on_stored)
        self._stats = WorkerStats(
            self.loop, config.concurrency, send, self._limits.max_rss, storage.measured, storage.connections
        )

    # --- life -----------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Work until told to stop, or until a fresh worker should take over."""
        self._join_patiently()
        with capture_logging(self._log_level):
            return self._work()

    def linger(self) -> int:
        """After `run` has ended with `makes_way`: keep the worker's record, without slots, until all that began here
        has ended. While the record exists, no job that still runs here begins elsewhere."""
        self._lingers, self.makes_way = True, False
        with suppress(StorageError):  # then its record shows slots that it does not use
            self._storage.join(self._record(slots=0))
        return self._work()

    def _work(self) -> int:
        self._spooler.start()
        try:
            while not (self._is_over() or self.makes_way):
                self.loop.turn(LONGEST_WAIT)
                self._stats.report()
                self._check_limits()
        except WorkerNotFound:
            log.error("worker %s counts as dead: its heartbeats were late; its jobs belong to others now", self._owner)
            return 1
        finally:
            if not self.makes_way:
                self._close()
        return EXIT_STUCK if self._stuck_reason else 0

    def _join_patiently(self) -> None:
        """Wait for a storage that is away, as a running worker does."""
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
        has_foreman = self.config.foreman is not None and not self.config.is_alone  # a foreman announces the order
        # First: it may take long if many earlier jobs change, and heartbeats begin only once this worker is online.
        announce(self._storage, self.app.announcements(), None if has_foreman else self.app.settings.chosen_order)
        self.loop.fetcher.look_for_queues()
        self._storage.join(self._record(self.config.concurrency))
        self.loop.fetcher.set_order(self._storage.poll(self._owner, []).order)
        self.app.put_schedules()  # a new version of the app may have brought some
        served_queues = self.executors.served_queues
        self._send(
            {
                "say": "online",
                "pid": os.getpid(),
                "tasks": sorted(self.executors.tasks),
                "queues": served_queues.queues,
                SERVES: served_queues.description,
            }
        )

    def _record(self, slots: int) -> WorkerInfo:
        return WorkerInfo(
            self._owner,
            foreman=self.config.foreman,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=sorted(self.executors.served_queues.own),
            concurrency=slots,
            info=self._about(),
        )

    def _about(self) -> dict[str, Any]:
        about = {
            "tasks": sorted(self.executors.tasks),
            "python": sys.version.split()[0],
            "version": __version__,
            LEASE_S: self._limits.lease,
            SERVES: self.executors.served_queues.description,
            START: self._owner,  # the id is new for every process
        }
        version = self.app.settings.code_version
        return about if version is None else {**about, "code_version": version}

    def _is_over(self) -> bool:
        if self._quits:
            return True
        if self._stuck_reason is not None and not self.config.in_program:
            self._drain(self._limits.other_jobs)
        elif self._drains:
            self.drain()
        if self._empty_requests:
            self._answer_if_empty()
        if self._drain_until is None and self._stuck_reason is not None:
            return self._has_no_runs()
        if self._drain_until is None:
            self._found_nothing = self.config.burst and self._is_empty()
            return self._found_nothing
        if not self.loop.held_jobs and not self.loop.outcomes:
            return True
        return self._interrupt_overdue(time.monotonic())

    def _has_no_runs(self) -> bool:
        """Can a stuck worker in a program end? Nothing ends what runs on its threads, so it waits for all of them.
        Another worker may start when only jobs are left that were given up, or the other jobs have had their time."""
        self.loop.hand_back_waiting("its worker takes no more jobs")
        has_jobs = bool(self.loop.held_jobs or self.loop.outcomes)
        if not has_jobs and not self.loop.has_given_up_runs:
            return True
        is_time_over = time.monotonic() >= self._stuck_at + self._limits.other_jobs
        self.makes_way = not self._lingers and (is_time_over or not has_jobs)
        return False

    def _is_empty(self) -> bool:
        """Is nothing left to run, here and in the storage?"""
        return not self.loop.held_jobs and self.loop.fetcher.found_nothing and not self.loop.fetcher.look_for_queues()

    def when_empty(self) -> threading.Event:
        """Return an event that is set as soon as nothing is left to run, here and in the storage, which is asked
        again."""
        request = _EmptyRequest()
        self._empty_requests.append(request)
        self.loop.wakeup.wake()
        return request.event

    def _answer_if_empty(self) -> None:
        is_empty = not any(request.is_fresh for request in self._empty_requests) and self._is_empty()
        for request in list(self._empty_requests):
            if is_empty:
                request.event.set()
                self._empty_requests.remove(request)
            elif request.is_fresh:
                request.is_fresh = False
                self.loop.fetcher.ask_again()

    def _interrupt_overdue(self, now: float) -> bool:
        """Interrupt the jobs that still run when the grace period is over. True: they have had time to end."""
        assert self._drain_until is not None
        if now < self._drain_until:
            return False
        if not self.executors.is_interrupting:
            self._drain_until = now + self._limits.abort_grace
            self.executors.interrupt(list(self.loop.held_jobs.values()))
            return False
        return True

    def _close(self) -> None:
        """Write the last outcomes, and hand back what is left before the threads end: better to run a job twice than to
        lose it."""
        self.loop.hand_back_waiting("its worker ends")
        self.executors.close()
        until = time.monotonic() + self._limits.abort_grace
        with suppress(StorageError):
            self.loop.write_rest(until)
            self._handlers.close(timeout=max(0.0, until - time.monotonic()))
            with suppress(BadValue):  # the figures may be too large for the storage
                self._storage.record_stat(self._owner, self._stats.figures())
            # Last, so that a job that has returned by now keeps its outcome. The handlers may have used up the grace.
            until = max(until, time.monotonic() + HAND_BACK)
            self.loop.hand_back_running("its worker was told to stop", until)
            self._storage.leave(self._owner, why=self._stuck_reason or self._leave_reason)
        if left := len(self.loop.outcomes):
            consequence = "the next start here delivers them" if self._spooler.keep() else "their jobs will run again"
            log.error("could not deliver %d outcomes: the storage is away; %s", left, consequence)
        self._spooler.close()
        self._log_unreturned(self.loop.leave_running())
        counts = {"done": self.loop.finisher.done, "failed": self.loop.finisher.failed}
        why = self._stuck_reason or "drained"
        self._send({"say": "leaving", "why": why, **counts, "found_nothing": self._found_nothing})

    def _log_unreturned(self, jobs: Sequence[str]) -> None:
        if jobs:
            message = (
                "the pool's worker has ended, and %s in this program: %s; no pool of this program begins such a job"
                " again before its run returns, but another program may"
            )
            log.warning(message, count_text(len(jobs), "job still runs", "jobs still run"), ", ".join(jobs))

    # --- orders of the foreman, and signals -----------------------------------------------------------------------

    def drain(self) -> None:
        """Take no more jobs, let the running ones finish within the grace period, then exit. Check-ins say so from now
        on."""
        self._drain(self._limits.stop_grace)

    def _drain(self, grace: float) -> None:
        until = time.monotonic() + grace
        if self._drain_until is None:
            self._drain_until = until
            self.loop.outcomes.is_stopping = True
            self.quiet()
            self.executors.ask_to_stop()
            self.loop.hand_back_waiting("its worker was told to stop")
        elif not self.executors.is_interrupting:
            # A stopping worker that gets stuck waits for its jobs no longer than any stuck worker.
            self._drain_until = min(self._drain_until, until)

    def drain_soon(self) -> None:
        """`drain`, from a signal handler: set a flag; the main thread does the rest between two turns."""
        self._drains = True
        self.loop.wakeup.wake()

    def quiet(self) -> None:
        """Take no more jobs."""
        self.loop.fetcher.takes_jobs = False
        self.loop.wakeup.wake()

    def quit(self) -> None:
        """Exit now; the running jobs are handed back."""
        self.executors.interrupt()
        self._quits = True
        self.loop.fetcher.takes_jobs = False
        self.loop.wakeup.wake()

    def handle(self, message: Message) -> None:
        """A message from the foreman."""
        self._leave_reason = message.get("why") or self._leave_reason
        match message.get("do"):
            case "drain":
                self.drain_soon()
            case "quit":
                self.quit()
            case "quiet":
                self.quiet()
            case "stop":
                self.loop.stop_job(message["job_id"], message["fence"], Reason(message["reason"]))
            case "serve":
                self.loop.serve(message["queues"])
            case "order":
                self.loop.fetcher.set_order(message["order"])
            case "ended":
                self.handle_ended(message["jobs"])
            case "look":
                self.loop.look_now()
            case "dump":
                dump_stacks()
            case "stacks":
                self.send_stacks(int(message["order"]))

    def handle_ended(self, jobs: Sequence[str]) -> None:
        """Call the result handlers for these jobs, which ended in no worker of ours."""
        self._handlers.put_ended(jobs)

    def send_stacks(self, order: int) -> None:
        """Send the stacks of all threads and coroutines. The stacks of child processes follow, each when it answers."""
        waiting = [(held, coroutine_text(coroutine)) for held, coroutine in self.executors.coroutines.coroutines()]
        found = [*(Stack(title_of(held), text, held.job.id) for held, text in waiting if text), *thread_stacks()]

        def send_child(held: HeldJob, text: str) -> None:
            child = Stack(title_of(held), text, held.job.id)
            self._send({"say": "stack", "order": order, "stack": msgspec.to_builtins(child)})

        children = self.executors.children
        busy = children.busy if children is not None else 0
        self._send({"say": "stacks", "order": order, "items": msgspec.to_builtins(limit_stacks(found)), "more": busy})
        if children is not None:
            children.ask_stacks(send_child)  # last: the foreman drops a child's stack that comes before the others

    # --- reasons to be replaced -----------------------------------------------------------------------------------

    def _report_stuck(self, why: str) -> None:
        """A job does not end, so the whole process must be replaced; its other jobs get a while to finish. From any
        thread: set a flag, as `drain_soon`."""
        if self._stuck_reason is None:
            log.error("%s; this worker will be replaced", why)
            self._stuck_at = time.monotonic()
            self._stuck_reason = why
            self._send({"say": "stuck", "why": why})
            self.quiet()

    def _check_limits(self) -> None:
        if self._drain_until is not None:
            return
        if self._limits.max_jobs is not None and self.loop.finisher.done >= self._limits.max_jobs:
            self._make_way(f"it has run {self.loop.finisher.done} jobs")
        elif self._limits.max_rss is not None and self._stats.rss > self._limits.max_rss:
            self._make_way(f"it has grown to {self._stats.rss:,} bytes")

    def _make_way(self, why: str) -> None:
        log.info("this worker will be replaced: %s", why)
        self._send({"say": "leaving", "why": why, "done": self.loop.finisher.done})
        self.drain()
