"""The foreman: the process behind `packhorse work`. Keeps a crew of workers at work until it is told to stop.

The main thread runs one loop: hear the workers and the signals, take leave of those that ended, keep the crew at the
size that is wanted. It never waits for the storage; what does is a duty with a thread of its own: the heartbeat, the
settling of dead workers, the lookout, the chores. Several foremen share a storage without knowing of each other.
"""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from packhorse import __version__
from packhorse.chores.chore import Chore, SteadyTime
from packhorse.clock import SECOND
from packhorse.foreman import scaling, signals
from packhorse.foreman.backlog import Backlog
from packhorse.foreman.backoff import YOUNG, Backoff
from packhorse.foreman.crew import Crew, Ended, Launch
from packhorse.foreman.former import PROCESS_SPACE, process_space
from packhorse.foreman.heartbeat import Heartbeat
from packhorse.foreman.lookout import Lookout
from packhorse.foreman.member import Member
from packhorse.foreman.orders import Orders
from packhorse.foreman.pulse import Pulse, Record
from packhorse.foreman.rolling import Rolling
from packhorse.foreman.settling import Settling
from packhorse.foreman.timetable import Timetable
from packhorse.kinship import hear_of_parents_end
from packhorse.order import Do, Order
from packhorse.settings import Settings
from packhorse.storage.contract import Storage

log = logging.getLogger("packhorse")

_TICK = 1.0
_ORDERED = "an operator's order"
_LAST_WORDS = 5.0
"""Seconds that the storage gets at the end to take what is left to be told."""

Chores = Sequence[Chore] | Callable[[SteadyTime], Sequence[Chore]]
"""The chores, or a function that makes them and is handed what tells the time while this foreman is steady."""


class Foreman:
    """One foreman. `run` returns the exit code; other threads may `ask` it what signals ask.

    `command` starts a worker, `python -m packhorse.worker TARGET` unless given; the crew adds what is each worker's
    own, then `worker_arguments`, then for the extra workers of forced jobs `extra_arguments`. With `burst` it ends when
    its workers, told so by their arguments, find nothing more to do. It stops when `parent`, the process that started
    it, has ended. With `gives_up`, workers that keep dying young are not started again before the next SIGHUP. The last
    three are signs of life: see `pulse.py`.

    >>> Foreman("app:app", app.settings, app.storage).run()
    """

    def __init__(
        self,
        target: str,
        settings: Settings,
        storage: Storage,
        command: Sequence[str] | None = None,
        chores: Chores = (),
        *,
        worker_arguments: Sequence[str] = (),
        extra_arguments: Sequence[str] = ("--max-jobs", "1"),
        burst: bool = False,
        parent: int | None = None,
        gives_up: bool = False,
        checkin_url: str | None = None,
        checkin_cmd: str | None = None,
        status_file: Path | None = None,
    ) -> None:
        self.limits = limits_of(settings)
        self.wanted = max(self.limits.least, int(burst))
        if burst:
            self.limits = replace(self.limits, least=0)  # workers that find nothing more to do are not missed
        self.deaths = 0
        self.done = 0  # attempts that its workers had ended when they left
        self.problem: str | None = None  # the last one
        self._settings = settings
        self._burst = burst
        self._parent = parent
        self._lines: list[str] = []
        self._is_quiet = self._is_stopping = self._is_at_work = False
        self._exit_code = 0
        self._signals = signals.Signals()
        self._selector = selectors.DefaultSelector()
        self.backoff = Backoff(gives_up=gives_up)
        command = command or [sys.executable, "-m", "packhorse.worker", target]
        launch = Launch(command, settings.url, settings.concurrency, worker_arguments, extra_arguments)
        self.crew = Crew(launch, self._selector, on_online=lambda: self.heartbeat.beat_soon())
        self.record = Record(storage, self._about(target))
        self.heartbeat = Heartbeat(
            storage,
            self.crew,
            self.record,
            heartbeat=settings.heartbeat / SECOND,
            lease=settings.lease / SECOND,
            report=self.report,
            wake=self._signals.ring,
        )
        self.settling = Settling(storage)
        self.backlog = Backlog(storage, self.crew, wake=self._signals.ring)
        self.orders = Orders(storage, self.record, wake=self._signals.ring)
        self.timetable = Timetable(chores(self.heartbeat.steady_time) if callable(chores) else chores)
        self.lookout = Lookout(
            storage, self.crew, self.record, self.heartbeat, self.backlog, self.orders, self.timetable
        )
        self.pulse = Pulse(self.report, self.is_well, url=checkin_url, command=checkin_cmd, file=status_file)
        self._rolling = Rolling(self.crew, self._start, self._drain)

    # --- life -----------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Work until told to stop. Raises StorageError when the storage cannot be used at all."""
        with self._signals:
            if self._parent is not None:
                hear_of_parents_end(signal.SIGCHLD)  # a signal that does nothing but wake the loop
            self._selector.register(self._signals, selectors.EVENT_READ, lambda: None)
            self.settling.duty.start()
            self.heartbeat.duty.start()
            try:
                while not self._is_over():
                    self._turn()
            finally:
                self._end()
        if self.heartbeat.error is not None:
            raise self.heartbeat.error
        return self._exit_code

    def ask(self, number: signal.Signals) -> None:
        """As if this signal had come, from any thread: SIGTERM to stop, SIGHUP for a rolling restart …"""
        self._signals.ring(number)

    def _turn(self) -> None:
        for key, _ in self._selector.select(_TICK):
            key.data()
        for number in self._signals.read():
            self._obey(number)
        is_ordered = False
        for order in self.orders.take():
            self._follow(order)
            is_ordered = True
        if is_ordered:
            self.heartbeat.beat_soon()  # so that whoever gave the order sees that it was heard
        if self._is_orphaned() and not self._is_stopping:
            self._stop("the program that started it has ended")
        now = time.monotonic()
        self._take_leave(now)
        self._look_after(now)
        if self.record.is_joined and not self._is_stopping:
            self._go_to_work()
            self._man(now)
        self.pulse.tick(now)

    def _is_orphaned(self) -> bool:
        return self._parent is not None and os.getppid() != self._parent

    def _go_to_work(self) -> None:
        """Once, when the storage knows us, and former processes of this machine were settled: their jobs go first."""
        if not self._is_at_work:
            self._is_at_work = True
            for each in (self.backlog, self.orders, self.timetable, self.lookout):
                each.duty.start()

    def _is_over(self) -> bool:
        if self.heartbeat.error is not None:
            return True
        is_done = self._burst and self._is_at_work and self.wanted == 0
        return (self._is_stopping or is_done) and not self.crew.members

    def _end(self) -> None:
        """Whatever led here, no worker stays behind."""
        for member in self.crew.members:
            self.crew.kill(member, "the foreman has ended")
        deadline = time.monotonic() + _LAST_WORDS
        while self.crew.members and time.monotonic() < deadline:
            self._selector.select(0.1)
            self._take_leave(time.monotonic())
        for each in (self.lookout, self.timetable, self.backlog, self.orders, self.pulse.calls):
            each.duty.stop()
        self.heartbeat.duty.stop(1.0)
        if self.record.is_joined:
            self.settling.put(Ended(self.record.id, "stopped", died=False))
        if not self.settling.wait(_LAST_WORDS if self.record.is_joined else 0.0):
            log.warning("the storage does not answer; other foremen will take back what was held here")
        self.settling.duty.stop(1.0)
        self._selector.close()
        self.pulse.close()
        if self._is_stopping:
            log.info("stopped")

    # --- signals --------------------------------------------------------------------------------------------------

    def _obey(self, number: signal.Signals) -> None:
        if number in signals.STOP:
            self._hard_stop(number, number.name) if self._is_stopping else self._stop(number.name)
        elif number in signals.QUIET:
            self._quiet(number.name)
        elif number in signals.RESTART:
            self._restart(number.name)
        elif number in signals.DUMP:
            faulthandler.dump_traceback(all_threads=True)
            self.crew.tell({"do": "dump"})

    def _quiet(self, why: str) -> None:
        log.info("quiet: no more jobs are taken (%s)", why)
        self._is_quiet = True
        self.crew.tell({"do": "quiet"})
        self.heartbeat.beat_soon()  # so that nobody who looks counts on it

    def _restart(self, why: str) -> None:
        log.info("rolling restart (%s)", why)
        self._is_quiet = False  # fresh workers take jobs
        self.backoff.hope()
        self._rolling.begin()

    def _stop(self, why: str) -> None:
        grace = self._settings.stop_grace / SECOND
        log.info("stopping (%s): running jobs have %g s to finish; once more stops at once", why, grace)
        self._is_stopping = True
        self.heartbeat.beat_soon()  # so that nobody who looks counts on it
        self.pulse.stopping()
        self.timetable.duty.stop()
        self.backlog.duty.stop()
        for member in self.crew.members:
            if member.is_online:
                self._drain(member, f"the foreman was told to stop ({why})")
            else:
                self.crew.quit(member, "the foreman was told to stop")  # it holds nothing yet

    def _hard_stop(self, number: int, why: str) -> None:
        """What is held is handed back when the ends are settled, and counts nowhere."""
        log.warning("stopping at once (%s)", why)
        self._exit_code = 128 + number
        for member in self.crew.members:
            self.crew.kill(member, f"the foreman was told to stop at once ({why})")

    # --- orders ---------------------------------------------------------------------------------------------------

    def _follow(self, order: Order) -> None:
        """Do what an operator wants, of the whole crew or of one in it."""
        if order.worker is not None:
            member = self.crew.get(order.worker)
            if member is not None and order.do is Do.STACKS:
                member.channel.send(self._ask_for_stacks())
            elif member is not None and not self._is_stopping:
                self._follow_for(member, order)
        elif order.do is Do.SCALE:
            self._scale(order)
        elif order.do is Do.STOP:
            self._stop_as_ordered(order)
        elif order.do is Do.STACKS:
            self.crew.tell(self._ask_for_stacks())
        elif not self._is_stopping:
            self._quiet(_ORDERED) if order.do is Do.QUIET else self._restart(_ORDERED)

    def _ask_for_stacks(self) -> dict[str, Any]:
        """What has a worker say where its threads stand; it answers soon, and the answer goes with the heartbeat."""
        return {"do": "stacks", "order": self.orders.taken}

    def _follow_for(self, member: Member, order: Order) -> None:
        if order.do is Do.QUIET:
            member.leaving = member.leaving or "it was told to be quiet"  # another takes its place
            member.channel.send({"do": "quiet"})
        elif order.do is Do.RESTART:
            self._rolling.begin(only=member.id)
        elif order.do is Do.STOP:
            # It is not replaced, unless more jobs wait than the others can take.
            self.wanted = max(0, self.wanted - member.is_active)
            self.limits = replace(self.limits, least=min(self.limits.least, self.wanted))
            if order.now:
                self.crew.quit(member, "an operator wanted it to stop at once")
            else:
                self._drain(member, "an operator wanted it to stop")

    def _stop_as_ordered(self, order: Order) -> None:
        if not self._is_stopping:
            self._stop(_ORDERED)
        if order.now:
            self._hard_stop(signal.SIGTERM, _ORDERED)

    def _scale(self, order: Order) -> None:
        least = self.limits.least if order.least is None else order.least
        most = max(least, self.limits.most if order.most is None else order.most)
        log.info("from %d to %d workers (%s)", least, most, _ORDERED)
        self.limits = replace(self.limits, least=least, most=most)
        self.wanted = min(max(self.wanted, least), most)
        if order.slots is not None and order.slots != self.limits.slots and not self._is_stopping:
            self.limits = replace(self.limits, slots=order.slots)
            self.crew.set_slots(order.slots)
            self._restart(_ORDERED)

    # --- the crew -------------------------------------------------------------------------------------------------

    def _take_leave(self, now: float) -> None:
        self.crew.look_at_memory(now)
        for ended in self.crew.bury():
            self.settling.put(ended)
            self._note(ended, now)

    def _note(self, ended: Ended, now: float) -> None:
        self.done += ended.done
        if ended.died:
            self.deaths += 1
            self.problem = ended.why
        elif self._burst:
            self.wanted = max(0, self.wanted - 1)  # it found nothing more to do
            return
        if ended.is_young:
            self.backoff.died_young(now)
            self._lines = ended.lines
            if self.backoff.wait:
                self.problem = f"{ended.why}; {self.backoff.deaths} in a row have died young"
                log.error("%s; the next is started %s", self.problem, _when(self.backoff.wait))

    def _look_after(self, now: float) -> None:
        for member in self.crew.members:
            if member.is_unknown and member.kill_at is None:
                if member.is_active:  # one that is about to end has left by itself
                    log.info("worker %d is not known to the storage any more; it is replaced", member.pid)
                self.crew.dismiss(member)
            elif member.is_condemned:
                self._drain(member, "it is condemned")
            elif member.stopped_since is not None and now - member.stopped_since >= self._settings.lease / SECOND:
                self._drain(member, "it was stopped by a signal for longer than its lease")
            if not member.is_proven and (member.has_worked or (member.is_online and now - member.started_at >= YOUNG)):
                member.is_proven = True
                self.backoff.succeeded()
            if member.has_answered(now):
                self.heartbeat.beat_soon()
        self.crew.enforce(now)

    def _drain(self, member: Member, why: str) -> None:
        # The worker itself asks its jobs to end when the grace is over, and gives them this much more.
        self.crew.drain(member, why, (self._settings.stop_grace + self._settings.abort_grace) / SECOND)

    def _man(self, now: float) -> None:
        """Keep the crew at the size that is wanted."""
        plan = self._plan(now)
        self.wanted = plan.wanted
        for owner in plan.stop:
            self._let_go(self.crew.get(owner))
        while len(self.crew.active) < self.wanted and self._start() is not None:
            pass
        for _ in range(plan.extra):
            self._start(is_extra=True)
        self._rolling.step()
        if not self._rolling.is_under_way:
            for member in self.crew.active[self.wanted :]:
                self._let_go(member)
        if sum(member.is_online for member in self.crew.active) >= self.limits.least:
            self.pulse.ready()

    def _plan(self, now: float) -> scaling.Plan:
        need = self.backlog.need
        if need is None or self._is_quiet or self._rolling.is_under_way:
            return scaling.Plan(self.wanted)
        return scaling.plan(need, self.crew.hands(now), self.wanted, self.limits)

    def _let_go(self, member: Member | None) -> None:
        if member is not None:
            log.info("worker %d is not needed any more", member.pid)
            self._drain(member, "it was not needed any more")

    def _start(self, *, is_extra: bool = False) -> Member | None:
        """Start a worker, if there is no reason to wait."""
        now = time.monotonic()
        is_crowded = len(self.crew.leaving) > self.limits.most  # those that leave are counted apart, but not for ever
        if is_crowded or not self.backoff.may_start(now, self.crew.starting):
            return None
        try:
            member = self.crew.start(self.record.id, is_extra=is_extra)
        except OSError as error:
            self.problem = f"cannot start a worker: {error}"
            log.error("%s", self.problem)
            self.backoff.died_young(now)
            return None
        if self._is_quiet:
            member.channel.send({"do": "quiet"})
        return member

    # --- what it says of itself -------------------------------------------------------------------------------------

    def is_well(self) -> bool:
        """Do its heartbeats get through, and do its workers start?"""
        is_heard = self.record.is_joined and self.heartbeat.silence() < self._settings.lease / SECOND
        return is_heard and not self.backoff.is_hopeless

    def report(self) -> dict[str, Any]:
        """What the storage, the status file and the log are told; any thread may ask."""
        followed = self.orders.followed  # first: what it has changed must not be missing in what is read after it
        members, need = self.crew.members, self.backlog.need
        report = {
            "state": self._state(),
            "crew": len(self.crew.active),
            "online": sum(member.is_online for member in members),
            "wanted": self.wanted,
            "min": self.limits.least,
            "max": self.limits.most,
            "slots": self.limits.slots,
            "extra": len(self.crew.extra),
            "leaving": len(self.crew.leaving),
            "busy": sum(member.report.get("busy", 0) for member in members),
            "starts": self.crew.starts,
            "deaths": self.deaths,
            "rescued": self.settling.rescued,
            "backlog": need.backlog if need else None,
            "steady": self.heartbeat.is_steady(),
            "skew": round(self.heartbeat.skew, 1),
            "checkin": self.pulse.calls.status,
            "problem": self.problem,
            "order": followed,
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
            "min": self.limits.least,
            "max": self.limits.most,
            "concurrency": self.limits.slots,
            "drain_s": self._settings.stop_grace / SECOND,
            "version": __version__,
            PROCESS_SPACE: process_space(),
        }


def _when(seconds: float) -> str:
    return "after the next restart (SIGHUP), which a saved file causes" if math.isinf(seconds) else f"in {seconds:g} s"


def limits_of(settings: Settings) -> scaling.Limits:
    """How large the crew may be; where nothing is set, as many workers as there are CPUs for this process."""
    cpus = os.cpu_count() or 1
    with suppress(AttributeError):
        cpus = len(os.sched_getaffinity(0))
    return scaling.Limits(
        least=settings.min_workers,
        most=max(settings.max_workers or cpus, settings.min_workers),
        slots=settings.concurrency,
        idle_stop=settings.idle_stop / SECOND,
        most_extra=cpus if settings.max_forced is None else settings.max_forced,
    )
