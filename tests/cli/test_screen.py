from __future__ import annotations

import os
import signal
import sys

import pytest

from packhorse.cli.screen import RESIZED, Screen, fitted, keys_in


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("j", ["j"]),
        ("\x1b[A\x1b[B", ["up", "down"]),
        ("\x1bOA", ["up"]),
        ("\x1b", ["escape"]),
        ("\r\t\x7f", ["enter", "tab", "backspace"]),
        ("\x1b[5~\x1b[6~", ["page up", "page down"]),
        ("\x1b[1;5C", ["\x1b[1;5C"]),
        ("é漢", ["é", "漢"]),
        ("", []),
    ],
)
def test_keys_are_told_by_name(text: str, keys: list[str]):
    assert keys_in(text) == keys


def test_a_painted_line_is_cut_by_what_is_seen_of_it():
    line = "\x1b[31mred\x1b[0m and plain"

    assert fitted(line, 40) == line
    assert fitted(line, 6) == "\x1b[31mred\x1b[0m a…"
    assert fitted(line, 2) == "\x1b[31mr…\x1b[0m"
    assert fitted("漢字漢字", 5) == "漢字…"


def test_another_size_wakes_it_also_if_its_signal_comes_just_before_it_waits(monkeypatch: pytest.MonkeyPatch):
    ours, theirs = os.openpty()
    with os.fdopen(ours, "wb"), os.fdopen(theirs) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with Screen() as screen:
            signal.signal(signal.SIGWINCH, lambda number, frame: None)  # Python has not come to the handler yet
            signal.raise_signal(signal.SIGWINCH)

            assert screen.keys(0) == [RESIZED]
            assert screen.keys(0) == []
