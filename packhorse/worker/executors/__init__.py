"""How a slot runs a task: on a thread, on the event loop, or in a child process."""

from __future__ import annotations

from typing import Protocol

from packhorse.worker.held_job import HeldJob


class Executor(Protocol):
    """Runs held jobs; puts each outcome into the finisher, and gives its slot back."""

    def begin(self, held: HeldJob, slot: int) -> None:
        """Run this one, in this slot, unless it was handed back meanwhile. Called from any thread; does not wait."""

    def stop(self, held: HeldJob, *, hard: bool) -> bool:
        """End this one: ask, or with `hard` make it. False: this executor cannot make it end."""

    def close(self) -> None:
        """No more will come; let go of what is idle."""
