"""Starts that are written down before the job's first line.

A job that was lost before may be the one that kills its workers: should it die with everybody who could tell, the
storage must know that it had begun. So it must of a job that one halt ends. Jobs of tasks that take long are shown as
running from the beginning. Such a job waits in its slot until the loop has written its start, so only a job that begins
is marked as running.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from packhorse.worker.held_job import HeldJob


class PendingStarts:
    """The jobs that have a slot and whose start is to be written. To the slots it is an executor."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._waiting: deque[tuple[HeldJob, int]] = deque()

    def begin(self, held: HeldJob, slot: int) -> None:
        self._waiting.append((held, slot))
        self._ring()

    def stop(self, held: HeldJob, *, hard: bool) -> bool:
        """It has not begun: whoever wants it to end hands it back."""
        return False

    def close(self) -> None: ...

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self) -> list[tuple[HeldJob, int]]:
        """Those that wait, each with its slot."""
        taken: list[tuple[HeldJob, int]] = []
        while self._waiting:
            taken.append(self._waiting.popleft())
        return taken
