"""A job as it is stored, the states it can be in, and every legal change of state, as data.

Everyone reads this file: storages to know what they may do, the user interfaces to know what they may offer, the
tests to generate every illegal pair. What a change does to the other fields is in `changes.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from packhorse.core.errors import BadValue


class State(StrEnum):
    """Where a job stands. See docs/states.md for the drawing."""

    SCHEDULED = "scheduled"  # not due yet
    QUEUED = "queued"  # may be reserved
    RESERVED = "reserved"  # in a worker's hands: not begun, or only just
    RUNNING = "running"  # begun
    RETRYING = "retrying"  # failed, waits for its next attempt
    COMPLETED = "completed"  # returned a value
    DEAD = "dead"  # no tries left, or halted too often
    ABORTED = "aborted"  # stopped by an operator or by a timeout


SCHEDULED, QUEUED, RESERVED, RUNNING, RETRYING, COMPLETED, DEAD, ABORTED = State

WAITING = frozenset({SCHEDULED, QUEUED, RETRYING})
HELD = frozenset({RESERVED, RUNNING})
UNFINISHED = WAITING | HELD
FINAL = frozenset({COMPLETED, DEAD, ABORTED})


class Reason(StrEnum):
    """Why the last attempt, or the whole job, ended as it did."""

    FAILED = "FAILED"  # the task raised
    JOB_TIMEOUT = "JOB_TIMEOUT"  # run, idle, waiting or total time was over
    RUNNER_TIMEOUT = "RUNNER_TIMEOUT"  # the worker died or fell silent
    ABORTED = "ABORTED"  # an operator stopped it


# What other job systems call our states, accepted wherever a user names one.
_ALIASES: dict[str, frozenset[State]] = {
    "pending": frozenset({SCHEDULED}),
    "create": frozenset({QUEUED}),
    "created": frozenset({QUEUED}),
    "queue": frozenset({QUEUED}),
    "run": frozenset({RUNNING}),
    "started": frozenset({RUNNING}),
    "retry": frozenset({RETRYING}),
    "success": frozenset({COMPLETED}),
    "complete": frozenset({COMPLETED}),
    "broken": frozenset({DEAD}),
    "failed": frozenset({DEAD, ABORTED}),
    "waiting": WAITING,
    "held": HELD,
    "unfinished": UNFINISHED,
    "finished": FINAL,
}


def parse_states(word: str) -> frozenset[State]:
    """The states that a user's word means: a state's own name, or what another system calls it.

    >>> sorted(parse_states("failed"))
    [<State.ABORTED: 'aborted'>, <State.DEAD: 'dead'>]
    """
    plain = str(word).lower()
    if plain in _ALIASES:
        return _ALIASES[plain]
    try:
        return frozenset({State(plain)})
    except ValueError:
        raise BadValue(f"there is no state {word!r}", hint=f"the states are {', '.join(State)}") from None


# Ranks decide who is reserved first: the lowest rank goes first, whatever its queue.
RANK_RECOVERED = 0  # was running when its whole application died
RANK_FORCED = 1  # an operator said: now
RANK_HALTED = 2  # its worker died under it, once
LOWEST_PRIORITY, HIGHEST_PRIORITY = 1, 10

OF_TASK = 0
"""As `max_attempts` of a job: as many as its task says, when it fails."""
NO_LIMIT = 0
"""As `timeout` or `idle_timeout` of a job: none, whatever its task says."""
SETTLED_LATER = ("queue", "priority", "max_halts", "expires", "total_timeout", "persistent")
"""What a storage goes by before a job runs. If the task was not known at the enqueueing, its first announcement settles
those of them that the caller did not choose."""
USUAL_ATTEMPTS = 4
"""Of a job that leaves it to its task, where nobody has told what that says."""


def rank_of(priority: int) -> int:
    """The rank of an ordinary waiting job: priority 10 … 1 becomes 3 … 12."""
    return 13 - priority


RANKS = range(RANK_RECOVERED, rank_of(LOWEST_PRIORITY) + 1)


class Job(msgspec.Struct, frozen=True, gc=False):
    """One stored call of a task. Never changed: a change makes a new one.

    Times are microseconds since 1970 on the storage's clock; durations are microseconds.
    `args`, `result`, `error`, `backoff` and `meta` are JSON text.
    """

    id: str
    seq: int  # the storage's order of arrival
    task: str
    queue: str
    args: str
    state: State
    priority: int
    rank: int
    created_at: int
    updated_at: int
    due_at: int | None = None  # when a scheduled or retrying job may be queued
    queued_at: int | None = None  # the latest time it came into line
    first_queued_at: int | None = None
    started_at: int | None = None  # of the latest attempt
    ran_until: int | None = None  # `started_at` and as long as its worker says that it ran; None: nobody has said so
    finished_at: int | None = None
    owner: str | None = None  # the worker that holds it now
    last_owner: str | None = None
    fence: int = 0  # rises whenever the job changes hands; old tokens are worthless then
    attempts: int = 0  # times begun
    failures: int = 0  # times the task raised or ran too long
    halts: int = 0  # times its worker died while it ran
    losses: int = 0  # times it was taken back from a worker, begun or not
    snoozes: int = 0
    max_attempts: int = OF_TASK
    max_halts: int = 3
    timeout: int | None = None  # longest single run; None: as its task says, NO_LIMIT: whoever enqueued it wants none
    idle_timeout: int | None = None  # longest silence between two check-ins; in the same way
    expires: int | None = None  # longest wait in line
    total_timeout: int | None = None  # longest life, from first queued to finished
    expire_at: int | None = None  # when the nearest of the last two will have passed
    abort_at: int | None = None  # somebody asked a held job to stop
    abort_reason: Reason | None = None
    reason: Reason | None = None
    error: str | None = None
    cause: str | None = None  # the kind of failure that `error` is one case of
    result: str | None = None
    progress: int | None = None
    progress_text: str | None = None
    checkin: str | None = None
    checkin_at: int | None = None
    unique_key: str | None = None
    persistent: bool = False
    created_by: str | None = None
    schedule: str | None = None
    backoff: str | None = None
    meta: str | None = None

    @property
    def attempt(self) -> int:
        """Which try this is or will be, counting from 1, and of a dead job which was its last; a halted or released run
        does not raise it."""
        if self.state is DEAD:
            return max(self.failures, 1)
        return min(self.failures + 1, self.max_attempts or self.failures + 1)  # the last one may end as aborted, too

    @property
    def attempts_left(self) -> int:
        """How many tries it has, the present one among them: `max_attempts` - `failures`."""
        return max(0, self.max_attempts - self.failures)

    @property
    def is_halted(self) -> bool:
        """Waits in line again because its last worker died."""
        return self.state is QUEUED and self.has_lost_worker

    @property
    def has_lost_worker(self) -> bool:
        """Its last worker died while it ran."""
        return self.halts > 0 and self.reason is Reason.RUNNER_TIMEOUT

    @property
    def is_forced(self) -> bool:
        return self.state is QUEUED and self.rank == RANK_FORCED

    @property
    def ran(self) -> int | None:
        """How long its latest attempt ran, as its worker measured it; None: it has not ended, or nobody measured it."""
        if self.started_at is None or self.ran_until is None or self.state is RUNNING:
            return None
        # What is older than the start is about an attempt before: the latest one was lost, or ended by a program of an
        # earlier version, which does not write it.
        return self.ran_until - self.started_at if self.ran_until >= self.started_at else None

    def took(self, now: int | None) -> int | None:
        """How long its latest attempt ran, or has run by now; None: it has not begun, or nobody says what time it is.
        As its worker measured it, or, where nobody did, until its end was written down."""
        if self.started_at is None or self.state in (QUEUED, SCHEDULED, RESERVED):
            return None
        if (ran := self.ran) is not None:
            return ran
        end = now if self.state is RUNNING else self.finished_at or self.updated_at
        return None if end is None else max(0, end - self.started_at)

    def waited(self, now: int | None) -> int | None:
        """How long it was in line the latest time, or has been by now; None: it was not, or nobody says what time it
        is."""
        if self.queued_at is None:
            return None
        if self.state is QUEUED:
            return None if now is None else max(0, now - self.queued_at)
        begun = self.started_at is not None and self.started_at >= self.queued_at
        return (self.started_at or 0) - self.queued_at if begun else None

    @property
    def token(self) -> Token:
        """What its worker must show to change it."""
        return Token(self.id, self.owner or "", self.fence)


class EffectiveJob(Job, frozen=True, gc=False):
    """A job as it will run: with what it leaves to its task filled in. For people to look at, never to be stored."""

    from_task: tuple[str, ...] = ()  # the options that it has not itself


def left_to_task(job: Job) -> tuple[str, ...]:
    """The options that this job leaves to its task, until it runs."""
    left = ["max_attempts"] if job.max_attempts == OF_TASK else []
    return (*left, *(name for name in ("timeout", "idle_timeout") if getattr(job, name) is None))


def effective(job: Job, options: Mapping[str, Any] | None) -> EffectiveJob:
    """The job with the options that it leaves to its task, as these were announced."""
    if isinstance(job, EffectiveJob):
        return job
    told, left = options or {}, left_to_task(job)
    fields = {name: getattr(job, name) for name in Job.__struct_fields__}
    attempts = told.get("max_attempts")
    if "max_attempts" in left:
        fields["max_attempts"] = attempts if isinstance(attempts, int) and attempts > 0 else USUAL_ATTEMPTS
    for name in ("timeout", "idle_timeout"):
        limit = told.get(name) if name in left else fields[name]
        fields[name] = limit if isinstance(limit, int) and limit > NO_LIMIT else None
    return EffectiveJob(**fields, from_task=left)


class UniqueLock(msgspec.Struct, frozen=True, gc=False):
    """At most one job may hold `key`: while it is unfinished, or, with a `period`, for so long after the enqueueing."""

    key: str
    period: int | None = None
    until: str = "finish"  # or "start": the key is free again once the job begins
    on_conflict: str = "keep"  # or "replace", "reject"


class NewJob(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A job that a client asks for. The id is the client's, so that asking twice adds one job. As JSON it has only what
    differs from the defaults: most of it is not worth sending."""

    id: str
    task: str
    queue: str
    args: str = "{}"
    priority: int = LOWEST_PRIORITY
    delay: int = 0
    due_at: int | None = None  # a moment that the user named; `delay` is for "in so long"
    max_attempts: int = OF_TASK
    max_halts: int = 3
    timeout: int | None = None
    idle_timeout: int | None = None
    expires: int | None = None
    total_timeout: int | None = None
    unique: UniqueLock | None = None
    persistent: bool = False
    created_by: str | None = None
    subscriber: str | None = None  # a client that wants the outcome
    schedule: str | None = None
    backoff: str | None = None
    meta: str | None = None
    copied_from: str | None = None
    chosen: tuple[str, ...] | None = None  # of `SETTLED_LATER`, by the caller; None: its task was known


class Token(msgspec.Struct, frozen=True, gc=False):
    """Proof of holding a job: this worker, this handing-over. It is worthless once the job has changed hands."""

    job_id: str
    owner: str
    fence: int


class Operation(StrEnum):
    """What can be done to a job; the names of the contract's calls and of the outcomes."""

    ENQUEUE = "enqueue"
    PROMOTE = "promote"
    RESERVE = "reserve"
    START = "start"
    COMPLETE = "complete"
    FAIL = "fail"
    SNOOZE = "snooze"
    STOP = "stop"  # the worker ended it because it was asked to
    RELEASE = "release"
    RESCUE = "rescue"
    EXPIRE = "expire"
    ABORT = "abort"
    FORCE_START = "force_start"
    SET_PRIORITY = "set_priority"
    SET_QUEUE = "set_queue"
    RETRY = "retry"
    DELETE = "delete"


class Change(msgspec.Struct, frozen=True):
    """One line of the table of legal changes. `target` None means removed; several targets, decided by the job."""

    operation: Operation
    source: frozenset[State]  # empty: the job is not stored yet
    targets: tuple[State | None, ...]
    when: str


def _change(operation: Operation, source: set[State] | frozenset[State], *targets: State | None, when: str) -> Change:
    return Change(operation, frozenset(source), targets, when)


# An abort that was asked of a held job wins over every ending but `completed`: that is why ABORTED stands in so many
# lines. Changes by a worker also need its token; see storage/contract.py.
LEGAL_CHANGES: tuple[Change, ...] = (
    _change(Operation.ENQUEUE, set(), QUEUED, SCHEDULED, when="a client asks; scheduled when it has a delay"),
    _change(Operation.PROMOTE, {SCHEDULED, RETRYING}, QUEUED, when="due"),
    _change(Operation.RESERVE, {QUEUED}, RESERVED, when="a worker serves its queue, which is not paused, or forced"),
    _change(Operation.START, {RESERVED}, RUNNING, when="its worker begins"),
    _change(Operation.COMPLETE, HELD, COMPLETED, when="the task returned; a short job needs no `start` before"),
    _change(Operation.FAIL, HELD, RETRYING, QUEUED, DEAD, ABORTED, when="the task raised or ran too long"),
    _change(Operation.SNOOZE, HELD, SCHEDULED, ABORTED, when="the task asked to be called later"),
    _change(Operation.STOP, HELD, ABORTED, when="its worker stopped it, as it was asked to"),
    _change(
        Operation.RELEASE,
        HELD,
        QUEUED,
        SCHEDULED,
        ABORTED,
        when="handed back before it began, or cut short because its worker stops",
    ),
    _change(Operation.RESCUE, HELD, QUEUED, DEAD, ABORTED, when="its worker died or fell silent, or nobody holds it"),
    _change(Operation.EXPIRE, UNFINISHED, ABORTED, RESERVED, RUNNING, when="its time is over; a held one is asked"),
    _change(Operation.ABORT, UNFINISHED, ABORTED, RESERVED, RUNNING, when="an operator says so; a held one is asked"),
    _change(Operation.FORCE_START, WAITING, QUEUED, when="an operator says: now"),
    _change(
        Operation.SET_PRIORITY,
        UNFINISHED,
        *sorted(UNFINISHED),
        when="an operator moves it in line; for a held one it counts in its next attempt; the state stays",
    ),
    _change(
        Operation.SET_QUEUE,
        WAITING | {DEAD, ABORTED},
        *sorted(WAITING | {DEAD, ABORTED}),
        when="an operator puts it in another queue; the state stays",
    ),
    _change(Operation.RETRY, {DEAD, ABORTED, RETRYING}, QUEUED, when="an operator says: again"),
    _change(Operation.DELETE, WAITING | FINAL, None, when="an operator, retention, or the last subscriber"),
)

_SOURCES = {change.operation: change.source for change in LEGAL_CHANGES}


def is_legal(operation: Operation, state: State) -> bool:
    """May this be done to a job in this state?"""
    return state in _SOURCES[operation]
