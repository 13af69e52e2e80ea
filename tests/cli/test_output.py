"""The line that shows how far something is: whatever it has to say, it stays one line."""

from __future__ import annotations

import io
import re
import sys

import pytest

from packhorse.cli.output import ProgressLine, escape, escape_lines, json_text, relative, short_ids
from packhorse.core.clock import MINUTE, SECOND
from packhorse.core.ids import new_id
from packhorse.monitor.serializers import iso
from packhorse.monitor.text import shorten

NOW = 1_800_000_000 * SECOND


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, café, 漢字", "plain text, café, 漢字"),
        ("\x1b[2J", "\\x1b[2J"),
        ("two\nlines\ttab\r", "two\\nlines\\ttab\\r"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\x00\x07\x7f", "\\x00\\x07\\x7f"),
        ("\ud800", "\\ud800"),
    ],
)
def test_control_characters_are_made_visible(text: str, shown: str):
    assert escape(text) == shown


def test_text_of_several_lines_keeps_them():
    assert escape_lines("a\r\n\tb\x1b[0m") == "a\n\tb\\x1b[0m"


def test_json_has_no_character_that_a_terminal_obeys():
    text = json_text({"a": "\x1b[2J\x9b\u202e\n"})

    assert escape(text) == text
    assert text == '{"a":"\\u001b[2J\\u009b\\u202e\\n"}'


def test_a_short_id_is_the_end_of_it():
    one, two = new_id(), new_id()

    assert short_ids([one, two]) == {one: one[-8:], two: two[-8:]}


def test_ids_that_end_alike_or_are_no_uuids_stay_whole():
    ids = ["019a8f3c-5b1e-7c42-9d07-3f6a1be2c845", "019a8f3c-5b1e-7c42-9d07-00001be2c845", "order-17"]

    assert short_ids(ids) == {job_id: job_id for job_id in ids}


@pytest.mark.parametrize(
    ("at", "text"),
    [(NOW - 6 * MINUTE, "6m ago"), (NOW + 4 * MINUTE, "in 4m"), (NOW, "now"), (NOW - 1_000, "now")],
)
def test_a_moment_is_told_from_now(at: int, text: str):
    assert relative(at, NOW) == text


def test_iso_times_are_in_utc_to_the_microsecond():
    assert iso(NOW + 5) == "2027-01-15T08:00:00.000005Z"
    assert iso(None) is None


def test_long_text_is_cut():
    assert shorten("abcdef", 3) == "abc…"
    assert shorten("abc", 3) == "abc"


LONG = "sqlite:////var/lib/packhorse/jobs.db → postgresql://app@db.internal.example.com:5432/shop?schema=jobs"


class Screen(io.StringIO):
    """A terminal that keeps all that was written."""

    def isatty(self) -> bool:
        return True

    def last_line(self) -> str:
        return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", self.getvalue()).rpartition("\r")[2]


def screen_of(columns: int, monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Not by a fixture: between those and a test pytest puts its own stderr back."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    return screen


@pytest.mark.parametrize("columns", [12, 20, 40, 80, 100, 200])
@pytest.mark.parametrize("title", ["prune", LONG])
def test_it_is_never_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, title: str) -> None:
    screen = screen_of(columns, monkeypatch)
    line = ProgressLine(title)

    for percent in (0, 7, 50, 100):
        line.update(percent, "copying events, 1,234,567 rows")

        assert len(screen.last_line()) < columns
        assert f"{percent} %" in screen.last_line()


def test_a_long_title_leaves_room_for_what_is_being_done(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = screen_of(80, monkeypatch)

    ProgressLine(LONG).update(50, "events, 1,234 rows")

    assert screen.last_line() == "sqlite:////var/lib/packhorse/j…  ━━━━━━━━━━─────────   50 %  events, 1,234 rows"


def test_what_fits_is_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = screen_of(100, monkeypatch)

    ProgressLine("prune").update(25, "events")

    assert screen.last_line() == "prune  ━━━━━━──────────────────   25 %  events"
