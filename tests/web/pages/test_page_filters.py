from __future__ import annotations

import pytest

from packhorse.core.clock import HOUR, MINUTE, SECOND
from packhorse.web.pages import filters
from packhorse.web.text import safe

NOW = 1_800_000_000 * SECOND


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        *(
            (0, "0 µs"),
            (31, "31 µs"),
            (480_000, "480 ms"),
            (1_240_000, "1.24 s"),
            (85 * SECOND, "1 m 25 s"),
            (-5, "0 µs"),
        ),
        *((999_400, "999 ms"), (999_500, "1 s"), (9_999_999, "10 s"), (999.7, "1 ms")),
    ],
)
def test_durations_are_short_and_never_negative(duration: int, text: str):
    assert filters.span(duration) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        *((999, "999"), (9_999, "9,999"), (18_204, "18.2 k"), (1_020_000, "1.02 M")),
        *((10_000, "10 k"), (999_499, "999 k"), (999_500, "1 M"), (10**9 - 1, "1 G"), (5 * 10**12, "5,000 G")),
    ],
)
def test_large_numbers_are_compact(number: int, text: str):
    assert filters.compact(number) == text


@pytest.mark.parametrize(
    ("at", "text"),
    [(NOW - 6 * MINUTE, "6 m ago"), (NOW + 3 * HOUR, "in 3 h"), (NOW, "now"), (NOW - 3_500_000, "3 s ago")],
)
def test_moments_are_told_as_people_do_with_the_exact_time_beside(at: int, text: str):
    shown = filters.ago(at, NOW)

    assert f">{text}</time>" in shown
    assert 'datetime="20' in shown


@pytest.mark.parametrize(
    ("away", "before", "text"),
    [
        (125 * SECOND, "", "in 2 m"),
        (125 * SECOND, "next", "next in 2 m"),
        (0, "next", "due now"),
        (-61 * SECOND, "next", "due 1 m ago"),
        (-61 * SECOND, "", "due 1 m ago"),
    ],
)
def test_what_is_planned_says_how_soon_or_since_when_it_is_due(away: int, before: str, text: str):
    assert f">{text}</time>" in filters.due(NOW + away, NOW, before)


def test_a_moment_is_told_in_whole_seconds():
    assert ">3 s ago<" in filters.ago(HOUR, HOUR + 3_700_000)


def test_control_characters_are_made_visible():
    assert safe("a\x1b[2J\u202eb\tc\n") == "a\\x1b[2J\\u202eb\tc\n"


def test_long_json_is_cut_and_says_so():
    text, is_cut = filters.pretty('{"x": "' + "y" * 100_000 + '"}')

    assert is_cut
    assert len(text) == 64_000


def test_ids_are_short_where_they_differ():
    assert filters.short("019a0000-0000-7000-8000-00000000a001") == "0000a001"
    assert filters.short("kXa93jfIe0") == "kXa93jfI"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("there is no job", "There is no job."),
        ("order_mail() needs the argument 'to'", "order_mail() needs the argument 'to'."),
        ("shop.mail has none", "shop.mail has none."),
        ("packhorse help filters shows them", "packhorse help filters shows them."),
        ("no state; did you mean 'dead'?", "No state; did you mean 'dead'?"),
    ],
)
def test_a_message_is_a_sentence_that_leaves_names_as_they_are(text: str, shown: str):
    assert filters.sentence(text) == shown


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.001, "≤ 1 ms"), (0.24, "240 ms"), (8.9, "8.9 s"), (200_000.0, "> 1 d 3 h")],
)
def test_a_percentile_says_where_it_is_only_a_limit(value: float | None, text: str):
    assert filters.percentile(value) == text


@pytest.mark.parametrize(
    ("part", "text"), [(0, "0 %"), (8e-7, "< 0.1 %"), (0.001, "0.1 %"), (0.025, "2.5 %"), (0.5, "50 %")]
)
def test_small_shares_are_told_without_powers_of_ten(part: float, text: str):
    assert filters.percent(part, 1) == text


def test_how_long_ago_something_was_is_a_moment_of_its_own_in_a_sentence():
    shown = filters.with_moment("it was aborted 360 ms ago, by <anna>, 3 s ago", NOW, NOW + 360_000)

    assert shown.startswith('it was aborted <time datetime="2027')
    assert shown.endswith(">just now</time>, by &lt;anna&gt;, 3 s ago")
    assert ">2 m ago</time>" in filters.with_moment("it died 2 m 5 s ago", NOW, NOW + 125 * SECOND)


def test_what_is_to_be_typed_is_told_apart_and_markup_stays_text():
    shown = filters.with_commands("<b> has gone; `packhorse work` starts one")

    assert shown == "&lt;b&gt; has gone; <code>packhorse work</code> starts one"
