"""Tasks: every name that was ever enqueued or announced, and how its jobs went of late."""

from __future__ import annotations

import msgspec

from packhorse.fields import TaskFields, task_fields
from packhorse.measures import Measured, by_task
from packhorse.web.api.endpoint import Call, get
from packhorse.web.api.series import SpanQuery


class ShownTask(TaskFields, kw_only=True):
    """A task, and how its attempts went within the span."""

    measured: Measured


class TaskList(msgspec.Struct):
    """Every task."""

    items: list[ShownTask]


@get("/tasks")
def list_tasks(call: Call, query: SpanQuery) -> TaskList:
    """Every task: its options as workers announced them, its runs, failures, waiting and running times."""
    measured = by_task(call.reader.series(query.span))
    return TaskList(
        [
            ShownTask(**msgspec.structs.asdict(task_fields(task)), measured=measured.get(task.name, Measured()))
            for task in call.reader.tasks()
        ]
    )
