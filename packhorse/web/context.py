"""The site: everything that the requests of one web server share, and `Call`, which stands for one of them."""

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
"""The hidden argument names of each task that has some."""


class WebContext:
    """One web server. `app` is a client without tasks: no code of the user's is ever imported here."""

    def __init__(self, app: Packhorse, access: Access, *, redaction: Redaction | None = None) -> None:
        self.app = app
        self.access = access
        redaction = redaction or Redaction(words=app.settings.redact)
        self.redaction = redaction.knowing(lambda: redacted_names(app.registry, self.cache))
        self.signed_out = SignedOut(lambda: self.storage)
        self.filters = usable_filters(app.settings, clock.now())
        for problem in self.filters.bad.values():
            log.warning("%s; it is left out", problem)
        # The pages that are drawn just now; who asks for the same one meanwhile waits for it without a thread.
        self.rendering: dict[Hashable, asyncio.Future[Any]] = {}

    @functools.cached_property
    def storage(self) -> Storage:
        return self.app.storage

    @functools.cached_property
    def working_storage(self) -> Storage:
        """The storage for workers elsewhere: with connections of their own, which no slow page takes from them."""
        return self.app._state.open_another_storage()

    def connections(self) -> list[tuple[int, int]]:
        """Of this server: those for pages, and those for workers elsewhere."""
        opened = vars(self).get("working_storage")
        return [
            storage.connections() for storage in {id(each): each for each in (self.storage, opened) if each}.values()
        ]

    def close(self) -> None:
        """Let go of what was opened here; the app's own storage is the app's."""
        opened = vars(self).get("working_storage")
        if opened is not None and opened is not self.storage:
            opened.close()

    @functools.cached_property
    def cache(self) -> Cache:
        return Cache(self.storage)

    def call(self, operator: Operator | None) -> Call:
        """A call by this operator; NotSignedIn if it is nobody."""
        if operator is None:
            raise NotSignedIn("nobody is signed in", hint="send Authorization: Bearer TOKEN, or sign in at /login")
        reader = Reader(self.app, self.cache, self.redaction, operator)
        return Call(self, operator, reader, OperatorActions(self.app, self.cache, reader, operator))


class Call(NamedTuple):
    """One request: who asks, what they may read and what they may do."""

    web: WebContext
    operator: Operator
    reader: Reader
    actions: OperatorActions


def redacted_names(registry: Registry, cache: Cache) -> RedactedNames:
    """The names that tasks want hidden, as their workers announced them or the app here knows them; read as often as
    tasks are. The web seldom has the code of the tasks."""
    tasks = cache.tasks()
    return cache.computed("redacted names", tasks, lambda: _announced_names(registry, tasks))


def _announced_names(registry: Registry, tasks: Iterable[TaskInfo]) -> RedactedNames:
    names = {task.name: _readable_names(task.options.get("redact")) for task in tasks}
    for task in registry:
        names[task.name] = tuple(sorted({*names.get(task.name, ()), *task.options.redact}))
    return {task: found for task, found in names.items() if found}


def _readable_names(announced: object) -> tuple[str, ...]:
    """Skip what is no name: other programs, or a newer Packhorse, may have announced it."""
    names: list[str] = []
    for name in announced if isinstance(announced, list) else []:
        try:
            names += parse_redacted(name)
        except BadValue:
            continue
    return tuple(names)
