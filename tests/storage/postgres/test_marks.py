"""Marks: a line that is full of jobs which are gone is not walked again and again, and no job is hidden for long."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from packhorse.conformance.builders import add, join, new_jobs
from packhorse.core.job import QUEUED, RANKS, Job
from packhorse.storage.postgres import Postgres, marks
from packhorse.storage.postgres.marks import LONG_WALK, Marks

Bystander = psycopg.Connection[tuple[object, ...]]


class Hand:
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


def job(seq: int, rank: int = 12, queue: str = "mail") -> Job:
    return Job(f"job-{seq}", seq, "send", queue, "{}", QUEUED, 1, rank, 0, 0)


def test_a_short_walk_is_not_worth_remembering() -> None:
    own = Marks(Hand())

    own.note(["mail"], [job(7)], LONG_WALK - 1, is_all=True)
    own.note([f"queue-{number}" for number in range(500)], [job(7)], 5 * LONG_WALK - 1, is_all=True)

    assert not own.are_there(["mail", "queue-1"])
    assert own.ranges("mail") == [(RANKS[0], RANKS[-1], 0)]


def test_after_a_long_walk_a_line_begins_where_jobs_were_found() -> None:
    own = Marks(Hand())

    own.note(["mail", "print"], [job(7, rank=5), job(9, rank=12), job(11, rank=12)], LONG_WALK, is_all=False)

    assert own.are_there(["mail"])
    assert own.ranges("mail") == [(rank, rank, 11) for rank in RANKS]
    assert [own.start("print", rank) for rank in (5, 11, 12)] == [11, 11, 0]  # of the last rank it is not known
    assert not own.are_there(["other"])


def test_ranks_that_were_not_come_to_are_walked_from_their_beginning() -> None:
    own = Marks(Hand())

    own.note(["mail"], [job(9, rank=5)], LONG_WALK, is_all=False)

    assert own.ranges("mail") == [*((rank, rank, 9) for rank in range(6)), (6, 12, 0)]


def test_the_whole_line_is_walked_again_after_ten_times_as_long_and_ten_seconds_at_most() -> None:
    for took, seconds in ((LONG_WALK, 0.1), (60_000_000, 10.0)):
        hand = Hand()
        own = Marks(hand)
        own.note(["mail"], [job(9)], took, is_all=True)
        hand.at += 0.9 * seconds
        own.note(["mail"], [job(11)], took, is_all=True)  # this does not put it off

        assert own.are_there(["mail"])
        hand.at += 0.1 * seconds + 0.001
        assert not own.are_there(["mail"])
        assert own.start("mail", 12) == 0


def test_a_job_that_comes_back_into_line_by_this_process_is_seen_at_once(
    storage: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "LONG_WALK", 0)
    storage._marks = Marks(Hand())
    join(storage)
    storage.enqueue(new_jobs(10))
    first, *_ = storage.reserve("ann", {"mail": 1}, 5)

    storage.release([first.token], "for a change")

    assert storage.reserve("ann", {"mail": 1}, 1)[0].id == first.id


def test_a_job_that_comes_back_into_line_elsewhere_is_seen_when_the_whole_line_is_walked(
    storage: Postgres, neighbour: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "LONG_WALK", 0)
    hand = Hand()
    storage._marks = Marks(hand)
    join(storage)
    for queues in ({"mail": 1}, {"mail": 1, "print": 1}):
        for queue in queues:
            storage.enqueue(new_jobs(10, queue=queue))
        first, *_ = storage.reserve("ann", queues, 5)
        neighbour.release([first.token], "for a change")

        others = storage.reserve("ann", queues, 3)
        hand.at += 11
        assert first.id not in {other.id for other in others}
        assert first.id in {one.id for one in storage.reserve("ann", queues, 2)}


def test_jobs_that_a_pause_has_kept_in_line_are_seen_at_once_when_it_is_over(
    storage: Postgres, neighbour: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "LONG_WALK", 0)
    storage._marks = Marks(Hand())
    join(storage)
    urgent, usual = new_jobs(1, queue="print", priority=10), new_jobs(2, queue="print")
    storage.enqueue([*urgent, *usual])
    storage.pause("print")
    for _ in range(2):  # without marks, and with them
        neighbour.enqueue(new_jobs(2))
        for _ in range(2):
            assert [job.queue for job in storage.reserve("ann", {"mail": 1, "print": 1}, 1)] == ["mail"]
        assert storage.reserve("ann", {"mail": 1, "print": 1}, 1) == []

    neighbour.resume("print")

    assert storage._marks.are_there(["mail"])
    for expected in (*urgent, *usual):
        assert [job.id for job in storage.reserve("ann", {"mail": 1, "print": 1}, 1)] == [expected.id]


def test_a_forced_job_of_a_paused_queue_hides_none_before_it(
    storage: Postgres, neighbour: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "LONG_WALK", 0)
    storage._marks = Marks(Hand())
    join(storage)
    first, second = new_jobs(2)
    storage.enqueue([first, second])
    storage.pause("mail")
    storage.force_start([second.id])
    assert [job.id for job in storage.reserve("ann", {"mail": 1}, 5)] == [second.id]

    neighbour.resume("mail")

    assert [job.id for job in storage.reserve("ann", {"mail": 1}, 5)] == [first.id]


def test_a_line_full_of_jobs_that_are_gone_is_hardly_walked(
    storage: Postgres, schema: str, bystander: Bystander, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody keeps a transaction open, so that the server cannot forget them."""
    if bystander.info.server_version < 150_000:
        pytest.skip("before PostgreSQL 15 nobody can ask for its counts at once")
    monkeypatch.setattr(marks, "LONG_WALK", 0)
    storage._marks = Marks(Hand())
    join(storage)
    bystander.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    bystander.execute(f"SELECT count(*) FROM {schema}.packhorse_job")
    for queues in ({"mail": 1}, {"mail": 1, "print": 1}):
        read = []
        for _ in range(10):
            storage.enqueue(new_jobs(200))
            before = entries_read(storage, schema)
            assert len(storage.reserve("ann", queues, 200)) == 200
            read.append(entries_read(storage, schema) - before)

        assert read[-1] < 900  # 2,000 are gone; what was taken by the last call, this one's, and what looks for lines
    bystander.execute("ROLLBACK")
    assert add(storage).id


def entries_read(storage: Postgres, schema: str) -> int:
    """How many entries of the line's index were looked at so far, by the one connection that there is."""
    with storage._db.lent() as link:
        link.rows("SELECT pg_stat_force_next_flush()")
        link.rows("SELECT pg_stat_clear_snapshot()")
        ((number,),) = link.rows(
            "SELECT idx_tup_read FROM pg_stat_user_indexes"
            " WHERE schemaname = $1 AND indexrelname = 'packhorse_job_line'",
            (schema,),
        )
    return int(number)
