"""What the tests of chores share: a storage that forgets, and a clock that is turned by load."""

from __future__ import annotations

import pytest

from packhorse.core.clock import ManualClock
from packhorse.storage.memory import Memory


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def storage(clock: ManualClock) -> Memory:
    return Memory(clock)
