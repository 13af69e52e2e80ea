"""Plain functions on threads. Nothing can end a thread from outside: a job that ignores its check-ins ends only with
the whole worker process, which the loop decides about.

A library that ends jobs by throwing an exception into their thread may do so a moment too late, when the thread runs
worker code. Such a thread continues where it was interrupted: it keeps its job in a `_ThreadState` until that is done
or handed back.

While the worker is idle, one of these threads waits for jobs in the loop's place (`delegate`) and runs the first one
itself: no thread has to be woken between the storage's answer and the job's first line.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from enum import Enum
from queue import Empty, SimpleQueue

from packhorse.core.errors import PackhorseError
from packhorse.core.outcome import Outcome, Released
from packhorse.worker import attempt
from packhorse.worker.executors.slots import Slots
from packhorse.worker.finisher import OutcomeQueue
from packhorse.worker.held_job import HeldJob
from packhorse.worker.outcomes import of_worker_error
from packhorse.worker.stacks import SLOT_THREADS

log = logging.getLogger("packhorse.worker")

Work = Callable[[], None]
_Given = tuple[HeldJob, int]
"""A held job, and the slot that it may begin in."""
_ONCE = (True,)
_MAX_INTERRUPTIONS = 5
"""How often in a row a thread may be interrupted. More is not an accident."""


class _ThreadState:
    """What one thread does. Only the thread itself changes it."""

    def __init__(self) -> None:
        self.given: list[_Given | Work | None] = []  # at most one
        self.is_idle = True  # and counted as idle
        self.is_lent = False
        self.run: _Given | None = None
        self.outcome: Outcome | None = None  # of that run
        self.is_put = False  # into the queue of outcomes
        self.is_over = False
        self.interrupted_by: BaseException | None = None
        self.interruptions = 0  # in a row


class ThreadExecutor:
    """As many threads as are needed, at most one for each slot; they stay for the next jobs. `report_stuck` is called
    if there can be none."""

    def __init__(
        self,
        slots: Slots,
        outcomes: OutcomeQueue,
        result_limit: int,
        report_stuck: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._slots = slots
        self._outcomes = outcomes
        self._result_limit = result_limit
        self._report_stuck = report_stuck
        self._given: SimpleQueue[_Given | Work | None] = SimpleQueue()
        self._local = threading.local()  # has the state of each thread
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._idle = 0  # threads that wait, less the jobs on their way to one

    def begin(self, held: HeldJob, slot: int) -> None:
        state: _ThreadState | None = getattr(self._local, "state", None)
        if state is not None and state.is_lent and state.run is None:
            state.run = (held, slot)
            return
        with self._lock:
            self._idle -= 1
            # A thread that has just freed its slot is about to take the next job: never more threads than slots.
            if self._idle < 0 and len(self._threads) < self._slots.number:
                why = self._add_thread()
                if why is not None:  # the system allows no more; the thread that ends its job first takes this one too
                    log.error("cannot start another thread: %s", why)
                    if not self._threads:
                        self._report_stuck(f"it cannot start a thread: {why}")
        self._given.put((held, slot))

    def lend(self, work: Work) -> bool:
        """Let an idle thread do this. `work` must not raise, and may be called twice. The first job that it begins runs
        on the same thread. False: no thread is idle, and there can be no other."""
        with self._lock:
            if self._idle <= 0 and len(self._threads) < self._slots.number:
                self._add_thread()
            if self._idle <= 0:
                return False
            self._idle -= 1
        self._given.put(work)
        return True

    def _add_thread(self) -> RuntimeError | None:
        """Return the error if there can be no other thread."""
        name = f"{SLOT_THREADS}{len(self._threads)}"
        thread = threading.Thread(target=self._work, args=(_ThreadState(),), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            return error
        self._threads.append(thread)
        self._idle += 1
        return None

    # --- in the threads ---------------------------------------------------------------------------------------------

    def _work(self, state: _ThreadState) -> None:
        while not state.is_over:
            try:
                self._local.state = state
                self._continue(state)
            except BaseException as error:  # noqa: BLE001 - a thread that ended here would lose its job
                state.interrupted_by = error

    def _continue(self, state: _ThreadState) -> None:
        if state.interrupted_by is not None:
            self._recover(state, state.interrupted_by)
        while not state.is_over:
            if state.given or state.run is None:
                self._take(state)
            while state.run is not None:
                self._run(state, *state.run)
            state.interruptions = 0

    def _take(self, state: _ThreadState) -> None:
        """Wait for a job, or for the loop's work, which is done here."""
        if not state.given:
            self._become_idle(state)
            # One single call, from the queue into the state: between two calls it could be lost.
            state.given.extend(map(self._given.get, _ONCE))
        state.is_idle = False
        given = state.given[0]
        if given is None:
            state.is_over = True
        elif isinstance(given, tuple):
            state.run = given
        else:
            state.is_lent = True
            try:
                given()
            finally:
                state.is_lent = False
        state.given.clear()

    def _become_idle(self, state: _ThreadState) -> None:
        with self._lock:
            if not state.is_idle:
                state.is_idle = True
                self._idle += 1

    def _run(self, state: _ThreadState, held: HeldJob, slot: int) -> None:
        """Run this job, unless it was handed back. Then the next job of this slot is in `state.run`."""
        if not held.claim():
            self._slots.give_up(held)
            state.run = None
            return
        self._slots.begin(held, slot)
        state.outcome = self._attempt(held)
        self._outcomes.put(held, state.outcome)
        state.is_put = True
        following = self._slots.follow(slot, self, held)
        _clear(state, None if following is None else (following, slot))

    def _attempt(self, held: HeldJob) -> Outcome:
        try:
            return attempt.run(held.job, held.task, held.chain, held, self._result_limit)
        except BaseException as error:  # noqa: BLE001 - as above
            return of_worker_error(held, error)

    def _recover(self, state: _ThreadState, error: BaseException) -> None:
        """This thread was interrupted. It will do what it had not begun, and ends here what it had begun. Nothing is
        lost; an outcome may be written twice, and the storage takes the first."""
        state.interruptions += 1
        log.warning("%s was thrown into a thread that ran no job; the thread continues", type(error).__name__)
        if state.interruptions > _MAX_INTERRUPTIONS:
            self._report_stuck(f"a worker thread keeps failing with {type(error).__name__}")
            state.is_idle = state.is_idle and not state.given
            state.given.clear()
            _clear(state)
        if state.run is not None:
            self._settle(state, state.run[0], error)
        state.interrupted_by = None

    def _settle(self, state: _ThreadState, held: HeldJob, error: BaseException) -> None:
        if state.outcome is None:
            if not held.is_claimed:
                return
            # This thread has claimed it, or the one that hands it back: it has not begun, and the first outcome counts.
            not_begun = Released(held.job.token, "its thread was interrupted before it began")
            state.outcome = not_begun if held.began_at is None else of_worker_error(held, error)
            self._outcomes.put(held, state.outcome)
        elif not state.is_put and held.is_settled:
            held.has_returned = True
            self._outcomes.put_back([(held, state.outcome)])
        elif not state.is_put:
            self._outcomes.put(held, state.outcome)
        state.is_put = True
        self._slots.give_up(held)
        _clear(state)

    # --- ending -----------------------------------------------------------------------------------------------------

    def stop(self, held: HeldJob, *, hard: bool) -> bool:
        """The next check-in of the job says that it should stop. That is all that can be done."""
        return not hard

    def close(self) -> None:
        for _ in self._threads:
            self._given.put(None)


def _clear(state: _ThreadState, following: _Given | None = None) -> None:
    """Forget the last run. There is no call in between."""
    state.run, state.outcome, state.is_put = following, None, False


# --- waiting in the loop's place --------------------------------------------------------------------------------------

PATIENCE = 2.0
"""Seconds after which the loop checks that a thread has taken the work and is still alive. An idle worker waits for
jobs for a second at most."""


class Delegation(Enum):
    """How a delegated call has ended."""

    DONE = "done"
    NO_THREAD = "no thread"  # the caller does the work itself
    INTERRUPTED = "interrupted"  # by an exception from outside, at an unknown point


def delegate(lend: Callable[[Work], bool], work: Work, call_back: Work) -> Delegation:
    """Let another thread do this work, and wait for it. `lend` finds the thread, `call_back` makes the work end soon.

    The caller sleeps meanwhile: exactly one of the two threads does the loop's work at any time. What the storage and
    the loop raise in the thread is raised here. Any other exception came from outside: see the module's docstring.
    """
    call = _DelegatedCall(work)
    try:
        is_ours = not (lend(call) and call.wait())
    except BaseException:  # raised by a signal handler: wait all the same, or two threads would do the loop's work
        _call_back(call, call_back)
        raise
    return Delegation.NO_THREAD if is_ours else _result(call)


def _call_back(call: _DelegatedCall, call_back: Work) -> None:
    """End the call, whatever signals still come."""
    while not call.is_over:
        try:
            call_back()
            if not call.wait() or call.is_abandoned:
                return
        except BaseException as error:  # noqa: BLE001 - the first of them is raised when the call is over
            log.warning("%s was raised while the loop waited for another thread", type(error).__name__)


def _result(call: _DelegatedCall) -> Delegation:
    for error in call.raised:
        if isinstance(error, PackhorseError):
            raise error
    if call.is_over and not call.raised:
        return Delegation.DONE
    stray = call.raised[0] if call.raised else None  # None: the thread has died
    log.warning("the thread that waited for jobs was interrupted; the loop continues without it", exc_info=stray)
    return Delegation.INTERRUPTED


class _DelegatedCall:
    """The work on its way to a thread, which may call it twice if the first call was interrupted."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._claims = [True]
        self._done: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None  # the thread that has come for the work
        self.raised: list[BaseException] = []
        self.is_over = False  # the signal in `_done` may be lost on its way; this is not

    def __call__(self) -> None:
        try:
            self._thread = threading.current_thread()
            if self._claim():
                self._work()
        except BaseException as error:  # noqa: BLE001 - the loop decides
            self.raised.append(error)
        self.is_over = True
        self._done.put(None)

    def _claim(self) -> bool:
        """Only the first caller gets True: one pop is one atomic step."""
        try:
            return self._claims.pop()
        except IndexError:
            return False

    def wait(self) -> bool:
        """Wait until the work is done or its thread has died. False: no thread has come for it, and none will."""
        while not self.is_over:
            try:
                self._done.get(timeout=PATIENCE)
            except Empty:
                # A thread says first that it has come. If none has, the claim is ours, now or since an earlier signal.
                if self._claim() or self._thread is None:
                    return False
                if self.is_abandoned:
                    return True
        return True

    @property
    def is_abandoned(self) -> bool:
        """Has its thread died?"""
        return self._thread is not None and not self._thread.is_alive()
