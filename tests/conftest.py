"""What holds for all tests: the same examples in every run, and none fails because the machine is slow."""

from __future__ import annotations

import atexit
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.ram import new_directory

pytest.register_assert_rewrite("packhorse.conformance")  # before anybody imports it: its tests are ours, too

_state = new_directory("state")  # where programs keep what must outlive them: of a test, not for longer than it runs
atexit.register(shutil.rmtree, _state, ignore_errors=True)
os.environ["XDG_STATE_HOME"] = str(_state)

os.environ["no_proxy"] = "*"  # the tests speak with this machine alone, whatever stands between it and the world

settings.register_profile("steady", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("steady")


@pytest.fixture
def swift_path() -> Iterator[Path]:
    """As `tmp_path`, in memory: for data alone, since nothing may be executed there on some machines."""
    directory = new_directory("test")
    yield directory
    shutil.rmtree(directory, ignore_errors=True)
