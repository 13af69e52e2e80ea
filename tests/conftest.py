"""Settings for all tests: the same random examples in every run, and no failure because the machine is slow."""

from __future__ import annotations

import atexit
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.memory_disk import new_directory

pytest.register_assert_rewrite("packhorse.conformance")  # before the first import: its tests are ours, too

_state = new_directory("state")  # the state directory of programs, removed after the tests
atexit.register(shutil.rmtree, _state, ignore_errors=True)
os.environ["XDG_STATE_HOME"] = str(_state)

os.environ["no_proxy"] = "*"  # the tests connect only to this machine, without a proxy

settings.register_profile("steady", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("steady")


@pytest.fixture
def swift_path() -> Iterator[Path]:
    """A `tmp_path` in memory, for data only: some machines forbid executing files there."""
    directory = new_directory("test")
    yield directory
    shutil.rmtree(directory, ignore_errors=True)
