"""Moving a storage: the mark of a storage that is being moved, which calls it allows, and the parts that are copied.
Plain data and pure functions; every storage asks here, and `copy_store.py` does the work.

The source has the stages closing, frozen, moved; the target has the stage filling until it is complete."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from packhorse.core.errors import StorageClosed
from packhorse.core.event import Event
from packhorse.core.job import OPERATOR_ACTIONS, Job
from packhorse.core.outcome import Verdict
from packhorse.storage.records import (
    BY_AGE,
    BY_TURNS,
    ClientInfo,
    FailureGroup,
    LogLine,
    PollResult,
    Pruned,
    QueueInfo,
    ScheduleInfo,
    TaskInfo,
    Tick,
)

# --- the mark ---------------------------------------------------------------------------------------------------------


class Stage(StrEnum):
    """How far a move is."""

    CLOSING = "closing"  # no job is enqueued or reserved; held jobs may end
    FROZEN = "frozen"  # nothing changes; it is being copied
    MOVED = "moved"  # everything is in the other storage
    FILLING = "filling"  # this is the other storage, and it is not complete yet


class Move(msgspec.Struct, frozen=True):
    """What a storage knows about its move. The last four fields are the progress of the target."""

    copy: str  # the same at both ends
    stage: Stage
    other: str  # the address of the other storage, without its password
    at: int
    section: str = ""
    cursor: str | None = None
    counts: dict[str, int] = {}  # rows by section
    sums: dict[str, int] = {}  # and their checksums; see `copy_store.py`


def encode(move: Move) -> str:
    return msgspec.json.encode(move).decode()


def decode(text: str | bytes | None) -> Move | None:
    return None if not text else msgspec.json.decode(text, type=Move)


# --- which calls may run ---------------------------------------------------------------------------------------------

_QUIET: dict[str, Any] = {
    "reserve": [],
    "tick": None,
    "promote": 0,
    "expire": 0,
    "rescue": [],
    "prune": Pruned(),
    "roll_up": None,
    "append_log": Verdict.STALE,
}
"""Calls that processes make on their own, and their result in a closed storage: there is nothing to do."""

_QUIET_WHEN_CLOSING = frozenset({"reserve", "tick"})
_REFUSED_WHEN_CLOSING = frozenset({"enqueue"})
_REFUSED: frozenset[str] = frozenset(
    {
        *OPERATOR_ACTIONS, "enqueue", "pause", "resume",
        "put_schedules", "pause_schedule", "record_operator_event", "remove_schedule", "announce", "join",
        "join_client", "leave_client", "subscribe", "acknowledge", "silence_failure", "prune_part",
    }
)  # fmt: skip


def may_go_on(move: Move | None, call: str) -> bool:
    """Return whether this call may run. False: it returns `quiet_answer`. Raises `StorageClosed` for what people ask
    for."""
    if move is None:
        return True
    if move.stage is Stage.CLOSING:
        if call in _REFUSED_WHEN_CLOSING:
            raise closed(move)
        return call not in _QUIET_WHEN_CLOSING
    if call in _REFUSED:
        raise closed(move)
    return call not in _QUIET


def quiet_answer(call: str) -> Any:
    """The result of a call that may not run."""
    answer = _QUIET[call]
    return list(answer) if isinstance(answer, list) else answer


def poll_result(
    now: int,
    move: Move | None,
    *,
    stops: bool,
    queued: bool,
    ordered: bool,
    held: bool,
    due_at: int | None,
    expire_at: int | None,
    next_at: int | None,
    resume_at: int | None,
    looked_to: int = 0,
    order: str | None = None,
) -> PollResult:
    """The answer to `poll`. What is due but may not be done is left out: a foreman that waited for it would never
    sleep again."""

    def until(at: int | None, *, may_be_done: bool) -> int | None:
        return None if at is None or (at <= now and not may_be_done) else max(0, at - now)

    return PollResult(
        now,
        stops=stops,
        queued=queued,
        ordered=ordered,
        looked_to=looked_to,
        due_in=until(due_at, may_be_done=move is None),
        expires_in=until(expire_at, may_be_done=may_go_on(move, "expire")),
        ticks_in=until(next_at, may_be_done=may_go_on(move, "tick")),
        resumes_in=until(resume_at, may_be_done=move is None),
        moved=move is not None,
        held=held,
        order=BY_AGE if order == BY_AGE else BY_TURNS,
    )


def closed(move: Move) -> StorageClosed:
    """Why this storage takes no changes, and what to do."""
    if move.stage is Stage.MOVED:
        return StorageClosed(f"this storage was moved to {move.other}", hint=f"use the new one: {move.other}")
    if move.stage is Stage.FILLING:
        return StorageClosed(
            f"this storage is being filled from {move.other}",
            hint="wait until `packhorse copy-store` has ended; if it was interrupted, the same command continues:"
            f" `packhorse copy-store {move.other} TO`; with `--cancel` instead of TO it gives up",
        )
    return StorageClosed(
        f"this storage is being moved to {move.other}",
        hint="wait for `packhorse copy-store`, then use the new one; if it was interrupted, the same command continues:"
        f" `packhorse copy-store FROM {move.other}`; `packhorse copy-store FROM --cancel` opens this one again",
    )


def problems(move: Move | None) -> list[str]:
    """What an operator should know, in sentences."""
    return [] if move is None else [closed(move).what]


# --- what is copied ---------------------------------------------------------------------------------------------------


class Lock(msgspec.Struct, frozen=True):
    """The job that took a unique key last, and how."""

    key: str
    job_id: str
    period: int | None
    until: str
    taken_at: int


class Replaced(msgspec.Struct, frozen=True):
    """A call that was not stored, because a waiting job with the same key took its arguments."""

    twin: str
    job_id: str
    at: int


class Subscription(msgspec.Struct, frozen=True):
    """A client that wants the outcome of a job."""

    job_id: str
    client_id: str


class LoggedLine(msgspec.Struct, frozen=True):
    """A log line and its job."""

    job_id: str
    line: LogLine


class Measure(msgspec.Struct, frozen=True):
    """One number of the charts."""

    level: str
    at: int
    queue: str
    task: str
    counted: str
    amount: int


class Section(StrEnum):
    """A part of a storage, in the order of copying. Workers are no part: they join the new storage."""

    TASKS = "tasks"
    QUEUES = "queues"
    CLIENTS = "clients"
    JOBS = "jobs"
    LOCKS = "locks"
    REPLACED = "replaced"
    SUBSCRIPTIONS = "subscriptions"
    LOG = "log"
    EVENTS = "events"
    MEASURES = "measures"
    FAILURES = "failures"
    SCHEDULES = "schedules"
    TICKS = "ticks"


ROWS: dict[Section, type[msgspec.Struct]] = {
    Section.TASKS: TaskInfo,
    Section.QUEUES: QueueInfo,
    Section.CLIENTS: ClientInfo,
    Section.JOBS: Job,
    Section.LOCKS: Lock,
    Section.REPLACED: Replaced,
    Section.SUBSCRIPTIONS: Subscription,
    Section.LOG: LoggedLine,
    Section.EVENTS: Event,
    Section.MEASURES: Measure,
    Section.FAILURES: FailureGroup,
    Section.SCHEDULES: ScheduleInfo,
    Section.TICKS: Tick,
}
"""The type of the rows of each section."""


class Dumped(msgspec.Struct, frozen=True):
    """Some rows of a section. `next` continues; None: these were the last."""

    rows: list[Any]
    next: str | None = None


def bare(queue: QueueInfo) -> QueueInfo:
    """What is stored about a queue; the rest follows from its jobs."""
    return QueueInfo(queue.name, {}, queue.paused_at, queue.paused_by, queue.paused_why, queue.paused_until)


def paged(rows: list[tuple[str, Any]], cursor: str | None, limit: int) -> Dumped:
    """A page of rows that are all in memory, each with a name to sort by."""
    rest = sorted((row for row in rows if cursor is None or row[0] > cursor), key=lambda row: row[0])
    page = rest[:limit]
    return Dumped([row for _, row in page], page[-1][0] if len(rest) > limit else None)
