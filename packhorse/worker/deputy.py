"""The deputy: while a worker has nothing to do, the thread of a slot waits for jobs in the desk's place.

It takes in what comes, and then runs the first job itself: nobody has to be woken between the storage's answer and the
job's first line. The desk sleeps until it is told, so that only one of the two is at the desk at any time: whoever has
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
"""Seconds after which the desk looks whether somebody has come for the work, and is still there. An idle worker's work
takes a second at most."""

Work = Callable[[], None]


class Deputed(Enum):
    """What came of it."""

    DONE = "done"
    NOBODY = "nobody"  # there is no thread that could; the work is the caller's
    DISTURBED = "disturbed"  # broken off, somewhere, by what was never meant for it


def depute(lend: Callable[[Work], bool], work: Work, call_back: Work) -> Deputed:
    """Have another thread do this work, and wait for it. `lend` finds one, `call_back` makes the work end soon.

    What the storage and the desk raise there is raised here. Whatever else was raised came from outside: a library that
    ends jobs by throwing an exception into their thread may be a moment too late, and hit the deputy."""
    errand = _Errand(work)
    try:
        is_ours = not (lend(errand) and errand.wait())
    except BaseException:  # raised by a signal's handler: wait all the same, or there would be two at the desk
        _call_home(errand, call_back)
        raise
    return Deputed.NOBODY if is_ours else _judge(errand)


def _call_home(errand: _Errand, call_back: Work) -> None:
    """Whatever signals still come."""
    while not errand.is_over:
        try:
            call_back()
            if not errand.wait() or errand.is_abandoned:
                return
        except BaseException as error:  # noqa: BLE001 - the first of them is raised when the deputy is back
            log.warning("%s was raised while the desk waited for its deputy", type(error).__name__)


def _judge(errand: _Errand) -> Deputed:
    for error in errand.raised:
        if isinstance(error, PackhorseError):
            raise error
    if errand.is_over and not errand.raised:
        return Deputed.DONE
    stray = errand.raised[0] if errand.raised else None  # None: its thread has died
    log.warning("the thread that waited for jobs was disturbed; the desk goes on without it", exc_info=stray)
    return Deputed.DISTURBED


class _Errand:
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
        except BaseException as error:  # noqa: BLE001 - the desk judges it
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
