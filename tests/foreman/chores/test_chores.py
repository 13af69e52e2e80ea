"""All chores together, as a foreman has them."""

from __future__ import annotations

from packhorse.conformance.builders import add, in_state, stored
from packhorse.core.clock import SECOND, ManualClock
from packhorse.core.job import ABORTED, QUEUED, RUNNING
from packhorse.core.settings import Settings
from packhorse.foreman.chores import all_chores
from packhorse.foreman.chores.chore import PredictableChore
from packhorse.storage.memory import Memory
from packhorse.storage.records import Filter


def test_a_foreman_has_these_chores(storage: Memory):
    chores = all_chores(storage, Settings(), storage.now)

    assert [chore.name for chore in chores] == [
        "promote",
        "schedules",
        "expire",
        "end_pauses",
        "rescue",
        "enforce_limits",
        "prune",
        "drop_dead",
        "roll_up",
    ]
    assert [chore.interval for chore in chores] == [60.0, 60.0, 60.0, 600.0, 10.0, 600.0, 60.0, 60.0, 60.0]
    assert [isinstance(chore, PredictableChore) for chore in chores] == [True] * 6 + [False] * 3


def test_on_an_empty_storage_all_wait_for_their_interval(storage: Memory):
    chores = all_chores(storage, Settings(), storage.now)

    assert [chore.run() in (None, chore.interval) for chore in chores] == [True] * 9


def test_one_round_of_all_puts_everything_in_order(storage: Memory, clock: ManualClock):
    due = add(storage, delay=SECOND)
    stale = add(storage, expires=SECOND)
    lost = in_state(storage, RUNNING)
    clock.turn(60)

    for chore in all_chores(storage, Settings(), storage.now):
        chore.run()

    assert [stored(storage, job.id).state for job in (due, stale, lost)] == [QUEUED, ABORTED, QUEUED]


def test_doing_everything_twice_changes_nothing_more(storage: Memory, clock: ManualClock):
    in_state(storage, RUNNING)
    add(storage, delay=SECOND)
    clock.turn(60)
    chores = all_chores(storage, Settings(), storage.now) + all_chores(storage, Settings(), storage.now)
    for chore in chores[:9]:
        chore.run()
    jobs = storage.find(Filter()).jobs

    for chore in chores[9:]:
        chore.run()

    assert storage.find(Filter()).jobs == jobs
