"""Totals: one small answer with the numbers that lead every page."""

from __future__ import annotations

from collections import Counter
from datetime import UTC

import msgspec

from packhorse.clock import SECOND, from_datetime, to_datetime
from packhorse.event import Subject
from packhorse.fields import Seconds
from packhorse.job import State
from packhorse.storage.records import Span
from packhorse.web.api.endpoint import Call, get
from packhorse.web.measures import measured
from packhorse.web.reader import Reader


class Totals(msgspec.Struct, kw_only=True):
    """How everything stands. `ever` and `today` (since midnight UTC) have added, completed, failed, dead, aborted and
    halted; `processed` are attempts that ended."""

    states: dict[State, int]
    ever: dict[str, int]
    today: dict[str, int]
    processed: int
    failed: int
    queues: int
    paused: int
    oldest: Seconds
    workers: int
    foremen: int
    slots: int
    busy: int
    failure_kinds: int
    schedules: int


_COUNTED = ("added", "completed", "failed", "dead", "aborted", "halted")


def totals_of(reader: Reader) -> Totals:
    """The numbers for one operator."""
    now, queues = reader.now(), reader.queues()
    states: Counter[State] = Counter()
    for queue in queues:
        states.update(queue.counts)
    waits = [now - queue.oldest_queued_at for queue in queues if queue.oldest_queued_at and not queue.is_paused]
    alive = [worker for worker in reader.workers() if reader.is_alive(worker, now)]
    workers = [worker for worker in alive if worker.subject is Subject.WORKER]
    ever = reader.totals()
    return Totals(
        states={state: states[state] for state in State},
        ever={name: ever.get(name, 0) for name in _COUNTED},
        today=_today(reader, now),
        processed=ever.get("completed", 0) + ever.get("failed", 0) + ever.get("halted", 0),
        failed=ever.get("failed", 0) + ever.get("halted", 0),
        queues=len(queues),
        paused=sum(queue.is_paused for queue in queues),
        oldest=max(waits) / SECOND if waits else None,
        workers=len(workers),
        foremen=len(alive) - len(workers),
        slots=sum(worker.concurrency for worker in workers),
        busy=sum(int(worker.report.get("busy") or 0) for worker in workers),
        failure_kinds=len(reader.open_failures()),
        schedules=len(reader.schedules()),
    )


def _today(reader: Reader, now: int) -> dict[str, int]:
    midnight = from_datetime(to_datetime(now).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0))
    found = measured(point for point in reader.series(Span.TWO_DAYS) if point.at >= midnight)
    return {name: getattr(found, name) for name in _COUNTED}


@get("/totals")
def get_totals(call: Call) -> Totals:
    """How everything stands: jobs by state, processed and failed since ever and today, queues, workers and slots."""
    return totals_of(call.reader)
