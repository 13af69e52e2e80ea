"""The rescue guard: may this process take jobs away from workers that look dead?

After an outage, a suspended machine or a change of the clock, every worker looks dead. So a process may rescue only if
its own heartbeats were accepted without a gap for a whole lease: by then every living worker has sent one too. The
storage's clock must also have run at the speed of this machine's. Plain arithmetic without I/O; the heartbeat feeds it.
"""

from __future__ import annotations

from typing import NamedTuple

DRIFT = 1.0
"""Seconds by which the storage's clock and this machine's may disagree over a lease."""
GAP = 1.5
"""The longest gap between two accepted heartbeats, in intervals. Another process may have been silent for that long,
and for the interval before; together that must stay within the lease."""
PROMPT = 0.1
"""The longest duration of a heartbeat, in intervals. A slower one may have waited for the end of an outage, and other
processes may not have got through yet."""


class _Beat(NamedTuple):
    sent: float  # by this machine's clock, in seconds
    received: float
    storage: float  # by the storage's clock, at some moment between the two


class RescueGuard:
    """Remembers the last heartbeats. One thread feeds it; any thread may ask it."""

    def __init__(self, lease: float, heartbeat: float) -> None:
        self._lease = lease
        self._gap = GAP * heartbeat
        self._prompt = PROMPT * heartbeat
        self._heartbeats: tuple[_Beat, ...] = ()  # without a gap between them, and no more than a lease needs

    def accepted(self, sent: float, received: float, storage: float) -> None:
        """The storage accepted a heartbeat; all three in seconds, `storage` by the storage's own clock."""
        beat = _Beat(sent, received, storage)
        known = self._heartbeats
        if known and not (self._follows(beat, known[-1]) and _agree(beat, known[0]) and _agree(beat, known[-1])):
            known = ()
        self._heartbeats = self._needed((*known, beat))

    def interrupted(self) -> None:
        """Start again: the storage had forgotten this process."""
        self._heartbeats = ()

    def may_rescue(self, at: float) -> bool:
        """May this process rescue at this moment of its own clock?"""
        beats = self._heartbeats
        if not beats or at - beats[-1].received > self._gap:
            return False
        return beats[-1].received - self._known_since(beats[0]) >= self._lease

    def agrees(self, sent: float, received: float, storage: float) -> bool:
        """Has the storage's clock run like this machine's since the last heartbeat? Checked just before a rescue,
        because after a change of the clock every worker looks silent."""
        beats = self._heartbeats
        return bool(beats) and _agree(_Beat(sent, received, storage), beats[-1])

    def _follows(self, beat: _Beat, last: _Beat) -> bool:
        return beat.received - last.received <= self._gap

    def _needed(self, beats: tuple[_Beat, ...]) -> tuple[_Beat, ...]:
        """Without the heartbeats more than a lease old, except the latest of these."""
        while len(beats) > 1 and beats[-1].received - self._known_since(beats[1]) >= self._lease:
            beats = beats[1:]
        return beats

    def _known_since(self, beat: _Beat) -> float:
        """The moment from which on this heartbeat proves that the storage is available to all."""
        return max(beat.sent, beat.received - self._prompt)


def _agree(beat: _Beat, earlier: _Beat) -> bool:
    """Did both clocks run equally fast? The storage's time is from some moment between sending and receiving."""
    passed = beat.storage - earlier.storage
    return beat.sent - earlier.received - DRIFT <= passed <= beat.received - earlier.sent + DRIFT
