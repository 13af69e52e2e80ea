from __future__ import annotations

import pytest

from bench.contender import Contender, Facts
from bench.plan import FULL, QUICK
from bench.time_estimate import TimeEstimate, crash_seconds, lap_seconds

FACTS = Facts(pace={"redis": 1_000}, slots=10, setting="", versions={}, has_many=True, has_tables=False)
PACKHORSE, HUEY = Contender("packhorse", "redis", FACTS), Contender("huey", "redis", FACTS)


def test_what_is_left_is_what_was_expected_of_the_parts_to_come():
    estimate = TimeEstimate({"a": 10, "b": 20, "c": 30})
    assert estimate.left() == 60

    estimate.note("a", 10)

    assert estimate.left() == 50


def test_what_is_left_grows_with_what_took_longer():
    estimate = TimeEstimate({"a": 10, "b": 20, "c": 30})

    estimate.note("a", 25)
    estimate.note("b", 20)

    assert estimate.left() == pytest.approx(45)


def test_nothing_is_left_when_all_is_done():
    estimate = TimeEstimate({"a": 10})

    estimate.note("a", 12)

    assert estimate.left() == 0


def test_only_the_first_lap_of_packhorse_has_stress():
    first, second = (lap_seconds(PACKHORSE, FULL, is_first=is_first) for is_first in (True, False))

    assert first - second > FULL.stress / 20_000
    assert lap_seconds(HUEY, FULL, is_first=True) - lap_seconds(HUEY, FULL, is_first=False) == 1 + FULL.idle_seconds


def test_the_whole_race_takes_less_than_an_hour_and_the_quick_one_less_than_five_minutes():
    def whole(plan, ours, peers):
        laps = sum(
            count * lap_seconds(one, plan, is_first=lap == 0)
            for lap in range(plan.laps)
            for one, count in ((PACKHORSE, ours), (HUEY, peers))
        )
        return laps + (crash_seconds([PACKHORSE] * ours + [HUEY] * peers, plan) if plan.crash_patience else 0)

    assert whole(FULL, 4, 13) < 50 * 60
    assert whole(QUICK, 2, 9) < 5 * 60
