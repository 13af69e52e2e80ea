"""Totals: how everything stands, in the few numbers that lead every page. Pure: whoever asks reads the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC

import msgspec

from packhorse.core.clock import SECOND, from_datetime, to_datetime
from packhorse.core.event import Subject
from packhorse.core.job import HELD, State
from packhorse.monitor.presence import busy_slots, is_alive
from packhorse.monitor.serializers import Seconds
from packhorse.storage.records import Point, QueueInfo, WorkerInfo

_COUNTED = ("added", "completed", "failed", "dead", "aborted", "halted")


class Totals(msgspec.Struct, kw_only=True):
    """How everything stands. `ever` and `today` (since midnight UTC) have added, completed, failed, dead, aborted and
    halted; `processed` are attempts that ended, `failed` those that raised or ran too long: halts are in `ever`.

    Since ever is counted for all queues together: for whom only some concern, `ever` is empty and these are null."""

    states: dict[State, int]
    ever: dict[str, int]
    today: dict[str, int]
    processed: int | None
    failed: int | None
    queues: int
    paused: int
    oldest: Seconds
    workers: int
    foremen: int
    slots: int
    busy: int
    failure_kinds: int
    schedules: int


def totals_of(
    now: int,
    lease: int,
    queues: Sequence[QueueInfo],
    workers: Sequence[WorkerInfo],
    ever: Mapping[str, int] | None,
    today: Mapping[str, int],
    *,
    failure_kinds: int,
    schedules: int,
) -> Totals:
    """The numbers; `ever` are the counts since ever, if they may be told, `today` those that `today_of` tells."""
    states: Counter[State] = Counter()
    for queue in queues:
        states.update(queue.counts)
    waits = [now - queue.oldest_queued_at for queue in queues if queue.oldest_queued_at and not queue.is_paused]
    alive = [worker for worker in workers if is_alive(worker, now, lease)]
    crew = [worker for worker in alive if worker.subject is Subject.WORKER]
    slots = sum(worker.concurrency for worker in crew)
    return Totals(
        states={state: states[state] for state in State},
        ever={} if ever is None else {name: ever.get(name, 0) for name in _COUNTED},
        today={name: today.get(name, 0) for name in _COUNTED},
        processed=None if ever is None else ended(ever),
        failed=None if ever is None else ever.get("failed", 0),
        queues=len(queues),
        paused=sum(queue.is_paused for queue in queues),
        oldest=max(waits) / SECOND if waits else None,
        workers=len(crew),
        foremen=len(alive) - len(crew),
        slots=slots,
        busy=busy_slots(crew, running=states[State.RUNNING], held=sum(states[state] for state in HELD)),
        failure_kinds=failure_kinds,
        schedules=schedules,
    )


def today_of(points: Iterable[Point], midnight: int) -> dict[str, int]:
    """What these points, which are the hours of the last two days, come to since midnight."""
    today = [point.values for point in points if point.at >= midnight]
    return {name: sum(values.get(name, 0) for values in today) for name in _COUNTED}


def midnight_before(now: int) -> int:
    """When the present day began (UTC)."""
    return from_datetime(to_datetime(now).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0))


def ended(counts: Mapping[str, int]) -> int:
    """How many attempts have ended, however."""
    return sum(counts.get(name, 0) for name in ("completed", "failed", "halted"))
