"""The pruner: deletes finished jobs, clients and history that are older than they are kept, and folds old measures.

Jobs and clients go by the engine, in transactions. History goes by scripts, a bounded part at a time: to compare all
the events that a transaction has read would cost more than to delete them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from packhorse.core.errors import StorageClosed
from packhorse.core.event import Event, Subject
from packhorse.core.job import FINAL
from packhorse.core.metrics import CAUSE_DAYS, FOLDS
from packhorse.storage.engine import maintenance
from packhorse.storage.records import MOST_MISSED, Pruned, Retention
from packhorse.storage.redis.keys import Keys
from packhorse.storage.redis.rows import events_of
from packhorse.storage.redis.server import Server
from packhorse.storage.redis.transaction import Transaction
from packhorse.storage.redis.writer import Writer

_CLIENTS_AT_ONCE: Final = 50
_ENTRIES_AT_ONCE: Final = 100
_FAILURES_AT_ONCE: Final = 500
_BUCKETS_AT_ONCE: Final = 500
_INDEXED: Final = [subject.value for subject in Subject if subject is not Subject.JOB]
"""Events about these are in an index of their own."""


class Pruner:
    def __init__(self, server: Server, keys: Keys, writer: Writer) -> None:
        self._server = server
        self._keys = keys
        self._writer = writer

    def prune(self, keep: Retention, limit: int, at: int | None) -> Pruned:
        if at is not None and not self._may_have_old(keep, at):
            return Pruned()
        now = self._server.now()
        try:
            return self._prune(keep, now if at is None else min(at, now), limit)
        except StorageClosed:  # the storage is being moved
            return Pruned()

    def roll_up(self) -> None:
        now = self._server.now()
        words: list[str | int] = []
        for level, coarser in FOLDS:
            words += [level.name, now - level.keep - level.width, coarser.name, coarser.width]
        words += [CAUSE_DAYS.name, now - CAUSE_DAYS.keep - CAUSE_DAYS.width, "", 1]  # deleted, not folded
        while self._server.run("roll_up", _BUCKETS_AT_ONCE, *words) == _BUCKETS_AT_ONCE:
            pass

    def _may_have_old(self, keep: Retention, now: int) -> bool:
        """May anything be older than it is kept? One request, because mostly nothing is."""
        before = now - keep.events
        numbers = self._commands_for_kept()
        replies = self._server.send(
            "prune",
            *numbers,
            ("XRANGE", self._keys.events, "-", "+", "COUNT", 1),
            ("ZRANGE", self._keys.ticks, 0, 0),
            ("ZRANGE", self._keys.replaced_at, 0, 0, "WITHSCORES"),
            ("ZCARD", self._keys.replaced_at),
            ("ZRANGEBYSCORE", self._keys.failures, -before, "+inf", "LIMIT", 0, 1),
            ("ZRANGEBYSCORE", self._keys.client_beats, "-inf", now - keep.clients, "LIMIT", 0, 1),
            *(
                ("ZRANGEBYSCORE", self._keys.finished(state), "-inf", now - keep.of(state), "LIMIT", 0, 1)
                for state in sorted(FINAL)
            ),
        )
        kept = _kept(replies[: len(numbers)])
        oldest, ticks, replaced, many, *others = replies[len(numbers) :]
        most = self._server.address.events
        return (
            any(others)
            or many > most
            or kept.number > most
            or any(event.at <= before for event in _events_in(oldest))
            or any(int(tick.split(b":")[1]) <= before for tick in ticks)
            or any(int(float(score)) <= before for score in replaced[1:])
        )

    def _prune(self, keep: Retention, now: int, limit: int) -> Pruned:
        newest = self._newest_event()
        clients, more_clients = self._prune_clients(now - keep.clients, limit)
        jobs, more_jobs = self._writer.write("prune_part", lambda tx: maintenance.prune_jobs(tx, keep, now, limit))
        self._prune_records(now - keep.events, limit)
        events, more_events = self._prune_events(now - keep.events, newest, limit)
        return Pruned(jobs, events, clients, more_clients or more_jobs or more_events)

    def _newest_event(self) -> int:
        (newest,) = self._server.send("prune", ("GET", self._keys.counter("event")))
        return int(newest or 0)

    # --- clients ------------------------------------------------------------------------------------------------------

    def _prune_clients(self, before: int, limit: int) -> tuple[int, bool]:
        command = ("ZRANGEBYSCORE", self._keys.client_beats, "-inf", before, "LIMIT", 0, limit)
        (silent,) = self._server.send("prune", command)
        for client in silent:
            self.drop_subscriptions("prune_part", client.decode(), before)
        gone, has_more = 0, bool(silent)
        while has_more and gone < limit:
            most = min(_CLIENTS_AT_ONCE, limit - gone)
            work = functools.partial(maintenance.prune_clients, before=before, limit=most)
            number, has_more = self._writer.write("prune_part", work)
            gone += number
        return gone, has_more

    def drop_subscriptions(self, name: str, client_id: str, before: int | None = None) -> None:
        """Delete the subscriptions of a client that goes, in parts, down to the number that its last event names: those
        with the first ids. `before`: stop if there was a sign of life after it."""
        (number,) = self._server.send(name, ("SCARD", self._keys.subs(client_id)))
        if number <= MOST_MISSED:
            return
        (members,) = self._server.send(name, ("SMEMBERS", self._keys.subs(client_id)))
        ids = sorted(job_id.decode() for job_id in members)[MOST_MISSED:]

        def work(tx: Transaction, *, some: Sequence[str]) -> None:
            beat = tx.scores(self._keys.client_beats, [client_id]).get(client_id)
            if beat is not None and (before is None or int(float(beat)) <= before):
                tx.subscribers(tx.jobs(some))
                for job_id in some:
                    tx.unsubscribe(job_id, client_id)

        for start in range(0, len(ids), MOST_MISSED):
            self._writer.write(name, functools.partial(work, some=ids[start : start + MOST_MISSED]))

    # --- history ------------------------------------------------------------------------------------------------------

    def _prune_records(self, before: int, limit: int) -> None:
        """Delete old ticks, failures and replaced calls."""
        most = self._server.address.events
        while self._server.run("prune_records", before, limit, -before, _FAILURES_AT_ONCE, most) == _FAILURES_AT_ONCE:
            limit = 0

    def _prune_events(self, before: int, newest: int, limit: int) -> tuple[int, bool]:
        """Delete the oldest events if they are too old, or if there are too many. Nothing if the very oldest is not."""
        kept = _kept(self._server.send("prune", *self._commands_for_kept()))
        too_many = kept.number - self._server.address.events
        oldest, examined = self._oldest_events(kept.floor, limit + 1)
        if not oldest or (oldest[0].at > before and too_many <= 0):
            return 0, False
        if too_many > 0 and _kept(self._server.send("prune", *self._commands_for_kept())).gone != kept.gone:
            return 0, True  # another process has pruned meanwhile, so there may not be too many now
        past = [
            event.id
            for place, event in enumerate(oldest)
            if (event.at <= before or place < too_many) and event.id != newest
        ]
        gone = past[:limit]
        going = set(gone)
        staying = next((event.id for event in oldest if event.id not in going), examined + 1)
        self._server.run("prune_events", limit, staying - 1, len(_INDEXED), *_INDEXED, *gone)
        return len(gone), len(past) > limit

    def _commands_for_kept(self) -> list[tuple[str, str]]:
        """The reads for `_kept`. In this order they never count more events than there are, even while others prune."""
        return [
            ("GET", self._keys.counter("event")),
            ("GET", self._keys.unused),
            ("ZCARD", self._keys.holes),
            ("GET", self._keys.floor),
        ]

    def _oldest_events(self, floor: int, number: int) -> tuple[list[Event], int]:
        """Return so many of the events that are left, and the id of the last one examined."""
        found: list[Event] = []
        examined, start = floor, "-"
        while len(found) < number:
            most = max(10, min(_ENTRIES_AT_ONCE, number))
            (entries,) = self._server.send("prune", ("XRANGE", self._keys.events, start, "+", "COUNT", most))
            if not entries:
                break
            events = [event for event in _events_in(entries) if event.id > floor]
            holes = self._holes(events)
            found += [event for event in events if event.id not in holes]
            examined = events[-1].id if events else examined
            start = f"({entries[-1][0].decode()}"
        return found[:number], examined

    def _holes(self, events: Sequence[Event]) -> set[int]:
        """Return which of these events, all those of neighbouring entries, are deleted."""
        if not events:
            return set()
        first, last = events[0].id, events[-1].id
        command = ("ZRANGEBYSCORE", self._keys.holes, first, last, "LIMIT", 0, len(events))
        (holes,) = self._server.send("prune", command)
        return set(map(int, holes))


class _Kept(NamedTuple):
    """How many events are stored, above which id, and how many ids up to the last have no event any more."""

    number: int
    floor: int
    gone: int


def _kept(replies: Sequence[Any]) -> _Kept:
    last, unused, holes, floor = (int(one or 0) for one in replies)
    gone = floor + unused + holes
    return _Kept(last - gone, floor, gone)


def _events_in(entries: Iterable[Any]) -> Iterable[Event]:
    for number, (_, at, _, packed) in entries:
        yield from events_of(int(number.partition(b"-")[0]), int(at), packed)
