"""Redacted names: what the tasks themselves want hidden, as their workers have announced it or the app here knows it.

The web seldom has the code of the tasks: of one that no worker has announced yet, nothing is known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from packhorse.core.errors import BadValue
from packhorse.core.task import Registry, parse_redacted
from packhorse.storage.records import TaskInfo
from packhorse.web.glance import Glance

Names = Mapping[str, tuple[str, ...]]
"""Of each task that names any."""


def redacted_names(registry: Registry, glance: Glance) -> Names:
    """Those that are known now; read as often as tasks are."""
    tasks = glance.tasks()
    return glance.reckoned("redacted names", tasks, lambda: _gathered(registry, tasks))


def _gathered(registry: Registry, tasks: Iterable[TaskInfo]) -> Names:
    told = {task.name: _readable(task.options.get("redact")) for task in tasks}
    for task in registry:
        told[task.name] = tuple(sorted({*told.get(task.name, ()), *task.options.redact}))
    return {task: names for task, names in told.items() if names}


def _readable(told: object) -> tuple[str, ...]:
    """Those that can be names; others may have announced them, or a newer Packhorse."""
    names: list[str] = []
    for name in told if isinstance(told, list) else []:
        try:
            names += parse_redacted(name)
        except BadValue:
            continue
    return tuple(names)
