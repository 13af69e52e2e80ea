"""What a task may return instead of a result, to say what should become of its job.

They are values, not exceptions: `return Retry(after="5m")`. A `Retry` may be raised as well, from deep below.
"""

from __future__ import annotations

from packhorse.core.clock import Duration, microseconds


class Retry(Exception):
    """Try again, after a while of one's own choosing, or as the backoff says. Counts as a failed attempt."""

    def __init__(self, why: str = "the task asked for another attempt", *, after: Duration | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.after = None if after is None else microseconds(after, "after")


class Abort:
    """End the job for good as aborted; no more attempts."""

    def __init__(self, why: str = "the task ended itself") -> None:
        self.why = why


class Snooze:
    """Call me again later; neither a success nor a failure."""

    def __init__(self, delay: Duration) -> None:
        self.delay = microseconds(delay, "delay")
