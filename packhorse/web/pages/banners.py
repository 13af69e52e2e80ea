"""Banners: the problems that every page shows on top, three at most. The checks are in `monitor/health.py`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from packhorse.monitor import health
from packhorse.monitor.health import Caller, Facts, Finding, Severity
from packhorse.monitor.stats import RunStats
from packhorse.storage.records import Span
from packhorse.web.pages.filters import sentence, span
from packhorse.web.pages.page import address
from packhorse.web.reader import Reader

MOST = 3
_LINKS = {
    "storage": ("/storage", "Storage"),
    "silence": ("/workers", "Workers"),
    "crew": ("/workers", "Workers"),
    "clock": ("/workers", "Workers"),
    "versions": ("/workers", "Workers"),
    "code": ("/workers", "Workers"),
    "served": ("/queues", "Queues"),
    "behind": ("/queues", "Queues"),
    "paused": ("/queues", "Queues"),
    "schedules": ("/schedules", "Schedules"),
}


class Banner(NamedTuple):
    """One problem. `link` is a path and its text; `command` fixes it."""

    is_grave: bool
    head: str
    text: str
    link: tuple[str, str] | None
    command: str | None


class ReaderFacts(Facts):
    """The facts that one operator may see. What takes long to sum up is shared by all viewers."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader, reader.lease, span=span)
        self._reader = reader

    @cached_property
    def flows(self) -> dict[str, RunStats]:
        return self._reader.computed("flows", Span.TWO_HOURS, lambda points: health.flows_of(points, self.now))


def banners(reader: Reader, place: str) -> list[Banner]:
    """The worst first."""
    caller = Caller.OVERVIEW if place == "overview" else Caller.PAGES
    found = health.findings(ReaderFacts(reader), caller)
    return sorted(_banners(found), key=lambda banner: not banner.is_grave)[:MOST]


def _banners(findings: Iterator[Finding]) -> Iterator[Banner]:
    for finding in findings:
        if finding.severity is not Severity.OK:
            is_command = finding.fix is not None and finding.fix.startswith("packhorse ") and "," not in finding.fix
            advice = None if is_command or finding.name == "served" else finding.fix
            texts = [sentence(text) for text in (finding.detail, advice) if text]
            link = _LINKS.get(finding.name)
            if finding.queue is not None:
                link = (address(f"/queues/{finding.queue}"), "See the queue")
            command = finding.fix if is_command and finding.queue is None else None
            yield Banner(finding.severity is Severity.BAD, sentence(finding.summary), " ".join(texts), link, command)
