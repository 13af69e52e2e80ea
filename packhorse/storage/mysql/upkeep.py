"""Folding what was counted. Every call adds rows and changes none, so that no two wait for each other; after some
thousands of them a process sums them up, and so does the roll-up."""

from __future__ import annotations

import time

from packhorse.core.clock import SECOND
from packhorse.core.job import Job
from packhorse.core.metrics import DAYS, HOURS, MINUTES
from packhorse.storage.mysql.keeper import MySQLKeeper
from packhorse.storage.records import Retention
from packhorse.storage.sql import upkeep
from packhorse.storage.sql.rows import to_json
from packhorse.storage.sql.transaction import Transaction

_AT_ONCE = 1_000
_TIMES = 20


_FRESH = 0.02
"""Seconds for which it is believed what reserving in vain has told."""


class Upkeep(MySQLKeeper, upkeep.Upkeep):
    def next_due(self) -> int | None:
        seen, self._due_seen = self._due_seen, None
        if seen is not None and self._clock is None and (since := time.monotonic() - seen[0]) < _FRESH:
            due_in = None if seen[1] is None else seen[1] - round(since * SECOND)
        else:
            ((due_in,),) = self._db.read("next_due", self._sql["next_due"], (self._moment(),))
        return self._unless_moved(due_in)

    def promote(self, *, limit: int = 500) -> int:
        return super().promote(limit=limit) if self._is_late() else 0

    def expire(self, *, limit: int = 500) -> int:
        return super().expire(limit=limit) if self._is_late() else 0

    def _is_late(self) -> bool:
        """A look before a transaction is begun: mostly there is nothing to do."""
        return bool(self._db.read("promote", self._sql["late"], (self._moment(),))[0][0])

    def _may_have_lost(self, called_at: int, lease: int) -> bool:
        return bool(self._db.read("rescue", self._sql["has_lost"], (called_at, called_at, lease))[0][0])

    def _may_have_old(self, keep: Retention, now: int) -> bool:
        ages = (keep.clients, keep.completed, keep.dead, keep.aborted, keep.events)
        return bool(self._db.read("prune", self._sql["has_old"], [now - age for age in ages])[0][0])

    def roll_up(self) -> None:
        ages = [level.keep + level.width for level in (MINUTES, HOURS, DAYS)]
        if self._db.read("roll_up", self._sql["has_to_fold"], (self._moment(), *ages))[0][0]:
            super().roll_up()

    def _fold(self) -> None:
        self._db.write("fold", self._fold_deltas)

    def _fold_deltas(self, tx: Transaction) -> bool:
        """False: somebody else is at it."""
        if not tx.execute(self._sql["lock_measures"]).fetchall():
            return False
        for _ in range(_TIMES):
            numbers = [row[0] for row in tx.execute(self._sql["unfolded"], (_AT_ONCE,)).fetchall()]
            if numbers:
                tx.execute(self._sql["fold_deltas"], (to_json(numbers),))
                tx.execute(self._sql["delete_deltas"], (to_json(numbers),))
            if len(numbers) < _AT_ONCE:
                break
        return True

    def _roll_up(self, tx: Transaction) -> None:
        if self._fold_deltas(tx):
            super()._roll_up(tx)

    def _unsubscribed(self, tx: Transaction, jobs: list[Job]) -> list[Job]:
        asked = (to_json([job.id for job in jobs]),)
        wanted = {row[0] for row in tx.execute(self._sql["subscribed_among"], asked).fetchall()}
        return [job for job in jobs if job.id not in wanted]
