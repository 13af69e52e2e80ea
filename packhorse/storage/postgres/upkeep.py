"""Folding what was counted. Every call adds rows and changes none, so that no two wait for each other; after some
thousands of them a process sums them up, and so does the roll-up."""

from __future__ import annotations

import time

from packhorse.core import clock
from packhorse.core.job import Job
from packhorse.storage.postgres.keeper import PostgresKeeper
from packhorse.storage.records import Retention
from packhorse.storage.sql import upkeep
from packhorse.storage.sql.rows import to_json
from packhorse.storage.sql.server import FOLD_AFTER
from packhorse.storage.sql.transaction import Transaction

_AT_ONCE = 20_000


_FRESH = 0.02
"""Seconds for which it is believed what reserving in vain has told."""


class Upkeep(PostgresKeeper, upkeep.Upkeep):
    def next_due(self) -> int | None:
        seen, self._due_seen = self._due_seen, None
        if seen is not None and self._clock is None and time.monotonic() - seen[0] < _FRESH:
            due_in = None if seen[1] is None else seen[1] - round((time.monotonic() - seen[0]) * clock.SECOND)
        else:
            ((due_in,),) = self._db.read("next_due", self._sql["next_due"], (self._moment(),))
        return self._unless_moved(due_in)

    def expire(self, *, limit: int = 500) -> int:
        ((is_any,),) = self._db.read("expire", self._sql["has_expired"], (self._moment(),))
        return super().expire(limit=limit) if is_any else 0

    def _drop_events(self, tx: Transaction, before: int, limit: int) -> tuple[int, bool]:
        oldest = tx.execute(self._sql["oldest_event"]).fetchone()
        if oldest is None or oldest[0] > before:
            return 0, False
        tx.execute(self._sql["lock_old_events"]).fetchall()
        gone, more, whole = 0, False, []
        for row_id, number, size in tx.execute(self._sql["old_events"], (limit + 1, before)).fetchall():
            dropped = min(number, limit - gone)
            if dropped == size:
                whole.append(row_id)
            elif dropped:
                tx.execute(self._sql["trim_pack"], (row_id, dropped))
            gone, more = gone + dropped, more or dropped < number
        tx.execute(self._sql["delete_events"], (to_json(whole),))
        return gone, more

    def _may_have_lost(self, called_at: int, lease: int) -> bool:
        return bool(self._db.read("rescue", self._sql["has_lost"], (called_at, called_at, lease))[0][0])

    def _may_have_old(self, keep: Retention, now: int) -> bool:
        ages = (keep.clients, keep.completed, keep.dead, keep.aborted, keep.events)
        return bool(self._db.read("prune", self._sql["has_old"], [now - age for age in ages])[0][0])

    def _fold(self) -> None:
        self._db.write("fold", self._fold_deltas)

    def _fold_deltas(self, tx: Transaction) -> bool:
        """Sum some up; False: somebody else is just about it."""
        ((is_ours,),) = tx.execute(self._sql["lock_measures"]).fetchall()
        if is_ours:
            ((number,),) = tx.execute(self._sql["fold_deltas"], (_AT_ONCE,)).fetchall()
            if number == _AT_ONCE:
                self._unfolded = FOLD_AFTER  # there are more: they come next
        return bool(is_ours)

    def _roll_up(self, tx: Transaction) -> None:
        if self._fold_deltas(tx):
            super()._roll_up(tx)

    def _unsubscribed(self, tx: Transaction, jobs: list[Job]) -> list[Job]:
        asked = (to_json([job.id for job in jobs]),)
        wanted = {row[0] for row in tx.execute(self._sql["subscribed_among"], asked).fetchall()}
        return [job for job in jobs if job.id not in wanted]
