"""A transaction: what one call has read, and what it wants written if nothing of that has changed meanwhile.

The operations read through it, decide in Python, and tell it what became of the jobs; `apply.lua` then compares and
writes everything in one step. Whoever was not quick enough begins anew with a fresh transaction (`Keeper._change`), so
the work done with it must have no other effects.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from packhorse.core import clock, transitions
from packhorse.core.event import Event, Kind, Subject
from packhorse.core.job import FINAL, HELD, QUEUED, Job, NewJob, UniqueLock
from packhorse.core.metrics import has_failed, measure, measure_deleted
from packhorse.core.transitions import Transition
from packhorse.storage.redis.connection import Word
from packhorse.storage.redis.keys import Keys, mark
from packhorse.storage.redis.rows import chunks, from_msgpack, job_of, marks_of, to_msgpack
from packhorse.storage.redis.server import Server
from packhorse.storage.redis.write_set import Command, Preconditions, StoredJob, WriteSet, places_of

R = TypeVar("R")

_AT_ONCE = 500
_SOON = 2 * clock.SECOND


class Lock(NamedTuple):
    """Who took a unique key last, how, and when."""

    job_id: str
    lock: UniqueLock
    taken_at: int


class Transaction:
    """What one call reads and writes. `now` is the same for everything in it."""

    def __init__(self, server: Server, keys: Keys, name: str, now: clock.Now | None) -> None:
        self._server = server
        self._keys = keys
        self._name = name
        self._now = None if now is None else now()
        self._preconditions = Preconditions()
        self._known: dict[str, StoredJob] = {}
        self._members: dict[str, set[str]] = {}
        self._writes = WriteSet()
        self.strays = 0  # how many were taken out of sets of held jobs that they did not belong to

    # --- reading --------------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        if self._now is None:
            self.ask()
        assert self._now is not None
        return self._now

    def ask(self, *commands: Command) -> list[Any]:
        """The replies to these plain commands. Nobody looks later whether they still hold."""
        if self._now is not None:
            return self._server.send(self._name, *commands)
        (seconds, micros), *replies = self._server.send(self._name, ("TIME",), *commands)
        self._now = int(seconds) * clock.SECOND + int(micros)
        return replies

    def jobs(self, job_ids: Iterable[str]) -> dict[str, Job]:
        """The jobs with these ids that exist, as this transaction sees them."""
        wanted = list(dict.fromkeys(job_ids))
        for some in chunks([job_id for job_id in wanted if job_id not in self._known], _AT_ONCE):
            # In one command: else a head might be read just before its job goes, and its body just after.
            (texts,) = self.ask(("MGET", *map(self._keys.head, some), *map(self._keys.body, some)))
            for job_id, head, body in zip(some, texts[: len(some)], texts[len(some) :], strict=True):
                self._learn(job_id, head, body)
        found = ((job_id, self._present(job_id)) for job_id in wanted)
        return {job_id: job for job_id, job in found if job is not None}

    def jobs_in(self, key: str, job_ids: Iterable[str]) -> list[Job]:
        """Of these jobs, which a range of this sorted set has told, those that still stand in it. A range is only where
        to look: whoever was quicker may have moved them, and what they are now is what is decided upon."""
        found = self.jobs(job_ids).values()
        return [job for job in found if self._stands_in(key, job)]

    def drop_strays(self, key: str, job_ids: Iterable[str]) -> list[Job]:
        """Take out of this set of held jobs those that by their own records do not belong there. A job that has left
        the set since it was looked through is no stray: somebody else may stand in its place by now. Answers those that
        are held and name no owner: somebody has to see to them."""
        wanted = list(job_ids)
        found = self.jobs(wanted)
        unowned = [job for job in found.values() if job.state in HELD and not job.owner]
        foreign = [one for one in wanted if one not in found or not self._stands_in(key, found[one])]
        strays = self._still_in(key, foreign)
        if strays:
            self.do("ZREM", key, *sorted(strays))
        self.strays += len(strays)
        return unowned

    def _still_in(self, key: str, members: Sequence[str]) -> list[str]:
        """Those of them that are in this sorted set, now and when this transaction is written."""
        unknown = [one for one in dict.fromkeys(members) if (key, one) not in self._preconditions.scores]
        if unknown:
            scores = self.ask(*(("ZSCORE", key, one) for one in unknown))
            self._preconditions.scores.update(zip(((key, one) for one in unknown), scores, strict=True))
        return [one for one in dict.fromkeys(members) if self._preconditions.scores[key, one] is not None]

    def _stands_in(self, key: str, job: Job) -> bool:
        is_subscribed = self._known[job.id].marks.is_subscribed
        return any(where == key for where, _ in places_of(self._keys, job, is_subscribed=is_subscribed))

    def _learn(self, job_id: str, head: bytes | None, body: bytes | None) -> None:
        self._preconditions.texts[self._keys.head(job_id)] = head
        if head is None:
            self._known[job_id] = StoredJob()
        else:
            self._known[job_id] = StoredJob(job_of(job_id, head, body or b""), marks_of(head))

    def _present(self, job_id: str) -> Job | None:
        jobs = self._writes.jobs
        return jobs[job_id] if job_id in jobs else self._known[job_id].job

    def field(self, key: str, name: str) -> bytes | None:
        """The value of this field of a hash, as this transaction sees it."""
        return self.fields(key, [name])[0]

    def fields(self, key: str, names: Sequence[str]) -> list[bytes | None]:
        known = self._preconditions.fields
        for some in chunks([name for name in dict.fromkeys(names) if (key, name) not in known], _AT_ONCE):
            (values,) = self.ask(("HMGET", key, *some))
            known.update(zip(((key, name) for name in some), values, strict=True))
        return [self._writes.fields.get((key, name), known[key, name]) for name in names]

    def score(self, key: str, member: str) -> int | None:
        """The score of this member of a sorted set."""
        if (key, member) not in self._preconditions.scores:
            (self._preconditions.scores[key, member],) = self.ask(("ZSCORE", key, member))
        found = self._preconditions.scores[key, member]
        return None if found is None else int(float(found))

    def text(self, key: str) -> bytes | None:
        """The value of a plain key."""
        if key not in self._preconditions.texts:
            (self._preconditions.texts[key],) = self.ask(("GET", key))
        return self._preconditions.texts[key]

    def members(self, key: str) -> set[str]:
        """A small set."""
        self.read_members([key])
        return self._members[key]

    def read_members(self, keys: Iterable[str]) -> None:
        """Read many small sets at once, for those who will ask for them one by one."""
        unknown = [key for key in dict.fromkeys(keys) if key not in self._members]
        for key, found in zip(unknown, self.ask(*(("SMEMBERS", key) for key in unknown)), strict=True):
            self._members[key] = {one.decode() for one in found}
            self._preconditions.numbers["SCARD", key] = len(found)
            for one in self._members[key]:
                self._preconditions.numbers["SISMEMBER", key, one] = 1

    def subscribers(self, job_id: str) -> set[str]:
        """The clients that hold this job, as this transaction sees them."""
        planned = self._writes.subscribers.get(job_id)
        return self.members(self._keys.sub(job_id)) if planned is None else planned

    def must_hold(self, owner: str, number: int) -> None:
        """Nothing is written unless this worker holds exactly so many jobs."""
        self._preconditions.numbers["ZCARD", self._keys.held(owner)] = number

    def must_read(self, key: str, value: bytes | None) -> None:
        """Nothing is written unless this plain key has this value; None: unless it is not there."""
        self._preconditions.texts[key] = value

    def must_score(self, key: str, member: str, score: bytes | None) -> None:
        """Nothing is written unless this member of a sorted set has this score, as a range told it."""
        self._preconditions.scores[key, member] = score

    def lock(self, key: str) -> Lock | None:
        packed = self.field(self._keys.locks, key)
        if packed is None:
            return None
        job_id, period, until, taken_at = from_msgpack(packed)
        return Lock(job_id, UniqueLock(key, period, until), taken_at)

    def holder(self, key: str) -> Job | None:
        """The job that holds this unique key now. A lock is only a pointer: the job's own state says if it holds."""
        taken = self.lock(key)
        if taken is None:
            return None
        job = self.jobs([taken.job_id]).get(taken.job_id)
        return job if job is not None and transitions.holds(job, taken.lock, taken.taken_at, self.now) else None

    def replaced_by(self, twin: str) -> str | None:
        """The job whose call this one has replaced already: its answer was lost."""
        job_id = self.field(self._keys.replaced, twin)
        return None if job_id is None else job_id.decode()

    def take_numbers(self, counter: str, number: int) -> int:
        """The first of so many new numbers. If nothing comes of the transaction, they are left out for ever."""
        (last,) = self.ask(("INCRBY", self._keys.counter(counter), number))
        return int(last) - number + 1

    # --- writing --------------------------------------------------------------------------------------------------

    def keep(self, before: Job | None, change: Transition, ran: int | None = None) -> Job:
        """Write a new or changed job, its events, and what is counted; wake somebody when it came into line. Whoever
        adds a job has looked before that its id is free."""
        job, writes = change.job, self._writes
        writes.adds = writes.adds or before is None
        writes.jobs[job.id] = job
        self.record(change.events)
        measure(writes.measures, before, job, ran)
        if job.cause is not None and job.error is not None and has_failed(before, job):
            writes.failed.append(job)
        writes.wakes = writes.wakes or _wakes(before, job, self.now)
        return job

    def load(self, job: Job) -> None:
        """Write a job as another storage had it: it is in no event, and counted nowhere but in the tallies."""
        self._preconditions.texts[self._keys.head(job.id)] = None
        self._known[job.id] = StoredJob()
        self._writes.adds = True
        self._writes.jobs[job.id] = job

    def load_entries(self, job_id: str, entries: Sequence[int]) -> None:
        """These entries of the event stream tell of a job that was read here, or that is gone."""
        job, marks = self._known[job_id]
        if job is None:
            key = self._keys.old_events(job_id)
            self.do("RPUSH", key, *entries)
            self.do("ZADD", self._keys.gone, entries[-1], job_id)
            return
        more = b"".join(entry.to_bytes(8, "big") for entry in entries)
        self._known[job_id] = StoredJob(job, marks._replace(entries=marks.entries + more))
        self._touch(job_id)

    def remove(self, job: Job, by: str | None) -> None:
        """A job goes, with all that hangs on it; its events stay."""
        self.record([transitions.deleted(job, self.now, by)])
        measure_deleted(self._writes.measures, job)
        self._writes.jobs[job.id] = None
        self.do("DEL", self._keys.body(job.id), self._keys.log(job.id))
        if job.unique_key:
            taken = self.lock(job.unique_key)
            if taken is not None and taken.job_id == job.id:
                self.put_field(self._keys.locks, job.unique_key, None)

    def replace(self, job: Job, new: NewJob) -> None:
        """A waiting job takes the call of its unique twin."""
        self.keep(job, transitions.replaced(job, new, self.now))
        self.put_field(self._keys.replaced, new.id, job.id)
        self.do("ZADD", self._keys.replaced_at, self.now, new.id)

    def take_lock(self, lock: UniqueLock, job_id: str) -> None:
        """This job holds the unique key from now on."""
        packed = to_msgpack((job_id, lock.period, lock.until, self.now))
        self.put_field(self._keys.locks, lock.key, packed)

    def put_field(self, key: str, name: str, value: bytes | str | None) -> None:
        """Set this field of a hash; None: delete it. Whoever reads it here from now on sees the new value."""
        self._writes.fields[key, name] = value.encode() if isinstance(value, str) else value

    def record(self, events: Iterable[Event]) -> None:
        """Write these events. A job that they are about must have been read or kept here."""
        for event in events:
            if event.job_id is None:
                self._writes.other_events.append(event)
            else:
                self._touch(event.job_id)
                self._writes.events.setdefault(event.job_id, []).append(event)

    def record_about(
        self, subject: Subject, kind: Kind, *, queue: str | None = None, owner: str | None = None, **facts: Any
    ) -> None:
        """Write an event that is not about a job."""
        told = {name: value for name, value in facts.items() if value is not None}
        self.record([Event(kind, self.now, subject, queue=queue, owner=owner, data=told or None)])

    def subscribe(self, job_id: str, client: str) -> None:
        """This client wants the outcome of a job that was read or kept here."""
        clients = self.subscribers(job_id)
        if client in clients:
            return
        self._writes.subscribers[job_id] = clients | {client}
        job = self._touch(job_id)
        self.do("SADD", self._keys.sub(job_id), client)
        self.do("SADD", self._keys.subs(client), job_id)
        if job is not None and job.state in FINAL and job.finished_at is not None:
            self.do("ZADD", self._keys.ready(client), job.finished_at, mark(job.seq, job_id))

    def unsubscribe(self, job_id: str, client: str) -> None:
        """This client no longer wants the outcome of a job that was read here."""
        self._writes.subscribers[job_id] = self.subscribers(job_id) - {client}
        job = self._touch(job_id)
        self.do("SREM", self._keys.sub(job_id), client)
        self.do("SREM", self._keys.subs(client), job_id)
        if job is not None:
            self.do("ZREM", self._keys.ready(client), mark(job.seq, job_id))

    def _touch(self, job_id: str) -> Job | None:
        """See that this job's head is written anew."""
        self._writes.jobs.setdefault(job_id, self._known[job_id].job if job_id in self._known else None)
        return self._writes.jobs[job_id]

    def must_have_room(self) -> None:
        """A full server must refuse this transaction."""
        self._writes.adds = True

    def do(self, *command: Word) -> None:
        """Send this command with the writes, after what is written of jobs."""
        self._writes.commands.append(command)

    def wake(self) -> None:
        """Wake a worker."""
        self._writes.wakes = True

    def nested(self, work: Callable[[Transaction], R]) -> R:
        """Do `work` as a part of this transaction that is undone alone if it fails."""
        before = self._writes.copy()
        try:
            return work(self)
        except Exception:
            self._writes = before
            raise

    # --- for `apply.lua` --------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Is there nothing to write?"""
        return self._writes.is_empty

    @property
    def adds(self) -> bool:
        """Does it store new jobs? Then a full server must refuse it."""
        return self._writes.adds

    def words(self) -> list[Word]:
        """What was read and what is to be written, as `lua/parts/apply.lua` takes it."""
        words = [*self._preconditions.words(), *self._writes.words(self._keys, self.now, self._known)]
        return [self.now, os.urandom(8).hex(), len(words), *words]


def _wakes(before: Job | None, job: Job, now: int) -> bool:
    """Does this change concern a sleeping worker?"""
    if before is None:
        # A sleeper has asked when the next job is due, and would oversleep one that is due sooner.
        return job.due_at is None or job.due_at < now + _SOON
    if job.state is not QUEUED:
        return False
    moved = (before.state, before.queue, before.task) != (job.state, job.queue, job.task)
    return moved or job.rank < before.rank
