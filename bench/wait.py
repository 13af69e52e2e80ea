"""Wait for a condition with a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(is_so: Callable[[], bool], seconds: float, what: str) -> None:
    """Check every few milliseconds; raise TimeoutError after so many seconds."""
    until = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > until:
            raise TimeoutError(f"{what} took more than {seconds:.0f} s")
        time.sleep(0.005)
