"""What is remembered: events, log lines, failures, and the numbers behind the charts. For all SQL storages; how events
lie in rows is each one's own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from operator import itemgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from packhorse.core.event import Event, Kind, Subject
from packhorse.storage.records import EventFilter, FailureGroup, LogLine, Point, Span, log_kind
from packhorse.storage.sql.keeper import Keeper
from packhorse.storage.sql.rows import event_of, to_json
from packhorse.storage.sql.transaction import Transaction

_values = msgspec.json.Decoder(dict[str, int]).decode
EVENT_COLUMNS = "id, at, kind, subject, job_id, queue, state, owner, fence, data"
_CONDITIONS = {
    "job_id": "job_id = ?",
    "subject": "subject = ?",
    "kind": "kind = ?",
    "queue": "queue = ?",
    "owner": "owner = ?",
    "after": "id > ?",
    "before": "id < ?",
}


def among_kinds(where: EventFilter) -> list[str]:
    """The condition that an event is of one of several kinds, if that is asked. These are our own words, so they are
    written out."""
    words = ", ".join(f"'{kind.value}'" for kind in sorted(where.kinds))
    return [f"kind IN ({words})"] if words else []


class Records(Keeper):
    def events(self, where: EventFilter, *, limit: int = 100, newest_first: bool = False) -> list[Event]:
        asked = {name: getattr(where, name) for name in _CONDITIONS if getattr(where, name) is not None}
        conditions = [*(_CONDITIONS[name] for name in asked), *among_kinds(where)]
        # Said so that the index over events without a job, which are few, can serve.
        if where.job_id is None and where.subject not in (None, "job"):
            conditions.append("job_id IS NULL")
        values: list[Any] = [str(value) if isinstance(value, str) else value for value in asked.values()]
        # Does somebody follow the events by their ids? One that became visible late would never be seen.
        is_followed = where.after is not None and where.job_id is None and not newest_first
        settled, theirs = self._settled() if is_followed else ("", [])
        rest = f"FROM {self._event_table(where)}"
        if conditions:
            rest += f" WHERE {' AND '.join(conditions)}"
        rest += f" ORDER BY id {'DESC' if newest_first else 'ASC'} LIMIT ?"
        if is_followed:
            sql = f"SELECT {EVENT_COLUMNS}{settled and f', {settled}'} {rest}"
            rows = self._follow(self._dialect.say(sql), [*theirs, *values, limit])
        else:
            rows = self._read_events(self._dialect.say(rest), [*values, limit])
        if settled:  # whoever saw a later one would never come back for the first that is not
            rows = [row[:-1] for row in takewhile(itemgetter(-1), rows)]
        return [event_of(row) for row in rows]

    def _event_table(self, where: EventFilter) -> str:
        """The table of events, as it is best asked for these."""
        return f"{self._dialect.prefix}event"

    def _read_events(self, rest: str, values: Sequence[Any]) -> list[Any]:
        """The rows of a query of which only its columns are not said."""
        return self._db.read("events", f"SELECT {EVENT_COLUMNS} {rest}", values)

    def _follow(self, sql: str, values: Sequence[Any]) -> list[Any]:
        """The same for somebody who asks on from the last one; see `_settled`."""
        return self._db.read("events", sql, values)

    def log_lines(self, job_id: str, *, after: int = 0, limit: int = 1_000) -> list[LogLine]:
        rows = self._db.read("log_lines", self._sql["log_of"], (job_id, after, limit))
        return [LogLine(message, log_kind(kind), *rest) for message, kind, *rest in rows]

    def failures(self, *, limit: int = 50, span: Span | None = None) -> list[FailureGroup]:
        found = [FailureGroup(*row) for row in self._db.read("failures", self._sql["latest_failures"], (limit,))]
        if span is None or not found:
            return found
        counts: dict[str, dict[int, int]] = {group.cause: {} for group in found}
        start = span.level.start_of(self.now() - span.length)
        asked = (span.level.width, to_json(span.cause_levels), start, to_json(list(counts)))
        for cause, at, number in self._db.read("failures", self._sql["cause_series"], asked):
            counts[cause][at] = number
        return [replace(group, counts=counts[group.cause]) for group in found]

    def silence_failure(
        self, cause: str, duration: int | None, *, version: str | None = None, by: str | None = None
    ) -> bool:
        def work(tx: Transaction) -> bool:
            row = tx.execute(self._sql["get_silence"], (cause,)).fetchone()
            if row is None:
                return False
            task, has_silence = row
            is_over = duration is None and version is None
            if not is_over or has_silence:
                until = None if duration is None else tx.now + duration
                tx.execute(self._sql["silence_failure"], (until, None if is_over else by, version, cause))
                kind = Kind.UNSILENCED if is_over else Kind.SILENCED
                facts: dict[str, Any] = {"task": task, "duration": duration, "version": version, "by": by}
                self._record_about(tx, Subject.FAILURE, kind, queue=cause, **facts)
            return True

        return self._write("silence_failure", work)

    def series(self, span: Span, *, queue: str | None = None, task: str | None = None) -> list[Point]:
        level, start = span.level, span.level.start_of(self.now() - span.length)
        if span.levels == [level.name]:
            rows = self._db.read("series", self._sql["series_of_level"], (level.name, start, queue, task))
        else:
            asked = (level.width, to_json(span.levels), start, queue, task)
            rows = self._db.read("series", self._sql["series"], asked)
        return [Point(at, its_queue, its_task, _values(told)) for at, its_queue, its_task, told in rows]

    def totals(self) -> dict[str, int]:
        return dict(self._db.read("totals", self._sql["totals"]))
