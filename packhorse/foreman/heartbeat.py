"""The heartbeat: one write every few seconds for the whole workers and the foreman itself, from a thread of its own.

It is the foreman that beats, so a job that holds the interpreter lock cannot cost its worker the lease. When the
poller has seen that running jobs should stop, it asks which, and loads that on. While the storage is away it tries on,
with jitter; a worker that was struck off meanwhile is marked, and the foreman has it quit. Whatever is wrong with one
worker is told in the log, and costs no other its beat.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from packhorse.core.clock import SECOND
from packhorse.core.errors import PackhorseError, StorageError, StorageUnavailable
from packhorse.core.event import Subject
from packhorse.foreman.background import BackgroundLoop
from packhorse.foreman.dead_workers import rescue_former
from packhorse.foreman.processes import WorkerGroup
from packhorse.foreman.rescue_guard import RescueGuard
from packhorse.foreman.worker_handle import WorkerHandle
from packhorse.storage.contract import Storage
from packhorse.storage.records import START, Beat, Outlook, Stop, WorkerInfo
from packhorse.worker.spool import Spool

log = logging.getLogger("packhorse")

_FRESH = 3.0
"""Seconds for which the storage's time, as the poller has seen it, is as good as asked for."""


def boot_time() -> float:
    """Seconds, by a clock that nobody turns and that goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def skew_of(wall: float, took: float, now: float) -> float:
    """Seconds that this machine's clock is ahead of the storage's, which showed `now` at some moment of the `took`
    seconds before `wall`; 0 where that may be the whole difference."""
    ahead = wall - took / 2 - now
    return ahead if abs(ahead) > took / 2 else 0.0


class ForemanRecord:
    """The foreman's own record in the storage."""

    def __init__(self, storage: Storage, info: Mapping[str, Any], host: str | None = None) -> None:
        self._storage = storage
        self._info = dict(info)
        self._host = host or socket.gethostname()
        self.id = secrets.token_urlsafe(16)
        self.is_joined = False
        self.is_first = True
        self._has_waited = False  # for a storage that was away

    def join(self) -> None:
        """Make it known."""
        self._storage.join(
            WorkerInfo(
                self.id,
                subject=Subject.FOREMAN,
                host=self._host,
                pid=os.getpid(),
                info={**self._info, START: self.id},  # which is new for every process
            )
        )
        self.is_joined, self.is_first = True, False

    def may_wait(self, error: PackhorseError) -> bool:
        """May joining be tried again after this error? At the start only if waiting may help: a wrong path or password
        is told at once. Who was there before, or has waited already, waits on: a server that has just come up may not
        have its databases and users yet."""
        may_wait = isinstance(error, StorageUnavailable) and (error.may_pass or not self.is_first or self._has_waited)
        self._has_waited = may_wait
        return may_wait

    def renew(self) -> None:
        """It was struck off, and an id is never used twice: join again under a new one."""
        self.id = secrets.token_urlsafe(16)
        self.is_joined = False

    def leave(self, why: str) -> None:
        """An ordered end."""
        if self.is_joined:
            self.is_joined = False
            self._storage.leave(self.id, why=why)


class _Reading(NamedTuple):
    """What the storage's clock showed, at some moment between these two of this machine's."""

    sent: float
    received: float
    now: int


class Heartbeat:
    """Beats for the workers. `wake` wakes the loop, `report` is what the foreman says of itself, `announce` tells
    the storage what its app has. One that is `hasty` does not wait for a storage that is away when it begins."""

    def __init__(
        self,
        storage: Storage,
        workers: WorkerGroup,
        record: ForemanRecord,
        *,
        heartbeat: float,
        lease: float,
        report: Callable[[], dict[str, Any]],
        wake: Callable[[], None],
        announce: Callable[[], None] = lambda: None,
        hasty: bool = False,
        spool: Spool | None = None,
    ) -> None:
        self._storage = storage
        self._spool = spool or Spool(None)
        self._workers = workers
        self._record = record
        self._heartbeat = heartbeat
        self._report = report
        self._wake = wake
        self._announce = announce
        self._hasty = hasty
        self._order: str | None = None  # of queues, which is still to be told
        self._beat_at = 0.0
        self.skew = 0.0  # seconds that this machine's clock is ahead of the storage's, as far as it can be told
        self._has_stops = False  # as the poller says
        self._seen: _Reading | None = None  # of the storage's clock, by the poller
        self.guard = RescueGuard(lease, heartbeat)
        self.accepted_at: float | None = None  # by `boot_time`
        self.latency_ms: float | None = None  # how long the storage took for the last heartbeat
        self.error: PackhorseError | None = None  # the storage cannot be used at all
        # Soon after an outage: the steady rule counts on everybody's doing so.
        self.loop = BackgroundLoop("the heartbeat", self.step, longest_retry=min(1.0, heartbeat / 5))

    def may_rescue(self) -> bool:
        """Could this process rescue the jobs of others, as far as it knows?"""
        return self.guard.may_rescue(boot_time())

    def trusted_time(self) -> int | None:
        """The storage's time, if it may do so now, and by that time. It was looked at just now, because somebody may
        have set the clock since the last beat; whoever rescues loads on the answer, because somebody may set it the
        next moment."""
        if not self.may_rescue():
            return None
        sent, received, now = self._reading()
        if self.guard.agrees(sent, received, now / SECOND):
            return now
        self.beat_soon()
        return None

    def _reading(self) -> _Reading:
        """A late one of the storage's clock. An older one does no harm: everybody seems less silent by it."""
        seen, sent = self._seen, boot_time()
        if seen is not None and sent - seen.received < _FRESH:
            return seen
        now = self._storage.now()
        return _Reading(sent, boot_time(), now)

    def on_poll(self, outlook: Outlook, sent: float, received: float) -> None:
        """What the poller has seen, and between which moments."""
        self._seen = _Reading(sent, received, outlook.now)
        if outlook.stops:
            self._has_stops = True
            self.loop.wake()

    def silence(self) -> float:
        """Seconds since the storage last accepted a beat."""
        return boot_time() - self.accepted_at if self.accepted_at is not None else float("inf")

    def set_order(self, order: str | None) -> None:
        """The settings were read again, and have this order of queues; None: they have none."""
        self._order = order
        self.loop.wake()

    def beat_soon(self) -> None:
        """A worker has come online; it begins nothing before it was beaten for."""
        self._beat_at = 0.0
        self.loop.wake()

    def step(self) -> float:
        """Beat if it is time, else ask what should stop if anything should."""
        if not self._record.is_joined:
            self._join()
        has_stops, self._has_stops = self._has_stops, False
        if boot_time() >= self._beat_at:
            self._beat()
        elif has_stops:
            self._hand_on(self._storage.stops([worker.id for worker in self._workers.members if worker.is_online]))
        self._tell_order()
        return max(0.0, self._beat_at - boot_time())

    def _tell_order(self) -> None:
        order, self._order = self._order, None
        if order is None:
            return
        try:
            self._storage.announce([], order=order)
        except PackhorseError:
            self._order = self._order or order  # the next step tries again
            raise

    def _join(self) -> None:
        try:
            if self._record.is_first:
                self._spool.deliver(self._storage)  # before the jobs of those who left it here are taken back
                rescue_former(self._storage)
            self._announce()
            self._record.join()
        except PackhorseError as error:
            if self._hasty or not self._record.may_wait(error):
                self.error = error
                self.loop.stop()  # the foreman ends with it
            raise
        finally:
            self._wake()

    def _beat(self) -> None:
        foreman, sent = self._record.id, boot_time()
        self._beat_at = sent + self._heartbeat  # first: who comes online from here on asks for a beat of its own
        beating: list[WorkerHandle] = []
        reports: dict[str, dict[str, Any]] = {foreman: self._report()}
        for worker in self._workers.members:
            with _apart(worker):
                if worker.is_online and self._is_awake(worker):
                    beating.append(worker)
                    reports[worker.id] = {}  # it lives, whatever it says
                    reports[worker.id] = worker.told(time.monotonic())
        try:
            beat = self._send(reports)
        except Exception:
            self._beat_at = 0.0
            raise
        self.accepted_at = boot_time()
        self.latency_ms = round((self.accepted_at - sent) * 1_000, 1)
        running = sum(report.get("busy", 0) for owner, report in reports.items() if owner != foreman)
        log.debug("checked %d workers with %d running jobs, in %g ms", len(beating), running, self.latency_ms)
        self.skew = skew_of(time.time(), self.accepted_at - sent, beat.now / SECOND)
        self.guard.accepted(sent, self.accepted_at, beat.now / SECOND)
        self._take(beat, foreman, beating, sent)

    def _send(self, reports: dict[str, dict[str, Any]]) -> Beat:
        """Beat for all of them; without what they say, if that is refused: they live all the same."""
        try:
            return self._storage.beat(reports)
        except (StorageError, OSError):
            raise
        except Exception:
            log.exception("what the workers say of themselves is refused; the heartbeat is sent without it")
            return self._storage.beat({owner: {} for owner in reports})

    def _is_awake(self, worker: WorkerHandle) -> bool:
        """A worker that a signal has stopped does not live: beating for it would keep its jobs for ever."""
        worker.is_frozen = worker.is_stopped()
        if worker.is_frozen:
            self._wake()  # the foreman sees to it that it ends in time
        return not worker.is_frozen

    def _take(self, beat: Beat, foreman: str, beating: Iterable[WorkerHandle], sent: float) -> None:
        if foreman in beat.unknown:
            log.warning("this foreman was struck off: its heartbeats did not get through; it joins again")
            self.guard.interrupted()
            self._record.renew()
        for worker in beating:
            if worker.id in beat.unknown:
                worker.is_unknown = True
            else:
                worker.beaten_at = sent
                with _apart(worker):
                    worker.beat()
        if beat.unknown:
            self._wake()
        self._hand_on(beat.stops)

    def _hand_on(self, stops: Iterable[Stop]) -> None:
        """Again and again until the job has ended: a worker may not have known of it yet."""
        for stop in stops:
            worker = self._workers.get(stop.token.owner)
            if worker is not None:
                with _apart(worker):
                    worker.stop_job(stop)


@contextmanager
def _apart(worker: WorkerHandle) -> Iterator[None]:
    """Whatever is wrong with this worker is told, and does not reach the others."""
    try:
        yield
    except Exception:
        log.exception("something is wrong with worker %d; the heartbeat goes on", worker.pid)
