"""History: events, log lines, failures, and the numbers behind the charts.

Everything is read in parts: the reply of one script is bounded, however much is stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from packhorse.core.event import Event, Subject
from packhorse.storage.records import EventFilter, FailureGroup, LogLine, Point, Span, log_kind
from packhorse.storage.redis import keys, rows
from packhorse.storage.redis.keys import Keys
from packhorse.storage.redis.records import pairs
from packhorse.storage.redis.server import Server

_NEWEST: Final = 1 << 53
_FEWEST_ENTRIES, _MOST_ENTRIES = 16, 200
_LINES_AT_ONCE: Final = 1_000
_FAILURES_AT_ONCE: Final = 500
_BUCKETS_AT_ONCE: Final = 500

_line = msgspec.msgpack.Decoder(tuple[int, int, int, str, str]).decode


class History:
    def __init__(self, server: Server, keys: Keys) -> None:
        self._server = server
        self._keys = keys

    # --- events -----------------------------------------------------------------------------------------------------

    def events(self, where: EventFilter, *, limit: int = 100, newest_first: bool = False) -> list[Event]:
        fitting = (event for event in self._walk_events(where, limit, newest_first) if where.matches(event))
        return list(itertools.islice(fitting, max(limit, 0)))

    def _walk_events(self, where: EventFilter, limit: int, newest_first: bool) -> Iterator[Event]:
        """Events that may fit, one entry of the stream after the other."""
        which, name = _source(where)
        way, number = ("down", _highest(where)) if newest_first else ("from", _lowest(where))
        needles = [value.encode() for value in (where.job_id, where.kind, where.queue, where.owner) if value]
        kinds = [kind.encode() for kind in where.kinds]
        most = min(max(limit // 8, _FEWEST_ENTRIES), _MOST_ENTRIES)
        while True:
            floor, holes, last, *words = self._server.run("events", which, name, way, number, most)
            gone = {int(hole) for hole in holes}
            for entry, at, packed in zip(*[iter(words)] * 3, strict=True):
                if all(needle in packed for needle in needles) and _may_have(packed, kinds):
                    events = rows.events_of(int(entry), int(at), packed)
                    kept = [one for one in events if one.id > int(floor) and one.id not in gone]
                    yield from reversed(kept) if newest_first else kept
            if not last or not _lowest(where) <= int(last) <= _highest(where):
                return
            way, number = ("down", int(last) - 1) if newest_first else ("behind", int(last))
            most = min(2 * most, _MOST_ENTRIES)

    # --- log lines --------------------------------------------------------------------------------------------------

    def log_lines(self, job_id: str, *, after: int = 0, limit: int = 1_000) -> list[LogLine]:
        found: list[LogLine] = []
        while len(found) < limit:
            most = min(limit - len(found), _LINES_AT_ONCE)
            lines = self._server.run("log_lines", job_id, after, most)
            found += [_log_line(packed) for packed in lines]
            if len(lines) < most or found[-1].id <= after:
                break
            after = found[-1].id
        return found

    # --- failures ---------------------------------------------------------------------------------------------------

    def failures(self, *, limit: int = 50, span: Span | None = None) -> list[FailureGroup]:
        def read(start: int, most: int) -> list[FailureGroup]:
            return [failure_in(one) for one in self._server.run("failures", start, most)]

        found = list(rows.in_parts(read, limit, _FAILURES_AT_ONCE))
        return found if span is None or not found else self._with_counts(found, span)

    def _with_counts(self, found: list[FailureGroup], span: Span) -> list[FailureGroup]:
        counts: dict[str, dict[int, int]] = {group.cause: {} for group in found}
        start = span.level.start_of(self._server.now() - span.length)
        for at, bucket in self._buckets(span.cause_levels, start):
            point = span.level.start_of(at)
            for field, amount in pairs(bucket):
                its = counts.get(keys.names_of(field.partition(b":")[2])[0])
                if its is not None:
                    its[point] = its.get(point, 0) + int(amount)
        return [replace(group, counts=dict(sorted(counts[group.cause].items()))) for group in found]

    # --- charts -----------------------------------------------------------------------------------------------------

    def series(self, span: Span, *, queue: str | None = None, task: str | None = None) -> list[Point]:
        points: dict[tuple[int, bytes], dict[str, int]] = {}
        start = span.level.start_of(self._server.now() - span.length)
        for at, bucket in self._buckets(span.levels, start):
            point = span.level.start_of(at)
            for field, amount in pairs(bucket):
                counted, _, place = field.partition(b":")
                values = points.setdefault((point, place), {})
                name = counted.decode()
                values[name] = values.get(name, 0) + int(amount)
        found = (Point(at, *keys.names_of(place), values) for (at, place), values in points.items())
        wanted = [one for one in found if queue in (None, one.queue) and task in (None, one.task)]
        return sorted(wanted, key=lambda one: (one.at, one.queue, one.task))

    def totals(self) -> dict[str, int]:
        (reply,) = self._server.send("totals", ("HGETALL", self._keys.total))
        return {name.decode(): int(amount) for name, amount in pairs(reply)}

    def _buckets(self, levels: list[str], start: int) -> Iterator[tuple[int, list[bytes]]]:
        """The buckets from `start` on: when each begins, and its fields and amounts in turn."""

        def read(seen: int, most: int) -> list[tuple[int, list[bytes]]]:
            return [(int(at), bucket) for at, bucket in self._server.run("series", start, seen, most, *levels)]

        return rows.in_parts(read, None, _BUCKETS_AT_ONCE)


def _source(where: EventFilter) -> tuple[str, str]:
    """The shortest index that has all events that fit."""
    if where.job_id is not None:
        return "job", where.job_id
    if where.subject not in (None, Subject.JOB):
        return "subject", str(where.subject)
    return "all", ""


def _lowest(where: EventFilter) -> int:
    return 0 if where.after is None else max(0, min(where.after + 1, _NEWEST))


def _highest(where: EventFilter) -> int:
    return _NEWEST if where.before is None else max(0, min(where.before - 1, _NEWEST))


def _log_line(packed: bytes) -> LogLine:
    try:
        number, at, attempt, kind, message = _line(packed)
    except msgspec.MsgspecError:  # it was garbled
        return LogLine(f"(a line that cannot be read: {packed[:100]!r})")
    return LogLine(message, log_kind(kind), at, attempt, number)


def failure_in(words: Sequence[bytes]) -> FailureGroup:
    """A failure group as `lua/failures.lua` returns it."""
    cause, task, pattern, place, *numbers, job_id, until, by, first, last, silenced = (word.decode() for word in words)
    number, first_at, last_at = map(int, numbers)
    about = (cause, task, pattern, place or None, number, first_at, last_at, job_id)
    return FailureGroup(
        *about, int(until) if until else None, by or None, first or None, last or None, silenced or None
    )


def _may_have(packed: bytes, kinds: Sequence[bytes]) -> bool:
    """May this entry have events of one of these kinds?"""
    return not kinds or any(kind in packed for kind in kinds)
