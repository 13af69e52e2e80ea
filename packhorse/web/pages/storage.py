"""The storage: kind, size, rows, latencies, contention, what is kept for how long, and what an operator should know."""

from __future__ import annotations

from packhorse.core.clock import DAY, SECOND
from packhorse.core.settings import mask_url
from packhorse.monitor.text import fact_text
from packhorse.storage.records import Health
from packhorse.web.api.storage import worker_operations
from packhorse.web.latencies import MINUTES, Latencies
from packhorse.web.pages.chart import Chart, by_minute
from packhorse.web.pages.page import Asked, Elsewhere, Shown, address, deed, page
from packhorse.web.safe_text import safe
from packhorse.web.security.operator import Role
from packhorse.web.site import Call

_KEEP = ("keep_completed", "keep_dead", "keep_aborted", "keep_events", "keep_log_lines")


@page("/storage", "storage")
def storage(call: Call, asked: Asked) -> Shown:
    """All that is known of it."""
    health, settings = call.site.glance.health(), call.site.app.settings
    facts = {name: safe(fact_text(name, value)) for name, value in health.facts.items() if value is not None}
    growth = call.site.glance.growth.per_day()
    kept = {name.removeprefix("keep_").replace("_", " "): settings.shown(name) for name in _KEEP}
    context = {
        "health": health,
        "answering": _chart(call, "One small read", "longest", call.site.glance.latencies),
        "writing": _chart(call, "One write of a worker", "slowest worker", call.site.glance.writing.minutes),
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
    return Shown("storage.html", "Storage", context)


def _chart(call: Call, title: str, longest: str, latencies: Latencies) -> Chart:
    known = latencies.last_hour()
    spans = [(each.mean / SECOND, each.longest / SECOND) if each else None for each in known]
    return by_minute(title, longest, [None] * (MINUTES - len(known)) + spans, call.reader.now())


def _spare(health: Health) -> int | None:
    """Bytes of a SQLite file that hold nothing; new jobs use them, or compacting gives them back."""
    pages, width = (health.facts.get(name) for name in ("free_pages", "page_size"))
    return pages * width if isinstance(pages, int) and isinstance(width, int) else None


@deed("/storage/prune", Role.ADMIN)
def prune(call: Call, asked: Asked) -> Elsewhere:
    """What is over by the settings goes now."""
    gone = call.actions.prune()
    said = "pruned_some" if gone.more else "pruned"
    return Elsewhere(address("/storage", said=said, changed=gone.jobs, skipped=gone.events))


@deed("/storage/backup", Role.ADMIN)
def back_up(call: Call, asked: Asked) -> Elsewhere:
    """A copy beside the file."""
    file, _ = call.actions.back_up()
    return Elsewhere(address("/storage", said="backed_up", file=file.name))


@deed("/storage/compact", Role.ADMIN)
def compact(call: Call, asked: Asked) -> Elsewhere:
    """The file anew, without what was removed."""
    before, after = call.actions.compact()
    return Elsewhere(address("/storage", said="compacted", changed=before, skipped=after))
