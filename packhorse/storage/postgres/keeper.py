"""What the PostgreSQL storage's own groups of operations build on."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from packhorse.core import clock
from packhorse.storage.postgres.database import Database
from packhorse.storage.postgres.notifier import Notifier
from packhorse.storage.sql.rows import to_json
from packhorse.storage.sql.server import Served

_LONG_WRITE = 10 * clock.SECOND
"""After so long an event is shown although a transaction that began before it is still open."""


class PostgresKeeper(Served):
    """A server, its bell, and the words of one schema."""

    _db: Database
    _notifier: Notifier
    _sql: dict[str, str]

    def _moment(self) -> int | None:
        """What statements take as the time: None for the server's own."""
        return None if self._clock is None else self._clock()

    def _settled(self) -> tuple[str, list[Any]]:
        """Events of transactions older than any that is still open; and all that are too old to wait for one that
        somebody has forgotten to end."""
        oldest_open = "(pg_snapshot_xmin(pg_current_snapshot())::text::bigint % 4294967296)::text::xid"
        is_old = self._is_old(f"(SELECT coalesce(?::bigint, {self._dialect.prefix}now()) - {_LONG_WRITE})")
        return f"(age(xmin) > age({oldest_open}) OR ({is_old}))", [self._moment()] * is_old.count("?")

    def _lock_keys(self, tx: Any, keys: Collection[str]) -> None:
        if keys:
            tx.execute(self._sql["lock_keys"], (to_json(list(keys)),)).fetchall()
