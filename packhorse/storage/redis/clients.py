"""Clients and their subscriptions: an outcome is kept until everyone who wanted it has handled it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from packhorse.core import transitions
from packhorse.core.errors import ClientNotFound
from packhorse.core.event import Kind, Subject
from packhorse.core.job import FINAL, Job
from packhorse.storage.broken_records import record_in
from packhorse.storage.records import MOST_MISSED, ClientInfo
from packhorse.storage.redis.keeper import Keeper
from packhorse.storage.redis.queues import pairs
from packhorse.storage.redis.rows import job_of, to_json
from packhorse.storage.redis.transaction import Transaction

_JOBS_AT_ONCE: Final = MOST_MISSED


class Clients(Keeper):
    def join_client(self, client: ClientInfo) -> None:
        def work(tx: Transaction) -> None:
            known = tx.field(self._keys.clients, client.id)
            joined_at = tx.now if known is None else record_in(ClientInfo, known).joined_at
            tx.do("HSET", self._keys.clients, client.id, to_json(replace(client, joined_at=joined_at)))
            tx.do("ZADD", self._keys.client_beats, tx.now, client.id)
            if known is None:
                tx.record_about(Subject.CLIENT, Kind.JOINED, owner=client.id, name=client.name)

        self._change("join_client", work)

    def leave_client(self, client_id: str) -> bool:
        return self._part_with("leave_client", client_id, Kind.LEFT)

    def _part_with(self, name: str, client_id: str, kind: Kind, silent_since: int | None = None) -> bool:
        """A client goes, with its subscriptions; these in parts, if they are many, and its record with the last, which
        has the first ids: the event names them. False: unknown, or it was heard of after `silent_since`."""
        others: list[str] = []  # which go before the last part

        def work(tx: Transaction) -> tuple[bool, bool]:
            beat_at = tx.score(self._keys.client_beats, client_id)
            if beat_at is None or (silent_since is not None and beat_at > silent_since):
                return False, True
            subs = self._keys.subs(client_id)
            (number,) = tx.ask(("SCARD", subs))
            is_last = number <= _JOBS_AT_ONCE
            if not is_last and not others:
                (told,) = tx.ask(("SMEMBERS", subs))
                others.extend(sorted(job_id.decode() for job_id in told)[_JOBS_AT_ONCE:])
            some = tx.members(subs) if is_last else others[-_JOBS_AT_ONCE:]
            jobs = tx.jobs(some)
            tx.read_members([self._keys.sub(job_id) for job_id in jobs])
            for job_id in some:
                if job_id in jobs:
                    tx.unsubscribe(job_id, client_id)
                else:
                    tx.do("SREM", subs, job_id)
            if not is_last:
                return True, False
            tx.do("HDEL", self._keys.clients, client_id)
            tx.do("ZREM", self._keys.client_beats, client_id)
            missed = sorted(some) if kind is Kind.TIMED_OUT else None
            tx.record_about(Subject.CLIENT, kind, owner=client_id, jobs=missed or None)
            return True, True

        while True:
            is_known, is_done = self._change(name, work)
            if is_done:
                return is_known
            del others[-_JOBS_AT_ONCE:]

    def clients(self) -> list[ClientInfo]:
        told, beats, wanted = self._server.run("clients")
        beat_of = dict(pairs(beats))
        found = [
            replace(
                record_in(ClientInfo, packed, id=client.decode()),
                beat_at=int(float(beat_of.get(client, 0))),
                subscriptions=number,
            )
            for (client, packed), number in zip(pairs(told), wanted, strict=True)
        ]
        return sorted(found, key=lambda client: (client.joined_at, client.id))

    # --- subscribers ------------------------------------------------------------------------------------------------

    def subscribe(self, client_id: str, job_ids: Sequence[str]) -> int:
        def work(tx: Transaction) -> int:
            if tx.field(self._keys.clients, client_id) is None:
                raise ClientNotFound(client_id)
            jobs = tx.jobs(job_ids)
            tx.read_members([self._keys.sub(job_id) for job_id in jobs])
            for job_id in jobs:
                tx.subscribe(job_id, client_id)
            self._touch(tx, client_id)
            return sum(job_id in jobs for job_id in job_ids)

        return self._change("subscribe", work)

    def subscribers(self, job_id: str) -> list[str]:
        (told,) = self._server.send("subscribers", ("SMEMBERS", self._keys.sub(job_id)))
        return sorted(client.decode() for client in told)

    def outcomes_for(self, client_id: str, *, limit: int = 100) -> list[Job]:
        found: list[Job] = []
        while len(found) < limit:
            most = min(limit - len(found), _JOBS_AT_ONCE)
            told = self._server.run("outcomes", client_id, len(found), most)
            found += [job_of(job_id.decode(), head, body) for job_id, head, body in zip(*[iter(told)] * 3, strict=True)]
            if len(told) < 3 * most:
                break
        return found

    def acknowledge(self, client_id: str, job_ids: Sequence[str]) -> int:
        def work(tx: Transaction) -> int:
            self._touch(tx, client_id)
            tx.read_members([self._keys.sub(job_id) for job_id in tx.jobs(job_ids)])
            return sum(self._acknowledge(tx, client_id, job_id) for job_id in job_ids)

        return self._change("acknowledge", work)

    def _acknowledge(self, tx: Transaction, client_id: str, job_id: str) -> bool:
        job = tx.jobs([job_id]).get(job_id)
        if job is None or job.state not in FINAL or client_id not in tx.subscribers(job_id):
            return False
        tx.record([transitions.handled(job, tx.now, client_id)])
        tx.unsubscribe(job_id, client_id)
        holder = tx.holder(job.unique_key) if job.unique_key else None
        if not tx.subscribers(job_id) and not job.persistent and holder != job:
            tx.remove(job, "subscribers")
        return True

    def _touch(self, tx: Transaction, client_id: str) -> None:
        """Whoever calls is alive."""
        tx.do("ZADD", self._keys.client_beats, "XX", tx.now, client_id)
