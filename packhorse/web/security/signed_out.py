"""Which sessions were signed out of: asked of the storage, where every web server writes it down.

A server looks every two seconds at most, and only while somebody uses a session. What this server was told itself holds
at once, whether the storage answers or not.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from packhorse.core.clock import SECOND
from packhorse.core.errors import StorageError
from packhorse.core.event import Kind, Subject
from packhorse.storage import Storage
from packhorse.storage.records import EventFilter
from packhorse.web.security.sessions import LENGTH, Session

log = logging.getLogger("packhorse.web")

EVERY = 2.0
"""Seconds between two looks."""
_OVERLAP = 30.0  # seconds that a look goes back beyond the one before: events may be seen later than others after them
_AT_ONCE = 1_000


class SignedOut:
    """Sessions that are over before their time. Any thread may ask and tell."""

    def __init__(self, storage: Callable[[], Storage], now: Callable[[], float] = time.monotonic) -> None:
        self._storage = storage
        self._now = now
        self._lock = threading.Lock()
        self._over: dict[str, int] = {}  # by the time of the storage at which it was read, in seconds
        self._unwritten: dict[str, str] = {}  # by whom
        self._tops: deque[tuple[float, int]] = deque()  # when we looked, and the newest event then
        self._looked_at = float("-inf")
        self.has_looked = False
        """Until it was done once, nothing is known, and no session can be trusted."""

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._over or session_id in self._unwritten

    @property
    def is_due(self) -> bool:
        """Is it time to look?"""
        return not self.has_looked or self._now() - self._looked_at >= EVERY

    def end(self, session: Session) -> None:
        """This one is over. It is written down now, or when the storage answers again."""
        self._unwritten[session.id] = session.operator.name
        self.look()

    def look(self) -> None:
        """Read what others have ended, and write down what we have. What cannot be done now, a later look does."""
        if not self._lock.acquire(timeout=EVERY):
            return  # another look has waited for the storage for as long already
        try:
            self._looked_at = self._now()
            self._write()
            self._read()
            self.has_looked = True
        except StorageError as error:
            log.warning("sessions that were signed out of elsewhere are not known now: %s", error.what)
        finally:
            self._lock.release()

    def _write(self) -> None:
        for session_id, by in list(self._unwritten.items()):
            self._storage().record_operator_event(session_id, Kind.SIGNED_OUT, by=by)
            self._over[session_id] = self._storage().now() // SECOND
            del self._unwritten[session_id]

    def _read(self) -> None:
        storage, began = self._storage(), self._now()
        newest = storage.events(EventFilter(), limit=1, newest_first=True)
        top = newest[0].id if newest else 0
        while len(self._tops) > 1 and self._tops[1][0] < began - _OVERLAP:
            self._tops.popleft()
        floor = self._tops[0][1] if self._tops else 0
        if top > floor:
            self._read_between(storage, floor, top)
        self._tops.append((began, top))
        edge = storage.now() // SECOND - LENGTH
        self._over = {session_id: at for session_id, at in self._over.items() if at > edge}

    def _read_between(self, storage: Storage, floor: int, top: int) -> None:
        """The latest first, as far back as a session may last."""
        edge, before = storage.now() // SECOND - LENGTH, top + 1
        while True:
            where = EventFilter(subject=Subject.CLIENT, kind=Kind.SIGNED_OUT, after=floor, before=before)
            found = storage.events(where, limit=_AT_ONCE, newest_first=True)
            self._over |= {event.owner: event.at // SECOND for event in found if event.owner is not None}
            if len(found) < _AT_ONCE or found[-1].at // SECOND < edge:
                return
            before = found[-1].id
