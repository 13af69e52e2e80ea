"""What the MySQL storage's own groups of operations build on."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from packhorse.storage.mysql.database import Database
from packhorse.storage.mysql.literals import RawSQL
from packhorse.storage.mysql.notifier import Notifier
from packhorse.storage.mysql.statements import NOW
from packhorse.storage.sql.server import Served


class MySQLKeeper(Served):
    """A server, and the words of one database."""

    _db: Database
    _notifier: Notifier
    _sql: dict[str, str]

    def _moment(self) -> int | RawSQL:
        """What statements take as the time."""
        return RawSQL(NOW) if self._clock is None else self._clock()

    def _is_stored(self, tx: Any, job_id: str) -> bool:
        # Without a lock: in somebody else's transaction a lock on what is not there shuts out all that come after it.
        return tx.execute(self._sql["is_stored"], (job_id,)).fetchone() is not None

    def _lock_keys(self, tx: Any, keys: Collection[str]) -> None:
        if keys:
            tx.execute(self._sql["lock_keys"], ([(key,) for key in sorted(keys)],))
