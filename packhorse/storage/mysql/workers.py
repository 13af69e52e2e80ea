"""The heartbeat, in one trip for a whole crew. The rest about workers is in `sql/workers.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packhorse.storage.mysql.keeper import MySQLKeeper
from packhorse.storage.mysql.transaction import Transaction
from packhorse.storage.records import Beat
from packhorse.storage.sql import workers
from packhorse.storage.sql.rows import to_json


class Workers(MySQLKeeper, workers.Workers):
    def beat(self, reports: Mapping[str, Mapping[str, Any]]) -> Beat:
        def work(tx: Transaction) -> tuple[int, list[str]]:
            rows = [(tx.now, to_json(report), owner) for owner, report in sorted(reports.items())]
            answers = tx.executemany(self._sql["beat_worker"], rows)
            return tx.now, [row[2] for row, answer in zip(rows, answers, strict=True) if answer.rowcount == 0]

        now, unknown = self._write("beat", work)
        return Beat(now, unknown, self.stops(list(reports)))
