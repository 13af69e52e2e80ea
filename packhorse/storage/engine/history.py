"""Events that are not about a job, and what operators say about failures."""

from __future__ import annotations

from typing import Any

from packhorse.core.event import Event, Kind, Subject
from packhorse.storage.transaction import Transaction


def record_about(
    tx: Transaction,
    subject: Subject,
    kind: Kind,
    *,
    queue: str | None = None,
    owner: str | None = None,
    **facts: Any,
) -> None:
    """Record an event that is not about a job. Facts that are None are left out."""
    data = {name: value for name, value in facts.items() if value is not None}
    tx.record([Event(kind, tx.now, subject, queue=queue, owner=owner, data=data or None)])


def silence_failure(tx: Transaction, cause: str, duration: int | None, version: str | None, by: str | None) -> bool:
    """See `Storage.silence_failure`."""
    clears = duration is None and version is None
    until = None if duration is None else tx.now + duration
    found = tx.silence(cause, until, None if clears else by, version)
    if found is None:
        return False
    task, had_silence = found
    if not clears or had_silence:
        kind = Kind.UNSILENCED if clears else Kind.SILENCED
        record_about(tx, Subject.FAILURE, kind, queue=cause, task=task, duration=duration, version=version, by=by)
    return True
