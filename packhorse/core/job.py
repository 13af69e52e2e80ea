"""A job as it is stored, its states, and every legal change of state, as data.

Storages read here what they may do, the user interfaces what they may offer, and tests generate every illegal pair from
it. What a change does to the other fields is in `transitions.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from packhorse.core.errors import BadValue


class State(StrEnum):
    """The state of a job. docs/states.md has a drawing."""

    SCHEDULED = "scheduled"  # not due yet
    QUEUED = "queued"  # may be reserved
    RESERVED = "reserved"  # held by a worker: not started yet, or just now
    RUNNING = "running"  # started
    RETRYING = "retrying"  # failed, waiting for its next attempt
    COMPLETED = "completed"  # returned a value
    DEAD = "dead"  # no attempts left, or halted too often
    ABORTED = "aborted"  # stopped by an operator or by a timeout


SCHEDULED, QUEUED, RESERVED, RUNNING, RETRYING, COMPLETED, DEAD, ABORTED = State

WAITING = frozenset({SCHEDULED, QUEUED, RETRYING})
HELD = frozenset({RESERVED, RUNNING})
UNFINISHED = WAITING | HELD
FINAL = frozenset({COMPLETED, DEAD, ABORTED})


class Reason(StrEnum):
    """Why the last attempt, or the whole job, ended as it did."""

    FAILED = "FAILED"  # the task raised
    JOB_TIMEOUT = "JOB_TIMEOUT"  # a limit on its run, idle, waiting or total time
    RUNNER_TIMEOUT = "RUNNER_TIMEOUT"  # the worker died or fell silent
    ABORTED = "ABORTED"  # an operator stopped it


# The states of other job systems, accepted wherever a user names one.
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
    """The states that a user's word stands for: a state's own name, or that of another system.

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


# The rank decides which job is reserved first: the lowest, regardless of its queue.
RANK_RECOVERED = 0  # was running when its whole application died
RANK_FORCED = 1  # an operator forced it
RANK_HALTED = 2  # its worker died while it ran, once
LOWEST_PRIORITY, HIGHEST_PRIORITY = 1, 10

OF_TASK = 0
"""Stored as `max_attempts` of a job whose task decides when the job fails."""
NO_LIMIT = 0
"""Stored as `timeout` or `idle_timeout` of a job that has none, whatever its task says."""
SETTLED_LATER = ("queue", "priority", "max_halts", "expires", "total_timeout", "persistent")
"""The options that a storage uses before a job runs. If the task was unknown at enqueue, its first announcement sets
those that the caller did not choose."""
USUAL_ATTEMPTS = 4
"""The `max_attempts` of a job that leaves it to its task, if the task is unknown."""


def rank_of(priority: int) -> int:
    """The rank of an ordinary waiting job: priority 10 … 1 becomes 3 … 12."""
    return 13 - priority


RANKS = range(RANK_RECOVERED, rank_of(LOWEST_PRIORITY) + 1)


class Job(msgspec.Struct, frozen=True, gc=False):
    """One stored call of a task. Immutable: a change makes a new one.

    Times are microseconds since 1970 by the storage's clock; durations are microseconds. `args`, `result`, `error`,
    `backoff` and `meta` are JSON text.
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
    queued_at: int | None = None  # when it was last queued
    first_queued_at: int | None = None
    started_at: int | None = None  # of the latest attempt
    ran_until: int | None = None  # `started_at` plus its run time as measured by the worker; None: unknown
    finished_at: int | None = None
    owner: str | None = None  # the worker that holds it
    last_owner: str | None = None
    fence: int = 0  # rises whenever the job changes hands, which invalidates old tokens
    attempts: int = 0  # attempts started
    failures: int = 0  # times the task raised or ran too long
    halts: int = 0  # times its worker died while it ran
    losses: int = 0  # times it was taken back from a worker, started or not
    snoozes: int = 0
    max_attempts: int = OF_TASK
    max_halts: int = 3
    timeout: int | None = None  # longest single run; None: the task's, NO_LIMIT: none
    idle_timeout: int | None = None  # longest time between two check-ins; in the same way
    expires: int | None = None  # longest wait in its queue
    total_timeout: int | None = None  # longest life, from first queued to finished
    expire_at: int | None = None  # when the first of these two is over
    abort_at: int | None = None  # a held job was asked to stop
    abort_reason: Reason | None = None
    reason: Reason | None = None
    error: str | None = None
    cause: str | None = None  # the cause of failure that `error` belongs to
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
        """The number of this or the next attempt, counting from 1, and for a dead job that of its last; halted and
        released runs do not count."""
        if self.state is DEAD:
            return max(self.failures, 1)
        return min(self.failures + 1, self.max_attempts or self.failures + 1)  # the last one may also end as aborted

    @property
    def attempts_left(self) -> int:
        """The attempts left, including the present one: `max_attempts` - `failures`."""
        return max(0, self.max_attempts - self.failures)

    @property
    def is_halted(self) -> bool:
        """Is it queued again because its last worker died?"""
        return self.state is QUEUED and self.has_lost_worker

    @property
    def has_lost_worker(self) -> bool:
        """Did its last worker die while it ran?"""
        return self.halts > 0 and self.reason is Reason.RUNNER_TIMEOUT

    @property
    def is_forced(self) -> bool:
        return self.state is QUEUED and self.rank == RANK_FORCED

    @property
    def ran(self) -> int | None:
        """How long its latest attempt ran, as measured by its worker; None if it has not ended, or was not measured."""
        if self.started_at is None or self.ran_until is None or self.state is RUNNING:
            return None
        # An end before the start belongs to an earlier attempt: the latest one was lost, or ended by a program of an
        # earlier version, which does not record it.
        return self.ran_until - self.started_at if self.ran_until >= self.started_at else None

    def took(self, now: int | None) -> int | None:
        """How long its latest attempt ran, or has run until `now`; None if it has not started, or `now` is unknown.
        Measured by its worker, or else until its end was recorded."""
        if self.started_at is None or self.state in (QUEUED, SCHEDULED, RESERVED):
            return None
        if (ran := self.ran) is not None:
            return ran
        end = now if self.state is RUNNING else self.finished_at or self.updated_at
        return None if end is None else max(0, end - self.started_at)

    def waited(self, now: int | None) -> int | None:
        """How long it was last queued, or has been until `now`; None if it was not, or `now` is unknown."""
        if self.queued_at is None:
            return None
        if self.state is QUEUED:
            return None if now is None else max(0, now - self.queued_at)
        begun = self.started_at is not None and self.started_at >= self.queued_at
        return (self.started_at or 0) - self.queued_at if begun else None

    @property
    def token(self) -> Token:
        """The proof that its worker must present to change it."""
        return Token(self.id, self.owner or "", self.fence)


class EffectiveJob(Job, frozen=True, gc=False):
    """A job as it will run: the options that it leaves to its task are filled in. For display, never stored."""

    from_task: tuple[str, ...] = ()  # the options that come from its task


def left_to_task(job: Job) -> tuple[str, ...]:
    """The options that this job leaves to its task, until it runs."""
    left = ["max_attempts"] if job.max_attempts == OF_TASK else []
    return (*left, *(name for name in ("timeout", "idle_timeout") if getattr(job, name) is None))


def effective(job: Job, options: Mapping[str, Any] | None) -> EffectiveJob:
    """The job with the options that it leaves to its task, as announced."""
    if isinstance(job, EffectiveJob):
        return job
    options_of_task, left = options or {}, left_to_task(job)
    fields = {name: getattr(job, name) for name in Job.__struct_fields__}
    attempts = options_of_task.get("max_attempts")
    if "max_attempts" in left:
        fields["max_attempts"] = attempts if isinstance(attempts, int) and attempts > 0 else USUAL_ATTEMPTS
    for name in ("timeout", "idle_timeout"):
        limit = options_of_task.get(name) if name in left else fields[name]
        fields[name] = limit if isinstance(limit, int) and limit > NO_LIMIT else None
    return EffectiveJob(**fields, from_task=left)


class UniqueLock(msgspec.Struct, frozen=True, gc=False):
    """Only one job may hold `key`: while it is unfinished, or, with a `period`, for that time after the enqueueing."""

    key: str
    period: int | None = None
    until: str = "finish"  # or "start": the key is free again once the job starts
    on_conflict: str = "keep"  # or "replace", "reject"


class NewJob(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A job to be enqueued. The client chooses the id, so that a repeated request adds one job. Its JSON contains only
    what differs from the defaults."""

    id: str
    task: str
    queue: str
    args: str = "{}"
    priority: int = LOWEST_PRIORITY
    delay: int = 0
    due_at: int | None = None  # a moment that the user chose; `delay` counts from now
    max_attempts: int = OF_TASK
    max_halts: int = 3
    timeout: int | None = None
    idle_timeout: int | None = None
    expires: int | None = None
    total_timeout: int | None = None
    unique: UniqueLock | None = None
    persistent: bool = False
    created_by: str | None = None
    subscriber: str | None = None  # a client that receives the outcome
    schedule: str | None = None
    backoff: str | None = None
    meta: str | None = None
    copied_from: str | None = None
    chosen: tuple[str, ...] | None = None  # those of `SETTLED_LATER` that the caller chose; None: the task was known


class Token(msgspec.Struct, frozen=True, gc=False):
    """Proof of holding a job: this worker, this reservation. It is invalid once the job has changed hands."""

    job_id: str
    owner: str
    fence: int


class Operation(StrEnum):
    """The operations on a job, named as in the contract and the outcomes."""

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


OPERATOR_ACTIONS = frozenset(
    {
        Operation.ABORT,
        Operation.FORCE_START,
        Operation.SET_PRIORITY,
        Operation.SET_QUEUE,
        Operation.RETRY,
        Operation.DELETE,
    }
)
"""What operators do to jobs. Each has a call of its name in the contract."""


class Change(msgspec.Struct, frozen=True):
    """One row of the table of legal changes. `target` None means removed; with several targets, the job decides."""

    operation: Operation
    source: frozenset[State]  # empty: the job is not stored yet
    targets: tuple[State | None, ...]
    when: str


def _change(operation: Operation, source: set[State] | frozenset[State], *targets: State | None, when: str) -> Change:
    return Change(operation, frozenset(source), targets, when)


# A requested abort of a held job wins over every ending but `completed`: that is why ABORTED is in so many rows.
# Changes by a worker also need its token; see storage/contract.py.
LEGAL_CHANGES: tuple[Change, ...] = (
    _change(Operation.ENQUEUE, set(), QUEUED, SCHEDULED, when="a client enqueues it; scheduled if it has a delay"),
    _change(Operation.PROMOTE, {SCHEDULED, RETRYING}, QUEUED, when="due"),
    _change(
        Operation.RESERVE,
        {QUEUED},
        RESERVED,
        when="a worker serves its queue, which is not paused, or the job is forced",
    ),
    _change(Operation.START, {RESERVED}, RUNNING, when="its worker starts it"),
    _change(Operation.COMPLETE, HELD, COMPLETED, when="the task returned; a short job needs no `start` before"),
    _change(Operation.FAIL, HELD, RETRYING, QUEUED, DEAD, ABORTED, when="the task raised or ran too long"),
    _change(Operation.SNOOZE, HELD, SCHEDULED, ABORTED, when="the task asked to be called later"),
    _change(Operation.STOP, HELD, ABORTED, when="its worker stopped it on request"),
    _change(
        Operation.RELEASE,
        HELD,
        QUEUED,
        SCHEDULED,
        ABORTED,
        when="handed back before it started, or cut short because its worker stops",
    ),
    _change(
        Operation.RESCUE, HELD, QUEUED, DEAD, ABORTED, when="its worker died or fell silent, or no worker holds it"
    ),
    _change(
        Operation.EXPIRE,
        UNFINISHED,
        ABORTED,
        RESERVED,
        RUNNING,
        when="a time limit is over; a held one is asked to stop",
    ),
    _change(
        Operation.ABORT,
        UNFINISHED,
        ABORTED,
        RESERVED,
        RUNNING,
        when="an operator aborts it; a held one is asked to stop",
    ),
    _change(Operation.FORCE_START, WAITING, QUEUED, when="an operator forces it"),
    _change(
        Operation.SET_PRIORITY,
        UNFINISHED,
        *sorted(UNFINISHED),
        when="an operator changes its priority; for a held one it applies to its next attempt; the state stays",
    ),
    _change(
        Operation.SET_QUEUE,
        WAITING | {DEAD, ABORTED},
        *sorted(WAITING | {DEAD, ABORTED}),
        when="an operator moves it to another queue; the state stays",
    ),
    _change(Operation.RETRY, {DEAD, ABORTED, RETRYING}, QUEUED, when="an operator retries it"),
    _change(Operation.DELETE, WAITING | FINAL, None, when="an operator, retention, or the last subscriber"),
)

_SOURCES = {change.operation: change.source for change in LEGAL_CHANGES}


def is_legal(operation: Operation, state: State) -> bool:
    """Is this operation allowed on a job in this state?"""
    return state in _SOURCES[operation]
