"""The scan cursor on PostgreSQL: see `tests/storage/test_scan_cursor.py`."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from packhorse.conformance.builders import add, join, new_jobs
from packhorse.storage.postgres import Postgres
from packhorse.storage.sql.scan_cursor import ScanCursor

Observer = psycopg.Connection[tuple[object, ...]]


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def neighbour(url: str) -> Iterator[Postgres]:
    """The storage of another process."""
    neighbour = Postgres.from_url(url)
    yield neighbour
    neighbour.close()


def test_a_job_that_comes_back_into_line_by_this_process_is_seen_at_once(storage: Postgres) -> None:
    storage._hot_path.cursor = ScanCursor(0, now=Clock())
    join(storage)
    storage.enqueue(new_jobs(10))
    first, *_ = storage.reserve("ann", {"mail": 1}, 5)

    storage.release([first.token], "for a change")

    assert storage.reserve("ann", {"mail": 1}, 1)[0].id == first.id


def test_a_job_that_comes_back_into_line_elsewhere_is_seen_when_the_whole_line_is_walked(
    storage: Postgres, neighbour: Postgres
) -> None:
    clock = Clock()
    storage._hot_path.cursor = ScanCursor(0, now=clock)
    join(storage)
    for queues in ({"mail": 1}, {"mail": 1, "print": 1}):
        for queue in queues:
            storage.enqueue(new_jobs(10, queue=queue))
        first, *_ = storage.reserve("ann", queues, 5)
        neighbour.release([first.token], "for a change")

        others = storage.reserve("ann", queues, 3)
        clock.at += 11
        assert first.id not in {other.id for other in others}
        assert first.id in {one.id for one in storage.reserve("ann", queues, 2)}


def test_jobs_that_a_pause_has_kept_in_line_are_seen_at_once_when_it_is_over(
    storage: Postgres, neighbour: Postgres
) -> None:
    storage._hot_path.cursor = ScanCursor(0, now=Clock())
    join(storage)
    urgent, usual = new_jobs(1, queue="print", priority=10), new_jobs(2, queue="print")
    storage.enqueue([*urgent, *usual])
    storage.pause("print")
    for _ in range(2):  # without a cursor, and with one
        neighbour.enqueue(new_jobs(2))
        for _ in range(2):
            assert [job.queue for job in storage.reserve("ann", {"mail": 1, "print": 1}, 1)] == ["mail"]
        assert storage.reserve("ann", {"mail": 1, "print": 1}, 1) == []

    neighbour.resume("print")

    assert storage._hot_path.cursor.is_set(["mail"])
    for expected in (*urgent, *usual):
        assert [job.id for job in storage.reserve("ann", {"mail": 1, "print": 1}, 1)] == [expected.id]


def test_a_forced_job_of_a_paused_queue_hides_none_before_it(storage: Postgres, neighbour: Postgres) -> None:
    storage._hot_path.cursor = ScanCursor(0, now=Clock())
    join(storage)
    first, second = new_jobs(2)
    storage.enqueue([first, second])
    storage.pause("mail")
    storage.force_start([second.id])
    assert [job.id for job in storage.reserve("ann", {"mail": 1}, 5)] == [second.id]

    neighbour.resume("mail")

    assert [job.id for job in storage.reserve("ann", {"mail": 1}, 5)] == [first.id]


def test_a_line_full_of_jobs_that_are_gone_is_hardly_walked(storage: Postgres, schema: str, observer: Observer) -> None:
    """Somebody keeps a transaction open, so that the server cannot forget them."""
    if observer.info.server_version < 150_000:
        pytest.skip("before PostgreSQL 15 nobody can ask for its counts at once")
    storage._hot_path.cursor = ScanCursor(0, now=Clock())
    join(storage)
    observer.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    observer.execute(f"SELECT count(*) FROM {schema}.packhorse_job")
    for queues in ({"mail": 1}, {"mail": 1, "print": 1}):
        read = []
        for _ in range(10):
            storage.enqueue(new_jobs(200))
            before = entries_read(storage, schema)
            assert len(storage.reserve("ann", queues, 200)) == 200
            read.append(entries_read(storage, schema) - before)

        assert read[-1] < 900  # 2,000 are gone; what was taken by the last call, this one's, and what looks for lines
    observer.execute("ROLLBACK")
    assert add(storage).id


def entries_read(storage: Postgres, schema: str) -> int:
    """How many entries of the line's index were looked at so far, by the one connection that there is."""
    with storage._db.lent() as connection:
        connection.rows("SELECT pg_stat_force_next_flush()")
        connection.rows("SELECT pg_stat_clear_snapshot()")
        ((number,),) = connection.rows(
            "SELECT idx_tup_read FROM pg_stat_user_indexes"
            " WHERE schemaname = $1 AND indexrelname = 'packhorse_job_line'",
            (schema,),
        )
    return int(number)
