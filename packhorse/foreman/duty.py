"""A duty: one thing that a foreman does again and again in a thread of its own, so that its main loop never waits.

A step that fails is tried again with growing, jittered waits; it is told once, and once more when it works again.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from packhorse.amounts import count_text
from packhorse.errors import PackhorseError

log = logging.getLogger("packhorse")

_FIRST_RETRY = 0.1


class Duty:
    """Calls `step` until stopped; it answers in how many seconds it wants to be called again, None: when woken."""

    def __init__(self, name: str, step: Callable[[], float | None], *, longest_retry: float = 5.0) -> None:
        self.name = name
        self._step = step
        self._longest_retry = longest_retry
        self._failures = 0
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
        except Exception as error:  # noqa: BLE001 - a duty outlives whatever its step runs into
            self._failures += 1
            self._tell(error)
            longest = min(self._longest_retry, _FIRST_RETRY * 2.0 ** min(self._failures, 20))
            return random.uniform(longest / 2, longest)
        if self._failures:
            log.info("%s works again, after %s", self.name, count_text(self._failures, "failed try", "failed tries"))
            self._failures = 0
        return pause

    def _tell(self, error: Exception) -> None:
        if self._failures > 1 or self.is_stopped:
            return
        # One of our own errors says in a sentence what is wrong; of any other we need the place.
        trace = None if isinstance(error, PackhorseError) else error
        log.warning("%s failed and will be tried again: %s", self.name, error, exc_info=trace)
