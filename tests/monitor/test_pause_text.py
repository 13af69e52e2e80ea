from __future__ import annotations

import pytest

from packhorse.core.clock import DAY, HOUR
from packhorse.monitor.pause_text import pause_text
from packhorse.storage.records import QueueInfo

NOON = 1_800_014_400_000_000  # 2027-01-15 12:00 UTC


@pytest.mark.parametrize(
    ("queue", "told"),
    [
        (QueueInfo("mail", paused_at=NOON), ""),
        (QueueInfo("mail", paused_at=NOON, paused_by="ana"), " by ana"),
        (QueueInfo("mail", {}, NOON, "ana", "no server", NOON + 2 * HOUR), " by ana until 14:00 UTC: no server"),
        (QueueInfo("mail", paused_at=NOON, paused_until=NOON + DAY), " until 2027-01-16 12:00 UTC"),
    ],
)
def test_a_pause_tells_by_whom_until_when_and_why(queue: QueueInfo, told: str):
    assert pause_text(queue, NOON) == told
