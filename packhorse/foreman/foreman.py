"""The foreman: the process behind `packhorse work`. Keeps a workers of workers at work until it is told to stop.

The main thread runs one loop: hear the workers and the signals, take leave of those that ended, keep the workers at the
size that is wanted. It never waits for the storage; what does is a loop with a thread of its own: the heartbeat, the
exits of dead workers, the poller, the chores. Several foremen share a storage without knowing of each other.
"""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import selectors
import signal
import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from packhorse.core.clock import SECOND
from packhorse.core.errors import PackhorseError
from packhorse.core.event import ForemanAction, ForemanOrder
from packhorse.core.settings import Settings
from packhorse.core.version import __version__
from packhorse.foreman.crash_backoff import YOUNG, CrashBackoff
from packhorse.foreman.dead_workers import PROCESS_SPACE, process_space
from packhorse.foreman.duties import Chores, Duties
from packhorse.foreman.heartbeat import ForemanRecord, boot_time
from packhorse.foreman.liveness import NO_CHECK_IN, CheckInTarget, Liveness
from packhorse.foreman.processes import Launch, WorkerExit, WorkerGroup
from packhorse.foreman.rolling_restart import RollingRestart
from packhorse.foreman.scaling import Scaler, ScalingPlan
from packhorse.foreman.signals import (
    DUMP,
    QUIET,
    RESTART_ASKED,
    STOP,
    Signals,
    Terminal,
    has_terminal,
    let_go_of_terminal,
)
from packhorse.foreman.status_directory import remove_leftovers
from packhorse.foreman.worker_handle import WorkerHandle
from packhorse.monitor.local_liveness import StatusFile
from packhorse.monitor.stats import connections_report
from packhorse.storage.contract import Storage
from packhorse.storage.records import LEASE_S, TELLS_RESULTS
from packhorse.worker.processes import signal_on_parents_exit

log = logging.getLogger("packhorse")

_TICK = 1.0
_LEASE_IN_DANGER = 0.8
"""The part of a lease without a heartbeat after which a worker that a signal has stopped is killed."""
_ORDERED = "an operator's order"
_STUCK = 15.0
"""Seconds at least without a turn of the loop after which a foreman is taken for stuck."""
_LAST_WORDS = 5.0
"""Seconds that the storage gets at the end to take what is left to be told."""


class Foreman:
    """One foreman. `run` returns the exit code; other threads may `ask` it what signals ask.

    With `burst` it ends when its workers, told so by their arguments, find nothing more to do. It stops when `parent`,
    the process that started it, has ended. With `gives_up`, workers that keep dying young are not started again before
    the next SIGHUP. `check_in_target` is called every minute, as a sign of life. `announce` runs when it
    begins. `signals` are those that the program has watched while it started. A SIGHUP restarts its workers; it
    stops when the terminal was closed, and with `ends_on_hangup` in any case. `tells_results`: its app has result
    handlers. A restart asks `reload` for the settings of the fresh workers.

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
        self.done = self.failed = 0  # attempts that its workers had ended when they left, and those that had failed
        self.problem: str | None = None  # the last one
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
        self.workers = WorkerGroup(launch, self._selector, on_online=lambda: self.duties.heartbeat.beat_soon())
        self.record = ForemanRecord(storage, {**self._about(launch.target), TELLS_RESULTS: tells_results})
        wake = self._signals.ring
        self.duties = Duties(
            storage,
            settings,
            self.workers,
            self.record,
            chores,
            report=self.report,
            wake=wake,
            announce=announce,
            hasty=burst,
        )
        self.liveness = Liveness(self.report, self.is_well, check_in_target)
        self._sign_of_life = StatusFile(max(settings.lease / SECOND, _STUCK))
        self._rolling = RollingRestart(self.workers, self._start, self._drain)

    # --- life -----------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Work until told to stop. A storage that is away is waited for, but not in a burst. Raises a PackhorseError
        when the storage cannot be used at all."""
        with self._signals:
            self._signals.take_stops()
            # What was started with nohup stays, whatever becomes of the terminal.
            self._terminal = Terminal(is_there=self._signals.had_terminal and not self._signals.hangup_was_ignored)
            remove_leftovers()
            if self._parent is not None:
                signal_on_parents_exit(signal.SIGCHLD)  # a signal that does nothing but wake the loop
            self._selector.register(self._signals, selectors.EVENT_READ, lambda: None)
            self._sign_of_life.begin()
            self.duties.begin()
            try:
                while not self._is_over():
                    self._turn()
            finally:
                self._end()
        if self.duties.heartbeat.error is not None:
            raise self.duties.heartbeat.error
        return self._exit_code

    def ask(self, number: signal.Signals) -> None:
        """As if this signal had come, from any thread: SIGTERM to stop, SIGUSR1 to be quiet …"""
        self._signals.ring(number)

    def ask_to_restart(self) -> None:
        """Have a rolling restart, from any thread."""
        self._signals.ring(RESTART_ASKED)

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._pause()):
            key.data()
        for number in self._signals.read():
            self._obey(number)
        self._look_at_terminal()
        is_ordered = False
        for order in self.duties.orders.take():
            self._follow(order)
            is_ordered = True
        if is_ordered:
            self.duties.heartbeat.beat_soon()  # so that whoever gave the order sees that it was heard
        if self._is_orphaned() and not self._is_stopping:
            self._stop("the program that started it has ended")
        now = time.monotonic()
        self._take_leave(now)
        self._look_after(now)
        if self.record.is_joined and not self._is_stopping:
            self.duties.go_to_work()
            self._man(now)
        self.liveness.tick(now)
        silence = self.duties.heartbeat.silence()
        self._sign_of_life.tick(now, silence if silence < float("inf") else None)

    def _is_orphaned(self) -> bool:
        return self._parent is not None and os.getppid() != self._parent

    def _is_over(self) -> bool:
        if self.duties.heartbeat.error is not None:
            return True
        is_done = self._burst and self.duties.are_at_work and self.scaler.wanted == 0
        return (self._is_stopping or is_done) and not self.workers.members

    def _end(self) -> None:
        """Whatever led here, no worker stays behind."""
        let_go_of_terminal()  # what outlived it, as with nohup, would fail over the last words that it prints
        for worker in self.workers.members:
            self.workers.kill(worker, "the foreman has ended")
        deadline = time.monotonic() + _LAST_WORDS
        while self.workers.members and time.monotonic() < deadline:
            self._selector.select(0.1)
            self._take_leave(time.monotonic())
        self.liveness.calls.loop.stop()
        self.duties.end()
        if self.record.is_joined:
            self.duties.exits.put(WorkerExit(self.record.id, "stopped", died=False))
        if not self.duties.exits.wait(_LAST_WORDS if self.record.is_joined else 0.0):
            log.warning("the storage does not answer; other foremen will take back what was held here")
        self.duties.exits.loop.stop(1.0)
        self._sign_of_life.end()
        self._selector.close()
        if self._is_stopping:
            log.info("stopped")

    # --- signals --------------------------------------------------------------------------------------------------

    def _obey(self, number: signal.Signals) -> None:
        if number in STOP:
            self._hard_stop(number, number.name) if self._is_stopping else self._stop(number.name)
        elif number in QUIET:
            self._quiet(number.name)
        elif number is signal.SIGHUP:
            self._hear_hangup()
        elif number is RESTART_ASKED and not self._is_stopping:
            self._restart("asked for")
        elif number in DUMP:
            faulthandler.dump_traceback(all_threads=True)
            self.workers.broadcast({"do": "dump"})

    def _hear_hangup(self) -> None:
        self._terminal.told(time.monotonic())
        self._look_at_terminal()
        if self._is_stopping:
            return
        if self._ends_on_hangup:
            self._stop("SIGHUP")
        else:
            self._restart("SIGHUP")

    def _look_at_terminal(self) -> None:
        """Stop if the terminal was closed. The signal may have come a moment before it is seen to be gone."""
        if self._terminal.is_there:
            self._terminal.look(time.monotonic(), has_terminal())
        if self._terminal.was_closed and not self._is_stopping:
            let_go_of_terminal()
            self._stop("its terminal was closed")

    def _quiet(self, why: str) -> None:
        log.info("quiet: no more jobs are taken (%s)", why)
        self._is_quiet = True
        self.workers.broadcast({"do": "quiet"})
        self.duties.heartbeat.beat_soon()  # so that nobody who looks counts on it

    def _restart(self, why: str) -> None:
        log.info("rolling restart (%s)", why)
        self._reload_settings()
        self._is_quiet = False  # fresh workers take jobs
        self.backoff.hope()
        self._rolling.begin()

    def _reload_settings(self) -> None:
        """Take over what has changed since they were read. Those by which others know this foreman stay: its storage,
        its heartbeat and its lease."""
        if self._reload is None or self._burst:
            return
        try:
            settings, launch = self._reload()
        except PackhorseError as error:
            log.error("the settings stay as they were: %s", error)
            return
        self._settings = replace(settings, heartbeat=self._settings.heartbeat, lease=self._settings.lease)
        self.duties.adjust(self._settings)
        has_changed = self.scaler.reset(settings)
        self.workers.set_launch(replace(launch, concurrency=self.scaler.limits.slots))
        if has_changed:
            limits = self.scaler.limits
            log.info("from %d to %d workers with %d slots each", limits.least, limits.most, limits.slots)

    def _stop(self, why: str) -> None:
        grace = self._settings.stop_grace / SECOND
        log.info("stopping (%s): running jobs have %g s to finish; once more stops at once", why, grace)
        self._is_stopping = True
        self.duties.heartbeat.beat_soon()  # so that nobody who looks counts on it
        self.liveness.stopping()
        self.duties.rest()
        for worker in self.workers.members:
            self._drain(worker, f"the foreman was told to stop ({why})")
            if not worker.is_online:  # as far as was heard: it may have jobs by now
                self.workers.end_if_starting(worker)

    def _hard_stop(self, number: int, why: str) -> None:
        """What is held is handed back when the ends are settled, and counts nowhere."""
        log.warning("stopping at once (%s)", why)
        self._exit_code = 128 + number
        for worker in self.workers.members:
            self.workers.kill(worker, f"the foreman was told to stop at once ({why})")

    # --- orders ---------------------------------------------------------------------------------------------------

    def _follow(self, order: ForemanOrder) -> None:
        """Do what an operator wants, of the whole workers or of one in it."""
        if order.worker is not None:
            worker = self.workers.get(order.worker)
            if worker is not None and order.do is ForemanAction.STACKS:
                worker.channel.send(self._ask_for_stacks())
            elif worker is not None and not self._is_stopping:
                self._follow_for(worker, order)
        elif order.do is ForemanAction.SCALE:
            self._scale(order)
        elif order.do is ForemanAction.STOP:
            self._stop_as_ordered(order)
        elif order.do is ForemanAction.STACKS:
            self.workers.broadcast(self._ask_for_stacks())
        elif not self._is_stopping:
            self._quiet(_ORDERED) if order.do is ForemanAction.QUIET else self._restart(_ORDERED)

    def _ask_for_stacks(self) -> dict[str, Any]:
        """What has a worker say where its threads stand; it answers soon, and the answer goes with the heartbeat."""
        return {"do": "stacks", "order": self.duties.orders.taken}

    def _follow_for(self, worker: WorkerHandle, order: ForemanOrder) -> None:
        if order.do is ForemanAction.QUIET:
            worker.leaving = worker.leaving or "it was told to be quiet"  # another takes its place
            worker.channel.send({"do": "quiet"})
        elif order.do is ForemanAction.RESTART:
            self._rolling.begin(only=worker.id)
        elif order.do is ForemanAction.STOP:
            # It is not replaced, unless more jobs wait than the others can take.
            if worker.is_active:
                self.scaler.one_less()
            self.scaler.lower()
            if order.now:
                self.workers.quit(worker, "an operator wanted it to stop at once")
            else:
                self._drain(worker, "an operator wanted it to stop")

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

    def _take_leave(self, now: float) -> None:
        self.workers.watch_memory(now)
        for ended in self.workers.collect_exits():
            self.duties.exits.put(ended)
            self._note(ended, now)

    def _note(self, ended: WorkerExit, now: float) -> None:
        self.done += ended.done
        self.failed += ended.failed
        if not ended.is_missed:  # its last word came with its end
            self._need_one_less()
        if ended.died:
            self.deaths += 1
            self.problem = ended.why
        if ended.is_young:
            self.backoff.died_young(now)
            self._lines = ended.lines
            if self.backoff.wait:
                self.problem = f"{ended.why}; {self.backoff.deaths} in a row have died young"
                log.error("%s; the next is started %s", self.problem, _when(self.backoff.wait))

    def _look_after(self, now: float) -> None:
        for worker in self.workers.members:
            worker.is_frozen = worker.is_stopped()  # the heartbeat says so, too, but it may be waiting for the storage
            if worker.is_unknown and worker.kill_at is None:
                if worker.is_active:  # one that is about to end has left by itself
                    log.info("worker %d is not known to the storage any more; it is replaced", worker.pid)
                self.workers.dismiss(worker)
            elif worker.overruns and not worker.was_killed:
                ids = ", ".join(overrun.token.job_id for overrun in worker.overruns)
                log.error("worker %d does not end a job whose time is over, and is killed: %s", worker.pid, ids)
                self.workers.kill(worker, "it did not end a job whose time was over")
            elif worker.is_stuck:
                self._drain(worker, "it is stuck")
            elif self._seconds_to_thaw(worker) <= 0:
                self.workers.kill_frozen(worker, "was killed: a signal had stopped it, and its lease was almost over")
            if not worker.is_proven and (worker.has_worked or (worker.is_online and now - worker.started_at >= YOUNG)):
                worker.is_proven = True
                self.backoff.succeeded()
            if worker.has_answered(now):
                self.duties.heartbeat.beat_soon()
            if worker.report.get("busy"):
                self.duties.poller.stir()
        self.workers.enforce(now)

    def _seconds_to_thaw(self, worker: WorkerHandle) -> float:
        """How long a worker that a signal has stopped has to go on. Then it is killed, and its children: when the lease
        is over its jobs may be run elsewhere."""
        if not worker.is_frozen or worker.why_killed is not None:
            return math.inf
        if worker.beaten_at is None:
            silent = time.monotonic() - worker.started_at
        else:
            silent = boot_time() - worker.beaten_at
        return _LEASE_IN_DANGER * self._settings.lease / SECOND - silent

    def _pause(self) -> float:
        """Seconds until the loop has something to do that nobody wakes it for."""
        thaws = [self._seconds_to_thaw(worker) for worker in self.workers.members]
        steps = self.workers.next_step_in(time.monotonic())
        return max(0.0, min([_TICK, *thaws, *([] if steps is None else [steps])]))

    def _drain(self, worker: WorkerHandle, why: str) -> None:
        # The worker itself asks its jobs to end when the grace is over, and gives them this much more.
        self.workers.drain(worker, why, (self._settings.stop_grace + self._settings.abort_grace) / SECOND)

    def _man(self, now: float) -> None:
        """Keep the workers at the size that is wanted."""
        self._let_the_idle_go()
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

    def _let_the_idle_go(self) -> None:
        """In a burst, nobody takes the place of a worker that leaves because nothing is left, and what was seen to wait
        before that says nothing any more."""
        for worker in self.workers.leaving:
            if worker.is_newly_needless:
                worker.is_missed = False
                self._need_one_less()

    def _need_one_less(self) -> None:
        self.scaler.one_less()
        self.duties.backlog.forget()

    def _plan(self, now: float) -> ScalingPlan:
        demand = self.duties.backlog.demand
        is_done = self._burst and self.scaler.wanted == 0
        if demand is None or self._is_quiet or self._rolling.is_under_way or is_done:
            return ScalingPlan(self.scaler.wanted)
        return self.scaler.plan(demand, self.workers.loads(now))

    def _let_go(self, worker: WorkerHandle | None) -> None:
        if worker is not None:
            log.info("worker %d is not needed any more", worker.pid)
            self._drain(worker, "it was not needed any more")

    def _start(self, *, is_extra: bool = False) -> WorkerHandle | None:
        """Start a worker, if there is no reason to wait."""
        now = time.monotonic()
        is_crowded = (
            len(self.workers.leaving) > self.scaler.limits.most
        )  # those that leave are counted apart, but not for ever
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

    # --- what it says of itself -------------------------------------------------------------------------------------

    def is_well(self) -> bool:
        """Do its heartbeats get through, and do its workers start?"""
        is_heard = self.record.is_joined and self.duties.heartbeat.silence() < self._settings.lease / SECOND
        return is_heard and not self.backoff.is_hopeless

    def report(self) -> dict[str, Any]:
        """What the storage and the log are told; any thread may ask."""
        # First: what an order has changed must not be missing in what is read after it.
        followed = self.duties.orders.followed
        members, demand = self.workers.members, self.duties.backlog.demand
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
            "latency_ms": self.duties.heartbeat.latency_ms,
            "starts": self.workers.starts,
            "deaths": self.deaths,
            "rescued": self.duties.exits.rescued,
            "backlog": demand.backlog if demand else None,
            "steady": self.duties.heartbeat.may_rescue(),
            "skew": round(self.duties.heartbeat.skew, 1),
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
        if self.backoff.is_hopeless:
            return "unhealthy"
        return "quiet" if self._is_quiet else "working"

    def _about(self, target: str) -> dict[str, Any]:
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
    return "after the next restart (SIGHUP), which a saved file causes" if math.isinf(seconds) else f"in {seconds:g} s"
