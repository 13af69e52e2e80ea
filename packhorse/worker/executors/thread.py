"""Plain functions on threads. A thread cannot be made to end from outside: a job that ignores its check-ins can only be
ended by replacing the whole worker process, which is the loop's decision.

Code of the users' may throw an exception into the thread of a job, and do so a moment too late. Such a thread goes on
where it was torn away: whatever it has in hand stays there until it is done or handed back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from packhorse.core.outcome import Outcome, Released
from packhorse.worker import attempt
from packhorse.worker.executors.slots import Slots
from packhorse.worker.finisher import Finisher
from packhorse.worker.held_job import HeldJob
from packhorse.worker.outcomes import of_unknown
from packhorse.worker.stacks import SLOT_THREADS

log = logging.getLogger("packhorse.worker")

Work = Callable[[], None]
_Given = tuple[HeldJob, int]
"""A held job, and the slot that it may begin in."""
_ONCE = (True,)
_MOST_TEARS = 5
"""How often in a row a thread may fail to get on. More is not an accident."""


class _Hand:
    """What one thread has in hand. Only the thread itself changes it."""

    def __init__(self) -> None:
        self.given: list[_Given | Work | None] = []  # at most one
        self.is_idle = True  # and counted as such
        self.is_lent = False
        self.run: _Given | None = None
        self.outcome: Outcome | None = None  # of that run
        self.is_put = False  # into the finisher
        self.is_over = False
        self.torn_by: BaseException | None = None
        self.tears = 0  # in a row


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
        self._given: SimpleQueue[_Given | Work | None] = SimpleQueue()
        self._mine = threading.local()  # has the hand of each thread
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._idle = 0  # threads that wait, less the held jobs on their way to one

    def begin(self, held: HeldJob, slot: int) -> None:
        hand: _Hand | None = getattr(self._mine, "hand", None)
        if hand is not None and hand.is_lent and hand.run is None:
            hand.run = (held, slot)
            return
        with self._lock:
            self._idle -= 1
            # Whoever has just given up its slot is about to come for the next: no thread more than there are slots.
            if self._idle < 0 and len(self._threads) < self._slots.number:
                why = self._add_thread()
                if why is not None:  # the system has no more; whichever ends its job first comes for this one too
                    log.error("cannot start another thread: %s", why)
                    if not self._threads:
                        self._condemn(f"it cannot start a thread: {why}")
        self._given.put((held, slot))

    def lend(self, work: Work) -> bool:
        """Have an idle thread do this, which must not raise, and must bear being called again. The first job that this
        very work calls `begin` with is then run by the same thread. False: all threads are busy, or there can be
        none."""
        with self._lock:
            if self._idle <= 0 and len(self._threads) < self._slots.number:
                self._add_thread()
            if self._idle <= 0:
                return False
            self._idle -= 1
        self._given.put(work)
        return True

    def _add_thread(self) -> RuntimeError | None:
        """Answers why there can be no other."""
        name = f"{SLOT_THREADS}{len(self._threads)}"
        thread = threading.Thread(target=self._work, args=(_Hand(),), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            return error
        self._threads.append(thread)
        self._idle += 1
        return None

    # --- in the threads ---------------------------------------------------------------------------------------------

    def _work(self, hand: _Hand) -> None:
        while not hand.is_over:
            try:
                self._mine.hand = hand
                self._go_on(hand)
            except BaseException as error:  # noqa: BLE001 - a thread that ended here would take what it has along
                hand.torn_by = error

    def _go_on(self, hand: _Hand) -> None:
        if hand.torn_by is not None:
            self._mend(hand, hand.torn_by)
        while not hand.is_over:
            if hand.given or hand.run is None:
                self._take(hand)
            while hand.run is not None:
                self._go_through(hand, *hand.run)
            hand.tears = 0

    def _take(self, hand: _Hand) -> None:
        """Wait for something to do. If that is to do the loop's work, it is done here."""
        if not hand.given:
            self._rest(hand)
            # One single call, from the queue into the hand: between two of them it could be lost.
            hand.given.extend(map(self._given.get, _ONCE))
        hand.is_idle = False
        given = hand.given[0]
        if given is None:
            hand.is_over = True
        elif isinstance(given, tuple):
            hand.run = given
        else:
            hand.is_lent = True
            try:
                given()
            finally:
                hand.is_lent = False
        hand.given.clear()

    def _rest(self, hand: _Hand) -> None:
        with self._lock:
            if not hand.is_idle:
                hand.is_idle = True
                self._idle += 1

    def _go_through(self, hand: _Hand, held: HeldJob, slot: int) -> None:
        """Run it, unless it was handed back; then whoever is next in this slot is in hand."""
        if not held.claim():
            self._slots.give_up(held)
            hand.run = None
            return
        self._slots.begin(held, slot)
        hand.outcome = self._attempt(held)
        self._finisher.put(held, hand.outcome)
        hand.is_put = True
        following = self._slots.follow(slot, self, held)
        _let_go(hand, None if following is None else (following, slot))

    def _attempt(self, held: HeldJob) -> Outcome:
        try:
            return attempt.run(held.job, held.task, held.chain, held, self._result_limit)
        except BaseException as error:  # noqa: BLE001 - as above
            return of_unknown(held, error)

    def _mend(self, hand: _Hand, error: BaseException) -> None:
        """This thread was torn away from what it did. What has not begun yet it will do; what it had begun ends here,
        and nothing is lost: rather is an outcome written down twice, of which the storage takes the first."""
        hand.tears += 1
        log.warning("%s was thrown into a thread while it ran no job; it goes on", type(error).__name__)
        if hand.tears > _MOST_TEARS:
            self._condemn(f"a thread of its does not get on: {type(error).__name__}")
            hand.is_idle = hand.is_idle and not hand.given
            hand.given.clear()
            _let_go(hand)
        if hand.run is not None:
            self._settle(hand, hand.run[0], error)
        hand.torn_by = None

    def _settle(self, hand: _Hand, held: HeldJob, error: BaseException) -> None:
        if hand.outcome is None:
            if not held.is_claimed:
                return
            # Claimed by us or by who hands it back: in either case it has not begun, and the first to say so is heard.
            not_begun = Released(held.job.token, "its thread was disturbed before it began")
            hand.outcome = not_begun if held.began_at is None else of_unknown(held, error)
            self._finisher.put(held, hand.outcome)
        elif not hand.is_put and held.is_settled:
            held.has_returned = True
            self._finisher.give_back([(held, hand.outcome)])
        elif not hand.is_put:
            self._finisher.put(held, hand.outcome)
        hand.is_put = True
        self._slots.give_up(held)
        _let_go(hand)

    # --- ending -----------------------------------------------------------------------------------------------------

    def stop(self, held: HeldJob, *, hard: bool) -> bool:
        """The next check-in of the job answers True; more cannot be done."""
        return not hard

    def close(self) -> None:
        for _ in self._threads:
            self._given.put(None)


def _let_go(hand: _Hand, following: _Given | None = None) -> None:
    """Of what it has run. Nothing is called in between."""
    hand.run, hand.outcome, hand.is_put = following, None, False
