"""Sessions: who signed in at the login page. A cookie carries a number, the name and a time, signed.

A session ends after half a day, when its operator signs out, and when any token is changed. The key is made of the
tokens by scrypt, so every server with the same tokens reads the same cookies, before and after a restart, and someone
with a cookie cannot quickly guess tokens. The storage keeps as events which sessions were ended, so this holds for all
servers of one storage; see `SignedOut`. The same key signs what an address says of an action, so that a page
distinguishes its own addresses from forged ones.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from packhorse.core.clock import SECOND
from packhorse.core.errors import StorageError, TooBusy
from packhorse.core.event import Kind, Subject
from packhorse.storage import Storage
from packhorse.storage.records import EventFilter
from packhorse.web.security.operator import Operator
from packhorse.web.security.tokens import Tokens

COOKIE = "packhorse_session"
LENGTH = 12 * 3600
_TRIES = 5
_TRIES_WITHIN = 60.0
_MOST_PEERS = 1_000


class Session(NamedTuple):
    """One that was begun at the login page. The number alone opens nothing."""

    id: str
    operator: Operator


class Sessions:
    """Makes and reads the cookies of one set of tokens. `now` is a clock in seconds."""

    def __init__(self, tokens: Tokens, now: Callable[[], float] = time.time) -> None:
        self._tokens = tokens
        self._key = tokens.key() if tokens else secrets.token_bytes(32)
        self._marking = hmac.digest(self._key, b"marks", "sha256")  # a mark is never the signature of a session
        self._now = now

    def begin(self, operator: Operator) -> str:
        """The value of the cookie for this operator."""
        text = f"{secrets.token_hex(16)}\n{operator.name}\n{int(self._now()) + LENGTH}".encode()
        return base64.urlsafe_b64encode(text + b"\n" + self._signature(text)).decode()

    def read(self, cookie: str) -> Session | None:
        """The session that we began with this cookie; None if it is none, or its time is over."""
        try:
            text, _, signature = base64.urlsafe_b64decode(cookie.encode("ascii")).rpartition(b"\n")
            number, name, until = text.decode().split("\n")
            is_over = int(until) < self._now()
        except ValueError:
            return None
        if is_over or not hmac.compare_digest(signature, self._signature(text)):
            return None
        operator = self._tokens.named(name)
        return None if operator is None else Session(number, operator)

    def mark(self, *words: object) -> str:
        """What only we can put beside these words in an address."""
        return hmac.new(self._marking, "\n".join(map(str, words)).encode(), hashlib.sha256).hexdigest()[:32]

    def is_marked(self, mark: str, *words: object) -> bool:
        """Is this our mark for these words?"""
        return hmac.compare_digest(mark.encode(), self.mark(*words).encode())

    def _signature(self, text: bytes) -> bytes:
        return hmac.new(self._key, text, hashlib.sha256).hexdigest().encode()


class Tries:
    """How often each peer has signed in wrongly; after a few, it has to wait."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._wrong: dict[str, list[float]] = {}

    def check(self, peer: str) -> None:
        """Raises TooBusy if this peer has tried too often lately."""
        if len(self._recent(peer)) >= _TRIES:
            raise TooBusy("too many wrong tokens came from your address", hint="wait a minute, then try again")

    def note_wrong(self, peer: str) -> None:
        """One more wrong token."""
        if len(self._wrong) >= _MOST_PEERS:
            self._wrong.pop(next(iter(self._wrong)))
        self._wrong[peer] = [*self._recent(peer), self._now()]

    def _recent(self, peer: str) -> list[float]:
        return [at for at in self._wrong.get(peer, []) if self._now() - at < _TRIES_WITHIN]


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
        """Store the sessions ended here, and read those ended elsewhere. The next call repeats what fails."""
        if not self._lock.acquire(timeout=EVERY):
            return  # another look has waited for the storage for as long already
        try:
            self._looked_at = self._now()
            self._write()
            self._read()
            self.has_looked = True
        except StorageError as error:
            log.warning("cannot read which sessions were ended elsewhere: %s", error.what)
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
