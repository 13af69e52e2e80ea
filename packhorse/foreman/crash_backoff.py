"""How long to wait before the next worker is started when they die young, so that a broken app causes no storm of
starts. Plain arithmetic: the foreman tells it what happened and when.
"""

from __future__ import annotations

import math

YOUNG = 10.0
"""Seconds. A worker that ends sooner, and has finished no job, died young."""
TOLERATED = 3
"""So many young deaths in a row are answered with a new worker at once."""
HOPELESS = 5
"""After so many without a single success ever, the app itself is broken."""
LONGEST = 60.0


class CrashBackoff:
    """Counts young deaths in a row, of the whole workers. One that `gives_up` has no worker started after `HOPELESS` of
    them, until it is told that there is hope again."""

    def __init__(self, *, gives_up: bool = False) -> None:
        self._gives_up = gives_up
        self.deaths = 0
        self._succeeded = False
        self._not_before = 0.0

    def died_young(self, at: float) -> None:
        self.deaths += 1
        self._not_before = at + self.wait

    def succeeded(self) -> None:
        """A worker has finished a job, or lived long enough."""
        self.deaths = 0
        self._succeeded = True

    def hope(self) -> None:
        """What the workers run has changed, and those of before say nothing about it."""
        self.deaths = 0

    @property
    def wait(self) -> float:
        """Seconds between the last young death and the next start."""
        if self.deaths < TOLERATED:
            return 0.0
        if self._gives_up and self.deaths >= HOPELESS:
            return math.inf
        if self.is_hopeless:
            return LONGEST
        return min(LONGEST, 2.0 ** min(self.deaths - TOLERATED, 10))

    @property
    def is_hopeless(self) -> bool:
        return self.deaths >= HOPELESS and not self._succeeded

    def seconds_left(self, at: float) -> float:
        """How long no worker may be started."""
        return max(0.0, self._not_before - at) if self.deaths >= TOLERATED else 0.0

    def may_start(self, at: float, starting: int) -> bool:
        """While in doubt, one worker at a time is tried: `starting` is how many are on their way."""
        if self.deaths < TOLERATED:
            return True
        return starting == 0 and self.seconds_left(at) == 0.0
