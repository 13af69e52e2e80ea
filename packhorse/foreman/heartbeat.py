"""The heartbeat: one write every few seconds for all workers and the foreman itself, from a thread of its own.

The foreman sends it, so a job that holds the interpreter lock cannot cost its worker the lease. When the poller reports
that running jobs should stop, this thread reads which, and forwards the requests. While the storage is away it retries
with jitter. A worker that the storage has forgotten is marked, and the foreman ends it. An error with one worker is
logged and does not affect the heartbeats of the others.
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
from packhorse.foreman.dead_workers import rescue_dead_processes
from packhorse.foreman.processes import WorkerGroup
from packhorse.foreman.rescue_guard import RescueGuard
from packhorse.foreman.worker_handle import WorkerHandle
from packhorse.storage.contract import Storage
from packhorse.storage.records import START, AbortRequest, HeartbeatReply, PollResult, WorkerInfo
from packhorse.worker.spool import Spool

log = logging.getLogger("packhorse")

_FRESH = 3.0
"""Seconds for which the storage's time from the poller counts as current."""


def boot_time() -> float:
    """Seconds by a clock that cannot be set and that runs while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def skew_of(wall: float, took: float, now: float) -> float:
    """Seconds by which this machine's clock is ahead of the storage's, which showed `now` at some moment of the `took`
    seconds before `wall`; 0 if `took` may explain the difference."""
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
        """Register it in the storage."""
        self._storage.join(
            WorkerInfo(
                self.id,
                subject=Subject.FOREMAN,
                host=self._host,
                pid=os.getpid(),
                info={**self._info, START: self.id},  # unique for each process
            )
        )
        self.is_joined, self.is_first = True, False

    def may_retry(self, error: PackhorseError) -> bool:
        """May joining be retried after this error? On the first attempt only if waiting may help: a wrong path or
        password is an immediate error. Later attempts always wait: a server that has just started may lack its
        databases and users."""
        may_retry = isinstance(error, StorageUnavailable) and (error.may_pass or not self.is_first or self._has_waited)
        self._has_waited = may_retry
        return may_retry

    def change_id(self) -> None:
        """The storage has forgotten it, and ids are never reused: join again under a new id."""
        self.id = secrets.token_urlsafe(16)
        self.is_joined = False

    def leave(self, why: str) -> None:
        """Remove it after an ordered end."""
        if self.is_joined:
            self.is_joined = False
            self._storage.leave(self.id, why=why)


class _ClockReading(NamedTuple):
    """The storage's time `now`, at some moment between these two of this machine's clock."""

    sent: float
    received: float
    now: int


class Heartbeat:
    """Sends the heartbeats. `wake` wakes the foreman's loop, `report` returns the foreman's facts, `announce` writes
    what the app has. With `fail_fast`, a storage that is away at the start is an error."""

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
        fail_fast: bool = False,
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
        self._fail_fast = fail_fast
        self._order: str | None = None  # the order of queues, if it must still be written
        self._beat_at = 0.0
        self.skew = 0.0  # seconds by which this machine's clock is ahead of the storage's
        self._has_stops = False  # as the poller reports
        self._seen: _ClockReading | None = None  # of the storage's clock, by the poller
        self.guard = RescueGuard(lease, heartbeat)
        self.accepted_at: float | None = None  # by `boot_time`
        self.latency_ms: float | None = None  # the duration of the last heartbeat
        self.error: PackhorseError | None = None  # the storage cannot be used at all
        # Retries soon after an outage: the rescue guard relies on every process doing so.
        self.loop = BackgroundLoop("the heartbeat", self.step, longest_retry=min(1.0, heartbeat / 5))

    def may_rescue(self) -> bool:
        """May this process rescue the jobs of others, as far as it knows?"""
        return self.guard.may_rescue(boot_time())

    def trusted_time(self) -> int | None:
        """The storage's time, if this process may rescue by it now. It is compared with this machine's clock, because
        the storage's clock may have been set since the last heartbeat. Callers pass the time to the storage, because
        the clock may be set at any moment."""
        if not self.may_rescue():
            return None
        sent, received, now = self._reading()
        if self.guard.agrees(sent, received, now / SECOND):
            return now
        self.beat_soon()
        return None

    def _reading(self) -> _ClockReading:
        """A recent reading of the storage's clock. An older one is safe: it makes every worker seem less silent."""
        seen, sent = self._seen, boot_time()
        if seen is not None and sent - seen.received < _FRESH:
            return seen
        now = self._storage.now()
        return _ClockReading(sent, boot_time(), now)

    def on_poll(self, result: PollResult, sent: float, received: float) -> None:
        """The poller's result, read between these two moments."""
        self._seen = _ClockReading(sent, received, result.now)
        if result.stops:
            self._has_stops = True
            self.loop.wake()

    def silence(self) -> float:
        """Seconds since the storage last accepted a heartbeat."""
        return boot_time() - self.accepted_at if self.accepted_at is not None else float("inf")

    def set_order(self, order: str | None) -> None:
        """The settings were read again and have this order of queues, or None."""
        self._order = order
        self.loop.wake()

    def beat_soon(self) -> None:
        """Send the next heartbeat now, for a worker that came online: it starts no job before its first heartbeat."""
        self._beat_at = 0.0
        self.loop.wake()

    def step(self) -> float:
        """Send the heartbeat if it is time, else read which jobs should stop, if any."""
        if not self._record.is_joined:
            self._join()
        has_stops, self._has_stops = self._has_stops, False
        if boot_time() >= self._beat_at:
            self._beat()
        elif has_stops:
            self._forward(
                self._storage.abort_requests([worker.id for worker in self._workers.members if worker.is_online])
            )
        self._write_order()
        return max(0.0, self._beat_at - boot_time())

    def _write_order(self) -> None:
        order, self._order = self._order, None
        if order is None:
            return
        try:
            self._storage.announce([], order=order)
        except PackhorseError:
            self._order = self._order or order  # the next step retries
            raise

    def _join(self) -> None:
        try:
            if self._record.is_first:
                self._spool.deliver(self._storage)  # before the jobs of their workers are rescued
                rescue_dead_processes(self._storage)
            self._announce()
            self._record.join()
        except PackhorseError as error:
            if self._fail_fast or not self._record.may_retry(error):
                self.error = error
                self.loop.stop()  # the foreman ends with this error
            raise
        finally:
            self._wake()

    def _beat(self) -> None:
        foreman, sent = self._record.id, boot_time()
        self._beat_at = (
            sent + self._heartbeat
        )  # set first: a worker that comes online from here on requests another heartbeat
        beating: list[WorkerHandle] = []
        reports: dict[str, dict[str, Any]] = {foreman: self._report()}
        for worker in self._workers.members:
            with _isolated(worker):
                if worker.is_online and self._is_awake(worker):
                    beating.append(worker)
                    reports[worker.id] = {}  # it is alive, even if its report fails
                    reports[worker.id] = worker.stored_report(time.monotonic())
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

    def _send(self, reports: dict[str, dict[str, Any]]) -> HeartbeatReply:
        """Send the heartbeat for all; if the storage rejects the reports, send it without them."""
        try:
            return self._storage.heartbeat(reports)
        except (StorageError, OSError):
            raise
        except Exception:
            log.exception("the storage rejects the reports of the workers; sending the heartbeat without them")
            return self._storage.heartbeat({owner: {} for owner in reports})

    def _is_awake(self, worker: WorkerHandle) -> bool:
        """A worker that a signal has stopped gets no heartbeat: it would keep its jobs indefinitely."""
        worker.is_frozen = worker.is_stopped()
        if worker.is_frozen:
            self._wake()  # the foreman ends it in time
        return not worker.is_frozen

    def _take(self, beat: HeartbeatReply, foreman: str, beating: Iterable[WorkerHandle], sent: float) -> None:
        if foreman in beat.unknown:
            log.warning("the storage forgot this foreman, because its heartbeats did not get through; joining again")
            self.guard.interrupted()
            self._record.change_id()
        for worker in beating:
            if worker.id in beat.unknown:
                worker.is_unknown = True
            else:
                worker.beat_at = sent
                with _isolated(worker):
                    worker.beat()
        if beat.unknown:
            self._wake()
        self._forward(beat.stops)

    def _forward(self, stops: Iterable[AbortRequest]) -> None:
        """Forward the requests again with each heartbeat until the jobs have ended: a worker may not have a job yet."""
        for stop in stops:
            worker = self._workers.get(stop.token.owner)
            if worker is not None:
                with _isolated(worker):
                    worker.stop_job(stop)


@contextmanager
def _isolated(worker: WorkerHandle) -> Iterator[None]:
    """Log an error with this worker, so that it does not affect the others."""
    try:
        yield
    except Exception:
        log.exception("an error with worker %d; the heartbeat continues", worker.pid)
