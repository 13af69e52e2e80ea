"""The worker process: puts the parts together, and ends in order.

    storage ⇄ loop → executor pool (threads, event loop, children) → attempt → finisher → loop

The loop runs in the main thread, where signals arrive; the foreman's messages come in on a thread of their own.
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
from packhorse.worker.capture import capture_logging
from packhorse.worker.config import WorkerConfig
from packhorse.worker.executors.fork_server import ForkServer
from packhorse.worker.executors.pool import ExecutorPool
from packhorse.worker.fetcher import LONGEST_WAIT
from packhorse.worker.finisher import Finisher
from packhorse.worker.held_job import HeldJob
from packhorse.worker.ipc import CONDEMNED, Message
from packhorse.worker.job_log_writer import JobLogWriter
from packhorse.worker.loop import WorkerLoop
from packhorse.worker.results import ResultHandlers
from packhorse.worker.shared_status import SharedStatus
from packhorse.worker.spool import SpoolFile
from packhorse.worker.spooler import OutcomeSpooler
from packhorse.worker.stacks import coroutine_text, dump_stacks, thread_stacks, title_of
from packhorse.worker.stats import WorkerStats
from packhorse.worker.wakeup import Wakeup

log = logging.getLogger("packhorse.worker")

HAND_BACK = 0.5
"""Seconds at least for handing back what still runs, and for the outcomes of what ends in that moment."""


class _EmptyRequest:
    """Somebody wants to know when nothing is left to run."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.has_looked = False  # whatever was found before it was asked does not count


class WorkerProcess:
    """One worker. `run` returns the exit code; `say` sends the foreman a message. What jobs write by `logging`, from
    `log_level` on, goes into their own logs too."""

    def __init__(
        self,
        app: Packhorse,
        storage: Storage,
        config: WorkerConfig,
        *,
        shared_status: SharedStatus | None = None,
        fork_server: ForkServer | None = None,
        say: Callable[[Message], object] = lambda message: None,
        log_level: int = logging.INFO,
    ) -> None:
        self.app = app
        self.config = config
        self._owner = config.owner
        self._limits = config.limits
        self._storage = storage
        self._say = say
        self._log_level = log_level
        self._asked_when_empty: deque[_EmptyRequest] = deque()
        self._drain_until: float | None = None
        self._condemned: str | None = None
        self._condemned_at = 0.0
        self.makes_way = False  # in a program: another may begin beside it, and `linger` goes on from here
        self._lingers = False
        self._told_why = "stopped"  # the foreman says more, which is what operators read about this worker's end
        self._quits = self._drains = False
        self._found_nothing = False  # in a burst: that is why it ends
        self._handlers = ResultHandlers(app)
        wakeup = Wakeup(storage)
        finisher = Finisher(wakeup.ring, app.settings.code_version, shared_status=shared_status)
        self.executors = ExecutorPool(
            app, config, finisher, self._condemn, shared_status=shared_status, fork_server=fork_server
        )
        log_writer = JobLogWriter(storage, app.settings.keep_log_lines)
        on_stored = self._handlers.put if app.has_result_handlers else None
        spool = SpoolFile(Path(config.spool)) if config.spool is not None else None
        self._spooler = OutcomeSpooler(spool, finisher)
        self.loop = WorkerLoop(storage, config, self.executors, log_writer, wakeup, on_stored, self._spooler)
        self._stats = WorkerStats(
            self.loop, config.concurrency, say, self._limits.max_rss, storage.measured, storage.connections
        )

    # --- life -----------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Work until told to stop, or until there is a reason to make room for a fresh worker."""
        self._join_patiently()
        with capture_logging(self._log_level):
            return self._work()

    def linger(self) -> int:
        """After `run` has ended because it makes way: keep the record, without slots, until all that began here has
        ended. As long as it is there, no job whose last run goes on here begins elsewhere."""
        self._lingers, self.makes_way = True, False
        with suppress(StorageError):  # then it is shown with slots that it does not use
            self._storage.join(self._record(slots=0))
        return self._work()

    def _work(self) -> int:
        self._spooler.start()
        try:
            while not (self._is_over() or self.makes_way):
                self.loop.turn(LONGEST_WAIT)
                self._stats.tell()
                self._look_at_limits()
        except WorkerNotFound:
            log.error(
                "worker %s was struck off: it had fallen silent; what it holds belongs to others now", self._owner
            )
            return 1
        finally:
            if not self.makes_way:
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
        has_foreman = self.config.foreman is not None and not self.config.is_alone  # which has said so
        # First: many earlier jobs may have to be settled, and nobody beats for this worker before it is online.
        announce(self._storage, self.app.announcements(), None if has_foreman else self.app.settings.chosen_order)
        self.loop.look_for_queues()
        self._storage.join(self._record(self.config.concurrency))
        self.loop.follow(self._storage.poll(self._owner, []).order)
        self.app.put_schedules()  # also those that came with the file just saved, or the version just deployed
        served_queues = self.executors.served_queues
        self._say(
            {
                "say": "online",
                "pid": os.getpid(),
                "tasks": sorted(self.executors.tasks),
                "queues": served_queues.queues,
                SERVES: served_queues.told,
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
            SERVES: self.executors.served_queues.told,
            START: self._owner,  # an id of ours is new for every process
        }
        version = self.app.settings.code_version
        return about if version is None else {**about, "code_version": version}

    def _is_over(self) -> bool:
        if self._quits:
            return True
        if self._condemned is not None and not self.config.in_program:
            self._drain(self._limits.neighbours)
        elif self._drains:
            self.drain()
        if self._asked_when_empty:
            self._tell_if_empty()
        if self._drain_until is None and self._condemned is not None:
            return self._has_ended_all()
        if self._drain_until is None:
            self._found_nothing = self.config.burst and self._is_empty()
            return self._found_nothing
        if not self.loop.held_jobs and not self.loop.finisher:
            return True
        return self._end_what_is_left(time.monotonic())

    def _has_ended_all(self) -> bool:
        """Of a condemned worker in a program, where nothing ends what runs on a thread: it lets all of it end. Another
        worker may begin when only runs that were given up are left, or its other jobs have had their time."""
        self.loop.hand_all_back("its worker takes no more jobs")
        has_jobs = bool(self.loop.held_jobs or self.loop.finisher)
        if not has_jobs and not self.loop.has_run_on:
            return True
        is_time_over = time.monotonic() >= self._condemned_at + self._limits.neighbours
        self.makes_way = not self._lingers and (is_time_over or not has_jobs)
        return False

    def _is_empty(self) -> bool:
        """For `--burst`: nothing here, and nothing in the storage that could be run now."""
        return not self.loop.held_jobs and self.loop.found_nothing and not self.loop.look_for_queues()

    def tell_when_empty(self) -> threading.Event:
        """An event that is set as soon as nothing is left to run: nothing here, and nothing in the storage that could
        be run now, as it is asked anew."""
        asked = _EmptyRequest()
        self._asked_when_empty.append(asked)
        self.loop.wakeup.ring()
        return asked.event

    def _tell_if_empty(self) -> None:
        is_empty = all(asked.has_looked for asked in self._asked_when_empty) and self._is_empty()
        for asked in list(self._asked_when_empty):
            if is_empty:
                asked.event.set()
                self._asked_when_empty.remove(asked)
            elif not asked.has_looked:
                asked.has_looked = True
                self.loop.look_again()

    def _end_what_is_left(self, now: float) -> bool:
        assert self._drain_until is not None
        if now < self._drain_until:
            return False
        if not self.executors.is_cutting_short:
            # The grace is over, and whoever still runs a moment later is handed back.
            self._drain_until = now + self._limits.abort_grace
            self.executors.cut_short(list(self.loop.held_jobs.values()))
            return False
        return True

    def _close(self) -> None:
        """Write down what the jobs came to, and hand back what is left: better to run a job twice than to lose it."""
        self.loop.hand_all_back("its worker ends")
        self.executors.close()
        until = time.monotonic() + self._limits.abort_grace
        with suppress(StorageError):
            self.loop.write_down_the_rest(until)
            self._handlers.close(timeout=max(0.0, until - time.monotonic()))
            with suppress(BadValue):  # what it has done may be too long to be told; it leaves all the same
                self._storage.record_stat(self._owner, self._stats.figures())
            # Last, for whoever returned until now has an outcome; result handlers may have used up all of the grace.
            until = max(until, time.monotonic() + HAND_BACK)
            self.loop.hand_back_the_running("its worker was told to stop", until)
            self._storage.leave(self._owner, why=self._condemned or self._told_why)
        if left := len(self.loop.finisher):
            kept = "the next start here delivers them" if self._spooler.keep() else "their jobs will run again"
            log.error("%d outcomes could not be delivered: the storage is away; %s", left, kept)
        self._spooler.close()
        self._tell_of_unreturned(self.loop.leave_the_running())
        counts = {"done": self.loop.done, "failed": self.loop.failed}
        why = self._condemned or "drained"
        self._say({"say": "leaving", "why": why, **counts, "found_nothing": self._found_nothing})

    def _tell_of_unreturned(self, jobs: Sequence[str]) -> None:
        if jobs:
            told = (
                "the pool's worker has ended, and %s in this program: %s; no pool of this program begins such a job"
                " again before its run returns, but another program may"
            )
            log.warning(told, count_text(len(jobs), "run goes on", "runs go on"), ", ".join(jobs))

    # --- what the foreman and signals may ask ---------------------------------------------------------------------

    def drain(self) -> None:
        """Take no more jobs, let the running ones finish within the grace, then end. Check-ins say so from now on."""
        self._drain(self._limits.stop_grace)

    def _drain(self, grace: float) -> None:
        until = time.monotonic() + grace
        if self._drain_until is None:
            self._drain_until = until
            self.loop.finisher.is_stopping = True
            self.quiet()
            self.executors.ask_to_stop()
            self.loop.hand_all_back("its worker was told to stop")
        elif not self.executors.is_cutting_short:
            # One that was told to stop, and is condemned while it waits for its jobs, waits no longer than any other.
            self._drain_until = min(self._drain_until, until)

    def drain_soon(self) -> None:
        """`drain`, from a signal handler: only a mark, the loop does the rest between two steps."""
        self._drains = True
        self.loop.wakeup.ring()

    def quiet(self) -> None:
        """Take no more jobs."""
        self.loop.takes_jobs = False
        self.loop.wakeup.ring()

    def quit(self) -> None:
        """End now; what runs is handed back."""
        self.executors.cut_short()
        self._quits = True
        self.loop.takes_jobs = False
        self.loop.wakeup.ring()

    def handle(self, message: Message) -> None:
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
                self.loop.stop_job(message["job_id"], message["fence"], Reason(message["reason"]))
            case "serve":
                self.loop.serve(message["queues"])
            case "order":
                self.loop.follow(message["order"])
            case "ended":
                self.tell_of_ended(message["jobs"])
            case "look":
                self.loop.look_now()
            case "dump":
                dump_stacks()
            case "stacks":
                self.tell_stacks(int(message["order"]))

    def tell_of_ended(self, jobs: Sequence[str]) -> None:
        """Call the result handlers for these jobs, which have ended in no worker of ours."""
        self._handlers.put_ended(jobs)

    def tell_stacks(self, order: int) -> None:
        """Where everything stands here. What runs in children follows, each when it answers."""
        waiting = [(held, coroutine_text(coroutine)) for held, coroutine in self.executors.coroutines.coroutines()]
        found = [*(Stack(title_of(held), text, held.job.id) for held, text in waiting if text), *thread_stacks()]

        def tell(held: HeldJob, text: str) -> None:
            child = Stack(title_of(held), text, held.job.id)
            self._say({"say": "stack", "order": order, "stack": msgspec.to_builtins(child)})

        children = self.executors.children
        busy = children.busy if children is not None else 0
        self._say({"say": "stacks", "order": order, "items": msgspec.to_builtins(limit_stacks(found)), "more": busy})
        if children is not None:
            children.ask_stacks(tell)  # only now: the foreman drops the answer to what it has not heard of yet

    # --- what comes after -----------------------------------------------------------------------------------------

    def _condemn(self, why: str) -> None:
        """A job will not end: finish what is beside it for a while, then make room for a fresh process. Only a mark, as
        with `drain_soon`, for it may come from any thread."""
        if self._condemned is None:
            log.error("%s; this worker will be replaced", why)
            self._condemned_at = time.monotonic()
            self._condemned = why
            self._say({"say": "condemned", "why": why})
            self.quiet()

    def _look_at_limits(self) -> None:
        if self._drain_until is not None:
            return
        if self._limits.max_jobs is not None and self.loop.done >= self._limits.max_jobs:
            self._make_room(f"it has run {self.loop.done} jobs")
        elif self._limits.max_rss is not None and self._stats.rss > self._limits.max_rss:
            self._make_room(f"it has grown to {self._stats.rss:,} bytes")

    def _make_room(self, why: str) -> None:
        log.info("this worker makes room for a fresh one: %s", why)
        self._say({"say": "leaving", "why": why, "done": self.loop.done})
        self.drain()
