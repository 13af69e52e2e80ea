"""Copying: the mark of a move, and the rows that go to another storage or come from one.

What belongs to jobs (unique keys, subscriptions, log lines) is read by walking over the jobs, queue by queue, in parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from packhorse.core.event import Event, Subject
from packhorse.core.job import Job
from packhorse.core.metrics import ALL_LEVELS, CAUSED
from packhorse.storage.contract import Storage
from packhorse.storage.records import EventFilter
from packhorse.storage.redis.history import failure_in
from packhorse.storage.redis.keys import Keys, names_of, place
from packhorse.storage.redis.records import pairs, tick_in
from packhorse.storage.redis.rows import EVENTS_AT_ONCE, chunks, entry_of, from_json, from_msgpack, to_json, to_msgpack
from packhorse.storage.redis.server import Server
from packhorse.storage.redis.transaction import Transaction
from packhorse.storage.redis.writer import Writer
from packhorse.storage.transfer import (
    Dumped,
    Lock,
    LoggedLine,
    Measure,
    Move,
    Replaced,
    Section,
    Subscription,
    bare,
    decode,
    encode,
    paged,
)

_AT_ONCE = 500
_BUCKETS_AT_ONCE = 20


class Copier:
    """Reads one storage whole, or fills it. `storage` supplies the lists of the contract."""

    def __init__(self, storage: Storage, server: Server, keys: Keys, writer: Writer) -> None:
        self._storage = storage
        self._server = server
        self._keys = keys
        self._writer = writer

    # --- the mark -------------------------------------------------------------------------------------------------

    def set_move(self, move: Move | None, expected: Move | None) -> bool:
        return self._marking(move, expected, lambda tx: tx.wake([""]) if move is None else None)

    def _marking(self, move: Move | None, expected: Move | None, work: Callable[[Transaction], None]) -> bool:
        """Do `work` and change the mark in one step. False: the mark is not the expected one."""

        def attempt() -> tuple[bool, bool]:
            tx = self._writer.transaction("move")
            if decode(tx.text(self._keys.move)) != expected:
                return True, False
            work(tx)
            tx.do("DEL", self._keys.move) if move is None else tx.do("SET", self._keys.move, encode(move))
            return bool(self._server.run(tx.script, *tx.words())), True

        is_done = self._writer.until_done("move", attempt)
        self._writer.read_mark()
        return is_done

    # --- out ------------------------------------------------------------------------------------------------------

    def dump(self, section: Section, cursor: str | None, limit: int) -> Dumped:
        rows = self._small_section(section)
        if rows is not None:
            return paged(rows, cursor, limit)
        dumping: dict[Section, Callable[[Any, int], Dumped]] = {
            Section.JOBS: self._dump_jobs,
            Section.LOCKS: self._dump_locks,
            Section.SUBSCRIPTIONS: self._dump_subscriptions,
            Section.LOG: self._dump_log,
            Section.REPLACED: self._dump_replaced,
            Section.EVENTS: self._dump_events,
            Section.MEASURES: self._dump_measures,
            Section.FAILURES: self._dump_failures,
            Section.TICKS: self._dump_ticks,
        }
        return dumping[section](None if cursor is None else from_json(cursor), limit)

    def _small_section(self, section: Section) -> list[tuple[str, Any]] | None:
        """All rows of a section that is a list of names."""
        storage = self._storage
        if section is Section.TASKS:
            return [(task.name, task) for task in storage.tasks()]
        if section is Section.QUEUES:
            return [(queue.name, bare(queue)) for queue in storage.queues()]
        if section is Section.CLIENTS:  # their subscriptions are a section of their own
            return [(client.id, replace(client, subscriptions=0)) for client in storage.clients()]
        if section is Section.SCHEDULES:
            return [(schedule.name, schedule) for schedule in storage.schedules()]
        return None

    def _walk(self, behind: tuple[str, int] | None, limit: int) -> tuple[list[Job], str | None]:
        """The jobs after this place, queue by queue, and the cursor of the last if there may be more."""
        (names,) = self._server.send("dump", ("HKEYS", self._keys.queues))
        first, seq = behind or ("", 0)
        found: list[Job] = []
        for queue in sorted(name.decode() for name in names):
            if queue < first or len(found) >= limit:
                continue
            after = seq if queue == first else 0
            command = ("ZRANGEBYSCORE", self._keys.queue(queue), f"({after}", "+inf", "LIMIT", 0, limit - len(found))
            (ids,) = self._server.send("dump", command)
            found += self._storage.get_many([one.decode() for one in ids])
        return found, _cursor(found[-1].queue, found[-1].seq) if len(found) >= limit else None

    def _dump_jobs(self, cursor: Any, limit: int) -> Dumped:
        jobs, following = self._walk(cursor, limit)
        return Dumped(list(jobs), following)

    def _dump_locks(self, cursor: Any, limit: int) -> Dumped:
        jobs, following = self._walk(cursor, limit)
        wanted = {job.id: job.unique_key for job in jobs if job.unique_key}
        if not wanted:
            return Dumped([], following)
        (locks,) = self._server.send("dump", ("HMGET", self._keys.locks, *wanted.values()))
        found = []
        for (job_id, key), packed in zip(wanted.items(), locks, strict=True):
            if packed is not None and from_msgpack(packed)[0] == job_id:
                found.append(Lock(key, *from_msgpack(packed)))
        return Dumped(found, following)

    def _dump_subscriptions(self, cursor: Any, limit: int) -> Dumped:
        jobs, following = self._walk(cursor, limit)
        subscribers = self._server.send("dump", *(("SMEMBERS", self._keys.sub(job.id)) for job in jobs))
        rows = [
            Subscription(job.id, client.decode())
            for job, clients in zip(jobs, subscribers, strict=True)
            for client in sorted(clients)
        ]
        return Dumped(rows, following)

    def _dump_log(self, cursor: Any, limit: int) -> Dumped:
        jobs, following = self._walk(cursor, limit)
        lengths = self._server.send("dump", *(("LLEN", self._keys.log(job.id)) for job in jobs))
        rows: list[LoggedLine] = []
        for job, length in zip(jobs, lengths, strict=True):
            if length:
                rows += [LoggedLine(job.id, line) for line in self._storage.log_lines(job.id, limit=length)]
                if len(rows) >= limit:
                    return Dumped(rows, _cursor(job.queue, job.seq))
        return Dumped(rows, following)

    def _dump_replaced(self, cursor: Any, limit: int) -> Dumped:
        start = cursor or 0
        (reply,) = self._server.send(
            "dump", ("ZRANGE", self._keys.replaced_at, start, start + limit - 1, "WITHSCORES")
        )  # fmt: skip
        calls = reply[::2]
        (ids,) = self._server.send("dump", ("HMGET", self._keys.replaced, *calls)) if calls else ([],)
        rows = [
            Replaced(twin.decode(), job_id.decode(), int(float(at)))
            for twin, job_id, at in zip(calls, ids, reply[1::2], strict=True)
        ]
        return Dumped(rows, to_json(start + limit) if len(rows) == limit else None)

    def _dump_events(self, cursor: Any, limit: int) -> Dumped:
        events = self._storage.events(EventFilter(after=cursor or 0), limit=limit)
        return Dumped(list(events), to_json(events[-1].id) if len(events) == limit else None)

    def _dump_measures(self, cursor: Any, limit: int) -> Dumped:
        """Whole buckets, of one level at a time."""
        number, seen = cursor or (0, 0)
        level = ALL_LEVELS[number].name
        rows: list[Measure] = []
        while len(rows) < limit:
            buckets = self._server.run("series", 0, seen, _BUCKETS_AT_ONCE, level)
            rows += [row for at, bucket in buckets for row in _measures_in(level, int(at), bucket)]
            seen += len(buckets)
            if len(buckets) < _BUCKETS_AT_ONCE:
                is_last = number + 1 == len(ALL_LEVELS)
                return Dumped(rows, None if is_last else _cursor(number + 1, 0))
        return Dumped(rows, _cursor(number, seen))

    def _dump_failures(self, cursor: Any, limit: int) -> Dumped:
        start, most = cursor or 0, min(limit, _AT_ONCE)
        groups = self._server.run("failures", start, most)
        return Dumped([failure_in(one) for one in groups], to_json(start + most) if len(groups) == most else None)

    def _dump_ticks(self, cursor: Any, limit: int) -> Dumped:
        start = cursor or 0
        (marks,) = self._server.send("dump", ("ZRANGE", self._keys.ticks, start, start + limit - 1))
        commands = []
        for one in marks:
            number, _, name = one.decode().split(":", 2)
            commands.append(("ZRANGEBYSCORE", self._keys.ticks_of(name), number, number, "LIMIT", 0, 1))
        rows = [tick_in(packed) for found in self._server.send("dump", *commands) for packed in found]
        return Dumped(rows, to_json(start + limit) if len(marks) == limit else None)

    # --- in -------------------------------------------------------------------------------------------------------

    def load(self, section: Section, rows: Sequence[Any], move: Move, expected: Move) -> bool:
        loading: dict[Section, Callable[[Transaction, Sequence[Any]], None]] = {
            Section.TASKS: self._load_tasks,
            Section.QUEUES: self._load_queues,
            Section.CLIENTS: self._load_clients,
            Section.JOBS: self._load_jobs,
            Section.LOCKS: self._load_locks,
            Section.REPLACED: self._load_replaced,
            Section.SUBSCRIPTIONS: self._load_subscriptions,
            Section.LOG: self._load_log,
            Section.EVENTS: self._load_events,
            Section.MEASURES: self._load_measures,
            Section.FAILURES: self._load_failures,
            Section.SCHEDULES: self._load_schedules,
            Section.TICKS: lambda tx, rows: tx.put_ticks(rows),
        }

        def work(tx: Transaction) -> None:
            tx.must_have_room()
            if rows:
                loading[section](tx, rows)

        return self._marking(move, expected, work)

    def _load_tasks(self, tx: Transaction, rows: Sequence[Any]) -> None:
        for task in rows:
            tx.put(task)

    def _load_queues(self, tx: Transaction, rows: Sequence[Any]) -> None:
        for queue in rows:
            tx.put(queue)

    def _load_clients(self, tx: Transaction, rows: Sequence[Any]) -> None:
        for client in rows:
            tx.put(client)

    def _load_jobs(self, tx: Transaction, rows: Sequence[Any]) -> None:
        for job in rows:
            tx.load(job)
        self._raise(tx, "job", max(job.seq for job in rows))

    def _load_locks(self, tx: Transaction, rows: Sequence[Any]) -> None:
        for lock in rows:
            tx.put_field(
                self._keys.locks, lock.key, to_msgpack((lock.job_id, lock.period, lock.until, lock.taken_at))
            )  # fmt: skip

    def _load_replaced(self, tx: Transaction, rows: Sequence[Any]) -> None:
        for row in rows:
            tx.put_field(self._keys.replaced, row.twin, row.job_id)
            tx.do("ZADD", self._keys.replaced_at, row.at, row.twin)

    def _load_subscriptions(self, tx: Transaction, rows: Sequence[Any]) -> None:
        tx.subscribers(tx.jobs([row.job_id for row in rows]))
        for row in rows:
            tx.add_subscriber(row.job_id, row.client_id)

    def _load_log(self, tx: Transaction, rows: Sequence[Any]) -> None:
        for job_id, lines in itertools.groupby(rows, key=lambda row: row.job_id):
            packed = [
                to_msgpack((row.line.id, row.line.at, row.line.attempt, row.line.kind.value, row.line.message))
                for row in lines
            ]
            for some in chunks(packed, _AT_ONCE):
                tx.do("RPUSH", self._keys.log(job_id), *some)
        self._raise(tx, "line", max(row.line.id for row in rows))

    def _load_events(self, tx: Transaction, rows: Sequence[Event]) -> None:
        (last,) = tx.send(("GET", self._keys.counter("event")))
        if last is None:  # events before the first of these are deleted in the other storage, too
            tx.do("SET", self._keys.floor, rows[0].id - 1)
        entries_of: dict[str, list[int]] = {}
        before = rows[0].id - 1 if last is None else int(last)
        # Other storages may skip ids. The skipped ones are counted, because Redis counts its events by their ids.
        if unused := rows[-1].id - before - len(rows):
            tx.do("INCRBY", self._keys.unused, unused)
        for entry in _entries(rows):
            first = entry[0].id
            tx.do("XADD", self._keys.events, first, "a", entry[-1].at, "e", entry_of(entry, entry[-1].at))
            if entry[0].subject is not Subject.JOB:
                tx.do("ZADD", self._keys.about(entry[0].subject.value), first, first)
            for job_id in dict.fromkeys(event.job_id for event in entry if event.job_id is not None):
                entries_of.setdefault(job_id, []).append(first)
        tx.do("SET", self._keys.counter("event"), rows[-1].id)
        tx.jobs(entries_of)
        for job_id, entries in entries_of.items():
            tx.load_entries(job_id, entries)

    def _load_measures(self, tx: Transaction, rows: Sequence[Any]) -> None:
        for row in rows:
            field = f"{row.counted}:{place(row.queue, row.task)}"
            tx.do("HSET", self._keys.bucket(row.level, row.at), field, row.amount)
            tx.do("ZADD", self._keys.measures(row.level), row.at, row.at)
            if row.counted != CAUSED:
                tx.do("HINCRBY", self._keys.total, row.counted, row.amount)

    def _load_failures(self, tx: Transaction, rows: Sequence[Any]) -> None:
        for row in rows:
            tx.do(
                "HSET", self._keys.failure(row.cause), "task", row.task, "pattern", row.pattern,
                "place", row.place or "", "number", row.number, "first_at", row.first_at, "last_at", row.last_at,
                "last_job_id", row.last_job_id, "silenced_until", row.silenced_until or "",
                "silenced_by", row.silenced_by or "", "first_version", row.first_version or "",
                "last_version", row.last_version or "", "silenced_version", row.silenced_version or "",
            )  # fmt: skip
            tx.do("ZADD", self._keys.failures, -row.last_at, row.cause)

    def _load_schedules(self, tx: Transaction, rows: Sequence[Any]) -> None:
        for schedule in rows:
            tx.put(schedule)

    def _raise(self, tx: Transaction, counter: str, number: int) -> None:
        """Number new jobs or lines after those that were loaded."""
        (present,) = tx.send(("GET", self._keys.counter(counter)))
        tx.do("SET", self._keys.counter(counter), max(int(present or 0), number))


def _cursor(*words: str | int) -> str:
    return to_json(words)


def _measures_in(level: str, at: int, bucket: Sequence[bytes]) -> Iterator[Measure]:
    for field, amount in pairs(bucket):
        counted, _, its_place = field.partition(b":")
        yield Measure(level, at, *names_of(its_place), counted.decode(), int(amount))


def _entries(events: Sequence[Event]) -> Iterator[list[Event]]:
    """Group events into entries of the stream: ids without gaps, and an event that is not about a job alone."""
    entry: list[Event] = []
    for event in events:
        fits = entry and event.id == entry[-1].id + 1 and len(entry) < EVENTS_AT_ONCE
        if not fits or event.subject is not Subject.JOB or entry[0].subject is not Subject.JOB:
            if entry:
                yield entry
            entry = []
        entry.append(event)
    if entry:
        yield entry
