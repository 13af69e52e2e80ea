"""Slots: the places of a worker, by number, shared by all its executors, and the one line of jobs that wait for them.

However its jobs are mixed, no more than `number` of them run at once, they begin in the order in which they came, and
each has a place of its own on the board.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from packhorse.board import Board
from packhorse.worker.executors import Executor
from packhorse.worker.seat import Seat


class Slots:
    """Which places are free, who waits for one, and who sits where."""

    def __init__(self, board: Board | None, number: int, executor_of: Callable[[Seat], Executor]) -> None:
        self.number = number if board is None else min(number, board.slots)
        self._board = board
        self._executor_of = executor_of
        self._lock = threading.Lock()
        self._free = deque(range(self.number))
        self._line: deque[tuple[Seat, Executor]] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for a slot."""
        return len(self._line)

    def line_up(self, seats: Iterable[Seat]) -> None:
        """These begin as soon as there are slots for them, after all that came before."""
        arrived = [(seat, self._executor_of(seat)) for seat in seats]
        with self._lock:
            self._line.extend(arrived)
            begin = [(self._free.popleft(), *self._line.popleft()) for _ in range(min(len(self._free), self.waiting))]
        for slot, seat, executor in begin:
            executor.begin(seat, slot)

    def give(self, slot: int) -> None:
        """This slot is free again, for whoever has waited longest."""
        with self._lock:
            if not self._line:
                self._free.append(slot)
                return
            seat, executor = self._line.popleft()
        executor.begin(seat, slot)

    def begin(self, seat: Seat, slot: int) -> None:
        """The seat's job begins."""
        seat.begin(slot)
        if self._board is not None:
            self._board.begin(slot, seat.job.id)

    def end(self, seat: Seat) -> None:
        """Its outcome is in safe hands, and its slot free."""
        self.clear(seat.slot)
        self.give(seat.slot)

    def clear(self, slot: int) -> None:
        """Whoever ran here has ended, and its outcome is in safe hands; the slot is not given up yet."""
        if self._board is not None:
            self._board.clear(slot)

    def follow(self, slot: int, executor: Executor) -> Seat | None:
        """The next in line, if it is for this executor: it goes on in the same slot, which saves it being called.
        None: the slot went to somebody else, or is free."""
        with self._lock:
            if self._line and self._line[0][1] is executor:
                return self._line.popleft()[0]
        self.give(slot)
        return None
