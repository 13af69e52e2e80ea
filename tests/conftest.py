"""What holds for all tests: the same examples in every run, and none fails because the machine is slow."""

from __future__ import annotations

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("packhorse.conformance")  # before anybody imports it: its tests are ours, too

settings.register_profile("steady", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("steady")
