"""How far one request looks back over events: further as long as that is quick, and it says where to go on."""

from __future__ import annotations

import math

import pytest

from packhorse.core.event import Kind
from packhorse.storage import open_storage
from packhorse.storage.records import EventFilter
from packhorse.web import history
from packhorse.web.history import newest_id, scan_back, scan_widths

PAUSED = EventFilter(kind=Kind.PAUSED)


def test_long_looks_follow_quick_ones_and_none_follows_a_slow_one(monkeypatch: pytest.MonkeyPatch):
    storage = open_storage("memory://")
    storage.pause("mail")
    for _ in range(40):
        storage.pause("other")
        storage.resume("other")
    where = EventFilter(kind=Kind.PAUSED, queue="mail")
    top = newest_id(storage) + 1

    monkeypatch.setattr(history, "_PATIENCE", math.inf)
    assert len(scan_back(storage, where, top, 5, scan_widths(storage, first=10))[0]) == 1

    monkeypatch.setattr(history, "_PATIENCE", 0.0)
    found, before = scan_back(storage, where, top, 5, scan_widths(storage, first=10))
    assert found == []
    assert before == top - 9


def test_a_full_page_ends_the_look_and_the_next_begins_behind_it():
    storage = open_storage("memory://")
    for number in range(4):
        storage.pause(f"queue-{number}")

    first, before = scan_back(storage, PAUSED, newest_id(storage) + 1, 3, scan_widths(storage))
    assert before is not None
    second, end = scan_back(storage, PAUSED, before, 3, scan_widths(storage))

    assert [event.queue for event in first + second] == ["queue-3", "queue-2", "queue-1", "queue-0"]
    assert end is None
