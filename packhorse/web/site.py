"""The site: everything that the requests of one web server share, and `Call`, which stands for one of them."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Hashable
from typing import Any, NamedTuple

from packhorse.client.app import Packhorse
from packhorse.core import clock
from packhorse.core.errors import NotSignedIn
from packhorse.monitor.filters import usable_filters
from packhorse.storage import Storage
from packhorse.web.glance import Glance
from packhorse.web.operator_actions import OperatorActions
from packhorse.web.reader import Reader
from packhorse.web.redacted_names import redacted_names
from packhorse.web.security.access import Access
from packhorse.web.security.operator import Operator
from packhorse.web.security.redaction import Redaction
from packhorse.web.security.signed_out import SignedOut

log = logging.getLogger("packhorse.web")


class Site:
    """One web server. `app` is a client without tasks: no code of the user's is ever imported here."""

    def __init__(self, app: Packhorse, access: Access, *, redaction: Redaction | None = None) -> None:
        self.app = app
        self.access = access
        redaction = redaction or Redaction(words=app.settings.redact)
        self.redaction = redaction.knowing(lambda: redacted_names(app.registry, self.glance))
        self.signed_out = SignedOut(lambda: self.storage)
        self.filters = usable_filters(app.settings, clock.now())
        for problem in self.filters.bad.values():
            log.warning("%s; it is left out", problem)
        # The pages that are drawn just now; who asks for the same one meanwhile waits for it without a thread.
        self.drawing: dict[Hashable, asyncio.Future[Any]] = {}

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
    def glance(self) -> Glance:
        return Glance(self.storage)

    def call(self, operator: Operator | None) -> Call:
        """A call by this operator; NotSignedIn if it is nobody."""
        if operator is None:
            raise NotSignedIn("nobody is signed in", hint="send Authorization: Bearer TOKEN, or sign in at /login")
        reader = Reader(self.app, self.glance, self.redaction, operator)
        return Call(self, operator, reader, OperatorActions(self.app, self.glance, reader, operator))


class Call(NamedTuple):
    """One request: who asks, what they may read and what they may do."""

    site: Site
    operator: Operator
    reader: Reader
    actions: OperatorActions
