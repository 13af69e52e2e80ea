"""`packhorse config`: every setting, and where its value came from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from packhorse.core.settings import NAMES
from tests.cli.conftest import Call


def test_every_setting_is_told_with_its_source(here: Path, packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    (here / "pyproject.toml").write_text('[tool.packhorse]\nconcurrency = 20\nlease = "1m"\n')
    monkeypatch.setenv("PACKHORSE_LEASE", "30s")

    told = {each["name"]: each for each in map(json.loads, packhorse("config", "--json").stdout.splitlines())}

    assert list(told) == list(NAMES)
    assert told["concurrency"]["source"] == "[tool.packhorse] concurrency in pyproject.toml"
    assert (told["lease"]["value"], told["lease"]["source"]) == ("30s", "PACKHORSE_LEASE in the environment")
    assert told["heartbeat"]["source"] == "default"
    assert told["web_token"]["value"] is None


def test_the_words_to_hide_are_told_with_their_source(here: Path, packhorse: Call):
    (here / "pyproject.toml").write_text('[tool.packhorse]\nredact = ["iban", "ssn"]\n')

    told = json.loads(packhorse("config", "redact", "--json").stdout)

    assert told == {"name": "redact", "value": "iban,ssn", "source": "[tool.packhorse] redact in pyproject.toml"}


def test_one_name_prints_its_value_alone(packhorse: Call):
    assert packhorse("config", "url", "--url", "redis://u:secret@h/0").stdout == "redis://u:***@h/0\n"


def test_what_an_option_names_is_said_to_come_from_it(packhorse: Call):
    [told] = packhorse("config", "url", "--url", "redis://h/0", "--json").stdout.splitlines()

    assert json.loads(told)["source"] == "--url"


def test_only_those_that_were_set(here: Path, packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    assert packhorse("config", "--set").stderr.startswith("No setting is set")

    monkeypatch.setenv("PACKHORSE_WEB_TOKEN", "a-secret-that-nobody-may-see")
    result = packhorse("config", "--set")

    assert [line.split()[0] for line in result.stdout.splitlines()] == ["SETTING", "web_token"]
    assert "a-secret" not in result.stdout


def test_a_setting_that_is_none_brings_the_nearest(packhorse: Call):
    result = packhorse("config", "leas")

    assert result.exit_code == 2
    assert "did you mean 'lease'?" in result.stderr


def test_looking_at_settings_makes_no_file(here: Path, packhorse: Call):
    packhorse("config")

    assert list(here.iterdir()) == []
