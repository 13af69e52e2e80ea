"""Jobs in and out: enqueue, get. Plain jobs go in with one script; those with a unique key or a subscriber, and ids
that come twice, are decided here and written by a transaction."""

from __future__ import annotations

import functools
import struct
import time
from collections.abc import Iterable, Sequence

from packhorse.core import transitions
from packhorse.core.errors import ClientNotFound, NotUnique
from packhorse.core.job import HELD, WAITING, Job, NewJob, rank_of
from packhorse.storage.contract import BATCH
from packhorse.storage.records import Enqueued, Placement
from packhorse.storage.redis.connection import Word
from packhorse.storage.redis.keeper import Keeper
from packhorse.storage.redis.keys import place
from packhorse.storage.redis.rows import PERSISTENT, added_entry, body_of_new, chunks, job_of, to_json
from packhorse.storage.redis.transaction import Transaction
from packhorse.storage.transfer import may_go_on

_KNOWN_FOR = 300.0
"""Seconds for which a process trusts that a name it has written is still there."""
_EXACT = 1 << 52
"""Scripts count in doubles: a moment beyond this, in some hundred years, is reckoned in Python."""


class InAndOut(Keeper):
    _known: dict[tuple[str, str], float]

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if not jobs:
            return []
        if len(jobs) == 1 and _is_plainest(jobs[0]):
            return [self._enqueue_plainest(jobs[0])]
        if len(jobs) <= BATCH and all(map(_is_plain, jobs)) and len({new.id for new in jobs}) == len(jobs):
            return self._enqueue_plain(jobs)
        return self._enqueue_surely(jobs)

    # --- plain ones ---------------------------------------------------------------------------------------------------

    def _enqueue_plainest(self, new: NewJob) -> Enqueued:
        self._next_due = None
        task, queue = new.task, new.queue
        words = (new.id, body_of_new(new), added_entry(new), _kind(queue, task, new.priority, new.persistent))
        if self._known.get((task, queue), 0.0) > time.monotonic():
            is_new = self._server.run("enqueue_one", *words)
        else:
            is_new = self._server.run("enqueue_one", *words, task, _task_text(queue))
            self._remember([(task, queue)] if is_new is not None else [])
        if is_new is None:
            return self._enqueue_although_moved([new])[0]
        return Enqueued(new.id) if is_new else Enqueued(new.id, Placement.KEPT)

    def _enqueue_plain(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        self._next_due = None
        names = self._unknown_names(jobs)
        words: list[Word] = [len(names)]
        for task, queue in names:
            words += (task, _task_text(queue), queue)
        there = self._server.run("enqueue", *words, *_runs(jobs))
        if there is None:
            return self._enqueue_although_moved(jobs)
        self._remember(names)
        if not there:
            return [Enqueued(new.id) for new in jobs]
        kept = {one.decode() for one in there}
        return [Enqueued(new.id, Placement.KEPT if new.id in kept else Placement.ADDED) for new in jobs]

    def _enqueue_although_moved(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Nothing was stored, because the storage is moved; or was a moment ago, and has been opened since."""
        may_go_on(self._look_for_mark(), "enqueue")
        return self._enqueue_surely(jobs)

    def _unknown_names(self, jobs: Sequence[NewJob]) -> list[tuple[str, str]]:
        """Names of tasks and queues that this process has not written for a while."""
        now, known = time.monotonic(), self._known
        return [name for name in dict.fromkeys((new.task, new.queue) for new in jobs) if known.get(name, 0.0) < now]

    def _remember(self, names: Iterable[tuple[str, str]]) -> None:
        until = time.monotonic() + _KNOWN_FOR
        for name in names:
            self._known[name] = until

    # --- the others ---------------------------------------------------------------------------------------------------

    def _enqueue_surely(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return self._change("enqueue", lambda tx: self._enqueue(tx, jobs))

    def _enqueue(self, tx: Transaction, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Store new jobs with a transaction. Also for the tick of a schedule."""
        if not jobs:
            return []
        tx.jobs([new.id for new in jobs])
        keys = [new.unique.key for new in jobs if new.unique]
        if keys:
            tx.fields(self._keys.locks, keys)
            tx.fields(self._keys.replaced, [new.id for new in jobs if _replaces(new)])
            taken = [tx.lock(key) for key in keys]
            tx.jobs([one.job_id for one in taken if one is not None])
        for task, queue in dict.fromkeys((new.task, new.queue) for new in jobs):
            tx.do("HSETNX", self._keys.tasks, task, _task_text(queue))
            tx.do("HSETNX", self._keys.queues, queue, "")
        seq = tx.take_numbers("job", len(jobs))
        return [self._enqueue_one(tx, new, seq + place) for place, new in enumerate(jobs)]

    def _enqueue_one(self, tx: Transaction, new: NewJob, seq: int) -> Enqueued:
        if tx.jobs([new.id]):
            return Enqueued(new.id, Placement.KEPT)
        if new.unique is not None:
            if _replaces(new) and (replaced := tx.replaced_by(new.id)) is not None:
                return Enqueued(replaced, Placement.REPLACED)
            holder = tx.holder(new.unique.key)
            if holder is not None:
                twin = self._meet_twin(tx, holder, new)
                if twin is not None:
                    self._subscribe_to(tx, new, holder.id)
                    return twin
            tx.take_lock(new.unique, new.id)
        tx.keep(None, transitions.added(new, seq, tx.now))
        self._subscribe_to(tx, new, new.id)
        return Enqueued(new.id)

    def _meet_twin(self, tx: Transaction, holder: Job, new: NewJob) -> Enqueued | None:
        """Another job holds the unique key. None: the new job is to be added all the same."""
        assert new.unique is not None
        if new.unique.on_conflict == "reject":
            raise NotUnique(holder.id, new.unique.key)
        if new.unique.on_conflict == "replace":
            if holder.state in WAITING:
                tx.replace(holder, new)
                return Enqueued(holder.id, Placement.REPLACED)
            if holder.state in HELD:
                return None  # it has read the old arguments; the new ones must not be lost
        return Enqueued(holder.id, Placement.KEPT)

    def _subscribe_to(self, tx: Transaction, new: NewJob, job_id: str) -> None:
        """Whoever enqueued wants the outcome, be it of this job or of the twin that stands for it."""
        if new.subscriber is not None:
            if tx.score(self._keys.client_beats, new.subscriber) is None:
                raise ClientNotFound(new.subscriber)
            tx.subscribe(job_id, new.subscriber)

    # --- out ------------------------------------------------------------------------------------------------------

    def get(self, job_id: str) -> Job | None:
        found = self.get_many([job_id])
        return found[0] if found else None

    def get_many(self, job_ids: Sequence[str]) -> list[Job]:
        return [job for some in chunks(job_ids, BATCH) for job in self._get_some(some)]

    def _get_some(self, job_ids: Sequence[str]) -> list[Job]:
        reply = self._server.run("get", *job_ids)
        return [
            job_of(job_id, head, body or b"")
            for job_id, head, body in zip(job_ids, reply[::2], reply[1::2], strict=True)
            if head is not None
        ]


def _replaces(new: NewJob) -> bool:
    return new.unique is not None and new.unique.on_conflict == "replace"


def _is_plain(new: NewJob) -> bool:
    """Can the script add it by itself?"""
    return (
        new.unique is None
        and new.subscriber is None
        and new.copied_from is None
        and new.chosen is None
        and new.delay < _EXACT
        and (new.due_at is None or new.due_at < _EXACT)
        and (new.total_timeout is None or new.total_timeout < _EXACT)
        and (new.expires is None or new.expires < _EXACT)
    )


def _is_plainest(new: NewJob) -> bool:
    """Is it due at once, and never to be aborted for its age?"""
    return (
        new.unique is None
        and new.subscriber is None
        and new.copied_from is None
        and new.chosen is None
        and new.delay == 0
        and new.due_at is None
        and new.total_timeout is None
        and new.expires is None
    )


@functools.lru_cache(maxsize=1_000)
def _kind(queue: str, task: str, priority: int, persistent: bool) -> bytes:
    """What `lua/enqueue_one.lua` has to know of a job, and is the same for all of its kind."""
    names = [name.encode() for name in (queue, place(queue, task))]
    numbers = bytes((PERSISTENT if persistent else 0, priority, rank_of(priority)))
    return numbers + b"".join(len(name).to_bytes(2, "big") + name for name in names)


def _runs(jobs: Sequence[NewJob]) -> list[Word]:
    """The jobs, with what those of one run have in common said once, and their places in the batch, in whose order they
    are numbered."""
    runs: dict[tuple[object, ...], list[int]] = {}
    for number, new in enumerate(jobs):
        shape = (
            new.queue, new.task, new.priority, new.persistent, new.delay, new.due_at, new.expires, new.total_timeout,
        )  # fmt: skip
        runs.setdefault(shape, []).append(number)
    words: list[Word] = [len(runs)]
    for numbers in runs.values():
        new = jobs[numbers[0]]
        places = b"" if len(numbers) == len(jobs) else struct.pack(f">{len(numbers)}H", *numbers)
        words += (
            len(numbers), places, new.queue, place(new.queue, new.task), rank_of(new.priority), new.priority,
            PERSISTENT if new.persistent else 0, new.delay, _or_nothing(new.due_at), _or_nothing(new.expires),
            _or_nothing(new.total_timeout),
        )  # fmt: skip
        for number in numbers:
            words += (jobs[number].id, body_of_new(jobs[number]))
    return words


def _or_nothing(number: int | None) -> Word:
    return "" if number is None else number


def _task_text(queue: str) -> str:
    """What is known of a task that nobody has announced: see `queues.py`."""
    return to_json([queue, {}, None])
