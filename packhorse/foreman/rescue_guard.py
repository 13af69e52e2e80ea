"""The steady rule: may this process take jobs away from workers that look dead?

After an outage, a suspended machine or a step of the clock every worker looks dead at once. So only a process whose own
heartbeats were accepted without a gap for a whole lease may rescue: by then whoever lives has beaten too. The clock of
the storage must also have gone as this machine's clock did. Plain arithmetic, no I/O; the heartbeat feeds it.
"""

from __future__ import annotations

from typing import NamedTuple

DRIFT = 1.0
"""Seconds by which the storage's clock and this machine's may disagree over a lease."""
GAP = 1.5
"""How many heartbeats may pass between two accepted ones. Another process may have been silent for that long, and for
its own heartbeat before; together that must stay within the lease."""
PROMPT = 0.1
"""The part of a heartbeat that an answer may take. One that took longer may have waited for the end of an outage, and
nobody knows whether others have got through since."""


class _Beat(NamedTuple):
    sent: float  # by this machine's clock, in seconds
    received: float
    storage: float  # by the storage's clock, somewhere between the two


class RescueGuard:
    """What is remembered of the last beats. One thread tells it; any thread may ask."""

    def __init__(self, lease: float, heartbeat: float) -> None:
        self._lease = lease
        self._gap = GAP * heartbeat
        self._prompt = PROMPT * heartbeat
        self._beats: tuple[_Beat, ...] = ()  # without a gap between them, and not more than a lease needs

    def accepted(self, sent: float, received: float, storage: float) -> None:
        """The storage took a heartbeat; all three in seconds, `storage` by the storage's own clock."""
        beat = _Beat(sent, received, storage)
        known = self._beats
        if known and not (self._follows(beat, known[-1]) and _agree(beat, known[0]) and _agree(beat, known[-1])):
            known = ()
        self._beats = self._needed((*known, beat))

    def interrupted(self) -> None:
        """Something happened after which nothing is certain: this process was itself struck off."""
        self._beats = ()

    def may_rescue(self, at: float) -> bool:
        """May this process rescue, at this moment of its own clock?"""
        beats = self._beats
        if not beats or at - beats[-1].received > self._gap:
            return False
        return beats[-1].received - self._known_since(beats[0]) >= self._lease

    def agrees(self, sent: float, received: float, storage: float) -> bool:
        """Has the storage's clock gone as ours since the last beat? Asked just before a rescue: a step of the clock
        makes everybody look silent long before the next beat tells of it."""
        beats = self._beats
        return bool(beats) and _agree(_Beat(sent, received, storage), beats[-1])

    def _follows(self, beat: _Beat, last: _Beat) -> bool:
        return beat.received - last.received <= self._gap

    def _needed(self, beats: tuple[_Beat, ...]) -> tuple[_Beat, ...]:
        """Without those beats that lie more than a lease back, but for the last of them."""
        while len(beats) > 1 and beats[-1].received - self._known_since(beats[1]) >= self._lease:
            beats = beats[1:]
        return beats

    def _known_since(self, beat: _Beat) -> float:
        """From when on this beat tells that the storage is there for everybody."""
        return max(beat.sent, beat.received - self._prompt)


def _agree(beat: _Beat, earlier: _Beat) -> bool:
    """Did both clocks go equally fast? The storage's moment lies anywhere between sending and receiving."""
    passed = beat.storage - earlier.storage
    return beat.sent - earlier.received - DRIFT <= passed <= beat.received - earlier.sent + DRIFT
