"""Tasks: every name that was ever enqueued or announced, and its recent statistics."""

from __future__ import annotations

import msgspec

from packhorse.monitor.serializers import TaskFields, task_fields
from packhorse.monitor.stats import RunStats, stats_by_task
from packhorse.storage.records import Span
from packhorse.web.api.endpoint import Call, PartQuery, get, part_of


class ShownTask(TaskFields, kw_only=True):
    """A task, and the statistics of its attempts within the span."""

    measured: RunStats


class TasksQuery(PartQuery, kw_only=True, forbid_unknown_fields=True):
    """The time span of the statistics, and how many tasks."""

    span: Span = Span.TWO_HOURS


class TaskList(msgspec.Struct):
    """Every task, or up to the limit; `next` is the cursor for the rest."""

    items: list[ShownTask]
    next: str | None = None


@get("/tasks")
def list_tasks(call: Call, query: TasksQuery) -> TaskList:
    """Every task: its options as workers announced them, its runs, failures, wait times and run times."""
    part, following = part_of(call.reader.tasks(), lambda task: task.name, query)
    names = {task.name for task in part}
    measured = stats_by_task(point for point in call.reader.series(query.span) if point.task in names)
    return TaskList(
        [
            ShownTask(**msgspec.structs.asdict(task_fields(task)), measured=measured.get(task.name, RunStats()))
            for task in part
        ],
        following,
    )
