"""Clients and their subscriptions: an outcome is kept until every client that wants it has acknowledged it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from packhorse.core import transitions
from packhorse.core.errors import ClientNotFound
from packhorse.core.event import Kind, Subject
from packhorse.core.job import FINAL
from packhorse.storage.engine.history import record_about
from packhorse.storage.records import ClientInfo
from packhorse.storage.transaction import Transaction


def join(tx: Transaction, client: ClientInfo) -> None:
    known = tx.records(ClientInfo, [client.id]).get(client.id)
    tx.put(replace(client, joined_at=tx.now if known is None else known.joined_at, beat_at=tx.now))
    if known is None:
        record_about(tx, Subject.CLIENT, Kind.JOINED, owner=client.id, name=client.name)


def leave(tx: Transaction, client_id: str) -> bool:
    client = tx.records(ClientInfo, [client_id]).get(client_id)
    if client is None:
        return False
    tx.delete(client)
    record_about(tx, Subject.CLIENT, Kind.LEFT, owner=client_id)
    return True


def subscribe(tx: Transaction, client_id: str, job_ids: Sequence[str]) -> int:
    if not _note_sign_of_life(tx, client_id):
        raise ClientNotFound(client_id)
    jobs = tx.jobs(job_ids)
    tx.subscribers(jobs)
    for job_id in jobs:
        tx.subscribe(job_id, client_id)
    return sum(job_id in jobs for job_id in job_ids)


def acknowledge(tx: Transaction, client_id: str, job_ids: Sequence[str]) -> int:
    _note_sign_of_life(tx, client_id)
    jobs = tx.jobs(job_ids)
    subscribers = {job_id: set(clients) for job_id, clients in tx.subscribers(jobs).items()}
    handled = 0
    for job_id in job_ids:
        job, clients = jobs.get(job_id), subscribers.get(job_id, set())
        if job is None or job.state not in FINAL or client_id not in clients:
            continue
        handled += 1
        tx.record([transitions.handled(job, tx.now, client_id)])
        tx.unsubscribe(job_id, client_id)
        clients.discard(client_id)
        if not clients and not job.persistent and not _holds_its_key(tx, job_id, job.unique_key):
            tx.remove([job], "subscribers")
    return handled


def _holds_its_key(tx: Transaction, job_id: str, key: str | None) -> bool:
    holder = tx.holders([key]).get(key) if key else None
    return holder is not None and holder.id == job_id


def _note_sign_of_life(tx: Transaction, client_id: str) -> bool:
    """False: the client is unknown."""
    client = tx.records(ClientInfo, [client_id]).get(client_id)
    if client is None:
        return False
    tx.put(replace(client, beat_at=tx.now))
    return True
