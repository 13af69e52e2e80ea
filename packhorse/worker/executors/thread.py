"""Plain functions on threads. A thread cannot be made to end from outside: a job that ignores its check-ins can only be
ended by replacing the whole worker process, which is the desk's decision."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from packhorse.outcome import Outcome
from packhorse.worker import attempt
from packhorse.worker.ending import of_unknown
from packhorse.worker.finisher import Finisher
from packhorse.worker.seat import Seat
from packhorse.worker.slots import Slots
from packhorse.worker.stacks import SLOT_THREADS

log = logging.getLogger("packhorse.worker")

_Given = tuple[Seat, int]
"""A seat, and the slot that it may begin in."""


class ThreadExecutor:
    """As many threads as are needed at once, at most one for each slot; they stay for the next jobs. `condemn` is
    called when there can be none."""

    def __init__(
        self,
        slots: Slots,
        finisher: Finisher,
        result_limit: int,
        condemn: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._slots = slots
        self._finisher = finisher
        self._result_limit = result_limit
        self._condemn = condemn
        self._given: SimpleQueue[_Given | Callable[[], None] | None] = SimpleQueue()
        self._lent: int | None = None  # the thread that does something else just now
        self._kept: _Given | None = None  # what it will run then
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._idle = 0  # threads that wait, less the seats on their way to one

    def begin(self, seat: Seat, slot: int) -> None:
        if self._lent == threading.get_ident() and self._kept is None:
            self._kept = (seat, slot)
            return
        with self._lock:
            self._idle -= 1
            # Whoever has just given up its slot is about to come for the next: no thread more than there are slots.
            if self._idle < 0 and len(self._threads) < self._slots.number:
                self._add_thread()
        self._given.put((seat, slot))

    def lend(self, work: Callable[[], None]) -> bool:
        """Have an idle thread do this, which must not raise. The first job that this very work calls `begin` with is
        then run by the same thread. False: all threads are busy."""
        with self._lock:
            if self._idle <= 0 and len(self._threads) < self._slots.number:
                self._add_thread()
            if self._idle <= 0:
                return False
            self._idle -= 1
        self._given.put(work)
        return True

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{SLOT_THREADS}{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more; whichever ends its job first comes for this one too
            log.error("cannot start another thread: %s", error)
            if not self._threads:
                self._condemn(f"it cannot start a thread: {error}")
            return
        self._threads.append(thread)
        self._idle += 1

    def _work(self) -> None:
        while (given := self._given.get()) is not None:
            run = given if isinstance(given, tuple) else self._do(given)
            if run is not None:
                seat: Seat | None
                seat, slot = run
                while seat is not None:
                    seat = self._go_through(seat, slot)
            with self._lock:
                self._idle += 1

    def _do(self, work: Callable[[], None]) -> _Given | None:
        """Do what this thread is lent for; answers what it then has to run."""
        self._lent = threading.get_ident()
        work()
        self._lent = None
        kept, self._kept = self._kept, None
        return kept

    def _go_through(self, seat: Seat, slot: int) -> Seat | None:
        """Run it, unless it was handed back; answers who is next in this slot."""
        if not seat.claim():
            self._slots.give_up(seat)
            return None
        self._slots.begin(seat, slot)
        self._finisher.put(seat, self._attempt(seat))
        return self._slots.follow(slot, self)

    def _attempt(self, seat: Seat) -> Outcome:
        try:
            return attempt.run(seat.job, seat.task, seat.chain, seat, self._result_limit)
        except BaseException as error:  # noqa: BLE001 - a thread that ended here would take its slot and the job along
            return of_unknown(seat, error)

    def stop(self, seat: Seat, *, hard: bool) -> bool:
        """The next check-in of the job answers True; more cannot be done."""
        return not hard

    def close(self) -> None:
        for _ in self._threads:
            self._given.put(None)
