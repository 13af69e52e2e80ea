"""The stretch of time that a page is about: up to now, or one of the past, in whole intervals as fine as there are."""

from __future__ import annotations

import pytest

from packhorse.core.clock import DAY, HOUR, MINUTE, from_datetime
from packhorse.core.errors import BadValue
from packhorse.monitor.filters import parse_moment
from packhorse.storage.records import Span
from packhorse.web.pages.page import PageRequest
from packhorse.web.pages.time_range import RANGES, chosen_range

NOW = from_datetime(parse_moment("2030-01-31T12:00:40Z"))


def asked(**query: str) -> PageRequest:
    return PageRequest("/", query)


def between(start: str, end: str) -> PageRequest:
    return PageRequest("/", {"range": "2h", "from": start, "to": end})


@pytest.mark.parametrize("name", RANGES)
def test_a_range_reaches_up_to_now(name: str):
    chosen = chosen_range(asked(range=name), NOW)

    start, end = chosen.bounds(NOW)
    assert chosen is RANGES[name]
    assert start < NOW < end <= NOW + chosen.width
    assert end - start == chosen.length


@pytest.mark.parametrize("query", [{}, {"range": "x"}, {"from": "2030-01-31T11:00Z"}, {"to": "2030-01-31T11:00Z"}])
def test_without_one_it_is_the_last_hour(query: dict[str, str]):
    assert chosen_range(asked(**query), NOW) is RANGES["1h"]


def test_a_stretch_is_taken_in_whole_intervals():
    chosen = chosen_range(between("2030-01-31T11:10:30Z", "2030-01-31T11:19:30Z"), NOW)

    start, end = chosen.bounds(NOW)
    assert (start, end) == tuple(from_datetime(parse_moment(f"2030-01-31T11:{minute}Z")) for minute in (10, 20))
    assert (chosen.length, chosen.span, chosen.name) == (10 * MINUTE, Span.TWO_HOURS, "2h")
    assert chosen.title == "01-31 11:10–11:20 UTC"
    assert [chosen.holds(at, NOW) for at in (start - 1, start, end - 1, end)] == [False, True, True, False]


@pytest.mark.parametrize(
    ("start", "end", "span"),
    [
        ("2030-01-31T10:30Z", "2030-01-31T11:30Z", Span.TWO_HOURS),
        ("2030-01-30T10:30Z", "2030-01-31T11:30Z", Span.TWO_DAYS),
        ("2030-01-01T00:00Z", "2030-01-31T11:30Z", Span.NINETY_DAYS),
        ("2020-01-01T00:00Z", "2030-01-31T11:30Z", Span.NINETY_DAYS),
    ],
)
def test_its_points_are_as_fine_as_they_reach_back(start: str, end: str, span: Span):
    assert chosen_range(between(start, end), NOW).span is span


def test_a_stretch_reaches_back_no_further_than_anything_is_kept():
    chosen = chosen_range(between("0001-01-01T00:00Z", "2030-01-31T11:30Z"), NOW)

    assert chosen.length <= 91 * DAY + chosen.width


def test_the_shortest_stretch_has_two_intervals():
    assert chosen_range(between("2030-01-31T11:10Z", "2030-01-31T11:10:01Z"), NOW).length == 2 * MINUTE


def test_a_stretch_does_not_reach_into_the_future():
    chosen = chosen_range(between("2030-01-31T11:30Z", "2031-01-31T11:30Z"), NOW)

    assert chosen.bounds(NOW)[1] == NOW - NOW % MINUTE + MINUTE


def test_a_stretch_over_midnight_names_both_days():
    chosen = chosen_range(between("2030-01-30T22:00Z", "2030-01-31T02:00Z"), NOW)

    assert chosen.title == "01-30 22:00–01-31 02:00 UTC"
    assert chosen.length == 4 * HOUR


def test_a_stretch_of_days_names_the_first_and_the_last():
    chosen = chosen_range(between("2030-01-03T00:00Z", "2030-01-06T00:00Z"), NOW)

    assert (chosen.title, chosen.length) == ("2030-01-03 to 2030-01-05", 3 * DAY)


@pytest.mark.parametrize(
    ("start", "end", "sentence"),
    [
        ("soon", "2030-01-31T11:10Z", "'soon' is not a time"),
        ("2030-01-31T11:10Z", "2030-01-31T11:10Z", "the time ends before it begins"),
        ("0001-01-01T00:00Z", "0001-01-02T00:00Z", "nothing is kept of a time so long ago"),
        ("2030-01-31T12:01Z", "2030-01-31T13:00Z", "the time has not come yet"),
    ],
)
def test_a_stretch_that_is_none_is_refused(start: str, end: str, sentence: str):
    with pytest.raises(BadValue, match=sentence):
        chosen_range(between(start, end), NOW)
