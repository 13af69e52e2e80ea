"""Packs: the events of many jobs in one row. Asked by who enqueues and by who reads events. A pack tells from which
job's id to which it reaches, and is found by that, so it must not reach far: our own ids begin with the time, and those
of a batch lie close together."""

from __future__ import annotations

import re

from packhorse.storage.contract import BATCH

_OUR_TIME = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})")  # milliseconds, at the beginning of an id
_WIDEST = 10_000
"""Milliseconds between the first id of a pack and its last. Whoever looks for a job's events passes by all packs of so
long a time."""
_LAST = (1 << 48) - 1
"""The last time that fits into an id."""
_BEHIND_ALL = "g"
"""Behind everything that begins with a time. The bounds are plain ASCII: not every database can hold other signs."""


def bounds(job_ids: list[str]) -> tuple[str, str] | None:
    """From which id to which a pack of these jobs, in their order, reaches; None: they cannot be one."""
    first, last = job_ids[0], job_ids[-1]
    began, ended = _time_of(first), _time_of(last)
    if began is None or ended is None or ended - began > _WIDEST or len(job_ids) > BATCH:
        return None
    return (first, last) if sorted(job_ids) == job_ids else None


def farthest(job_id: str) -> str:
    """No pack that this job is in reaches beyond this."""
    time = _time_of(job_id)
    if time is None or time + _WIDEST >= _LAST:
        return _BEHIND_ALL
    end = time + _WIDEST + 1
    return f"{end >> 16:08x}-{end & 0xFFFF:04x}"


def _time_of(job_id: str) -> int | None:
    time = _OUR_TIME.match(job_id)
    return None if time is None else int(time[1] + time[2], 16)
