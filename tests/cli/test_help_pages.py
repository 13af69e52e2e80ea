"""`packhorse help` and `packhorse version`."""

from __future__ import annotations

import json

import pytest

from packhorse import __version__
from packhorse.cli.failing import ExitCode
from packhorse.cli.help_pages import TOPICS
from packhorse.monitor.filters import FILTER_WORDS
from tests.cli.conftest import Call


def test_help_alone_is_that_of_the_program(packhorse: Call):
    result = packhorse("help")

    assert result.stdout.startswith(packhorse("--help").stdout.rstrip())
    assert all(topic in result.stdout for topic in TOPICS)


def test_help_on_a_command_is_its_own(packhorse: Call):
    assert packhorse("help", "retry").stdout == packhorse("retry", "--help").stdout


@pytest.mark.parametrize("topic", TOPICS)
def test_every_topic_fits_a_narrow_screen(packhorse: Call, topic: str):
    result = packhorse("help", topic)

    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_every_exit_code_and_every_filter_word_is_told(packhorse: Call):
    codes = packhorse("help", "exit-codes").stdout

    assert all(f"{code:>3}  " in codes for code in ExitCode)
    assert all(f"{word}:" in TOPICS["filters"] for word in FILTER_WORDS)


def test_a_topic_that_is_none_brings_the_nearest(packhorse: Call):
    result = packhorse("help", "exit-code")

    assert result.exit_code == 3
    assert "did you mean 'exit-codes'?" in result.stderr


def test_a_topic_that_is_none_is_told_in_json_too(packhorse: Call):
    result = packhorse("help", "exit-code", "--json")

    assert result.exit_code == 3
    assert "there is no help on 'exit-code'" in json.loads(result.stderr)["error"]["message"]
    assert "exit-codes" in json.loads(packhorse("help", "--json").stdout)["topics"]


def test_the_version_is_told_with_what_it_runs_on(packhorse: Call):
    assert packhorse("version").stdout.startswith(f"packhorse {__version__} (python 3.")
    assert json.loads(packhorse("version", "--json").stdout)["packhorse"] == __version__
