"""Lists look at a bounded number of jobs, whatever is asked for; with thirty thousand jobs."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.conformance.builders import find_all, ids, join, new_job
from packhorse.core.clock import HOUR
from packhorse.core.errors import BadValue
from packhorse.core.job import COMPLETED, DEAD, FINAL, HELD, QUEUED, RUNNING, SCHEDULED, State
from packhorse.core.outcome import Completed
from packhorse.storage.queries import BY_DUE_TIME, IN_LINE, LATEST_FINISHED, NEWEST, Order, encode_cursor
from packhorse.storage.records import Count, Filter
from packhorse.storage.sql.lists import AT_A_TIME, AT_MOST
from packhorse.storage.sqlite import SQLite
from packhorse.storage.sqlite.database import Options
from tests.storage.sqlite.tracing import traced

JOBS = 30_000
IN_EACH_STATE = JOBS // 3


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A third completed, a third scheduled, a third in line; the very first job is held since the beginning."""
    path = tmp_path_factory.mktemp("lists") / "jobs.db"
    storage = SQLite(path, options=Options(synchronous="off"))
    join(storage)
    storage.enqueue([new_job("held", queue="rare", task="rare")])
    storage.reserve("ann", {"rare": 1}, 1)
    for batch in range(0, JOBS, 1_000):
        delay = HOUR if batch // 1_000 % 3 == 0 else 0
        storage.enqueue([new_job(f"job-{number:05}", delay=delay) for number in range(batch, batch + 1_000)])
    for _ in range(IN_EACH_STATE // 1_000):
        storage.finish([Completed(job.token) for job in storage.reserve("ann", {"mail": 1}, 1_000)])
    storage.close()
    return path


class Watched:
    """A storage, and what its reading connection is told."""

    def __init__(self, path: Path) -> None:
        self.told: list[str] = []
        with traced(self.told.append):
            self.storage = SQLite(path)
            self.storage.queues()
        self.told.clear()

    def looked_at(self) -> int:
        """How many jobs were tried against a filter."""
        lists = re.findall(r"seq IN \(SELECT value FROM json_each\('(\[[^']*\])'\)\)", "\n".join(self.told))
        return sum(len(json.loads(one)) for one in lists)


@pytest.fixture
def watched(crowded: Path, path: Path) -> Iterator[Watched]:
    watched = Watched(Path(shutil.copyfile(crowded, path)))
    yield watched
    watched.storage.close()


ODD_FILTERS = [
    pytest.param(Filter(text="nowhere"), id="all jobs"),
    pytest.param(Filter(queue="mail", text="nowhere"), id="one queue"),
    pytest.param(Filter(states=frozenset({QUEUED, COMPLETED, RUNNING}), text="nowhere"), id="mixed states"),
    pytest.param(Filter(min_priority=9), id="rare jobs"),
]


@pytest.mark.parametrize("where", ODD_FILTERS)
def test_one_call_looks_at_a_bounded_number_of_jobs(where: Filter, watched: Watched) -> None:
    page = watched.storage.find(where)

    assert page.jobs == []
    assert page.next is not None
    assert AT_MOST <= watched.looked_at() <= AT_MOST + AT_A_TIME


@pytest.mark.parametrize("where", ODD_FILTERS)
def test_the_next_pages_look_at_the_rest_and_come_to_an_end(where: Filter, watched: Watched) -> None:
    assert find_all(watched.storage, where) == []

    assert JOBS <= watched.looked_at() <= JOBS + 1


def test_a_needle_is_found_on_the_page_where_it_lies(watched: Watched) -> None:
    assert ids(find_all(watched.storage, Filter(text="job-00003"))) == ["job-00003"]
    assert ids(find_all(watched.storage, Filter(text="job-29999"))) == ["job-29999"]


@pytest.mark.parametrize("states", [{QUEUED}, {SCHEDULED}, {COMPLETED}, FINAL, set()])
def test_a_page_of_what_is_plentiful_looks_at_little_more_than_the_page(states: set[State], watched: Watched) -> None:
    page = watched.storage.find(Filter(states=frozenset(states)), limit=50)

    assert len(page.jobs) == 50
    assert watched.looked_at() <= 200


def test_all_pages_together_have_every_job_once(watched: Watched) -> None:
    found = ids(find_all(watched.storage, limit=1_000))

    assert len(found) == len(set(found)) == JOBS + 1


def test_a_task_is_found_where_the_tallies_say_that_it_is(watched: Watched) -> None:
    page = watched.storage.find(Filter(task="rare"))

    assert (ids(page.jobs), page.next) == (["held"], None)
    assert watched.looked_at() == 1


def test_a_task_that_has_no_jobs_is_not_looked_for(watched: Watched) -> None:
    for where in (Filter(task="unheard of"), Filter(task="rare", states=FINAL), Filter(task="rare", queue="mail")):
        watched.told.clear()
        page = watched.storage.find(where)

        assert (page.jobs, page.next) == ([], None)
        assert len(watched.told) == 1, "one look at the tallies"


def test_held_jobs_are_found_without_a_look_at_the_others(watched: Watched) -> None:
    page = watched.storage.find(Filter(states=HELD))

    assert ids(page.jobs) == ["held"]
    assert page.next is None
    assert watched.looked_at() == 1


def test_counting_stops_at_its_cap(watched: Watched) -> None:
    counted = watched.storage.count(Filter(text="job"), cap=5_000)

    assert (counted.number, counted.exact) == (5_000, False)
    assert watched.looked_at() <= 10_000


def test_counting_below_the_cap_is_exact(watched: Watched) -> None:
    assert watched.storage.count(Filter(text="job-2999"), cap=5_000) == Count(10, exact=False), "older ones may fit"
    assert watched.storage.count(Filter(text="held", queue="rare")) == Count(1)
    assert watched.storage.count(Filter(states=frozenset({COMPLETED}))).number == IN_EACH_STATE


@pytest.mark.parametrize(
    ("order", "states", "place"),
    [
        (IN_LINE, {QUEUED}, (-20_000, 0)),
        (IN_LINE, {QUEUED}, (5, -(1 << 62))),
        (IN_LINE, {QUEUED}, (1_000, 0)),
        (BY_DUE_TIME, {SCHEDULED}, (-(1 << 62), 0)),
        (LATEST_FINISHED, {COMPLETED}, (-(1 << 62), 0)),
        (NEWEST, set(), (-(1 << 62),)),
        (NEWEST, set(), (1 << 62,)),
    ],
)
def test_a_cursor_that_somebody_made_up_costs_no_more_than_an_honest_one(
    order: Order, states: set[State], place: tuple[int, ...], watched: Watched
) -> None:
    watched.storage.find(Filter(states=frozenset(states)), cursor=encode_cursor(order, place))

    assert len(watched.told) < 100


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63), -(1 << 63) - 1, 10**40])
@pytest.mark.parametrize(
    ("order", "states"), [(IN_LINE, {QUEUED}), (BY_DUE_TIME, {SCHEDULED}), (LATEST_FINISHED, {DEAD}), (NEWEST, set())]
)
def test_a_cursor_with_a_number_that_is_too_large_to_be_stored_is_refused_or_harmless(
    order: Order, states: set[State], number: int, watched: Watched
) -> None:
    said = f'["{order.name}",{number}]' if order is NEWEST else f'["{order.name}",5,{number}]'
    cursor = base64.urlsafe_b64encode(said.encode()).decode().rstrip("=")

    with contextlib.suppress(BadValue):
        assert len(watched.storage.find(Filter(states=frozenset(states)), cursor=cursor, limit=50).jobs) <= 50
