"""What the MySQL storage's own groups of operations build on."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from packhorse.storage.mysql.bell import Bell
from packhorse.storage.mysql.database import Database
from packhorse.storage.mysql.spelling import Raw
from packhorse.storage.mysql.statements import NOW
from packhorse.storage.sql.served import Served


class MySQLKeeper(Served):
    """A server, and the words of one database."""

    _db: Database
    _bell: Bell
    _sql: dict[str, str]

    def _moment(self) -> int | Raw:
        """What statements take as the time."""
        return Raw(NOW) if self._clock is None else self._clock()

    def _is_stored(self, tx: Any, job_id: str) -> bool:
        # Without a lock: in somebody else's transaction a lock on what is not there shuts out all that come after it.
        return tx.execute(self._sql["is_stored"], (job_id,)).fetchone() is not None

    def _lock_keys(self, tx: Any, keys: Collection[str]) -> None:
        if keys:
            tx.execute(self._sql["lock_keys"], ([(key,) for key in sorted(keys)],))
