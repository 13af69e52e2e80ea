"""While the storage is away a worker tries again after ever longer pauses, and says so once a minute."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import pytest

from packhorse.core.errors import StorageUnavailable
from packhorse.worker import outage
from packhorse.worker.outage import FIRST_PAUSE, LONGEST_PAUSE, Outage

AWAY = StorageUnavailable("the storage is away")


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still, and no dice are thrown."""
    monkeypatch.setattr(time, "monotonic", lambda: 1_000.0)
    monkeypatch.setattr(outage.random, "uniform", lambda least, most: most)


def pauses(outage: Outage, number: int) -> list[float]:
    found = []
    for _ in range(number):
        outage.note(AWAY, waiting=0)
        found.append(round(outage.next_try - 1_000.0, 3))
    return found


def test_the_pauses_double_up_to_the_longest():
    assert pauses(Outage(), 9) == [FIRST_PAUSE, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, LONGEST_PAUSE, LONGEST_PAUSE]


def test_after_an_answer_they_begin_anew():
    outage = Outage()
    pauses(outage, 5)

    outage.end()

    assert pauses(outage, 2) == [FIRST_PAUSE, 0.1]


def test_less_is_sent_at_once_until_it_gets_through():
    outage = Outage()

    def most(change: Callable[[], None]) -> int:
        change()
        return outage.most

    assert [most(lambda: outage.note(AWAY, waiting=0)) for _ in range(11)] == [
        500, 250, 125, 62, 31, 15, 7, 3, 1, 1, 1
    ]  # fmt: skip
    assert [most(outage.end) for _ in range(11)] == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1_000, 1_000]


def test_it_is_told_once_until_the_storage_has_answered(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "packhorse.worker")
    outage = Outage()

    outage.note(AWAY, waiting=7)
    outage.note(AWAY, waiting=8)
    outage.end()
    outage.note(AWAY, waiting=9)

    assert [record.getMessage() for record in caplog.records] == [
        "the storage does not answer; 7 outcomes wait: the storage is away",
        "the storage answers again",
        "the storage does not answer; 9 outcomes wait: the storage is away",
    ]


def test_it_is_told_again_after_a_minute(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    outage = Outage()
    outage.note(AWAY, waiting=7)

    monkeypatch.setattr(time, "monotonic", lambda: 1_060.0)
    outage.note(AWAY, waiting=7)

    assert len(caplog.records) == 2
