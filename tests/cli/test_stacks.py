"""`packhorse stacks`: where workers stand, asked through the storage."""

from __future__ import annotations

import json

from tests.answering import answering
from tests.cli.conftest import Call
from tests.cli.yard import FOREMAN, WORKER, Yard


def test_the_stacks_of_a_worker_are_shown_with_their_jobs(yard: Yard, packhorse: Call):
    yard.join()

    with answering(yard):
        result = packhorse("stacks", WORKER, "--wait", "30s")

    assert result.exit_code == 0
    assert "the worker mule:12" in result.stdout
    assert "slot 0: resize  job j1" in result.stdout
    assert 'File "shop.py", line 7, in resize' in result.stdout
    assert "\\x1b[31m" in result.stdout  # nothing in it reaches the terminal as it is


def test_all_workers_of_a_foreman_as_json(yard: Yard, packhorse: Call):
    yard.join()

    with answering(yard):
        result = packhorse("stacks", FOREMAN, "--json", "--wait", "30s")

    told = json.loads(result.stdout)
    assert (told["id"], told["answered"], told["stacks"][0]["job_id"]) == (WORKER, True, "j1")


def test_a_worker_that_does_not_answer_is_told_and_what_helps(yard: Yard, packhorse: Call):
    yard.join()

    result = packhorse("stacks", WORKER, "--wait", "0s")

    assert result.exit_code == 7
    assert "has not answered" in result.stdout
    assert "py-spy dump --pid 12" in result.stdout


def test_a_foreman_without_workers_has_nothing_to_tell(yard: Yard, packhorse: Call):
    yard.join()
    yard.storage.leave(WORKER, why="not needed")

    result = packhorse("stacks", FOREMAN, "--wait", "0s")

    assert result.exit_code == 0
    assert "the foreman mule:11 has no workers just now" in result.stderr
