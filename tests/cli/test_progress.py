"""The line that shows how far something is: whatever it has to say, it stays one line."""

from __future__ import annotations

import io
import re
import sys

import pytest

from packhorse.cli.progress import ProgressLine

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
