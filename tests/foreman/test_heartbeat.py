"""The heartbeat's word on rescuing; how it beats is seen with real foremen in `test_foreman.py`."""

from __future__ import annotations

from unittest.mock import create_autospec

import pytest

from packhorse.clock import SECOND, TurnedClock
from packhorse.foreman.crew import Crew
from packhorse.foreman.heartbeat import Heartbeat, skew_of
from packhorse.foreman.pulse import Record
from packhorse.storage.memory import Memory
from packhorse.storage.records import Outlook


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


NOW = 1_000.0
"""Seconds since the machine was started. They stand still: a test that is held up on a busy machine would else look as
if the storage's clock had been set back."""


@pytest.fixture
def heartbeat(clock: TurnedClock, monkeypatch: pytest.MonkeyPatch) -> Heartbeat:
    """One whose beats were accepted for longer than a lease."""
    monkeypatch.setattr("packhorse.foreman.heartbeat.boot_time", lambda: NOW)
    heartbeat = Heartbeat(
        Memory(clock),
        create_autospec(Crew, instance=True),
        create_autospec(Record, instance=True),
        heartbeat=60.0,
        lease=180.0,
        report=dict,
        wake=lambda: None,
    )
    for ago in (180.0, 120.0, 60.0, 0.0):
        heartbeat.steady.accepted(NOW - ago, NOW - ago, clock() / SECOND - ago)
    return heartbeat


def test_after_a_lease_of_beats_it_may_rescue_by_the_time_that_it_has_looked_at(
    heartbeat: Heartbeat, clock: TurnedClock
) -> None:
    assert heartbeat.steady_time() == clock()


@pytest.mark.parametrize("step", [3_600.0, -3_600.0])
def test_a_clock_that_was_set_since_the_last_beat_forbids_it(
    heartbeat: Heartbeat, clock: TurnedClock, step: float
) -> None:
    clock.turn(step)

    assert heartbeat.steady_time() is None


def test_the_time_that_the_lookout_has_seen_is_as_good(
    heartbeat: Heartbeat, clock: TurnedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = clock()
    heartbeat.heed(Outlook(now), NOW, NOW)
    monkeypatch.setattr(heartbeat._storage, "now", lambda: pytest.fail("it need not be asked"))

    assert heartbeat.steady_time() == now


def test_by_a_clock_that_was_set_before_the_lookout_saw_it_nobody_is_silent(
    heartbeat: Heartbeat, clock: TurnedClock
) -> None:
    clock.turn(3_600)
    heartbeat.heed(Outlook(clock()), NOW, NOW)

    assert heartbeat.steady_time() is None


def test_what_was_seen_a_while_ago_is_asked_for_again(heartbeat: Heartbeat, clock: TurnedClock) -> None:
    heartbeat.heed(Outlook(clock() - 10 * SECOND), NOW - 10.0, NOW - 10.0)

    assert heartbeat.steady_time() == clock()


def test_who_is_not_steady_need_not_ask_the_storage(heartbeat: Heartbeat) -> None:
    heartbeat.steady.interrupted()

    assert heartbeat.steady_time() is None


@pytest.mark.parametrize(
    ("wall", "took", "now", "skew"),
    [(110.0, 0.0, 100.0, 10.0), (100.0, 4.0, 100.0, 0.0), (90.0, 2.0, 100.0, -11.0), (101.0, 2.0, 100.0, 0.0)],
)
def test_what_may_lie_in_the_way_to_the_storage_is_no_skew(wall: float, took: float, now: float, skew: float):
    assert skew_of(wall, took, now) == skew
