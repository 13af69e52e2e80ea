"""Workers: every foreman and worker process, and the slots in which jobs run."""

from __future__ import annotations

import msgspec

from packhorse.fields import Moment, WorkerFields, iso, stored_json, worker_fields
from packhorse.job import State
from packhorse.web.api.endpoint import Call, get


class WorkerList(msgspec.Struct):
    """Every worker and foreman, in one answer."""

    items: list[WorkerFields]


class BusySlot(msgspec.Struct, kw_only=True):
    """A job in a worker's hands."""

    worker: str
    job_id: str
    task: str
    queue: str
    state: State
    args: msgspec.Raw | None
    started_at: Moment
    checkin: str | None
    checkin_at: Moment
    progress: int | None
    progress_text: str | None


class BusyList(msgspec.Struct):
    """All that runs just now."""

    items: list[BusySlot]


@get("/workers")
def list_workers(call: Call) -> WorkerList:
    """Every foreman and worker: host, pid, queues, slots, heartbeat, what it reports, and how many jobs it holds."""
    now, holds = call.reader.now(), call.reader.holds(call.reader.held())
    return WorkerList(
        [
            worker_fields(worker, is_alive=call.reader.is_alive(worker, now), holds=holds[worker.id])
            for worker in call.reader.workers()
        ]
    )


@get("/busy_slots")
def list_busy_slots(call: Call) -> BusyList:
    """One item for each job that a worker holds, with its arguments and its last check-in."""
    return BusyList(
        [
            BusySlot(
                worker=job.owner or "",
                job_id=job.id,
                task=job.task,
                queue=job.queue,
                state=job.state,
                args=stored_json(job.args) if len(job.args) <= 2_000 else None,
                started_at=iso(job.started_at if job.state is State.RUNNING else None),
                checkin=job.checkin,
                checkin_at=iso(job.checkin_at),
                progress=job.progress,
                progress_text=job.progress_text,
            )
            for job in call.reader.held()
        ]
    )
