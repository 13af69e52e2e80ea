"""Workers, foremen and clients: who is there, who beats, who waits for an outcome."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from packhorse.core import transitions
from packhorse.core.errors import ClientNotFound
from packhorse.core.event import Event, ForemanOrder, Kind, Subject
from packhorse.core.job import FINAL, Job, Reason, Token
from packhorse.storage.broken_records import facts_in
from packhorse.storage.records import JOINED_ANEW, USUAL_LEASE, AbortRequest, ClientInfo, HeartbeatReply, WorkerInfo
from packhorse.storage.sql.keeper import Keeper
from packhorse.storage.sql.rows import job_of, to_json, worker_of
from packhorse.storage.sql.transaction import Transaction

_ALL = 1 << 40


class Workers(Keeper):
    # --- workers and foremen ----------------------------------------------------------------------------------------

    def join(self, worker: WorkerInfo, *, lease: int = USUAL_LEASE) -> None:
        version = worker.code_version
        # Read before, and by itself: two that join at once may both tell of it, which whoever draws it sees.
        is_new = version is not None and worker.brings_version(self.workers())

        def work(tx: Transaction) -> None:
            if not self._put_worker(tx, worker, lease):
                return
            told = replace(worker, joined_at=tx.now).told(host=worker.host, pid=worker.pid, version=version)
            self._record_about(tx, worker.subject, Kind.STARTED, owner=worker.id, **told)
            if is_new:
                who = worker.foreman or worker.id
                self._record_about(tx, Subject.FOREMAN, Kind.DEPLOYED, owner=who, version=version)

        self._write("join", work)

    def _put_worker(self, tx: Transaction, worker: WorkerInfo, lease: int) -> bool:
        """Write its record. False: it was there already, by the same process."""
        if tx.execute(self._sql["add_worker"], _worker_row(worker, tx.now)).rowcount > 0:
            return True
        # Of those that join at once, one has added it; the others find it here, and wait for who changes it.
        row = tx.execute(self._sql["lock_worker"], (worker.id,)).fetchone()
        holder = None if row is None else worker_of(row)
        is_new = worker.takes_over(holder, tx.now, lease)
        if is_new:
            for job_row in tx.execute(self._sql["jobs_of_owner"], (worker.id, _ALL)).fetchall():
                job = job_of(job_row)
                self._keep(tx, job, transitions.rescued(job, tx.now, JOINED_ANEW))
            subject = Subject.WORKER if holder is None else holder.subject
            told = {"why": JOINED_ANEW} if holder is None else holder.told(why=JOINED_ANEW)
            self._record_about(tx, subject, Kind.DIED, owner=worker.id, **told)
        joined_at = tx.now if holder is None or is_new else holder.joined_at
        tx.execute(self._sql["put_worker"], _worker_row(worker, tx.now, joined_at))
        return is_new or holder is None

    def heartbeat(self, reports: Mapping[str, Mapping[str, Any]]) -> HeartbeatReply:
        def work(tx: Transaction) -> HeartbeatReply:
            unknown = []
            for owner, report in reports.items():
                if tx.execute(self._sql["beat_worker"], (tx.now, to_json(report), owner)).rowcount == 0:
                    unknown.append(owner)
            rows = tx.execute(self._sql["jobs_to_stop"], (to_json(list(reports)),)).fetchall()
            return HeartbeatReply(tx.now, unknown, [stop_of(row) for row in rows])

        return self._write("beat", work)

    def abort_requests(self, owners: Sequence[str]) -> list[AbortRequest]:
        return [stop_of(row) for row in self._db.read("stops", self._sql["jobs_to_stop"], (to_json(list(owners)),))]

    def leave(self, owner: str, *, why: str = "stopped", ran: Collection[str] = ()) -> None:
        def work(tx: Transaction) -> None:
            for row in tx.execute(self._sql["jobs_of_owner"], (owner, _ALL)).fetchall():
                job = job_of(row)
                self._keep(tx, job, transitions.released(job, tx.now, why, ran=job.id in ran))
            worker = self._worker(tx, owner)
            if worker is not None:
                tx.execute(self._sql["delete_worker"], (owner,))
                self._record_about(tx, worker.subject, Kind.KILLED, owner=owner, **worker.told(why=why))

        self._write("leave", work)

    def record_stat(self, owner: str, report: Mapping[str, Any]) -> None:
        self._write("record_stat", lambda tx: self._tell_of(tx, owner, Kind.STAT, lambda worker: worker.told(**report)))

    def order(self, owner: str, order: ForemanOrder, *, by: str | None = None) -> bool:
        return self._write("order", lambda tx: self._tell_of(tx, owner, Kind.ORDERED, lambda _: order.facts(by)))

    def _tell_of(self, tx: Transaction, owner: str, kind: Kind, facts: Callable[[WorkerInfo], dict[str, Any]]) -> bool:
        """Write an event about one that has joined. False: nobody knows it."""
        worker = self._worker(tx, owner)
        if worker is not None:
            tx.record([Event(kind, tx.now, worker.subject, owner=owner, data=facts(worker))])
        return worker is not None

    def workers(self) -> list[WorkerInfo]:
        return [worker_of(row) for row in self._db.read("workers", self._sql["all_workers"])]

    # --- clients --------------------------------------------------------------------------------------------------

    def join_client(self, client: ClientInfo) -> None:
        def work(tx: Transaction) -> None:
            row = tx.execute(self._sql["get_client"], (client.id,)).fetchone()
            joined_at = tx.now if row is None else row[0]
            tx.execute(self._sql["put_client"], (client.id, client.name, to_json(client.info), joined_at, tx.now))
            if row is None:
                self._record_about(tx, Subject.CLIENT, Kind.JOINED, owner=client.id, name=client.name)

        self._write("join_client", work)

    def leave_client(self, client_id: str) -> bool:
        def work(tx: Transaction) -> bool:
            if tx.execute(self._sql["delete_client"], (client_id,)).rowcount == 0:
                return False
            tx.execute(self._sql["delete_subscriptions"], (client_id,))
            self._record_about(tx, Subject.CLIENT, Kind.LEFT, owner=client_id)
            return True

        return self._write("leave_client", work)

    def clients(self) -> list[ClientInfo]:
        rows = self._db.read("clients", self._sql["all_clients"])
        return [ClientInfo(number, name, facts_in(info), *times) for number, name, info, *times in rows]

    # --- subscribers ------------------------------------------------------------------------------------------------

    def subscribe(self, client_id: str, job_ids: Sequence[str]) -> int:
        def work(tx: Transaction) -> int:
            if tx.execute(self._sql["get_client"], (client_id,)).fetchone() is None:
                raise ClientNotFound(client_id)
            jobs = self._jobs(tx, job_ids)
            known = [job_id for job_id in job_ids if job_id in jobs]
            tx.executemany(self._sql["add_subscriber"], [(job_id, client_id) for job_id in known])
            tx.execute(self._sql["touch_client"], (tx.now, client_id))
            return len(known)

        return self._write("subscribe", work)

    def subscribers(self, job_id: str) -> list[str]:
        return [row[0] for row in self._db.read("subscribers", self._sql["subscribers_of"], (job_id,))]

    def outcomes_for(self, client_id: str, *, limit: int = 100) -> list[Job]:
        return [job_of(row) for row in self._db.read("outcomes_for", self._sql["outcomes_for"], (client_id, limit))]

    def acknowledge(self, client_id: str, job_ids: Sequence[str]) -> int:
        def work(tx: Transaction) -> int:
            tx.execute(self._sql["touch_client"], (tx.now, client_id))
            jobs = self._jobs(tx, job_ids)
            return sum(self._acknowledge(tx, client_id, jobs[job_id]) for job_id in job_ids if job_id in jobs)

        return self._write("acknowledge", work)

    def _acknowledge(self, tx: Transaction, client_id: str, job: Job) -> bool:
        if job.state not in FINAL:
            return False
        if tx.execute(self._sql["delete_subscriber"], (job.id, client_id)).rowcount == 0:
            return False
        tx.record([transitions.handled(job, tx.now, client_id)])
        left = tx.execute(self._sql["subscribers_of"], (job.id,)).fetchall()
        holder = self._holder(tx, job.unique_key) if job.unique_key else None
        if not left and not job.persistent and holder != job:
            self._remove(tx, [job], "subscribers")
        return True


_REASONS = frozenset(reason.value for reason in Reason)


def stop_of(row: Sequence[Any]) -> AbortRequest:
    """A row of (id, owner, fence, reason): a held job that should end."""
    job_id, owner, fence, reason = row
    return AbortRequest(Token(job_id, owner, fence), Reason(reason) if reason in _REASONS else Reason.ABORTED)


def _worker_row(worker: WorkerInfo, now: int, joined_at: int | None = None) -> tuple[Any, ...]:
    return (
        worker.id,
        worker.subject.value,
        worker.foreman,
        worker.host,
        worker.pid,
        to_json(worker.queues),
        worker.concurrency,
        to_json(worker.info),
        to_json(worker.report),
        now if joined_at is None else joined_at,
        now,
    )
