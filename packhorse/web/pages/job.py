"""One job: its page, and everything that can be done from there. What the page shows is in `job_cards.py`.

An action answers with the page to go to; a form with an invalid field comes back with what was typed.
"""

from __future__ import annotations

import json
from typing import Any

from packhorse.core.errors import BadValue, JobNotFound
from packhorse.core.job import ABORTED, QUEUED, Job, Operation, rank_of
from packhorse.core.task import MOST_ATTEMPTS, MOST_HALTS
from packhorse.monitor.actions import JobAction
from packhorse.monitor.filters import WHOLE_ID
from packhorse.web.api.jobs import short_call
from packhorse.web.api.problem import Problem
from packhorse.web.context import Call
from packhorse.web.pages.job_cards import EVENTS, JobThen, JobView, cards_of, then_of
from packhorse.web.pages.jobs import LIKE_AN_ID, UNKNOWN_QUEUE
from packhorse.web.pages.page import (
    PageRequest,
    PageResponse,
    Redirect,
    form_action,
    page,
    redirect_with_undo,
    retry_form,
)
from packhorse.web.pages.timeline import timeline_of
from packhorse.web.security.operator import Role
from packhorse.web.text import safe

_LONGEST_NUMBER = 19
_KEPT_AS = {"completed": "keep_completed", "dead": "keep_dead", "aborted": "keep_aborted"}


@page("/jobs/{id}", "jobs")
def job(call: Call, request: PageRequest, id: str) -> PageResponse | Redirect:
    """Everything about one job; of one that is gone, its history. A part of an id leads to its job."""
    if len(id) < WHOLE_ID and LIKE_AN_ID.fullmatch(id):
        found = call.reader.with_part(id)
        if len(found) == 1 and found[0].id != id:
            return Redirect(f"/jobs/{found[0].id}")
    return _job_page(call, request, id)


def _job_page(call: Call, request: PageRequest, id: str, problem: Problem | None = None) -> PageResponse:
    """`problem`: what was wrong with the form that moves it, or sets its priority."""
    try:
        record = call.reader.get(id)
    except JobNotFound:
        return _gone(call, request, id)
    return PageResponse(
        "job.html",
        f"{record.task} {record.state}",
        {
            **cards_of(JobView.of(call, record, request.query.get("level", ""))),
            "then": _then(call, request, id),
            "problem": problem,
            "typed": {name: request.field(name) for name in ("queue", "priority", "new")},
        },
        topics=(f"job:{id}",),
        status=problem.status if problem else 200,
    )


def _then(call: Call, request: PageRequest, id: str) -> JobThen | None:
    """The job as it was after the event that the address names."""
    number = request.query.get("event", "")
    if not number.isdigit() or len(number) > _LONGEST_NUMBER:
        return None
    told = call.reader.history.of_job(id, 1, int(number) - 1)
    return next((then_of(each) for each in call.reader.history.with_objects(told) if each.id == int(number)), None)


def _gone(call: Call, request: PageRequest, id: str) -> PageResponse:
    """What is still known of a job that was deleted or pruned; JobNotFound if that is nothing."""
    events = call.reader.history.of_job(id, EVENTS)
    settings, ended = call.web.app.settings, next((one for one in reversed(events) if one.state in _KEPT_AS), None)
    context = {
        "id": id,
        "events": events[::-1],
        "then": _then(call, request, id),
        "life": timeline_of(None, events, call.reader.now()),
        "last": events[-1],
        "queue": events[-1].queue,
        "kept": settings.shown(_KEPT_AS[ended.state or ""]) if ended else None,
    }
    return PageResponse("job_gone.html", "This job is gone", context, status=404)


# --- what can be done -------------------------------------------------------------------------------------------------


@form_action("/jobs/{id}/retry")
def retry(call: Call, request: PageRequest, id: str) -> Redirect:
    """Give it all its attempts again."""
    call.actions.apply(JobAction(Operation.RETRY), id)
    return Redirect(f"/jobs/{id}?said=retried")


@form_action("/jobs/{id}/abort")
def abort(call: Call, request: PageRequest, id: str) -> Redirect:
    """Stop it for good."""
    is_awaited = bool(call.web.storage.subscribers(id))  # who waits for it has heard that it was aborted
    before = call.actions.apply(JobAction(Operation.ABORT), id)
    after = call.web.storage.get(id)
    if not is_awaited and _can_be_retried_to(before, after):
        return redirect_with_undo(call, f"/jobs/{id}", "aborted", id)
    is_certain = after is None or after.state is ABORTED
    return Redirect(f"/jobs/{id}?said={'aborted' if is_certain else 'abort_requested'}")


def _can_be_retried_to(before: Job, after: Job | None) -> bool:
    """Is a job that was aborted what and where it was, once it is retried? Not if that would give it back tries or
    time, nor take a better place from it, nor if it has been in a worker's hands in between."""
    was_plain = before.state is QUEUED and before.rank == rank_of(before.priority)
    has_no_past = not (before.failures or before.halts or before.expires or before.total_timeout)
    was_left = after is not None and after.state is ABORTED and after.fence == before.fence
    return was_plain and has_no_past and was_left


@form_action("/jobs/{id}/force_start")
def force_start(call: Call, request: PageRequest, id: str) -> Redirect:
    """Run it next."""
    call.actions.apply(JobAction(Operation.FORCE_START), id)
    return Redirect(f"/jobs/{id}?said=started")


@form_action("/jobs/{id}/set_priority")
def set_priority(call: Call, request: PageRequest, id: str) -> PageResponse | Redirect:
    """Move it in line."""
    return retry_form(lambda: _set_priority(call, request, id), lambda problem: _job_page(call, request, id, problem))


def _set_priority(call: Call, request: PageRequest, id: str) -> Redirect:
    text = request.field("priority")
    if not text.isdigit() or len(text) > 2:
        raise BadValue(f"{text[:20]!r} is not a priority", hint="write a number from 1 to 10")
    call.actions.apply(JobAction(Operation.SET_PRIORITY, priority=int(text)), id)
    return Redirect(f"/jobs/{id}?said=moved")


@form_action("/jobs/{id}/set_queue")
def set_queue(call: Call, request: PageRequest, id: str) -> PageResponse | Redirect:
    """Put it in another queue; `new` makes that."""
    return retry_form(lambda: _set_queue(call, request, id), lambda problem: _job_page(call, request, id, problem))


def _set_queue(call: Call, request: PageRequest, id: str) -> Redirect:
    action = JobAction(Operation.SET_QUEUE, queue=request.field("queue"), new_queue=bool(request.field("new")))
    call.actions.apply(action, id, new_queue_hint=UNKNOWN_QUEUE)
    return Redirect(f"/jobs/{id}?said=requeued")


@form_action("/jobs/{id}/stack")
def stack(call: Call, request: PageRequest, id: str) -> Redirect:
    """Have its worker say where it stands."""
    owner = call.reader.stored(id).owner
    is_told = owner is not None and bool(call.actions.stacks(owner))
    return Redirect(f"/jobs/{id}?said={'stacks' if is_told else 'no_stacks'}")


@page("/jobs/{id}/delete", "jobs")
def ask_to_delete(call: Call, request: PageRequest, id: str) -> PageResponse:
    """Is that meant?"""
    record = call.reader.get(id)
    return PageResponse("job_delete.html", "Delete this job?", {"job": record, "call": safe(short_call(record))})


@form_action("/jobs/{id}/delete", Role.ADMIN)
def delete(call: Call, request: PageRequest, id: str) -> Redirect:
    """Remove it."""
    call.actions.apply(JobAction(Operation.DELETE), id)
    return Redirect("/jobs?said=deleted")


@page("/jobs/{id}/copy", "jobs")
def edit(call: Call, request: PageRequest, id: str) -> PageResponse:
    """A form with its arguments, for a copy."""
    record = call.reader.get(id)
    args = json.dumps(json.loads(record.args), indent=2, ensure_ascii=False)
    return _copy_form(record, {"args": args, "queue": record.queue, "priority": str(record.priority), "delay": ""})


@form_action("/jobs/{id}/copy")
def copy(call: Call, request: PageRequest, id: str) -> PageResponse | Redirect:
    """Enqueue the copy."""
    record = call.reader.get(id)
    typed = {name: request.field(name) for name in ("args", "queue", "priority", "delay")}
    return retry_form(lambda: _copy(call, id, typed), lambda problem: _copy_form(record, typed, problem))


def _copy_form(record: Job, typed: dict[str, str], problem: Problem | None = None) -> PageResponse:
    context = {"job": record, "call": safe(short_call(record)), "typed": typed, "problem": problem}
    return PageResponse("job_copy.html", "Edit and run a copy", context, status=problem.status if problem else 200)


def _copy(call: Call, id: str, typed: dict[str, str]) -> Redirect:
    options: dict[str, Any] = {name: typed[name] for name in ("queue", "delay") if typed[name]}
    if typed["priority"]:
        options["priority"] = _whole(typed["priority"], "the priority")
    handle = call.actions.copy(id, json_object(typed["args"]), options)
    return Redirect(f"/jobs/{handle.id}?said=copied")


def json_object(text: str) -> dict[str, Any]:
    """The JSON object that a user typed; BadValue says where it is wrong."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise BadValue(f"the arguments are not JSON: {error}", hint='e.g. {"user_id": 7}') from None
    if not isinstance(value, dict):
        raise BadValue("the arguments must be an object", hint='e.g. {"user_id": 7}')
    return value


def _whole(text: str, what: str) -> int:
    if not text.isdigit() or len(text) > 9:
        raise BadValue(f"{what} must be a whole number, not {text[:20]!r}")
    return int(text)


_TEXTS = ("queue", "delay", "backoff", "timeout", "idle_timeout", "expires", "total_timeout", "subscriber")
_NUMBERS = {
    "priority": ("priority", 10),
    "max_attempts": ("number of attempts", MOST_ATTEMPTS),
    "max_halts": ("number of halts", MOST_HALTS),
}
_FIELDS = ("task", "args", *_TEXTS, *_NUMBERS, "persistent", "unknown")
_SELDOM = ("backoff", "timeout", "idle_timeout", "expires", "total_timeout", "subscriber", *_NUMBERS, "persistent")
_UNKNOWN = "Tick the box below to enqueue it for workers yet to come."


@page("/jobs/new", "jobs")
def new_job(call: Call, request: PageRequest) -> PageResponse:
    """Task, arguments, and how it is to be run."""
    return _form(call, dict.fromkeys(_FIELDS, "") | {"task": request.query.get("task", "")})


@form_action("/jobs/new")
def enqueue(call: Call, request: PageRequest) -> PageResponse | Redirect:
    """Enqueue it."""
    typed = {name: request.field(name) for name in _FIELDS}
    return retry_form(lambda: _enqueue(call, typed), lambda problem: _form(call, typed, problem))


def _form(call: Call, typed: dict[str, str], problem: Problem | None = None) -> PageResponse:
    context = {
        "tasks": sorted(task.name for task in call.reader.tasks()),
        "typed": typed,
        "problem": problem,
        "is_special": any(typed[name] for name in _SELDOM if name != "priority"),
    }
    return PageResponse("job_new.html", "New job", context, status=problem.status if problem else 200)


def _enqueue(call: Call, typed: dict[str, str]) -> Redirect:
    options: dict[str, Any] = {name: typed[name] for name in _TEXTS if typed[name]}
    options |= {name: _whole_new_job(typed[name], *meant) for name, meant in _NUMBERS.items() if typed[name]}
    if typed["persistent"] == "yes":
        options["persistent"] = True
    args, known = json_object(typed["args"]), typed["unknown"] != "yes"
    handle = call.actions.enqueue(typed["task"], args, options, known=known, job_id=None, unknown_hint=_UNKNOWN)
    return Redirect(f"/jobs/{handle.id}?said={'enqueued' if handle.is_new else 'twin'}")


def _whole_new_job(text: str, what: str, most: int) -> int:
    if not text.isdigit() or len(text) > 6:
        raise BadValue(f"{text[:20]!r} is not a {what}", hint=f"write a whole number from 1 to {most:,}")
    return int(text)
