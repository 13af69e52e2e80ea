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
    """What happened. In brackets, what `data` carries; docs/events.md has them all."""

    # a job
    ADDED = "added"  # enqueued [due_at, copied_from, chosen]
    QUEUED = "queued"  # a scheduled job fell due
    RESERVED = "reserved"
    STARTED = "started"  # also of a worker, a foreman [host, pid, version, object: its record]
    COMPLETED = "completed"  # [ran]
    FAILED = "failed"  # one attempt failed, another will follow [reason, error, retry_in, version, ran]
    READDED = "readded"  # in line again [why, delay, ran, losses]
    BROKEN = "broken"  # no tries left: dead [reason, error, why, halts, version, ran]
    HALTED = "halted"  # its worker died while it ran [why, halts, version, ran]
    SNOOZED = "snoozed"  # [delay, ran]
    ABORT_ASKED = "abort_asked"  # a held job was asked to stop [by, reason]
    ABORTED = "aborted"  # [by, reason, ran, error, version, why, and what was counted with it]
    FORCE_STARTED = "force_started"  # [by]
    PRIORITY_CHANGED = "priority_changed"  # [from, to, by]
    QUEUE_CHANGED = "queue_changed"  # [from, to, by, before]
    RETRIED = "retried"  # by an operator [by]
    REPLACED = "replaced"  # a unique twin brought new arguments [args, twin, due_at, before, chosen]
    HANDLED = "handled"  # a subscriber acknowledged the outcome [client]
    DELETED = "deleted"  # [by]
    # a process or a client
    DEPLOYED = "deployed"  # a worker started with a version of the code that no other runs [version]
    STAT = "stat"  # what a worker has done so far [its figures, object]
    ORDERED = "ordered"  # an operator wants something of a foreman [do, worker, least, most, by]
    KILLED = "killed"  # stopped on purpose [why, object]
    DIED = "died"  # [why, object]
    JOINED = "joined"  # [name]
    LEFT = "left"
    SIGNED_OUT = "signed_out"  # of a session of the web, which is over [by]
    TIMED_OUT = "timed_out"
    # a queue or a schedule
    PAUSED = "paused"  # [by, why, until]
    RESUMED = "resumed"  # [by, why]
    PUT = "put"  # a schedule was written or changed [cron, tz]
    TICKED = "ticked"  # [slot, outcome]
    RUN_NOW = "run_now"  # an operator wanted a schedule's job at once [job, by]
    SKIPPED = "skipped"  # an operator left out a schedule's next slot [slot, by]
    # a cause of failures
    SILENCED = "silenced"  # [task, duration, version, by]
    UNSILENCED = "unsilenced"  # [task, by]

    @classmethod
    def _missing_(cls, word: object) -> Kind | None:
        """So that an answer of a newer manager can be read, too."""
        return kind_of(word) if isinstance(word, str) else None


def kind_of(word: str) -> Kind:
    """What happened, as it is stored. A word that only newer programs know stays itself: it can be shown, and equals no
    kind that this program knows."""
    known = _KINDS.get(word)
    if known is not None:
        return known
    kind = str.__new__(Kind, word)
    kind._name_, kind._value_ = word.upper(), word
    return kind


def subject_of(word: object) -> Subject:
    """What an event or a record is about, as it is stored; a worker, if somebody has garbled that."""
    return _SUBJECTS.get(word, Subject.WORKER)


_SUBJECTS: dict[object, Subject] = {subject.value: subject for subject in Subject}


def known_kind(word: str) -> Kind:
    """The kind that somebody has asked for. Raises ValueError if there is none."""
    if word not in _KINDS:
        raise ValueError(f"there is no kind of event {str(word)!r}")
    return _KINDS[word]


_KINDS = {kind.value: kind for kind in Kind}


class Event(msgspec.Struct, frozen=True, gc=False):
    """One fact. `state` is the job's state after it; `at` is the storage's clock; `id` rises. Of a schedule or a
    failure, `queue` is its name or its cause. `object` is the job or the worker as it was then, if that was asked for:
    what is not in it is not known any more."""

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


def deed_about(kind: Kind, name: str) -> dict[str, Any]:
    """Whom an operator's deed of this kind is about: a session of the web that is over, or a schedule."""
    if kind is Kind.SIGNED_OUT:
        return {"subject": Subject.CLIENT, "kind": kind, "owner": name}
    return {"subject": Subject.SCHEDULE, "kind": kind, "queue": name}


class ForemanAction(StrEnum):
    """What is wanted."""

    QUIET = "quiet"  # take no more jobs; what runs goes on
    STOP = "stop"  # finish what runs, and end
    RESTART = "restart"  # give way to fresh workers, one after the other
    SCALE = "scale"  # keep so many workers, or give each so many slots
    STACKS = "stacks"  # say where every thread stands


IN_PROGRAM = "in_program"
"""A foreman's record has this if it is a pool in somebody's program: there neither new code nor more workers can come
from an order."""
NOT_IN_PROGRAM = frozenset({ForemanAction.RESTART, ForemanAction.SCALE})


class ForemanOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """One order. `worker` is the one of the crew that is meant, None: all of them, and the foreman."""

    do: ForemanAction
    worker: str | None = None
    least: int | None = None  # of `scale`: how many workers at least,
    most: int | None = None  # and at most
    slots: int | None = None  # and of each; workers with another number give way to fresh ones
    now: bool = False  # of `stop`: without waiting for what runs, which is handed back

    def facts(self, by: str | None) -> dict[str, Any]:
        """What the event says."""
        told: dict[str, Any] = msgspec.to_builtins(self)
        return {**told, "by": by} if by else told

    @classmethod
    def of(cls, event: Event) -> ForemanOrder | None:
        """The order that this event is; None: one that only a newer version knows."""
        try:
            return msgspec.convert(event.data or {}, cls)
        except msgspec.ValidationError:
            return None
