"""Statistics: the totals at the top of every page, series over time, and metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

import msgspec

from packhorse.core.clock import SECOND
from packhorse.core.job import State
from packhorse.core.metrics import LIMITS
from packhorse.monitor.serializers import Moment, PointFields, iso, point_fields
from packhorse.monitor.stats import (
    RunStats,
    Totals,
    counts_since,
    midnight_before,
    stats_by_time,
    step_counts,
    totals_of,
)
from packhorse.storage.records import Health, Span
from packhorse.web.api.endpoint import Call, get
from packhorse.web.reader import Reader


def totals_for(reader: Reader) -> Totals:
    """The totals for one operator."""
    now = reader.now()
    midnight = midnight_before(now)
    return totals_of(
        now,
        reader.lease,
        reader.queues(),
        reader.workers(),
        reader.totals(),
        reader.computed(("today", midnight), Span.TWO_DAYS, lambda points: counts_since(points, midnight)),
        failure_kinds=len(reader.open_failures()),
        schedules=len(reader.schedules()),
    )


@get("/totals")
def get_totals(call: Call) -> Totals:
    """Totals: jobs by state, processed and failed in all and today, queues, workers and slots."""
    return totals_for(call.reader)


class SpanQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The time span: `2h` has a point per minute, `48h` one per hour, `90d` one per day."""

    span: Span = Span.TWO_HOURS


class SeriesQuery(SpanQuery, forbid_unknown_fields=True):
    """The time span, optionally for one queue or one task."""

    queue: str | None = None
    task: str | None = None


class Interval(msgspec.Struct):
    """All points of one interval together: rates, means and percentiles."""

    at: Moment
    measured: RunStats


class Series(msgspec.Struct):
    """Points that each cover `width` seconds, and the sum of each interval. An interval in which nothing happened has
    neither."""

    span: Span
    width: int
    now: str
    items: list[PointFields]
    intervals: list[Interval]


@get("/series")
def get_series(call: Call, query: SeriesQuery) -> Series:
    """Statistics over time, by queue and task, and of all together: counts, wait times and run times."""
    points = call.reader.series(query.span, query.queue, query.task)
    width = query.span.level.width // SECOND
    intervals = [Interval(iso(at), each) for at, each in stats_by_time(points).items()]
    return Series(query.span, width, str(iso(call.reader.now())), [point_fields(point) for point in points], intervals)


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[dict[str, str], float]
"""Labels and a number. The value of the label with the empty name is a suffix of the metric's name."""


def metrics_text(call: Call) -> str:
    """All metrics; for an operator of some queues, only the metrics of these queues."""
    return "".join(
        line for name, kind, purpose, samples in _families(call) for line in _family(name, kind, purpose, samples)
    )


def _families(call: Call) -> Iterator[tuple[str, str, str, list[Sample]]]:
    now, queues, totals = call.reader.now(), call.reader.queues(), totals_for(call.reader)
    yield (
        *("packhorse_jobs", "gauge", "Jobs by queue and state."),
        [({"queue": queue.name, "state": state}, queue.counts.get(state, 0)) for queue in queues for state in State],
    )
    yield (
        *("packhorse_queue_oldest_seconds", "gauge", "How long the oldest job has waited in line."),
        [
            ({"queue": queue.name}, max(0, now - queue.oldest_queued_at) / SECOND)
            for queue in queues
            if queue.oldest_queued_at is not None
        ],
    )
    yield (
        *("packhorse_queue_paused", "gauge", "1 if the queue is paused."),
        [({"queue": queue.name}, int(queue.is_paused)) for queue in queues],
    )
    ever = call.reader.totals()
    if ever is None:  # the rest covers all queues
        return
    yield (
        *("packhorse_job_outcomes_total", "counter", "What became of jobs and attempts since ever."),
        [({"what": name}, number) for name, number in totals.ever.items()],
    )
    yield _histogram("packhorse_wait_seconds", "How long attempts had waited in line when they began.", ever, "wait")
    yield _histogram("packhorse_run_seconds", "How long attempts ran.", ever, "run")
    yield from _workers(totals)
    yield from _storage(call.web.cache.health())


def _histogram(name: str, purpose: str, ever: Mapping[str, int], kind: str) -> tuple[str, str, str, list[Sample]]:
    """All-time, in all queues. Attempts that were counted before there were buckets appear only in the sum."""
    below = list(accumulate(step_counts(ever, kind)))
    limits = [f"{limit / SECOND:g}" for limit in LIMITS] + ["+Inf"]
    buckets: list[Sample] = [
        ({"": "_bucket", "le": limit}, number) for limit, number in zip(limits, below, strict=True)
    ]
    whole = ever.get("waited" if kind == "wait" else "ran", 0) / SECOND
    return name, "histogram", purpose, [*buckets, ({"": "_sum"}, whole), ({"": "_count"}, below[-1])]


def _workers(totals: Totals) -> Iterator[tuple[str, str, str, list[Sample]]]:
    yield "packhorse_workers", "gauge", "Workers alive.", [({}, totals.workers)]
    yield "packhorse_foremen", "gauge", "Foremen alive.", [({}, totals.foremen)]
    yield "packhorse_slots", "gauge", "Slots of all workers.", [({}, totals.slots)]
    yield "packhorse_slots_busy", "gauge", "Slots in which a job runs.", [({}, totals.busy)]


def _storage(health: Health) -> Iterator[tuple[str, str, str, list[Sample]]]:
    yield "packhorse_storage_latency_seconds", "gauge", "One small read, just now.", [({}, health.latency / SECOND)]
    if health.size is not None:
        yield "packhorse_storage_size_bytes", "gauge", "Size of the storage.", [({}, health.size)]
    yield "packhorse_storage_connections", "gauge", "Connections open here.", [({}, health.connections_open)]
    yield "packhorse_storage_problems", "gauge", "What an operator should know.", [({}, len(health.problems))]


def _family(name: str, kind: str, purpose: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {purpose}\n# TYPE {name} {kind}\n"
    for labels, value in samples:
        inner = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items() if label)
        number = str(int(value)) if value == int(value) else repr(float(value))
        full = name + labels.get("", "")
        yield f"{full}{{{inner}}} {number}\n" if inner else f"{full} {number}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
