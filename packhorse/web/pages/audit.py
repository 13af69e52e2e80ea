"""The audit: who did what to which job, queue, schedule or foreman, and when. What is done to many jobs of a queue at
once reads as one line, which opens to show them."""

from __future__ import annotations

from typing import NamedTuple

from packhorse.core.clock import SECOND
from packhorse.core.event import Event
from packhorse.web.pages.page import Asked, Shown, address, page
from packhorse.web.site import Call

_LIMIT = 200
_TOGETHER = SECOND // 20  # between the jobs of one deed; two commands lie further apart

_WORDS = {
    "abort_asked": "asked to stop",
    "aborted": "aborted",
    "force_started": "forced to start",
    "priority_changed": "set the priority of",
    "queue_changed": "moved",
    "retried": "retried",
    "deleted": "deleted",
    "paused": "paused",
    "resumed": "resumed",
    "run_now": "ran",
}


class Told(NamedTuple):
    """A deed, or many alike at one time."""

    at: int
    by: str
    word: str
    events: list[Event]

    @property
    def first(self) -> Event:
        return self.events[0]

    @property
    def number(self) -> int:
        return len(self.events)


@page("/audit", "audit")
def audit(call: Call, asked: Asked) -> Shown:
    """The newest first."""
    text = asked.query.get("before", "")
    before = int(text) if text.isdigit() and len(text) < 18 else None
    by = asked.query.get("by")
    deeds = call.reader.history.audit(before, _LIMIT, by)
    earlier = address("/audit", by=by, before=deeds.before) if deeds.before is not None else None
    return Shown("audit.html", "Audit", {"told": _told(deeds), "earlier": earlier, "by": by})


def _told(deeds: list[Event]) -> list[Told]:
    told: list[Told] = []
    for event in deeds:
        by, word = str((event.data or {}).get("by")), _WORDS.get(event.kind, event.kind.replace("_", " "))
        same = _same_deed(told, event, by, word)
        if same is not None:
            same.events.append(event)
        else:
            told.append(Told(event.at, by, word, [event]))
    return told


def _same_deed(told: list[Told], event: Event, by: str, word: str) -> Told | None:
    """Of those just told, the one that this event of a job is part of. Jobs of several queues may lie mixed."""
    if event.job_id is None:
        return None
    for each in reversed(told):
        if each.events[-1].at - event.at >= _TOGETHER:
            return None
        if (each.by, each.word, each.first.queue) == (by, word, event.queue) and each.first.job_id is not None:
            return each
    return None
