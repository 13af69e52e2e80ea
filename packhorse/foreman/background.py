"""A loop: one thing that a foreman does again and again in a thread of its own, so that its main loop never waits.

A step that fails is tried again with growing, jittered waits. The log says so, again every minute, and when it works
again.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from packhorse.core.errors import PackhorseError, StorageUnavailable
from packhorse.monitor.text import count_text

log = logging.getLogger("packhorse")

_FIRST_RETRY = 0.1
_TELL_AGAIN = 60.0
"""Seconds after which a step that still fails is told of again."""


class BackgroundLoop:
    """Calls `step` until stopped; it answers in how many seconds it wants to be called again, None: when woken."""

    def __init__(self, name: str, step: Callable[[], float | None], *, longest_retry: float = 5.0) -> None:
        self.name = name
        self._step = step
        self._longest_retry = longest_retry
        self._failures = 0
        self._is_away = False  # the storage, as far as the last step could tell
        self._tell_again_at = 0.0
        self._woken = threading.Event()
        self.is_stopped = False
        # A daemon: a storage that does not answer must not keep the foreman from ending.
        self._thread = threading.Thread(target=self._run, name=f"packhorse-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Do the next step now."""
        self._woken.set()

    def stop(self, seconds: float = 0.0) -> None:
        """Begin no further step; wait so long for the one under way."""
        self.is_stopped = True
        self.wake()
        if seconds > 0 and self._thread.is_alive():
            self._thread.join(seconds)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self.is_stopped:
            pause = self._try()
            self._woken.wait(pause)
            self._woken.clear()

    def _try(self) -> float | None:
        try:
            pause = self._step()
        except Exception as error:  # noqa: BLE001 - a loop outlives whatever its step runs into
            self._failures += 1
            self._tell(error)
            longest = min(self._longest_retry, _FIRST_RETRY * 2.0 ** min(self._failures, 20))
            return random.uniform(longest / 2, longest)
        if self._failures:
            tries = count_text(self._failures, "failed try", "failed tries")
            if self._is_away:
                log.info("the storage is available again (%s, after %s)", self.name, tries)
            else:
                log.info("%s works again, after %s", self.name, tries)
            self._failures, self._is_away = 0, False
        return pause

    def _tell(self, error: Exception) -> None:
        now = time.monotonic()
        if self.is_stopped or (self._failures > 1 and now < self._tell_again_at):
            return
        self._tell_again_at = now + _TELL_AGAIN
        self._is_away = isinstance(error, StorageUnavailable)
        if self._is_away:
            log.warning("the storage is not available, trying again (%s): %s", self.name, error)
            return
        # One of our own errors says in a sentence what is wrong; of any other we demand the place.
        trace = None if isinstance(error, PackhorseError) else error
        log.warning("%s failed and will be tried again: %s", self.name, error, exc_info=trace)
