"""Roll up: old minutes of the charts become hours."""

from __future__ import annotations

from packhorse.conformance.builders import add
from packhorse.core.clock import ManualClock
from packhorse.foreman.chores.roll_up import RollUp
from packhorse.storage.memory import Memory
from packhorse.storage.records import Span


def test_old_minutes_become_hours(storage: Memory, clock: ManualClock):
    add(storage)
    clock.turn("1m")
    add(storage)
    clock.turn("1d")

    again = RollUp(storage).run()

    assert again is None
    assert [point.values["added"] for point in storage.series(Span.TWO_DAYS)] == [2]
    assert {key[0] for key in storage._tables.measures} == {"hour"}
