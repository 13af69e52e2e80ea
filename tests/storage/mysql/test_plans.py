"""Whatever lies in the tables, the statements of the hot path and of the pages touch no more rows than they need.

With a hundred thousand jobs and fifty thousand events, or, by `make scale`, with a million jobs in line and five
million finished ones; with statistics that say the tables are empty, which is what the server believes after a night
without work, and with true ones. What is counted are the rows and index entries that were read: a full scan or a sort
shows there, whatever the plan is called.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymysql.cursors import DictCursor

from packhorse.conformance.builders import join, new_jobs
from packhorse.core.clock import DAY
from packhorse.core.event import Kind, Subject
from packhorse.core.job import COMPLETED, DEAD, HELD, QUEUED, RETRYING, SCHEDULED, Token
from packhorse.core.outcome import Completed
from packhorse.storage.mysql import MySQL
from packhorse.storage.mysql.connection import MySQLConnection
from packhorse.storage.mysql.hot_path import _stretch
from packhorse.storage.mysql.literals import rendered
from packhorse.storage.records import EventFilter, Filter, LogLine, Retention, Span, TaskInfo
from packhorse.storage.sql.server import FOLD_AFTER
from tests.mysql_server import new_database_url, numbers_to, shared_mysql

_FILL = """
INSERT INTO packhorse_job (id, task, queue, args, state, priority, `rank`, created_at, updated_at, {column})
SELECT concat('{state}-', n), 'send', elt(1 + n % 3, 'mail', 'print', 'other'), '{}', '{state}', 1, 12, n, n,
       {start} + n
FROM (SELECT {before} + n AS n FROM {numbers}) AS some WHERE n <= {number} ORDER BY n
"""
_EVENTS = """
INSERT INTO packhorse_event (at, kind, subject, job_id, queue, state)
SELECT n, 'added', 'job', concat('completed-', n), 'mail', 'queued' FROM {numbers} WHERE n <= 50000 ORDER BY n
"""
_LOG = (
    "INSERT INTO packhorse_log_line (at, attempt, job_id, kind, message) SELECT n, 1, n, 'log', 'hello' FROM {numbers}"
)
_MEASURES = """
INSERT INTO packhorse_measure (level, at, queue, task, counted, amount)
SELECT 'minute', n * 60000000, 'mail', 'send', 'completed', 1 FROM {numbers}
"""
_TALLIES = """
INSERT INTO packhorse_measure (level, at, queue, task, counted, amount)
SELECT 'tally', 0, queue, task, state, count(*) FROM packhorse_job GROUP BY queue, task, state
"""
SCALE = os.environ.get("PACKHORSE_SCALE")
WAITING, FINISHED = (int(SCALE), 5 * int(SCALE)) if SCALE else (30_000, 50_000)
pytestmark = pytest.mark.timeout(max(300, WAITING // 300))
_COUNTED = 2 * FOLD_AFTER
"""What is counted and not folded yet is read as it lies there."""
STRETCHES = [_stretch(0, 12, 0), _stretch(12, 12, 0), _stretch(12, 12, FINISHED + WAITING * 2 // 3)]


@pytest.fixture(scope="module")
def filled() -> Iterator[MySQL]:
    storage = MySQL.from_url(new_database_url())
    join(storage)
    storage.announce([TaskInfo("send", queue) for queue in ("mail", "print")])
    with shared_mysql().connect(database=storage.address.database, autocommit=True) as admin, admin.cursor() as cursor:
        for table in ("job", "event"):  # nothing there, it says, and shall go on saying so
            cursor.execute(f"ALTER TABLE packhorse_{table} STATS_AUTO_RECALC = 0")
            cursor.execute(f"ANALYZE TABLE packhorse_{table}")
        for state, column, number, start in [
            ("completed", "finished_at", FINISHED, 0),
            ("queued", "queued_at", WAITING, 0),
            ("scheduled", "due_at", WAITING * 2 // 3, 4_000_000_000_000_000),
        ]:
            fill = _FILL.replace("{state}", state).replace("{column}", column).replace("{start}", str(start))
            fill = fill.replace("{number}", str(number)).replace("{numbers}", numbers_to(100_000))
            for before in range(0, number, 100_000):
                cursor.execute(fill.replace("{before}", str(before)))
        cursor.execute(_EVENTS.replace("{numbers}", numbers_to(100_000)))
        cursor.execute(_LOG.replace("{numbers}", numbers_to(10_000)))
        cursor.execute(_MEASURES.replace("{numbers}", numbers_to(10_000)))
        cursor.execute(_TALLIES)
        cursor.execute("ANALYZE TABLE packhorse_log_line, packhorse_measure")
    yield storage
    storage.close()


@pytest.fixture(scope="module", params=["statistics of an empty table", "true statistics"])
def crowded(request: pytest.FixtureRequest, filled: MySQL) -> MySQL:
    if request.param == "true statistics":
        with filled._db.lent() as connection:
            connection.rows("ANALYZE TABLE packhorse_job, packhorse_event")
    return filled


def rows_touched(storage: MySQL, work: Callable[[MySQLConnection], object]) -> int:
    """How many rows and index entries the statements of `work` looked at; they are undone."""
    with storage._db.lent() as connection:
        connection.script(["FLUSH STATUS", "START TRANSACTION"])
        work(connection)
        read = dict(connection.rows("SHOW SESSION STATUS LIKE 'Handler_read%'"))
        connection.script(["ROLLBACK"])
    return sum(int(number) for number in read.values())


def touched_by_call(storage: MySQL, call: Callable[[], object]) -> int:
    """The same for a call of the storage, which uses the connection that was used last."""
    with storage._db.lent() as connection:
        connection.script(["FLUSH STATUS"])
    call()
    with storage._db.lent() as connection:
        return sum(int(number) for _, number in connection.rows("SHOW SESSION STATUS LIKE 'Handler_read%'"))


def test_reserving_and_completing_by_memory_or_by_what_is_stored(crowded: MySQL) -> None:
    jobs = crowded.reserve("ann", {"mail": 1}, 100)
    outcomes = [Completed(job.token) for job in jobs]
    assert touched_by_call(crowded, lambda: crowded.finish(outcomes)) <= 250
    others = crowded.reserve("ann", {"mail": 1}, 100)
    crowded._hot_path._reserved.clear()

    assert touched_by_call(crowded, lambda: crowded.finish([Completed(job.token) for job in others])) <= 450


@pytest.mark.parametrize("queues", [["mail"], ["empty"], ["mail", "print", *(f"empty-{n}" for n in range(50))]])
def test_reserving_uses_its_index(crowded: MySQL, queues: list[str]) -> None:
    taken: list[Any] = []
    weights = dict.fromkeys(queues, 1)

    assert touched_by_call(crowded, lambda: taken.extend(crowded.reserve("ann", weights, 100))) <= 800
    crowded.release([job.token for job in taken], "seen")


def test_the_pick_is_explained_as_a_walk_along_the_line(crowded: MySQL) -> None:
    with shared_mysql().connect(database=crowded.address.database, cursorclass=DictCursor) as admin:
        cursor = admin.cursor()
        for stretch in STRETCHES:
            pick = rendered(crowded._sql["pick"], ("mail", stretch, 100))
            cursor.execute(f"EXPLAIN FORMAT=TRADITIONAL {pick}")
            (plan,) = cursor.fetchall()

            assert (plan["type"], plan["key"]) in (("range", "packhorse_job_line"), ("ref", "packhorse_job_line"))
            assert "filesort" not in (plan["Extra"] or "")


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
        ("silent_workers", (0, 0, 0)),
        ("lost_jobs", ('["ann"]', 100)),
        ("lost_jobs", ("[]", 100)),
        ("held_jobs", ('["ann"]', 100)),
        ("has_work", ('["mail", "print"]',)),
        ("has_work", ('["empty"]',)),
        ("first_in_line", ('["mail", "print"]',)),
        ("oldest_in_line", ("mail", 12, 100)),
        ("lines_of_rank", (12, "", 100)),
        ("first_ranks", ('["mail", "print", "empty"]',)),
        ("prunable_jobs", ("completed", 50, 0, 100)),
        ("old_events", (100, 50)),
        ("oldest_event", ()),
        ("jobs_to_stop", ('["ann"]',)),
        ("silent_workers", (0, 1, 0)),
        ("outlook", (3_900_000_000_000_000, '["ann", "nobody"]', "foreman", 0)),
        ("outlook", (3_900_000_000_000_000, "[]", "foreman", 1 << 40)),
        ("has_lost", (0, 1, 0)),
        ("has_to_fold", (3_900_000_000_000_000, 1, 1, 1)),
        ("has_old", (0, 0, 0, 0, 0)),
        ("beaten", (3_900_000_000_000_000, '["ann", "nobody"]')),
    ],
)
def test_what_is_asked_every_second(crowded: MySQL, name: str, values: tuple[Any, ...]) -> None:
    assert rows_touched(crowded, lambda connection: connection.rows(crowded._sql[name], values)) <= 420


@pytest.mark.parametrize(
    "where",
    [
        Filter(),
        Filter(frozenset({QUEUED})),
        Filter(frozenset({QUEUED}), queue="print"),
        Filter(frozenset({SCHEDULED})),
        Filter(frozenset({COMPLETED})),
        Filter(frozenset({COMPLETED, DEAD})),
        Filter(task="send"),
        Filter(queue="mail"),
        Filter(queues=frozenset({"mail", "pri*"})),
        Filter(tasks=frozenset({"se*"}), max_attempts=0),
    ],
    ids=lambda where: ",".join(sorted(where.states) or [where.queue or where.task or "all"]),
)
def test_a_page_of_a_list_is_found_without_a_walk_over_all(crowded: MySQL, where: Filter) -> None:
    page = crowded.find(where, limit=50)

    assert touched_by_call(crowded, lambda: crowded.find(where, cursor=page.next, limit=50)) <= 3_000
    assert len(page.jobs) == 50


@pytest.mark.parametrize(
    "where",
    [
        Filter(owner="nobody"),
        Filter(cause="none"),
        Filter(frozenset({COMPLETED, DEAD}), cause="none"),
        Filter(frozenset({RETRYING, SCHEDULED}), cause="none"),
        Filter(frozenset({DEAD})),
        Filter(frozenset({RETRYING})),
        Filter(HELD),
        Filter(queue="empty"),
        Filter(queues=frozenset({"empty*"}), text="nowhere"),
        Filter(id="nothing", text="nowhere"),
        Filter(frozenset({QUEUED}), queue="empty"),
    ],
    ids=lambda where: ",".join(sorted(where.states) or [where.owner or where.cause or where.queue or where.text]),
)
def test_an_empty_page_costs_nothing(crowded: MySQL, where: Filter) -> None:
    assert touched_by_call(crowded, lambda: crowded.find(where)) <= 100
    assert touched_by_call(crowded, lambda: crowded.count(where)) <= _COUNTED
    assert crowded.find(where).jobs == []


@pytest.mark.parametrize(
    ("call", "most"),
    [
        pytest.param(lambda s: s.get("completed-7"), 2, id="a job"),
        pytest.param(lambda s: s.get_many([f"completed-{n}" for n in range(1, 51)]), 110, id="fifty jobs"),
        pytest.param(lambda s: s.log_lines("77"), 5, id="a log"),
        pytest.param(lambda s: (s.queues(), s.tallies(), s.tasks(), s.workers()), _COUNTED, id="what every page shows"),
        pytest.param(lambda s: (s.failures(), s.schedules(), s.clients()), 200, id="failures, schedules, clients"),
        pytest.param(lambda s: s.series(Span.TWO_HOURS), 200, id="a chart"),
        pytest.param(lambda s: s.outcomes_for("web"), 10, id="outcomes for a client"),
        pytest.param(lambda s: s.set_priority(["queued-7"], 5), 60, id="set priority"),
        pytest.param(lambda s: s.force_start(["queued-8"]), 60, id="force start"),
        pytest.param(lambda s: s.abort(["queued-9"]), 60, id="abort"),
        pytest.param(lambda s: s.retry(["completed-9"]), 60, id="retry"),
        pytest.param(lambda s: s.delete(["completed-10"]), 60, id="delete"),
        pytest.param(lambda s: s.pause("mail") and s.resume("mail"), 20, id="pause and resume"),
        pytest.param(lambda s: s.release([Token("completed-7", "ann", 1)], "no"), 20, id="release"),
        pytest.param(lambda s: s.append_log(Token("completed-7", "ann", 1), [LogLine("hello")]), 60, id="log"),
        pytest.param(
            lambda s: (s.promote(), s.expire(), s.rescue(lease=DAY, why="silent")), 100, id="chores that find nothing"
        ),
        pytest.param(lambda s: s.prune(Retention(), limit=10), 500, id="prune"),
    ],
)
def test_a_call_reads_what_it_is_about(crowded: MySQL, call: Callable[[MySQL], object], most: int) -> None:
    assert touched_by_call(crowded, lambda: call(crowded)) <= most


@pytest.mark.parametrize(
    "where",
    [
        EventFilter(job_id="completed-7"),
        EventFilter(subject=Subject.WORKER),
        EventFilter(subject=Subject.WORKER, kind=Kind.JOINED),
        EventFilter(before=30_000),
        pytest.param(
            EventFilter(kinds=frozenset({Kind.ABORTED, Kind.RETRIED}), after=29_800, before=30_000), id="two kinds"
        ),
        EventFilter(),
    ],
    ids=str,
)
def test_events_are_found_without_a_walk_over_all(crowded: MySQL, where: EventFilter) -> None:
    assert touched_by_call(crowded, lambda: crowded.events(where)) <= 400
    assert touched_by_call(crowded, lambda: crowded.events(where, newest_first=True)) <= 400


def test_events_are_followed_from_the_last_one_on(crowded: MySQL) -> None:
    last = crowded.events(EventFilter(), limit=1, newest_first=True)[0].id

    assert touched_by_call(crowded, lambda: crowded.events(EventFilter(after=last))) <= 3
    assert touched_by_call(crowded, lambda: crowded.events(EventFilter(after=last - 50))) <= 250
