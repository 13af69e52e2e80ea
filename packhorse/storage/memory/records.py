"""What is remembered, in memory: events, log lines, failures and figures. What each call guarantees: `contract.py`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec.structs import replace

from packhorse.core.event import Event, Kind, Subject
from packhorse.core.metrics import CAUSED
from packhorse.storage.memory.keeper import Keeper, atomic
from packhorse.storage.records import EventFilter, FailureGroup, LogLine, Point, Span


class Records(Keeper):
    @atomic
    def events(self, where: EventFilter, *, limit: int = 100, newest_first: bool = False) -> list[Event]:
        found = [event for event in self._events if _event_fits(event, where)]
        return (found[::-1] if newest_first else found)[:limit]

    @atomic
    def log_lines(self, job_id: str, *, after: int = 0, limit: int = 1_000) -> list[LogLine]:
        return [line for line in self._log.get(job_id, []) if line.id > after][:limit]

    @atomic
    def failures(self, *, limit: int = 50, span: Span | None = None) -> list[FailureGroup]:
        found = sorted(self._failures.values(), key=lambda group: (-group.last_at, group.cause))[:limit]
        return found if span is None else [replace(group, counts=self._counts_of(group.cause, span)) for group in found]

    def _counts_of(self, cause: str, span: Span) -> dict[int, int]:
        levels, start = span.cause_levels, span.level.start_of(self.now() - span.length)
        counts: Counter[int] = Counter()
        for (name, at, its_cause, _, _), amount in self._measures.items():
            if name in levels and at >= start and its_cause == cause:
                counts[span.level.start_of(at)] += amount
        return dict(sorted(counts.items()))

    @atomic
    def silence_failure(
        self, cause: str, duration: int | None, *, version: str | None = None, by: str | None = None
    ) -> bool:
        group = self._failures.get(cause)
        if group is None:
            return False
        is_over = duration is None and version is None
        if not is_over or group.has_silence:
            kind = Kind.UNSILENCED if is_over else Kind.SILENCED
            facts: dict[str, Any] = {"task": group.task, "duration": duration, "version": version, "by": by}
            self._record_about(Subject.FAILURE, kind, queue=cause, **facts)
        until = None if duration is None else self.now() + duration
        who = None if is_over else by
        self._failures[cause] = replace(group, silenced_until=until, silenced_by=who, silenced_version=version)
        return True

    @atomic
    def series(self, span: Span, *, queue: str | None = None, task: str | None = None) -> list[Point]:
        levels, start = span.levels, span.level.start_of(self.now() - span.length)
        points: dict[tuple[int, str, str], dict[str, int]] = {}
        for (name, at, its_queue, its_task, counted), amount in self._measures.items():
            if name in levels and at >= start and queue in (None, its_queue) and task in (None, its_task):
                values = points.setdefault((span.level.start_of(at), its_queue, its_task), {})
                values[counted] = values.get(counted, 0) + amount
        return [Point(*key, values) for key, values in sorted(points.items())]

    @atomic
    def totals(self) -> dict[str, int]:
        counted: Counter[str] = Counter()
        for (_, _, _, _, name), amount in self._measures.items():
            if name != CAUSED:
                counted[name] += amount
        return dict(counted)


def _event_fits(event: Event, where: EventFilter) -> bool:
    return (
        where.job_id in (None, event.job_id)
        and where.subject in (None, event.subject)
        and where.kind in (None, event.kind)
        and (not where.kinds or event.kind in where.kinds)
        and where.queue in (None, event.queue)
        and where.owner in (None, event.owner)
        and (where.after is None or event.id > where.after)
        and (where.before is None or event.id < where.before)
    )
