"""The form for a new job."""

from __future__ import annotations

from typing import Any

from packhorse.errors import BadValue
from packhorse.web.pages.job import json_object
from packhorse.web.pages.page import Asked, Elsewhere, Shown, deed, page
from packhorse.web.site import Call


@page("/jobs/new", "jobs")
def new_job(call: Call, asked: Asked) -> Shown:
    """Task, arguments, queue, priority, delay."""
    tasks = sorted(task.name for task in call.reader.tasks())
    return Shown("job_new.html", "New job", {"tasks": tasks, "task": asked.query.get("task", "")})


@deed("/jobs/new")
def enqueue(call: Call, asked: Asked) -> Elsewhere:
    """Enqueue it."""
    options: dict[str, Any] = {}
    if asked.field("queue"):
        options["queue"] = asked.field("queue")
    if asked.field("delay"):
        options["delay"] = asked.field("delay")
    if priority := asked.field("priority"):
        if not priority.isdigit() or len(priority) > 2:
            raise BadValue(f"{priority[:20]!r} is not a priority", hint="write a number from 1 to 10")
        options["priority"] = int(priority)
    args = json_object(asked.field("args"))
    handle = call.steps.enqueue(asked.field("task"), args, options, known=asked.field("unknown") != "yes", job_id=None)
    return Elsewhere(f"/jobs/{handle.id}?said={'enqueued' if handle.is_new else 'twin'}")
