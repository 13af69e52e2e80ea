"""The list of jobs: state tabs, a filter, pages, and bulk actions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from packhorse.core.errors import BadValue, QueueNotFound
from packhorse.core.job import FINAL, QUEUED, RETRYING, SCHEDULED, Job, Operation, State, is_legal
from packhorse.monitor.filters import SLOWEST_OF
from packhorse.monitor.text import attempt_text, error_line, note_text, shorten, state_text
from packhorse.storage.queries import is_unfiltered, order_of
from packhorse.storage.records import Count, Filter, Page
from packhorse.web.api.jobs import short_call
from packhorse.web.api.problem import Problem, problem_of
from packhorse.web.context import Call
from packhorse.web.pages.filter_chips import (
    Query,
    emptying,
    expand_named_filters,
    filter_chips,
    filter_of,
    filter_text,
    selects_jobs,
    without_state,
)
from packhorse.web.pages.page import PageRequest, PageResponse, Redirect, address, page
from packhorse.web.reader import Reader
from packhorse.web.text import safe

PAGE_SIZE = 50
UNKNOWN_QUEUE = "tick “create queue” to make it"
_SUGGESTED = 200
SHOWN = "shown"
"""The query parameter with which a browser sends the jobs on screen: these stay, in this order, however many others
arrive."""
_SAID = ("said", "did", "changed", "skipped")
_LONG_ARGS = 300  # characters of the arguments in an open row
TIMES = ("15m", "1h", "6h", "24h", "7d")
"""Choices for the maximum age of the jobs in a list; any other time is a filter word."""
_NATURAL = {"line": "Rank, then age", "due": "Next due", "finished": "Latest ended", "newest": "Newest"}

OPERATIONS = {
    Operation.RETRY: "Retry",
    Operation.FORCE_START: "Start now",
    Operation.SET_PRIORITY: "Set priority",
    Operation.SET_QUEUE: "Move to queue",
    Operation.ABORT: "Abort",
    Operation.DELETE: "Delete",
}
"""The actions on jobs, and the labels of their buttons."""


class Row(NamedTuple):
    """A job as a row of the list."""

    job: Job
    state: str
    call: str
    tries: str
    remark: str
    args: str
    waited: int | None
    ran: int | None
    at: int | None


class Tab(NamedTuple):
    """One state, or all."""

    title: str
    path: str
    number: Count | None  # None: not counted
    is_chosen: bool
    state: State | None = None


def row_of(job: Job, now: int) -> Row:
    """Make the row of a job."""
    at = (
        job.due_at
        if job.state in (State.SCHEDULED, State.RETRYING)
        else job.finished_at or job.started_at or job.queued_at
    )
    text = note_text(job) or _failed_before(job)
    return Row(
        job,
        state_text(job),
        safe(short_call(job)),
        attempt_text(job),
        safe(text),
        safe(shorten(job.args, _LONG_ARGS)),
        job.waited(now),
        job.took(now),
        at,
    )


def _failed_before(job: Job) -> str:
    """How the previous attempt failed, for a job that runs again or has completed since."""
    line = error_line(job)
    return f"the attempt before: {line}" if line else ""


class Look(NamedTuple):
    """One request for the list: the query, and what was found."""

    now: int
    query: Query
    where: Filter
    found: Page | None = None  # None: the filter is not valid
    listed: Sequence[Job] = ()
    newer: str = ""  # how many jobs now precede those on screen
    problem: Problem | None = None

    @property
    def is_empty(self) -> bool:
        return self.found is not None and not self.listed and self.found.next is None


@page("/jobs", "jobs")
def jobs(call: Call, request: PageRequest) -> PageResponse | Redirect:
    """List the matching jobs, a page at a time."""
    look = _look(call, request)
    if isinstance(look, Redirect):
        return look
    context = {
        **_filter(call.reader, look),
        **_list(call.reader, look),
        **_pages(look),
        "operations": _operations(look.where),
        "queue_names": queue_names(call.reader),
        "named": {name: address("/jobs", q=words) for name, words in call.web.filters.items()},
        "bad_filters": list(call.web.filters.bad.values()),
        "seen_at": look.now,
        "problem": look.problem,
    }
    return PageResponse("jobs.html", "Jobs", context, status=400 if look.problem else 200)


def _look(call: Call, request: PageRequest) -> Look | Redirect:
    reader = call.reader
    now, query = reader.now(), {name: text for name, text in request.query.items() if name != SHOWN}
    try:
        if (spelled := expand_named_filters(query, call.web.filters)) != query:
            return Redirect(address("/jobs", **spelled))
        where = filter_of(query, now)
        found = reader.find(where, query.get("cursor"), PAGE_SIZE)
    except BadValue as error:
        return Look(now, query, Filter(), problem=problem_of(error))
    if SHOWN not in request.query:
        return Look(now, query, where, found, found.jobs)
    kept = request.query[SHOWN].split(",")[:PAGE_SIZE]
    newer = _newer(found, kept) if "cursor" not in query else ""
    return Look(now, query, where, found, reader.these(kept), newer)


def _filter(reader: Reader, look: Look) -> dict[str, Any]:
    """Tabs, filter words and chips."""
    query, since = look.query, look.query.get("since", "")
    tabs = _tabs(reader, look.where, query) if look.problem is None else []
    return {
        "tabs": tabs,
        "count": next((tab.number for tab in tabs if tab.is_chosen), None),
        "words": query.get("q", ""),
        "chips": filter_chips(query),
        "filter_text": filter_text(query),
        "is_filtered": not is_unfiltered(look.where),
        "says_which": look.problem is None and selects_jobs(query, look.now),
        "orders": _orders(look.where),
        "times": sorted({*TIMES, since} - {""}, key=(*TIMES, since).index),
    }


def _list(reader: Reader, look: Look) -> dict[str, Any]:
    """The jobs; for an empty list, which chips empty it."""

    def is_there(where: Filter) -> bool:
        return bool(reader.find(where, None, 1).jobs)

    return {
        "rows": [row_of(job, look.now) for job in look.listed],
        "newer": look.newer,
        "emptying": emptying(filter_chips(look.query), look.now, is_there) if look.is_empty else [],
        "unknown": _unknown(reader, look.where) if look.is_empty else None,
        "is_searched": look.found is not None and _is_searched(look.found, look.where),
        "slowest_of": SLOWEST_OF if look.where.order == "took" else None,
    }


def _pages(look: Look) -> dict[str, Any]:
    """The links to other pages."""
    query, further = look.query, look.found.next if look.found else None
    return {
        "next": address("/jobs", **{**query, "cursor": further}) if further else None,
        "first": address("/jobs", **{**query, "cursor": None}) if "cursor" in query else None,
        "counting": address("/count", **{**query, "cursor": None, **dict.fromkeys(_SAID)}),
        "present": address("/jobs", **{name: text for name, text in query.items() if name not in _SAID}),
    }


def _unknown(reader: Reader, where: Filter) -> Problem | None:
    """The problem to show if the filter names a queue that does not exist."""
    try:
        if where.queue is not None:
            reader.queue(where.queue)
    except QueueNotFound as error:
        return problem_of(error)
    return None


def _is_searched(found: Page, where: Filter) -> bool:
    """Did the search stop because of its time limit, and not because the page was full?"""
    return found.next is not None and (len(found.jobs) < PAGE_SIZE or where.order == "took")


def _newer(found: Page, kept: list[str]) -> str:
    """How many jobs now precede those that the reader sees. Jobs that only moved up because others left are not new."""
    ids = [job.id for job in found.jobs]
    positions = [place for place, job_id in enumerate(ids) if job_id in set(kept)]
    number = sum(job_id not in set(kept) for job_id in ids[: positions[-1]]) if positions else len(ids)
    return f"{number}{'' if positions or found.next is None else '+'}" if number else ""


def _tabs(reader: Reader, where: Filter, query: Query) -> list[Tab]:
    """A tab for all jobs and one for each state, with counts that are known or quick to get."""
    rest = {name: value for name, value in without_state(query).items() if name not in _SAID}
    counts = reader.count_each_state(where)
    total = Count(sum(count.number for count in counts.values())) if len(counts) == len(State) else None
    tabs = [Tab("All", address("/jobs", **rest), total, not where.states)]
    return tabs + [
        Tab(
            state.capitalize(),
            address("/jobs", **{**rest, **_can_be_ordered(rest, state)}, state=state),
            counts.get(state),
            where.states == {state},
            state,
        )
        for state in State
    ]


def _can_be_ordered(rest: Query, state: State) -> Query:
    """Keep the chosen order if jobs of this state can be listed in it."""
    order = rest.get("order", "")
    return {"order": order if order in dict(_orders(Filter(frozenset({state})))) else ""}


def _orders(where: Filter) -> list[tuple[str, str]]:
    """The orders of the list; the first is its natural order."""
    states = where.states
    natural = order_of(states).name
    orders = [("", _NATURAL[natural])] + ([("created", "Newest")] if natural != "newest" else [])
    if not states:
        orders += [("due", _NATURAL["due"]), ("finished", _NATURAL["finished"])]
    elif natural != "finished" and states <= FINAL:
        orders.append(("finished", _NATURAL["finished"]))
    if not states & {QUEUED, SCHEDULED, RETRYING} or len(states) > 1:
        orders.append(("took", "Longest run"))
    return orders


def _operations(where: Filter) -> list[tuple[str, str]]:
    """The actions that some jobs of the list allow."""
    states = where.states or frozenset(State)
    return [(word.value, title) for word, title in OPERATIONS.items() if any(is_legal(word, state) for state in states)]


@page("/dead_jobs", "jobs")
def dead_jobs(call: Call, request: PageRequest) -> Redirect:
    """Redirect a memorable address."""
    return Redirect("/jobs?state=dead")


@page("/retry_jobs", "jobs")
def retry_jobs(call: Call, request: PageRequest) -> Redirect:
    """Redirect a memorable address."""
    return Redirect("/jobs?state=retrying")


@page("/scheduled_jobs", "jobs")
def scheduled_jobs(call: Call, request: PageRequest) -> Redirect:
    """Redirect a memorable address."""
    return Redirect("/jobs?state=scheduled")


def queue_names(reader: Reader) -> list[str]:
    """Suggest queues to move jobs to."""
    return [queue.name for queue in reader.queues()[:_SUGGESTED]]


def operations_for(job: Job) -> dict[str, Any]:
    """The actions that this job allows, by name."""
    return {word.value: title for word, title in OPERATIONS.items() if is_legal(word, job.state)}


_OWN = ("cursor", "counted")


@page("/count", "jobs")
def count(call: Call, request: PageRequest) -> PageResponse:
    """Show how many jobs have been counted so far, and whether that is all."""
    written = {name: value for name, value in request.query.items() if name not in _OWN}
    query = expand_named_filters(written, call.web.filters)
    counted = request.query.get("counted", "0")
    if not counted.isdecimal() or len(counted) > 12:
        raise BadValue(f"{counted[:20]!r} is not a number of jobs", hint="begin again at the list")
    number, following = call.reader.count_on(filter_of(query, call.reader.now()), request.query.get("cursor"))
    context = {
        "query": query,
        "number": int(counted) + number,
        "next": following,
        "filter_text": filter_text(query),
        "back": address("/jobs", **query),
    }
    return PageResponse("counting.html", "Counting jobs", context)


LIKE_AN_ID = re.compile(r"[0-9a-fA-F-]{4,36}")


@page("/find", "jobs")
def find(call: Call, request: PageRequest) -> Redirect:
    """Redirect to what the search text names: a queue, a task, a job, or a filtered list."""
    text = request.query.get("q", "").strip()
    if not text:
        return Redirect("/jobs")
    if any(queue.name == text for queue in call.reader.queues()):
        return Redirect(f"/queues/{text}")
    if any(task.name == text for task in call.reader.tasks()):
        return Redirect(f"/tasks/{text}")
    if LIKE_AN_ID.fullmatch(text) or call.web.storage.get(text) is not None:
        found = call.reader.with_part(text)
        if len(found) == 1:
            return Redirect(f"/jobs/{found[0].id}")
    return Redirect(address("/jobs", q=text))
