"""The storage: kind, size, rows, latencies, contention, retention, and what an operator should know."""

from __future__ import annotations

from packhorse.core.clock import DAY, SECOND
from packhorse.core.settings import mask_url
from packhorse.monitor.text import fact_text
from packhorse.storage.records import Health
from packhorse.web.api.storage import worker_operations
from packhorse.web.cache import MINUTES, LatencyHistory
from packhorse.web.context import Call
from packhorse.web.pages.chart import Chart, by_minute
from packhorse.web.pages.page import PageRequest, PageResponse, Redirect, address, form_action, page
from packhorse.web.security.operator import Role
from packhorse.web.text import safe

_KEEP = ("keep_completed", "keep_dead", "keep_aborted", "keep_events", "keep_log_lines")


@page("/storage", "storage")
def storage(call: Call, request: PageRequest) -> PageResponse:
    """Show all that is known about the storage."""
    health, settings = call.web.cache.health(), call.web.app.settings
    facts = {name: safe(fact_text(name, value)) for name, value in health.facts.items() if value is not None}
    growth = call.web.cache.growth.per_day()
    kept = {name.removeprefix("keep_").replace("_", " "): settings.shown(name) for name in _KEEP}
    context = {
        "health": health,
        "answering": _chart(call, "One small read", "longest", call.web.cache.latencies),
        "writing": _chart(call, "One write of a worker", "slowest worker", call.web.cache.writing.minutes),
        "url": mask_url(health.url),
        "facts": facts,
        "kept": kept,
        "wal": facts.pop("wal_size", "–"),
        "growth": growth,
        "full_in": health.free / growth * DAY if health.free and growth and growth > 0 else None,
        "spare": _spare(health),
        "may_keep_house": call.operator.may(Role.ADMIN) and not call.operator.queues,
        "operations": sorted(health.operations, key=lambda each: -each.run_mean * each.calls),
        "worker_operations": worker_operations(call),
    }
    return PageResponse("storage.html", "Storage", context)


def _chart(call: Call, title: str, longest: str, latencies: LatencyHistory) -> Chart:
    known = latencies.last_hour()
    spans = [(each.mean / SECOND, each.longest / SECOND) if each else None for each in known]
    return by_minute(title, longest, [None] * (MINUTES - len(known)) + spans, call.reader.now())


def _spare(health: Health) -> int | None:
    """Return the unused bytes of a SQLite file; new jobs use them, or compacting frees them."""
    pages, width = (health.facts.get(name) for name in ("free_pages", "page_size"))
    return pages * width if isinstance(pages, int) and isinstance(width, int) else None


@form_action("/storage/prune", Role.ADMIN)
def prune(call: Call, request: PageRequest) -> Redirect:
    """Remove what is past its retention now."""
    gone = call.actions.prune()
    said = "pruned_some" if gone.more else "pruned"
    return Redirect(address("/storage", said=said, changed=gone.jobs, skipped=gone.events))


@form_action("/storage/backup", Role.ADMIN)
def back_up(call: Call, request: PageRequest) -> Redirect:
    """Write a copy next to the file."""
    file, _ = call.actions.back_up()
    return Redirect(address("/storage", said="backed_up", file=file.name))


@form_action("/storage/compact", Role.ADMIN)
def compact(call: Call, request: PageRequest) -> Redirect:
    """Rewrite the file without its unused space."""
    before, after = call.actions.compact()
    return Redirect(address("/storage", said="compacted", changed=before, skipped=after))
