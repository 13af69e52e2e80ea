"""Slots: the places of a worker, by number, shared by all its executors, and the one line of jobs that wait for them.

However its jobs are mixed, no more than `number` of them run at once, and they begin in the order in which they came.
Each is on the shared status from its beginning until its outcome is stored.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from packhorse.worker.executors import Executor
from packhorse.worker.held_job import HeldJob
from packhorse.worker.shared_status import SharedStatus


class Slots:
    """Which slots are free, who waits for one, and who has which."""

    def __init__(
        self, shared_status: SharedStatus | None, number: int, executor_of: Callable[[HeldJob], Executor]
    ) -> None:
        self.number = number if shared_status is None else min(number, shared_status.slots)
        self._shared_status = shared_status
        self._places = (
            list(reversed(range(shared_status.places))) if shared_status is not None else []
        )  # free ones, on the shared status
        self._executor_of = executor_of
        self._lock = threading.Lock()
        self._free = deque(range(self.number))
        self._line: deque[tuple[HeldJob, Executor]] = deque()
        self.begun = 0  # how many have begun so far
        self.occupants: list[HeldJob | None] = [None] * self.number  # who began last in each slot

    @property
    def waiting(self) -> int:
        """How many wait for a slot."""
        return len(self._line)

    @property
    def busy(self) -> list[HeldJob]:
        """The jobs that run now, by slot."""
        return [held for held in self.occupants if held is not None and not held.is_settled]

    @property
    def is_narrow(self) -> bool:
        """Does somebody wait although there are free slots?"""
        return bool(self._line and self._free)

    # --- giving and taking ------------------------------------------------------------------------------------------

    def line_up(self, held_jobs: Iterable[HeldJob], *, narrow: bool = False) -> None:
        """These begin as soon as there are slots for them, after all that came before. A narrow line has one slot more
        than those that are taken already, and goes through it one by one, until `widen` is called."""
        arrived = [(held, self._executor_of(held)) for held in held_jobs]
        with self._lock:
            # Where somebody waits already, another goes through the line.
            most = (0 if self._line else 1) if narrow else self.number
            self._line.extend(arrived)
        while most > 0 and (slot := self._free_slot()) is not None:
            self.give(slot)
            most -= 1

    def widen(self) -> None:
        """Let whoever waits use all slots."""
        self.line_up([])

    def _free_slot(self) -> int | None:
        with self._lock:
            return self._free.popleft() if self._free and self._line else None

    def give(self, slot: int) -> None:
        """This slot is free, for whoever has waited longest."""
        with self._lock:
            following = self._pass_on(slot)
        if following is not None:
            held, executor = following
            executor.begin(held, slot)

    def follow(self, slot: int, executor: Executor, giver: HeldJob | None = None) -> HeldJob | None:
        """As `give`; but if the next is for this very executor, it is answered, and goes on in the same slot. With a
        `giver`, the held job that had it until now, a call that was torn away is made good for by its `give_up`."""
        with self._lock:
            following = self._pass_on(slot, giver)
        if following is None:
            return None
        held, its_executor = following
        if its_executor is executor:
            return held
        its_executor.begin(held, slot)
        return None

    def _pass_on(self, slot: int, giver: HeldJob | None = None) -> tuple[HeldJob, Executor] | None:
        """With the lock: give the slot to the next that was not handed back meanwhile. None: nobody waits, and the slot
        is free. Nothing is called between the giver's letting go and the next one's having it: whatever is thrown into
        this thread, the slot is not lost."""
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
        """This one was handed back and will not begin: the slot that it was given is free, if not yet."""
        with self._lock:
            slot = held.given
            following = None if slot is None else self._pass_on(slot, held)
        if following is not None and slot is not None:
            its_held, executor = following
            executor.begin(its_held, slot)

    # --- on the shared status ----------------------------------------------------------------------------------------

    def begin(self, held: HeldJob, slot: int) -> None:
        """The held job's job begins."""
        self.begun += 1
        self.occupants[slot] = held
        held.begin(slot)
        if self._shared_status is not None and self._places:
            held.place = self._places.pop()
            self._shared_status.begin(held.place, held.job.id, held.job.task, slot, held.began_at or 0.0)

    def clear(self, held: HeldJob) -> None:
        """Its outcome is stored: should the worker die now, nobody need know that it ran."""
        if self._shared_status is not None and held.place is not None:
            self._shared_status.clear(held.place)
            self._places.append(held.place)
            held.place = None
