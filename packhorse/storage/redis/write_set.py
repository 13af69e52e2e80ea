"""What a transaction sends to `apply.lua`: the values that it has read, and what it wants written.

The write set is collected while a call decides, and then encoded. Tallies, charts and moves between sorted sets are
worked out once for the whole call: a batch of a hundred jobs changes one tally, not a hundred.
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
from packhorse.storage.redis.keys import Keys, mark, place, tally_field
from packhorse.storage.redis.rows import EVENTS_AT_ONCE, Marks, body_of, entries_in, entry_of, head_of

Command = tuple[Word, ...]

_ENTRIES_IN_HEAD = 32
"""How many entries of the event stream a head may name."""
_ENTRIES_LEFT = 8
_OLD_ENTRIES = 5_000


Places = dict[tuple[str, bytes], int]
"""(key of a sorted set, member) -> score."""
_MEMBERS_PER_COMMAND = 500


def places_of(keys: Keys, job: Job | None, *, is_subscribed: bool) -> Places:
    """Every sorted set that contains this job. They follow from the job alone, so a change needs no logic of its own:
    remove the places before, add the places after. The hot scripts do the same for the few changes that they make."""
    if job is None:
        return {}
    name, its_mark = job.id.encode(), mark(job.seq, job.id)
    places: Places = {(keys.queue(job.queue), name): job.seq}
    if job.state is QUEUED:
        places[keys.line(job.rank, job.queue), name] = job.seq
    if job.due_at is not None:
        places[keys.due, its_mark] = job.due_at
    if job.expire_at is not None:
        places[keys.expiring, its_mark] = job.expire_at
    if job.owner is not None:
        places[keys.held(job.owner), name] = job.seq
        if job.abort_at is not None:
            places[keys.stop(job.owner), name] = job.seq
    if job.state in FINAL and job.finished_at is not None:
        is_kept = job.persistent or is_subscribed
        places[keys.kept(job.state) if is_kept else keys.finished(job.state), its_mark] = job.finished_at
    return places


class Moves:
    """Moves of many jobs between sorted sets, sent with one command for each set and direction."""

    def __init__(self) -> None:
        self._removed: dict[str, list[Word]] = {}
        self._added: dict[str, list[Word]] = {}

    def move(self, before: Places, after: Places) -> None:
        for key, member in before.keys() - after.keys():
            self._removed.setdefault(key, []).append(member)
        for (key, member), score in after.items():
            if before.get((key, member)) != score:
                self._added.setdefault(key, []).extend((score, member))

    def commands(self) -> Iterable[tuple[Word, ...]]:
        """Removals come first: a full server accepts them, and then also what follows."""
        for key, members in self._removed.items():
            for start in range(0, len(members), _MEMBERS_PER_COMMAND):
                yield ("ZREM", key, *members[start : start + _MEMBERS_PER_COMMAND])
        for key, pairs in self._added.items():
            for start in range(0, len(pairs), 2 * _MEMBERS_PER_COMMAND):
                yield ("ZADD", key, *pairs[start : start + 2 * _MEMBERS_PER_COMMAND])


class Preconditions:
    """The values that a decision depends on, as the transaction first read them; None: there was none. `apply.lua`
    compares them before it writes anything."""

    def __init__(self) -> None:
        self.texts: dict[str, bytes | None] = {}
        self.fields: dict[tuple[str, str], bytes | None] = {}
        self.scores: dict[tuple[str, str], bytes | None] = {}
        self.numbers: dict[tuple[str, ...], int] = {}  # a command that returns a number -> that number

    def words(self) -> list[Word]:
        """As `lua/parts/apply.lua` reads them."""
        words: list[Word] = [len(self.texts)]
        for key, value in self.texts.items():
            words += (key, b"" if value is None else value)
        words.append(len(self.fields))
        for (key, field), value in self.fields.items():
            words += (key, field, "" if value is None else "1", b"" if value is None else value)
        words.append(len(self.scores))
        for (key, member), value in self.scores.items():
            words += (key, member, b"" if value is None else value)
        words.append(len(self.numbers))
        for command, number in self.numbers.items():
            words += (number, len(command), *command)
        return words


class StoredJob(NamedTuple):
    """A job as it was read; None: there is none."""

    job: Job | None = None
    marks: Marks = Marks()


class WriteSet:
    """What a transaction wants written."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job | None] = {}  # with their new values; None: removed
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

    def copy(self) -> WriteSet:
        other = WriteSet()
        other.jobs = dict(self.jobs)
        other.events = {job_id: list(events) for job_id, events in self.events.items()}
        other.other_events = list(self.other_events)
        other.measures = dict(self.measures)
        other.failed = list(self.failed)
        other.fields = dict(self.fields)
        other.subscribers = dict(self.subscribers)
        other.commands = list(self.commands)
        other.adds, other.wakes = self.adds, self.wakes
        return other

    def words(self, keys: Keys, now: int, known: Mapping[str, StoredJob]) -> list[Word]:
        """As `lua/parts/apply.lua` takes them; `known` are the jobs as they were read."""
        return _Encoder(self, keys, now, known).words()


class _Encoder:
    """Encodes one write set for `lua/parts/apply.lua`."""

    def __init__(self, writes: WriteSet, keys: Keys, now: int, known: Mapping[str, StoredJob]) -> None:
        self._writes = writes
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
        self._moved_entries: list[Command] = []

    def words(self) -> list[Word]:
        entries, numbers = self._entries()
        for job_id, job in self._writes.jobs.items():
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
        words.append("1" if self._writes.wakes else "")
        return words

    # --- events ---------------------------------------------------------------------------------------------------

    def _entries(self) -> tuple[list[list[Event]], dict[str, int]]:
        """The events, grouped into entries of the stream, and the number of each job's entry. All events of a job
        are in one entry."""
        entries: list[list[Event]] = []
        numbers: dict[str, int] = {}
        for job_id, events in self._writes.events.items():
            if not entries or len(entries[-1]) + len(events) > EVENTS_AT_ONCE:
                entries.append([])
            entries[-1] += events
            numbers[job_id] = len(entries)
        entries += [[event] for event in self._writes.other_events]
        return entries, numbers

    def _left_in_head(self, job_id: str, entries: bytes) -> bytes:
        """The entries that stay in the head of a job. When there are too many, the older ones move to a list."""
        if len(entries) <= 8 * _ENTRIES_IN_HEAD:
            return entries
        old, left = entries[: -8 * _ENTRIES_LEFT], entries[-8 * _ENTRIES_LEFT :]
        key = self._keys.old_events(job_id)
        self._moved_entries += [("RPUSH", key, *entries_in(old)), ("LTRIM", key, -_OLD_ENTRIES, -1)]
        return left

    # --- jobs -----------------------------------------------------------------------------------------------------

    def _change(self, job_id: str, job: Job | None, entry: int) -> None:
        before, marks = self._known[job_id]
        clients = self._writes.subscribers.get(job_id)
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
            self._notify_subscribers(before, job)

    def _notify_subscribers(self, before: Job, job: Job) -> None:
        if job.state in FINAL and before.state not in FINAL:
            self._ended += (job.id, job.finished_at or 0, mark(job.seq, job.id))
        elif before.state in FINAL and job.state not in FINAL:
            self._reopened += (job.id, mark(job.seq, job.id))

    # --- commands ---------------------------------------------------------------------------------------------------

    def _commands(self) -> Iterator[Command]:
        yield from self._moves.commands()
        if self._bodies:
            yield ("MSET", *self._bodies)
        for field, number in self._tallies.items():
            if number:
                yield ("HINCRBY", self._keys.tally, field, number)
        yield from self._counts()
        for job in self._writes.failed:
            yield from self._failure(job)
        for (key, name), value in self._writes.fields.items():
            yield ("HDEL", key, name) if value is None else ("HSET", key, name, value)
        yield from self._moved_entries
        yield from self._writes.commands

    def _counts(self) -> Iterable[Command]:
        """The counts behind the charts."""
        if not self._writes.measures:
            return
        at = MINUTES.start_of(self._now)
        bucket = self._keys.bucket(MINUTES.name, at)
        totals: Counter[str] = Counter()
        for (queue, task, counted), amount in self._writes.measures.items():
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
