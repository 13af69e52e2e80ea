"""Workers: every foreman and worker process, and the slots in which jobs run."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from packhorse.core.errors import NotAllowed
from packhorse.core.event import ForemanAction, ForemanOrder
from packhorse.core.job import State
from packhorse.monitor.actions import MAX_SLOTS, MAX_WORKERS, scale_order, workers_of
from packhorse.monitor.liveness import started_job_ids
from packhorse.monitor.serializers import (
    ClientFields,
    Moment,
    WorkerFields,
    client_fields,
    holder_fields,
    iso,
    stored_json,
    worker_fields,
)
from packhorse.monitor.stacks import Stack, stacks_of
from packhorse.web.api.endpoint import Call, PartQuery, get, part_of, post
from packhorse.web.security.operator import Role

_MOST_GONE = 500


class WorkersQuery(PartQuery, kw_only=True, forbid_unknown_fields=True):
    """Of which host, and how many."""

    host: str | None = None


class WorkerList(msgspec.Struct):
    """Every worker and foreman, or so many; `next` is the cursor for the rest. `gone` are those that have given no sign
    of life since `beat_at`, for longer than a lease, and whose jobs no foreman has taken back yet."""

    items: list[WorkerFields]
    gone: list[WorkerFields]
    next: str | None = None


class BusySlot(msgspec.Struct, kw_only=True):
    """A job in a worker's hands; `worker` is the same as `owner`. `begun` tells whether it runs, as its worker said
    with its last heartbeat or the storage knows; else it waits there for a slot."""

    worker: str
    owner: str
    host: str | None
    pid: int | None
    job_id: str
    task: str
    queue: str
    state: State
    begun: bool
    args: msgspec.Raw | None
    attempt: int
    started_at: Moment
    checkin: str | None
    checkin_at: Moment
    progress: int | None
    progress_text: str | None


class BusyList(msgspec.Struct):
    """All that runs just now, or so much of it; `next` is the cursor for the rest."""

    items: list[BusySlot]
    next: str | None = None


class StopBody(msgspec.Struct, forbid_unknown_fields=True):
    """Whether to hand back what runs instead of waiting for it."""

    now: bool = False


class ScaleBody(msgspec.Struct, forbid_unknown_fields=True):
    """How many workers, at least and at most; and with how many slots each. Where that is another number than it was,
    they give way to fresh ones, one after the other. `least` and `most` come together, and may be left out."""

    least: Annotated[int, Meta(ge=0, le=MAX_WORKERS)] | None = None
    most: Annotated[int, Meta(ge=0, le=MAX_WORKERS)] | None = None
    slots: Annotated[int, Meta(ge=1, le=MAX_SLOTS)] | None = None


class Ordered(msgspec.Struct):
    """To whom the order went. It is followed within a second or two, and then `order` in its report says so."""

    id: str


class WorkerStacks(msgspec.Struct):
    """Where the threads, coroutines and children of one worker stand; `answered` is false if it did not say so in time,
    as one does whose interpreter is held by a call that does not let go."""

    id: str
    answered: bool
    stacks: list[Stack]


class StackList(msgspec.Struct):
    """One item for each worker that was asked."""

    items: list[WorkerStacks]


@get("/workers")
def list_workers(call: Call, query: WorkersQuery) -> WorkerList:
    """Every foreman and worker: host, pid, queues, slots, heartbeat, what it reports, and how many jobs it holds."""
    presence = call.reader.presence()
    here, gone = ([worker for worker in each if query.host in (None, worker.host)] for each in presence)
    part, following = part_of(here, lambda worker: worker.id, query)
    now, holds = call.reader.now(), call.reader.holds(call.reader.held())
    listed, lost = (
        [worker_fields(worker, is_alive=call.reader.is_alive(worker, now), holds=holds[worker.id]) for worker in each]
        for each in (part, gone[:_MOST_GONE])
    )
    return WorkerList(listed, lost, following)


@get("/busy_slots")
def list_busy_slots(call: Call, query: PartQuery) -> BusyList:
    """One item for each job that a worker holds, with its arguments and its last check-in."""
    part, following = part_of(call.reader.held(), lambda job: job.id, query)
    workers = call.reader.workers()
    begun = started_job_ids(workers)
    return BusyList(
        [
            BusySlot(
                worker=job.owner or "",
                owner=job.owner or "",
                **holder_fields(job, workers),
                job_id=job.id,
                task=job.task,
                queue=job.queue,
                state=job.state,
                begun=job.state is State.RUNNING or job.id in begun,
                args=stored_json(job.args) if len(job.args) <= 2_000 else None,
                attempt=job.attempt,
                started_at=iso(job.started_at if job.state is State.RUNNING else None),
                checkin=job.checkin,
                checkin_at=iso(job.checkin_at),
                progress=job.progress,
                progress_text=job.progress_text,
            )
            for job in part
        ],
        following,
    )


@post("/workers/{id}/quiet")
def quiet_worker(call: Call, id: str) -> Ordered:
    """Have a worker, or a foreman with its workers, start no more jobs; running ones continue. Restarting undoes it."""
    call.actions.order(id, ForemanOrder(ForemanAction.QUIET))
    return Ordered(id)


@post("/workers/{id}/restart")
def restart_worker(call: Call, id: str) -> Ordered:
    """Have workers give way to fresh ones, one after the other."""
    call.actions.order(id, ForemanOrder(ForemanAction.RESTART))
    return Ordered(id)


@post("/workers/{id}/stop", role=Role.ADMIN)
def stop_worker(call: Call, id: str, body: StopBody) -> Ordered:
    """Have them end when what they run has ended."""
    call.actions.order(id, ForemanOrder(ForemanAction.STOP, now=body.now))
    return Ordered(id)


@post("/workers/{id}/scale")
def scale_crew(call: Call, id: str, body: ScaleBody) -> Ordered:
    """Change how many workers a foreman keeps, and how many slots each has, until it ends."""
    call.actions.order(id, scale_order(body.least, body.most, body.slots))
    return Ordered(id)


@post("/workers/{id}/stacks")
def ask_worker_for_stacks(call: Call, id: str) -> StackList:
    """Where a worker, or each worker of a foreman, stands just now: files, lines and functions, by job. Waits for the
    answer, for a few seconds."""
    answered = {worker.id: worker for worker in call.actions.stacks(id)}
    asked = workers_of(call.reader.worker(id), call.reader.workers())
    told = {worker.id: stacks_of(answered[worker.id]) for worker in asked if worker.id in answered}
    return StackList(
        [
            WorkerStacks(worker.id, worker.id in told, each.items if (each := told.get(worker.id)) else [])
            for worker in asked
        ]
    )


class ClientList(msgspec.Struct):
    """Every client."""

    items: list[ClientFields]


class SubscriberList(msgspec.Struct):
    """The clients that still want a job's outcome."""

    items: list[str]


@get("/clients")
def list_clients(call: Call) -> ClientList:
    """Every client that was seen lately."""
    if call.operator.queues:
        raise NotAllowed("clients are not shown to tokens of some queues only")
    return ClientList([client_fields(client) for client in call.web.cache.clients()])


@get("/jobs/{id}/subscribers")
def list_subscribers(call: Call, id: str) -> SubscriberList:
    """The clients that still want the outcome of this job; it is kept until each has acknowledged it."""
    call.reader.stored(id)
    return SubscriberList(call.web.storage.subscribers(id))
