"""The storage: kind, size, rows, latencies, contention, what is kept for how long, and what an operator should know."""

from __future__ import annotations

from packhorse.amounts import count_text, fact_text
from packhorse.settings import mask_url
from packhorse.web.latencies import MINUTES, Minute
from packhorse.web.pages.page import Asked, Shown, page
from packhorse.web.pages.words import safe, span
from packhorse.web.site import Call

_KEEP = ("keep_completed", "keep_dead", "keep_aborted", "keep_events", "keep_log_lines")


@page("/storage", "storage")
def storage(call: Call, asked: Asked) -> Shown:
    """All that is known of it."""
    health, settings = call.site.glance.health(), call.site.app.settings
    facts = {name: safe(fact_text(name, value)) for name, value in health.facts.items() if value is not None}
    kept = {name.removeprefix("keep_").replace("_", " "): settings.shown(name) for name in _KEEP}
    minutes = call.site.glance.latencies.last_hour()
    context = {
        "health": health,
        "latencies": [None if minute is None else minute.mean for minute in minutes],
        "latency_title": _latency_title(minutes),
        "url": mask_url(health.url),
        "facts": facts,
        "kept": kept,
        "operations": sorted(health.operations, key=lambda each: -each.run_mean * each.calls),
    }
    return Shown("storage.html", "Storage", context)


def _latency_title(minutes: list[Minute | None]) -> str:
    """How far back the sparkline goes, and how bad it was."""
    longest = max((minute.longest for minute in minutes if minute is not None), default=0)
    back = count_text(len(minutes), "minute") if len(minutes) < MINUTES else "hour"
    return f"the last {back.removeprefix('1 ')}; the longest {span(longest)}"
