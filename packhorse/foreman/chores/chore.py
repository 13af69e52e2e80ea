"""What a chore is; the foreman's timer knows nothing else of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from packhorse.core.outcome import Overrun
from packhorse.core.settings import Settings
from packhorse.storage.records import Outlook

TrustedTime = Callable[[], int | None]
"""The storage's time, read a moment ago, if it can be believed: this foreman's heartbeats have been accepted for a
whole lease without a gap, and no clock was set since. None: it cannot. Who takes away jobs or whatever seems old loads
it on to the storage, for the clock may be set the next moment."""


EndWorker = Callable[[Overrun], bool]
"""Ends the worker that does not end this job, and has this said of it then. False: the worker is another foreman's, or
nobody's."""

StuckJobs = Callable[[], Mapping[str, Mapping[str, int]]]
"""Those of this foreman's workers that do not watch the time limits of their jobs any more: for each its running jobs,
and for how many microseconds these have run."""


class Chore(Protocol):
    """One loop. `run` raises what the storage raises; the timer waits and goes on."""

    @property
    def name(self) -> str:
        """What logs call it."""

    @property
    def interval(self) -> float:
        """Seconds between two runs, unless `run` says otherwise."""

    def run(self) -> float | None:
        """Do what is to be done now. Answers in how many seconds it wants to run again; None: its interval."""


@runtime_checkable
class PredictableChore(Chore, Protocol):
    """A chore whose time the storage can tell. A foreman, who looks every second, runs it just then; its interval is
    for whatever was not foreseen."""

    def due_in(self, outlook: Outlook) -> int | None:
        """Microseconds until there is something to do; None: there is nothing."""


@runtime_checkable
class AdjustableChore(Chore, Protocol):
    """A chore that does as the settings say, which may be read again while it is at work."""

    def adjust(self, settings: Settings) -> None:
        """From its next run on, do as these say."""
