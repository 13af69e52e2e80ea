"""Workers and foremen: who is there, who beats, which of their jobs should stop. Clients are in `clients.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from packhorse import changes
from packhorse.event import Event, Kind, Subject
from packhorse.order import Order
from packhorse.storage.contract import BATCH
from packhorse.storage.records import Beat, Stop, WorkerInfo
from packhorse.storage.redis.keeper import Keeper
from packhorse.storage.redis.queues import pairs
from packhorse.storage.redis.rows import from_json, stop_of, to_json
from packhorse.storage.redis.transaction import Transaction

_STOPS_AT_ONCE: Final = BATCH
_worker = msgspec.json.Decoder(WorkerInfo).decode


class Workers(Keeper):
    def join(self, worker: WorkerInfo) -> None:
        version = worker.code_version
        # Read before, and by itself: two that join at once may both tell of it, which whoever draws it sees.
        is_new = version is not None and worker.brings_version(self.workers())

        def work(tx: Transaction) -> None:
            tx.do("HSET", self._keys.workers, worker.id, to_json(replace(worker, joined_at=tx.now, report={})))
            tx.do("HSET", self._keys.reports, worker.id, to_json(worker.report))
            tx.do("ZADD", self._keys.beats, tx.now, worker.id)
            about: dict[str, Any] = {"host": worker.host, "pid": worker.pid, "version": version}
            tx.record_about(worker.subject, Kind.STARTED, owner=worker.id, **about)
            if is_new:
                tx.record_about(Subject.FOREMAN, Kind.DEPLOYED, owner=worker.foreman or worker.id, version=version)

        self._change("join", work)

    def beat(self, reports: Mapping[str, Mapping[str, Any]]) -> Beat:
        told = [word for owner, report in reports.items() for word in (owner, to_json(report))]
        now, unknown, stops = self._server.run("beat", _STOPS_AT_ONCE, *told)
        return Beat(int(now), [owner.decode() for owner in unknown], _stops_in(stops))

    def stops(self, owners: Sequence[str]) -> list[Stop]:
        return _stops_in(self._server.run("stops", _STOPS_AT_ONCE, *dict.fromkeys(owners)))

    def leave(self, owner: str, *, why: str = "stopped") -> None:
        def work(tx: Transaction) -> bool:
            """Whether all is done: one that holds very many jobs hands them back in parts."""
            key = self._keys.held(owner)
            held, number = tx.ask(("ZRANGE", key, 0, BATCH - 1), ("ZCARD", key))
            jobs = tx.jobs_in(key, [job_id.decode() for job_id in held])
            for job in jobs:
                tx.keep(job, changes.released(job, tx.now, why))
            if len(jobs) < number:  # there are more, or some were in other hands when we looked again
                return False
            tx.must_hold(owner, number)
            tx.do("SREM", self._keys.holders, owner)
            packed = tx.field(self._keys.workers, owner)
            if packed is not None:
                self._strike(tx, owner)
                tx.record_about(subject_in(packed), Kind.KILLED, owner=owner, why=why)
            return True

        self._until_done("leave", lambda: (self._change("leave", work), None))

    def _strike(self, tx: Transaction, owner: str) -> None:
        """Its record goes."""
        tx.do("HDEL", self._keys.workers, owner)
        tx.do("HDEL", self._keys.reports, owner)
        tx.do("ZREM", self._keys.beats, owner)

    def record_stat(self, owner: str, report: Mapping[str, Any]) -> None:
        self._change("record_stat", lambda tx: self._tell_of(tx, owner, Kind.STAT, report))

    def order(self, owner: str, order: Order, *, by: str | None = None) -> bool:
        return self._change("order", lambda tx: self._tell_of(tx, owner, Kind.ORDERED, order.facts(by)))

    def _tell_of(self, tx: Transaction, owner: str, kind: Kind, facts: Mapping[str, Any]) -> bool:
        """Write an event about one that has joined. False: nobody knows it."""
        packed = tx.field(self._keys.workers, owner)
        if packed is not None:
            tx.record([Event(kind, tx.now, subject_in(packed), owner=owner, data=dict(facts))])
        return packed is not None

    def workers(self) -> list[WorkerInfo]:
        told, reports, beats = self._server.run("workers")
        report_of, beat_of = dict(pairs(reports)), dict(pairs(beats))
        found = [
            replace(_worker(packed), report=from_json(report_of.get(owner, b"{}")), beat_at=int(beat_of[owner]))
            for owner, packed in pairs(told)
        ]
        return sorted(found, key=lambda worker: (worker.joined_at, worker.id))


def worker_in(packed: bytes, beat_at: int) -> WorkerInfo:
    """This record, with its latest sign of life and without its report, which are kept apart."""
    return replace(_worker(packed), beat_at=beat_at)


def subject_in(packed: bytes) -> Subject:
    """What this record is of: a worker or a foreman."""
    return _worker(packed).subject


def _stops_in(told: Sequence[Sequence[bytes]]) -> list[Stop]:
    """In the order in which their jobs arrived."""
    by_age = sorted(told, key=lambda one: int(one[0]))
    return [stop_of(job_id.decode(), owner.decode(), head) for _, owner, job_id, head in by_age]
