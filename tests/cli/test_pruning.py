"""`packhorse prune`: what it counts, what it removes, and what it leaves alone."""

from __future__ import annotations

import json

import pytest

from packhorse.core.event import Kind
from packhorse.core.job import State
from packhorse.storage.records import EventFilter, Filter
from tests.cli.conftest import Call
from tests.cli.yard import Yard


def states_left(yard: Yard) -> set[str]:
    return {str(job.state) for job in yard.storage.find(Filter()).jobs}


@pytest.fixture
def full(yard: Yard) -> Yard:
    yard.in_every_state()
    return yard


def test_nothing_that_is_young_goes(full: Yard, packhorse: Call) -> None:
    result = packhorse("prune", "--yes")

    assert result.stdout == "0 jobs, 0 events and 0 silent clients are gone\n"
    assert len(states_left(full)) == len(State)


def test_a_state_and_an_age_say_which_jobs_go(full: Yard, packhorse: Call) -> None:
    shown = packhorse("prune", "--state", "completed", "--older-than", "0s", "--dry-run")
    result = packhorse("prune", "--state", "completed", "--older-than", "0s", "--yes")

    assert shown.stdout == "would remove up to 1 job\n"
    assert result.stdout == "1 job, 0 events and 0 silent clients are gone\n"
    assert set(State) - states_left(full) == {State.COMPLETED}
    assert full.storage.events(EventFilter(kind=Kind.COMPLETED))


def test_persistent_jobs_stay(yard: Yard, packhorse: Call) -> None:
    yard.job("dead", persistent=True)

    assert packhorse("prune", "--older-than", "0s", "--dry-run", "--json").stdout == '{"jobs":0}\n'
    assert json.loads(packhorse("prune", "--older-than", "0s", "--yes", "--json").stdout)["jobs"] == 0
    assert states_left(yard) == {"dead"}


def test_events_go_only_if_one_says_so(full: Yard, packhorse: Call) -> None:
    result = packhorse("prune", "--older-than", "0s", "--events", "--yes", "--json")

    told = json.loads(result.stdout)
    assert told["jobs"] == 3
    assert told["events"] > 10


def test_without_a_terminal_it_wants_a_yes(full: Yard, packhorse: Call) -> None:
    result = packhorse("prune", "--older-than", "0s")

    assert result.exit_code == 5
    assert "will not remove 3 jobs without being sure" in result.stderr
    assert len(states_left(full)) == len(State)


def test_where_nothing_is_old_it_does_not_ask(full: Yard, packhorse: Call) -> None:
    result = packhorse("prune", "--older-than", "10d")

    assert result.exit_code == 0
    assert result.stderr == "nothing is old enough\n"
