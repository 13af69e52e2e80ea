"""The foreman: the process behind `packhorse work`. Keeps its workers running until it must stop.

The main thread runs one loop: read messages of workers and signals, collect the workers that have ended, start and stop
workers to reach the wanted number. It never waits for the storage; the heartbeat, the exits of dead workers, the poller
and the chores do, each in a thread of its own. Several foremen share a storage without knowing each other.
"""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from packhorse.core.clock import SECOND
from packhorse.core.errors import PackhorseError
from packhorse.core.event import ForemanAction, ForemanOrder
from packhorse.core.outcome import Overrun
from packhorse.core.settings import Settings
from packhorse.core.version import __version__
from packhorse.foreman.chores.chore import Chore, EndWorker, StuckJobs, TrustedTime
from packhorse.foreman.chores.runner import ChoreRunner
from packhorse.foreman.dead_workers import PROCESS_SPACE, ExitRecorder, process_space
from packhorse.foreman.heartbeat import ForemanRecord, Heartbeat, boot_time
from packhorse.foreman.liveness import NO_CHECK_IN, CheckInTarget, Liveness
from packhorse.foreman.poller import Backlog, Orders, Poller
from packhorse.foreman.processes import Launch, RollingRestart, WorkerExit, WorkerGroup, remove_stale_directories
from packhorse.foreman.scaling import YOUNG, CrashBackoff, Scaler, ScalingPlan
from packhorse.foreman.signals import (
    DUMP,
    QUIET,
    RESTART,
    STOP,
    Signals,
    Terminal,
    detach_from_terminal,
    has_terminal,
)
from packhorse.foreman.worker_handle import WorkerHandle
from packhorse.monitor.local_liveness import StatusFile
from packhorse.monitor.stats import connections_report
from packhorse.storage.contract import Storage
from packhorse.storage.records import HAS_RESULT_HANDLERS, LEASE_S
from packhorse.worker.processes import signal_on_parents_exit
from packhorse.worker.spool import Spool

log = logging.getLogger("packhorse")

_TICK = 1.0
_LEASE_IN_DANGER = 0.8
"""The part of a lease without a heartbeat after which a worker stopped by a signal is killed."""
_ORDERED = "an operator's order"
_STUCK = 15.0
"""A foreman whose loop has not turned for so many seconds, or for a lease if that is longer, counts as stuck."""
_EXIT_TIMEOUT = 5.0
"""Seconds for the last writes to the storage."""


class Foreman:
    """One foreman. `run` returns the exit code; other threads may call `send_signal`.

    With `burst` it ends when its workers, started with the same option, find nothing more to run. It stops when
    `parent`, the process that started it, has ended. With `gives_up`, workers that keep dying young are not restarted
    before the next SIGHUP. `check_in_target` is called every minute. `announce` runs when it starts. `signals` has
    collected the signals since the program started. SIGHUP restarts the workers; if the terminal was closed, or with
    `ends_on_hangup`, it stops the foreman. `tells_results` says that the app has result handlers. A restart calls
    `reload` for the settings of the new workers.

    >>> Foreman(Launch.of("app:app", app.settings), app.settings, app.storage).run()
    """

    def __init__(
        self,
        launch: Launch,
        settings: Settings,
        storage: Storage,
        chores: Chores = (),
        *,
        burst: bool = False,
        parent: int | None = None,
        gives_up: bool = False,
        check_in_target: CheckInTarget = NO_CHECK_IN,
        announce: Callable[[], None] = lambda: None,
        signals: Signals | None = None,
        ends_on_hangup: bool = False,
        tells_results: bool = False,
        reload: Callable[[], tuple[Settings, Launch]] | None = None,
    ) -> None:
        self.scaler = Scaler(settings, burst=burst)
        self.deaths = 0
        self.done = self.failed = 0  # attempts of workers that have ended, and the failed ones among them
        self.problem: str | None = None  # the latest one
        self._settings = settings
        self._storage = storage
        self._burst = burst
        self._parent = parent
        self._ends_on_hangup = ends_on_hangup
        self._reload = reload
        self._lines: list[str] = []
        self._is_quiet = self._is_stopping = False
        self._terminal = Terminal(is_there=False)
        self._exit_code = 0
        self._signals = signals or Signals()
        self._selector = selectors.DefaultSelector()
        self.backoff = CrashBackoff(gives_up=gives_up)
        self.workers = WorkerGroup(launch, self._selector, on_online=lambda: self.threads.heartbeat.beat_soon())
        self.record = ForemanRecord(storage, {**self._info_of(launch.target), HAS_RESULT_HANDLERS: tells_results})
        wake = self._signals.send
        self.threads = StorageThreads(
            storage,
            settings,
            self.workers,
            self.record,
            chores,
            report=self.report,
            wake=wake,
            announce=announce,
            fail_fast=burst,
        )
        self.liveness = Liveness(self.report, self.is_well, check_in_target)
        self._status_file = StatusFile(max(settings.lease / SECOND, _STUCK))
        self._rolling = RollingRestart(self.workers, self._start, self._drain)

    # --- life -----------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Work until told to stop. Waits for a storage that is away, except in a burst. Raises a PackhorseError if the
        storage cannot be used at all."""
        with self._signals:
            self._signals.handle_stops()
            # Under nohup the foreman stays when its terminal is closed.
            self._terminal = Terminal(is_there=self._signals.had_terminal and not self._signals.hangup_was_ignored)
            remove_stale_directories()
            if self._parent is not None:
                signal_on_parents_exit(signal.SIGCHLD)  # its only effect is to wake the loop
            self._selector.register(self._signals, selectors.EVENT_READ, lambda: None)
            self._status_file.begin()
            self.threads.start()
            try:
                while not self._is_over():
                    self._turn()
            finally:
                self._end()
        if self.threads.heartbeat.error is not None:
            raise self.threads.heartbeat.error
        return self._exit_code

    def send_signal(self, number: signal.Signals) -> None:
        """Act as if this signal had arrived: SIGTERM stops, SIGUSR1 takes no more jobs … Any thread may call it."""
        self._signals.send(number)

    def request_restart(self) -> None:
        """Start a rolling restart. Any thread may call it."""
        self._signals.send(RESTART)

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._pause()):
            key.data()
        for number in self._signals.read():
            self._handle_signal(number)
        self._check_terminal()
        was_ordered = False
        for order in self.threads.orders.take():
            self._follow_order(order)
            was_ordered = True
        if was_ordered:
            self.threads.heartbeat.beat_soon()  # shows the operator that the order was followed
        if self._is_orphaned() and not self._is_stopping:
            self._stop("the program that started it has ended")
        now = time.monotonic()
        self._collect_exits(now)
        self._check_workers(now)
        if self.record.is_joined and not self._is_stopping:
            self.threads.start_work()
            self._scale_workers(now)
        self.liveness.tick(now)
        silence = self.threads.heartbeat.silence()
        self._status_file.tick(now, silence if silence < float("inf") else None)

    def _is_orphaned(self) -> bool:
        return self._parent is not None and os.getppid() != self._parent

    def _is_over(self) -> bool:
        if self.threads.heartbeat.error is not None:
            return True
        is_done = self._burst and self.threads.are_started and self.scaler.wanted == 0
        return (self._is_stopping or is_done) and not self.workers.members

    def _end(self) -> None:
        """Leave no worker behind, whatever the reason for the end."""
        detach_from_terminal()  # otherwise writing the last lines to a closed terminal would fail
        for worker in self.workers.members:
            self.workers.kill(worker, "the foreman has ended")
        deadline = time.monotonic() + _EXIT_TIMEOUT
        while self.workers.members and time.monotonic() < deadline:
            self._selector.select(0.1)
            self._collect_exits(time.monotonic())
        self.liveness.calls.loop.stop()
        self.threads.stop()
        if self.record.is_joined:
            self.threads.exits.put(WorkerExit(self.record.id, "stopped", died=False))
        if not self.threads.exits.wait(_EXIT_TIMEOUT if self.record.is_joined else 0.0):
            log.warning("the storage does not answer; other foremen will take back what was held here")
        self.threads.exits.loop.stop(1.0)
        self._status_file.end()
        self._selector.close()
        if self._is_stopping:
            log.info("stopped")

    # --- signals --------------------------------------------------------------------------------------------------

    def _handle_signal(self, number: signal.Signals) -> None:
        if number in STOP:
            self._hard_stop(number, number.name) if self._is_stopping else self._stop(number.name)
        elif number in QUIET:
            self._quiet(number.name)
        elif number is signal.SIGHUP:
            self._handle_hangup()
        elif number is RESTART and not self._is_stopping:
            self._restart("asked for")
        elif number in DUMP:
            faulthandler.dump_traceback(all_threads=True)
            self.workers.broadcast({"do": "dump"})

    def _handle_hangup(self) -> None:
        self._terminal.hung_up(time.monotonic())
        self._check_terminal()
        if self._is_stopping:
            return
        if self._ends_on_hangup:
            self._stop("SIGHUP")
        else:
            self._restart("SIGHUP")

    def _check_terminal(self) -> None:
        """Stop if the terminal was closed. The signal may arrive just before the terminal is seen to be gone."""
        if self._terminal.is_there:
            self._terminal.update(time.monotonic(), has_terminal())
        if self._terminal.was_closed and not self._is_stopping:
            detach_from_terminal()
            self._stop("its terminal was closed")

    def _quiet(self, why: str) -> None:
        log.info("quiet: no more jobs are taken (%s)", why)
        self._is_quiet = True
        self.workers.broadcast({"do": "quiet"})
        self.threads.heartbeat.beat_soon()  # shows others that it takes no more jobs

    def _restart(self, why: str) -> None:
        log.info("rolling restart (%s)", why)
        self._reload_settings()
        self._is_quiet = False  # new workers take jobs
        self.backoff.start_over()
        self._rolling.begin()

    def _reload_settings(self) -> None:
        """Apply the settings that have changed. Storage, heartbeat and lease stay, because other processes rely on
        them."""
        if self._reload is None or self._burst:
            return
        try:
            settings, launch = self._reload()
        except PackhorseError as error:
            log.error("the settings are unchanged: %s", error)
            return
        self._settings = replace(settings, heartbeat=self._settings.heartbeat, lease=self._settings.lease)
        self.threads.adjust(self._settings)
        has_changed = self.scaler.reset(settings)
        self.workers.set_launch(replace(launch, concurrency=self.scaler.limits.slots))
        if has_changed:
            limits = self.scaler.limits
            log.info("from %d to %d workers with %d slots each", limits.least, limits.most, limits.slots)

    def _stop(self, why: str) -> None:
        grace = self._settings.stop_grace / SECOND
        log.info("stopping (%s): running jobs have %g s to finish; repeat to stop immediately", why, grace)
        self._is_stopping = True
        self.threads.heartbeat.beat_soon()  # shows others that it takes no more jobs
        self.liveness.stopping()
        self.threads.stop_work()
        for worker in self.workers.members:
            self._drain(worker, f"the foreman was told to stop ({why})")
            if not worker.is_online:  # it may have jobs already, without our knowing
                self.workers.end_if_starting(worker)

    def _hard_stop(self, number: int, why: str) -> None:
        """Kill the workers. Their jobs are released when their exits are recorded, and the attempts do not count."""
        log.warning("stopping immediately (%s)", why)
        self._exit_code = 128 + number
        for worker in self.workers.members:
            self.workers.kill(worker, f"the foreman was told to stop immediately ({why})")

    # --- orders ---------------------------------------------------------------------------------------------------

    def _follow_order(self, order: ForemanOrder) -> None:
        """Follow an operator's order for all workers or for one."""
        if order.worker is not None:
            worker = self.workers.get(order.worker)
            if worker is not None and order.do is ForemanAction.STACKS:
                worker.channel.send(self._stacks_request())
            elif worker is not None and not self._is_stopping:
                self._follow_order_for(worker, order)
        elif order.do is ForemanAction.SCALE:
            self._scale(order)
        elif order.do is ForemanAction.STOP:
            self._stop_as_ordered(order)
        elif order.do is ForemanAction.STACKS:
            self.workers.broadcast(self._stacks_request())
        elif not self._is_stopping:
            self._quiet(_ORDERED) if order.do is ForemanAction.QUIET else self._restart(_ORDERED)

    def _stacks_request(self) -> dict[str, Any]:
        """Asks a worker for the stacks of its threads; the answer goes out with the heartbeat."""
        return {"do": "stacks", "order": self.threads.orders.taken}

    def _follow_order_for(self, worker: WorkerHandle, order: ForemanOrder) -> None:
        if order.do is ForemanAction.QUIET:
            worker.leaving = worker.leaving or "it was told to take no more jobs"  # it gets a replacement
            worker.channel.send({"do": "quiet"})
        elif order.do is ForemanAction.RESTART:
            self._rolling.begin(only=worker.id)
        elif order.do is ForemanAction.STOP:
            # It is not replaced unless more jobs wait than the others can take.
            if worker.is_active:
                self.scaler.one_less()
            self.scaler.lower()
            if order.now:
                self.workers.quit(worker, "an operator stopped it immediately")
            else:
                self._drain(worker, "an operator stopped it")

    def _stop_as_ordered(self, order: ForemanOrder) -> None:
        if not self._is_stopping:
            self._stop(_ORDERED)
        if order.now:
            self._hard_stop(signal.SIGTERM, _ORDERED)

    def _scale(self, order: ForemanOrder) -> None:
        self.scaler.scale(order)
        limits = self.scaler.limits
        log.info("from %d to %d workers (%s)", limits.least, limits.most, _ORDERED)
        if order.slots is not None and order.slots != limits.slots and not self._is_stopping:
            self.scaler.set_slots(order.slots)
            self.workers.set_slots(order.slots)
            self._restart(_ORDERED)

    # --- the workers -------------------------------------------------------------------------------------------------

    def _collect_exits(self, now: float) -> None:
        self.workers.watch_memory(now)
        for ended in self.workers.collect_exits():
            self.threads.exits.put(ended)
            self._note(ended, now)

    def _note(self, ended: WorkerExit, now: float) -> None:
        self.done += ended.done
        self.failed += ended.failed
        if not ended.needs_replacement:  # it announced that before its exit
            self._want_one_less()
        if ended.died:
            self.deaths += 1
            self.problem = ended.why
        if ended.is_young:
            self.backoff.died_young(now)
            self._lines = ended.lines
            if self.backoff.wait:
                self.problem = f"{ended.why}; {self.backoff.deaths} workers in a row have died young"
                log.error("%s; the next one starts %s", self.problem, _when(self.backoff.wait))

    def _check_workers(self, now: float) -> None:
        for worker in self.workers.members:
            worker.is_frozen = worker.is_stopped()  # the heartbeat sets it too, but may be waiting for the storage
            if worker.is_unknown and worker.kill_at is None:
                if worker.is_active:  # one that is leaving has removed itself
                    log.info("the storage no longer knows worker %d; it is replaced", worker.pid)
                self.workers.end_unknown(worker)
            elif worker.overruns and not worker.was_killed:
                ids = ", ".join(overrun.token.job_id for overrun in worker.overruns)
                log.error("worker %d does not end a job that is over its time limit; killing it: %s", worker.pid, ids)
                self.workers.kill(worker, "it did not end a job that was over its time limit")
            elif worker.is_stuck:
                self._drain(worker, "it cannot stop a job")
            elif self._seconds_until_kill(worker) <= 0:
                self.workers.kill_stopped(worker, "was killed: a signal had stopped it, and its lease was about to end")
            if not worker.is_proven and (worker.has_worked or (worker.is_online and now - worker.started_at >= YOUNG)):
                worker.is_proven = True
                self.backoff.succeeded()
            if worker.has_new_stacks(now):
                self.threads.heartbeat.beat_soon()
            if worker.report.get("busy"):
                self.threads.poller.poll_often()
        self.workers.enforce_deadlines(now)

    def _seconds_until_kill(self, worker: WorkerHandle) -> float:
        """Seconds until a worker stopped by a signal must be killed with its children: after its lease, others may run
        its jobs."""
        if not worker.is_frozen or worker.why_killed is not None:
            return math.inf
        if worker.beat_at is None:
            silent = time.monotonic() - worker.started_at
        else:
            silent = boot_time() - worker.beat_at
        return _LEASE_IN_DANGER * self._settings.lease / SECOND - silent

    def _pause(self) -> float:
        """Seconds until the loop must act without being woken."""
        thaws = [self._seconds_until_kill(worker) for worker in self.workers.members]
        steps = self.workers.next_deadline_in(time.monotonic())
        return max(0.0, min([_TICK, *thaws, *([] if steps is None else [steps])]))

    def _drain(self, worker: WorkerHandle, why: str) -> None:
        # At the end of the grace period the worker asks its jobs to stop; `abort_grace` is their time to do so.
        self.workers.drain(worker, why, (self._settings.stop_grace + self._settings.abort_grace) / SECOND)

    def _scale_workers(self, now: float) -> None:
        """Start and stop workers to reach the wanted number."""
        self._release_surplus()
        plan = self._plan(now)
        for owner in plan.stop:
            self._let_go(self.workers.get(owner))
        while len(self.workers.active) < plan.wanted and self._start() is not None:
            pass
        for _ in range(plan.extra):
            self._start(is_extra=True)
        self._rolling.step()
        if not self._rolling.is_under_way:
            for worker in self.workers.active[plan.wanted :]:
                self._let_go(worker)
        if sum(worker.is_online for worker in self.workers.active) >= self.scaler.limits.least:
            self.liveness.ready()

    def _release_surplus(self) -> None:
        """In a burst, a worker that found nothing more to run is not replaced, and an earlier backlog no longer
        counts."""
        for worker in self.workers.leaving:
            if worker.is_newly_surplus:
                worker.needs_replacement = False
                self._want_one_less()

    def _want_one_less(self) -> None:
        self.scaler.one_less()
        self.threads.backlog.forget()

    def _plan(self, now: float) -> ScalingPlan:
        demand = self.threads.backlog.demand
        is_done = self._burst and self.scaler.wanted == 0
        if demand is None or self._is_quiet or self._rolling.is_under_way or is_done:
            return ScalingPlan(self.scaler.wanted)
        return self.scaler.plan(demand, self.workers.loads(now))

    def _let_go(self, worker: WorkerHandle | None) -> None:
        if worker is not None:
            log.info("worker %d is no longer needed", worker.pid)
            self._drain(worker, "it was no longer needed")

    def _start(self, *, is_extra: bool = False) -> WorkerHandle | None:
        """Start a worker, unless there is a reason to wait."""
        now = time.monotonic()
        is_crowded = (
            len(self.workers.leaving) > self.scaler.limits.most
        )  # leaving workers do not count as active, but their number is limited too
        if is_crowded or not self.backoff.may_start(now, self.workers.starting):
            return None
        try:
            worker = self.workers.start(self.record.id, is_extra=is_extra)
        except OSError as error:
            self.problem = f"cannot start a worker: {error}"
            log.error("%s", self.problem)
            self.backoff.died_young(now)
            return None
        if self._is_quiet:
            worker.channel.send({"do": "quiet"})
        return worker

    # --- its report -------------------------------------------------------------------------------------------------

    def is_well(self) -> bool:
        """Does the storage accept its heartbeats, and do its workers start?"""
        is_heard = self.record.is_joined and self.threads.heartbeat.silence() < self._settings.lease / SECOND
        return is_heard and not self.backoff.is_broken

    def report(self) -> dict[str, Any]:
        """The facts for the heartbeat and the log; any thread may call it."""
        # Read first: the facts below must include the effect of this order.
        followed = self.threads.orders.followed
        members, demand = self.workers.members, self.threads.backlog.demand
        report = {
            "state": self._state(),
            "crew": len(self.workers.active),
            "online": sum(worker.is_online for worker in members),
            "wanted": self.scaler.wanted,
            "min": self.scaler.limits.least,
            "max": self.scaler.limits.most,
            "slots": self.scaler.limits.slots,
            "extra": len(self.workers.extra),
            "leaving": len(self.workers.leaving),
            "busy": sum(worker.report.get("busy", 0) for worker in members),
            "done": self.done + sum(worker.report.get("done", 0) for worker in members),
            "failed": self.failed + sum(worker.report.get("failed", 0) for worker in members),
            "latency_ms": self.threads.heartbeat.latency_ms,
            "starts": self.workers.starts,
            "deaths": self.deaths,
            "rescued": self.threads.exits.rescued,
            "backlog": demand.backlog if demand else None,
            "steady": self.threads.heartbeat.may_rescue(),
            "skew": round(self.threads.heartbeat.skew, 1),
            "checkin": self.liveness.calls.status,
            "problem": self.problem,
            "order": followed,
            **connections_report(self._storage.connections()),
        }
        if self.backoff.wait:
            left = self.backoff.seconds_left(time.monotonic())
            report["next_start_in"] = None if math.isinf(left) else round(left, 1)
            report["stderr"] = self._lines
        return report

    def _state(self) -> str:
        if self._is_stopping:
            return "stopping"
        if self.backoff.is_broken:
            return "unhealthy"
        return "quiet" if self._is_quiet else "working"

    def _info_of(self, target: str) -> dict[str, Any]:
        return {
            "target": target,
            "min": self.scaler.limits.least,
            "max": self.scaler.limits.most,
            "concurrency": self.scaler.limits.slots,
            "drain_s": self._settings.stop_grace / SECOND,
            LEASE_S: self._settings.lease / SECOND,
            "version": __version__,
            PROCESS_SPACE: process_space(),
        }


def _when(seconds: float) -> str:
    return "after the next restart (SIGHUP or a saved file)" if math.isinf(seconds) else f"in {seconds:g} s"


# --- the threads that wait for the storage ----------------------------------------------------------------------------

Chores = Sequence[Chore] | Callable[[TrustedTime, EndWorker, StuckJobs], Sequence[Chore]]
"""The chores, or a function that makes them from three functions of the foreman: the trusted time, ending a worker with
an overrun job, and listing its stuck jobs."""


class StorageThreads:
    """The threads of one foreman that wait for the storage, so that its main loop never does. `report` returns the
    foreman's facts, `wake` wakes its loop; see `Heartbeat` for the others."""

    def __init__(
        self,
        storage: Storage,
        settings: Settings,
        workers: WorkerGroup,
        record: ForemanRecord,
        chores: Chores,
        *,
        report: Callable[[], dict[str, Any]],
        wake: Callable[[], None],
        announce: Callable[[], None] = lambda: None,
        fail_fast: bool = False,
    ) -> None:
        beat, lease = settings.heartbeat / SECOND, settings.lease / SECOND
        spool = Spool.of(settings)
        self.heartbeat = Heartbeat(
            storage,
            workers,
            record,
            heartbeat=beat,
            lease=lease,
            report=report,
            wake=wake,
            announce=announce,
            fail_fast=fail_fast,
            spool=spool,
        )
        self.exits = ExitRecorder(storage, spool)
        self.backlog = Backlog(storage, workers, wake)
        self.orders = Orders(storage, record, wake)

        def end_overrun(overrun: Overrun) -> bool:
            is_ours = workers.end_overrun(overrun)
            if is_ours:
                wake()
            return is_ours

        if callable(chores):
            chores = chores(self.heartbeat.trusted_time, end_overrun, workers.stuck_jobs)
        self.chore_runner = ChoreRunner(chores)
        self.poller = Poller(storage, workers, record, self.heartbeat, self.backlog, self.orders, self.chore_runner)
        self.are_started = False

    def start(self) -> None:
        """Start the heartbeat, which registers the foreman, and the recording of exits."""
        self.exits.loop.start()
        self.heartbeat.loop.start()

    def start_work(self) -> None:
        """Start the others, once. The storage knows the foreman by now, and the jobs of dead processes of this machine
        have been rescued to go first."""
        if not self.are_started:
            self.are_started = True
            for each in (self.backlog, self.orders, self.chore_runner, self.poller):
                each.loop.start()

    def adjust(self, settings: Settings) -> None:
        """Apply settings that were read again."""
        self.chore_runner.adjust(settings)
        self.heartbeat.set_order(settings.chosen_order)

    def stop_work(self) -> None:
        """The foreman is stopping: no more chores and backlog. It still follows orders."""
        self.chore_runner.loop.stop()
        self.backlog.loop.stop()

    def stop(self) -> None:
        """Stop all but the exits, which write last."""
        for each in (self.poller, self.chore_runner, self.backlog, self.orders):
            each.loop.stop()
        self.heartbeat.loop.stop(1.0)
