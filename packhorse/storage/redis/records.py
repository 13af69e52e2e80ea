"""Queues, tasks, workers, clients, schedules and ticks: what is stored of them, to and from the contract's records.

A garbled record is read as far as possible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from packhorse.storage.broken_records import facts_in, record_in
from packhorse.storage.records import ClientInfo, QueueInfo, ScheduleInfo, TaskInfo, Tick, WorkerInfo
from packhorse.storage.redis.rows import to_json


def pairs(reply: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """The fields and values of a hash, or the members and scores of a sorted set, as the server replies them."""
    return zip(reply[::2], reply[1::2], strict=True)


def _moment(score: bytes | None) -> int:
    return 0 if score is None else int(float(score))


# --- tasks and queues -------------------------------------------------------------------------------------------------


def task_in(name: str, packed: bytes) -> TaskInfo:
    try:
        return TaskInfo(name, *msgspec.json.decode(packed, type=tuple[str, dict[str, Any], int | None]))
    except msgspec.MsgspecError:
        return TaskInfo(name, name, facts_in(packed))


def packed_task(task: TaskInfo) -> str:
    return to_json([task.queue, task.options, task.announced_at])


def queue_in(name: str, pause: bytes | None, end: bytes | None) -> QueueInfo:
    """A queue without its counts. The end may be that of an earlier pause."""
    if not pause:
        return QueueInfo(name)
    try:
        at, by, why = msgspec.json.decode(pause, type=tuple[int, str | None, str | None])
        began, until = map(int, end.split()) if end else (None, None)
    except (msgspec.MsgspecError, ValueError):  # it is paused, and can be resumed
        return QueueInfo(name, paused_at=0)
    return QueueInfo(name, {}, at, by, why, until if began == at else None)


def packed_pause(queue: QueueInfo) -> str:
    return to_json([queue.paused_at, queue.paused_by, queue.paused_why]) if queue.is_paused else ""


def packed_pause_end(queue: QueueInfo) -> str | None:
    return None if queue.paused_until is None else f"{queue.paused_at} {queue.paused_until}"


# --- workers and clients ----------------------------------------------------------------------------------------------


def worker_in(owner: str, packed: bytes, beat: bytes | None, report: bytes = b"{}") -> WorkerInfo:
    return replace(record_in(WorkerInfo, packed, id=owner), beat_at=_moment(beat), report=facts_in(report))


def client_in(client: str, packed: bytes, beat: bytes | None, subscriptions: int = 0) -> ClientInfo:
    return replace(record_in(ClientInfo, packed, id=client), beat_at=_moment(beat), subscriptions=subscriptions)


# --- schedules --------------------------------------------------------------------------------------------------------


def schedule_in(name: str, packed: bytes) -> ScheduleInfo:
    return record_in(ScheduleInfo, packed, name=name)


def tick_in(packed: bytes) -> Tick:
    """A tick as it is stored among those of its schedule."""
    return record_in(Tick, packed.partition(b":")[2])
