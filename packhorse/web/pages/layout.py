"""The frame around every page: navigation with live figures, banners, the find box, who is signed in."""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple
from urllib.parse import quote

import jinja2
from jinja2.ext import Extension
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from packhorse.core.clock import SECOND
from packhorse.core.job import Operation, State, is_legal
from packhorse.core.version import __version__
from packhorse.monitor.stats import Totals
from packhorse.monitor.text import count_text, size_text
from packhorse.web.api.problem import Problem
from packhorse.web.api.stats import totals_for
from packhorse.web.context import Call, WebContext
from packhorse.web.pages import chart, filters
from packhorse.web.pages.assets import digest
from packhorse.web.pages.banners import banners
from packhorse.web.pages.page import PageRequest, PageResponse, address
from packhorse.web.pages.time_range import RANGES, chosen_range
from packhorse.web.security.operator import Role
from packhorse.web.text import safe

# What a page says after an action.
MESSAGES = {
    "retried": "It is queued again.",
    "aborted": "Aborted.",
    "abort_requested": "Asked to stop. It ends as aborted, unless it completes first.",
    "started": "It starts next.",
    "moved": "Its priority was set.",
    "requeued": "It was moved to another queue.",
    "deleted": "The job was deleted.",
    "copied": "This is the copy.",
    "enqueued": "The job was enqueued.",
    "twin": "A job with the same unique key exists already: this one.",
    "paused": "The queue is paused.",
    "resumed": "Queue resumed.",
    "pause_over": "Queue resumed: its pause would be over by now.",
    "schedule_paused": "The schedule is paused.",
    "schedule_resumed": "Schedule resumed.",
    "schedule_skipped": "Its next run is skipped.",
    "schedule_removed": "The schedule was removed.",
    "silenced": "Silenced: listed below the others, and still counted.",
    "unsilenced": "Unsilenced.",
    "quieted": "Order sent: within a second or two it takes no more jobs.",
    "ordered": "Order sent: it takes effect within a second or two.",
    "stacks": "This is its current stack.",
    "no_stacks": "No answer in time: something may hold the interpreter, or the worker has just exited.",
    "unchanged": "Nothing to change.",
}
_DONE_TO_MANY = {
    "retry": "retried",
    "force_start": "forced to start",
    "set_priority": "moved to another priority",
    "set_queue": "moved to another queue",
    "abort": "aborted or asked to stop",
    "delete": "deleted",
}


# What undoes an action, and for how long a page offers it. Restarting starts workers that take jobs again.
UNDO_PATHS = {
    "paused": "/queues/{}/resume",
    "resumed": "/queues/{}/pause",
    "schedule_paused": "/schedules/{}/resume",
    "schedule_resumed": "/schedules/{}/pause",
    "aborted": "/jobs/{}/retry",
    "quieted": "/workers/{}/restart",
}
_UNDO_FOR = 8 * SECOND
_ROOM = 7  # letters of busy slots beside which the number of workers has room


_PREFORMATTED = re.compile(r"(<(?:pre|textarea)\b.*?</(?:pre|textarea)>)", re.DOTALL)


class NavItem(NamedTuple):
    """An entry of the navigation; `live` names the number that the stream brings."""

    name: str
    path: str
    title: str
    figure: str = ""
    is_grave: bool = False
    live: str = ""


class Unindented(Extension):
    """Leaves the indentation of templates out of the pages: rows repeat it thousands of times. One space stays
    behind a statement, because Jinja drops the line break there."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        parts = _PREFORMATTED.split(source)
        for place in range(0, len(parts), 2):
            text = re.sub(r"(?<!%\})\n +", "\n", re.sub(r"%\}\n +", "%}\n ", parts[place]))
            text = re.sub(r"(?<=[>}])\n ?(?=</?(?:t[dhr]|tbody|thead)\b)", "", text)  # nothing counts between cells
            parts[place] = re.sub(r"(?<=</t[dhr]>)\n(?=\{%)", "", text)
        return "".join(parts)


@functools.cache
def templates() -> jinja2.Environment:
    """The templates, compiled when first used. Everything is escaped unless it is markup of our own."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("packhorse.web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Unindented],
    )
    environment.filters.update(filters.FILTERS)
    environment.globals.update(
        State=State,
        STATES=list(State),
        ICONS=filters.STATE_ICONS,
        is_possible=lambda word, state: is_legal(Operation(word), state),
        RANGES=RANGES,
        Role=Role,
        percent=filters.percent,
        address=address,
        sparkline=chart.sparkline,
        version=__version__,
    )
    return environment


class RenderedPage(NamedTuple):
    """A page as it is sent."""

    text: bytes
    status: int


def render(call: Call, page_request: PageRequest, shown: PageResponse, place: str) -> RenderedPage:
    """The page in its frame."""
    totals, now = totals_for(call.reader), call.reader.now()
    health = call.web.cache.health()
    frame: dict[str, Any] = {
        **_common_context(call.web, page_request),
        "title": safe(shown.title),
        "place": place,
        "topics": ",".join(("overview", *shown.topics)),
        "places": nav_items(totals),
        "totals": totals,
        "now": now,
        "banners": banners(call.reader, place),
        "operator": call.operator,
        "storage_name": health.url.rpartition("/")[2] or health.url,
        "storage_kind": health.kind,
        "said": _message(page_request),
        "undo": _undo(call, page_request, now) if call.operator.may(Role.OPERATE) else None,
        "may_operate": call.operator.may(Role.OPERATE),
        "may_delete": call.operator.may(Role.ADMIN),
        "ago": lambda at: filters.ago(at, now),
        "due": lambda at, before="": filters.due(at, now, before),
        "range": chosen_range(page_request, now),
        "stretch": {name: page_request.query.get(name) for name in ("range", "from", "to")},  # for links to other pages
    }
    text = templates().get_template(shown.template).render({**frame, **shown.context})
    return RenderedPage(text.encode(), shown.status)


def render_login(
    web: WebContext, page_request: PageRequest, *, wrong: bool, onward: str, status: int = 200
) -> Response:
    """The page at which one signs in."""
    context = {**_common_context(web, page_request), "title": "Sign in", "wrong": wrong, "onward": onward}
    return _html(templates().get_template("login.html").render(context), status)


def render_problem(
    web: WebContext,
    page_request: PageRequest,
    problem: Problem,
    again_in: int | None = None,
    back: str | None = None,
    known: tuple[int, dict[State, int]] | None = None,
) -> Response:
    """The page that says what went wrong, and what to do next; it may ask again by itself after so many seconds. `back`
    is the page whose form was sent, `known` how many jobs there were in each state, and how long ago."""
    context = {**_common_context(web, page_request), "title": problem.title, "problem": problem}
    context |= {"again_in": again_in, "back": back, "known": known}
    response = _html(templates().get_template("problem.html").render(context), problem.status)
    if again_in is not None:
        response.headers["Refresh"] = str(again_in)
    return response


def page_request_of(request: Request) -> PageRequest:
    """What the browser asked for."""
    root = request.state.root.rstrip("/")
    path = request.url.path.removeprefix(root) or "/"
    return PageRequest(path, {name: value for name, value in request.query_params.items() if value}, root)


def nav_items(totals: Totals) -> list[NavItem]:
    """The navigation."""
    unfinished = sum(
        number for state, number in totals.states.items() if state not in (State.COMPLETED, State.ABORTED, State.DEAD)
    )
    kinds = totals.failure_kinds
    return [
        NavItem("overview", "/", "Overview"),
        NavItem("jobs", "/jobs", "Jobs", filters.compact(unfinished), live="unfinished"),
        NavItem(
            "failures",
            "/failures",
            "Failures",
            f"{kinds} kind{'s' if kinds != 1 else ''}" if kinds else "",
            kinds > 0,
            "kinds",
        ),
        NavItem("queues", "/queues", "Queues", str(totals.queues or ""), live="queues"),
        NavItem("tasks", "/tasks", "Tasks"),
        NavItem(
            "workers",
            "/workers",
            "Workers",
            _workers_text(totals),
            not totals.workers,
            "workers",
        ),
        NavItem("schedules", "/schedules", "Schedules", str(totals.schedules or ""), live="schedules"),
        NavItem("storage", "/storage", "Storage"),
        NavItem("audit", "/audit", "Audit"),
    ]


def _workers_text(totals: Totals) -> str:
    """The number of workers and their busy slots; only the slots if there is no room for both."""
    busy = f"{totals.busy}/{totals.slots}"
    return "none" if not totals.workers else busy if len(busy) > _ROOM else f"{totals.workers} · {busy}"


def _common_context(web: WebContext, page_request: PageRequest) -> dict[str, Any]:
    return {
        "root": page_request.root,
        "static": f"{page_request.root}/static/{digest()}",
        "request": page_request,
        "is_open": web.access.is_open,
        "read_only": web.access.read_only,
    }


def _message(page_request: PageRequest) -> str:
    said = page_request.query.get("said", "")
    if said == "bulk":
        return _bulk_message(page_request)
    if said in ("pruned", "pruned_some"):
        jobs, events = (_counted(page_request, name) for name in ("changed", "skipped"))
        rest = " There are more: prune again." if said == "pruned_some" else ""
        return f"{count_text(jobs, 'job')} and {count_text(events, 'event')} were removed.{rest}"
    if said == "compacted":
        before, after = (size_text(_counted(page_request, name)) for name in ("changed", "skipped"))
        return f"The storage shrank from {before} to {after}."
    if said == "backed_up":
        return f"The copy is {safe(page_request.query.get('file', ''))[:120]}, beside the storage."
    return MESSAGES.get(said, "")


def _counted(page_request: PageRequest, name: str) -> int:
    """A number from the address, which may come from anywhere."""
    text = page_request.query.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 15 else 0


def _undo(call: Call, page_request: PageRequest, now: int) -> str | None:
    """The path of the form that undoes the last action, while the page offers that. The address names the action and is
    signed, so that a link from another site cannot show a button that the operator does not expect."""
    said, name, at, mark = (page_request.query.get(each, "") for each in ("said", "undo", "at", "mark"))
    path = UNDO_PATHS.get(said)
    if path is None or not call.web.access.sessions.is_marked(mark, call.operator.name, said, name, at):
        return None
    return path.format(quote(name, safe="")) if 0 <= now - int(at) <= _UNDO_FOR else None


def _bulk_message(page_request: PageRequest) -> str:
    """How many jobs were changed, from the address, which may come from anywhere."""
    changed, skipped = (_counted(page_request, name) for name in ("changed", "skipped"))
    done = _DONE_TO_MANY.get(page_request.query.get("did", ""), "changed")
    if not changed:
        rest = f": {count_text(skipped, 'was', 'were')} skipped" if skipped else ""
        return f"No job was {done}{rest}."
    return f"{count_text(changed, 'job was', 'jobs were')} {done}{f', {skipped:,} skipped' if skipped else ''}."


def _html(text: str, status: int) -> Response:
    return HTMLResponse(text, status)
