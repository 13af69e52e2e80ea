"""When schedules tick, above all on the two nights a year when the clock is changed."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.core.clock import DAY, HOUR, MINUTE, SECOND, from_datetime, to_datetime
from packhorse.core.cron import Cron
from packhorse.core.errors import BadCron

LJUBLJANA = "Europe/Ljubljana"
# On 2026-03-29 the clock goes from 02:00 to 03:00 there (01:00 UTC); on 2026-10-25 from 03:00 to 02:00 (01:00 UTC).


def utc(*parts: int) -> int:
    return from_datetime(datetime(*parts, tzinfo=UTC))


def ticks(text: str, after: int, count: int, tz: str = "UTC") -> list[str]:
    found = Cron(text, tz).between(after, after + 20_000 * DAY, count)
    return [f"{to_datetime(tick):%Y-%m-%d %H:%M:%S}" for tick in found]


def test_a_tick_comes_strictly_after_the_moment_asked_for():
    cron = Cron("30 2 * * *")

    assert cron.next_after(utc(2026, 5, 1, 2, 29, 59)) == utc(2026, 5, 1, 2, 30)
    assert cron.next_after(utc(2026, 5, 1, 2, 30) - 1) == utc(2026, 5, 1, 2, 30)
    assert cron.next_after(utc(2026, 5, 1, 2, 30)) == utc(2026, 5, 2, 2, 30)
    assert cron.next_after(utc(2026, 5, 1, 2, 30) + 1) == utc(2026, 5, 2, 2, 30)


def test_a_zone_shifts_the_ticks():
    assert ticks("30 7 * * *", utc(2026, 1, 10), 1, LJUBLJANA) == ["2026-01-10 06:30:00"]
    assert ticks("30 7 * * *", utc(2026, 7, 10), 1, LJUBLJANA) == ["2026-07-10 05:30:00"]


def test_a_leap_day_is_waited_for():
    assert ticks("0 12 29 2 *", utc(2026, 1, 1), 2) == ["2028-02-29 12:00:00", "2032-02-29 12:00:00"]


def test_a_leap_day_on_a_sunday_is_waited_for_across_the_year_2100():
    assert ticks("0 0 29 2 */7", utc(2089, 1, 1), 1) == ["2128-02-29 00:00:00"]


def test_the_year_ends_without_a_gap():
    assert ticks("*/30 * * * *", utc(2026, 12, 31, 23), 3) == [
        "2026-12-31 23:30:00",
        "2027-01-01 00:00:00",
        "2027-01-01 00:30:00",
    ]
    assert ticks("0 0 1 1 *", utc(2026, 12, 31, 23, 59, 59), 1) == ["2027-01-01 00:00:00"]


def test_six_fields_begin_with_the_seconds():
    assert ticks("*/20 59 23 * * *", utc(2026, 5, 1), 4) == [
        "2026-05-01 23:59:00",
        "2026-05-01 23:59:20",
        "2026-05-01 23:59:40",
        "2026-05-02 23:59:00",
    ]


@pytest.mark.parametrize(
    ("nickname", "tick"),
    [
        ("@hourly", "2026-05-06 11:00:00"),
        ("@daily", "2026-05-07 00:00:00"),
        ("@midnight", "2026-05-07 00:00:00"),
        ("@weekly", "2026-05-10 00:00:00"),
        ("@monthly", "2026-06-01 00:00:00"),
        ("@yearly", "2027-01-01 00:00:00"),
        ("@annually", "2027-01-01 00:00:00"),
        (" @Daily ", "2026-05-07 00:00:00"),
    ],
)
def test_a_nickname_stands_for_its_fields(nickname, tick):
    assert ticks(nickname, utc(2026, 5, 6, 10, 30), 1) == [tick]


def test_an_interval_is_counted_from_1970():
    cron = Cron("@every 90s")

    assert cron.next_after(0) == 90 * SECOND
    assert cron.next_after(90 * SECOND - 1) == 90 * SECOND
    assert cron.next_after(90 * SECOND) == 180 * SECOND
    assert Cron("@every  1h30m").between(0, DAY, 3) == [90 * MINUTE, 180 * MINUTE, 270 * MINUTE]


@pytest.mark.parametrize(
    "text", ["@every", "@every soon", "@every 0s", "@every 10ms", "@every -5s", "@every 99999999w"]
)
def test_a_wrong_interval_is_refused_with_an_example(text):
    with pytest.raises(BadCron, match=r"the interval .*@every 90s"):
        Cron(text)


def test_a_skipped_time_runs_at_the_first_moment_after_the_gap():
    assert ticks("30 2 * * *", utc(2026, 3, 27, 12), 3, LJUBLJANA) == [
        "2026-03-28 01:30:00",
        "2026-03-29 01:00:00",
        "2026-03-30 00:30:00",
    ]


def test_a_repeated_time_runs_the_first_time_only():
    assert ticks("30 2 * * *", utc(2026, 10, 23, 12), 3, LJUBLJANA) == [
        "2026-10-24 00:30:00",
        "2026-10-25 00:30:00",
        "2026-10-26 01:30:00",
    ]


def test_asking_within_the_repeated_hour_does_not_give_a_time_that_is_past():
    second_round = utc(2026, 10, 25, 1, 10)  # 02:10 on the wall, for the second time

    assert ticks("30 2 * * *", second_round, 1, LJUBLJANA) == ["2026-10-26 01:30:00"]


def test_seconds_do_not_change_what_a_clock_change_does():
    assert ticks("15 30 2 * * *", utc(2026, 3, 28, 12), 2, LJUBLJANA) == ["2026-03-29 01:00:00", "2026-03-30 00:30:15"]
    assert ticks("15 30 2 * * *", utc(2026, 10, 24, 12), 2, LJUBLJANA) == ["2026-10-25 00:30:15", "2026-10-26 01:30:15"]


def test_several_skipped_times_run_once_together():
    assert ticks("0,20,40 2,3 * * *", utc(2026, 3, 29), 4, LJUBLJANA) == [
        "2026-03-29 01:00:00",
        "2026-03-29 01:20:00",
        "2026-03-29 01:40:00",
        "2026-03-30 00:00:00",
    ]


@pytest.mark.parametrize("night", [utc(2026, 3, 28, 22), utc(2026, 10, 24, 22)])
def test_every_hour_is_every_hour_on_both_nights(night):
    found = Cron("0 * * * *", LJUBLJANA).between(night, night + 8 * HOUR, 100)

    assert found == [night + hours * HOUR for hours in range(1, 9)]


def test_a_text_with_a_star_repeats_the_repeated_hour():
    assert ticks("*/30 2 * * *", utc(2026, 10, 24, 12), 4, LJUBLJANA) == [
        "2026-10-25 00:00:00",
        "2026-10-25 00:30:00",
        "2026-10-25 01:00:00",
        "2026-10-25 01:30:00",
    ]


def test_a_text_with_a_star_skips_the_skipped_hour():
    assert ticks("*/30 2 * * *", utc(2026, 3, 28, 12), 1, LJUBLJANA) == ["2026-03-30 00:00:00"]


@pytest.mark.parametrize(
    ("tz", "midnight"),
    [  # the clock changes by half an hour; at midnight; by an hour in either direction
        ("Australia/Lord_Howe", utc(2026, 4, 4, 13)),
        ("Australia/Lord_Howe", utc(2026, 10, 3, 13)),
        ("America/Havana", utc(2026, 3, 8, 4)),
        ("America/Havana", utc(2026, 11, 1, 4)),
        (LJUBLJANA, utc(2026, 3, 28, 23)),
        (LJUBLJANA, utc(2026, 10, 24, 22)),
    ],
)
@pytest.mark.parametrize("text", ["*/10 * * * *", "*/20 1-5 * * *", "5 */2 * * *", "30 * 1,4,5,8,25,29 * *"])
def test_a_text_with_a_star_ticks_whenever_the_clock_on_the_wall_agrees(text, tz, midnight):
    fields = CronSim(text, datetime(2000, 1, 1, tzinfo=UTC))
    expected = []
    for tick in range(midnight, midnight + 8 * HOUR, MINUTE):
        wall = to_datetime(tick).astimezone(ZoneInfo(tz))
        if wall.minute in fields.minutes and wall.hour in fields.hours and fields.match_day(wall.date()):
            expected.append(tick)

    for start in range(midnight - 1, midnight + 8 * HOUR, 47 * MINUTE):
        found = Cron(text, tz).between(start, midnight + 8 * HOUR - 1, 10_000)
        assert found == [tick for tick in expected if tick > start]


def test_missed_ticks_are_given_oldest_first_up_to_the_limit():
    cron = Cron("0 * * * *")
    after, until = utc(2026, 5, 1, 0), utc(2026, 5, 1, 5)

    assert cron.between(after, until, 100) == [utc(2026, 5, 1, hour) for hour in (1, 2, 3, 4, 5)]
    assert cron.between(after, until, 2) == [utc(2026, 5, 1, 1), utc(2026, 5, 1, 2)]
    assert cron.between(after, until, 0) == []
    assert cron.between(after, after + 1, 100) == []
    assert cron.between(until, after, 100) == []


fields = st.tuples(
    st.sampled_from(["*", "*/7", "0", "59", "10-20", "5,35"]),
    st.sampled_from(["*", "*/3", "0", "2", "23", "1-4"]),
    st.sampled_from(["*", "1", "31", "29", "L", "*/10"]),
    st.sampled_from(["*", "3,10", "JAN", "2-11"]),
    st.sampled_from(["*", "MON-FRI", "0", "7", "SUN#1", "5L"]),
)
texts = st.one_of(
    fields.map(" ".join),
    st.tuples(st.sampled_from(["0", "*/20", "59"]), fields.map(" ".join)).map(" ".join),
    st.integers(1, 10**6).map("@every {}s".format),
)
zones = st.sampled_from(
    ["UTC", LJUBLJANA, "America/New_York", "Australia/Lord_Howe", "America/Havana", "Asia/Kathmandu"]
)
anywhere = st.integers(utc(2000, 1, 1), utc(2099, 1, 1))
near_a_change = st.integers(-4 * HOUR, 4 * HOUR).map(lambda shift: utc(2026, 10, 25, 1) + shift)


@settings(max_examples=300, deadline=None)
@given(texts, zones, anywhere | near_a_change)
def test_ticks_always_rise_and_do_not_depend_on_where_one_begins_to_count(text, tz, at):
    cron = Cron(text, tz)

    found = cron.between(at, at + 40_000 * DAY, 4)

    assert found[0] == cron.next_after(at) > at
    assert all(earlier < later for earlier, later in pairwise(found))
    assert [cron.next_after(tick) for tick in found[:-1]] == found[1:]
    assert cron.next_after(found[0] - 1) == found[0]
    assert all(tick % SECOND == 0 for tick in found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("61 * * * *", r"has a wrong minute: '61' - write 0-59, e\.g\. '\*/5 \* \* \* \*'"),
        ("* 24 * * *", "has a wrong hour: '24'"),
        ("* * 32 * *", "has a wrong day-of-month: '32'"),
        ("* * * 13 *", "has a wrong month: '13'"),
        ("* * * * FRIDAY", "has a wrong day-of-week: 'FRIDAY'"),
        ("60 * * * * *", "has a wrong second: '60'"),
        ("0 61 * * * *", "has a wrong minute: '61'"),
        ("*/0 * * * *", "has a wrong minute: '\\*/0'"),
        ("5-1 * * * *", "has a wrong minute: '5-1'"),
        ("0 0 31 2 *", r"has a wrong day-of-month: '31' - write 1-31 \(and in that month\)"),
        ("0 0 30 2 *", "has a wrong day-of-month: '30'"),
        ("0 0 31 4,6,9,11 *", "has a wrong day-of-month: '31'"),
        ("0 0 */31 2 MON#5", "names a day that never comes: day-of-month"),
        ("* * * *", r"has 4 fields; it needs 5, or 6 with seconds first .*e\.g\. '30 7 \* \* MON-FRI'"),
        ("* * * * * * *", "has 7 fields"),
        ("", "has 0 fields"),
        ("@reboot", "is no known nickname - use @hourly, @daily"),
        ("@dialy", "is no known nickname"),
        ("9" * 5_000, "at most 500 characters"),
        (None, "must be text"),
    ],
)
def test_a_wrong_text_is_refused_with_the_part_and_an_example(text, message):
    with pytest.raises(BadCron, match=message):
        Cron(text)


@given(st.text(alphabet="0123456789*/-,#LW@ MONFEB²é\n", max_size=30))
def test_any_text_is_taken_or_refused_but_never_breaks(text):
    try:
        cron = Cron(text)
    except BadCron:
        return

    assert cron.next_after(utc(2026, 1, 1)) > utc(2026, 1, 1)


@pytest.mark.parametrize("tz", ["Europe/Lubljana", "europe", "", "/etc/passwd", "../zone", "CEST+1", "x\0y", None, 2])
def test_an_unknown_zone_is_refused(tz):
    with pytest.raises(BadCron, match=r"time zone .* is not known - "):
        Cron("0 0 * * *", tz)


def test_a_misspelt_zone_gets_the_nearest_name():
    with pytest.raises(BadCron, match="did you mean 'Europe/Ljubljana'"):
        Cron("0 0 * * *", "Europe/Lubljana")


def test_utc_needs_no_time_zone_database(monkeypatch):
    def missing(key: str) -> ZoneInfo:
        raise KeyError(key)

    monkeypatch.setattr("zoneinfo.ZoneInfo", missing)
    monkeypatch.setattr("zoneinfo.available_timezones", set)

    assert Cron("0 0 * * *").next_after(0) == DAY
    with pytest.raises(BadCron, match="pip install tzdata"):
        Cron("0 0 * * *", LJUBLJANA)


def test_a_cron_describes_itself():
    assert Cron("30 2 * * *", LJUBLJANA).describe() == "At 02:30 every day (Europe/Ljubljana)"
    assert Cron("@hourly").describe() == "At the start of every hour (UTC)"
    assert Cron("@every 90s").describe() == "Every 90s"


def test_a_cron_is_a_value():
    assert Cron("@daily") == Cron("@daily", "UTC")
    assert len({Cron("@daily"), Cron("@daily"), Cron("@hourly")}) == 2
    with pytest.raises(AttributeError):
        Cron("@daily").text = "@hourly"
