"""Amounts and pauses in few characters, and never so few that they say nothing."""

from __future__ import annotations

import pytest

from packhorse.cli.commands.stats import milliseconds
from packhorse.core.clock import DAY, HOUR
from packhorse.monitor.text import count_text, pause_text, per_second_text, rate_text, significant, size_text
from packhorse.storage.records import QueueInfo


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (1_023, "1,023 B"),
        (1_024, "1 KiB"),
        (365_568, "357 KiB"),
        (1_000 << 10, "1,000 KiB"),
        ((1 << 20) - 1, "1,024 KiB"),
        (12_900_000, "12.3 MiB"),
        (5 << 40, "5 TiB"),
    ],
)
def test_sizes(number: int, text: str):
    assert size_text(number) == text


@pytest.mark.parametrize(
    ("per_second", "text"),
    [
        (1_234, "1,234/s"),
        (2.5, "2.5/s"),
        (0.25, "15/min"),
        (2 / 3_600, "2/h"),
        (9 / 86_400, "9/d"),
        (1 / 86_400 / 30, "<1/d"),
        (0, "0/s"),
    ],
)
def test_rates_of_what_runs_are_never_nought(per_second: float, text: str):
    assert rate_text(per_second) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (0, "-"),
        (0.0001, "<0.001"),
        (0.0014, "0.001"),
        (0.25, "0.25"),
        (0.997, "1.0"),
        (9.96, "10"),
        (12_345.6, "12,346"),
    ],
)
def test_rates_below_each_other_are_all_by_the_second(rate: float, text: str):
    assert per_second_text(rate) == text


def test_counts_have_the_right_word():
    assert count_text(1, "job") == "1 job"
    assert count_text(0, "job") == "0 jobs"
    assert count_text(2_000, "job waits", "jobs wait") == "2,000 jobs wait"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.0, "0"), (0.1234, "0.123"), (99.95, "100"), (999.4, "999"), (999.6, "1,000"), (12_345.6, "12,346")),
        *((0.0001234, "0.000123"), (0.00001234, "0.0000123"), (0.00003, "0.00003"), (-0.00001234, "-0.0000123")),
    ],
)
def test_no_number_has_an_exponent(value: float, text: str):
    assert significant(value) == text


@pytest.mark.parametrize(("value", "text"), [(99.4, "99"), (99.6, "100"), (0.126, "0.13"), (0.0000123, "0.000012")])
def test_fewer_digits_may_be_wanted(value: float, text: str):
    assert significant(value, 2) == text


def test_the_command_line_shows_just_under_a_second_in_plain_digits():
    assert milliseconds(999_600) == "1,000ms"


# --- pauses -----------------------------------------------------------------------------------------------------------


NOON = 1_800_014_400_000_000  # 2027-01-15 12:00 UTC


@pytest.mark.parametrize(
    ("queue", "told"),
    [
        (QueueInfo("mail", paused_at=NOON), ""),
        (QueueInfo("mail", paused_at=NOON, paused_by="ana"), " by ana"),
        (QueueInfo("mail", {}, NOON, "ana", "no server", NOON + 2 * HOUR), " by ana until 14:00 UTC: no server"),
        (QueueInfo("mail", paused_at=NOON, paused_until=NOON + DAY), " until 2027-01-16 12:00 UTC"),
    ],
)
def test_a_pause_tells_by_whom_until_when_and_why(queue: QueueInfo, told: str):
    assert pause_text(queue, NOON) == told
