"""Upkeep of the SQLite file, where events lie in packs and the log is to be folded. The rest is in `sql/upkeep.py`."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.storage.records import PollResult
from packhorse.storage.sql import upkeep
from packhorse.storage.sql.rows import Row
from packhorse.storage.sqlite.event_writer import events_of
from packhorse.storage.sqlite.keeper import SQLiteKeeper
from packhorse.storage.sqlite.statements import SQL
from packhorse.storage.sqlite.transaction import Transaction


class Upkeep(SQLiteKeeper, upkeep.Upkeep):
    def poll(self, foreman: str, owners: Sequence[str], *, after: int = 0) -> PollResult:
        self._db.checkpoint()  # here, because only foremen come by with this, every second, and nobody waits for them
        return super().poll(foreman, owners, after=after)

    def _drop_events(self, tx: Transaction, before: int, limit: int) -> tuple[int, bool]:
        oldest = tx.execute(SQL["oldest_events"], (limit + 1,)).fetchall()
        gone, more = (0, False) if not oldest or oldest[0][1] > before else self._drop_rows(tx, oldest, before, limit)
        # What leads to the events of jobs that are gone goes after them.
        first = tx.execute(SQL["oldest_events"], (1,)).fetchall()
        tx.execute(SQL["delete_old_packs"], (limit, min([before, *(at - 1 for _, at, _ in first)])))
        return gone, more

    def _drop_rows(self, tx: Transaction, oldest: Sequence[Row], before: int, limit: int) -> tuple[int, bool]:
        """Of these rows of (id, at, span), at most `limit` events that are over. Whole packs go unread; of one that is
        only partly over, the rest is put back."""
        newest = tx.execute(SQL["newest_event"]).fetchone()[0]
        gone = seen = 0
        more = False
        for number, at, span in oldest:
            if seen > limit:
                break
            size = span + 1
            if at <= before and number < newest and gone + size <= limit and seen + size <= limit + 1:
                tx.execute(SQL["delete_event"], (number,))
                gone += size
            else:
                events = list(events_of(tx.execute(SQL["event_row"], (number,)).fetchone()))
                window = events[: limit + 1 - seen]
                past = [event for event in window if event.at <= before and event.id < newest]
                dropped = {event.id for event in past[: limit - gone]}
                more = more or len(past) > len(dropped)
                gone += len(dropped)
                if dropped:
                    tx.execute(SQL["delete_event"], (number,))
                    tx.events.put_back([event for event in events if event.id not in dropped])
            seen += size
        return gone, more
