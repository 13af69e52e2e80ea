"""How SQLite goes about each call, with twenty thousand jobs in all states: along the right index, in its order, and
without looking at jobs that have nothing to do with it."""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from packhorse.client.app import Packhorse
from packhorse.conformance.builders import FAILURE, LEASE, join, new_job, unique
from packhorse.core.clock import DAY, HOUR, SECOND, ManualClock
from packhorse.core.event import Subject
from packhorse.core.job import COMPLETED, DEAD, FINAL, HELD, QUEUED, RETRYING, SCHEDULED, NewJob, State, Token
from packhorse.core.outcome import Completed, Failed, Outcome, Stopped
from packhorse.storage.records import EventFilter, Filter, LogLine, Retention, Span
from packhorse.storage.sqlite import SQLite
from packhorse.storage.sqlite.database import Options
from tests.storage.sqlite.tracing import traced

JOBS = 20_000
BEGINNING = 1_800_000_000 * SECOND
NOW = BEGINNING + HOUR
LINES = {f"queue-{number}": 1 for number in range(5)}

Call = Callable[[SQLite], object]


# --- twenty thousand jobs -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing in it is due, expired, lost or old: a chore that is asked now finds nothing to do."""
    path = tmp_path_factory.mktemp("crowded") / "jobs.db"
    clock = ManualClock(BEGINNING)
    storage = SQLite(path, now=clock, options=Options(synchronous="off"))
    for batch in range(0, JOBS, 1_000):
        storage.enqueue([waiting_job(number) for number in range(batch, batch + 1_000)])
    for owner in ("ann", "bob"):
        join(storage, owner)
        for _ in range(5):
            held = storage.reserve(owner, LINES, 1_000)
            storage.start([job.token for job in held])
            storage.finish([ended(number, job.token) for number, job in enumerate(held) if number % 20])
            storage.append_log(held[0].token, [LogLine("begun")])
    clock.set(NOW)
    storage.heartbeat({"ann": {}, "bob": {}})
    storage.close()
    return path


def waiting_job(number: int) -> NewJob:
    return new_job(
        f"job-{number:05}",
        queue=f"queue-{number % 5}",
        task=f"task-{number % 7}",
        priority=1 + number % 3,
        delay=DAY if number % 4 == 0 else 0,
        total_timeout=DAY if number % 10 == 0 else None,
    )


def ended(number: int, token: Token) -> Outcome:
    kinds: dict[int, Outcome] = {
        1: Failed(token, FAILURE),
        2: Failed(token, FAILURE, retry_in=DAY),
        3: Stopped(token),
    }
    return kinds.get(number % 10, Completed(token))


@pytest.fixture
def copy(crowded: Path, path: Path) -> Path:
    return Path(shutil.copyfile(crowded, path))


@pytest.fixture(scope="module")
def analysed(crowded: Path) -> Path:
    path = Path(shutil.copyfile(crowded, crowded.with_name("analysed.db")))
    connection = sqlite3.connect(path)
    connection.execute("ANALYZE")
    connection.close()
    return path


@pytest.fixture(params=["crowded", "analysed"])
def maybe_analysed(request: pytest.FixtureRequest, path: Path) -> Path:
    """With and without statistics, because they change SQLite's plans."""
    return Path(shutil.copyfile(request.getfixturevalue(request.param), path))


# --- watching -------------------------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """What a call made SQLite do."""

    plans: list[list[str]]  # of each statement
    steps: int  # of SQLite's machine, in hundreds; a job that is looked at costs some ten steps

    @property
    def lines(self) -> list[str]:
        return [line for plan in self.plans for line in plan]


def watch(path: Path, call: Call) -> Seen:
    statements: list[str] = []
    hundreds = [0]

    def count() -> int:
        hundreds[0] += 1
        return 0

    with traced(statements.append):
        storage = SQLite(path, now=ManualClock(NOW))
        storage._db.version()
        storage.queues()  # now it has a connection of each kind
    for connection in [storage._db._writer, storage._db._version_reader, *storage._db._readers]:
        assert connection is not None
        connection.set_progress_handler(count, 100)
    statements.clear()
    call(storage)
    told = [sql for sql in dict.fromkeys(statements) if re.match(r"(WITH|SELECT|UPDATE|DELETE)\b", plain(sql))]
    storage.close()
    return Seen([plan(path, sql) for sql in told], hundreds[0])


def plain(sql: str) -> str:
    """The statement without the comments before it."""
    return re.sub(r"\A(\s*--[^\n]*\n)*\s*", "", sql)


def plan(path: Path, sql: str) -> list[str]:
    connection = sqlite3.connect(path)
    lines = [line for *_, line in connection.execute(f"EXPLAIN QUERY PLAN {plain(sql)}")]
    connection.close()
    return lines


def walks_all_jobs(line: str) -> bool:
    """The table from end to end, or an index from end to end that is not one over few jobs only."""
    return bool(
        re.match(r"SCAN packhorse_job(?! USING (COVERING )?INDEX packhorse_job_held)", line)
        or re.match(r"SEARCH packhorse_job USING INTEGER PRIMARY KEY \(rowid[<>]", line)
    )


def sorts_jobs(plan: list[str]) -> bool:
    return any("TEMP B-TREE" in line for line in plan) and "packhorse_job " in plan[0]


# --- plans ----------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A call and the indexes over jobs that it must go along."""

    name: str
    call: Call
    indexes: set[str]
    sorts: bool = False  # the jobs that a few workers hold: no index can have them both by owner and by arrival


def states(*wanted: State, queue: str | None = None) -> Filter:
    return Filter(states=frozenset(wanted), queue=queue)


def anns(storage: SQLite) -> list[Token]:
    return [job.token for job in storage.find(Filter(owner="ann")).jobs]


CASES = [
    Case("reserve", lambda s: s.reserve("ann", LINES, 50), {"line", "due"}),
    Case("reserve, one queue", lambda s: s.reserve("ann", {"queue-1": 1}, 50), {"line", "due"}),
    Case("finish, completed", lambda s: s.finish([Completed(token) for token in anns(s)]), {"id"}),
    Case("finish, stopped", lambda s: s.finish([Stopped(token) for token in anns(s)]), {"id"}),
    Case("release", lambda s: s.release(anns(s), "stopping"), {"id"}),
    Case("get", lambda s: s.get_many(["job-00001", "job-19999"]), {"id"}),
    Case("abort", lambda s: s.abort(["job-00001", "job-19999"]), {"id"}),
    Case("delete", lambda s: s.delete(["job-00000", "job-00004"]), {"id"}),
    Case(
        "repeat a replace",
        lambda s: [s.enqueue([new_job("x", unique=unique("k", on_conflict="replace"))]) for _ in range(2)],
        {"id"},
    ),
    Case("promote", lambda s: s.promote(), {"due"}),
    Case("next due", lambda s: s.next_due(), {"due"}),
    Case("expire", lambda s: s.expire(), {"expiring"}),
    Case("rescue", lambda s: s.rescue(lease=LEASE, why="silent"), {"held"}, sorts=True),
    Case("rescue one owner", lambda s: s.rescue_owner("ann", foreman="ann", why="died"), {"held"}, sorts=True),
    Case("beat", lambda s: s.heartbeat({"ann": {}, "bob": {}}), {"held"}, sorts=True),
    Case("stops", lambda s: s.abort_requests(["ann", "bob"]), {"held"}, sorts=True),
    Case("outlook", lambda s: s.poll("foreman", ["ann", "bob"]), {"held", "line", "due", "expiring"}),
    Case("leave", lambda s: s.leave("bob"), {"held"}, sorts=True),
    Case("prune", lambda s: s.prune(Retention()), {"finished"}),
    Case("prune everything", lambda s: s.prune(Retention(0, 0, 0)), {"finished"}),
    Case("queues", lambda s: s.queues(), {"line"}),
    Case("find queued", lambda s: s.find(states(QUEUED)), {"line"}),
    Case("find queued, one queue", lambda s: s.find(states(QUEUED, queue="queue-1")), {"line"}),
    Case("why a job waits", lambda s: Packhorse(s).get("job-19998").why(), {"id", "line"}),
    Case("find scheduled", lambda s: s.find(states(SCHEDULED)), {"due"}),
    Case("find retrying", lambda s: s.find(states(RETRYING)), {"retrying"}),
    Case("find one cause's", lambda s: s.find(Filter(cause=s.failures()[0].cause)), {"cause"}),
    Case(
        "count one cause's dead", lambda s: s.count(Filter(frozenset({DEAD}), cause=s.failures()[0].cause)), {"cause"}
    ),
    Case("find by the beginning of an id", lambda s: s.find_by_id("job-1999"), {"id"}),
    Case("find scheduled and retrying", lambda s: s.find(states(RETRYING, SCHEDULED)), {"due"}),
    Case("find completed", lambda s: s.find(states(COMPLETED)), {"finished"}),
    Case("find finished", lambda s: s.find(states(*FINAL)), {"finished"}),
    Case("find held", lambda s: s.find(states(*HELD)), {"held"}, sorts=True),
    Case("find one owner's", lambda s: s.find(Filter(owner="ann")), {"held"}),
    Case("find one queue's", lambda s: s.find(Filter(queue="queue-1")), {"queue"}),
]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_a_call_goes_along_its_indexes(case: Case, maybe_analysed: Path) -> None:
    seen = watch(maybe_analysed, case.call)

    used = {name for line in seen.lines for name in re.findall(r"INDEX packhorse_job_(\w+)", line)}
    assert used >= case.indexes
    assert [line for line in seen.lines if walks_all_jobs(line)] == []
    assert case.sorts or [plan for plan in seen.plans if sorts_jobs(plan)] == []


@pytest.mark.parametrize(
    ("call", "index"),
    [
        pytest.param(lambda s: s.events(EventFilter(job_id="job-00001")), "packhorse_event_job", id="events of a job"),
        pytest.param(
            lambda s: s.events(EventFilter(subject=Subject.WORKER)), "packhorse_event_subject", id="events of workers"
        ),
        pytest.param(lambda s: s.events(EventFilter(after=100)), "INTEGER PRIMARY KEY", id="events after another"),
        pytest.param(lambda s: s.log_lines("job-00001"), "packhorse_log_line_job", id="log of a job"),
        pytest.param(lambda s: s.outcomes_for("client"), "packhorse_subscriber_client", id="outcomes for a client"),
        pytest.param(lambda s: s.poll("foreman", []), "packhorse_event_subject", id="orders of a foreman"),
        pytest.param(lambda s: s.poll("foreman", []), "packhorse_schedule_next", id="the next slot"),
        pytest.param(lambda s: s.ticks("nightly"), "packhorse_tick_schedule", id="ticks of a schedule"),
        pytest.param(lambda s: s.series(Span.TWO_HOURS), "PRIMARY KEY (level=? AND at>?)", id="series"),
    ],
)
def test_a_record_is_found_along_its_index(call: Call, index: str, copy: Path) -> None:
    seen = watch(copy, call)

    assert any(index in line for line in seen.lines), seen.plans


# --- work -----------------------------------------------------------------------------------------------------------

FEW = 40
"""Hundreds of steps: what a hundred jobs, or a dozen empty-handed searches, cost. All jobs would be 1,000 and more."""


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda s: s.promote(), id="promote"),
        pytest.param(lambda s: s.next_due(), id="next_due"),
        pytest.param(lambda s: s.poll("foreman", ["nobody"]), id="outlook"),
        pytest.param(lambda s: s.expire(), id="expire"),
        pytest.param(lambda s: s.reserve("ann", {"no-such-queue": 1}, 50), id="reserve"),
        pytest.param(lambda s: s.reserve("ann", {f"none-{n}": 1 for n in range(20)}, 50), id="reserve of many queues"),
        pytest.param(lambda s: s.rescue_owner("nobody", foreman="nobody", why="died"), id="rescue_owner"),
        pytest.param(lambda s: s.tallies(), id="tallies"),
        pytest.param(lambda s: s.count(Filter(queue="queue-1")), id="count"),
        pytest.param(lambda s: s.prune(Retention(), limit=10), id="prune"),
    ],
)
def test_a_call_that_finds_nothing_to_do_looks_at_next_to_nothing(call: Call, copy: Path) -> None:
    assert watch(copy, call).steps < FEW


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda s: s.rescue(lease=LEASE, why="silent"), id="rescue"),
        pytest.param(lambda s: s.heartbeat({"ann": {}, "bob": {}}), id="beat"),
    ],
)
def test_the_upkeep_of_workers_looks_at_held_jobs_only(call: Call, copy: Path) -> None:
    """A thousand are held, of twenty thousand."""
    assert watch(copy, call).steps < 400


def test_of_each_line_no_more_than_a_hundred_jobs_are_looked_at_for_the_oldest(copy: Path) -> None:
    """Of five queues, each with three ranks; only the first where that has been in line since it was created."""
    sure = watch(copy, lambda s: s.queues()).steps
    connection = sqlite3.connect(copy)
    connection.execute("UPDATE packhorse_job SET queued_at = queued_at + 1 WHERE state = 'queued'")
    connection.commit()
    connection.close()

    unsure = watch(copy, lambda s: s.queues()).steps

    assert sure < 2 * FEW
    assert unsure < sure + 15 * 10


def test_a_replace_costs_the_same_after_a_thousand_others(copy: Path) -> None:
    def another(name: str) -> NewJob:
        return new_job(name, delay=HOUR, unique=unique("k", on_conflict="replace"))

    with contextlib.closing(SQLite(copy)) as storage:
        storage.enqueue([another(f"twin {number}") for number in range(1_000)])

    assert watch(copy, lambda s: s.enqueue([another("the last twin")])).steps < FEW
    assert watch(copy, lambda s: s.enqueue([another("twin 500")])).steps < FEW


@pytest.mark.parametrize("number", [1, 100])
def test_reserving_costs_what_it_takes_and_not_what_is_there(number: int, copy: Path) -> None:
    seen = watch(copy, lambda s: s.reserve("ann", LINES, number))

    assert seen.steps < FEW + 12 * number
