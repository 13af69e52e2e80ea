"""The pager: for what is longer than the screen of a terminal, and for nothing else. Terminals here have 40 lines."""

from __future__ import annotations

import io
import json
import sys

import pytest

from packhorse.cli.pager import paged
from packhorse.core.ids import new_id
from packhorse.core.job import NewJob
from packhorse.storage.records import Filter
from tests.cli.sample_storage import SampleStorage
from tests.cli.test_terminal import on_terminal

MARKS = "sed s/^/|/"


@pytest.fixture
def full(sample: SampleStorage) -> SampleStorage:
    """A storage with more jobs than a screen has lines."""
    args = json.dumps({"text": "x" * 2_000})
    sample.storage.enqueue([NewJob(id=new_id(), task="resize", queue="resize", args=args) for _ in range(60)])
    return sample


def shown_lines(seen: str) -> list[str]:
    return [line for line in seen.replace("\r", "").split("\n") if line]


def test_what_is_longer_than_the_screen_is_paged_with_its_notices(full: SampleStorage):
    code, seen = on_terminal(full, "jobs", PAGER=MARKS)

    lines = shown_lines(seen)
    assert code == 0
    assert len(lines) == 52
    assert all(line.startswith("|") for line in lines)
    assert "50 of 60 are shown" in lines[-1]


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (("jobs", "-n", "9"), {"PAGER": MARKS}),
        (("jobs", "--no-pager"), {"PAGER": MARKS}),
        (("jobs",), {"PAGER": "no-such-pager --at-all"}),
    ],
)
def test_else_it_is_printed_as_it_is(full: SampleStorage, words: tuple[str, ...], environment: dict[str, str]):
    code, seen = on_terminal(full, *words, **environment)

    lines = shown_lines(seen)
    assert code == 0
    assert len(lines) == (11 if "9" in words else 52)
    assert not any(line.startswith("|") for line in lines)


def test_a_reader_who_has_seen_enough_is_no_error(full: SampleStorage):
    code, seen = on_terminal(full, "jobs", "--json", PAGER="head -c 1")

    assert (code, seen) == (0, "{")


def test_help_is_paged_too(sample: SampleStorage):
    code, seen = on_terminal(sample, "--help", PAGER=MARKS)

    assert code == 0
    assert seen.startswith("|Usage: packhorse")


class Terminal40(io.StringIO):
    """Says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "is_paged"),
    [
        (Terminal40, {}, True),
        (Terminal40, {"PAGER": "cat", "PACKHORSE_PAGER": "less"}, True),
        (Terminal40, {"PAGER": "less '"}, True),
        (Terminal40, {"PACKHORSE_NO_PAGER": "0"}, True),
        (Terminal40, {"PACKHORSE_NO_PAGER": "1"}, False),
        (Terminal40, {"PAGER": "cat"}, False),
        (Terminal40, {"PAGER": ""}, False),
        (Terminal40, {"TERM": "dumb"}, False),
        (io.StringIO, {}, False),
    ],
)
def test_it_is_used_on_a_terminal_unless_the_environment_says_no(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO], environment: dict[str, str], is_paged: bool
):
    for name in ("PAGER", "PACKHORSE_PAGER", "PACKHORSE_NO_PAGER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", stream())

    with paged():
        assert isinstance(sys.stdout, stream) is not is_paged
    with paged(False):
        assert isinstance(sys.stdout, stream)


def test_lines_that_the_terminal_breaks_count_as_often(full: SampleStorage):
    _, seen = on_terminal(
        full, "job", full.storage.find(Filter(), limit=1).jobs[0].id, "--args", PAGER=MARKS, COLUMNS="40"
    )

    assert seen.startswith("|")  # one line of 2,000 characters
