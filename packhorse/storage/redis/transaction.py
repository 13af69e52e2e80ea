"""The transaction of the Redis storage; see `storage/transaction.py`.

It reads with plain commands, collects what an operation wants written, and notes every value that the operation has
read. `apply.lua` compares these values and writes everything in one step. If one of them has changed meanwhile, nothing
is written, and `Writer` runs the operation again with a new transaction.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from packhorse.core import clock, transitions
from packhorse.core.errors import ClientNotFound
from packhorse.core.event import Event
from packhorse.core.job import FINAL, HELD, QUEUED, Job, NewJob, State, UniqueLock
from packhorse.core.metrics import has_failed, measure, measure_deleted
from packhorse.core.transitions import Transition
from packhorse.storage.records import ClientInfo, QueueInfo, ScheduleInfo, TaskInfo, Tick, WorkerInfo
from packhorse.storage.redis import records
from packhorse.storage.redis.connection import Word
from packhorse.storage.redis.keys import PAUSED, Keys, id_of, mark
from packhorse.storage.redis.rows import chunks, from_msgpack, job_of, marks_of, to_json, to_msgpack
from packhorse.storage.redis.server import Server
from packhorse.storage.redis.write_set import Command, Preconditions, StoredJob, WriteSet, places_of
from packhorse.storage.transfer import Lock

R = TypeVar("R")
Record = TypeVar("Record", QueueInfo, ScheduleInfo, WorkerInfo, ClientInfo)

_AT_ONCE = 500
_SOON = 2 * clock.SECOND


class Conflict(Exception):
    """Two reads of this transaction contradict each other, because something changed in between: run it again."""


class Transaction:
    """Reads and writes of one operation. `finds_unowned`: `unowned_jobs` looks for them."""

    def __init__(
        self, server: Server, keys: Keys, name: str, now: clock.Now | None, *, finds_unowned: bool = False
    ) -> None:
        self._server = server
        self._keys = keys
        self._name = name
        self._now = None if now is None else now()
        self._finds_unowned = finds_unowned
        self._preconditions = Preconditions()
        self._known: dict[str, StoredJob] = {}
        self._members: dict[str, set[str]] = {}
        self._read_whole: dict[str, int] = {}  # owner -> how many jobs it holds, where all of them were read
        self._writes = WriteSet()

    @property
    def now(self) -> int:
        if self._now is None:
            self.send()
        assert self._now is not None
        return self._now

    def nested(self, work: Callable[[Transaction], R]) -> R:
        before = self._writes.copy()
        try:
            return work(self)
        except Exception:
            self._writes = before
            raise

    # --- plain reads: what they return becomes a precondition, except for `send` ------------------------------------

    def send(self, *commands: Command) -> list[Any]:
        """Return the replies to these plain commands. They are no preconditions."""
        if self._now is not None:
            return self._server.send(self._name, *commands)
        (seconds, micros), *replies = self._server.send(self._name, ("TIME",), *commands)
        self._now = int(seconds) * clock.SECOND + int(micros)
        return replies

    def field(self, key: str, name: str) -> bytes | None:
        """Return this field of a hash, as this transaction sees it."""
        return self.fields(key, [name])[0]

    def fields(self, key: str, names: Sequence[str]) -> list[bytes | None]:
        known = self._preconditions.fields
        for some in chunks([name for name in dict.fromkeys(names) if (key, name) not in known], _AT_ONCE):
            (values,) = self.send(("HMGET", key, *some))
            known.update(zip(((key, name) for name in some), values, strict=True))
        return [self._writes.fields.get((key, name), known[key, name]) for name in names]

    def scores(self, key: str, members: Collection[str]) -> dict[str, bytes]:
        """Return the scores of those of these members that are in the sorted set."""
        known = self._preconditions.scores
        for some in chunks([one for one in dict.fromkeys(members) if (key, one) not in known], _AT_ONCE):
            scores = self.send(*(("ZSCORE", key, one) for one in some))
            known.update(zip(((key, one) for one in some), scores, strict=True))
        found = {one: known[key, one] for one in dict.fromkeys(members)}
        return {one: score for one, score in found.items() if score is not None}

    def text(self, key: str) -> bytes | None:
        """Return the value of a plain key."""
        if key not in self._preconditions.texts:
            (self._preconditions.texts[key],) = self.send(("GET", key))
        return self._preconditions.texts[key]

    def members(self, keys: Iterable[str]) -> dict[str, set[str]]:
        """Return the members of these small sets."""
        wanted = list(dict.fromkeys(keys))
        unknown = [key for key in wanted if key not in self._members]
        for key, found in zip(unknown, self.send(*(("SMEMBERS", key) for key in unknown)), strict=True):
            self._members[key] = {one.decode() for one in found}
            self._preconditions.numbers["SCARD", key] = len(found)
            for one in self._members[key]:
                self._preconditions.numbers["SISMEMBER", key, one] = 1
        return {key: self._members[key] for key in wanted}

    def require_text(self, key: str, value: bytes | None) -> None:
        """Write nothing unless this plain key has this value. None: unless it does not exist."""
        self._preconditions.texts[key] = value

    # --- jobs -------------------------------------------------------------------------------------------------------

    def jobs(self, job_ids: Collection[str], *, with_keys: bool = False) -> dict[str, Job]:
        wanted = list(dict.fromkeys(job_ids))
        for some in chunks([job_id for job_id in wanted if job_id not in self._known], _AT_ONCE):
            # One command: with two, a job could be deleted between the reads of its head and its body.
            (texts,) = self.send(("MGET", *map(self._keys.head, some), *map(self._keys.body, some)))
            for job_id, head, body in zip(some, texts[: len(some)], texts[len(some) :], strict=True):
                self._preconditions.texts[self._keys.head(job_id)] = head
                job = None if head is None else job_of(job_id, head, body or b"")
                self._known[job_id] = StoredJob() if head is None else StoredJob(job, marks_of(head))
        found = ((job_id, self._present(job_id)) for job_id in wanted)
        jobs = {job_id: job for job_id, job in found if job is not None}
        if with_keys:
            self._locks([job.unique_key for job in jobs.values() if job.unique_key])
        return jobs

    def _present(self, job_id: str) -> Job | None:
        jobs = self._writes.jobs
        return jobs[job_id] if job_id in jobs else self._known[job_id].job

    def stored(self, job_ids: Collection[str]) -> set[str]:
        return set(self.jobs(job_ids))

    def insert(self, jobs: Sequence[NewJob]) -> None:
        self._known.update((new.id, StoredJob()) for new in jobs if new.id not in self._known)
        seq = self._take_numbers("job", len(jobs))
        for number, new in enumerate(jobs, start=seq):
            self._store(None, transitions.added(new, number, self.now))
            if new.unique is not None:
                self._take_key(new.unique, new.id)
            if new.subscriber is not None:
                self._writes.subscribers[new.id] = set()  # a new job has none: `subscribe` need not read them

    def keep(self, before: Job, change: Transition, ran: int | None = None) -> Job:
        return self._store(before, change, ran)

    def _store(self, before: Job | None, change: Transition, ran: int | None = None) -> Job:
        job, writes = change.job, self._writes
        writes.adds = writes.adds or before is None
        writes.jobs[job.id] = job
        self.record(change.events)
        measure(writes.measures, before, job, ran)
        if job.cause is not None and job.error is not None and has_failed(before, job):
            writes.failed.append(job)
        writes.wakes = writes.wakes or _wakes(before, job, self.now)
        return job

    def remove(self, jobs: Sequence[Job], by: str | None) -> None:
        locks = self._locks([job.unique_key for job in jobs if job.unique_key])
        for job in jobs:
            self.record([transitions.deleted(job, self.now, by)])
            measure_deleted(self._writes.measures, job)
            self._writes.jobs[job.id] = None
            self.do("DEL", self._keys.body(job.id), self._keys.log(job.id))
            lock = locks.get(job.unique_key or "")
            if lock is not None and lock.job_id == job.id:
                self.put_field(self._keys.locks, lock.key, None)

    def _take_numbers(self, counter: str, number: int) -> int:
        """Return the first of so many new numbers. If the transaction is not written, they stay unused."""
        (last,) = self.send(("INCRBY", self._keys.counter(counter), number))
        return int(last) - number + 1

    # --- unique keys ------------------------------------------------------------------------------------------------

    def lock_keys(self, keys: Collection[str]) -> None:
        self._locks(keys)

    def _locks(self, keys: Collection[str]) -> dict[str, Lock]:
        names = list(dict.fromkeys(keys))
        packed = self.fields(self._keys.locks, names) if names else []
        return {key: Lock(key, *from_msgpack(one)) for key, one in zip(names, packed, strict=True) if one is not None}

    def holders(self, keys: Collection[str]) -> dict[str, Job]:
        locks = self._locks(keys)
        jobs = self.jobs([lock.job_id for lock in locks.values()])
        found = {}
        for key, lock in locks.items():  # a lock is only a pointer: the job's own state says whether it holds the key
            job, unique = jobs.get(lock.job_id), UniqueLock(key, lock.period, lock.until)
            if job is not None and transitions.holds(job, unique, lock.taken_at, self.now):
                found[key] = job
        return found

    def retake_key(self, key: str, job_id: str) -> None:
        lock = self._locks([key]).get(key)
        if lock is None or lock.job_id != job_id:
            self._take_key(UniqueLock(key, None, lock.until if lock else "finish"), job_id)

    def _take_key(self, lock: UniqueLock, job_id: str) -> None:
        self.put_field(self._keys.locks, lock.key, to_msgpack((job_id, lock.period, lock.until, self.now)))

    def replaced_by(self, call_ids: Collection[str]) -> dict[str, str]:
        names = list(call_ids)
        found = zip(names, self.fields(self._keys.replaced, names), strict=True)
        return {call_id: job_id.decode() for call_id, job_id in found if job_id is not None}

    def remember_replaced(self, call_id: str, job_id: str) -> None:
        self.put_field(self._keys.replaced, call_id, job_id)
        self.do("ZADD", self._keys.replaced_at, self.now, call_id)

    # --- lists of jobs: a range only says where to look; the jobs themselves are read and become preconditions -------

    def due_jobs(self, limit: int) -> list[Job]:
        found = self._jobs_up_to(self._keys.due, self.now, 0, limit)
        return [job for job in found if job.due_at is not None and job.due_at <= self.now]

    def expired_jobs(self, limit: int) -> list[Job]:
        found = self._jobs_up_to(self._keys.expiring, self.now, 0, limit)
        return [job for job in found if job.expire_at is not None and job.expire_at <= self.now]

    def _jobs_up_to(self, key: str, score: int, start: int, limit: int) -> list[Job]:
        (marks,) = self.send(("ZRANGEBYSCORE", key, "-inf", score, "LIMIT", start, limit))
        return list(self.jobs([id_of(one) for one in marks]).values())

    def held_jobs(self, owners: Collection[str], limit: int) -> list[Job]:
        """Also jobs in the sets of these owners that name no owner, because they were changed by hand."""
        names = list(owners)
        replies = self.send(
            *(("ZRANGE", self._keys.held(owner), 0, limit, "WITHSCORES") for owner in names),
            *(("ZCARD", self._keys.held(owner)) for owner in names),
        )
        ranges = [list(zip(one[1::2], one[::2], strict=True)) for one in replies[: len(names)]]
        oldest = sorted((int(float(seq)), job_id.decode()) for one in ranges for seq, job_id in one)[:limit]
        jobs, taken = self.jobs([job_id for _, job_id in oldest]), []
        wanted = {job_id for _, job_id in oldest}
        for owner, one, size in zip(names, ranges, replies[len(names) :], strict=True):
            ids = [job_id.decode() for _, job_id in one if job_id.decode() in wanted]
            own = [jobs[job_id] for job_id in ids if job_id in jobs and jobs[job_id].owner == owner]
            unowned, strays = self._drop_strays(owner, ids) if len(own) < len(ids) else ([], 0)
            taken += own + unowned
            if len(ids) == size:
                if len(own) + strays < size:  # a job left the set before it was read
                    raise Conflict
                self._preconditions.numbers["ZCARD", self._keys.held(owner)] = size
                self._read_whole[owner] = size
        return sorted(taken, key=lambda job: job.seq)

    def lost_jobs(self, silent: Collection[str], limit: int) -> list[Job]:
        """`silent` names unknown owners too."""
        return self.held_jobs(silent, limit) if silent else []

    def unowned_jobs(self, limit: int) -> list[Job]:
        """Look through the sets of all owners. Of most jobs only the bytes of the head that name the owner are read."""
        if not self._finds_unowned:
            return []
        (owners,) = self.send(("SMEMBERS", self._keys.holders))
        taken = []
        for owner in sorted(one.decode() for one in owners):
            name = len(owner.encode()).to_bytes(2, "big") + owner.encode()
            strange: list[str] = []
            for first in itertools.count(0, _AT_ONCE):
                (members,) = self.send(("ZRANGE", self._keys.held(owner), first, first + _AT_ONCE - 1))
                ids = [job_id.decode() for job_id in members]
                heads = [("GETRANGE", self._keys.head(job_id), 34, 33 + len(name)) for job_id in ids]
                named = self.send(*heads) if heads else []
                strange += (job_id for job_id, found in zip(ids, named, strict=True) if found != name)
                if len(ids) < _AT_ONCE:
                    break
            if strange:
                taken += self._drop_strays(owner, strange[:limit])[0]
        return taken

    def _drop_strays(self, owner: str, job_ids: Sequence[str]) -> tuple[list[Job], int]:
        """Take those of these jobs out of the set of held jobs that do not belong there. A job that left the set since
        it was read is no stray: another may have put it back by now. Return the held jobs without an owner among them,
        and the number of strays."""
        key, found = self._keys.held(owner), self.jobs(job_ids)
        unowned = [job for job in found.values() if job.state in HELD and not job.owner]
        foreign = [one for one in job_ids if one not in found or not self._is_in(key, found[one])]
        strays = self.scores(key, foreign)
        if strays:
            self.do("ZREM", key, *sorted(strays))
        return unowned, len(strays)

    def _is_in(self, key: str, job: Job) -> bool:
        """Does this job, as it is stored, belong into this sorted set?"""
        is_subscribed = self._known[job.id].marks.is_subscribed
        return any(where == key for where, _ in places_of(self._keys, job, is_subscribed=is_subscribed))

    def prunable_jobs(self, state: State, before: int, limit: int) -> list[Job]:
        # Persistent jobs and those with subscribers are in another set.
        key, start, found = self._keys.finished(state), 0, list[Job]()
        while len(found) < limit:
            most = min(_AT_ONCE, limit - len(found))
            (marks,) = self.send(("ZRANGEBYSCORE", key, "-inf", before, "LIMIT", start, most))
            listed = [job for job in self.jobs([id_of(one) for one in marks]).values() if self._is_in(key, job)]
            jobs = [job for job in listed if job.finished_at is not None and job.finished_at <= before]
            holders = self.holders([job.unique_key for job in jobs if job.unique_key])
            found += [job for job in jobs if holders.get(job.unique_key or "") != job]
            start += len(marks)
            if len(marks) < most:
                break
        return found

    # --- records ----------------------------------------------------------------------------------------------------

    def records(self, kind: type[Record], names: Collection[str]) -> dict[str, Record]:
        wanted = list(names)
        packed = dict(zip(wanted, self.fields(self._keys.records(kind), wanted), strict=True)) if wanted else {}
        found = {name: one for name, one in packed.items() if one is not None}
        read: dict[str, Any]
        if kind is QueueInfo:
            ends = self.fields(self._keys.pause_ends, list(found)) if found else []
            read = {name: records.queue_in(name, *one) for name, *one in zip(found, found.values(), ends, strict=True)}
        elif kind is WorkerInfo:
            beats = self.scores(self._keys.beats, found)
            read = {name: records.worker_in(name, one, beats.get(name)) for name, one in found.items()}
        elif kind is ClientInfo:  # signs of life are no preconditions: the threads of a client give them side by side
            scores = self.send(*(("ZSCORE", self._keys.client_beats, name) for name in found)) if found else []
            read = {
                name: records.client_in(name, *one) for name, *one in zip(found, found.values(), scores, strict=True)
            }
        else:
            read = {name: records.schedule_in(name, one) for name, one in found.items()}
        return read

    def add(self, record: WorkerInfo) -> bool:
        if self.field(self._keys.workers, record.id) is not None:
            return False
        self.put(record)
        return True

    def put(self, record: QueueInfo | ScheduleInfo | WorkerInfo | ClientInfo | TaskInfo) -> None:
        keys = self._keys
        if isinstance(record, QueueInfo):
            self._put_queue(record)
        elif isinstance(record, TaskInfo):
            self.do("HSET", keys.tasks, record.name, records.packed_task(record))
        elif isinstance(record, ScheduleInfo):
            self._put_record(keys.schedules, record.name, to_json(record))
            self.do("ZADD", keys.slots, record.next_at if record.paused_at is None else "+inf", record.name)
        elif isinstance(record, WorkerInfo):
            self._put_record(keys.workers, record.id, to_json(replace(record, report={}, beat_at=0)))
            self.do("HSET", keys.reports, record.id, to_json(record.report))
            self.do("ZADD", keys.beats, record.beat_at, record.id)
        else:
            self._put_record(keys.clients, record.id, to_json(replace(record, beat_at=0, subscriptions=0)))
            self.do("ZADD", keys.client_beats, record.beat_at, record.id)

    def _put_record(self, key: str, name: str, packed: str) -> None:
        present = self.field(key, name)
        if present is None or present.decode() != packed:
            self.put_field(key, name, packed)

    def _put_queue(self, queue: QueueInfo) -> None:
        before = self.field(self._keys.queues, queue.name)
        if bool(before) != queue.is_paused:
            self.do("HINCRBY", self._keys.open, queue.name, PAUSED if queue.is_paused else -PAUSED)
        self.put_field(self._keys.queues, queue.name, records.packed_pause(queue))
        # The end is stored apart: programs that do not know of ends read the pause, and keep the end.
        self.put_field(self._keys.pause_ends, queue.name, records.packed_pause_end(queue))

    def delete(self, record: ScheduleInfo | ClientInfo) -> None:
        if isinstance(record, ScheduleInfo):
            self.put_field(self._keys.schedules, record.name, None)
            self.do("ZREM", self._keys.slots, record.name)
            return
        for job_id in self.subscriptions(record.id, limit=-1):
            self.unsubscribe(job_id, record.id)
        self.put_field(self._keys.clients, record.id, None)
        self.do("ZREM", self._keys.client_beats, record.id)

    def delete_idle_worker(self, owner: str) -> WorkerInfo | None:
        """The operation has taken all jobs that `held_jobs` returned for this worker."""
        if owner not in self._read_whole:
            self.held_jobs([owner], limit=0)
        worker = self.records(WorkerInfo, [owner]).get(owner)
        size = self._read_whole.get(owner)
        if size is None or (worker is None and not size):
            return None
        self.do("SREM", self._keys.holders, owner)
        if worker is not None:
            self.put_field(self._keys.workers, owner, None)
            self.do("HDEL", self._keys.reports, owner)
            self.do("ZREM", self._keys.beats, owner)
        return worker

    def know(self, queues: Collection[str], tasks: Mapping[str, str] = {}) -> None:
        for task, queue in tasks.items():
            self.do("HSETNX", self._keys.tasks, task, records.packed_task(TaskInfo(task, queue)))
        for queue in queues:
            self.do("HSETNX", self._keys.queues, queue, "")

    def put_order(self, order: str) -> None:
        self.do("SET", self._keys.order, order)

    def put_ticks(self, ticks: Sequence[Tick]) -> None:
        # Among all ticks, so that the oldest can be deleted, and among those of the schedule.
        first = self._take_numbers("tick", len(ticks)) if ticks else 0
        for number, tick in enumerate(ticks, start=first):
            self.do("ZADD", self._keys.ticks, number, f"{number}:{tick.at}:{tick.schedule}")
            self.do("ZADD", self._keys.ticks_of(tick.schedule), number, f"{number}:{to_json(tick)}")

    # --- workers and clients ----------------------------------------------------------------------------------------

    def worker(self, owner: str) -> WorkerInfo | None:
        return self.records(WorkerInfo, [owner]).get(owner)

    def silent_owners(self, first: int, last: int, lease: int) -> list[str]:
        pairs, holders = self.send(("ZRANGE", self._keys.beats, 0, -1, "WITHSCORES"), ("SMEMBERS", self._keys.holders))
        beats = {owner.decode(): beat for owner, beat in zip(pairs[::2], pairs[1::2], strict=True)}
        # A worker's own lease may be longer than `lease`, never shorter: only these records need to be read.
        quiet = [one for one, beat in beats.items() if not first - lease <= int(float(beat)) <= last + 2 * lease]
        found = zip(quiet, self.fields(self._keys.workers, quiet), strict=True)
        silent = [
            owner
            for owner, packed in found
            if packed is None or not records.worker_in(owner, packed, beats[owner]).is_beating(first, last, lease)
        ]
        owners = [*silent, *sorted({owner.decode() for owner in holders} - beats.keys())]
        self._preconditions.scores.update(((self._keys.beats, owner), beats.get(owner)) for owner in owners)
        return owners

    def silent_clients(self, before: int, limit: int) -> list[str]:
        key = self._keys.client_beats
        (pairs,) = self.send(("ZRANGEBYSCORE", key, "-inf", before, "WITHSCORES", "LIMIT", 0, limit))
        beats = {client.decode(): beat for client, beat in zip(pairs[::2], pairs[1::2], strict=True)}
        self._preconditions.scores.update(((key, client), beat) for client, beat in beats.items())
        return list(beats)

    def subscribe(self, job_id: str, client_id: str) -> None:
        if self.field(self._keys.clients, client_id) is None:
            raise ClientNotFound(client_id)
        self.add_subscriber(job_id, client_id)

    def add_subscriber(self, job_id: str, client_id: str) -> None:
        clients = self._subscribers(job_id)
        if client_id in clients:
            return
        self._writes.subscribers[job_id] = clients | {client_id}
        job = self._touch(job_id)
        self.do("SADD", self._keys.sub(job_id), client_id)
        self.do("SADD", self._keys.subs(client_id), job_id)
        if job is not None and job.state in FINAL and job.finished_at is not None:
            self.do("ZADD", self._keys.ready(client_id), job.finished_at, mark(job.seq, job_id))

    def unsubscribe(self, job_id: str, client_id: str) -> None:
        job = self.jobs([job_id]).get(job_id)
        self.do("SREM", self._keys.subs(client_id), job_id)
        if job is None:
            return
        self._writes.subscribers[job_id] = self._subscribers(job_id) - {client_id}
        self._touch(job_id)
        self.do("SREM", self._keys.sub(job_id), client_id)
        self.do("ZREM", self._keys.ready(client_id), mark(job.seq, job_id))

    def subscribers(self, job_ids: Collection[str]) -> dict[str, set[str]]:
        self.members(map(self._keys.sub, job_ids))
        return {job_id: clients for job_id in job_ids if (clients := self._subscribers(job_id))}

    def _subscribers(self, job_id: str) -> set[str]:
        key = self._keys.sub(job_id)
        written = self._writes.subscribers.get(job_id)
        return self.members([key])[key] if written is None else written

    def subscriptions(self, client_id: str, limit: int) -> list[str]:
        """A negative `limit` means all."""
        key = self._keys.subs(client_id)
        wanted = sorted(self.members([key])[key])
        some = wanted if limit < 0 else wanted[:limit]
        self.members(map(self._keys.sub, self.jobs(some)))
        return some

    # --- history ----------------------------------------------------------------------------------------------------

    def record(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.job_id is None:
                self._writes.other_events.append(event)
            else:
                self._touch(event.job_id)
                self._writes.events.setdefault(event.job_id, []).append(event)

    def _touch(self, job_id: str) -> Job | None:
        """Write this job's head again: it names its events and says whether there are subscribers."""
        self._writes.jobs.setdefault(job_id, self._known[job_id].job if job_id in self._known else None)
        return self._writes.jobs[job_id]

    def silence(self, cause: str, until: int | None, by: str | None, version: str | None) -> tuple[str, bool] | None:
        key = self._keys.failure(cause)
        task, *silence = self.fields(key, ["task", "silenced_until", "silenced_version"])
        if task is None:
            return None
        self.put_field(key, "silenced_until", None if until is None else str(until))
        self.put_field(key, "silenced_by", by)
        self.put_field(key, "silenced_version", version)
        return task.decode(), any(silence)

    # --- writing ----------------------------------------------------------------------------------------------------

    def wake(self, queues: Iterable[str]) -> None:
        """One token wakes one worker, whatever its queues; it passes the token on if it finds no job."""
        self._writes.wakes = self._writes.wakes or any(True for _ in queues)

    def put_field(self, key: str, name: str, value: bytes | str | None) -> None:
        """Set this field of a hash, or delete it (None). `field` and `fields` return the new value from now on."""
        self._writes.fields[key, name] = value.encode() if isinstance(value, str) else value

    def do(self, *command: Word) -> None:
        """Send this command with the writes, after those of the jobs."""
        self._writes.commands.append(command)

    def must_have_room(self) -> None:
        """Let a full server refuse this transaction."""
        self._writes.adds = True

    # --- a storage that is copied -----------------------------------------------------------------------------------

    def load(self, job: Job) -> None:
        """Write a job as another storage had it, without events, and count it only in the tallies."""
        self._preconditions.texts[self._keys.head(job.id)] = None
        self._known[job.id] = StoredJob()
        self._writes.adds = True
        self._writes.jobs[job.id] = job

    def load_entries(self, job_id: str, entries: Sequence[int]) -> None:
        """These entries of the event stream are about a job that was read here, or that is deleted."""
        job, marks = self._known[job_id]
        if job is None:
            self.do("RPUSH", self._keys.old_events(job_id), *entries)
            self.do("ZADD", self._keys.gone, entries[-1], job_id)
            return
        more = b"".join(entry.to_bytes(8, "big") for entry in entries)
        self._known[job_id] = StoredJob(job, marks._replace(entries=marks.entries + more))
        self._touch(job_id)

    # --- for `apply.lua` --------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return self._writes.is_empty

    @property
    def script(self) -> str:
        """A full server refuses `apply_new`, which stores new jobs, and accepts `apply`."""
        return "apply_new" if self._writes.adds else "apply"

    def words(self) -> list[Word]:
        """The preconditions and the writes, as `lua/parts/apply.lua` reads them."""
        words = [*self._preconditions.words(), *self._writes.words(self._keys, self.now, self._known)]
        return [self.now, os.urandom(8).hex(), len(words), *words]


def _wakes(before: Job | None, job: Job, now: int) -> bool:
    """Does this change concern a waiting worker?"""
    if before is None:
        # A waiting worker knows when the next job is due, and would wait too long for one that is due sooner.
        return job.due_at is None or job.due_at < now + _SOON
    if job.state is not QUEUED:
        return False
    moved = (before.state, before.queue, before.task) != (job.state, job.queue, job.task)
    return moved or job.rank < before.rank
