"""The ids of jobs whose events are stored together in one row, an event batch. Enqueueing and reading events use this.

A batch stores the first and the last id of its jobs and is found by them, so the range must be small. Our own ids begin
with the time, so those of one call lie close together.
"""

from __future__ import annotations

import re

from packhorse.storage.contract import BATCH

_TIME_OF_ID = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})")  # milliseconds, at the beginning of an id
_WIDEST = 10_000
"""Milliseconds between the first id of a batch and its last. A search for a job's events passes all batches of so long
a time."""
_LAST = (1 << 48) - 1
"""The last time that fits into an id."""
_AFTER_ALL = "g"
"""Sorts after everything that begins with a time. The bounds are ASCII, as not every database can hold more."""


def bounds(job_ids: list[str]) -> tuple[str, str] | None:
    """The first and the last id of a batch of these jobs, in their order; None: they cannot be one batch."""
    first, last = job_ids[0], job_ids[-1]
    began, ended = _time_of(first), _time_of(last)
    if began is None or ended is None or ended - began > _WIDEST or len(job_ids) > BATCH:
        return None
    return (first, last) if sorted(job_ids) == job_ids else None


def farthest(job_id: str) -> str:
    """No batch with this job has a last id beyond this."""
    time = _time_of(job_id)
    if time is None or time + _WIDEST >= _LAST:
        return _AFTER_ALL
    end = time + _WIDEST + 1
    return f"{end >> 16:08x}-{end & 0xFFFF:04x}"


def _time_of(job_id: str) -> int | None:
    time = _TIME_OF_ID.match(job_id)
    return None if time is None else int(time[1] + time[2], 16)
