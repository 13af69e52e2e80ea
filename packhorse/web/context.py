"""The web context: everything that the requests of one web server share, and `Call`, one such request."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

from packhorse.client.app import Packhorse
from packhorse.core import clock
from packhorse.core.errors import BadValue, NotSignedIn
from packhorse.core.task import Registry, parse_redacted
from packhorse.monitor.filters import usable_filters
from packhorse.storage import Storage
from packhorse.storage.records import TaskInfo
from packhorse.web.cache import Cache
from packhorse.web.operator_actions import OperatorActions
from packhorse.web.reader import Reader
from packhorse.web.security.access import Access
from packhorse.web.security.operator import Operator
from packhorse.web.security.redaction import Redaction
from packhorse.web.security.sessions import SignedOut

log = logging.getLogger("packhorse.web")

RedactedNames = Mapping[str, tuple[str, ...]]
"""The redacted argument names of each task that has some."""


class WebContext:
    """The shared state of one web server. `app` is a client without tasks: the web never imports a user's code."""

    def __init__(self, app: Packhorse, access: Access, *, redaction: Redaction | None = None) -> None:
        self.app = app
        self.access = access
        redaction = redaction or Redaction(words=app.settings.redact)
        self.redaction = redaction.knowing(lambda: redacted_names(app.registry, self.cache))
        self.signed_out = SignedOut(lambda: self.storage)
        self.filters = usable_filters(app.settings, clock.now())
        for problem in self.filters.bad.values():
            log.warning("%s; it is left out", problem)
        # The pages that are being rendered; a request for the same page waits for the result without taking a thread.
        self.rendering: dict[Hashable, asyncio.Future[Any]] = {}

    @functools.cached_property
    def storage(self) -> Storage:
        return self.app.storage

    @functools.cached_property
    def working_storage(self) -> Storage:
        """The storage for remote workers. It has its own connections, so that slow pages cannot use them up."""
        return self.app._state.open_another_storage()

    def connections(self) -> list[tuple[int, int]]:
        """The connections of this server: for pages, and for remote workers."""
        opened = vars(self).get("working_storage")
        return [
            storage.connections() for storage in {id(each): each for each in (self.storage, opened) if each}.values()
        ]

    def close(self) -> None:
        """Close the storage that was opened here; the app closes its own."""
        opened = vars(self).get("working_storage")
        if opened is not None and opened is not self.storage:
            opened.close()

    @functools.cached_property
    def cache(self) -> Cache:
        return Cache(self.storage)

    def call(self, operator: Operator | None) -> Call:
        """Return a call by this operator; raise NotSignedIn without one."""
        if operator is None:
            raise NotSignedIn("nobody is signed in", hint="send Authorization: Bearer TOKEN, or sign in at /login")
        reader = Reader(self.app, self.cache, self.redaction, operator)
        return Call(self, operator, reader, OperatorActions(self.app, self.cache, reader, operator))


class Call(NamedTuple):
    """One request: its operator, what they may read and what they may change."""

    web: WebContext
    operator: Operator
    reader: Reader
    actions: OperatorActions


def redacted_names(registry: Registry, cache: Cache) -> RedactedNames:
    """The names that tasks redact, as workers announced them or as this app's registry has them. They are computed
    again whenever the tasks are read. The web seldom has the code of the tasks."""
    tasks = cache.tasks()
    return cache.computed("redacted names", tasks, lambda: _announced_names(registry, tasks))


def _announced_names(registry: Registry, tasks: Iterable[TaskInfo]) -> RedactedNames:
    names = {task.name: _readable_names(task.options.get("redact")) for task in tasks}
    for task in registry:
        names[task.name] = tuple(sorted({*names.get(task.name, ()), *task.options.redact}))
    return {task: found for task, found in names.items() if found}


def _readable_names(announced: object) -> tuple[str, ...]:
    """Skip invalid names: another program, or a newer Packhorse, may have announced them."""
    names: list[str] = []
    for name in announced if isinstance(announced, list) else []:
        try:
            names += parse_redacted(name)
        except BadValue:
            continue
    return tuple(names)
