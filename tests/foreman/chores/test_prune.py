"""Prune: what the settings say is kept for how long."""

from __future__ import annotations

from unittest.mock import create_autospec

import pytest

from packhorse.conformance.builders import in_state
from packhorse.core.clock import DAY, HOUR, MINUTE, SECOND, ManualClock
from packhorse.core.event import Kind
from packhorse.core.job import ABORTED, COMPLETED, DEAD
from packhorse.core.settings import Settings
from packhorse.foreman.chores.prune import Prune, retention
from packhorse.foreman.chores.runner import ChoreRunner
from packhorse.storage.contract import Storage
from packhorse.storage.memory import Memory
from packhorse.storage.records import ClientInfo, EventFilter, Pruned, Retention


class Steps:
    """A storage in which something is always left, and of which each step takes its time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.taken = 0
        self.storage = create_autospec(Storage, instance=True)
        self.storage.prune.side_effect = self._take

    def _take(self, keep: Retention, *, at: int) -> Pruned:
        self.taken += 1
        return Pruned(more=True)

    def time(self) -> float:
        return self.taken * self.seconds


def prune_of(storage: Storage, settings: Settings, *, may_rescue: bool = True) -> Prune:
    return Prune(storage, settings, lambda: storage.now() if may_rescue else None, time=lambda: 0.0)


def test_the_settings_say_how_long_things_are_kept():
    settings = Settings(keep_completed=1, keep_dead=2, keep_aborted=3, keep_events=4, client_timeout=5)

    assert retention(settings) == Retention(completed=1, dead=2, aborted=3, events=4, clients=5)


def test_finished_jobs_go_when_their_time_is_over(storage: Memory, clock: ManualClock):
    jobs = [in_state(storage, state) for state in (COMPLETED, DEAD, ABORTED)]
    prune = prune_of(storage, Settings(keep_completed=HOUR, keep_dead=DAY, keep_aborted=2 * DAY))
    left = []

    for wait in ("1h", "1d", "1d"):
        clock.turn(wait)
        prune.run()
        left.append([storage.get(job.id) is not None for job in jobs])

    assert left == [[False, True, True], [False, False, True], [False, False, False]]


def test_a_silent_client_is_forgotten(storage: Memory, clock: ManualClock):
    storage.join_client(ClientInfo("billing"))
    clock.turn("20h")
    storage.join_client(ClientInfo("shop"))
    clock.turn("10h")

    prune_of(storage, Settings()).run()

    assert [client.id for client in storage.clients()] == ["shop"]
    assert [event.owner for event in storage.events(EventFilter(kind=Kind.TIMED_OUT))] == ["billing"]


def test_while_nothing_is_certain_nothing_goes(storage: Memory, clock: ManualClock):
    storage.join_client(ClientInfo("billing"))
    jobs = [in_state(storage, state).id for state in (COMPLETED, DEAD, ABORTED)]
    events = storage.events(EventFilter())
    clock.turn("365d")

    assert prune_of(storage, Settings(), may_rescue=False).run() is None

    assert [client.id for client in storage.clients()] == ["billing"]
    assert [job.id for job in storage.get_many(jobs)] == jobs
    assert storage.events(EventFilter()) == events


def test_a_clock_that_is_set_meanwhile_makes_nothing_old(storage: Memory, clock: ManualClock):
    storage.join_client(ClientInfo("billing"))
    job = in_state(storage, COMPLETED)
    seen = clock()
    clock.turn("365d")

    Prune(storage, Settings(), lambda: seen, time=lambda: 0.0).run()

    assert [client.id for client in storage.clients()] == ["billing"]
    assert storage.get(job.id) is not None


def test_it_stops_when_the_clock_is_certain_no_more():
    steps, answers = Steps(0.0), iter([0, 0])

    assert Prune(steps.storage, Settings(), lambda: next(answers, None), steps.time).run() is None
    assert steps.taken == 2


def test_it_continues_while_there_is_more():
    storage = create_autospec(Storage, instance=True)
    storage.prune.side_effect = [Pruned(more=True), Pruned(more=True), Pruned()]

    assert prune_of(storage, Settings()).run() is None
    assert storage.prune.call_count == 3


@pytest.mark.parametrize(("seconds", "number", "rest"), [(1 / 1024, 256, 0.25), (1 / 8, 2, 0.25), (2.0, 1, 2.0)])
def test_one_run_is_bounded_by_time_and_rests_as_long_as_it_worked(seconds: float, number: int, rest: float):
    steps = Steps(seconds)

    assert Prune(steps.storage, Settings(), lambda: 0, steps.time).run() == rest
    assert steps.taken == number


@pytest.mark.parametrize(("timeout", "interval"), [(SECOND, 5.0), (15 * SECOND, 5.0), (MINUTE, 20.0), (DAY, 60.0)])
def test_it_comes_round_often_enough_to_notice_that_a_client_went(storage: Memory, timeout: int, interval: float):
    assert prune_of(storage, Settings(client_timeout=timeout)).interval == interval


def test_settings_that_are_read_again_say_how_long_things_are_kept(storage: Memory, clock: ManualClock):
    job = in_state(storage, COMPLETED)
    prune = prune_of(storage, Settings(keep_completed=DAY))
    chore_runner = ChoreRunner([prune])
    clock.turn("2h")
    prune.run()
    assert storage.get(job.id) is not None

    chore_runner.adjust(Settings(keep_completed=HOUR))
    prune.run()

    assert storage.get(job.id) is None
