"""The form for a new job. What cannot be enqueued comes back with all that was typed, and what is wrong with it."""

from __future__ import annotations

from typing import Any

from packhorse.errors import BadValue
from packhorse.web.api.problem import Problem
from packhorse.web.pages.job import json_object
from packhorse.web.pages.page import Asked, Elsewhere, Shown, deed, page, put_right
from packhorse.web.site import Call

_FIELDS = ("task", "args", "queue", "priority", "delay", "unknown")
_UNKNOWN = "Tick the box below to enqueue it for workers yet to come."


@page("/jobs/new", "jobs")
def new_job(call: Call, asked: Asked) -> Shown:
    """Task, arguments, queue, priority, delay."""
    return _form(call, dict.fromkeys(_FIELDS, "") | {"task": asked.query.get("task", "")})


@deed("/jobs/new")
def enqueue(call: Call, asked: Asked) -> Shown | Elsewhere:
    """Enqueue it."""
    typed = {name: asked.field(name) for name in _FIELDS}
    return put_right(lambda: _enqueue(call, typed), lambda problem: _form(call, typed, problem))


def _form(call: Call, typed: dict[str, str], problem: Problem | None = None) -> Shown:
    context = {"tasks": sorted(task.name for task in call.reader.tasks()), "typed": typed, "problem": problem}
    return Shown("job_new.html", "New job", context, status=problem.status if problem else 200)


def _enqueue(call: Call, typed: dict[str, str]) -> Elsewhere:
    options: dict[str, Any] = {name: typed[name] for name in ("queue", "delay") if typed[name]}
    if priority := typed["priority"]:
        if not priority.isdigit() or len(priority) > 2:
            raise BadValue(f"{priority[:20]!r} is not a priority", hint="write a number from 1 to 10")
        options["priority"] = int(priority)
    args, known = json_object(typed["args"]), typed["unknown"] != "yes"
    handle = call.steps.enqueue(typed["task"], args, options, known=known, job_id=None, unknown=_UNKNOWN)
    return Elsewhere(f"/jobs/{handle.id}?said={'enqueued' if handle.is_new else 'twin'}")
