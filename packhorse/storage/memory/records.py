"""Events, log lines, failures and figures."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from packhorse.event import Event, Kind, Subject
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
    def failures(self, *, limit: int = 50) -> list[FailureGroup]:
        return sorted(self._failures.values(), key=lambda group: (-group.last_at, group.cause))[:limit]

    @atomic
    def silence_failure(self, cause: str, duration: int | None, *, by: str | None = None) -> bool:
        group = self._failures.get(cause)
        if group is None:
            return False
        if duration is not None or group.silenced_until is not None:
            kind = Kind.UNSILENCED if duration is None else Kind.SILENCED
            self._record_about(Subject.FAILURE, kind, queue=cause, task=group.task, duration=duration, by=by)
        until, who = (None, None) if duration is None else (self.now() + duration, by)
        self._failures[cause] = replace(group, silenced_until=until, silenced_by=who)
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
