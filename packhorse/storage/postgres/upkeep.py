"""Folding what was counted. Every call adds rows and changes none, so that no two wait for each other; after some
thousands of them a process sums them up, and so does the roll-up."""

from __future__ import annotations

from packhorse.job import Job
from packhorse.storage.postgres.keeper import PostgresKeeper
from packhorse.storage.sql import upkeep
from packhorse.storage.sql.rows import to_json
from packhorse.storage.sql.transaction import Transaction

FOLD_AFTER = 2_000
"""Rows that this process adds before it folds all that it finds."""
_AT_ONCE = 20_000


class Upkeep(PostgresKeeper, upkeep.Upkeep):
    def _fold(self) -> None:
        self._db.write("fold", self._fold_deltas)

    def _fold_deltas(self, tx: Transaction) -> bool:
        ((is_ours,),) = tx.execute(self._sql["lock_measures"]).fetchall()
        if is_ours:
            tx.execute(self._sql["fold_deltas"], (_AT_ONCE,)).fetchall()
        return bool(is_ours)

    def _roll_up(self, tx: Transaction) -> None:
        if self._fold_deltas(tx):
            super()._roll_up(tx)

    def _unsubscribed(self, tx: Transaction, jobs: list[Job]) -> list[Job]:
        asked = (to_json([job.id for job in jobs]),)
        wanted = {row[0] for row in tx.execute(self._sql["subscribed_among"], asked).fetchall()}
        return [job for job in jobs if job.id not in wanted]
