"""How a slot runs a task: on a thread, on the event loop, or in a child process."""

from __future__ import annotations

from typing import Protocol

from packhorse.worker.held_job import HeldJob


class Executor(Protocol):
    """Runs held jobs. It puts each outcome into the queue of outcomes, and gives the slot back."""

    def begin(self, held: HeldJob, slot: int) -> None:
        """Run this job in this slot, unless it was handed back meanwhile. From any thread; does not wait."""

    def stop(self, held: HeldJob, *, hard: bool) -> bool:
        """Ask this job to stop, or with `hard` end it. False: this executor cannot end it."""

    def close(self) -> None:
        """End: no more jobs will come."""
