"""docs/cli.md knows every command, every option, every exit code and every filter word."""

from __future__ import annotations

import re

import click
import pytest

from packhorse.cli.errors import ExitCode
from packhorse.cli.main import COMMANDS, cli
from packhorse.conformance.builders import cases
from packhorse.monitor.filters import FILTER_WORDS
from tests.children import ROOT

PAGE = (ROOT / "docs" / "cli.md").read_text()


def options_of(name: str) -> list[str]:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return [param.opts[-1] for param in command.params if isinstance(param, click.Option) and not param.hidden]


@cases("name", COMMANDS)
def test_every_command_has_a_row_with_an_example(name: str):
    (row,) = re.findall(rf"^\| `{name}[ `].*$", PAGE, re.MULTILINE)

    assert f"packhorse {name}" in row


@cases("option", sorted({option for name in COMMANDS for option in options_of(name)}))
def test_every_option_is_mentioned(option: str):
    assert re.search(rf"{option}\b", PAGE)


@pytest.mark.parametrize("code", ExitCode)
def test_every_exit_code_is_listed(code: ExitCode):
    assert f"| {code.value} |" in PAGE


@cases("word", FILTER_WORDS)
def test_every_filter_word_is_listed(word: str):
    assert f"`{word}:" in PAGE
