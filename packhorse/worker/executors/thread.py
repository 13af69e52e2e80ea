"""Plain functions on threads. A thread cannot be made to end from outside: a job that ignores its check-ins can only be
ended by replacing the whole worker process, which is the desk's decision."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue

from packhorse.worker import attempt
from packhorse.worker.finisher import Finisher
from packhorse.worker.seat import Seat
from packhorse.worker.slots import Slots


class ThreadExecutor:
    """As many threads as are needed at once, at most one for each slot; they stay for the next jobs."""

    def __init__(self, slots: Slots, finisher: Finisher, result_limit: int) -> None:
        self._slots = slots
        self._finisher = finisher
        self._result_limit = result_limit
        self._seats: SimpleQueue[Seat | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unfinished: deque[None] = deque()  # one entry for each seat; appending is atomic, `+= 1` is not

    def start(self, seats: Sequence[Seat]) -> None:
        for seat in seats:
            self._unfinished.append(None)
            self._seats.put(seat)
        missing = min(len(self._unfinished), self._slots.number) - len(self._threads)
        for _ in range(missing):
            self._add_thread()

    def _add_thread(self) -> None:
        name = f"packhorse-slot-{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        my_turn: SimpleQueue[int] = SimpleQueue()
        while (seat := self._seats.get()) is not None:
            slot = self._slots.take(my_turn.put)
            self._run(seat, my_turn.get() if slot is None else slot)
            self._unfinished.pop()

    def _run(self, seat: Seat, slot: int) -> None:
        if not seat.claim():
            self._slots.give(slot)
            return
        self._slots.begin(seat, slot)
        outcome = attempt.run(seat.job, seat.task, seat.chain, seat, self._result_limit)
        self._finisher.put(seat, outcome)
        self._slots.end(seat)

    def stop(self, seat: Seat, *, hard: bool) -> bool:
        """The next check-in of the job answers True; more cannot be done."""
        return not hard

    def close(self) -> None:
        for _ in self._threads:
            self._seats.put(None)
