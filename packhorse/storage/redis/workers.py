"""Workers and foremen: who is there, who beats, which of their jobs should stop. Clients are in `clients.py`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from packhorse.core import transitions
from packhorse.core.event import Event, ForemanOrder, Kind, Subject
from packhorse.core.job import Job
from packhorse.core.transitions import Transition
from packhorse.storage.broken_records import facts_in, record_in
from packhorse.storage.contract import BATCH
from packhorse.storage.records import JOINED_ANEW, USUAL_LEASE, AbortRequest, HeartbeatReply, WorkerInfo
from packhorse.storage.redis.keeper import Keeper
from packhorse.storage.redis.queues import pairs
from packhorse.storage.redis.rows import stop_of, to_json
from packhorse.storage.redis.transaction import Transaction

_STOPS_AT_ONCE: Final = BATCH


class Workers(Keeper):
    def join(self, worker: WorkerInfo, *, lease: int = USUAL_LEASE) -> None:
        version = worker.code_version
        # Read before, and by itself: two that join at once may both tell of it, which whoever draws it sees.
        is_new = version is not None and worker.brings_version(self.workers())

        def work(tx: Transaction) -> bool:
            """Whether all is done: one that held very many jobs gives them back in parts."""
            packed, beat_at = tx.field(self._keys.workers, worker.id), tx.score(self._keys.beats, worker.id)
            holder = None if packed is None else worker_in(packed, beat_at or 0)
            takes_over = worker.takes_over(holder, tx.now, lease)
            if takes_over and not self._take_all(
                tx, worker.id, lambda job: transitions.rescued(job, tx.now, JOINED_ANEW)
            ):
                return False
            if holder is not None and takes_over:
                tx.record_about(holder.subject, Kind.DIED, owner=worker.id, **holder.told(why=JOINED_ANEW))
            is_repeated = holder is not None and not takes_over
            joined_at = holder.joined_at if holder is not None and is_repeated else tx.now
            tx.put_field(self._keys.workers, worker.id, to_json(replace(worker, joined_at=joined_at, report={})))
            tx.put_field(self._keys.reports, worker.id, to_json(worker.report))
            tx.do("ZADD", self._keys.beats, tx.now, worker.id)
            if is_repeated:
                return True
            told = replace(worker, joined_at=tx.now).told(host=worker.host, pid=worker.pid, version=version)
            tx.record_about(worker.subject, Kind.STARTED, owner=worker.id, **told)
            if is_new:
                tx.record_about(Subject.FOREMAN, Kind.DEPLOYED, owner=worker.foreman or worker.id, version=version)
            return True

        self._until_done("join", lambda: (self._change("join", work), None))

    def heartbeat(self, reports: Mapping[str, Mapping[str, Any]]) -> HeartbeatReply:
        told = [word for owner, report in reports.items() for word in (owner, to_json(report))]
        now, unknown, stops = self._server.run("beat", _STOPS_AT_ONCE, *told)
        return HeartbeatReply(int(now), [owner.decode() for owner in unknown], _stops_in(stops))

    def abort_requests(self, owners: Sequence[str]) -> list[AbortRequest]:
        return _stops_in(self._server.run("stops", _STOPS_AT_ONCE, *dict.fromkeys(owners)))

    def leave(self, owner: str, *, why: str = "stopped", ran: Collection[str] = ()) -> None:
        def work(tx: Transaction) -> bool:
            """Whether all is done: one that holds very many jobs hands them back in parts."""
            if not self._take_all(tx, owner, lambda job: transitions.released(job, tx.now, why, ran=job.id in ran)):
                return False
            packed = tx.field(self._keys.workers, owner)
            if packed is not None:
                self._strike(tx, owner)
                worker = worker_in(packed)
                tx.record_about(worker.subject, Kind.KILLED, owner=owner, **worker.told(why=why))
            return True

        self._until_done("leave", lambda: (self._change("leave", work), None))

    def _take_all(self, tx: Transaction, owner: str, change: Callable[[Job], Transition]) -> bool:
        """Take from this worker what it holds. False: there is more."""
        key = self._keys.held(owner)
        held, number = tx.ask(("ZRANGE", key, 0, BATCH - 1), ("ZCARD", key))
        ids = [job_id.decode() for job_id in held]
        jobs, before = tx.jobs_in(key, ids), tx.strays
        strays = tx.drop_strays(key, ids) if len(jobs) < len(ids) else []
        for job in (*jobs, *strays):
            tx.keep(job, change(job))
        if len(jobs) + tx.strays - before < number:  # there are more, or some were in other hands when we looked again
            return False
        tx.must_hold(owner, number)
        tx.do("SREM", self._keys.holders, owner)
        return True

    def _strike(self, tx: Transaction, owner: str) -> None:
        """Its record goes."""
        tx.do("HDEL", self._keys.workers, owner)
        tx.do("HDEL", self._keys.reports, owner)
        tx.do("ZREM", self._keys.beats, owner)

    def record_stat(self, owner: str, report: Mapping[str, Any]) -> None:
        self._change(
            "record_stat", lambda tx: self._tell_of(tx, owner, Kind.STAT, lambda worker: worker.told(**report))
        )

    def order(self, owner: str, order: ForemanOrder, *, by: str | None = None) -> bool:
        return self._change("order", lambda tx: self._tell_of(tx, owner, Kind.ORDERED, lambda _: order.facts(by)))

    def _tell_of(self, tx: Transaction, owner: str, kind: Kind, facts: Callable[[WorkerInfo], dict[str, Any]]) -> bool:
        """Write an event about one that has joined. False: nobody knows it."""
        packed = tx.field(self._keys.workers, owner)
        if packed is None:
            return False
        worker = worker_in(packed)
        tx.record([Event(kind, tx.now, worker.subject, owner=owner, data=facts(worker))])
        return True

    def workers(self) -> list[WorkerInfo]:
        told, reports, beats = self._server.run("workers")
        report_of, beat_of = dict(pairs(reports)), dict(pairs(beats))
        found = [
            replace(
                record_in(WorkerInfo, packed, id=owner.decode()),
                report=facts_in(report_of.get(owner, b"{}")),
                beat_at=int(float(beat_of.get(owner, 0))),
            )
            for owner, packed in pairs(told)
        ]
        return sorted(found, key=lambda worker: (worker.joined_at, worker.id))


def worker_in(packed: bytes, beat_at: int = 0) -> WorkerInfo:
    """This record, with its latest sign of life and without its report, which are kept apart."""
    return replace(record_in(WorkerInfo, packed), beat_at=beat_at)


def _stops_in(told: Sequence[Sequence[bytes]]) -> list[AbortRequest]:
    """In the order in which their jobs arrived."""
    by_age = sorted(told, key=lambda one: int(one[0]))
    stops = (stop_of(job_id.decode(), owner.decode(), head) for _, owner, job_id, head in by_age)
    return [stop for stop in stops if stop is not None]
