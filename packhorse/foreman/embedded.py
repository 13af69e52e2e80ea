"""The implementation of a pool: a worker in a thread of the user's own program, and what a foreman does for it.

The worker is that of `packhorse work`, without a process of its own. A worker with a job that does not end is replaced
by another one in the same process. It stays beside that one, without slots, until its jobs have ended or the pool
stops, so no job runs twice. Jobs that still run when the pool has stopped are released, and every pool of this process
rejects them until they have returned.
"""

from __future__ import annotations

import logging
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from packhorse.client.app import Packhorse
from packhorse.core.clock import SECOND
from packhorse.core.errors import PackhorseError, StorageError
from packhorse.core.event import IN_PROGRAM, ForemanAction
from packhorse.core.task import NAME_LIMIT
from packhorse.core.version import __version__
from packhorse.foreman.background import BackgroundLoop
from packhorse.foreman.chores import all_chores
from packhorse.foreman.chores.call_result_handlers import CallResultHandlers
from packhorse.foreman.chores.runner import ChoreRunner
from packhorse.foreman.dead_workers import PROCESS_SPACE, process_space, rescue_dead_processes
from packhorse.foreman.heartbeat import ForemanRecord, boot_time
from packhorse.foreman.poller import Orders
from packhorse.foreman.rescue_guard import RescueGuard
from packhorse.monitor.stacks import STACKS_TOLD_FOR
from packhorse.storage.contract import Storage
from packhorse.storage.records import HAS_RESULT_HANDLERS, LEASE_S, AbortRequest
from packhorse.worker.config import WorkerConfig, WorkerLimits
from packhorse.worker.ipc import Message
from packhorse.worker.process import WorkerProcess
from packhorse.worker.shared_status import SharedStatus
from packhorse.worker.spool import Spool

log = logging.getLogger("packhorse")

_POLL_EVERY = 1.0
_CHECK_EVERY = 0.5
_START_AGAIN = 1.0
"""Seconds before a worker that has ended by itself is replaced."""
_EXIT_TIMEOUT = 5.0
_LINGERING = "packhorse-pool-lingers"


class EmbeddedPool:
    """A pool from its start to its stop; the constructor starts it."""

    def __init__(self, app: Packhorse, concurrency: int, queues: list[str] | None) -> None:
        self._app = app
        self._storage = app._state.open_another_storage()
        self._settings = app.settings
        self._concurrency = concurrency
        self._queues = queues
        self._is_stopping = threading.Event()
        self._changed = threading.Condition()  # there is another worker, or none any more
        self._worker: WorkerProcess | None = None
        self._lingering: list[threading.Thread] = []  # of workers that were replaced
        self._error: Exception | None = None  # the error that ended it
        # A storage object has no address by which another program could find its outcomes.
        self._spool = Spool(None) if app._state.has_storage_object else Spool.of(app.settings)
        self._heartbeats = _PoolHeartbeat(self._storage, app, concurrency, self._spool)
        self._orders = Orders(self._storage, self._heartbeats.record, lambda: None)
        chores = all_chores(self._storage, app.settings, self._heartbeats.trusted_time)
        if app.has_result_handlers:
            chores.append(
                CallResultHandlers(
                    self._storage, app.settings, lambda: self._heartbeats.record.id, self._call_result_handlers
                )
            )
        self._chore_runner = ChoreRunner(chores)
        self._poller = BackgroundLoop("looking ahead", self._look, longest_retry=1.0)
        self._thread = threading.Thread(target=self._run, name="packhorse-pool", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Take no more jobs, let the running ones finish within the grace, release the rest, and return. Raises the
        error that had ended it before."""
        self._drain_soon()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _drain_soon(self) -> None:
        self._is_stopping.set()
        with self._changed:
            self._changed.notify_all()
        for worker in self._heartbeats.workers:
            worker.drain_soon()

    def wait_until_empty(self) -> None:
        """Wait until nothing is left to run, or the pool has ended. Raises the error that ended it."""
        asked: tuple[WorkerProcess, threading.Event] | None = None
        while self.is_alive:
            with self._changed:
                worker = self._worker
                if worker is None:
                    self._changed.wait(_CHECK_EVERY)
                    continue
            if asked is None or asked[0] is not worker:  # the earlier one was replaced
                asked = worker, worker.when_empty()
            if asked[1].wait(_CHECK_EVERY):
                if not any(each.loop.held_jobs for each in self._heartbeats.workers if each is not worker):
                    return
                asked = None  # a job that still runs elsewhere may enqueue more
                self._is_stopping.wait(_CHECK_EVERY)
        if self._error is not None:
            raise self._error

    # --- in its own thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            self._error = error
            log.exception("the pool has ended: %s", type(error).__name__)

    def _serve(self) -> None:
        self._heartbeats.loop.start()
        try:
            if self._wait_until_joined():
                for loop in (self._chore_runner.loop, self._orders.loop, self._poller):
                    loop.start()
                while not self._is_stopping.is_set():
                    if not self._work():
                        self._is_stopping.wait(_START_AGAIN)
        finally:
            self._drain_soon()
            for thread in self._lingering:
                thread.join()
            self._end()

    def _wait_until_joined(self) -> bool:
        """Wait until the storage knows this pool; return whether it does."""
        while not self._heartbeats.record.is_joined and not self._is_stopping.is_set():
            if self._heartbeats.error is not None:
                self._error = self._heartbeats.error
                log.error("the pool cannot start: %s", self._error)
                return False
            self._heartbeats.is_heard.wait(_CHECK_EVERY)
        return self._heartbeats.record.is_joined

    def _work(self) -> bool:
        """Run one worker until it ends; return whether it was replaced because of a job that does not end."""
        settings = self._settings
        limits = WorkerLimits(
            stop_grace=settings.stop_grace / SECOND,
            abort_grace=settings.abort_grace / SECOND,
            lease=settings.lease / SECOND,
        )
        owner = secrets.token_urlsafe(16)
        left = self._spool.path_of(owner)
        config = WorkerConfig(
            owner,
            foreman=self._heartbeats.record.id,
            concurrency=self._concurrency,
            queues=self._queues,
            is_alone=True,
            in_program=True,
            limits=limits,
            spool=None if left is None else str(left),
        )
        status = _make_status(self._concurrency)
        worker = WorkerProcess(
            self._app,
            self._storage,
            config,
            shared_status=status,
            send=partial(self._heartbeats.receive_message, owner),
            # The program's own loggers keep their level.
            log_level=logging.getLogger().getEffectiveLevel(),
        )
        self._heartbeats.add_worker(worker, status)
        self._set_worker(worker)
        if self._is_stopping.is_set():
            worker.drain_soon()
        try:
            worker.run()
        except StorageError as error:
            log.warning("a worker of the pool has ended, and another replaces it: %s", error)
        finally:
            self._set_worker(None)
            if not worker.makes_way:
                self._end_worker_of(owner)
        if worker.makes_way:
            self._lingering = [thread for thread in self._lingering if thread.is_alive()]
            self._lingering.append(threading.Thread(target=self._linger, args=(worker,), name=_LINGERING, daemon=True))
            self._lingering[-1].start()
            return True
        return False

    def _linger(self, worker: WorkerProcess) -> None:
        try:
            worker.linger()
        except StorageError as error:
            log.warning("a replaced worker of the pool has ended: %s", error)
        except Exception:
            log.exception("a replaced worker of the pool has ended")
        finally:
            self._end_worker_of(worker.config.owner)

    def _end_worker_of(self, owner: str) -> None:
        self._heartbeats.remove_worker(owner)
        with suppress(StorageError):  # the next pool or foreman on this machine delivers it
            self._spool.deliver(self._storage, owner)
        # The shared status stays open: a job that is left on a thread may still write to it.

    def _call_result_handlers(self, jobs: Sequence[str]) -> bool:
        worker = self._worker
        if worker is not None:
            worker.handle_ended(jobs)
        return worker is not None

    def _set_worker(self, worker: WorkerProcess | None) -> None:
        with self._changed:
            self._worker = worker
            self._changed.notify_all()

    def _look(self) -> float:
        """The poller of a pool: one read a second for all its threads."""
        foreman, sent = self._heartbeats.record.id, boot_time()
        result = self._storage.poll(foreman, self._heartbeats.owners, after=self._orders.poll_after(foreman))
        self._chore_runner.on_poll(result)
        self._orders.on_poll(result, foreman)
        worker = self._worker
        if worker is not None:
            worker.loop.fetcher.set_order(result.order)
        if result.queued and worker is not None:
            worker.loop.look_now()  # the storage may not have woken it
        if result.stops:
            self._heartbeats.forward(self._storage.abort_requests(self._heartbeats.owners))
        self._heartbeats.note_time(sent, boot_time(), result.now)
        for order in self._orders.take():
            self._follow_order(order.do)
        self._heartbeats.note_followed(self._orders.followed)
        return _POLL_EVERY

    def _follow_order(self, do: ForemanAction) -> None:
        worker = self._worker
        if do is ForemanAction.STOP:
            log.info("the pool stops (an operator's order)")
            self._drain_soon()
        elif do is ForemanAction.QUIET and worker is not None:
            worker.quiet()
        elif do is ForemanAction.STACKS:
            for each in self._heartbeats.workers:
                each.send_stacks(self._orders.taken or 0)
        else:
            log.warning("a pool in a program cannot follow an operator's order to %s", do.value)

    def _end(self) -> None:
        threads = (self._poller, self._orders.loop, self._chore_runner.loop, self._heartbeats.loop)
        for loop in threads:
            loop.stop()
        deadline = time.monotonic() + _EXIT_TIMEOUT
        for loop in threads:  # a running step would open a connection that the program closes now
            loop.stop(max(0.0, deadline - time.monotonic()))
        try:
            self._heartbeats.record.leave("stopped")
        except StorageError as error:
            log.warning("the pool has stopped, but cannot update the storage: %s", error)
        if self._storage is not self._app.storage:
            self._storage.close()


class _PoolWorker:
    """A worker of the pool, with its reports."""

    def __init__(self, worker: WorkerProcess, status: SharedStatus) -> None:
        self.worker = worker
        self.status = status
        self.is_online = False  # the storage knows it, so it gets heartbeats
        self.report: dict[str, Any] = {}
        self.stacks: tuple[float, Message] | None = None  # its stacks, and when it sent them

    def stored_report(self) -> dict[str, Any]:
        """Its report for the storage."""
        if self.stacks is None or (age := time.monotonic() - self.stacks[0]) > STACKS_TOLD_FOR:
            return self.report
        stacks = {"order": self.stacks[1]["order"], "age_s": round(age, 1), "items": self.stacks[1]["items"]}
        return {**self.report, "stacks": stacks}


class _PoolHeartbeat:
    """Sends the heartbeats of a pool and of its workers, each of which has a record in the storage: the current worker
    and perhaps some that it has replaced."""

    def __init__(self, storage: Storage, app: Packhorse, concurrency: int, spool: Spool) -> None:
        settings = app.settings
        self._storage = storage
        self._spool = spool
        self._heartbeat = settings.heartbeat / SECOND
        about = {
            "target": "a pool in a program",
            "app": f"a pool of {' '.join(app.registry.names())}"[:NAME_LIMIT],  # tells pools of different apps apart
            "min": 1,
            "max": 1,
            "concurrency": concurrency,
            "drain_s": settings.stop_grace / SECOND,
            LEASE_S: settings.lease / SECOND,
            HAS_RESULT_HANDLERS: app.has_result_handlers,
            "version": __version__,
            PROCESS_SPACE: process_space(),
            IN_PROGRAM: True,
        }
        self._slots = concurrency
        self.record = ForemanRecord(storage, about)
        self.error: PackhorseError | None = None  # the storage cannot be used at all
        self.is_heard = threading.Event()
        self._members: dict[str, _PoolWorker] = {}
        self._guard = RescueGuard(settings.lease / SECOND, self._heartbeat)
        self._seen = (0.0, 0.0, 0)
        self._followed: int | None = None
        self.loop = BackgroundLoop("the heartbeat", self.step, longest_retry=min(1.0, self._heartbeat / 5))

    @property
    def owners(self) -> list[str]:
        return [owner for owner, member in self._members.copy().items() if member.is_online]

    @property
    def workers(self) -> list[WorkerProcess]:
        return [member.worker for member in self._members.copy().values()]

    def add_worker(self, worker: WorkerProcess, status: SharedStatus) -> None:
        """A worker starts; it gets heartbeats once the storage knows it."""
        self._members[worker.config.owner] = _PoolWorker(worker, status)

    def remove_worker(self, owner: str) -> None:
        """A worker has ended."""
        del self._members[owner]

    def receive_message(self, owner: str, message: Message) -> None:
        """Process a message of a worker."""
        member = self._members.get(owner)
        if member is None:
            return
        match message.pop("say", None):
            case "online":
                member.is_online = True
                self.loop.wake()
            case "report":
                member.report = message
            case "stacks":
                member.stacks = time.monotonic(), message
                self.loop.wake()

    def step(self) -> float:
        """Send the heartbeat, once the storage knows the pool."""
        if not self.record.is_joined:
            self._join()
        members = self._members.copy()
        online = {owner: member.stored_report() for owner, member in members.items() if member.is_online}
        reports = {self.record.id: self._report(), **online}
        sent = boot_time()
        beat = self._storage.heartbeat(reports)
        received = boot_time()
        self._guard.accepted(sent, received, beat.now / SECOND)
        self.note_time(sent, received, beat.now)
        if self.record.id in beat.unknown:
            self._guard.interrupted()
            self.record.change_id()
            return 0.0
        for owner, member in members.items():
            if owner in beat.unknown:
                member.worker.quit()  # others have its jobs by now
            else:
                member.status.beat()
        self.forward(beat.stops)
        return self._heartbeat

    def _join(self) -> None:
        try:
            if self.record.is_first:
                self._spool.deliver(self._storage)  # before the jobs of their workers are rescued
                rescue_dead_processes(self._storage)
            self.record.join()
        except PackhorseError as error:
            if not self.record.may_retry(error):
                self.error = error
                self.loop.stop()
            raise
        finally:
            self.is_heard.set()

    def forward(self, stops: list[AbortRequest]) -> None:
        """Stop these jobs. The requests come again until the jobs have ended: the worker may not have a job yet."""
        members = self._members.copy()
        for stop in stops:
            if (member := members.get(stop.token.owner)) is not None:
                member.worker.loop.stop_job(stop.token.job_id, stop.token.fence, stop.reason)

    def note_followed(self, order: int | None) -> None:
        """An order was followed; the operator waits for a heartbeat that says so."""
        if order != self._followed:
            self._followed = order
            self.loop.wake()

    def note_time(self, sent: float, received: float, now: int) -> None:
        """The storage's clock showed `now` at some moment between these two."""
        self._seen = sent, received, now

    def trusted_time(self) -> int | None:
        """The storage's time, if this pool may rescue by it. See `Heartbeat.trusted_time`."""
        sent, received, now = self._seen
        if self._guard.may_rescue(boot_time()) and self._guard.agrees(sent, received, now / SECOND):
            return now
        return None

    def _report(self) -> dict[str, Any]:
        followed = self._followed  # read first: the facts below must include the effect of this order
        members = list(self._members.copy().values())
        is_online = any(member.is_online for member in members)
        state = "stopping" if members and members[-1].report.get("state") == "quiet" else "working"
        numbers = {"crew": 1, "online": int(is_online), "wanted": 1, "min": 1, "max": 1, "slots": self._slots}
        return {
            "state": state,
            **numbers,
            "busy": sum(member.report.get("busy", 0) for member in members),
            "steady": self._guard.may_rescue(boot_time()),
            "order": followed,
        }


def _make_status(slots: int) -> SharedStatus:
    """A shared status in memory only: no other process reads it, and nothing is left behind."""
    descriptor, name = tempfile.mkstemp(prefix="packhorse-pool-")
    os.close(descriptor)
    path = Path(name)
    try:
        return SharedStatus.create(path, slots)
    finally:
        path.unlink(missing_ok=True)
