"""The delegate: while a worker has nothing to do, the thread of a slot waits for jobs in the loop's place.

It takes in what comes, and then runs the first job itself: nobody has to be woken between the storage's answer and the
job's first line. The loop sleeps until it is told, so that only one of the two is at the loop at any time: whoever has
claimed the work does it, and nobody else.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from enum import Enum
from queue import Empty, SimpleQueue

from packhorse.core.errors import PackhorseError

log = logging.getLogger("packhorse.worker")

PATIENCE = 2.0
"""Seconds after which the loop looks whether somebody has come for the work, and is still there. An idle worker's work
takes a second at most."""

Work = Callable[[], None]


class Delegation(Enum):
    """What came of it."""

    DONE = "done"
    NOBODY = "nobody"  # there is no thread that could; the work is the caller's
    DISTURBED = "disturbed"  # broken off, somewhere, by what was never meant for it


def delegate(lend: Callable[[Work], bool], work: Work, call_back: Work) -> Delegation:
    """Have another thread do this work, and wait for it. `lend` finds one, `call_back` makes the work end soon.

    What the storage and the loop raise there is raised here. Whatever else was raised came from outside: a library that
    ends jobs by throwing an exception into their thread may be a moment too late, and hit the delegate."""
    call = _DelegatedCall(work)
    try:
        is_ours = not (lend(call) and call.wait())
    except BaseException:  # raised by a signal's handler: wait all the same, or there would be two at the loop
        _call_home(call, call_back)
        raise
    return Delegation.NOBODY if is_ours else _judge(call)


def _call_home(call: _DelegatedCall, call_back: Work) -> None:
    """Whatever signals still come."""
    while not call.is_over:
        try:
            call_back()
            if not call.wait() or call.is_abandoned:
                return
        except BaseException as error:  # noqa: BLE001 - the first of them is raised when the delegate is back
            log.warning("%s was raised while the loop waited for its delegate", type(error).__name__)


def _judge(call: _DelegatedCall) -> Delegation:
    for error in call.raised:
        if isinstance(error, PackhorseError):
            raise error
    if call.is_over and not call.raised:
        return Delegation.DONE
    stray = call.raised[0] if call.raised else None  # None: its thread has died
    log.warning("the thread that waited for jobs was disturbed; the loop goes on without it", exc_info=stray)
    return Delegation.DISTURBED


class _DelegatedCall:
    """The work on its way to somebody. May be called again, if the first call was torn away before its end."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._claims = [True]
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None  # that has come for it
        self.raised: list[BaseException] = []
        self.is_over = False  # stays so: what was taken from the bell may be lost on its way

    def __call__(self) -> None:
        try:
            self._thread = threading.current_thread()
            if self._claim():
                self._work()
        except BaseException as error:  # noqa: BLE001 - the loop judges it
            self.raised.append(error)
        self.is_over = True
        self._bell.put(None)

    def _claim(self) -> bool:
        """Only the first gets it. One pop is one atomic step."""
        try:
            return self._claims.pop()
        except IndexError:
            return False

    def wait(self) -> bool:
        """Until it is over, or its thread has died. False: nobody has come for it, and nobody will any more."""
        while not self.is_over:
            try:
                self._bell.get(timeout=PATIENCE)
            except Empty:
                # Whoever comes says so first: while nobody has, it was claimed by us, if not now then before a signal.
                if self._claim() or self._thread is None:
                    return False
                if self.is_abandoned:
                    return True
        return True

    @property
    def is_abandoned(self) -> bool:
        """Has its thread died over it?"""
        return self._thread is not None and not self._thread.is_alive()
