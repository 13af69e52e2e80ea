"""The scan cursor on MySQL: see `tests/storage/test_scan_cursor.py`."""

from __future__ import annotations

import pytest

from packhorse.conformance.builders import ids, join, new_jobs
from packhorse.storage.mysql import MySQL
from packhorse.storage.sql import scan_cursor
from packhorse.storage.sql.scan_cursor import ScanCursor


@pytest.fixture
def slow(storage: MySQL, monkeypatch: pytest.MonkeyPatch) -> MySQL:
    """A storage to which every scan is slow."""
    monkeypatch.setattr(scan_cursor, "_RESCAN_AFTER", 1e9)
    storage._hot_path.cursor = ScanCursor(0.0, skips_ranks=True)
    join(storage)
    return storage


@pytest.mark.parametrize("queues", [{"mail": 1}, {"mail": 1, "print": 1}])
def test_jobs_are_taken_in_their_order_all_the_same(slow: MySQL, queues: dict[str, int]) -> None:
    slow.enqueue(new_jobs(30))
    first = slow.reserve("ann", queues, 10)
    assert slow._hot_path.cursor.ranges("mail") == [(12, 12, first[-1].seq)]

    urgent = slow.enqueue(new_jobs(3, priority=10))
    taken = [ids(slow.reserve("ann", queues, limit)) for limit in (5, 8, 40)]

    assert taken[0][:3] == [one.job_id for one in urgent]
    everything = [*ids(first), *(job_id for part in taken for job_id in part)]
    assert len(everything) == len(set(everything)) == 33


def test_a_job_that_this_process_brings_back_is_first(slow: MySQL) -> None:
    slow.enqueue(new_jobs(5))
    first, _ = slow.reserve("ann", {"mail": 1}, 2)
    slow.release([first.token], "handed back")

    assert ids(slow.reserve("ann", {"mail": 1}, 1)) == [first.id]


def test_what_another_process_brings_back_is_found_when_the_line_is_walked_again(slow: MySQL, url: str) -> None:
    other = MySQL.from_url(url)
    slow.enqueue(new_jobs(3))
    first, _ = slow.reserve("ann", {"mail": 1}, 2)
    other.release([first.token], "handed back")

    assert first.id not in ids(slow.reserve("ann", {"mail": 1}, 5))
    assert ids(slow.reserve("ann", {"mail": 1}, 5)) == [first.id]
    other.close()
