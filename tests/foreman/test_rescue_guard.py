from __future__ import annotations

import pytest

from packhorse.foreman.rescue_guard import RescueGuard

LEASE, HEARTBEAT = 15.0, 5.0
EPOCH = 1_800_000_000.0


@pytest.fixture
def steady() -> RescueGuard:
    return RescueGuard(LEASE, HEARTBEAT)


def beat(steady: RescueGuard, *times: float, step: float = 0.0, took: float = 0.01) -> None:
    """Beats accepted at these times of our clock, by a storage whose clock was stepped by so many seconds."""
    for at in times:
        steady.accepted(at - took, at, EPOCH + at + step)


def test_rescuing_is_not_allowed_at_the_start(steady: RescueGuard) -> None:
    assert not steady.may_rescue(0.0)


def test_a_lease_of_heartbeats_without_a_gap_allows_rescuing(steady: RescueGuard) -> None:
    beat(steady, 0, 5, 10)
    assert not steady.may_rescue(10)

    beat(steady, 15)

    assert steady.may_rescue(15)


def test_it_lasts_as_long_as_the_beats_do(steady: RescueGuard) -> None:
    beat(steady, *range(0, 1_000, 5))

    assert steady.may_rescue(1_002)
    assert not steady.may_rescue(1_003)


def test_after_a_gap_a_whole_lease_has_to_pass_again(steady: RescueGuard) -> None:
    beat(steady, 0, 5, 10, 15)

    beat(steady, 23, 28, 33)
    assert not steady.may_rescue(33)
    beat(steady, 38)

    assert steady.may_rescue(38)


def test_beats_that_come_a_little_late_are_no_gap(steady: RescueGuard) -> None:
    beat(steady, 0, 7, 14, 21)

    assert steady.may_rescue(21)


@pytest.mark.parametrize("step", [1.5, -1.5, 3_600.0])
def test_a_step_of_the_storages_clock_ends_it(steady: RescueGuard, step: float) -> None:
    beat(steady, 0, 5, 10, 15)

    beat(steady, 20, step=step)
    assert not steady.may_rescue(20)
    beat(steady, 25, 30, 35, step=step)

    assert steady.may_rescue(35)


def test_small_steps_that_add_up_within_a_lease_are_seen_too(steady: RescueGuard) -> None:
    for number, at in enumerate(range(0, 25, 5)):
        beat(steady, at, step=number * 0.9)

    assert not steady.may_rescue(20)


def test_slow_drift_over_days_is_harmless(steady: RescueGuard) -> None:
    for at in range(0, 86_400, 5):
        beat(steady, at, step=at * 0.0005)

    assert steady.may_rescue(86_395)


def test_a_slow_answer_is_not_taken_for_a_step(steady: RescueGuard) -> None:
    beat(steady, 0, 5, 10)
    steady.accepted(12.0, 16.0, EPOCH + 12.1)  # the storage took four seconds to answer

    assert steady.may_rescue(16.0)


def test_a_beat_that_waited_for_the_end_of_an_outage_is_the_first_of_a_whole_lease(steady: RescueGuard) -> None:
    beat(steady, 0, 5, 10, 15)
    steady.accepted(20.0, 40.0, EPOCH + 40.0)  # others may still wait for their answers

    assert not steady.may_rescue(40.0)
    beat(steady, 40.1, 45.1, 50.1)
    assert not steady.may_rescue(50.1)
    beat(steady, 55.1)
    assert steady.may_rescue(55.1)


def test_being_forgotten_ends_it(steady: RescueGuard) -> None:
    beat(steady, 0, 5, 10, 15)

    steady.interrupted()

    assert not steady.may_rescue(15)


@pytest.mark.parametrize("step", [1.5, -1.5, 3_600.0, -3_600.0])
def test_a_step_of_the_clock_is_seen_before_the_next_beat_by_who_asks(steady: RescueGuard, step: float) -> None:
    beat(steady, 0, 5, 10, 15)

    assert steady.agrees(17.0, 17.1, EPOCH + 17.05)
    assert not steady.agrees(17.0, 17.1, EPOCH + 17.05 + step)


def test_who_has_never_beaten_cannot_tell_how_the_clock_goes(steady: RescueGuard) -> None:
    assert not steady.agrees(0.0, 0.1, EPOCH)
