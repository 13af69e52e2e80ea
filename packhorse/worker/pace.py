"""How long jobs take, as this worker has seen it, and what follows: how many to reserve, when to ask again, which jobs
are short or long. Pure arithmetic: the fetcher and the executor pool ask, the finisher notes each run.
"""

from __future__ import annotations

from packhorse.core.clock import SECOND

LOOK_AHEAD = 0.05
"""Seconds of work that may wait in the buffer."""
MAX_BUFFERED = 1_000
LONGEST_WAIT = 10.0
"""Seconds that a worker sleeps once it has been idle for long: the storage wakes it, and so does its foreman, which
polls more often."""
SHORT_TASK = 0.001
"""Seconds. Jobs of plain tasks that take less run one after the other on one thread: several threads would pass the
interpreter lock around and take twice as long."""
LONG_TASK = 0.1
"""Seconds. Jobs of a task that takes longer are marked as running before they begin."""
_SMOOTHING = 0.3
_TASK_SMOOTHING = 0.02
_IDLE_WAITS = (0.0, 0.01, 0.1, 1.0)
_LONG_IDLE = 15
"""After so many empty answers a worker waits for `LONGEST_WAIT`."""


class Pace:
    """The pace of one worker. It reserves what its free slots can begin, plus a buffer of what they will begin within
    50 ms: short jobs come in large batches, and slow ones are never kept from an idle worker."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.tasks = TaskDurations()
        self._mean: float | None = None  # seconds of a recent run
        self._empty = 0  # answers without a job, in a row

    def note(self, runs: list[int]) -> None:
        """These attempts ran for so many microseconds each."""
        if not runs:
            return
        mean = sum(runs) / len(runs) / SECOND
        self._mean = mean if self._mean is None else self._mean + _SMOOTHING * (mean - self._mean)

    def note_overfull(self) -> None:
        """Reserved jobs have waited too long: keep no buffer until finished jobs show a faster pace."""
        self._mean = max(self._mean or 0.0, 2 * self.slots * LOOK_AHEAD)

    def room(self, seconds: float) -> int:
        """How many jobs may wait for a slot while the running ones have run for so long on average."""
        if seconds <= (self._mean or 0.0):
            return MAX_BUFFERED
        return int(self.slots * LOOK_AHEAD / seconds)

    @property
    def buffer(self) -> int:
        """How many jobs may wait for a slot."""
        if self._mean is None:
            return 0
        return min(MAX_BUFFERED, int(self.slots * LOOK_AHEAD / max(self._mean, 1e-6)))

    def wanted(self, in_hand: int) -> int:
        """How many jobs to ask for while the worker holds so many."""
        return max(0, self.slots + self.buffer - in_hand)

    def note_answer(self, asked: int, got: int) -> None:
        """The storage was asked for so many jobs and had so many."""
        self._empty = 0 if got >= asked else self._empty + 1

    def wake(self) -> None:
        """There may be work: ask again immediately."""
        self._empty = 0

    @property
    def idle_wait(self) -> float:
        """Seconds to sleep before the next question."""
        if self._empty > _LONG_IDLE:
            return LONGEST_WAIT
        return _IDLE_WAITS[min(self._empty, len(_IDLE_WAITS) - 1)]


class TaskDurations:
    """How long the jobs of each task take, in seconds."""

    def __init__(self) -> None:
        self._latest: dict[str, float] = {}
        self._means: dict[str, float] = {}  # a single run may have waited for the interpreter lock

    def note(self, task: str, ran: int) -> None:
        """A job of this task ran for so many microseconds."""
        seconds = ran / SECOND
        self._latest[task] = seconds
        self._means[task] = self._means.get(task, seconds) * (1 - _TASK_SMOOTHING) + seconds * _TASK_SMOOTHING

    def are_short(self, task: str) -> bool:
        """False as well for a task of which no job has run yet."""
        return self._means.get(task, SHORT_TASK) < SHORT_TASK

    def are_long(self, task: str) -> bool:
        return self._latest.get(task, 0.0) > LONG_TASK
