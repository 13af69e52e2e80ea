"""Jobs, events, queues and workers as the plain fields that --json prints.

Times are ISO 8601 in UTC, durations are seconds, and JSON that is stored as text comes out exactly as it is, so that
also numbers beyond 2^53 survive.
"""

from __future__ import annotations

from typing import Any

import msgspec

from packhorse.cli.output import iso
from packhorse.clock import SECOND
from packhorse.event import Event
from packhorse.job import Job
from packhorse.storage.records import LogLine, QueueInfo, Steered, WorkerInfo

Fields = dict[str, Any]

_TIMES = ("created_at", "updated_at", "due_at", "queued_at", "started_at", "finished_at", "checkin_at", "abort_at")
_DURATIONS = ("timeout", "idle_timeout", "expires", "total_timeout")
_STORED_JSON = ("args", "result", "error", "meta", "backoff")
_AS_THEY_ARE = (
    *("id", "task", "queue", "state", "priority", "owner", "last_owner"),
    *("attempts", "failures", "halts", "losses", "snoozes", "max_attempts", "max_halts"),
    *("reason", "cause", "progress", "progress_text", "checkin"),
    *("unique_key", "persistent", "created_by", "schedule"),
)


def stored_json(text: str | None) -> msgspec.Raw | None:
    """JSON text that is to be part of other JSON, on one line."""
    return None if text is None else msgspec.Raw(text.replace("\n", " ").replace("\r", " ").encode())


def job_fields(job: Job) -> Fields:
    """Everything about a job but its place in line."""
    return {
        **{name: getattr(job, name) for name in _AS_THEY_ARE},
        **{name: iso(getattr(job, name)) for name in _TIMES},
        **{name: seconds(getattr(job, name)) for name in _DURATIONS},
        **{name: stored_json(getattr(job, name)) for name in _STORED_JSON},
    }


def event_fields(event: Event) -> Fields:
    """An event."""
    return {**msgspec.structs.asdict(event), "at": iso(event.at)}


def log_fields(line: LogLine) -> Fields:
    """A line of a job's log."""
    return {**msgspec.structs.asdict(line), "at": iso(line.at)}


def queue_fields(queue: QueueInfo) -> Fields:
    """A queue."""
    fields = msgspec.structs.asdict(queue)
    return {**fields, "paused_at": iso(queue.paused_at), "oldest_queued_at": iso(queue.oldest_queued_at)}


def worker_fields(worker: WorkerInfo, *, is_alive: bool, holds: int) -> Fields:
    """A worker or a foreman; `holds` is its number of jobs."""
    fields = msgspec.structs.asdict(worker)
    times = {"joined_at": iso(worker.joined_at), "beat_at": iso(worker.beat_at)}
    return {**fields, **times, "is_alive": is_alive, "holds": holds}


def steered_fields(answer: Steered) -> Fields:
    """The answer to steering one job."""
    return {"id": answer.job_id, "changed": answer.changed, "state": answer.state, "conflict": answer.conflict}


def seconds(duration: int | None) -> float | None:
    """A stored duration in seconds; whole ones as whole numbers."""
    if duration is None:
        return None
    return duration // SECOND if duration % SECOND == 0 else duration / SECOND
