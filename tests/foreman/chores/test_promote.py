"""Promote: due jobs come into line, and the next run is when the next one is due."""

from __future__ import annotations

from unittest.mock import create_autospec

import pytest

from packhorse.conformance.builders import add, in_state, stored
from packhorse.core.clock import HOUR, ManualClock
from packhorse.core.job import QUEUED, RETRYING, SCHEDULED
from packhorse.foreman.chores.promote import Promote
from packhorse.storage.contract import Storage
from packhorse.storage.memory import Memory


@pytest.mark.parametrize("state", [SCHEDULED, RETRYING])
def test_a_due_job_comes_into_line(storage: Memory, clock: ManualClock, state):
    job = in_state(storage, state)
    clock.turn("1h")

    Promote(storage).run()

    assert stored(storage, job.id).state is QUEUED


def test_a_job_that_is_not_due_stays(storage: Memory, clock: ManualClock):
    job = add(storage, delay=HOUR)
    clock.set(clock() + HOUR - 1)

    Promote(storage).run()

    assert stored(storage, job.id).state is SCHEDULED


@pytest.mark.parametrize(("delay", "again"), [(1_500, 0.0015), (2_000_000, 2.0), (HOUR, None)])
def test_it_runs_again_when_the_next_job_is_due_or_after_its_interval(storage: Memory, delay: int, again: float | None):
    add(storage, delay=delay)

    assert Promote(storage).run() == again


def test_after_promoting_it_knows_the_next_one(storage: Memory, clock: ManualClock):
    add(storage, delay=1_000)
    add(storage, delay=3_000)
    clock.turn("1ms")

    assert Promote(storage).run() == 0.002


def test_it_continues_immediately_while_more_are_due(storage: Memory, clock: ManualClock):
    for _ in range(501):
        add(storage, delay=1_000)
    clock.turn(1)
    promote = Promote(storage)

    assert [promote.run(), promote.run()] == [0.0, None]


def test_it_is_foreseen(storage: Memory):
    add(storage, delay=1_000)

    assert Promote(storage).due_in(storage.poll("foreman", [])) == 1_000


def test_it_writes_nothing_while_nothing_is_due():
    storage = create_autospec(Storage, instance=True)
    storage.next_due.return_value = 5

    Promote(storage).run()

    storage.promote.assert_not_called()
