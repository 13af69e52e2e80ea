"""Waiting for something to become true, for so long and no longer."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(is_so: Callable[[], bool], seconds: float, what: str) -> None:
    """Look every few milliseconds; TimeoutError when it takes too long."""
    until = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > until:
            raise TimeoutError(f"{what} took more than {seconds:.0f} s")
        time.sleep(0.005)
