"""What holds for all tests: the same examples in every run, and none fails because the machine is slow."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("steady")
