"""Whatever lies in the tables, the statements of the hot path touch no more rows than they need.

With many finished jobs and many in line; and with statistics that say the table is empty, which is what the server
believes after a night without work, or that tell the truth. PACKHORSE_SCALE=1000000 runs it with a million in line and
five million finished ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from packhorse.conformance.builders import join, new_jobs
from packhorse.job import QUEUED, SCHEDULED
from packhorse.outcome import Completed
from packhorse.storage.postgres import Postgres
from packhorse.storage.postgres.working import _Line, _Start, _told
from packhorse.storage.records import Filter, TaskInfo
from packhorse.storage.sql.rows import to_json
from tests.postgres_server import new_schema_url, shared_postgres

WAITING = int(os.environ.get("PACKHORSE_SCALE", "30000"))
FINISHED = 5 * WAITING

_FILL = """
INSERT INTO {schema}.packhorse_job (id, task, queue, args, state, priority, rank, created_at, updated_at, {column})
SELECT '{state}-' || n, 'send', CASE n % 3 WHEN 0 THEN 'mail' WHEN 1 THEN 'print' ELSE 'other' END, '{}', '{state}',
       1, 12, n, n, n
FROM generate_series(1, {number}) AS n
"""


@pytest.fixture(scope="module", params=["statistics of an empty table", "true statistics"])
def crowded(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    storage = Postgres.from_url(new_schema_url())
    join(storage)
    storage.announce([TaskInfo("send", queue) for queue in ("mail", "print")])
    with psycopg.connect(shared_postgres().url, autocommit=True) as hand:
        schema = storage.options.schema
        hand.execute(f"ANALYZE {schema}.packhorse_job")  # nothing there, it says
        for state, column, number in [("completed", "finished_at", FINISHED), ("queued", "queued_at", WAITING)]:
            filled = _FILL.replace("{schema}", schema).replace("{state}", state).replace("{column}", column)
            hand.execute(filled.replace("{number}", str(number)))  # type: ignore[arg-type]
        later = _FILL.replace("{schema}", schema).replace("{state}", "scheduled").replace("{column}", "due_at")
        hand.execute(later.replace("n, n, n", "n, n, 4000000000000000 + n").replace("{number}", "20000"))  # type: ignore[arg-type]
        if request.param == "true statistics":
            hand.execute(f"ANALYZE {schema}.packhorse_job")
    yield storage
    storage.close()


def plan_of(storage: Postgres, name: str, *values: Any) -> dict[str, Any]:
    """What the server did for a statement; it is undone."""
    with storage._db.lent() as link:
        link.begin("BEGIN")
        ((plan,),) = link.rows(f"EXPLAIN (ANALYZE, FORMAT JSON) {storage._sql[name]}", values)
        link.begin("ROLLBACK")
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

    assert rows_touched(crowded, "complete", _told(outcomes), None, "ann") <= 250
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
        ("lost_jobs", (0, 0, 100)),
        ("jobs_of_owner", ("ann", 100)),
        ("has_work", ('["mail", "print"]',)),
        ("all_queues", ()),
        ("lines_of_rank", (12, "", 100)),
        ("prunable_jobs", ("completed", 50, 0, 100)),
        ("jobs_to_stop", ('["ann"]',)),
        ("outlook", (None, '["ann", "nobody"]', "foreman", 0)),
        ("has_lost", (0, 0)),
        ("has_old", (0, 0, 0, 0, 0)),
        ("beat", ('[{"owner": "ann", "report": "{}"}, {"owner": "nobody", "report": "{}"}]', None)),
    ],
)
def test_what_is_asked_every_second(crowded: Postgres, name: str, values: tuple[Any, ...]) -> None:
    assert rows_touched(crowded, name, *values) <= 210


@pytest.mark.parametrize(
    "where",
    [
        Filter(),
        Filter(frozenset({QUEUED})),
        Filter(frozenset({SCHEDULED})),
        Filter(queue="mail"),
        Filter(owner="nobody"),
    ],
    ids=str,
)
def test_a_page_of_a_list_is_found_without_a_walk_over_all(crowded: Postgres, where: Filter) -> None:
    before = _fetched(crowded)
    page = crowded.find(where, limit=50)

    assert _fetched(crowded) - before <= 5_000
    assert len(page.jobs) == (0 if where.owner else 50)


def _fetched(storage: Postgres) -> int:
    """How many rows of the table of jobs were read so far, by the one connection that there is."""
    with storage._db.lent() as link:
        if link.connection.info.server_version < 150_000:
            pytest.skip("before PostgreSQL 15 nobody can ask for its counts at once")
        link.rows("SELECT pg_stat_force_next_flush()")
        link.rows("SELECT pg_stat_clear_snapshot()")
        ((number,),) = link.rows(
            "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables"
            " WHERE schemaname = $1 AND relname = 'packhorse_job'",
            (storage.options.schema,),
        )
    return int(number)
