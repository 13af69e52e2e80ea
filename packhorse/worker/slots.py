"""Slots: the places of a worker, by number, shared by all its executors, and the one line of jobs that wait for them.

However its jobs are mixed, no more than `number` of them run at once, and they begin in the order in which they came.
Each is on the board from its beginning until its outcome is stored.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from packhorse.board import Board
from packhorse.worker.executors import Executor
from packhorse.worker.seat import Seat


class Slots:
    """Which slots are free, who waits for one, and who has which."""

    def __init__(self, board: Board | None, number: int, executor_of: Callable[[Seat], Executor]) -> None:
        self.number = number if board is None else min(number, board.slots)
        self._board = board
        self._places = list(reversed(range(board.places))) if board is not None else []  # free ones, on the board
        self._executor_of = executor_of
        self._lock = threading.Lock()
        self._free = deque(range(self.number))
        self._line: deque[tuple[Seat, Executor]] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for a slot."""
        return len(self._line)

    # --- giving and taking ------------------------------------------------------------------------------------------

    def line_up(self, seats: Iterable[Seat]) -> None:
        """These begin as soon as there are slots for them, after all that came before."""
        arrived = [(seat, self._executor_of(seat)) for seat in seats]
        with self._lock:
            self._line.extend(arrived)
        while (slot := self._free_slot()) is not None:
            self.give(slot)

    def _free_slot(self) -> int | None:
        with self._lock:
            return self._free.popleft() if self._free and self._line else None

    def give(self, slot: int) -> None:
        """This slot is free, for whoever has waited longest."""
        following = self._next(slot)
        if following is not None:
            seat, executor = following
            executor.begin(seat, slot)

    def follow(self, slot: int, executor: Executor) -> Seat | None:
        """As `give`; but if the next is for this very executor, it is answered, and goes on in the same slot."""
        following = self._next(slot)
        if following is None:
            return None
        seat, its_executor = following
        if its_executor is executor:
            return seat
        its_executor.begin(seat, slot)
        return None

    def _next(self, slot: int) -> tuple[Seat, Executor] | None:
        """Give the slot to the next that was not handed back meanwhile. None: nobody waits, and the slot is free."""
        with self._lock:
            while self._line:
                seat, executor = self._line.popleft()
                if not seat.is_claimed:
                    seat.given.append(slot)
                    return seat, executor
            self._free.append(slot)
            return None

    def give_up(self, seat: Seat) -> None:
        """This one was handed back and will not begin: the slot that it was given is free, if not yet."""
        try:
            slot = seat.given.pop()  # one pop is one atomic step
        except IndexError:
            return
        self.give(slot)

    # --- on the board -----------------------------------------------------------------------------------------------

    def begin(self, seat: Seat, slot: int) -> None:
        """The seat's job begins."""
        seat.begin(slot)
        if self._board is not None and self._places:
            seat.place = self._places.pop()
            self._board.begin(seat.place, seat.job.id)

    def clear(self, seat: Seat) -> None:
        """Its outcome is stored: should the worker die now, nobody need know that it ran."""
        if self._board is not None and seat.place is not None:
            self._board.clear(seat.place)
            self._places.append(seat.place)
            seat.place = None
