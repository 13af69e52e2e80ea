"""Totals: one small answer with the numbers that lead every page."""

from __future__ import annotations

from packhorse.monitor.stats import Totals, counts_since, midnight_before, totals_of
from packhorse.storage.records import Span
from packhorse.web.api.endpoint import Call, get
from packhorse.web.reader import Reader


def totals_for(reader: Reader) -> Totals:
    """The numbers for one operator."""
    now = reader.now()
    midnight = midnight_before(now)
    return totals_of(
        now,
        reader.lease,
        reader.queues(),
        reader.workers(),
        reader.totals(),
        reader.reckoned(("today", midnight), Span.TWO_DAYS, lambda points: counts_since(points, midnight)),
        failure_kinds=len(reader.open_failures()),
        schedules=len(reader.schedules()),
    )


@get("/totals")
def get_totals(call: Call) -> Totals:
    """How everything stands: jobs by state, processed and failed since ever and today, queues, workers and slots."""
    return totals_for(call.reader)
