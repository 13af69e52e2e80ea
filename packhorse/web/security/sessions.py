"""Sessions: who signed in at the login page. A cookie carries a number, the name and a time, signed.

A session ends after half a day, when its operator signs out, and when any token is changed. The key is made of the
tokens by scrypt, so every server with the same tokens reads the same cookies, before and after a restart, and whoever
has a cookie cannot try out tokens at any speed. Which sessions were signed out of is in the storage, as events, so it
holds for all servers of one storage; see `SignedOut`. The same key marks what an address says of a deed, so that a page
tells its own addresses from those that others have made up.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from typing import NamedTuple

from packhorse.core.errors import TooBusy
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
        """Raises TooBusy if this peer has tried too often of late."""
        if len(self._recent(peer)) >= _TRIES:
            raise TooBusy("too many wrong tokens came from your address", hint="wait a minute, then try again")

    def note_wrong(self, peer: str) -> None:
        """One more wrong token."""
        if len(self._wrong) >= _MOST_PEERS:
            self._wrong.pop(next(iter(self._wrong)))
        self._wrong[peer] = [*self._recent(peer), self._now()]

    def _recent(self, peer: str) -> list[float]:
        return [at for at in self._wrong.get(peer, []) if self._now() - at < _TRIES_WITHIN]
