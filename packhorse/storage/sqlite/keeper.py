"""What the SQLite storage's own groups of operations build on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from packhorse.core.job import Job
from packhorse.storage.sql.keeper import Keeper
from packhorse.storage.sql.rows import to_json
from packhorse.storage.sqlite.database import Database
from packhorse.storage.sqlite.notifier import Notifier
from packhorse.storage.sqlite.statements import DIALECT, SQL


class SQLiteKeeper(Keeper):
    """A file, its bell, and its words."""

    _db: Database
    _notifier: Notifier
    _sql = SQL
    _dialect = DIALECT

    def _before_removing(self, tx: Any, jobs: Sequence[Job]) -> None:
        numbers = to_json([job.seq for job in jobs])
        tx.execute(SQL["remember_last_seq"], (max(job.seq for job in jobs),))
        tx.execute(SQL["keep_packs_of_gone"], (tx.now, numbers))
        tx.execute(SQL["delete_large_args"], (numbers,))
