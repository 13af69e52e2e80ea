"""A search: the first jobs that fit, where no index may lead to them, for no longer than somebody waits for a list.

`packhorse jobs` shows what it has found, and says how far it looked if that was not all. On a terminal a line tells
meanwhile how far it is.
"""

from __future__ import annotations

import sys
import time
from typing import NamedTuple

from msgspec.structs import replace

from packhorse.cli.invocation import Invocation
from packhorse.cli.output import escape
from packhorse.core.job import Job
from packhorse.monitor.filters import SLOWEST_OF, slowest
from packhorse.storage.queries import BY_DUE_TIME, LATEST_FINISHED, NEWEST, decode_cursor, order_for
from packhorse.storage.records import Filter

_PATIENCE = 5.0  # seconds
_TOLD_EVERY = 0.3
_PAGE = 200


class Found(NamedTuple):
    """The jobs that were found; `reach` says among which, if not all were looked at."""

    jobs: list[Job]
    reach: str | None = None


def search(invocation: Invocation, where: Filter, limit: int) -> Found:
    """The first so many that fit. Full pages are read as long as there are some: only looking is limited."""
    if where.order == "took":
        found = search(invocation, replace(where, order=None), SLOWEST_OF)
        return found._replace(jobs=slowest(found.jobs, invocation.storage.now())[:limit])
    line = _Line(invocation)
    deadline = time.monotonic() + _PATIENCE
    jobs: list[Job] = []
    cursor = None
    try:
        while True:
            wanted = min(limit - len(jobs), _PAGE)
            page = invocation.storage.find(where, cursor=cursor, limit=wanted)
            jobs += page.jobs
            cursor = page.next
            if cursor is None or len(jobs) >= limit:
                return Found(jobs)
            if len(page.jobs) < wanted and time.monotonic() > deadline:
                return Found(jobs, _reach(invocation, where, cursor))
            line.tell(where, cursor)
    finally:
        line.clear()


def _reach(invocation: Invocation, where: Filter, cursor: str) -> str:
    """Which jobs stand before this place of the list."""
    order, shown = order_for(where), invocation.shown
    place = decode_cursor(cursor, order)
    if place is None:
        return "first in the list"
    if order is LATEST_FINISHED:
        return f"ended since {shown.full_time(-place[0])}"
    if order is BY_DUE_TIME:
        return f"due until {shown.full_time(place[0])}"
    if order is NEWEST:
        behind = invocation.storage.find(Filter(), cursor=cursor, limit=1).jobs
        return f"enqueued since {shown.full_time(behind[0].created_at)}" if behind else "there"
    return "next in line"


class _Line:
    """A line on the terminal that tells how far the search is. A pager would hold it back, so it goes past that."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._out = sys.__stderr__
        self._is_seen = self._out is not None and self._out.isatty() and sys.stderr.isatty() and not invocation.quiet
        self._next_at = time.monotonic() + _TOLD_EVERY
        self._is_drawn = False

    def tell(self, where: Filter, cursor: str) -> None:
        """Say so now and then."""
        if self._is_seen and time.monotonic() >= self._next_at:
            self._write(f"\r\x1b[2KLooking … at jobs {escape(_reach(self._invocation, where, cursor))}")
            self._next_at = time.monotonic() + _TOLD_EVERY
            self._is_drawn = True

    def clear(self) -> None:
        """Take the line away."""
        if self._is_drawn:
            self._write("\r\x1b[2K")

    def _write(self, text: str) -> None:
        if self._out is not None:
            self._out.write(text)
            self._out.flush()
