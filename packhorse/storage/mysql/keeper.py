"""What the MySQL storage's own groups of operations build on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from typing import Any

from packhorse import clock
from packhorse.storage.moving import Move, decode
from packhorse.storage.mysql.bell import Bell
from packhorse.storage.mysql.database import Database
from packhorse.storage.mysql.spelling import Raw
from packhorse.storage.mysql.statements import NOW
from packhorse.storage.sql.keeper import Keeper


class MySQLKeeper(Keeper):
    """A server, and the words of one database."""

    _db: Database
    _bell: Bell
    _clock: clock.Now | None  # the server's own, unless a test brings one
    _sql: dict[str, str]
    _due_seen: tuple[float, int | None] | None = None  # when a call that found no job was told when the next is due

    def _moment(self) -> int | Raw:
        """What statements take as the time."""
        return Raw(NOW) if self._clock is None else self._clock()

    def _mark_of(self, tx: Any) -> Move | None:
        return decode(tx.mark_text)

    def _is_stored(self, tx: Any, job_id: str) -> bool:
        # Without a lock: in somebody else's transaction a lock on what is not there shuts out all that come after it.
        return tx.execute(self._sql["is_stored"], (job_id,)).fetchone() is not None

    def _lock_keys(self, tx: Any, keys: Collection[str]) -> None:
        if keys:
            tx.execute(self._sql["lock_keys"], ([(key,) for key in sorted(keys)],))

    @abstractmethod
    def _counting(self, rows: int) -> None:
        """So many rows were added to what is to be folded."""
