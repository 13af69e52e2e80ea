"""The scan cursor: a queue full of removed jobs is not scanned again and again, and no job is hidden for long."""

from __future__ import annotations

from packhorse.core.job import QUEUED, RANKS, Job
from packhorse.storage.sql.scan_cursor import ScanCursor

SLOW = 0.01


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


def job(seq: int, rank: int = 12, queue: str = "mail") -> Job:
    return Job(f"job-{seq}", seq, "send", queue, "{}", QUEUED, 1, rank, 0, 0)


def test_a_quick_scan_is_not_remembered() -> None:
    for skips_ranks in (False, True):
        cursor = ScanCursor(SLOW, skips_ranks=skips_ranks, now=Clock())

        cursor.note(["mail"], [job(7)], 0.99 * SLOW, is_all=False)
        cursor.note([f"queue-{number}" for number in range(500)], [job(7)], 4.99 * SLOW, is_all=False)

        assert not cursor.is_set(["mail", "queue-1"])
        assert cursor.ranges("mail") == [(RANKS[0], RANKS[-1], 0)]


def test_after_a_slow_scan_a_queue_begins_where_jobs_were_found() -> None:
    cursor = ScanCursor(SLOW, now=Clock())

    cursor.note(["mail", "print"], [job(7, rank=5), job(9, rank=12), job(11, rank=12)], SLOW, is_all=False)

    assert cursor.is_set(["mail"])
    assert cursor.ranges("mail") == [(rank, rank, 11) for rank in RANKS]
    assert [cursor.start("print", rank) for rank in (5, 11, 12)] == [11, 11, 0]  # nothing is known of the last rank
    assert not cursor.is_set(["other"])


def test_ranks_that_were_not_reached_are_scanned_from_their_beginning() -> None:
    cursor = ScanCursor(SLOW, now=Clock())

    cursor.note(["mail"], [job(9, rank=5)], SLOW, is_all=False)

    assert cursor.ranges("mail") == [*((rank, rank, 9) for rank in range(6)), (6, 12, 0)]


def test_ranks_before_the_cursor_are_skipped_where_asked() -> None:
    cursor = ScanCursor(SLOW, skips_ranks=True, now=Clock())

    cursor.note(["mail", "print"], [job(9, rank=5), job(7, rank=4), job(8, rank=5)], SLOW, is_all=False)

    assert cursor.ranges("mail") == [(5, 5, 9), (6, 12, 0)]
    assert cursor.ranges("mail", 1, 1) == [(1, 1, 0)]
    assert not cursor.is_set(["print"])
    cursor.note(["mail"], [], 0.001, is_all=True)
    assert not cursor.is_set(["mail"])


def test_a_cursor_moves_with_every_scan() -> None:
    for skips_ranks in (False, True):
        cursor = ScanCursor(SLOW, skips_ranks=skips_ranks, now=Clock())
        cursor.note(["mail"], [job(9)], SLOW, is_all=False)
        cursor.note(["mail"], [job(11)], 0.0, is_all=False)

        assert cursor.start("mail", 12) == 11


def test_the_whole_queue_is_scanned_again_after_ten_times_as_long_and_ten_seconds_at_most() -> None:
    for took, seconds in ((SLOW, 10 * SLOW), (60.0, 10.0)):
        clock = Clock()
        cursor = ScanCursor(SLOW, now=clock)
        cursor.note(["mail"], [job(9)], took, is_all=True)
        clock.at += 0.9 * seconds
        cursor.note(["mail"], [job(11)], took, is_all=True)  # this does not put it off

        assert cursor.is_set(["mail"])
        clock.at += 0.1 * seconds + 0.001
        assert not cursor.is_set(["mail"])
        assert cursor.start("mail", 12) == 0
