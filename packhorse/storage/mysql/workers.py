"""The heartbeat, in one trip for a whole crew. The rest about workers is in `sql/workers.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packhorse.storage.mysql.connection import MySQLConnection
from packhorse.storage.mysql.keeper import MySQLKeeper
from packhorse.storage.mysql.literals import RawSQL, literal
from packhorse.storage.records import HeartbeatReply
from packhorse.storage.sql import workers
from packhorse.storage.sql.rows import to_json
from packhorse.storage.sql.workers import stop_of


class Workers(MySQLKeeper, workers.Workers):
    def heartbeat(self, reports: Mapping[str, Mapping[str, Any]]) -> HeartbeatReply:
        if not reports:
            return HeartbeatReply(self.now(), [], [])
        cases = (f"WHEN {literal(owner)} THEN {literal(to_json(report))}" for owner, report in reports.items())
        said = RawSQL(f"CASE id {' '.join(cases)} END")
        owners = to_json(sorted(reports))

        def work(connection: MySQLConnection) -> HeartbeatReply:
            beat = connection.render(self._sql["beat"], (self._moment(), said, owners))
            beaten, told = connection.script([beat, connection.render(self._sql["beaten"], (self._moment(), owners))])
            unknown = []
            if beaten.rowcount < len(reports):
                known = {owner for (owner,) in connection.rows(self._sql["known_among"], (owners,))}
                unknown = [owner for owner in reports if owner not in known]
            return HeartbeatReply(
                int(told.rows[0][0]), unknown, [stop_of(row[1:]) for row in told.rows if row[1] is not None]
            )

        return self._db.read_with("beat", work)
