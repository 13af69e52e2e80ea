"""Workers: every foreman and worker process, the jobs that they hold, and clients."""

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
    """Which host, and how many."""

    host: str | None = None


class WorkerList(msgspec.Struct):
    """Every worker and foreman, or up to the limit; `next` is the cursor for the rest. `gone` are those that have sent
    no heartbeat since `beat_at`, for longer than a lease, and whose jobs no foreman has taken back yet."""

    items: list[WorkerFields]
    gone: list[WorkerFields]
    next: str | None = None


class BusySlot(msgspec.Struct, kw_only=True):
    """A job that a worker holds; `worker` is the same as `owner`. `begun` is whether it runs, by the worker's last
    heartbeat or by the storage; otherwise it waits in the worker for a slot."""

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
    """Every job that a worker holds, or up to the limit; `next` is the cursor for the rest."""

    items: list[BusySlot]
    next: str | None = None


class StopBody(msgspec.Struct, forbid_unknown_fields=True):
    """Whether to hand back running jobs instead of waiting for them."""

    now: bool = False


class ScaleBody(msgspec.Struct, forbid_unknown_fields=True):
    """The least and the most workers, and the slots of each. If the number of slots changes, new workers replace the
    old ones, one after the other. `least` and `most` are given together or not at all."""

    least: Annotated[int, Meta(ge=0, le=MAX_WORKERS)] | None = None
    most: Annotated[int, Meta(ge=0, le=MAX_WORKERS)] | None = None
    slots: Annotated[int, Meta(ge=1, le=MAX_SLOTS)] | None = None


class Ordered(msgspec.Struct):
    """The recipient of an order. It acts within a second or two, and then reports the order in `order`."""

    id: str


class WorkerStacks(msgspec.Struct):
    """The stacks of the threads, coroutines and children of one worker. `answered` is false if it did not answer in
    time, e.g. because a call does not release the interpreter."""

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
    """Replace workers by new ones, one after the other."""
    call.actions.order(id, ForemanOrder(ForemanAction.RESTART))
    return Ordered(id)


@post("/workers/{id}/stop", role=Role.ADMIN)
def stop_worker(call: Call, id: str, body: StopBody) -> Ordered:
    """Stop workers once their running jobs have ended; with `now`, hand those jobs back instead."""
    call.actions.order(id, ForemanOrder(ForemanAction.STOP, now=body.now))
    return Ordered(id)


@post("/workers/{id}/scale")
def scale_crew(call: Call, id: str, body: ScaleBody) -> Ordered:
    """Change how many workers a foreman keeps, and how many slots each has, until it ends."""
    call.actions.order(id, scale_order(body.least, body.most, body.slots))
    return Ordered(id)


@post("/workers/{id}/stacks")
def ask_worker_for_stacks(call: Call, id: str) -> StackList:
    """The stacks of a worker, or of each worker of a foreman, by job: files, lines and functions. The request waits
    a few seconds for the answer."""
    answered = {worker.id: worker for worker in call.actions.stacks(id)}
    asked = workers_of(call.reader.worker(id), call.reader.workers())
    stacks = {worker.id: stacks_of(answered[worker.id]) for worker in asked if worker.id in answered}
    return StackList(
        [
            WorkerStacks(worker.id, worker.id in stacks, each.items if (each := stacks.get(worker.id)) else [])
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
    """Every client that was seen recently."""
    if call.operator.queues:
        raise NotAllowed("clients are not shown to tokens of some queues only")
    return ClientList([client_fields(client) for client in call.web.cache.clients()])


@get("/jobs/{id}/subscribers")
def list_subscribers(call: Call, id: str) -> SubscriberList:
    """The clients that still want the outcome of this job; it is kept until each has acknowledged it."""
    call.reader.stored(id)
    return SubscriberList(call.web.storage.subscribers(id))
