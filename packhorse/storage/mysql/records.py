"""What is remembered, as MySQL finds it; and events for who follows them. The rest is in `sql/records.py`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import pymysql

from packhorse.clock import SECOND
from packhorse.storage.mysql.database import LOCK_PATIENCE
from packhorse.storage.mysql.keeper import MySQLKeeper
from packhorse.storage.mysql.link import Link
from packhorse.storage.mysql.trouble import LOST_RACES, code_of
from packhorse.storage.records import EventFilter
from packhorse.storage.sql import records

_LONG_WRITE = 10 * SECOND
"""After so long an event is shown although a transaction that came before it is still open."""


class Records(MySQLKeeper, records.Records):
    def _event_table(self, where: EventFilter) -> str:
        table = super()._event_table(where)
        by_job = where.job_id is not None or where.subject not in (None, "job")
        return f"{table} FORCE INDEX ({'packhorse_event_job' if by_job else 'PRIMARY'})"

    def _follow(self, sql: str, values: Sequence[Any]) -> list[Any]:
        """Events whose predecessors are all there. A reader that locks what it reads waits for those whose transaction
        is still open; if it waits too long, only what is old is shown."""
        seen = self._db.read("events", sql, values)
        if not seen:
            return []  # as nearly always

        def work(link: Link) -> list[Any] | None:
            try:
                link.script(["SET SESSION innodb_lock_wait_timeout = 1"])
                return link.rows(f"{sql} LOCK IN SHARE MODE", values)
            except pymysql.Error as error:
                if code_of(error) not in LOST_RACES:
                    raise
                return None
            finally:
                if link.connection.open:
                    link.script([f"SET SESSION innodb_lock_wait_timeout = {LOCK_PATIENCE}"])

        rows = self._db.read_with("events", work)
        if rows is None:
            old = self.now() - _LONG_WRITE
            rows = list(takewhile(lambda row: row[1] < old, seen))
        return rows
