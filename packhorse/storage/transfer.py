"""Moving a storage: the mark that a storage bears while it is moved, what its calls answer then, and the parts that are
copied. Plain data and pure functions; every storage asks here, and `copy_store.py` does the work with them.

The storage that is left bears the stages closing, frozen, moved; the other one bears filling until it is whole.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from packhorse.core.errors import StorageClosed
from packhorse.core.event import Event
from packhorse.core.job import Job
from packhorse.core.outcome import Verdict
from packhorse.storage.records import (
    BY_AGE,
    BY_TURNS,
    ClientInfo,
    FailureGroup,
    LogLine,
    Outlook,
    Pruned,
    QueueInfo,
    ScheduleInfo,
    TaskInfo,
    Tick,
)

# --- the mark ---------------------------------------------------------------------------------------------------------


class Stage(StrEnum):
    """How far a move is."""

    CLOSING = "closing"  # no job comes in and none is handed out; those that are held may end
    FROZEN = "frozen"  # nothing changes: it is being copied
    MOVED = "moved"  # all of it is in the other storage
    FILLING = "filling"  # this is the other storage, and it is not whole yet


class Move(msgspec.Struct, frozen=True):
    """What a storage knows of its move. The last four are how far the one that is filled has come."""

    copy: str  # the same at both ends
    stage: Stage
    other: str  # the address of the other end, without its password
    at: int
    section: str = ""
    cursor: str | None = None
    counts: dict[str, int] = {}  # rows by section
    sums: dict[str, int] = {}  # and what they come to; see `copy_store.py`


def encode(move: Move) -> str:
    return msgspec.json.encode(move).decode()


def decode(text: str | bytes | None) -> Move | None:
    return None if not text else msgspec.json.decode(text, type=Move)


# --- what calls answer meanwhile --------------------------------------------------------------------------------------

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
"""Calls that processes make by themselves, and what they are told: that there is nothing to do."""

_QUIET_WHEN_CLOSING = frozenset({"reserve", "tick"})
_REFUSED_WHEN_CLOSING = frozenset({"enqueue"})
_REFUSED = frozenset(
    {
        "enqueue", "abort", "force_start", "set_priority", "set_queue", "retry", "delete", "pause", "resume",
        "put_schedules", "pause_schedule", "record_deed", "remove_schedule", "announce", "join", "join_client",
        "leave_client", "subscribe", "acknowledge", "silence_failure", "prune_part",
    }
)  # fmt: skip


def may_go_on(move: Move | None, call: str) -> bool:
    """May this call do its work? False: it answers `quiet_answer`. Raises `StorageClosed` for what people ask for."""
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
    """What a call that may not go on answers."""
    answer = _QUIET[call]
    return list(answer) if isinstance(answer, list) else answer


def outlook_of(
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
) -> Outlook:
    """What is told to a foreman. Of what it is time for, only what may be done: whoever waited for the rest would never
    sleep again."""

    def until(at: int | None, *, may_be_done: bool) -> int | None:
        return None if at is None or (at <= now and not may_be_done) else max(0, at - now)

    return Outlook(
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
            hint="wait until `packhorse copy-store` has ended; if it was broken off, the same command goes on:"
            f" `packhorse copy-store {move.other} TO`, and with `--cancel` instead of TO it gives up",
        )
    return StorageClosed(
        f"this storage is being moved to {move.other}",
        hint="wait for `packhorse copy-store`, then use the new one; if it was broken off, the same command goes on:"
        f" `packhorse copy-store FROM {move.other}`, and `packhorse copy-store FROM --cancel` opens this one again",
    )


def problems(move: Move | None) -> list[str]:
    """What an operator should know, in sentences."""
    return [] if move is None else [closed(move).what]


# --- what is copied ---------------------------------------------------------------------------------------------------


class Lock(msgspec.Struct, frozen=True):
    """Who took a unique key last, and how."""

    key: str
    job_id: str
    period: int | None
    until: str
    taken_at: int


class Replaced(msgspec.Struct, frozen=True):
    """A call that was not stored, because a job of the same key took its arguments."""

    twin: str
    job_id: str
    at: int


class Subscription(msgspec.Struct, frozen=True):
    """A client that wants a job's outcome."""

    job_id: str
    client_id: str


class LoggedLine(msgspec.Struct, frozen=True):
    """A log line, and whose it is."""

    job_id: str
    line: LogLine


class Measure(msgspec.Struct, frozen=True):
    """One number behind the charts."""

    level: str
    at: int
    queue: str
    task: str
    counted: str
    amount: int


class Section(StrEnum):
    """A part of a storage, in the order in which they are copied. Workers are no part: they join the new one."""

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
"""What the rows of each section are."""


class Dumped(msgspec.Struct, frozen=True):
    """Some rows of a section. `next` continues; None: that was all."""

    rows: list[Any]
    next: str | None = None


def bare(queue: QueueInfo) -> QueueInfo:
    """What is stored of a queue; the rest follows from its jobs."""
    return QueueInfo(queue.name, {}, queue.paused_at, queue.paused_by, queue.paused_why, queue.paused_until)


def paged(rows: list[tuple[str, Any]], cursor: str | None, limit: int) -> Dumped:
    """A page of rows that are all at hand, each with its name, by which they are sorted."""
    rest = sorted((row for row in rows if cursor is None or row[0] > cursor), key=lambda row: row[0])
    page = rest[:limit]
    return Dumped([row for _, row in page], page[-1][0] if len(rest) > limit else None)
