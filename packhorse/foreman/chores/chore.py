"""The protocol of a chore; the runner knows nothing else about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from packhorse.core.outcome import Overrun
from packhorse.core.settings import Settings
from packhorse.storage.records import PollResult

TrustedTime = Callable[[], int | None]
"""Returns the storage's time, read a moment ago, if this foreman's heartbeats were accepted for a whole lease without a
gap and no clock was set since; otherwise None. Chores that rescue or remove pass the time to the storage, because a
clock may be set at any moment."""


EndWorker = Callable[[Overrun], bool]
"""Ends the worker that does not end this job, and stores this outcome. Returns False if the worker is not this
foreman's."""

StuckJobs = Callable[[], Mapping[str, Mapping[str, int]]]
"""Returns the workers of this foreman that no longer watch time limits: for each its running jobs, and for how many
microseconds these have run."""


class Chore(Protocol):
    """One repeated task of a foreman. `run` raises the errors of the storage; the runner logs them and continues."""

    @property
    def name(self) -> str:
        """Its name in logs."""

    @property
    def interval(self) -> float:
        """Seconds between two runs, unless `run` returns another pause."""

    def run(self) -> float | None:
        """Do what is due. Return the seconds until the next run, or None for the interval."""


@runtime_checkable
class PredictableChore(Chore, Protocol):
    """A chore whose next run the storage can predict. The poller makes it run then; its interval covers the
    unforeseen."""

    def due_in(self, result: PollResult) -> int | None:
        """Microseconds until there is something to do, or None."""


@runtime_checkable
class AdjustableChore(Chore, Protocol):
    """A chore that follows settings, which may be read again while it runs."""

    def adjust(self, settings: Settings) -> None:
        """Follow these settings from the next run on."""
