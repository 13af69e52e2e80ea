"""Event batches: events that share a row read like those of jobs that were enqueued one by one."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest

from packhorse.conformance.builders import add, history, join, new_job
from packhorse.core.event import Event, Kind, Subject
from packhorse.core.ids import Ids, new_id
from packhorse.core.job import Job, NewJob
from packhorse.core.outcome import Completed
from packhorse.storage.postgres import Postgres
from packhorse.storage.postgres.event_batches import bounds, farthest
from packhorse.storage.records import EventFilter, Placement, Retention
from packhorse.storage.transfer import Section
from tests.children import PATIENCE, until
from tests.postgres_server import shared_postgres

BYGONE = Retention(events=0)


def a_batch(number: int, **options: Any) -> list[NewJob]:
    """As `enqueue_many` makes them."""
    return [new_job(new_id(), **options) for _ in range(number)]


@pytest.fixture
def packed(storage: Postgres) -> list[NewJob]:
    """Three batches of ten, each an event batch, with two events of others in between."""
    add(storage, "before")  # makes the names known
    jobs: list[NewJob] = []
    for between in ("first", "second", None):
        batch = a_batch(10)
        storage.enqueue(batch)
        jobs += batch
        if between:
            add(storage, between)
    return jobs


def rows(storage: Postgres) -> int:
    """How many rows the events lie in."""
    with storage._db.lent() as connection:
        ((number,),) = connection.rows(f"SELECT count(*) FROM {storage.options.schema}.packhorse_event")
    return int(number)


def walk(storage: Postgres, where: EventFilter, limit: int, *, newest_first: bool = False) -> list[Event]:
    """All of them, page by page."""
    found: list[Event] = []
    while page := storage.events(where, limit=limit, newest_first=newest_first):
        assert len(page) <= limit
        found += page
        edge = {"before": page[-1].id} if newest_first else {"after": page[-1].id}
        where = EventFilter(where.job_id, where.subject, where.kind, where.queue, where.owner, **edge)
    return found


def test_a_batch_is_one_row_of_events(storage: Postgres, packed: list[NewJob]) -> None:
    assert rows(storage) == 3 + 3


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("limit", [1, 3, 10, 100])
def test_events_are_walked_over_in_their_order(
    storage: Postgres, packed: list[NewJob], limit: int, newest_first: bool
) -> None:
    ids = [new.id for new in packed]
    expected = ["before", *ids[:10], "first", *ids[10:20], "second", *ids[20:]]

    found = walk(storage, EventFilter(), limit, newest_first=newest_first)

    assert [event.job_id for event in found] == (expected[::-1] if newest_first else expected)
    assert len({event.id for event in found}) == len(expected)


def test_an_event_of_a_pack_tells_what_one_of_its_own_row_tells(storage: Postgres, packed: list[NewJob]) -> None:
    alone = add(storage)
    (event,) = history(storage, packed[15].id)
    (other,) = history(storage, alone.id)
    job = storage.get(packed[15].id)

    assert isinstance(job, Job)
    assert (event.at, event.job_id) == (job.created_at, job.id)
    facts = ("kind", "subject", "queue", "state", "owner", "fence", "data")
    assert [getattr(event, fact) for fact in facts] == [getattr(other, fact) for fact in facts]


def test_a_delayed_batch_tells_when_it_is_due(storage: Postgres) -> None:
    add(storage)
    batch = a_batch(5, delay=60_000_000)
    storage.enqueue(batch)

    (event,) = history(storage, batch[3].id)

    job = storage.get(batch[3].id)
    assert job is not None
    assert (event.state, event.data) == ("scheduled", {"due_at": job.due_at})


def test_bounds_may_lie_within_a_pack(storage: Postgres, packed: list[NewJob]) -> None:
    found = storage.events(EventFilter())
    for number in (1, 4, 10, 11, 12, 25):
        after = storage.events(EventFilter(after=found[number].id), limit=7)
        before = storage.events(EventFilter(before=found[number].id), limit=7, newest_first=True)
        between = storage.events(EventFilter(after=found[number].id, before=found[number + 3].id))
        assert after == found[number + 1 : number + 8]
        assert before == found[:number][::-1][:7]
        assert between == found[number + 1 : number + 3]


def test_events_of_a_pack_are_chosen_by_what_they_have_in_common(storage: Postgres, packed: list[NewJob]) -> None:
    storage.pause("mail")

    assert len(storage.events(EventFilter(kind=Kind.ADDED, queue="mail"))) == 33
    assert storage.events(EventFilter(kind=Kind.STARTED)) == []
    assert storage.events(EventFilter(queue="other")) == []
    assert storage.events(EventFilter(owner="ann")) == []
    assert len(storage.events(EventFilter(subject=Subject.QUEUE))) == 1
    assert len(storage.events(EventFilter(subject=Subject.JOB))) == 33


def test_a_job_has_its_events_from_the_pack_and_from_elsewhere(storage: Postgres, packed: list[NewJob]) -> None:
    join(storage)
    taken = {job.id: job for job in storage.reserve("ann", {"mail": 1}, 100)}
    storage.finish([Completed(taken[packed[12].id].token)])

    kinds = [event.kind for event in history(storage, packed[12].id)]
    assert kinds == [Kind.ADDED, Kind.RESERVED, Kind.STARTED, Kind.COMPLETED]
    assert [event.kind for event in history(storage, packed[13].id)] == [Kind.ADDED, Kind.RESERVED]


def test_the_events_of_a_job_outlive_it(storage: Postgres, packed: list[NewJob]) -> None:
    storage.delete([packed[4].id])

    assert [event.kind for event in history(storage, packed[4].id)] == [Kind.ADDED, Kind.DELETED]
    assert [event.kind for event in history(storage, packed[5].id)] == [Kind.ADDED]


def test_a_part_of_an_id_is_no_id(storage: Postgres, packed: list[NewJob]) -> None:
    assert history(storage, packed[4].id[:-1]) == []
    assert history(storage, packed[4].id[1:]) == []


@pytest.mark.parametrize("limit", [1, 4, 7, 10, 50])
def test_pruning_takes_packs_apart_and_leaves_the_newest_event(
    storage: Postgres, packed: list[NewJob], limit: int
) -> None:
    left = storage.events(EventFilter())
    while True:
        pruned = storage.prune(BYGONE, limit=limit)
        assert pruned.events == min(limit, len(left) - 1)
        left = left[pruned.events :]
        assert storage.events(EventFilter()) == left
        assert pruned.more == (len(left) > 1)
        if not pruned.more:
            break

    assert left[0].job_id == packed[-1].id
    assert history(storage, packed[-1].id) == left
    assert history(storage, packed[-2].id) == []
    add(storage, "later")
    assert storage.prune(BYGONE, limit=limit).events == 1


def test_two_who_prune_at_once_do_not_cut_the_same_pack(
    storage: Postgres, url: str, packed: list[NewJob], observer: psycopg.Connection[tuple[object, ...]]
) -> None:
    told = storage.events(EventFilter())
    other = Postgres.from_url(url)
    first_has_cut, second_waits = threading.Event(), threading.Event()
    pruned: list[Any] = []

    def first(tx: Any) -> tuple[int, bool]:
        done = tx._drop_events(told[-1].at, 9)
        first_has_cut.set()
        assert second_waits.wait(PATIENCE)
        return done

    threads = [
        threading.Thread(target=lambda: pruned.append(storage._write("prune", first)[0])),
        threading.Thread(target=lambda: pruned.append(other.prune(BYGONE, limit=9).events)),
    ]
    threads[0].start()
    assert first_has_cut.wait(PATIENCE)
    threads[1].start()
    until(lambda: _waits(observer), "the second waits for the first")
    second_waits.set()
    for thread in threads:
        thread.join(PATIENCE)

    assert pruned == [9, 9]
    assert storage.events(EventFilter()) == told[18:]
    other.close()


def _waits(observer: psycopg.Connection[tuple[object, ...]]) -> bool:
    return bool(observer.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall())


def test_all_events_are_dumped_though_somebody_keeps_a_transaction_open(
    storage: Postgres, packed: list[NewJob]
) -> None:
    told = storage.events(EventFilter())
    with psycopg.connect(shared_postgres().url) as own:
        storage.enqueue_within(own, [new_job()])
        dumped: list[Event] = []
        cursor = None
        while True:
            page = storage.dump(Section.EVENTS, cursor=cursor, limit=7)
            dumped += page.rows
            cursor = page.next
            if cursor is None:
                break
        own.rollback()

    assert dumped == told


def test_a_follower_is_shown_a_pack_when_all_before_it_is_there(storage: Postgres) -> None:
    first = add(storage)
    (added,) = history(storage, first.id)
    batch = a_batch(5)
    with psycopg.connect(shared_postgres().url) as own:
        storage.enqueue_within(own, [new_job("late")])
        storage.enqueue(batch)
        assert storage.events(EventFilter(after=added.id)) == []
        own.commit()

    found = storage.events(EventFilter(after=added.id))
    assert [event.job_id for event in found] == ["late", *(new.id for new in batch)]


def test_a_batch_that_is_sent_again_adds_nothing(storage: Postgres, packed: list[NewJob]) -> None:
    before = storage.events(EventFilter())

    answers = storage.enqueue(packed[10:20])

    assert {answer.placement for answer in answers} == {Placement.KEPT}
    assert storage.events(EventFilter()) == before


@pytest.mark.parametrize(
    "ids",
    [
        ["one", "two"],
        [Ids(lambda: 5_000_000_000).new(), Ids(lambda: 4_000_000_000).new()],
        [Ids(lambda: 5_000_000_000).new(), Ids(lambda: 25_000_000_000).new()],
    ],
    ids=["of others", "not in order", "far apart"],
)
def test_ids_that_a_pack_could_not_be_found_by_have_rows_of_their_own(storage: Postgres, ids: list[str]) -> None:
    add(storage)

    storage.enqueue([new_job(each) for each in ids])

    assert rows(storage) == 3
    assert [[event.kind for event in history(storage, each)] for each in ids] == [[Kind.ADDED]] * 2


def test_a_pack_does_not_reach_farther_than_it_is_looked_for() -> None:
    first, last = Ids(lambda: 65_535_000_000).new(), Ids(lambda: 75_535_000_000).new()

    assert bounds([first, last]) == (first, last)
    assert first < last < farthest(first)
    assert farthest(first) < Ids(lambda: 75_536_000_000).new()
    assert farthest("somebody's") > last
    assert farthest("ffffffff-ffff-7000") > "ffffffff-ffff-7000"


def test_the_events_of_a_job_are_found_without_a_look_at_other_packs(storage: Postgres) -> None:
    add(storage)
    with psycopg.connect(shared_postgres().url, autocommit=True) as admin:
        admin.execute(
            f"INSERT INTO {storage.options.schema}.packhorse_event"
            " (at, kind, subject, queue, state, span, first_job, last_job, jobs)"
            " SELECT 1, 'added', 'job', 'mail', 'queued', 1, id || '1', id || '2', id || E'1\\n' || id || '2' FROM ("
            " SELECT substr(lpad(to_hex(n * 60000), 12, '0'), 1, 8) || '-'"
            " || substr(lpad(to_hex(n * 60000), 12, '0'), 9, 4) || '-7000-8000-00000000000' AS id"
            " FROM generate_series(1, 3000) AS n) AS made"
        )
        job_id = f"{1500 * 60000 >> 16:08x}-{1500 * 60000 & 0xFFFF:04x}-7000-8000-000000000002"
        (found,) = storage.events(EventFilter(job_id=job_id))
        assert found.job_id == job_id
        query, _, values = storage._events.rows_with(EventFilter(job_id=job_id), "true")
        with storage._db.lent() as connection:
            ((plan,),) = connection.rows(f"EXPLAIN (ANALYZE, FORMAT JSON) {storage._dialect.say(query)}", values)

    read = [node for node in plan[0]["Plan"]["Plans"] if node["Relation Name"] == "packhorse_event"]
    assert {node["Index Name"] for node in read} == {"packhorse_event_job", "packhorse_event_pack"}
    assert sum(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in read) == 1
