"""The suite that every storage passes (`packhorse/conformance/`), on all of ours."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from packhorse import conformance
from packhorse.conformance import suite
from packhorse.conformance.suite import *  # noqa: F403
from packhorse.storage.contract import Storage


@pytest.fixture(autouse=True)
def _at_once(exact_lines: None) -> None:
    """What a storage may do late on a slow machine, it does at once here: lines are as they are."""


def test_nothing_is_wrong_with_a_new_storage_of_ours(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse.storage.redis.health._SLOW", math.inf)  # this machine may be busy

    problems = storage.health().problems

    assert problems == []


def test_no_test_of_the_suite_hides_another():
    files = sorted(Path(conformance.__path__[0]).glob("test_*.py"))
    written = [name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)]

    assert sorted(written) == sorted(name for name in vars(suite) if name.startswith("test_"))
