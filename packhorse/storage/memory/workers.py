"""Workers, foremen and clients: who is there, who beats, who waits for an outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from packhorse.core import transitions
from packhorse.core.errors import ClientNotFound
from packhorse.core.event import Event, ForemanOrder, Kind, Subject
from packhorse.core.job import FINAL, Job
from packhorse.storage.memory.keeper import Keeper, atomic
from packhorse.storage.records import JOINED_ANEW, USUAL_LEASE, Beat, ClientInfo, Stop, WorkerInfo


class Workers(Keeper):
    @atomic
    def join(self, worker: WorkerInfo, *, lease: int = USUAL_LEASE) -> None:
        now = self.now()
        holder = self._workers.get(worker.id)
        if worker.takes_over(holder, now, lease):
            self.rescue_owner(worker.id, why=JOINED_ANEW, foreman=worker.id, limit=len(self._jobs))
        elif holder is not None:
            self._workers[worker.id] = replace(worker, joined_at=holder.joined_at, beat_at=now)
            return
        is_new = worker.brings_version(self._workers.values())
        self._workers[worker.id] = worker = replace(worker, joined_at=now, beat_at=now)
        version = worker.code_version
        about = worker.told(host=worker.host, pid=worker.pid, version=version)
        self._record_about(worker.subject, Kind.STARTED, owner=worker.id, **about)
        if is_new:
            self._record_about(Subject.FOREMAN, Kind.DEPLOYED, owner=worker.foreman or worker.id, version=version)

    @atomic
    def beat(self, reports: Mapping[str, Mapping[str, Any]]) -> Beat:
        for owner, report in reports.items():
            if owner in self._workers:
                self._workers[owner] = replace(self._workers[owner], beat_at=self.now(), report=dict(report))
        unknown = [owner for owner in reports if owner not in self._workers]
        return Beat(self.now(), unknown, self.stops(list(reports)))

    @atomic
    def stops(self, owners: Sequence[str]) -> list[Stop]:
        asked = [job for job in self._jobs.values() if job.owner in owners]
        return [Stop(job.token, job.abort_reason) for job in asked if job.abort_reason is not None]

    @atomic
    def leave(self, owner: str, *, why: str = "stopped", ran: Collection[str] = ()) -> None:
        for job in [job for job in self._jobs.values() if job.owner == owner]:
            self._keep(job, transitions.released(job, self.now(), why, ran=job.id in ran))
        worker = self._workers.pop(owner, None)
        if worker is not None:
            self._record_about(worker.subject, Kind.KILLED, owner=owner, **worker.told(why=why))

    @atomic
    def record_stat(self, owner: str, report: Mapping[str, Any]) -> None:
        if owner in self._workers:
            self._tell_of(owner, Kind.STAT, self._workers[owner].told(**report))

    @atomic
    def order(self, owner: str, order: ForemanOrder, *, by: str | None = None) -> bool:
        return self._tell_of(owner, Kind.ORDERED, order.facts(by))

    def _tell_of(self, owner: str, kind: Kind, facts: Mapping[str, Any]) -> bool:
        """Write an event about one that has joined. False: nobody knows it."""
        if owner in self._workers:
            self._record(Event(kind, self.now(), self._workers[owner].subject, owner=owner, data=dict(facts)))
        return owner in self._workers

    @atomic
    def workers(self) -> list[WorkerInfo]:
        return sorted(self._workers.values(), key=lambda worker: (worker.joined_at, worker.id))

    @atomic
    def join_client(self, client: ClientInfo) -> None:
        known = self._clients.get(client.id)
        if known is None:
            self._record_about(Subject.CLIENT, Kind.JOINED, owner=client.id, name=client.name)
        joined_at = known.joined_at if known else self.now()
        self._clients[client.id] = replace(client, joined_at=joined_at, beat_at=self.now())

    @atomic
    def leave_client(self, client_id: str) -> bool:
        if client_id not in self._clients:
            return False
        self._forget_client(client_id)
        self._record_about(Subject.CLIENT, Kind.LEFT, owner=client_id)
        return True

    @atomic
    def clients(self) -> list[ClientInfo]:
        wanted = Counter(client for clients in self._subscribers.values() for client in clients)
        found = [replace(client, subscriptions=wanted[client.id]) for client in self._clients.values()]
        return sorted(found, key=lambda client: (client.joined_at, client.id))

    @atomic
    def subscribe(self, client_id: str, job_ids: Sequence[str]) -> int:
        if client_id not in self._clients:
            raise ClientNotFound(client_id)
        known = [job_id for job_id in job_ids if job_id in self._jobs]
        for job_id in known:
            clients = self._subscribers.setdefault(job_id, [])
            if client_id not in clients:
                clients.append(client_id)
        self._touch(client_id)
        return len(known)

    @atomic
    def subscribers(self, job_id: str) -> list[str]:
        return sorted(self._subscribers.get(job_id, []))

    @atomic
    def outcomes_for(self, client_id: str, *, limit: int = 100) -> list[Job]:
        mine = [self._jobs[job_id] for job_id, clients in self._subscribers.items() if client_id in clients]
        ended = [job for job in mine if job.state in FINAL]
        return sorted(ended, key=lambda job: (job.finished_at, job.seq))[:limit]

    @atomic
    def acknowledge(self, client_id: str, job_ids: Sequence[str]) -> int:
        handled = 0
        for job_id in job_ids:
            job = self._jobs.get(job_id)
            if job is None or job.state not in FINAL or client_id not in self._subscribers.get(job_id, ()):
                continue
            handled += 1
            self._record(transitions.handled(job, self.now(), client_id))
            self._unsubscribe(client_id, job_id)
            holder = self._holder(job.unique_key) if job.unique_key else None
            if job_id not in self._subscribers and not job.persistent and holder != job:
                self._remove(job, "subscribers")
        self._touch(client_id)
        return handled

    def _touch(self, client_id: str) -> None:
        """Whoever calls is alive."""
        if client_id in self._clients:
            self._clients[client_id] = replace(self._clients[client_id], beat_at=self.now())
