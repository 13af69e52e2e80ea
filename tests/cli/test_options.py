"""What the commands' options have in common: variables of the environment."""

from __future__ import annotations

import json

import click
import pytest

from packhorse.cli.main import COMMANDS, cli
from packhorse.core.settings import Settings, load_settings
from tests.cli.conftest import Call
from tests.cli.sample_storage import SampleStorage


def options() -> list[tuple[str, click.Option]]:
    found = []
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        found += [(name, param) for param in command.params if isinstance(param, click.Option)]
    return found


VARIABLES = sorted({str(option.envvar) for _, option in options() if option.envvar})


def test_an_option_can_come_from_the_environment(
    sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch
):
    job = sample.job("dead")
    monkeypatch.setenv("PACKHORSE_JSON", "1")
    monkeypatch.setenv("PACKHORSE_FIELDS", "id")

    listed = [json.loads(line) for line in packhorse("jobs").stdout.splitlines()]

    assert listed == [{"id": job.id}]


def test_what_is_written_wins_over_the_environment(
    sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch
):
    job = sample.job("dead")
    monkeypatch.setenv("PACKHORSE_FIELDS", "state")

    assert packhorse("jobs", "--json", "--fields", "id").stdout == f'{{"id":"{job.id}"}}\n'


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [("PACKHORSE_EVERY", "often", ["status"]), ("PACKHORSE_COLOR", "blue", ["jobs"]), ("PACKHORSE_MIN", "x", ["work"])],
)
def test_a_wrong_value_is_told_with_its_variable(
    sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: list[str]
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


def test_nothing_is_purged_because_of_the_environment(
    sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch
):
    jobs = [sample.add(), sample.add()]
    monkeypatch.setenv("PACKHORSE_YES", "1")

    assert packhorse("purge", "--all").exit_code == 5
    assert [sample.get(job.id).state for job in jobs] == ["queued", "queued"]


def test_variables_that_others_set_are_left_alone(
    sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PACKHORSE_PORT", "tcp://10.0.0.1:5040")
    monkeypatch.setenv("PACKHORSE_WORKER", "somebody")
    job = sample.job("queued")

    assert job.id in packhorse("events").stdout
    assert "PACKHORSE_PORT" not in VARIABLES


def test_no_variable_of_an_option_is_taken_for_a_setting():
    assert not {name.removeprefix("PACKHORSE_").lower() for name in VARIABLES} & {*Settings.__struct_fields__}

    load_settings({}, environment=dict.fromkeys(VARIABLES, "1"))


def test_an_option_that_takes_one_value_is_refused_when_it_is_given_twice(packhorse: Call):
    single = [
        (name, written)
        for name, option in options()
        if not (option.is_flag or option.count or option.multiple)
        for written in option.opts
    ]
    assert {("delete", "--where"), ("pause", "--task"), ("jobs", "-n"), ("wait", "--url")} <= set(single)

    wrong = []
    for name, written in single:
        result = packhorse(name, written, "1", written, "1")
        if result.exit_code != 2 or " is given twice" not in result.stderr:
            wrong.append((name, written, result.stderr))

    assert wrong == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["delete", "--where", "dead", "--where=queue:mail", "--yes"], "put all words into one: --where 'dead"),
        (["pause", "--task", "a", "--task", "b"], "call the command once for each"),
        (["jobs", "--queue", "a", "--queue", "b"], "write several as --queue a,b"),
        (["jobs", "--fields", "id", "dead", "--fields", "state"], "write several as --fields a,b"),
        (["--url", "sqlite:///a.db", "--url", "sqlite:///b.db", "jobs"], "--url is given twice"),
        (["work", "-c", "1", "--concurrency", "2"], "--concurrency is given twice"),
    ],
)
def test_an_option_given_twice_says_what_to_do_instead(
    sample: SampleStorage, packhorse: Call, words: list[str], told: str
):
    job = sample.job("dead")

    result = packhorse(*words)

    assert result.exit_code == 2
    assert told in result.stderr
    assert sample.get(job.id).state == "dead"


def test_flags_and_options_of_several_values_may_be_given_twice(sample: SampleStorage, packhorse: Call):
    job = sample.job("dead")

    assert packhorse("jobs", "-v", "-v", "--utc", "--utc", "--ids").stdout == f"{job.id}\n"
    assert packhorse("copy", job.id, "--set", "a=1", "--set", "b=2", "--dry-run").exit_code == 0
    assert packhorse("jobs", "--queue", "a", "--queue", "b", "--help").exit_code == 0


@pytest.mark.parametrize("name", ["up", "dev"])
def test_up_and_dev_take_every_option_of_work_about_its_crew(name: str):
    def options_of(name: str) -> set[str]:
        return {word for command, option in options() if command == name for word in option.opts}

    assert options_of("work") - options_of(name) == {"--burst", "--parent"}
