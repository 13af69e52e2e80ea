"""The list of jobs: state tabs, a filter, pages, and what can be done to many at once."""

from __future__ import annotations

import shlex
from typing import Any, NamedTuple

from msgspec.structs import replace

from packhorse.errors import BadValue
from packhorse.filter_words import parse_words
from packhorse.job import Job, Operation, State, is_legal
from packhorse.job_text import error_line, remark, state_text, try_text
from packhorse.storage.listing import is_tallied
from packhorse.storage.records import Count, Filter, Page
from packhorse.web.api.jobs import short_call
from packhorse.web.api.problem import problem_of
from packhorse.web.pages.page import Asked, Elsewhere, Shown, address, page
from packhorse.web.pages.words import safe
from packhorse.web.reader import Reader
from packhorse.web.site import Call

PAGE_SIZE = 50
UNKNOWN_QUEUE = "tick “make it new” if it shall be made"
_SUGGESTED = 200
SHOWN = "shown"
"""The word of an address by which a browser says which jobs its reader has before them: these stay, in this order,
however many others have come."""
_SAID = ("said", "changed", "skipped")
_WORDS = ("queue", "task", "worker", "cause", "schedule", "key", "text", "since", "until")

OPERATIONS = {
    Operation.RETRY: "Retry",
    Operation.FORCE_START: "Start now",
    Operation.SET_PRIORITY: "Set priority",
    Operation.SET_QUEUE: "Move to queue",
    Operation.ABORT: "Abort",
    Operation.DELETE: "Delete",
}
"""What can be done to jobs, and what its button says."""


class Row(NamedTuple):
    """A job as a line of the list."""

    job: Job
    state: str
    call: str
    tries: str
    remark: str
    waited: int | None
    ran: int | None
    at: int | None


class Tab(NamedTuple):
    """One state, or all."""

    title: str
    path: str
    number: Count
    is_chosen: bool
    state: State | None = None


def row_of(job: Job, now: int) -> Row:
    """A job as a line of the list."""
    at = (
        job.due_at
        if job.state in (State.SCHEDULED, State.RETRYING)
        else job.finished_at or job.started_at or job.queued_at
    )
    text = remark(job) or error_line(job)
    return Row(
        job, state_text(job), safe(short_call(job)), try_text(job), safe(text), job.waited(now), job.took(now), at
    )


@page("/jobs", "jobs")
def jobs(call: Call, asked: Asked) -> Shown | Elsewhere:
    """Jobs that fit, a page at a time."""
    now, query = call.reader.now(), {name: text for name, text in asked.query.items() if name != SHOWN}
    words = query.get("q", "")
    try:
        where = filter_of(query, now)
        found = call.reader.find(where, query.get("cursor"), PAGE_SIZE)
        problem = None
    except BadValue as error:
        where, found, problem = Filter(), None, problem_of(error)
    listed, newer = found.jobs if found else [], ""
    if found and SHOWN in asked.query:
        kept = asked.query[SHOWN].split(",")[:PAGE_SIZE]
        newer = _newer(found, kept) if "cursor" not in query else ""
        listed = call.reader.these(kept)
    return Shown(
        "jobs.html",
        "Jobs",
        {
            "rows": [row_of(job, now) for job in listed],
            "tabs": _tabs(call.reader, where, query) if problem is None else [],
            "count": call.reader.count(where) if problem is None and is_tallied(where) else None,
            "words": words,
            "chips": _chips(query),
            "filter_text": filter_text(query),
            "problem": problem,
            "next": address("/jobs", **{**query, "cursor": found.next}) if found and found.next else None,
            "first": address("/jobs", **{**query, "cursor": None}) if "cursor" in query else None,
            "newer": newer,
            "present": address("/jobs", **{name: text for name, text in query.items() if name not in _SAID}),
            "is_filtered": where != Filter(),
            "operations": _operations(where),
            "queue_names": queue_names(call.reader),
            "seen_at": now,
        },
        status=400 if problem else 200,
    )


def _newer(found: Page, kept: list[str]) -> str:
    """How many jobs the list has by now that stand before those that somebody looks at. What only moved up from behind,
    because others left, is not new."""
    ids = [job.id for job in found.jobs]
    places = [place for place, job_id in enumerate(ids) if job_id in set(kept)]
    number = sum(job_id not in set(kept) for job_id in ids[: places[-1]]) if places else len(ids)
    return f"{number}{'' if places or found.next is None else '+'}" if number else ""


def filter_of(query: dict[str, str], now: int) -> Filter:
    """The filter that the address of the list means."""
    text = filter_text(query)
    return parse_words([text], now) if text else Filter()


def filter_text(query: dict[str, str]) -> str:
    """The same as filter words, for a shell and for doing something to all that fit."""
    words = [query["q"]] if "q" in query else []
    if "state" in query:
        words.append(f"state:{query['state']}")
    words += [f"{name}:{shlex.quote(query[name])}" for name in _WORDS if name in query]
    return " ".join(words)


def _tabs(reader: Reader, where: Filter, query: dict[str, str]) -> list[Tab]:
    """All, and each state; how many there are is told where it is known without counting."""
    rest = {name: value for name, value in query.items() if name not in ("state", "cursor", *_SAID)}
    can_count = is_tallied(where)
    tabs = [_tab(reader, where, None, rest, can_count)]
    return tabs + [_tab(reader, where, state, rest, can_count) for state in State]


def _tab(reader: Reader, where: Filter, state: State | None, rest: dict[str, str], can_count: bool) -> Tab:
    wanted = frozenset() if state is None else frozenset({state})
    count = reader.count(replace(where, states=wanted)) if can_count else Count(0, exact=False)
    title = "All" if state is None else state.capitalize()
    return Tab(title, address("/jobs", **rest, state=state), count, where.states == wanted, state)


def _chips(query: dict[str, str]) -> list[tuple[str, str]]:
    """Each part of the filter, and the address without it."""
    parts = [name for name in ("q", "state", *_WORDS) if name in query]
    return [
        (
            f"{name}: {query[name]}" if name != "q" else query[name],
            address("/jobs", **{**query, name: None, "cursor": None}),
        )
        for name in parts
    ]


def _operations(where: Filter) -> list[tuple[str, str]]:
    """What can be done to some of the jobs in the list."""
    states = where.states or frozenset(State)
    return [(word.value, title) for word, title in OPERATIONS.items() if any(is_legal(word, state) for state in states)]


@page("/dead_jobs", "jobs")
def dead_jobs(call: Call, asked: Asked) -> Elsewhere:
    """An address that is easy to remember."""
    return Elsewhere("/jobs?state=dead")


@page("/retry_jobs", "jobs")
def retry_jobs(call: Call, asked: Asked) -> Elsewhere:
    """An address that is easy to remember."""
    return Elsewhere("/jobs?state=retrying")


@page("/scheduled_jobs", "jobs")
def scheduled_jobs(call: Call, asked: Asked) -> Elsewhere:
    """An address that is easy to remember."""
    return Elsewhere("/jobs?state=scheduled")


def queue_names(reader: Reader) -> list[str]:
    """The queues to which jobs may be moved, as far as a list of suggestions goes."""
    return [queue.name for queue in reader.queues()[:_SUGGESTED]]


def operations_for(job: Job) -> dict[str, Any]:
    """What can be done to this job, by name."""
    return {word.value: title for word, title in OPERATIONS.items() if is_legal(word, job.state)}
