"""One job: its page, and everything that can be done from there. What the page shows is in `job_cards.py`.

A deed answers with the page to go to; a form that was filled in wrongly comes back with what was typed.
"""

from __future__ import annotations

import json
from typing import Any

from packhorse.core.errors import BadValue, JobNotFound
from packhorse.core.job import ABORTED, QUEUED, Job, Operation, rank_of
from packhorse.monitor.actions import JobAction
from packhorse.monitor.filters import WHOLE_ID
from packhorse.web.api.jobs import short_call
from packhorse.web.api.problem import Problem
from packhorse.web.pages.find import LIKE_AN_ID
from packhorse.web.pages.job_cards import EVENTS, Seen, Then, cards_of, then_of
from packhorse.web.pages.jobs import UNKNOWN_QUEUE
from packhorse.web.pages.life import life_of
from packhorse.web.pages.page import Asked, Elsewhere, Shown, deed, page, put_right, undoable
from packhorse.web.safe_text import safe
from packhorse.web.security.operator import Role
from packhorse.web.site import Call

_LONGEST_NUMBER = 19
_KEPT_AS = {"completed": "keep_completed", "dead": "keep_dead", "aborted": "keep_aborted"}


@page("/jobs/{id}", "jobs")
def job(call: Call, asked: Asked, id: str) -> Shown | Elsewhere:
    """Everything about one job; of one that is gone, its history. A part of an id leads to its job."""
    if len(id) < WHOLE_ID and LIKE_AN_ID.fullmatch(id):
        found = call.reader.with_part(id)
        if len(found) == 1 and found[0].id != id:
            return Elsewhere(f"/jobs/{found[0].id}")
    return _job_page(call, asked, id)


def _job_page(call: Call, asked: Asked, id: str, problem: Problem | None = None) -> Shown:
    """`problem`: what was wrong with the form that moves it, or sets its priority."""
    try:
        record = call.reader.get(id)
    except JobNotFound:
        return _gone(call, asked, id)
    return Shown(
        "job.html",
        f"{record.task} {record.state}",
        {
            **cards_of(Seen.of(call, record, asked.query.get("level", ""))),
            "then": _then(call, asked, id),
            "problem": problem,
            "typed": {name: asked.field(name) for name in ("queue", "priority", "new")},
        },
        topics=(f"job:{id}",),
        status=problem.status if problem else 200,
    )


def _then(call: Call, asked: Asked, id: str) -> Then | None:
    """The job as it was after the event that the address names."""
    number = asked.query.get("event", "")
    if not number.isdigit() or len(number) > _LONGEST_NUMBER:
        return None
    told = call.reader.history.of_job(id, 1, int(number) - 1)
    return next((then_of(each) for each in call.reader.history.with_objects(told) if each.id == int(number)), None)


def _gone(call: Call, asked: Asked, id: str) -> Shown:
    """What is still known of a job that was deleted or pruned; JobNotFound if that is nothing."""
    events = call.reader.history.of_job(id, EVENTS)
    settings, ended = call.site.app.settings, next((one for one in reversed(events) if one.state in _KEPT_AS), None)
    context = {
        "id": id,
        "events": events[::-1],
        "then": _then(call, asked, id),
        "life": life_of(None, events, call.reader.now()),
        "last": events[-1],
        "queue": events[-1].queue,
        "kept": settings.shown(_KEPT_AS[ended.state or ""]) if ended else None,
    }
    return Shown("job_gone.html", "This job is gone", context, status=404)


# --- what can be done -------------------------------------------------------------------------------------------------


@deed("/jobs/{id}/retry")
def retry(call: Call, asked: Asked, id: str) -> Elsewhere:
    """All its tries again."""
    call.actions.apply(JobAction(Operation.RETRY), id)
    return Elsewhere(f"/jobs/{id}?said=retried")


@deed("/jobs/{id}/abort")
def abort(call: Call, asked: Asked, id: str) -> Elsewhere:
    """Stop it for good."""
    is_awaited = bool(call.site.storage.subscribers(id))  # who waits for it has heard that it was aborted
    before = call.actions.apply(JobAction(Operation.ABORT), id)
    after = call.site.storage.get(id)
    if not is_awaited and _can_be_retried_to(before, after):
        return undoable(call, f"/jobs/{id}", "aborted", id)
    is_certain = after is None or after.state is ABORTED
    return Elsewhere(f"/jobs/{id}?said={'aborted' if is_certain else 'abort_requested'}")


def _can_be_retried_to(before: Job, after: Job | None) -> bool:
    """Is a job that was aborted what and where it was, once it is retried? Not if that would give it back tries or
    time, nor take a better place from it, nor if it has been in a worker's hands in between."""
    was_plain = before.state is QUEUED and before.rank == rank_of(before.priority)
    has_no_past = not (before.failures or before.halts or before.expires or before.total_timeout)
    was_left = after is not None and after.state is ABORTED and after.fence == before.fence
    return was_plain and has_no_past and was_left


@deed("/jobs/{id}/force_start")
def force_start(call: Call, asked: Asked, id: str) -> Elsewhere:
    """Run it next."""
    call.actions.apply(JobAction(Operation.FORCE_START), id)
    return Elsewhere(f"/jobs/{id}?said=started")


@deed("/jobs/{id}/set_priority")
def set_priority(call: Call, asked: Asked, id: str) -> Shown | Elsewhere:
    """Move it in line."""
    return put_right(lambda: _set_priority(call, asked, id), lambda problem: _job_page(call, asked, id, problem))


def _set_priority(call: Call, asked: Asked, id: str) -> Elsewhere:
    text = asked.field("priority")
    if not text.isdigit() or len(text) > 2:
        raise BadValue(f"{text[:20]!r} is not a priority", hint="write a number from 1 to 10")
    call.actions.apply(JobAction(Operation.SET_PRIORITY, priority=int(text)), id)
    return Elsewhere(f"/jobs/{id}?said=moved")


@deed("/jobs/{id}/set_queue")
def set_queue(call: Call, asked: Asked, id: str) -> Shown | Elsewhere:
    """Put it in another queue; `new` makes that."""
    return put_right(lambda: _set_queue(call, asked, id), lambda problem: _job_page(call, asked, id, problem))


def _set_queue(call: Call, asked: Asked, id: str) -> Elsewhere:
    action = JobAction(Operation.SET_QUEUE, queue=asked.field("queue"), new_queue=bool(asked.field("new")))
    call.actions.apply(action, id, new_queue_hint=UNKNOWN_QUEUE)
    return Elsewhere(f"/jobs/{id}?said=requeued")


@deed("/jobs/{id}/stack")
def stack(call: Call, asked: Asked, id: str) -> Elsewhere:
    """Have its worker say where it stands."""
    owner = call.reader.stored(id).owner
    is_told = owner is not None and bool(call.actions.stacks(owner))
    return Elsewhere(f"/jobs/{id}?said={'stacks' if is_told else 'no_stacks'}")


@page("/jobs/{id}/delete", "jobs")
def ask_to_delete(call: Call, asked: Asked, id: str) -> Shown:
    """Is that meant?"""
    record = call.reader.get(id)
    return Shown("job_delete.html", "Delete this job?", {"job": record, "call": safe(short_call(record))})


@deed("/jobs/{id}/delete", Role.ADMIN)
def delete(call: Call, asked: Asked, id: str) -> Elsewhere:
    """Remove it."""
    call.actions.apply(JobAction(Operation.DELETE), id)
    return Elsewhere("/jobs?said=deleted")


@page("/jobs/{id}/copy", "jobs")
def edit(call: Call, asked: Asked, id: str) -> Shown:
    """A form with its arguments, for a copy."""
    record = call.reader.get(id)
    args = json.dumps(json.loads(record.args), indent=2, ensure_ascii=False)
    return _copy_form(record, {"args": args, "queue": record.queue, "priority": str(record.priority), "delay": ""})


@deed("/jobs/{id}/copy")
def copy(call: Call, asked: Asked, id: str) -> Shown | Elsewhere:
    """Enqueue the copy."""
    record = call.reader.get(id)
    typed = {name: asked.field(name) for name in ("args", "queue", "priority", "delay")}
    return put_right(lambda: _copy(call, id, typed), lambda problem: _copy_form(record, typed, problem))


def _copy_form(record: Job, typed: dict[str, str], problem: Problem | None = None) -> Shown:
    context = {"job": record, "call": safe(short_call(record)), "typed": typed, "problem": problem}
    return Shown("job_copy.html", "Edit and run a copy", context, status=problem.status if problem else 200)


def _copy(call: Call, id: str, typed: dict[str, str]) -> Elsewhere:
    options: dict[str, Any] = {name: typed[name] for name in ("queue", "delay") if typed[name]}
    if typed["priority"]:
        options["priority"] = _whole(typed["priority"], "the priority")
    handle = call.actions.copy(id, json_object(typed["args"]), options)
    return Elsewhere(f"/jobs/{handle.id}?said=copied")


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
