"""A background loop: one step that a foreman repeats in a thread of its own, so that its main loop never waits.

A step that fails is retried with growing, jittered waits. The log reports the failure, repeats it every minute, and
reports when the step works again.
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
_LOG_AGAIN = 60.0
"""Seconds after which a step that still fails is logged again."""


class BackgroundLoop:
    """Calls `step` until stopped. `step` returns the seconds until its next call, or None to wait for `wake`."""

    def __init__(self, name: str, step: Callable[[], float | None], *, longest_retry: float = 5.0) -> None:
        self.name = name
        self._step = step
        self._longest_retry = longest_retry
        self._failures = 0
        self._is_away = False  # the storage, as of the last step
        self._log_again_at = 0.0
        self._woken = threading.Event()
        self.is_stopped = False
        # A daemon thread: a storage that does not answer must not keep the foreman from exiting.
        self._thread = threading.Thread(target=self._run, name=f"packhorse-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Run the next step now."""
        self._woken.set()

    def stop(self, seconds: float = 0.0) -> None:
        """Start no further step; wait this many seconds for a running one."""
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
        except Exception as error:  # noqa: BLE001 - a loop survives every error of its step
            self._failures += 1
            self._log_failure(error)
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

    def _log_failure(self, error: Exception) -> None:
        now = time.monotonic()
        if self.is_stopped or (self._failures > 1 and now < self._log_again_at):
            return
        self._log_again_at = now + _LOG_AGAIN
        self._is_away = isinstance(error, StorageUnavailable)
        if self._is_away:
            log.warning("the storage is not available, trying again (%s): %s", self.name, error)
            return
        # Errors of Packhorse explain themselves; others need the traceback.
        trace = None if isinstance(error, PackhorseError) else error
        log.warning("%s failed and will be retried: %s", self.name, error, exc_info=trace)
