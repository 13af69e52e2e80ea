"""What runs behind a pool: a worker in a thread of the user's own program, and what a foreman does for one.

The worker is the one that `packhorse work` starts; only its process is not its own. A worker that must give way,
because a job on a thread will not end, gives way to another one in the same process. It stays beside that one, without
slots, until all that it has begun has ended or the pool stops: so no job runs beside itself. What still runs when the
pool has stopped is handed back, and refused by every pool of this process until it has returned (`held_job.py`).
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
from packhorse.foreman.dead_workers import PROCESS_SPACE, process_space, rescue_former
from packhorse.foreman.heartbeat import ForemanRecord, boot_time
from packhorse.foreman.orders import Orders
from packhorse.foreman.rescue_guard import RescueGuard
from packhorse.monitor.stacks import STACKS_TOLD_FOR
from packhorse.storage.contract import Storage
from packhorse.storage.records import LEASE_S, TELLS_RESULTS, AbortRequest
from packhorse.worker.config import WorkerConfig, WorkerLimits
from packhorse.worker.ipc import Message
from packhorse.worker.process import WorkerProcess
from packhorse.worker.shared_status import SharedStatus
from packhorse.worker.spool import Spool

log = logging.getLogger("packhorse")

_LOOK_EVERY = 1.0
_LOOK_FOR_END = 0.5
_START_AGAIN = 1.0
"""Seconds before a worker is replaced that has ended by itself."""
_LAST_WORDS = 5.0
_LINGERS = "packhorse-pool-lingers"


class EmbeddedPool:
    """One pool from its start to its stop. Making it starts it."""

    def __init__(self, app: Packhorse, concurrency: int, queues: list[str] | None) -> None:
        self._app = app
        self._storage = app._state.open_another_storage()
        self._settings = app.settings
        self._concurrency = concurrency
        self._queues = queues
        self._is_stopping = threading.Event()
        self._changed = threading.Condition()  # when there is another worker, or none any more
        self._worker: WorkerProcess | None = None
        self._lingering: list[threading.Thread] = []  # each with a worker that has made way
        self._error: Exception | None = None  # what ended it
        # A storage that was handed in has no address by which the next program could know it.
        self._spool = Spool(None) if app._state.has_storage_object else Spool.of(app.settings)
        self._beats = _Beats(self._storage, app, concurrency, self._spool)
        self._orders = Orders(self._storage, self._beats.record, lambda: None)
        chores = all_chores(self._storage, app.settings, self._beats.trusted_time)
        if app.has_result_handlers:
            chores.append(
                CallResultHandlers(self._storage, app.settings, lambda: self._beats.record.id, self._tell_of_ended)
            )
        self._chore_runner = ChoreRunner(chores)
        self._poller = BackgroundLoop("looking ahead", self._look, longest_retry=1.0)
        self._thread = threading.Thread(target=self._run, name="packhorse-pool", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Take no more jobs, let the running ones finish within the grace, load back the rest; waits for it.
        Raises what had ended it before."""
        self._drain_soon()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _drain_soon(self) -> None:
        self._is_stopping.set()
        with self._changed:
            self._changed.notify_all()
        for worker in self._beats.workers:
            worker.drain_soon()

    def wait_until_empty(self) -> None:
        """Wait until nothing is left to run, or it has ended. Raises what ended it."""
        asked: tuple[WorkerProcess, threading.Event] | None = None
        while self.is_alive:
            with self._changed:
                worker = self._worker
                if worker is None:
                    self._changed.wait(_LOOK_FOR_END)
                    continue
            if asked is None or asked[0] is not worker:  # the one that was asked may have been replaced
                asked = worker, worker.when_empty()
            if asked[1].wait(_LOOK_FOR_END):
                if not any(each.loop.held_jobs for each in self._beats.workers if each is not worker):
                    return
                asked = None  # what still runs elsewhere may bring more
                self._is_stopping.wait(_LOOK_FOR_END)
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
        self._beats.loop.start()
        try:
            if self._is_known():
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

    def _is_known(self) -> bool:
        """Wait until the storage knows this pool. False: it will not."""
        while not self._beats.record.is_joined and not self._is_stopping.is_set():
            if self._beats.error is not None:
                self._error = self._beats.error
                log.error("the pool cannot start: %s", self._error)
                return False
            self._beats.is_heard.wait(_LOOK_FOR_END)
        return self._beats.record.is_joined

    def _work(self) -> bool:
        """One worker, until it ends. True: it has made way for the next."""
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
            foreman=self._beats.record.id,
            concurrency=self._concurrency,
            queues=self._queues,
            is_alone=True,
            in_program=True,
            limits=limits,
            spool=None if left is None else str(left),
        )
        board = _board_of(self._concurrency)
        worker = WorkerProcess(
            self._app,
            self._storage,
            config,
            shared_status=board,
            send=partial(self._beats.hear, owner),
            # The program's own loggers are not ours to make louder.
            log_level=logging.getLogger().getEffectiveLevel(),
        )
        self._beats.begin_for(worker, board)
        self._show(worker)
        if self._is_stopping.is_set():
            worker.drain_soon()
        try:
            worker.run()
        except StorageError as error:
            log.warning("a worker of the pool has ended, and another takes its place: %s", error)
        finally:
            self._show(None)
            if not worker.makes_way:
                self._end_for(owner)
        if worker.makes_way:
            self._lingering = [thread for thread in self._lingering if thread.is_alive()]
            self._lingering.append(threading.Thread(target=self._linger, args=(worker,), name=_LINGERS, daemon=True))
            self._lingering[-1].start()
            return True
        return False

    def _linger(self, worker: WorkerProcess) -> None:
        try:
            worker.linger()
        except StorageError as error:
            log.warning("a worker of the pool that had made way has ended: %s", error)
        except Exception:
            log.exception("a worker of the pool that had made way has ended")
        finally:
            self._end_for(worker.config.owner)

    def _end_for(self, owner: str) -> None:
        self._beats.end_for(owner)
        with suppress(StorageError):  # then the next pool or foreman on this machine delivers it
            self._spool.deliver(self._storage, owner)
        # The board is not closed: a job that is left on a thread may still write to it.

    def _tell_of_ended(self, jobs: Sequence[str]) -> bool:
        worker = self._worker
        if worker is not None:
            worker.handle_ended(jobs)
        return worker is not None

    def _show(self, worker: WorkerProcess | None) -> None:
        with self._changed:
            self._worker = worker
            self._changed.notify_all()

    def _look(self) -> float:
        """As a foreman's poller: one look a second on behalf of all that there is to do."""
        foreman, sent = self._beats.record.id, boot_time()
        outlook = self._storage.poll(foreman, self._beats.owners, after=self._orders.look_after(foreman))
        self._chore_runner.on_poll(outlook)
        self._orders.on_poll(outlook, foreman)
        worker = self._worker
        if worker is not None:
            worker.loop.fetcher.set_order(outlook.order)
        if outlook.queued and worker is not None:
            worker.loop.look_now()  # the storage may have told nobody
        if outlook.stops:
            self._beats.hand_on(self._storage.abort_requests(self._beats.owners))
        self._beats.note_time(sent, boot_time(), outlook.now)
        for order in self._orders.take():
            self._follow(order.do)
        self._beats.note_followed(self._orders.followed)
        return _LOOK_EVERY

    def _follow(self, do: ForemanAction) -> None:
        worker = self._worker
        if do is ForemanAction.STOP:
            log.info("the pool stops (an operator's order)")
            self._drain_soon()
        elif do is ForemanAction.QUIET and worker is not None:
            worker.quiet()
        elif do is ForemanAction.STACKS:
            for each in self._beats.workers:
                each.send_stacks(self._orders.taken or 0)
        else:
            log.warning("an operator's order to %s means nothing to a pool in a program", do.value)

    def _end(self) -> None:
        duties = (self._poller, self._orders.loop, self._chore_runner.loop, self._beats.loop)
        for loop in duties:
            loop.stop()
        deadline = time.monotonic() + _LAST_WORDS
        for loop in duties:  # a step under way would open a connection again that the program has closed by then
            loop.stop(max(0.0, deadline - time.monotonic()))
        try:
            self._beats.record.leave("stopped")
        except StorageError as error:
            log.warning("the pool has stopped, and could not tell the storage: %s", error)
        if self._storage is not self._app.storage:
            self._storage.close()


class _Member:
    """A worker, and what is known of it."""

    def __init__(self, worker: WorkerProcess, board: SharedStatus) -> None:
        self.worker = worker
        self.board = board
        self.is_online = False  # the storage knows it, and so it is to be beaten for
        self.said: dict[str, Any] = {}
        self.stacks: tuple[float, Message] | None = None  # when it said where it stands, and what

    def told(self) -> dict[str, Any]:
        """What the storage is told of it."""
        if self.stacks is None or (age := time.monotonic() - self.stacks[0]) > STACKS_TOLD_FOR:
            return self.said
        stacks = {"order": self.stacks[1]["order"], "age_s": round(age, 1), "items": self.stacks[1]["items"]}
        return {**self.said, "stacks": stacks}


class _Beats:
    """The heartbeat of a pool and of its workers, each of which has a record in the storage. There is one that works,
    the latest, and perhaps some that have made way for it."""

    def __init__(self, storage: Storage, app: Packhorse, concurrency: int, spool: Spool) -> None:
        settings = app.settings
        self._storage = storage
        self._spool = spool
        self._heartbeat = settings.heartbeat / SECOND
        about = {
            "target": "a pool in a program",
            "app": f"a pool of {' '.join(app.registry.names())}"[:NAME_LIMIT],  # there may be pools of other apps
            "min": 1,
            "max": 1,
            "concurrency": concurrency,
            "drain_s": settings.stop_grace / SECOND,
            LEASE_S: settings.lease / SECOND,
            TELLS_RESULTS: app.has_result_handlers,
            "version": __version__,
            PROCESS_SPACE: process_space(),
            IN_PROGRAM: True,
        }
        self._slots = concurrency
        self.record = ForemanRecord(storage, about)
        self.error: PackhorseError | None = None  # the storage cannot be used at all
        self.is_heard = threading.Event()
        self._members: dict[str, _Member] = {}
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

    def begin_for(self, worker: WorkerProcess, board: SharedStatus) -> None:
        """This worker begins; it is beaten for as soon as the storage knows it."""
        self._members[worker.config.owner] = _Member(worker, board)

    def end_for(self, owner: str) -> None:
        """This worker has ended."""
        del self._members[owner]

    def hear(self, owner: str, message: Message) -> None:
        """What a worker says to its foreman."""
        member = self._members.get(owner)
        if member is None:
            return
        match message.pop("say", None):
            case "online":
                member.is_online = True
                self.loop.wake()
            case "report":
                member.said = message
            case "stacks":
                member.stacks = time.monotonic(), message
                self.loop.wake()

    def step(self) -> float:
        """Beat, once the storage knows whom for."""
        if not self.record.is_joined:
            self._join()
        members = self._members.copy()
        online = {owner: member.told() for owner, member in members.items() if member.is_online}
        reports = {self.record.id: self._report(), **online}
        sent = boot_time()
        beat = self._storage.heartbeat(reports)
        received = boot_time()
        self._guard.accepted(sent, received, beat.now / SECOND)
        self.note_time(sent, received, beat.now)
        if self.record.id in beat.unknown:
            self._guard.interrupted()
            self.record.renew()
            return 0.0
        for owner, member in members.items():
            if owner in beat.unknown:
                member.worker.quit()  # what it holds belongs to others now
            else:
                member.board.beat()
        self.hand_on(beat.stops)
        return self._heartbeat

    def _join(self) -> None:
        try:
            if self.record.is_first:
                self._spool.deliver(self._storage)  # before the jobs of those who left it here are taken back
                rescue_former(self._storage)
            self.record.join()
        except PackhorseError as error:
            if not self.record.may_wait(error):
                self.error = error
                self.loop.stop()
            raise
        finally:
            self.is_heard.set()

    def hand_on(self, stops: list[AbortRequest]) -> None:
        """Jobs that should stop. Again and again until they have ended: the worker may not know of them yet."""
        members = self._members.copy()
        for stop in stops:
            if (member := members.get(stop.token.owner)) is not None:
                member.worker.loop.stop_job(stop.token.job_id, stop.token.fence, stop.reason)

    def note_followed(self, order: int | None) -> None:
        """This was the latest order that was followed; whoever gave it waits for a heartbeat that says so."""
        if order != self._followed:
            self._followed = order
            self.loop.wake()

    def note_time(self, sent: float, received: float, now: int) -> None:
        """What the storage's clock showed, at some moment between these two."""
        self._seen = sent, received, now

    def trusted_time(self) -> int | None:
        """The storage's time, if it can be believed that who seems silent is. See `Heartbeat.trusted_time`."""
        sent, received, now = self._seen
        if self._guard.may_rescue(boot_time()) and self._guard.agrees(sent, received, now / SECOND):
            return now
        return None

    def _report(self) -> dict[str, Any]:
        followed = self._followed  # first: what an order has changed must not be missing in what is read after it
        members = list(self._members.copy().values())
        is_online = any(member.is_online for member in members)
        state = "stopping" if members and members[-1].said.get("state") == "quiet" else "working"
        numbers = {"crew": 1, "online": int(is_online), "wanted": 1, "min": 1, "max": 1, "slots": self._slots}
        return {
            "state": state,
            **numbers,
            "busy": sum(member.said.get("busy", 0) for member in members),
            "steady": self._guard.may_rescue(boot_time()),
            "order": followed,
        }


def _board_of(slots: int) -> SharedStatus:
    """A board that is only in memory: nobody else will look at it, and nothing is left behind."""
    descriptor, name = tempfile.mkstemp(prefix="packhorse-pool-")
    os.close(descriptor)
    path = Path(name)
    try:
        return SharedStatus.create(path, slots)
    finally:
        path.unlink(missing_ok=True)
