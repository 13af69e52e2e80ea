"""The audit: who did what to which job, queue, schedule or foreman, and when. One action on many jobs of a queue is one
line that opens to show them."""

from __future__ import annotations

from typing import NamedTuple

from packhorse.core.clock import SECOND
from packhorse.core.event import Event
from packhorse.web.context import Call
from packhorse.web.pages.page import PageRequest, PageResponse, address, page

_LIMIT = 200
_TOGETHER = SECOND // 20  # between the jobs of one action; two commands are further apart

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


class AuditEntry(NamedTuple):
    """One action, or several equal ones at the same time."""

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
def audit(call: Call, request: PageRequest) -> PageResponse:
    """List the actions, newest first."""
    text = request.query.get("before", "")
    before = int(text) if text.isdigit() and len(text) < 18 else None
    by = request.query.get("by")
    actions = call.reader.history.audit(before, _LIMIT, by)
    earlier = address("/audit", by=by, before=actions.before) if actions.before is not None else None
    return PageResponse("audit.html", "Audit", {"told": _entries(actions), "earlier": earlier, "by": by})


def _entries(actions: list[Event]) -> list[AuditEntry]:
    entries: list[AuditEntry] = []
    for event in actions:
        by, word = str((event.data or {}).get("by")), _WORDS.get(event.kind, event.kind.replace("_", " "))
        entry = _same_action(entries, event, by, word)
        if entry is not None:
            entry.events.append(event)
        else:
            entries.append(AuditEntry(event.at, by, word, [event]))
    return entries


def _same_action(entries: list[AuditEntry], event: Event, by: str, word: str) -> AuditEntry | None:
    """Find the entry that this event of a job belongs to. Events of several queues may be interleaved."""
    if event.job_id is None:
        return None
    for each in reversed(entries):
        if each.events[-1].at - event.at >= _TOGETHER:
            return None
        if (each.by, each.word, each.first.queue) == (by, word, event.queue) and each.first.job_id is not None:
            return each
    return None
