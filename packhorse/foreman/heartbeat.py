"""The heartbeat: one write every few seconds for the whole crew and the foreman itself, from a thread of its own.

It is the foreman that beats, so a job that holds the interpreter lock cannot cost its worker the lease. When the
lookout has seen that running jobs should stop, it asks which, and hands that on. While the storage is away it tries on,
with jitter; a worker that was struck off meanwhile is marked, and the foreman has it quit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from packhorse.clock import SECOND
from packhorse.errors import StorageError, StorageUnavailable
from packhorse.foreman.crew import Crew
from packhorse.foreman.duty import Duty
from packhorse.foreman.former import rescue_former
from packhorse.foreman.member import Member
from packhorse.foreman.pulse import Record
from packhorse.foreman.steady import Steady
from packhorse.storage.contract import Storage
from packhorse.storage.records import Beat, Outlook, Stop

log = logging.getLogger("packhorse")

_FRESH = 2.0
"""Seconds for which the storage's time, as the lookout has seen it, is as good as asked for."""


def boot_time() -> float:
    """Seconds, by a clock that nobody turns and that goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def skew_of(wall: float, took: float, now: float) -> float:
    """Seconds that this machine's clock is ahead of the storage's, which showed `now` at some moment of the `took`
    seconds before `wall`; 0 where that may be the whole difference."""
    ahead = wall - took / 2 - now
    return ahead if abs(ahead) > took / 2 else 0.0


class _Reading(NamedTuple):
    """What the storage's clock showed, at some moment between these two of this machine's."""

    sent: float
    received: float
    now: int


class Heartbeat:
    """Beats for the crew. `wake` wakes the foreman's loop, `report` is what the foreman says of itself."""

    def __init__(
        self,
        storage: Storage,
        crew: Crew,
        record: Record,
        *,
        heartbeat: float,
        lease: float,
        report: Callable[[], dict[str, Any]],
        wake: Callable[[], None],
    ) -> None:
        self._storage = storage
        self._crew = crew
        self._record = record
        self._heartbeat = heartbeat
        self._report = report
        self._wake = wake
        self._beat_at = 0.0
        self.skew = 0.0  # seconds that this machine's clock is ahead of the storage's, as far as it can be told
        self._has_stops = False  # as the lookout says
        self._seen: _Reading | None = None  # of the storage's clock, by the lookout
        self.steady = Steady(lease, heartbeat)
        self.accepted_at: float | None = None  # by `boot_time`
        self.error: StorageError | None = None  # the storage cannot be used at all
        # Soon after an outage: the steady rule counts on everybody's doing so.
        self.duty = Duty("the heartbeat", self.step, longest_retry=min(1.0, heartbeat / 5))

    def is_steady(self) -> bool:
        """Could this process rescue the jobs of others, as far as it knows?"""
        return self.steady.is_steady(boot_time())

    def steady_time(self) -> int | None:
        """The storage's time, if it may do so now, and by that time. It was looked at just now, because somebody may
        have set the clock since the last beat; whoever rescues hands on the answer, because somebody may set it the
        next moment."""
        if not self.is_steady():
            return None
        sent, received, now = self._reading()
        if self.steady.goes_on(sent, received, now / SECOND):
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

    def heed(self, outlook: Outlook, sent: float, received: float) -> None:
        """What the lookout has seen, and between which moments."""
        self._seen = _Reading(sent, received, outlook.now)
        if outlook.stops:
            self._has_stops = True
            self.duty.wake()

    def silence(self) -> float:
        """Seconds since the storage last accepted a beat."""
        return boot_time() - self.accepted_at if self.accepted_at is not None else float("inf")

    def beat_soon(self) -> None:
        """A worker has come online; it begins nothing before it was beaten for."""
        self._beat_at = 0.0
        self.duty.wake()

    def step(self) -> float:
        """Beat if it is time, else ask what should stop if anything should."""
        if not self._record.is_joined:
            self._join()
        has_stops, self._has_stops = self._has_stops, False
        if boot_time() >= self._beat_at:
            self._beat()
        elif has_stops:
            self._hand_on(self._storage.stops([member.id for member in self._crew.members if member.is_online]))
        return max(0.0, self._beat_at - boot_time())

    def _join(self) -> None:
        try:
            if self._record.is_first:
                rescue_former(self._storage)
            self._record.join()
        except StorageUnavailable:
            raise
        except StorageError as error:
            self.error = error
            raise
        finally:
            self._wake()

    def _beat(self) -> None:
        foreman, sent = self._record.id, boot_time()
        self._beat_at = sent + self._heartbeat  # first: who comes online from here on asks for a beat of its own
        beating = [member for member in self._crew.members if member.is_online and self._is_awake(member)]
        reports = {member.id: member.told(time.monotonic()) for member in beating}
        try:
            beat = self._storage.beat({foreman: self._report(), **reports})
        except Exception:
            self._beat_at = 0.0
            raise
        self.accepted_at = boot_time()
        self.skew = skew_of(time.time(), self.accepted_at - sent, beat.now / SECOND)
        self.steady.accepted(sent, self.accepted_at, beat.now / SECOND)
        self._take(beat, foreman, beating)

    def _is_awake(self, member: Member) -> bool:
        """A worker that a signal has stopped does not live: beating for it would keep its jobs for ever."""
        if not member.is_stopped():
            member.stopped_since = None
        elif member.stopped_since is None:
            member.stopped_since = time.monotonic()
        return member.stopped_since is None

    def _take(self, beat: Beat, foreman: str, beating: Iterable[Member]) -> None:
        if foreman in beat.unknown:
            log.warning("this foreman was struck off: its heartbeats did not get through; it joins again")
            self.steady.interrupted()
            self._record.renew()
        for member in beating:
            if member.id in beat.unknown:
                member.is_unknown = True
            else:
                member.beat()
        if beat.unknown:
            self._wake()
        self._hand_on(beat.stops)

    def _hand_on(self, stops: Iterable[Stop]) -> None:
        """Again and again until the job has ended: a worker may not have known of it yet."""
        for stop in stops:
            job_id, owner, fence = stop.token.job_id, stop.token.owner, stop.token.fence
            member = self._crew.get(owner)
            if member is not None:
                member.channel.send(
                    {"do": "stop", "job_id": job_id, "owner": owner, "fence": fence, "reason": stop.reason.value}
                )
