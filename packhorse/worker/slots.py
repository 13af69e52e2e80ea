"""Slots: the places of a worker, by number, shared by all its executors. However its jobs are mixed, no more than
`number` of them run at once, and each has a place of its own on the board."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from packhorse.board import Board
from packhorse.worker.seat import Seat


class Slots:
    """Which places are free, who waits for one, and who sits where."""

    def __init__(self, board: Board | None, number: int) -> None:
        self.number = number if board is None else min(number, board.slots)
        self._board = board
        self._lock = threading.Lock()
        self._free = deque(range(self.number))
        self._waiting: deque[Callable[[int], object]] = deque()

    def take(self, when_free: Callable[[int], object]) -> int | None:
        """A free slot. None: all are taken; `when_free` is called with one, from any thread, when its turn comes."""
        with self._lock:
            if self._free:
                return self._free.popleft()
            self._waiting.append(when_free)
            return None

    def give(self, slot: int) -> None:
        """This slot is free again, for whoever has waited longest."""
        with self._lock:
            if not self._waiting:
                self._free.append(slot)
                return
            when_free = self._waiting.popleft()
        when_free(slot)

    def begin(self, seat: Seat, slot: int) -> None:
        """The seat's job begins."""
        seat.begin(slot)
        if self._board is not None:
            self._board.begin(slot, seat.job.id)

    def end(self, seat: Seat) -> None:
        """Its outcome is in safe hands."""
        if self._board is not None:
            self._board.clear(seat.slot)
        self.give(seat.slot)
