"""Upkeep: promote, expire, rescue, prune. Every process may do it at any time; each step is whole in itself."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from packhorse.core import clock, transitions
from packhorse.core.errors import StorageClosed
from packhorse.core.event import Event, Kind, Subject
from packhorse.core.job import FINAL, Job, State
from packhorse.storage.records import NOBODY_HOLDS, PollResult, Pruned, Rescued, Retention
from packhorse.storage.redis.clients import Clients
from packhorse.storage.redis.keys import id_of
from packhorse.storage.redis.records import Records
from packhorse.storage.redis.rows import events_of
from packhorse.storage.redis.transaction import Transaction
from packhorse.storage.redis.workers import Workers, worker_in
from packhorse.storage.transfer import decode, outlook_of
from packhorse.storage.unowned_jobs import Unowned

_AT_ONCE = 500
_ENTRIES_AT_ONCE = 100
_INDEXED = [subject.value for subject in Subject if subject is not Subject.JOB]
"""Events about these are found by an index of their own."""
_FRESH = 0.02
"""Seconds for which `next_due` is answered with what a reserve was told that got nothing: an idle worker asks for both,
and shall not trouble the server twice."""


class Upkeep(Workers, Clients, Records):
    @functools.cached_property
    def _unowned(self) -> Unowned:
        return Unowned()

    def promote(self, *, limit: int = 500) -> int:
        return self._change("promote", lambda tx: self._promote(tx, limit))

    def expire(self, *, limit: int = 500) -> int:
        return self._change("expire", lambda tx: self._expire(tx, limit))

    def next_due(self) -> int | None:
        told, self._next_due = self._next_due, None
        if told is not None and time.monotonic() - told.told_at < _FRESH:
            return told.due_in
        (seconds, micros), first = self._server.send(
            "next_due", ("TIME",), ("ZRANGE", self._keys.due, 0, 0, "WITHSCORES")
        )
        now = int(seconds) * clock.SECOND + int(micros) if self._now is None else self._now()
        due_in = max(0, int(float(first[1])) - now) if first else None
        # Of a storage that is moved nothing is promoted: whoever waited for that would never sleep again.
        return None if due_in == 0 and self.move() is not None else due_in

    def poll(self, foreman: str, owners: Sequence[str], *, after: int = 0) -> PollResult:
        told = self._server.run("outlook", foreman, after, *dict.fromkeys(owners))
        now, stops, queued, ordered, held, mark, *times, looked_to, order = told
        due_at, expire_at, next_at, resume_at = (int(float(at)) if at else None for at in times)
        return outlook_of(
            int(now),
            decode(mark),
            stops=bool(stops),
            queued=bool(queued),
            ordered=bool(ordered),
            looked_to=int(looked_to),
            held=bool(held),
            due_at=due_at,
            expire_at=expire_at,
            next_at=next_at,
            resume_at=resume_at,
            order=order.decode(),
        )

    # --- rescue ---------------------------------------------------------------------------------------------------

    def rescue(
        self, *, lease: int, why: str, recovered: bool = False, limit: int = 500, at: int | None = None
    ) -> list[Rescued]:
        called_at = self.now() if at is None else at  # counted from the call, however often it must begin anew

        def work(tx: Transaction) -> list[Rescued]:
            told, holders = tx.ask(("ZRANGE", self._keys.beats, 0, -1, "WITHSCORES"), ("SMEMBERS", self._keys.holders))
            beats = {owner.decode(): beat for owner, beat in zip(told[::2], told[1::2], strict=True)}
            first, last = min(called_at, tx.now), max(called_at, tx.now)
            quiet = [
                owner for owner, beat in beats.items() if not first - lease <= int(float(beat)) <= last + 2 * lease
            ]
            records = zip(quiet, tx.fields(self._keys.workers, quiet), strict=True)
            silent = [
                owner
                for owner, packed in records
                if packed is None or not worker_in(packed, int(float(beats[owner]))).is_beating(first, last, lease)
            ]
            unknown = sorted({owner.decode() for owner in holders} - beats.keys())
            for owner in [*silent, *unknown]:
                tx.must_score(self._keys.beats, owner, beats.get(owner))
            taken = self._rescue_from(tx, [*silent, *unknown], why, (), recovered, limit)
            for owner in sorted(holders) if is_time else ():
                taken += self._rescue_unowned(tx, owner.decode(), recovered, limit)
            return taken

        is_time = self._unowned.is_time()
        return self._change("rescue", work)

    def _rescue_unowned(self, tx: Transaction, owner: str, recovered: bool, limit: int) -> list[Rescued]:
        """Take back what is said to be held by this worker while its own head names nobody. The few bytes that name the
        worker are all that is read of most."""
        key, name = self._keys.held(owner), owner.encode()
        mine = len(name).to_bytes(2, "big") + name
        strange: list[str] = []
        for first in itertools.count(0, _AT_ONCE):
            (told,) = tx.ask(("ZRANGE", key, first, first + _AT_ONCE - 1))
            ids = [job_id.decode() for job_id in told]
            asked = [("GETRANGE", self._keys.head(job_id), 34, 35 + len(name)) for job_id in ids]
            named = tx.ask(*asked) if asked else []
            strange += (job_id for job_id, holder in zip(ids, named, strict=True) if holder != mine)
            if len(ids) < _AT_ONCE:
                break
        taken = []
        for job in tx.drop_strays(key, strange[:limit]) if strange else ():
            change = transitions.rescued(job, tx.now, NOBODY_HOLDS, recovered=recovered)
            taken.append(Rescued(job.id, "", tx.keep(job, change).state))
        return taken

    def rescue_owner(
        self,
        owner: str,
        *,
        why: str,
        foreman: str | None = None,
        ran: Collection[str] = (),
        recovered: bool = False,
        limit: int = 500,
    ) -> list[Rescued]:
        def work(tx: Transaction) -> list[Rescued]:
            packed = tx.field(self._keys.workers, owner)
            if packed is not None:
                worker_in(packed, tx.score(self._keys.beats, owner) or 0).check_given_up_by(foreman, tx.now)
            return self._rescue_from(tx, [owner], why, ran, recovered, limit)

        return self._change("rescue_owner", work)

    def _rescue_from(
        self, tx: Transaction, owners: Sequence[str], why: str, ran: Collection[str], recovered: bool, limit: int
    ) -> list[Rescued]:
        """Take back jobs of these workers, the oldest first; strike off those that hold nothing any more."""
        told = tx.ask(*(("ZRANGE", self._keys.held(owner), 0, limit, "WITHSCORES") for owner in owners))
        ranges = {
            owner: [(int(float(seq)), job_id.decode()) for job_id, seq in zip(one[::2], one[1::2], strict=True)]
            for owner, one in zip(owners, told, strict=True)
        }
        oldest = sorted(itertools.chain(*ranges.values()))[:limit]
        jobs = tx.jobs(job_id for _, job_id in oldest)
        taken = []
        for owner, held in ranges.items():
            own = [jobs[job_id] for _, job_id in held if job_id in jobs and jobs[job_id].owner == owner]
            before, strays = tx.strays, []
            if len(own) < len(held) <= limit:
                strays = tx.drop_strays(self._keys.held(owner), [job_id for _, job_id in held])
            for job in (*own, *strays):
                change = transitions.rescued(job, tx.now, why, ran=job.id in ran, recovered=recovered)
                taken.append((job.seq, Rescued(job.id, job.owner or "", tx.keep(job, change).state)))
            number = len(own) + tx.strays - before
            if number == len(held):  # else some are left, or were in other hands when we looked again
                self._strike_off(tx, owner, number, why)
        return [rescued for _, rescued in sorted(taken, key=itemgetter(0))]

    def _strike_off(self, tx: Transaction, owner: str, held: int, why: str) -> None:
        """A worker that holds nothing but these jobs, which are taken from it, goes: its record is what its jobs are
        found by."""
        packed = tx.field(self._keys.workers, owner)
        if packed is None and not held:
            return
        tx.must_hold(owner, held)
        tx.do("SREM", self._keys.holders, owner)
        if packed is not None:
            self._strike(tx, owner)
            worker = worker_in(packed)
            tx.record_about(worker.subject, Kind.DIED, owner=owner, **worker.told(why=why))

    # --- prune ----------------------------------------------------------------------------------------------------

    def prune(self, keep: Retention, *, limit: int = 1_000, at: int | None = None) -> Pruned:
        if at is not None and not self._may_have_old(keep, at):
            return Pruned()
        now = self._server.now()
        try:
            return self._prune(keep, now if at is None else min(at, now), limit)
        except StorageClosed:  # it is moved: nothing is to be done
            return Pruned()

    def _may_have_old(self, keep: Retention, now: int) -> bool:
        """May anything be older than it is kept? One request, for mostly there is nothing."""
        before = now - keep.events
        numbers = self._asked_for_number()
        told = self._server.send(
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
        kept = _kept(told[: len(numbers)])
        oldest, ticks, replaced, many, *others = told[len(numbers) :]
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
        jobs, more_jobs = self._prune_jobs(keep, now, limit)
        self._prune_records(now - keep.events, limit)
        events, more_events = self._prune_events(now - keep.events, newest, limit)
        return Pruned(jobs, events, clients, more_clients or more_jobs or more_events)

    def _newest_event(self) -> int:
        (newest,) = self._server.send("prune", ("GET", self._keys.counter("event")))
        return int(newest or 0)

    def _prune_clients(self, before: int, limit: int) -> tuple[int, bool]:
        asked = ("ZRANGEBYSCORE", self._keys.client_beats, "-inf", before, "LIMIT", 0, limit + 1)
        (silent,) = self._server.send("prune", asked)
        gone = sum(self._part_with("prune_part", one.decode(), Kind.TIMED_OUT, before) for one in silent[:limit])
        return gone, len(silent) > limit

    def _prune_jobs(self, keep: Retention, now: int, limit: int) -> tuple[int, bool]:
        def work(tx: Transaction) -> tuple[int, bool]:
            old = [job for state in sorted(FINAL) for job in self._prunable(tx, state, now - keep.of(state), limit)]
            old.sort(key=lambda job: (job.finished_at, job.seq))
            for job in old[:limit]:
                tx.remove(job, "retention")
            return len(old[:limit]), len(old) > limit

        return self._change("prune_part", work)

    def _prunable(self, tx: Transaction, state: State, before: int, limit: int) -> list[Job]:
        """Up to one more than `limit`. Persistent jobs and those with subscribers lie elsewhere."""
        found: list[Job] = []
        start = 0
        while len(found) <= limit:
            most = min(_AT_ONCE, limit + 1 - len(found))
            asked = ("ZRANGEBYSCORE", self._keys.finished(state), "-inf", before, "LIMIT", start, most)
            (marks,) = tx.ask(asked)
            listed = tx.jobs_in(self._keys.finished(state), map(id_of, marks))
            jobs = [job for job in listed if job.finished_at is not None and job.finished_at <= before]
            tx.fields(self._keys.locks, [job.unique_key for job in jobs if job.unique_key])
            found += [job for job in jobs if not (job.unique_key and tx.holder(job.unique_key) == job)]
            start += len(marks)
            if len(marks) < most:
                break
        return found

    def _prune_events(self, before: int, newest: int, limit: int) -> tuple[int, bool]:
        """The oldest that are over, and the oldest of too many. None if the very oldest is not over."""
        kept = _kept(self._server.send("prune", *self._asked_for_number()))
        too_many = kept.number - self._server.address.events
        oldest, looked_at = self._oldest_events(kept.floor, limit + 1)
        if not oldest or (oldest[0].at > before and too_many <= 0):
            return 0, False
        if too_many > 0 and _kept(self._server.send("prune", *self._asked_for_number())).gone != kept.gone:
            return 0, True  # another process has pruned meanwhile: of those that are left there may not be too many
        past = [
            event.id
            for place, event in enumerate(oldest)
            if (event.at <= before or place < too_many) and event.id != newest
        ]
        gone = past[:limit]
        going = set(gone)
        staying = next((event.id for event in oldest if event.id not in going), looked_at + 1)
        self._server.run("prune_events", limit, staying - 1, len(_INDEXED), *_INDEXED, *gone)
        return len(gone), len(past) > limit

    def _asked_for_number(self) -> list[tuple[str, str]]:
        """What `_kept` wants to know. In this order it never finds more events than there are, whoever prunes
        meanwhile."""
        return [
            ("GET", self._keys.counter("event")),
            ("GET", self._keys.unused),
            ("ZCARD", self._keys.holes),
            ("GET", self._keys.floor),
        ]

    def _oldest_events(self, floor: int, number: int) -> tuple[list[Event], int]:
        """So many events that are still there, and the id of the last that was looked at."""
        found: list[Event] = []
        looked_at, start = floor, "-"
        while len(found) < number:
            most = max(10, min(_ENTRIES_AT_ONCE, number))
            (entries,) = self._server.send("prune", ("XRANGE", self._keys.events, start, "+", "COUNT", most))
            if not entries:
                break
            events = [event for event in _events_in(entries) if event.id > floor]
            holes = self._holes(events)
            found += [event for event in events if event.id not in holes]
            looked_at = events[-1].id if events else looked_at
            start = f"({entries[-1][0].decode()}"
        return found[:number], looked_at

    def _holes(self, events: Sequence[Event]) -> set[int]:
        """Which of these, all of some neighbouring entries, are gone."""
        if not events:
            return set()
        first, last = events[0].id, events[-1].id
        asked = ("ZRANGEBYSCORE", self._keys.holes, first, last, "LIMIT", 0, len(events))
        (holes,) = self._server.send("prune", asked)
        return set(map(int, holes))


class _Kept(NamedTuple):
    """How many events there are, above which id, and how many ids up to the last are no events any more."""

    number: int
    floor: int
    gone: int


def _kept(told: Sequence[Any]) -> _Kept:
    last, unused, holes, floor = (int(one or 0) for one in told)
    gone = floor + unused + holes
    return _Kept(last - gone, floor, gone)


def _events_in(entries: Iterable[Any]) -> Iterable[Event]:
    for number, (_, at, _, packed) in entries:
        yield from events_of(int(number.partition(b"-")[0]), int(at), packed)
