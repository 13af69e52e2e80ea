"""A plan: what a transaction wants written, collected while its call decides, and then put into words for `apply.lua`.

Tallies, charts and moves between the sorted sets are worked out here, once for the whole call: a batch of a hundred
jobs changes one tally, not a hundred.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from packhorse.core.event import Event, Subject
from packhorse.core.job import FINAL, QUEUED, Job
from packhorse.core.metrics import CAUSE_MINUTES, CAUSED, MINUTES, Measures
from packhorse.core.outcome import Failure
from packhorse.storage.redis.connection import Word
from packhorse.storage.redis.indexes import Moves, places_of
from packhorse.storage.redis.keys import Keys, mark, place, tally_field
from packhorse.storage.redis.rows import EVENTS_AT_ONCE, Marks, body_of, entries_in, entry_of, head_of

Command = tuple[Word, ...]

_ENTRIES_IN_HEAD = 32
"""How many entries of the event stream a head names; when there are more, the older ones move to a list."""
_ENTRIES_LEFT = 8
_OLD_ENTRIES = 5_000


class Known(NamedTuple):
    """A job as it was read; None: there is none."""

    job: Job | None = None
    marks: Marks = Marks()


class Plan:
    """What is to be written."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job | None] = {}  # as they will be; None: removed
        self.events: dict[str, list[Event]] = {}  # of jobs
        self.other_events: list[Event] = []
        self.measures: Measures = {}
        self.failed: list[Job] = []
        self.fields: dict[tuple[str, str], bytes | None] = {}
        self.subscribers: dict[str, set[str]] = {}
        self.commands: list[Command] = []
        self.adds = False
        self.wakes = False

    @property
    def is_empty(self) -> bool:
        return not (self.jobs or self.other_events or self.fields or self.commands or self.wakes)

    def copy(self) -> Plan:
        twin = Plan()
        twin.jobs = dict(self.jobs)
        twin.events = {job_id: list(events) for job_id, events in self.events.items()}
        twin.other_events = list(self.other_events)
        twin.measures = dict(self.measures)
        twin.failed = list(self.failed)
        twin.fields = dict(self.fields)
        twin.subscribers = dict(self.subscribers)
        twin.commands = list(self.commands)
        twin.adds, twin.wakes = self.adds, self.wakes
        return twin

    def words(self, keys: Keys, now: int, known: Mapping[str, Known]) -> list[Word]:
        """As `lua/parts/apply.lua` takes them; `known` are the jobs as they were read."""
        return _Writer(self, keys, now, known).words()


class _Writer:
    """Puts one plan into words."""

    def __init__(self, plan: Plan, keys: Keys, now: int, known: Mapping[str, Known]) -> None:
        self._plan = plan
        self._keys = keys
        self._now = now
        self._known = known
        self._moves = Moves()
        self._tallies: Counter[str] = Counter()
        self._lines: dict[tuple[int, str], None] = {}
        self._bodies: list[Word] = []
        self._heads: list[Word] = []
        self._ended: list[Word] = []
        self._reopened: list[Word] = []
        self._gone: list[Word] = []
        self._spared: list[Command] = []

    def words(self) -> list[Word]:
        entries, numbers = self._entries()
        for job_id, job in self._plan.jobs.items():
            self._change(job_id, job, numbers.get(job_id, 0))
        words: list[Word] = [len(entries)]
        for events in entries:
            subject = events[0].subject
            words += (len(events), "" if subject is Subject.JOB else subject.value, entry_of(events, self._now))
        commands = list(self._commands())
        words.append(len(commands))
        for command in commands:
            words += (len(command), *command)
        words += (len(self._heads) // 3, *self._heads)
        words.append(len(self._lines))
        for rank, queue in self._lines:
            words += (rank, queue)
        words += (len(self._ended) // 3, *self._ended)
        words += (len(self._reopened) // 2, *self._reopened)
        words += (len(self._gone) // 5, *self._gone)
        words.append("1" if self._plan.wakes else "")
        return words

    # --- events ---------------------------------------------------------------------------------------------------

    def _entries(self) -> tuple[list[list[Event]], dict[str, int]]:
        """The events in parts that share an entry, and in which of them, counted from 1, each job is told of. All
        events of one job stand in one entry."""
        entries: list[list[Event]] = []
        numbers: dict[str, int] = {}
        for job_id, events in self._plan.events.items():
            if not entries or len(entries[-1]) + len(events) > EVENTS_AT_ONCE:
                entries.append([])
            entries[-1] += events
            numbers[job_id] = len(entries)
        entries += [[event] for event in self._plan.other_events]
        return entries, numbers

    def _left_in_head(self, job_id: str, entries: bytes) -> bytes:
        """The entries that stay in the head of a job."""
        if len(entries) <= 8 * _ENTRIES_IN_HEAD:
            return entries
        old, left = entries[: -8 * _ENTRIES_LEFT], entries[-8 * _ENTRIES_LEFT :]
        key = self._keys.old_events(job_id)
        self._spared += [("RPUSH", key, *entries_in(old)), ("LTRIM", key, -_OLD_ENTRIES, -1)]
        return left

    # --- jobs -----------------------------------------------------------------------------------------------------

    def _change(self, job_id: str, job: Job | None, entry: int) -> None:
        before, marks = self._known[job_id]
        clients = self._plan.subscribers.get(job_id)
        is_subscribed = marks.is_subscribed if clients is None else bool(clients)
        self._moves.move(
            places_of(self._keys, before, is_subscribed=marks.is_subscribed),
            places_of(self._keys, job, is_subscribed=is_subscribed),
        )
        if before is not None:
            self._tallies[tally_field(before.state, place(before.queue, before.task))] -= 1
        if job is None:
            if before is not None:
                its_mark = mark(before.seq, job_id)
                self._gone += (job_id, its_mark, "1" if marks.is_subscribed else "", entry, marks.entries)
            return
        self._tallies[tally_field(job.state, place(job.queue, job.task))] += 1
        self._heads += (job_id, head_of(job, Marks(is_subscribed, self._left_in_head(job_id, marks.entries))), entry)
        body = body_of(job)
        if before is None or body != body_of(before):
            self._bodies += (self._keys.body(job_id), body)
        if job.state is QUEUED:
            self._lines[job.rank, job.queue] = None
        if before is not None and marks.is_subscribed:
            self._tell_subscribers(before, job)

    def _tell_subscribers(self, before: Job, job: Job) -> None:
        if job.state in FINAL and before.state not in FINAL:
            self._ended += (job.id, job.finished_at or 0, mark(job.seq, job.id))
        elif before.state in FINAL and job.state not in FINAL:
            self._reopened += (job.id, mark(job.seq, job.id))

    # --- the rest ---------------------------------------------------------------------------------------------------

    def _commands(self) -> Iterator[Command]:
        yield from self._moves.commands()
        if self._bodies:
            yield ("MSET", *self._bodies)
        for field, number in self._tallies.items():
            if number:
                yield ("HINCRBY", self._keys.tally, field, number)
        yield from self._counts()
        for job in self._plan.failed:
            yield from self._failure(job)
        for (key, name), value in self._plan.fields.items():
            yield ("HDEL", key, name) if value is None else ("HSET", key, name, value)
        yield from self._spared
        yield from self._plan.commands

    def _counts(self) -> Iterable[Command]:
        """What the charts are made of."""
        if not self._plan.measures:
            return
        at = MINUTES.start_of(self._now)
        bucket = self._keys.bucket(MINUTES.name, at)
        totals: Counter[str] = Counter()
        for (queue, task, counted), amount in self._plan.measures.items():
            yield ("HINCRBY", bucket, f"{counted}:{place(queue, task)}", amount)
            totals[counted] += amount
        for counted, amount in totals.items():
            yield ("HINCRBY", self._keys.total, counted, amount)
        yield ("ZADD", self._keys.measures(MINUTES.name), at, at)

    def _failure(self, job: Job) -> Iterable[Command]:
        assert job.cause is not None
        failure, key = Failure.from_json(job.error or "{}"), self._keys.failure(job.cause)
        yield (
            "HSET", key, "task", job.task, "pattern", failure.pattern(), "place", failure.place or "",
            "last_at", self._now, "last_job_id", job.id,
        )  # fmt: skip
        yield ("FAILED", key, self._now, failure.version or "")
        yield ("ZADD", self._keys.failures, -self._now, job.cause)
        minute = CAUSE_MINUTES.start_of(self._now)
        bucket = self._keys.bucket(CAUSE_MINUTES.name, minute)
        yield ("HINCRBY", bucket, f"{CAUSED}:{place(job.cause, job.task)}", 1)
        yield ("ZADD", self._keys.measures(CAUSE_MINUTES.name), minute, minute)
