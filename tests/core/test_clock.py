"""Durations and times as users write them and as Packhorse keeps them."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.clock import DAY, HOUR, MINUTE, SECOND, ManualClock, from_datetime, microseconds, now, to_datetime
from packhorse.core.errors import BadValue


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (0, 0),
        (10, 10 * SECOND),
        (0.5, SECOND // 2),
        (timedelta(days=1, microseconds=1), DAY + 1),
        ("90", 90 * SECOND),
        ("1.5", 1_500_000),
        ("250us", 250),
        ("100ms", 100_000),
        ("90s", 90 * SECOND),
        ("10m", 10 * MINUTE),
        ("1h30m", 90 * MINUTE),
        ("1h 30m", 90 * MINUTE),
        (" 2 D ", 2 * DAY),
        ("1.5h", 90 * MINUTE),
        ("2w", 14 * DAY),
        ("1d2h3m4s5ms6us", DAY + 2 * HOUR + 3 * MINUTE + 4 * SECOND + 5_006),
    ],
)
def test_a_duration_becomes_microseconds(written, kept):
    assert microseconds(written) == kept


@pytest.mark.parametrize(
    "written", ["", "soon", "10 parrots", "10min", "1h30", "m", "-5s", "1.2.3s", "5 x 3s", None, True, [], float("nan")]
)
def test_what_is_no_duration_is_refused_by_name(written):
    with pytest.raises(BadValue, match="delay"):
        microseconds(written, "delay")


@pytest.mark.parametrize("written", [-1, -0.001, timedelta(seconds=-1)])
def test_a_negative_duration_is_refused(written):
    with pytest.raises(BadValue, match="delay cannot be negative"):
        microseconds(written, "delay")


@pytest.mark.parametrize(
    "written", [1e12, 10**400, float("inf"), timedelta.max, "9999999w", "9" * 400, "9" * 400 + "d"]
)
def test_a_duration_that_no_storage_could_keep_is_refused_however_it_is_written(written):
    with pytest.raises(BadValue, match="delay is too long") as caught:
        microseconds(written, "delay")

    assert len(str(caught.value)) < 150


def test_a_long_timedelta_keeps_its_last_microsecond():
    assert microseconds(timedelta(days=400 * 365, microseconds=1)) == 400 * 365 * DAY + 1


def test_a_moment_in_any_zone_is_kept_as_the_same_moment():
    moment = datetime(2026, 7, 1, 12, 0, tzinfo=ZoneInfo("Europe/Ljubljana"))

    kept = from_datetime(moment)

    assert to_datetime(kept) == moment
    assert to_datetime(kept) == datetime(2026, 7, 1, 10, 0, tzinfo=UTC)
    assert to_datetime(kept).tzinfo is UTC


def test_a_moment_without_a_zone_is_refused_by_name():
    naive = datetime(2026, 7, 1, 12, tzinfo=UTC).replace(tzinfo=None)

    with pytest.raises(BadValue, match=r"run_at has no time zone: 2026-07-01T12:00:00 - use datetime\.now\(UTC\)"):
        from_datetime(naive, "run_at")


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-9, minutes=-30))])))
def test_a_datetime_comes_back_to_the_microsecond(moment):
    assert to_datetime(from_datetime(moment)) == moment


def test_now_is_this_machines_time():
    before = time.time_ns() // 1_000
    reading = now()
    after = time.time_ns() // 1_000

    assert before <= reading <= after


def test_a_turned_clock_stands_still_until_it_is_turned():
    clock = ManualClock(1_000)

    readings = [clock(), clock()]
    clock.turn("1m")
    readings.append(clock())
    clock.turn(timedelta(seconds=1))
    readings.append(clock())

    assert readings == [1_000, 1_000, 1_000 + MINUTE, 1_000 + MINUTE + SECOND]


def test_a_turned_clock_may_be_turned_back_and_set():
    clock = ManualClock(10 * SECOND)

    clock.turn(-2.5)
    turned_back = clock()
    clock.set(42)

    assert turned_back == 7_500_000
    assert clock() == 42
