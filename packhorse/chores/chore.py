"""What a chore is; the foreman's timer knows nothing else of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

SteadyTime = Callable[[], int | None]
"""The storage's time, read just now, if it can be believed: this foreman's heartbeats have been accepted for a whole
lease without a gap, and no clock was set since. None: it cannot. Who takes jobs away hands it on to the storage,
for the clock may be set the next moment."""


class Chore(Protocol):
    """One duty. `run` raises what the storage raises; the timer waits and goes on."""

    @property
    def name(self) -> str:
        """What logs call it."""

    @property
    def interval(self) -> float:
        """Seconds between two runs, unless `run` says otherwise."""

    def run(self) -> float | None:
        """Do what is to be done now. Answers in how many seconds it wants to run again; None: its interval."""
