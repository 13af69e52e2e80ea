"""`packhorse copy`: new jobs like old ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from packhorse.cli import copying
from packhorse.cli.choosing import Chosen, choose
from packhorse.core.job import State
from packhorse.storage.records import Filter
from tests.cli.conftest import Call
from tests.cli.yard import Yard


@pytest.mark.parametrize("state", State)
def test_a_job_in_any_state_is_copied_as_it_was_enqueued(yard: Yard, packhorse: Call, state: State):
    job = yard.job(state, priority=7, max_attempts=9)

    result = packhorse("copy", job.id[-8:], "--by", "ann")

    assert result.exit_code == 0
    made = yard.get(result.stdout.strip())
    assert (made.id != job.id, made.state, made.created_by) == (True, State.QUEUED, "ann")
    assert (made.task, json.loads(made.args), made.queue) == (job.task, json.loads(job.args), job.queue)
    assert (made.priority, made.max_attempts, made.attempts) == (7, 9, 0)


def test_arguments_and_options_are_changed(yard: Yard, packhorse: Call):
    job = yard.add(args={"image_id": 7, "name": "a", "sizes": [1]})

    words = ["--set", "image_id=8", "--set", "name=9", "--set", "sizes:=[2, 3]", "--priority", "9", "--queue", "slow"]
    result = packhorse("copy", job.id, *words, "--in", "1h")

    made = yard.get(result.stdout.strip())
    assert json.loads(made.args) == {"image_id": 8, "name": "9", "sizes": [2, 3]}
    assert (made.priority, made.queue, made.state) == (9, "slow", State.SCHEDULED)


def test_many_are_copied_only_after_a_yes(yard: Yard, packhorse: Call):
    yard.job("dead"), yard.job("dead", queue="another")

    refused = packhorse("copy", "--where", "dead")
    assert (refused.exit_code, "will not copy 2 jobs" in refused.stderr) == (5, True)
    assert yard.storage.count(Filter(states=frozenset({State.QUEUED}))).number == 0

    result = packhorse("copy", "--where", "dead", "--yes")
    assert result.exit_code == 0
    assert all(yard.get(line).state is State.QUEUED for line in result.stdout.split())
    assert len(result.stdout.split()) == 2


def test_json_is_the_new_job(yard: Yard, packhorse: Call):
    job = yard.job("completed")

    fields = json.loads(packhorse("copy", job.id, "--json").stdout)

    assert (fields["state"], fields["args"], fields["is_new"]) == ("queued", {"image_id": 7}, True)
    assert fields["id"] != job.id


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--set", "7"], "--set 7 names no argument"),
        (["--set", "a=1", "--set", "a=2"], "the argument a is given twice"),
        (["--set", "a:=["], "a is not JSON"),
        (["--in", "1h", "--at", "2030-01-01T00:00"], "give --in or --at, not both"),
        (["--priority", "11"], "priority"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_is_enqueued(
    yard: Yard, packhorse: Call, words: list[str], told: str
):
    job = yard.job("dead")

    result = packhorse("copy", job.id, *words)

    assert (result.exit_code, told in result.stderr) == (2, True)
    assert yard.storage.count(Filter()).number == 1


def test_jobs_that_go_meanwhile_are_counted_and_the_others_copied(
    yard: Yard, packhorse: Call, monkeypatch: pytest.MonkeyPatch
):
    for number in range(3):
        yard.add(args={"n": number})
    chosen = []

    def choose_and_lose_one(*given: Any) -> Chosen:
        chosen.append(choose(*given))
        yard.storage.delete(chosen[0].ids[1:2], by="ann")
        return chosen[0]

    monkeypatch.setattr(copying, "choose", choose_and_lose_one)
    result = packhorse("copy", "--where", "queued", "--yes")

    assert (result.exit_code, "2 copied, 1 gone" in result.stderr) == (1, True)
    assert len(result.stdout.split()) == 2
    assert yard.storage.count(Filter()).number == 4
