"""The bell: sleeping at the manager until it says that there may be work, and being woken by this very process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from packhorse.core.errors import StorageUnavailable
from packhorse.storage.remote.link import Link, Unanswered

LONGEST = 20.0
"""Seconds of one request at most: proxies hang up on those that take much longer."""


class Bell:
    """Wakes this process's sleepers. `sleep` waits at the manager for some seconds, for some queues; it is told how
    many interrupts were heard before, and makes the link known on which it waits, by `lying_on`. True: it was woken."""

    def __init__(self, sleep: Callable[[float, Sequence[str], int], bool]) -> None:
        self._sleep = sleep
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._pid = os.getpid()
        self._woken = threading.Condition(threading.RLock())  # a signal handler may interrupt the one that lies down
        self._links: set[Link] = set()
        self._interrupts = 0
        self._heard = 0  # how many of them those who slept have heard

    def wait(self, timeout: float, queues: Sequence[str] = ()) -> bool:
        """Sleep until rung at the manager, interrupted, or `timeout` seconds are over. A manager that is away rings for
        nobody: whoever sleeps then looks for work by himself."""
        self._leave_parent()
        heard = self._heard  # an interrupt from now on counts
        try:
            if self._interrupts != heard:
                return True
            try:
                return self._sleep(min(timeout, LONGEST), queues, heard) or self._interrupts != heard
            except (Unanswered, StorageUnavailable):
                with self._woken:
                    return self._woken.wait_for(lambda: self._interrupts != heard, min(timeout, LONGEST))
        finally:
            self._heard = self._interrupts

    @contextmanager
    def lying_on(self, link: Link, heard: int) -> Iterator[bool]:
        """This thread sleeps on this link. False: it must not, for it was interrupted just now."""
        with self._woken:
            self._links.add(link)
            may_sleep = self._interrupts == heard
        try:
            yield may_sleep
        finally:
            with self._woken:
                self._links.discard(link)

    def interrupt(self) -> None:
        """Wake every sleeper of this process, and whoever is about to lie down."""
        self._leave_parent()
        with self._woken:
            self._interrupts += 1
            self._woken.notify_all()
            for link in self._links:
                link.cut()

    def _leave_parent(self) -> None:
        """After a fork: the parent's sleepers are not ours, and its lock may be held for ever."""
        if self._pid != os.getpid():
            self._begin_anew()
