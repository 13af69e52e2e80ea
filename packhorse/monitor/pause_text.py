"""A pause in words, as every page, command and explanation tells of it: by whom, until when, why."""

from __future__ import annotations

from collections.abc import Iterable

from packhorse.core.clock import to_datetime
from packhorse.core.job import State
from packhorse.monitor.text import count_text
from packhorse.storage.records import QueueInfo

_LONGEST = 200


def pause_text(queue: QueueInfo, now: int, since: str = "") -> str:
    """What follows the word "paused": " by ana since 12:00 until 14:02 UTC: the server is down"."""
    by = f" by {queue.paused_by[:_LONGEST]}" if queue.paused_by else ""
    until = f" {until_text(queue.paused_until, now)}" if queue.paused_until is not None else ""
    why = f": {queue.paused_why[:_LONGEST]}" if queue.paused_why else ""
    return f"{by}{since}{until}{why}"


def until_text(until: int, now: int) -> str:
    """The end of a pause; with the day, unless it is today.

    >>> until_text(50_520_000_000, 0)
    'until 14:02 UTC'
    """
    end, today = to_datetime(until), to_datetime(now)
    return f"until {end:%H:%M} UTC" if end.date() == today.date() else f"until {end:%Y-%m-%d %H:%M} UTC"


def held_back_text(queues: Iterable[QueueInfo]) -> str:
    """What follows a sentence about those in line: how many jobs are kept out of it because their queue is paused.

    >>> held_back_text([QueueInfo("mail", {State.QUEUED: 3}, paused_at=1)])
    '; 3 wait in the paused queue mail'
    """
    paused = {each.name: number for each in queues if each.is_paused and (number := each.counts.get(State.QUEUED, 0))}
    if not paused:
        return ""
    where = f"the paused queue {next(iter(paused))}" if len(paused) == 1 else f"{len(paused)} paused queues"
    return f"; {count_text(sum(paused.values()), 'waits', 'wait')} in {where}"
