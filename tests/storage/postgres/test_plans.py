"""Whatever lies in the tables, the statements of the hot path touch no more rows than they need.

With many finished jobs and many in line; and with statistics that say the table is empty, which is what the server
believes after a night without work, or that tell the truth. A plan outlives the moment for which it was made: that of
a worker which started with ten jobs serves a million, until the server looks at the table again. So there must be only
one way to read the tables, however few jobs there seem to be. `make scale` runs it with a million in line and five
million finished ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from packhorse.conformance.builders import join, new_jobs
from packhorse.core.event import Kind, Subject
from packhorse.core.job import COMPLETED, DEAD, HELD, QUEUED, RETRYING, SCHEDULED
from packhorse.core.outcome import Completed
from packhorse.storage.postgres import Postgres
from packhorse.storage.postgres.connection import PostgresConnection
from packhorse.storage.postgres.hot_path import _Line, _rows, _Start
from packhorse.storage.records import EventFilter, Filter, TaskInfo
from packhorse.storage.sql.rows import to_json
from tests.postgres_server import new_schema_url, shared_postgres

WAITING = int(os.environ.get("PACKHORSE_SCALE", "8000"))
FINISHED = 5 * WAITING
pytestmark = pytest.mark.timeout(max(300, WAITING // 300))

_LISTS = [
    Filter(),
    Filter(frozenset({QUEUED})),
    Filter(frozenset({SCHEDULED})),
    Filter(queue="mail"),
    Filter(owner="nobody"),
    Filter(HELD),
    Filter(cause="none"),
    Filter(frozenset({COMPLETED})),
    Filter(frozenset({RETRYING})),
    Filter(frozenset({DEAD}), cause="none"),
    Filter(queues=frozenset({"mail", "pri*"})),
    Filter(tasks=frozenset({"se*"}), max_attempts=0),
    Filter(queues=frozenset({"m*"}), order="created"),
    Filter(id="queued-5000"),  # a hundred among a million begin so
    Filter(id="nothing", text="nowhere"),
]

# As the web looks back: over a stretch of all events.
_DIED = EventFilter(subject=Subject.WORKER, kind=Kind.DIED, after=5, before=900_000)
_BROKEN = EventFilter(kind=Kind.BROKEN, after=5, before=900_000)

_SMALL_TABLES = ("packhorse_meta", "packhorse_queue", "packhorse_worker", "packhorse_sleeper", "packhorse_client")
"""They have a page or two, and are read as the server likes."""

_FILL = """
INSERT INTO {schema}.packhorse_job (id, task, queue, args, state, priority, rank, created_at, updated_at, {column})
SELECT '{state}-' || n, 'send', CASE n % 3 WHEN 0 THEN 'mail' WHEN 1 THEN 'print' ELSE 'other' END, '{}', '{state}',
       1, 12, n, n, n
FROM generate_series(1, {number}) AS n
"""
_FILL_BESIDE = (
    "INSERT INTO {schema}.packhorse_event (at, kind, subject, job_id, queue, state)"
    " SELECT n, 'added', 'job', 'queued-' || n, 'mail', 'queued' FROM generate_series(1, {number}) AS n",
    "INSERT INTO {schema}.packhorse_log_line (at, attempt, job_id, kind, message)"
    " SELECT n, 1, 'queued-' || n, 'log', 'said' FROM generate_series(1, {number}) AS n",
    "INSERT INTO {schema}.packhorse_unique_lock (key, job_id, until, taken_at)"
    " SELECT 'key-' || n, 'queued-' || n, 'finish', n FROM generate_series(1, {number}) AS n",
)


def new_storage() -> Postgres:
    storage = Postgres.from_url(new_schema_url())
    join(storage)
    storage.announce([TaskInfo("send", queue) for queue in ("mail", "print")])
    return storage


@pytest.fixture(scope="module")
def filled() -> Iterator[Postgres]:
    storage = new_storage()
    schema = storage.options.schema
    with psycopg.connect(shared_postgres().url, autocommit=True) as admin:
        admin.execute(f"ANALYZE {schema}.packhorse_job")  # nothing there, it says
        _fill(admin, schema)
    yield storage
    storage.close()
    _drop(schema)


@pytest.fixture(scope="module", params=["statistics of an empty table", "true statistics"])
def crowded(request: pytest.FixtureRequest, filled: Postgres) -> Postgres:
    if request.param == "true statistics":
        with psycopg.connect(shared_postgres().url, autocommit=True) as admin:
            _look_at_all(admin, filled.options.schema)
        filled.close()  # sessions have kept their plans
    return filled


def _drop(schema: str) -> None:
    """So much is not left lying about."""
    with psycopg.connect(shared_postgres().url, autocommit=True) as admin:
        admin.execute(f"DROP SCHEMA {schema} CASCADE")  # type: ignore[arg-type]


def _fill(admin: psycopg.Connection[Any], schema: str) -> None:
    filled = _FILL.replace("{schema}", schema)
    for state, column, number in [("completed", "finished_at", FINISHED), ("queued", "queued_at", WAITING)]:
        filling = filled.replace("{state}", state).replace("{column}", column).replace("{number}", str(number))
        admin.execute(filling)  # type: ignore[arg-type]
    later = filled.replace("{state}", "scheduled").replace("{column}", "due_at").replace("{number}", str(WAITING))
    admin.execute(later.replace("n, n, n", "n, n, 4000000000000000 + n"))  # type: ignore[arg-type]
    for filling in _FILL_BESIDE:
        admin.execute(filling.replace("{schema}", schema).replace("{number}", str(WAITING)))  # type: ignore[arg-type]


def plan_of(storage: Postgres, name: str, *values: Any) -> dict[str, Any]:
    """What the server did for a statement; it is undone."""
    with storage._db.lent() as connection:
        connection.begin("BEGIN")
        ((plan,),) = connection.rows(f"EXPLAIN (ANALYZE, FORMAT JSON) {storage._sql[name]}", values)
        connection.begin("ROLLBACK")
    found: dict[str, Any] = plan[0]["Plan"]
    return found


def rows_touched(storage: Postgres, name: str, *values: Any) -> int:
    """How many rows of the big tables the statement looked at."""
    return _touched(plan_of(storage, name, *values))


def _touched(node: dict[str, Any]) -> int:
    own = 0
    if node.get("Relation Name") in ("packhorse_job", "packhorse_event") and "Scan" in node["Node Type"]:
        own = node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
    return int(own) + sum(_touched(one) for one in node.get("Plans", []))


def scans(node: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """How the table of jobs was read: the kinds of scans, with their indexes."""
    if node.get("Relation Name") == "packhorse_job" and "Scan" in node["Node Type"]:
        yield node["Node Type"], node.get("Index Name", "")
    for one in node.get("Plans", []):
        yield from scans(one)


def _look_at_all(admin: psycopg.Connection[Any], schema: str) -> None:
    """Let the server see how much lies in the tables."""
    found = "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r'"
    for (name,) in admin.execute(found, (schema,)).fetchall():
        admin.execute(f"ANALYZE {schema}.{name}")  # type: ignore[arg-type]


def ways(storage: Postgres) -> dict[str, set[str]]:
    """How the server would read the tables for each statement from now on: the kinds of scans, with their indexes and
    what it looks for in them."""
    with storage._db.lent() as connection:
        return {name: set(_ways(_plan_for_all_values(connection, sql))) for name, sql in storage._sql.items()}


def _plan_for_all_values(connection: PostgresConnection, sql: str) -> dict[str, Any]:
    connection.begin(f"PREPARE said AS {sql}")
    ((number,),) = connection.begin(
        "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 'said'"
    )
    values = f"({', '.join(['NULL'] * number)})" if number else ""
    ((plan,),) = connection.begin(f"EXPLAIN (FORMAT JSON) EXECUTE said{values}")
    connection.begin("DEALLOCATE said")
    found: dict[str, Any] = plan[0]["Plan"]
    return found


def _ways(node: dict[str, Any]) -> Iterator[str]:
    table = node.get("Relation Name", "")
    if table.startswith("packhorse_") and table not in _SMALL_TABLES and "Scan" in node["Node Type"]:
        yield f"{node['Node Type']} of {table}: {node.get('Index Name')}, {node.get('Index Cond')}"
    for one in node.get("Plans", []):
        yield from _ways(one)


@pytest.fixture(scope="module")
def ways_when_crowded(crowded: Postgres) -> dict[str, set[str]]:
    return ways(crowded)


@pytest.mark.parametrize("number", [0, 5, 20])
def test_a_plan_that_was_made_for_few_jobs_is_as_good_for_many(
    ways_when_crowded: dict[str, set[str]], number: int
) -> None:
    with closing(new_storage()) as storage, psycopg.connect(shared_postgres().url, autocommit=True) as admin:
        _complete(storage, number)
        _look_at_all(admin, storage.options.schema)

        assert ways(storage) == ways_when_crowded


def _complete(storage: Postgres, number: int) -> None:
    for _ in range(number):
        storage.enqueue(new_jobs(1))
        storage.finish([Completed(job.token) for job in storage.reserve("ann", {"mail": 1}, 1)])


def test_what_was_asked_when_there_were_few_jobs_is_found_as_soon_among_many() -> None:
    asked: list[Callable[[Postgres], object]] = [
        *(lambda storage, where=where: storage.find(where, limit=50) for where in _LISTS),
        lambda storage: storage.events(EventFilter(job_id="queued-50")),
        lambda storage: storage.events(EventFilter(job_id="queued-50", after=5)),
        lambda storage: storage.events(EventFilter(subject="foreman", after=5)),
        lambda storage: storage.events(_DIED, newest_first=True),
        lambda storage: storage.events(_BROKEN, newest_first=True),
        lambda storage: storage.count(Filter(frozenset({DEAD}), cause="none")),
        lambda storage: storage.queues(),
        lambda storage: storage.log_lines("queued-50"),
    ]
    with closing(new_storage()) as storage, psycopg.connect(shared_postgres().url, autocommit=True) as admin:
        _complete(storage, 20)
        _look_at_all(admin, storage.options.schema)
        for ask in asked * 7:  # from the sixth time on a statement keeps its plan
            ask(storage)
        _fill(admin, storage.options.schema)

        for ask in asked:
            before = _fetched(storage)
            ask(storage)
            assert _fetched(storage) - before <= 5_000
    _drop(storage.options.schema)


def test_reserving_walks_along_the_line_and_finds_rows_by_their_keys(crowded: Postgres) -> None:
    asked = to_json([_Line("mail", 0, 12, 100)])

    used = set(scans(plan_of(crowded, "take", "ann", None, asked, 100, False)))

    indexes = {"packhorse_job_line", "packhorse_job_pkey", "packhorse_job_due", "packhorse_job_expiring"}
    assert {index for _, index in used} <= indexes
    assert ("Index Scan", "packhorse_job_line") in used
    assert {kind for kind, _ in used} <= {"Index Scan", "Index Only Scan"}


def test_reserving_from_a_lone_queue(crowded: Postgres) -> None:
    asked = to_json([_Line("mail", 0, 12, 100)])

    assert rows_touched(crowded, "take", "ann", None, asked, 100, False) <= 250


def test_reserving_from_an_empty_queue(crowded: Postgres) -> None:
    asked = to_json([_Line("empty", 0, 12, 100)])

    assert rows_touched(crowded, "take", "ann", None, asked, 100, False) <= 3


def test_reserving_from_the_middle_of_a_line(crowded: Postgres) -> None:
    """Where the jobs before are known to be gone."""
    middle = FINISHED + WAITING // 2
    asked = to_json([_Line("mail", 0, 11, 100), _Line("mail", 12, 12, 100, start=middle)])

    assert rows_touched(crowded, "take", "ann", None, asked, 100, False) <= 250
    starts = to_json([_Start(queue, rank, middle) for queue in ("mail", "print") for rank in range(13)])
    assert rows_touched(crowded, "lines_from", starts, 100, "ann", None, False, "", 100) <= 250


def test_looking_for_lines(crowded: Postgres) -> None:
    queues = to_json(["mail", "print", *(f"empty-{n}" for n in range(50))])

    assert rows_touched(crowded, "lines", queues, 100, "ann", None, False, "", 100) <= 250


def test_completing_jobs(crowded: Postgres) -> None:
    jobs = crowded.reserve("ann", {"print": 1}, 100)
    outcomes = [Completed(job.token) for job in jobs]

    assert rows_touched(crowded, "complete", _rows(outcomes), None, "ann") <= 250
    crowded.release([job.token for job in jobs], "seen")


def test_starting_jobs(crowded: Postgres) -> None:
    jobs = crowded.reserve("ann", {"print": 1}, 100)

    assert rows_touched(crowded, "start_jobs", to_json([job.token for job in jobs]), None) <= 250
    crowded.release([job.token for job in jobs], "seen")


def test_enqueueing(crowded: Postgres) -> None:
    assert rows_touched(crowded, "enqueue", to_json(new_jobs(100)), None, True) <= 0


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("due_jobs", (3_900_000_000_000_000, 100)),
        ("expired_jobs", (3_900_000_000_000_000, 100)),
        ("next_due", (None,)),
        ("has_expired", (None,)),
        ("silent_workers", (0, 0, 0)),
        ("lost_jobs", ('["ann"]', 100)),
        ("lost_jobs", ("[]", 100)),
        ("held_jobs", ('["ann"]', 100)),
        ("has_work", ('["mail", "print"]',)),
        ("all_queues", ()),
        ("lines_of_rank", (12, "", 100)),
        ("prunable_jobs", ("completed", 50, 0, 100)),
        ("jobs_to_stop", ('["ann"]',)),
        ("outlook", (None, '["ann", "nobody"]', "foreman", 0)),
        ("has_lost", (0, 0, 0)),
        ("has_old", (0, 0, 0, 0, 0)),
        ("beat", ('[{"owner": "ann", "report": "{}"}, {"owner": "nobody", "report": "{}"}]', None)),
    ],
)
def test_what_is_asked_every_second(crowded: Postgres, name: str, values: tuple[Any, ...]) -> None:
    assert rows_touched(crowded, name, *values) <= 210


@pytest.mark.parametrize(("late", "most"), [(0, 6), (5_000, 310)])
def test_for_the_oldest_job_few_are_looked_at_in_each_line(crowded: Postgres, late: int, most: int) -> None:
    """Of three lines, also where the first jobs have come back."""
    schema = crowded.options.schema
    with crowded._db.lent() as connection:
        connection.begin("BEGIN")
        connection.rows(
            f"INSERT INTO {schema}.packhorse_measure (level, at, queue, task, counted, amount)"
            " SELECT 'tally', 0, queue, 'send', 'queued', 1000 FROM unnest('{mail,print,other}'::text[]) AS queue"
            " RETURNING 1"
        )
        connection.rows(
            f"UPDATE {schema}.packhorse_job SET queued_at = created_at + $1"
            " WHERE state = 'queued' AND created_at < 1000 RETURNING 1",
            (late,),
        )
        rows = connection.rows(crowded._sql["all_queues"])
        ((plan,),) = connection.rows(f"EXPLAIN (ANALYZE, FORMAT JSON) {crowded._sql['all_queues']}")
        connection.begin("ROLLBACK")

    assert sorted(name for name, what, *_ in rows if what == "oldest") == ["mail", "other", "print"]
    assert _touched(plan[0]["Plan"]) <= most


@pytest.mark.parametrize("where", _LISTS[:5], ids=str)
def test_a_page_of_a_list_is_found_without_a_walk_over_all(crowded: Postgres, where: Filter) -> None:
    before = _fetched(crowded)
    page = crowded.find(where, limit=50)

    assert _fetched(crowded) - before <= 5_000
    assert len(page.jobs) == (0 if where.owner else 50)


def _fetched(storage: Postgres) -> int:
    """How many rows of the big tables were read so far, by the one connection that there is."""
    with storage._db.lent() as connection:
        if connection.driver.info.server_version < 150_000:
            pytest.skip("before PostgreSQL 15 nobody can ask for its counts at once")
        connection.rows("SELECT pg_stat_force_next_flush()")
        connection.rows("SELECT pg_stat_clear_snapshot()")
        ((number,),) = connection.rows(
            "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables"
            " WHERE schemaname = $1 AND relname IN ('packhorse_job', 'packhorse_event', 'packhorse_log_line')",
            (storage.options.schema,),
        )
    return int(number)
