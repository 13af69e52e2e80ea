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
from packhorse.storage.mysql.trouble import LOST_RACES, NOT_ALLOWED, code_of
from packhorse.storage.records import EventFilter
from packhorse.storage.sql import records
from packhorse.storage.sql.rows import to_json

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
        rows = self._db.read_with("events", lambda link: _locked(link, sql, values))
        if rows is None:
            old = self._old_among([row[0] for row in seen])
            return list(takewhile(lambda row: row[0] in old, seen))
        # None that came only now: a number may have been given out before it whose row is not there yet.
        last = seen[-1][0]
        return [row for row in rows if row[0] <= last]

    def _old_among(self, numbers: Sequence[int]) -> set[int]:
        """Those of these events that were written so long ago that nobody need wait for what came before them."""
        table = f"{self._dialect.prefix}event FORCE INDEX (PRIMARY)"
        sql = f"SELECT id FROM {table} WHERE id IN ($1*) AND {self._is_old('$2')}"
        rows = self._db.read("events", sql, (to_json(numbers), self.now() - _LONG_WRITE))
        return {row[0] for row in rows}


def _locked(link: Link, sql: str, values: Sequence[Any]) -> list[Any] | None:
    """What a query finds, once everybody who is at it has ended. None: somebody did not, for a second, or this user may
    lock nothing."""
    try:
        link.script(["SET SESSION innodb_lock_wait_timeout = 1"])
        rows: list[Any] | None = link.rows(f"{sql} LOCK IN SHARE MODE", values)
    except pymysql.Error as error:
        if code_of(error) not in LOST_RACES | NOT_ALLOWED:
            _be_patient_again(link)
            raise
        rows = None
    # Not after an interrupt: half an answer may still be on its way, and this would be taken for what has failed.
    _be_patient_again(link)
    return rows


def _be_patient_again(link: Link) -> None:
    if link.connection.open:
        link.script([f"SET SESSION innodb_lock_wait_timeout = {LOCK_PATIENCE}"])
