"""What the commands' options have in common: variables of the environment."""

from __future__ import annotations

import json

import click
import pytest

from packhorse.cli.main import COMMANDS, cli
from packhorse.settings import Settings, load_settings
from tests.cli.conftest import Call
from tests.cli.yard import Yard


def options() -> list[tuple[str, click.Option]]:
    found = []
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        found += [(name, param) for param in command.params if isinstance(param, click.Option)]
    return found


VARIABLES = sorted({str(option.envvar) for _, option in options() if option.envvar})


def test_an_option_can_come_from_the_environment(yard: Yard, packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    job = yard.job("dead")
    monkeypatch.setenv("PACKHORSE_JSON", "1")
    monkeypatch.setenv("PACKHORSE_FIELDS", "id")

    listed = [json.loads(line) for line in packhorse("jobs").stdout.splitlines()]

    assert listed == [{"id": job.id}]


def test_what_is_written_wins_over_the_environment(yard: Yard, packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    job = yard.job("dead")
    monkeypatch.setenv("PACKHORSE_FIELDS", "state")

    assert packhorse("jobs", "--json", "--fields", "id").stdout == f'{{"id":"{job.id}"}}\n'


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [("PACKHORSE_EVERY", "often", ["status"]), ("PACKHORSE_COLOR", "blue", ["jobs"]), ("PACKHORSE_MIN", "x", ["work"])],
)
def test_a_wrong_value_is_told_with_its_variable(
    yard: Yard, packhorse: Call, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: list[str]
):
    monkeypatch.setenv(variable, value)

    result = packhorse(*words)

    assert result.exit_code == 2
    assert f"from: {variable} in the environment" in result.stderr


@pytest.mark.parametrize(
    "name", ["where", "all", "force", "now", "cancel", "yes", "queue", "older-than", "priority", "timeout"]
)
def test_what_one_call_is_about_never_comes_from_the_environment(name: str):
    assert [option for _, option in options() if f"--{name}" in option.opts]
    assert f"PACKHORSE_{name.upper().replace('-', '_')}" not in VARIABLES


def test_nothing_is_purged_because_of_the_environment(yard: Yard, packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    jobs = [yard.add(), yard.add()]
    monkeypatch.setenv("PACKHORSE_YES", "1")

    assert packhorse("purge", "--all").exit_code == 5
    assert [yard.get(job.id).state for job in jobs] == ["queued", "queued"]


def test_variables_that_others_set_are_left_alone(yard: Yard, packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PACKHORSE_PORT", "tcp://10.0.0.1:5040")
    monkeypatch.setenv("PACKHORSE_WORKER", "somebody")
    job = yard.job("queued")

    assert job.id in packhorse("events").stdout
    assert "PACKHORSE_PORT" not in VARIABLES


def test_no_variable_of_an_option_is_taken_for_a_setting():
    assert not {name.removeprefix("PACKHORSE_").lower() for name in VARIABLES} & {*Settings.__struct_fields__}

    load_settings({}, environment=dict.fromkeys(VARIABLES, "1"))
