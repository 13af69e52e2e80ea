"""Whatever lies in the tables, the statements of the hot path touch no more rows than they need.

With a hundred thousand finished jobs and fifty thousand in line; and with statistics that say the table is empty, which
is what the server believes after a night without work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from packhorse.job import COMPLETED, QUEUED, SCHEDULED
from packhorse.outcome import Completed
from packhorse.storage.mysql import MySQL
from packhorse.storage.mysql.link import Link
from packhorse.storage.mysql.working import _stretch
from packhorse.storage.records import EventFilter, Filter, TaskInfo
from tests.mysql_server import new_database_url, shared_mysql
from tests.storage.builders import join, new_jobs

_FILL = """
INSERT INTO packhorse_job (id, task, queue, args, state, priority, `rank`, created_at, updated_at, {column})
SELECT concat('{state}-', seq), 'send', elt(1 + seq % 3, 'mail', 'print', 'other'), '{}', '{state}', 1, 12, seq, seq,
       {start} + seq
FROM seq_1_to_{number}
"""
STRETCHES = [_stretch(0, 12, 0), _stretch(12, 12, 0), _stretch(12, 12, 110_000)]
_EVENTS = """
INSERT INTO packhorse_event (at, kind, subject, job_id, queue, state)
SELECT seq, 'added', 'job', concat('completed-', seq), 'mail', 'queued' FROM seq_1_to_100000
"""


@pytest.fixture(scope="module")
def crowded() -> Iterator[MySQL]:
    storage = MySQL.from_url(new_database_url())
    join(storage)
    storage.announce([TaskInfo("send", queue) for queue in ("mail", "print")])
    with shared_mysql().connect(database=storage.address.database, autocommit=True) as hand, hand.cursor() as cursor:
        for table in ("job", "event"):  # nothing there, it says, and shall go on saying so
            cursor.execute(f"ALTER TABLE packhorse_{table} STATS_AUTO_RECALC = 0")
            cursor.execute(f"ANALYZE TABLE packhorse_{table}")
        for state, column, number, start in [
            ("completed", "finished_at", 100_000, 0),
            ("queued", "queued_at", 50_000, 0),
            ("scheduled", "due_at", 20_000, 4_000_000_000_000_000),
        ]:
            filled = _FILL.replace("{state}", state).replace("{column}", column).replace("{start}", str(start))
            cursor.execute(filled.replace("{number}", str(number)))
        cursor.execute(_EVENTS)
    yield storage
    storage.close()


def rows_touched(storage: MySQL, work: Callable[[Link], object]) -> int:
    """How many rows and index entries the statements of `work` looked at; they are undone."""
    with storage._db.lent() as link:
        link.script(["FLUSH STATUS", "START TRANSACTION"])
        work(link)
        read = dict(link.rows("SHOW SESSION STATUS LIKE 'Handler_read%'"))
        link.script(["ROLLBACK"])
    return sum(int(number) for number in read.values())


def touched_by_call(storage: MySQL, call: Callable[[], object]) -> int:
    """The same for a call of the storage, which uses the connection that was used last."""
    with storage._db.lent() as link:
        link.script(["FLUSH STATUS"])
    call()
    with storage._db.lent() as link:
        return sum(int(number) for _, number in link.rows("SHOW SESSION STATUS LIKE 'Handler_read%'"))


def test_reserving_and_completing_by_memory_or_by_what_is_stored(crowded: MySQL) -> None:
    jobs = crowded.reserve("ann", {"mail": 1}, 100)
    outcomes = [Completed(job.token) for job in jobs]
    assert touched_by_call(crowded, lambda: crowded.finish(outcomes)) <= 250
    others = crowded.reserve("ann", {"mail": 1}, 100)
    crowded._dealt.clear()

    assert touched_by_call(crowded, lambda: crowded.finish([Completed(job.token) for job in others])) <= 450


@pytest.mark.parametrize("queues", [["mail"], ["empty"], ["mail", "print", *(f"empty-{n}" for n in range(50))]])
def test_reserving_uses_its_index(crowded: MySQL, queues: list[str]) -> None:
    taken: list[Any] = []
    weights = dict.fromkeys(queues, 1)

    assert touched_by_call(crowded, lambda: taken.extend(crowded.reserve("ann", weights, 100))) <= 800
    crowded.release([job.token for job in taken], "seen")


def test_the_pick_is_explained_as_a_walk_along_the_line(crowded: MySQL) -> None:
    with crowded._db.lent() as link:
        plans = [
            link.rows(f"EXPLAIN {crowded._sql[name]}", values)[0]
            for name, values in [("pick", ("mail", stretch, 100)) for stretch in STRETCHES]
        ]

    for _, _, _, kind, _, key, _, _, _, extra in plans:
        assert kind in ("range", "ref")
        assert key == "packhorse_job_line"
        assert "filesort" not in extra


def test_enqueueing(crowded: MySQL) -> None:
    assert touched_by_call(crowded, lambda: crowded.enqueue(new_jobs(100))) <= 20


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("gate", ("ann", 3_900_000_000_000_000)),
        ("due_jobs", (3_900_000_000_000_000, 100)),
        ("due_jobs", (5_000_000_000_000_000, 100)),
        ("expired_jobs", (3_900_000_000_000_000, 100)),
        ("next_due", (3_900_000_000_000_000,)),
        ("lost_jobs", (0, 0, 100)),
        ("jobs_of_owner", ("ann", 100)),
        ("has_work", ('["mail", "print"]',)),
        ("has_work", ('["empty"]',)),
        ("has_any_work", ()),
        ("oldest_in_line", ('["mail", "print"]',)),
        ("lines_of_rank", (12, "", 100)),
        ("prunable_jobs", ("completed", 50, 0, 100)),
        ("old_events", (100, 50)),
        ("oldest_event", ()),
        ("jobs_to_stop", ('["ann"]',)),
        ("silent_workers", (0, 1)),
        ("outlook", (3_900_000_000_000_000, '["ann", "nobody"]', "foreman", 0)),
        ("outlook", (3_900_000_000_000_000, "[]", "foreman", 1 << 40)),
        ("has_lost", (0, 1)),
        ("has_to_fold", (3_900_000_000_000_000, 1, 1, 1)),
        ("has_old", (0, 0, 0, 0, 0)),
        ("beaten", (3_900_000_000_000_000, '["ann", "nobody"]')),
    ],
)
def test_what_is_asked_every_second(crowded: MySQL, name: str, values: tuple[Any, ...]) -> None:
    assert rows_touched(crowded, lambda link: link.rows(crowded._sql[name], values)) <= 420


@pytest.mark.parametrize(
    "where",
    [
        Filter(),
        Filter(frozenset({QUEUED})),
        Filter(frozenset({SCHEDULED})),
        Filter(frozenset({COMPLETED})),
        Filter(queue="mail"),
        Filter(owner="nobody"),
    ],
    ids=str,
)
def test_a_page_of_a_list_is_found_without_a_walk_over_all(crowded: MySQL, where: Filter) -> None:
    page = crowded.find(where, limit=50)
    assert touched_by_call(crowded, lambda: crowded.find(where, cursor=page.next, limit=50)) <= 3_000
    assert len(page.jobs) == (0 if where.owner else 50)


@pytest.mark.parametrize("where", [EventFilter(job_id="completed-7"), EventFilter(subject="worker"), EventFilter()])
def test_events_are_found_without_a_walk_over_all(crowded: MySQL, where: EventFilter) -> None:
    assert touched_by_call(crowded, lambda: crowded.events(where)) <= 300
    assert touched_by_call(crowded, lambda: crowded.events(where, newest_first=True)) <= 300
