"""How long the jobs of each task take, as this worker has seen it. The loop asks, before it held jobs jobs: short
ones run
one after the other, long ones are marked as running before they run."""

from __future__ import annotations

from packhorse.core.clock import SECOND

SHORT_TASK = 0.001
"""Seconds. Jobs of plain tasks that take less than this run one after the other on one thread: ten threads would hand
the interpreter's lock around between them and take twice as long."""
LONG_TASK = 0.1
"""Seconds. Jobs of a task that takes longer than this are marked as running before they run."""
SMOOTHING = 0.02
"""How much the latest job counts in the mean of its task."""


class TaskDurations:
    """Of the jobs that ended here, in seconds."""

    def __init__(self) -> None:
        self._latest: dict[str, float] = {}
        self._means: dict[str, float] = {}  # a single job may have waited for the interpreter's lock

    def note(self, task: str, ran: int) -> None:
        """A job of this task ran so many microseconds."""
        seconds = ran / SECOND
        self._latest[task] = seconds
        self._means[task] = self._means.get(task, seconds) * (1 - SMOOTHING) + seconds * SMOOTHING

    def are_short(self, task: str) -> bool:
        """Not those of a task of which none has run yet."""
        return self._means.get(task, SHORT_TASK) < SHORT_TASK

    def are_long(self, task: str) -> bool:
        return self._latest.get(task, 0.0) > LONG_TASK
