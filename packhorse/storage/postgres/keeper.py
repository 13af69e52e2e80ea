"""What the PostgreSQL storage's own groups of operations build on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from typing import Any

from packhorse import clock
from packhorse.storage.postgres.bell import Bell
from packhorse.storage.postgres.database import Database
from packhorse.storage.sql.keeper import Keeper
from packhorse.storage.sql.rows import to_json


class PostgresKeeper(Keeper):
    """A server, its bell, and the words of one schema."""

    _db: Database
    _bell: Bell
    _clock: clock.Now | None  # the server's own, unless a test brings one
    _sql: dict[str, str]

    def _moment(self) -> int | None:
        """What statements take as the time: None for the server's own."""
        return None if self._clock is None else self._clock()

    def _lock_keys(self, tx: Any, keys: Collection[str]) -> None:
        if keys:
            tx.execute(self._sql["lock_keys"], (to_json(list(keys)),)).fetchall()

    @abstractmethod
    def _counting(self, rows: int) -> None:
        """So many rows were added to what is to be folded."""
