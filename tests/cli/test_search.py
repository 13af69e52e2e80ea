"""Lists for which many jobs would have to be looked through: what was found, how far it looked, and an exit code."""

from __future__ import annotations

import pytest

from packhorse.cli import search
from packhorse.core.ids import new_id
from packhorse.core.job import NewJob
from packhorse.core.outcome import Completed
from packhorse.storage.sql import lists
from tests.children import PATIENCE
from tests.cli.conftest import Call
from tests.cli.yard import WORKER, Yard


@pytest.fixture
def haystack(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> Yard:
    """A needle below a hundred others, of which one call looks at twenty; and nobody has patience for a second call."""
    monkeypatch.setattr(lists, "AT_ONCE", 20)
    monkeypatch.setattr(lists, "AT_MOST", 20)
    monkeypatch.setattr(search, "_PATIENCE", 0.0)
    yard.add("rare", {"path": "needle"}, queue="shared")
    yard.storage.enqueue([NewJob(new_id(), "common", "shared", '{"path": "hay"}') for _ in range(100)])
    return yard


def test_a_table_ends_with_what_was_found_and_says_how_far_it_looked(haystack: Yard, packhorse: Call):
    late = haystack.add("late", {"path": "needle, too"}, queue="shared")

    result = packhorse("jobs", "needle")

    assert result.exit_code == 7
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["ID", late.id]
    assert result.stderr.startswith("Only those enqueued since 2")
    assert result.stderr.endswith(" were looked at; -n 0 looks at all.\n")


def test_a_search_that_found_nothing_does_not_say_that_there_is_nothing(haystack: Yard, packhorse: Call):
    result = packhorse("jobs", "needle")

    assert (result.exit_code, result.stdout) == (7, "")
    assert result.stderr.startswith("No jobs fit so far. Only those enqueued since 2")


@pytest.mark.parametrize("words", [("-n", "0"), ("--ids",), ("--json",), ("--ids", "-n", "5")])
def test_what_programs_read_is_complete(haystack: Yard, packhorse: Call, words: tuple[str, ...]):
    result = packhorse("jobs", "needle", *words)

    assert (result.exit_code, result.stderr) == (0, "")
    assert "rare" in result.stdout or "--ids" in words
    assert len(result.stdout.splitlines()) == (2 if words == ("-n", "0") else 1)


def test_with_patience_the_needle_is_found(haystack: Yard, packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(search, "_PATIENCE", PATIENCE)

    result = packhorse("jobs", "needle")

    assert (result.exit_code, result.stderr, len(result.stdout.splitlines())) == (0, "", 2)


def test_the_longest_runs_say_among_which_they_are(haystack: Yard, packhorse: Call):
    result = packhorse("jobs", "needle", "order:took")

    assert result.exit_code == 7
    assert "Only those enqueued since" in result.stderr


def test_what_has_ended_is_looked_at_by_its_end(haystack: Yard, packhorse: Call):
    haystack.join()
    haystack.storage.finish([Completed(job.token) for job in haystack.storage.reserve(WORKER, {"shared": 1}, 101)])

    result = packhorse("jobs", "completed", "nowhere")

    assert (result.exit_code, result.stdout) == (7, "")
    assert "Only those ended since" in result.stderr


def test_a_full_table_is_no_search(haystack: Yard, packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(search, "_PAGE", 10)

    result = packhorse("jobs", "hay", "-n", "45")

    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 46)
    assert "45 jobs are shown; there may be more" in result.stderr


def test_a_task_is_found_at_once_wherever_it_lies(haystack: Yard, packhorse: Call):
    haystack.add("own")
    haystack.storage.enqueue([NewJob(new_id(), "common", "shared") for _ in range(100)])

    assert packhorse("jobs", "task:own").exit_code == 0
    none = packhorse("jobs", "task:unheard")
    assert (none.exit_code, none.stderr) == (0, "No jobs fit.\n")
