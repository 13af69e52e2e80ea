"""What `top` does at a key, once the user has said yes. Each answers in words what became of it."""

from __future__ import annotations

from packhorse.cli.output import short_id
from packhorse.client.app import Packhorse
from packhorse.core.clock import DAY
from packhorse.core.job import State
from packhorse.monitor.filters import find_all
from packhorse.monitor.text import count_text
from packhorse.storage import BATCH
from packhorse.storage.records import Filter, Seen


class Deeds:
    """On one storage, in the name of one operator."""

    def __init__(self, client: Packhorse, by: str | None) -> None:
        self._client = client
        self._by = by

    def abort(self, job_id: str) -> str:
        self._client.get(job_id).abort(by=self._by)
        return f"job {short_id(job_id)} was asked to stop"

    def retry(self, job_id: str) -> str:
        self._client.get(job_id).retry(by=self._by)
        return f"job {short_id(job_id)} is queued again"

    def retry_cause(self, cause: str) -> str:
        """All that have failed so, and are dead or wait for their next attempt."""
        storage = self._client.storage
        where = Filter(states=frozenset({State.DEAD, State.RETRYING}), cause=cause)
        chosen = [(job.id, Seen.of(job)) for job in find_all(storage, where)]
        changed = 0
        for start in range(0, len(chosen), BATCH):
            ids, seen = zip(*chosen[start : start + BATCH], strict=True)
            changed += sum(answer.changed for answer in storage.retry(ids, by=self._by, seen=seen))
        return count_text(changed, "job is queued again", "jobs are queued again")

    def silence(self, cause: str) -> str:
        self._client.storage.silence_failure(cause, DAY, version=None, by=self._by)
        return "it is silenced for a day"

    def unsilence(self, cause: str) -> str:
        self._client.storage.silence_failure(cause, None, version=None, by=self._by)
        return "it is shown as before"

    def pause(self, queue: str) -> str:
        self._client.pause(queue, by=self._by)
        return f"{queue} is paused"

    def resume(self, queue: str) -> str:
        self._client.resume(queue, by=self._by)
        return f"{queue} is resumed"
