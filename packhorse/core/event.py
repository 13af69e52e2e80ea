"""Events: permanent facts about a job, a worker, a client or a queue.

Only storages write them, each in the same write as the change that it records, so history cannot disagree with state.
Heartbeats are not events: they overwrite one record.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class Subject(StrEnum):
    """What an event is about."""

    JOB = "job"
    WORKER = "worker"
    FOREMAN = "foreman"
    CLIENT = "client"
    QUEUE = "queue"
    SCHEDULE = "schedule"
    FAILURE = "failure"


class Kind(StrEnum):
    """The kind of an event. In brackets: the content of `data`; docs/events.md describes all."""

    # a job
    ADDED = "added"  # enqueued [due_at, copied_from, chosen]
    QUEUED = "queued"  # a scheduled job became due
    RESERVED = "reserved"
    STARTED = "started"  # also of a worker, a foreman [host, pid, version, object: its record]
    COMPLETED = "completed"  # [ran]
    FAILED = "failed"  # an attempt failed, another will follow [reason, error, retry_in, version, ran]
    READDED = "readded"  # queued again [why, delay, ran, losses]
    BROKEN = "broken"  # no attempts left: dead [reason, error, why, halts, version, ran]
    HALTED = "halted"  # its worker died while it ran [why, halts, version, ran]
    SNOOZED = "snoozed"  # [delay, ran]
    ABORT_ASKED = "abort_asked"  # a held job was asked to stop [by, reason]
    ABORTED = "aborted"  # [by, reason, ran, error, version, why, and the counters that changed with it]
    FORCE_STARTED = "force_started"  # [by]
    PRIORITY_CHANGED = "priority_changed"  # [from, to, by]
    QUEUE_CHANGED = "queue_changed"  # [from, to, by, before]
    RETRIED = "retried"  # by an operator [by]
    REPLACED = "replaced"  # a call with the same unique key brought new arguments [args, twin, due_at, before, chosen]
    HANDLED = "handled"  # a subscriber acknowledged the outcome [client]
    DELETED = "deleted"  # [by]
    # a process or a client
    DEPLOYED = "deployed"  # a worker started with a version of the code that no other runs [version]
    STAT = "stat"  # the totals of a worker so far [its figures, object]
    ORDERED = "ordered"  # an operator's order for a foreman [do, worker, least, most, by]
    KILLED = "killed"  # stopped on purpose [why, object]
    DIED = "died"  # [why, object]
    JOINED = "joined"  # [name]
    LEFT = "left"
    SIGNED_OUT = "signed_out"  # of a session of the web, which has ended [by]
    TIMED_OUT = "timed_out"
    # a queue or a schedule
    PAUSED = "paused"  # [by, why, until]
    RESUMED = "resumed"  # [by, why]
    PUT = "put"  # a schedule was written or changed [cron, tz]
    TICKED = "ticked"  # [slot, outcome]
    RUN_NOW = "run_now"  # an operator ran a schedule's job now [job, by]
    SKIPPED = "skipped"  # an operator skipped a schedule's next slot [slot, by]
    # a cause of failures
    SILENCED = "silenced"  # [task, duration, version, by]
    UNSILENCED = "unsilenced"  # [task, by]

    @classmethod
    def _missing_(cls, word: object) -> Kind | None:
        """Lets a program read an answer of a newer manager."""
        return kind_of(word) if isinstance(word, str) else None


def kind_of(word: str) -> Kind:
    """A stored kind. One that only newer programs know stays a plain word: it can be shown, and equals no known
    kind."""
    known = _KINDS.get(word)
    if known is not None:
        return known
    kind = str.__new__(Kind, word)
    kind._name_, kind._value_ = word.upper(), word
    return kind


def subject_of(word: object) -> Subject:
    """The subject of an event or a record; a worker if it is invalid."""
    return _SUBJECTS.get(word, Subject.WORKER)


_SUBJECTS: dict[object, Subject] = {subject.value: subject for subject in Subject}


def known_kind(word: str) -> Kind:
    """The kind with this name. Raises ValueError if there is none."""
    if word not in _KINDS:
        raise ValueError(f"there is no kind of event {str(word)!r}")
    return _KINDS[word]


_KINDS = {kind.value: kind for kind in Kind}


class Event(msgspec.Struct, frozen=True, gc=False):
    """One fact. `state` is the job's state after it; `at` is by the storage's clock; `id` rises. For a schedule or a
    failure, `queue` is its name or its cause. `object` is the job or the worker as it was then, if requested; fields
    that are unknown are left out."""

    kind: Kind
    at: int
    subject: Subject = Subject.JOB
    job_id: str | None = None
    queue: str | None = None
    state: str | None = None
    owner: str | None = None
    fence: int | None = None
    data: dict[str, Any] | None = None
    id: int = 0
    object: dict[str, Any] | None = None


def operator_event_fields(kind: Kind, name: str) -> dict[str, Any]:
    """The subject of an operator's event of this kind: a session of the web that has ended, or a schedule."""
    if kind is Kind.SIGNED_OUT:
        return {"subject": Subject.CLIENT, "kind": kind, "owner": name}
    return {"subject": Subject.SCHEDULE, "kind": kind, "queue": name}


class ForemanAction(StrEnum):
    """What an operator orders a foreman to do."""

    QUIET = "quiet"  # take no more jobs; running ones continue
    STOP = "stop"  # finish the running jobs, and end
    RESTART = "restart"  # replace the workers, one after the other
    SCALE = "scale"  # keep so many workers, or give each so many slots
    STACKS = "stacks"  # report where every thread is


IN_PROGRAM = "in_program"
"""Set in a foreman's record if it is a pool in a user's program, which can neither reload code nor start workers."""
NOT_IN_PROGRAM = frozenset({ForemanAction.RESTART, ForemanAction.SCALE})


class ForemanOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """One order. `worker` is a single worker of the foreman; None means all of them and the foreman."""

    do: ForemanAction
    worker: str | None = None
    least: int | None = None  # of `scale`: the minimum of workers,
    most: int | None = None  # the maximum,
    slots: int | None = None  # and the slots of each; workers with another number are replaced
    now: bool = False  # of `stop`: release the running jobs instead of waiting for them

    def facts(self, by: str | None) -> dict[str, Any]:
        """The data of the order's event."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return {**data, "by": by} if by else data

    @classmethod
    def of(cls, event: Event) -> ForemanOrder | None:
        """The order of this event; None if only a newer version knows it."""
        try:
            return msgspec.convert(event.data or {}, cls)
        except msgspec.ValidationError:
            return None
