"""Looking through events for a web request: a short look first, then ever longer ones, as long as those are quick.

The history and the glance ask. A thousand events may lie in one row of the storage, or in a row each, so what a stretch
of them costs is only known when it has been looked through; no request looks for much longer than our patience.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from msgspec.structs import replace

from packhorse.core.event import Event
from packhorse.storage import Storage
from packhorse.storage.records import EventFilter

WINDOW = 5_000  # events that the first look goes over
LOOKS = 4  # that are taken for one page, where little was done
_GROWTH = 4  # times as many as the look before
_PATIENCE = 0.05  # seconds that the next look may take, judging by the last


def stretches(storage: Storage, looks: int | None = None, first: int | None = None) -> Iterator[int]:
    """Over how many ids of events each look goes. Whoever asks for the next has done the last one meanwhile."""
    width = (first or WINDOW) * storage.event_stride
    for _ in range(looks or LOOKS):
        began_at = time.monotonic()
        yield width
        if _GROWTH * (time.monotonic() - began_at) > _PATIENCE:
            return
        width *= _GROWTH


def newest_id(storage: Storage, before: int | None = None) -> int:
    """Of the newest event, or of the newest before another; 0: there is none."""
    newest = storage.events(EventFilter(before=before), limit=1, newest_first=True)
    return newest[0].id if newest else 0


def look_back(
    storage: Storage, where: EventFilter, top: int, limit: int, widths: Iterator[int]
) -> tuple[list[Event], int | None]:
    """Events that fit and came before `top`, the newest first; and before which one to go on, None at the beginning."""
    found: list[Event] = []
    for width in widths:
        edge = max(0, top - width)
        asked = replace(where, after=edge, before=top)
        found += storage.events(asked, limit=limit - len(found), newest_first=True)
        if len(found) == limit:
            return found, found[-1].id
        if not edge:
            return found, None
        top = edge + 1
    return found, top
