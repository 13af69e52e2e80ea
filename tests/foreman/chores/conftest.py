"""What the tests of chores share: a storage that forgets, and a clock that is turned by load."""

from __future__ import annotations

import pytest

from packhorse.core.clock import TurnedClock
from packhorse.storage.memory import Memory


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def storage(clock: TurnedClock) -> Memory:
    return Memory(clock)
