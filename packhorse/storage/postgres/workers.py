"""The heartbeat, in one statement for a whole crew. The rest about workers is in `sql/workers.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packhorse.core.job import Job
from packhorse.storage.postgres.connection import can_be_stored
from packhorse.storage.postgres.keeper import PostgresKeeper
from packhorse.storage.records import HeartbeatReply
from packhorse.storage.sql import workers
from packhorse.storage.sql.rows import to_json
from packhorse.storage.sql.workers import stop_of


class Workers(PostgresKeeper, workers.Workers):
    def subscribers(self, job_id: str) -> list[str]:
        return super().subscribers(job_id) if can_be_stored(job_id) else []

    def outcomes_for(self, client_id: str, *, limit: int = 100) -> list[Job]:
        return super().outcomes_for(client_id, limit=limit) if can_be_stored(client_id) else []

    def heartbeat(self, reports: Mapping[str, Mapping[str, Any]]) -> HeartbeatReply:
        said = [{"owner": owner, "report": to_json(report)} for owner, report in sorted(reports.items())]
        rows = self._db.run("beat", self._sql["beat"], (to_json(said), self._moment()))
        known = {owner for owner, found, *_ in rows if found is not None}
        now = rows[0][2] if rows else self.now()
        stops = [stop_of((job_id, owner, fence, reason)) for owner, _, _, job_id, fence, reason in rows if job_id]
        return HeartbeatReply(now, [owner for owner in reports if owner not in known], stops)
