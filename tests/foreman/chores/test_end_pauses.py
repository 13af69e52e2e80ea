"""Queues that were paused for a while are resumed."""

from __future__ import annotations

from packhorse.core.clock import HOUR, MINUTE, ManualClock
from packhorse.core.event import Kind
from packhorse.foreman.chores.end_pauses import EndPauses
from packhorse.storage.memory import Memory
from packhorse.storage.records import EventFilter, QueueInfo
from packhorse.storage.transfer import Move, Stage


def paused(storage: Memory) -> set[str]:
    return {queue.name for queue in storage.queues() if queue.is_paused}


def test_a_pause_ends_when_its_time_is_over(storage: Memory, clock: ManualClock):
    storage.pause("short", duration=MINUTE)
    storage.pause("long", duration=HOUR)
    storage.pause("for ever")
    clock.turn("1m")

    EndPauses(storage).run()

    assert paused(storage) == {"long", "for ever"}
    (event,) = storage.events(EventFilter(kind=Kind.RESUMED))
    assert event.data == {"why": "its time is over"}


def test_of_a_queue_that_is_not_paused_no_pause_is_over():
    assert not QueueInfo("mail", paused_until=MINUTE).is_over(HOUR)


def test_it_is_foreseen(storage: Memory):
    storage.pause("short", duration=MINUTE)

    assert EndPauses(storage).due_in(storage.poll("foreman", [])) == MINUTE


def test_the_pauses_of_a_storage_that_is_moved_are_left_to_the_new_one(storage: Memory, clock: ManualClock):
    storage.pause("short", duration=MINUTE)
    storage.set_move(Move("copy", Stage.FROZEN, "redis://elsewhere", 1), expected=None)
    clock.turn("1h")

    assert EndPauses(storage).run() is None
    assert paused(storage) == {"short"}
