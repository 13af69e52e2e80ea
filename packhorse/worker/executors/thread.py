"""Plain functions on threads. A thread cannot be made to end from outside: a job that ignores its check-ins can only be
ended by replacing the whole worker process, which is the desk's decision."""

from __future__ import annotations

import threading
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
        self._given: SimpleQueue[tuple[Seat, int] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._idle = 0  # threads that wait, less the seats on their way to one

    def begin(self, seat: Seat, slot: int) -> None:
        with self._lock:
            self._idle -= 1
            # Whoever has just given up its slot is about to come for the next: no thread more than there are slots.
            if self._idle < 0 and len(self._threads) < self._slots.number:
                self._idle += 1
                self._add_thread()
        self._given.put((seat, slot))

    def _add_thread(self) -> None:
        name = f"packhorse-slot-{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (given := self._given.get()) is not None:
            seat: Seat | None
            seat, slot = given
            while seat is not None:
                self._run(seat, slot)
                seat = self._slots.follow(slot, self)
            with self._lock:
                self._idle += 1

    def _run(self, seat: Seat, slot: int) -> None:
        if not seat.claim():
            return
        self._slots.begin(seat, slot)
        outcome = attempt.run(seat.job, seat.task, seat.chain, seat, self._result_limit)
        self._finisher.put(seat, outcome)
        self._slots.clear(slot)

    def stop(self, seat: Seat, *, hard: bool) -> bool:
        """The next check-in of the job answers True; more cannot be done."""
        return not hard

    def close(self) -> None:
        for _ in self._threads:
            self._given.put(None)
