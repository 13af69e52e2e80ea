"""The suite that every storage passes: what a storage may do late on a slow machine, it does at once here."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _at_once(exact_lines: None) -> None:
    """Lines are as they are, in every test."""
