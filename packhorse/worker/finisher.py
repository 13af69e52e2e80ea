"""The finisher: gathers outcomes until the loop writes them down, and keeps them while the storage is away.

Executors put outcomes in from their own threads. The loop is rung at once when it pays: the job was a long one, nobody
else is about to end, or many have gathered; otherwise it comes by within milliseconds and takes them all. While the
worker stops, the loop is rung for every outcome: a second signal may kill the worker at any moment.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from packhorse.core.outcome import Completed, Failed, Halted, Outcome, Stopped
from packhorse.worker.held_job import HeldJob
from packhorse.worker.outcomes import of_ended
from packhorse.worker.shared_status import SharedStatus

LONG_RUN = 10_000
"""Microseconds. Whoever ran longer than this is written down at once."""
LONGEST_WAIT = 0.005
"""Seconds that an outcome may wait for others."""
MOST_KEPT = 1_000
"""Outcomes kept while the storage is away, or lost because it refuses them; beyond that no more jobs are taken."""


class Finisher:
    """Outcomes on their way to the storage."""

    def __init__(
        self, ring: Callable[[], None], code_version: str | None = None, *, shared_status: SharedStatus | None = None
    ) -> None:
        self.ring = ring
        self._code_version = code_version
        self._shared_status = shared_status
        self._waiting: deque[tuple[HeldJob, Outcome]] = deque()
        self._taken: list[tuple[HeldJob, Outcome]] = []  # by the loop, which has no answer of the storage yet
        self._taken_at = 0.0
        self._is_urgent = False
        self._first_at = 0.0
        self.in_hand = 0  # jobs that the worker holds; the loop says how many
        self.enough = 1  # so many outcomes are worth a write; the loop says
        self.is_stopping = False  # outcomes do not wait for others; the worker says
        self.lost = 0  # outcomes that the storage takes in no form; the loop says

    def put(self, held: HeldJob, outcome: Outcome) -> None:
        """An attempt has ended. Whoever comes second, after a timeout or an abort was written down, is too late."""
        if not held.settle():
            held.has_returned = True
            return
        if self._shared_status is not None and held.place is not None:
            self._shared_status.end(held.place)
        if held.saw_stop:
            outcome = of_ended(held, outcome)
        if type(outcome) is not Completed:
            outcome = self._signed(outcome)
            if type(outcome) is Failed:
                held.log(outcome.failure.summary(), "error")
        if not self._waiting:
            self._first_at = time.monotonic()
            self._is_urgent = False  # somebody may have rung for what had been taken already
        self._waiting.append((held, outcome))
        gathered = len(self._waiting)
        is_urgent = gathered >= self.enough or gathered >= self.in_hand or outcome.ran >= LONG_RUN or self.is_stopping
        if is_urgent and not self._is_urgent:  # rung once, the loop comes
            self._is_urgent = True
            self.ring()

    def _signed(self, outcome: Outcome) -> Outcome:
        """A failure tells which version of the user's code it came from; of what went well nobody asks."""
        version = self._code_version
        if version is None:
            return outcome
        if isinstance(outcome, Halted):
            return replace(outcome, version=version)
        if isinstance(outcome, Failed | Stopped) and outcome.failure is not None:
            return replace(outcome, failure=replace(outcome.failure, version=version))
        return outcome

    def due_in(self) -> float | None:
        """Seconds until what has gathered should be written down; None: nothing has."""
        if not self._waiting:
            return None
        if self._is_urgent or self.is_stopping:
            return 0.0
        return max(0.0, self._first_at + LONGEST_WAIT - time.monotonic())

    def take(self, most: int) -> list[tuple[HeldJob, Outcome]]:
        """What has gathered, the oldest first, if it is due."""
        if self.due_in() != 0.0:
            return []
        self._is_urgent = False  # before anything is taken: who comes too late to be taken now must ring again
        return self.take_now(most)

    def take_now(self, most: int) -> list[tuple[HeldJob, Outcome]]:
        """What has gathered, due or not."""
        taken: list[tuple[HeldJob, Outcome]] = []
        self._taken, self._taken_at = taken, time.monotonic()  # first: nobody must find an outcome in neither
        while self._waiting and len(taken) < most:
            taken.append(self._waiting[0])
            self._waiting.popleft()
        return taken

    def give_back(self, outcomes: list[tuple[HeldJob, Outcome]]) -> None:
        """The storage was away; they keep their place."""
        self._waiting.extendleft(reversed(outcomes))
        self._taken = []

    def answered(self) -> None:
        """The storage has said what became of those that were taken."""
        self._taken = []

    def unanswered_for(self) -> float:
        """Seconds since outcomes were taken for which the storage has not answered yet, or for which the loop has not
        come to those that have gathered, as it does while another of its calls takes long; 0: there are none."""
        if self._taken:
            return time.monotonic() - self._taken_at
        return time.monotonic() - max(self._first_at, self._taken_at) if self._waiting else 0.0

    def unwritten(self) -> list[tuple[HeldJob, Outcome]]:
        """What was taken and has no answer yet, and what has gathered. One may be there twice. It stays."""
        waiting = list(self._waiting)  # first: what is taken meanwhile is found among those that were taken
        return [*self._taken, *waiting]

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) + self.lost >= MOST_KEPT
