"""Queues: what waits and runs in each, and pausing them."""

from __future__ import annotations

import msgspec

from packhorse.clock import SECOND
from packhorse.fields import QueueFields, Seconds, queue_fields
from packhorse.job import HELD, State
from packhorse.storage.records import QueueInfo
from packhorse.web.api.endpoint import Call, get, post


class ShownQueue(QueueFields, kw_only=True):
    """A queue. `count` is how many wait in line, `latency` how long the oldest of the next ones has, in seconds, and
    `running` how many are in workers' hands."""

    is_paused: bool
    count: int
    running: int
    latency: Seconds


class QueueList(msgspec.Struct):
    """Every queue."""

    items: list[ShownQueue]


class PauseBody(msgspec.Struct, forbid_unknown_fields=True):
    """Why, for those who wonder."""

    why: str | None = None


class Changed(msgspec.Struct):
    """Whether anything changed; false: it was so already."""

    name: str
    changed: bool


def shown_queue(queue: QueueInfo, now: int) -> ShownQueue:
    """A queue as the API tells of it."""
    oldest = queue.oldest_queued_at
    return ShownQueue(
        **msgspec.structs.asdict(queue_fields(queue)),
        is_paused=queue.is_paused,
        count=queue.counts.get(State.QUEUED, 0),
        running=sum(queue.counts.get(state, 0) for state in HELD),
        latency=None if oldest is None else max(0, now - oldest) / SECOND,
    )


@get("/queues")
def list_queues(call: Call) -> QueueList:
    """Every queue: its jobs by state, how long the oldest waits, how many run, and whether it is paused."""
    now = call.reader.now()
    return QueueList([shown_queue(queue, now) for queue in call.reader.queues()])


@get("/queues/{name}")
def get_queue(call: Call, name: str) -> ShownQueue:
    """One queue."""
    return shown_queue(call.reader.queue(name), call.reader.now())


@post("/queues/{name}/pause")
def pause_queue(call: Call, name: str, body: PauseBody) -> Changed:
    """Let no job of this queue begin until it is resumed, but those that are forced."""
    return Changed(name, call.steps.pause(name, body.why))


@post("/queues/{name}/resume")
def resume_queue(call: Call, name: str) -> Changed:
    """Undo a pause."""
    return Changed(name, call.steps.resume(name))
