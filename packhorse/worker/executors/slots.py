"""Slots: a worker's places for running jobs, by number, shared by all its executors, and the line that waits for them.

No more than `number` jobs run at the same time, whatever executors they need, and they begin in the order in which they
came. Each is in the shared status from its beginning until its outcome is stored.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from packhorse.worker.executors import Executor
from packhorse.worker.held_job import HeldJob
from packhorse.worker.shared_status import SharedStatus


class Slots:
    """Which slots are free, which jobs wait for one, and which job has which."""

    def __init__(
        self, shared_status: SharedStatus | None, number: int, executor_of: Callable[[HeldJob], Executor]
    ) -> None:
        self.number = number if shared_status is None else min(number, shared_status.slots)
        self._shared_status = shared_status
        self._places = [] if shared_status is None else list(reversed(range(shared_status.places)))  # free ones
        self._executor_of = executor_of
        self._lock = threading.Lock()
        self._free = deque(range(self.number))
        self._line: deque[tuple[HeldJob, Executor]] = deque()
        self.begun = 0  # how many jobs have begun so far
        self.occupants: list[HeldJob | None] = [None] * self.number  # the last job that began in each slot

    @property
    def waiting(self) -> int:
        """How many jobs wait for a slot."""
        return len(self._line)

    @property
    def busy(self) -> list[HeldJob]:
        """The jobs that run now, by slot."""
        return [held for held in self.occupants if held is not None and not held.is_settled]

    @property
    def is_narrow(self) -> bool:
        """Do jobs wait although slots are free?"""
        return bool(self._line and self._free)

    # --- giving and taking ------------------------------------------------------------------------------------------

    def line_up(self, held_jobs: Iterable[HeldJob], *, narrow: bool = False) -> None:
        """Begin these jobs as soon as there are slots, after all that came before. A narrow line uses only one slot
        more than are taken already, one job after the other, until `widen`."""
        arrived = [(held, self._executor_of(held)) for held in held_jobs]
        with self._lock:
            # If jobs wait already, a narrow line has its slot.
            most = (0 if self._line else 1) if narrow else self.number
            self._line.extend(arrived)
        while most > 0 and (slot := self._free_slot()) is not None:
            self.give(slot)
            most -= 1

    def widen(self) -> None:
        """Let the waiting jobs use all slots."""
        self.line_up([])

    def _free_slot(self) -> int | None:
        with self._lock:
            return self._free.popleft() if self._free and self._line else None

    def give(self, slot: int) -> None:
        """Give this free slot to the job that has waited longest."""
        with self._lock:
            next_one = self._pass_on(slot)
        if next_one is not None:
            held, executor = next_one
            executor.begin(held, slot)

    def follow(self, slot: int, executor: Executor, giver: HeldJob | None = None) -> HeldJob | None:
        """As `give`, but return the next job if it is for this same executor, which runs it in the same slot.

        `giver` is the job that had the slot. If this call is interrupted, `give_up(giver)` completes it.
        """
        with self._lock:
            next_one = self._pass_on(slot, giver)
        if next_one is None:
            return None
        held, its_executor = next_one
        if its_executor is executor:
            return held
        its_executor.begin(held, slot)
        return None

    def _pass_on(self, slot: int, giver: HeldJob | None = None) -> tuple[HeldJob, Executor] | None:
        """Under the lock: give the slot to the next job that was not handed back meanwhile; None: the slot is free.

        There is no call between the giver's losing the slot and the next one's having it: an exception that is thrown
        into this thread cannot lose the slot.
        """
        while self._line:
            held, executor = self._line.popleft()
            if not held.is_claimed:
                held.given = slot
                if giver is not None:
                    giver.given = None
                return held, executor
        if giver is not None:
            giver.given = None
        self._free.append(slot)
        return None

    def give_up(self, held: HeldJob) -> None:
        """This job was handed back and will not begin: free its slot, if it has one."""
        with self._lock:
            slot = held.given
            next_one = None if slot is None else self._pass_on(slot, held)
        if next_one is not None and slot is not None:
            its_held, executor = next_one
            executor.begin(its_held, slot)

    # --- in the shared status ---------------------------------------------------------------------------------------

    def begin(self, held: HeldJob, slot: int) -> None:
        """The job begins in this slot."""
        self.begun += 1
        self.occupants[slot] = held
        held.begin(slot)
        if self._shared_status is not None and self._places:
            held.place = self._places.pop()
            self._shared_status.begin(held.place, held.job.id, held.job.task, slot, held.began_at or 0.0)

    def clear(self, held: HeldJob) -> None:
        """The outcome is stored. If the worker dies from now on, this job was not running."""
        if self._shared_status is not None and held.place is not None:
            self._shared_status.clear(held.place)
            self._places.append(held.place)
            held.place = None


class PendingStarts:
    """Jobs that have a slot, and whose start must be stored before their first line runs; the loop stores it. To the
    slots this is an executor.

    A job that was lost before may be the one that kills its workers: if it kills the whole machine, the storage must
    know that it had begun. The same is true of a job that one halt ends. Jobs of long tasks show as running from their
    beginning. They all wait in their slot until then, so only a job that begins is marked as running.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._waiting: deque[tuple[HeldJob, int]] = deque()

    def begin(self, held: HeldJob, slot: int) -> None:
        self._waiting.append((held, slot))
        self._wake()

    def stop(self, held: HeldJob, *, hard: bool) -> bool:
        """False: the job has not begun, and is handed back instead."""
        return False

    def close(self) -> None: ...

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self) -> list[tuple[HeldJob, int]]:
        """The waiting jobs, each with its slot."""
        taken: list[tuple[HeldJob, int]] = []
        while self._waiting:
            taken.append(self._waiting.popleft())
        return taken
