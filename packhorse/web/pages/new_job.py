"""The form for a new job. What cannot be enqueued comes back with all that was typed, and what is wrong with it."""

from __future__ import annotations

from typing import Any

from packhorse.core.errors import BadValue
from packhorse.core.task import MOST_ATTEMPTS, MOST_HALTS
from packhorse.web.api.problem import Problem
from packhorse.web.pages.job import json_object
from packhorse.web.pages.page import Asked, Elsewhere, Shown, deed, page, put_right
from packhorse.web.site import Call

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
def new_job(call: Call, asked: Asked) -> Shown:
    """Task, arguments, and how it is to be run."""
    return _form(call, dict.fromkeys(_FIELDS, "") | {"task": asked.query.get("task", "")})


@deed("/jobs/new")
def enqueue(call: Call, asked: Asked) -> Shown | Elsewhere:
    """Enqueue it."""
    typed = {name: asked.field(name) for name in _FIELDS}
    return put_right(lambda: _enqueue(call, typed), lambda problem: _form(call, typed, problem))


def _form(call: Call, typed: dict[str, str], problem: Problem | None = None) -> Shown:
    context = {
        "tasks": sorted(task.name for task in call.reader.tasks()),
        "typed": typed,
        "problem": problem,
        "is_special": any(typed[name] for name in _SELDOM if name != "priority"),
    }
    return Shown("job_new.html", "New job", context, status=problem.status if problem else 200)


def _enqueue(call: Call, typed: dict[str, str]) -> Elsewhere:
    options: dict[str, Any] = {name: typed[name] for name in _TEXTS if typed[name]}
    options |= {name: _whole(typed[name], *meant) for name, meant in _NUMBERS.items() if typed[name]}
    if typed["persistent"] == "yes":
        options["persistent"] = True
    args, known = json_object(typed["args"]), typed["unknown"] != "yes"
    handle = call.actions.enqueue(typed["task"], args, options, known=known, job_id=None, unknown_hint=_UNKNOWN)
    return Elsewhere(f"/jobs/{handle.id}?said={'enqueued' if handle.is_new else 'twin'}")


def _whole(text: str, what: str, most: int) -> int:
    if not text.isdigit() or len(text) > 6:
        raise BadValue(f"{text[:20]!r} is not a {what}", hint=f"write a whole number from 1 to {most:,}")
    return int(text)
