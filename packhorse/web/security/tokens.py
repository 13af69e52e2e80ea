"""Tokens: the secrets that identify operators and programs. Only their digests are kept in memory.

They come from `PACKHORSE_WEB_TOKEN` (one, for an admin) or from a file with one token a line: name, role, token,
optionally its queues, and optionally the tasks that it may enqueue. By default it has all queues, and the tasks that
belong to them. `*` means all queues. `#` starts a comment.

    anna     admin    8c1f…
    grafana  view     77ab…
    shop     operate  d03e…   mail,images
    billing  operate  51c9…   *            send_invoice
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from packhorse.core.errors import BadValue
from packhorse.core.task import check_name
from packhorse.web.security.operator import Operator, Role

log = logging.getLogger("packhorse.web")

SHORTEST = 16
"""The minimum length of a token in characters, so that it cannot be guessed."""


def digest(secret: str) -> bytes:
    """The digest of a secret, which is all that is kept of it."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


@functools.lru_cache(maxsize=16)
def _slow_key(secret: bytes) -> bytes:
    return hashlib.scrypt(secret, salt=b"packhorse session", n=1 << 14, r=8, p=1, maxmem=64 << 20, dklen=32)


class Tokens:
    """All tokens that are accepted."""

    def __init__(self, known: Iterable[tuple[str, Operator]] = ()) -> None:
        self._known: list[tuple[bytes, Operator]] = []
        for secret, operator in known:
            self._add(secret, operator)

    def _add(self, secret: str, operator: Operator) -> None:
        if len(secret) < SHORTEST:
            raise BadValue(
                f"the token of {operator.name} has {len(secret)} characters; {SHORTEST} are needed",
                hint="make one: python -c 'import secrets; print(secrets.token_urlsafe(24))'",
            )
        if any(operator.name == other.name for _, other in self._known):
            raise BadValue(f"the name {operator.name!r} stands for two tokens", hint="give each its own name")
        self._known.append((digest(secret), operator))

    def __bool__(self) -> bool:
        return bool(self._known)

    def find(self, secret: str) -> Operator | None:
        """The operator of this token. All tokens are compared, so that the time it takes reveals nothing."""
        wanted, found = digest(secret), None
        for known, operator in self._known:
            if hmac.compare_digest(known, wanted):
                found = operator
        return found

    def named(self, name: str) -> Operator | None:
        """The operator of this name."""
        return next((operator for _, operator in self._known if operator.name == name), None)

    def key(self) -> bytes:
        """A key that all processes with the same tokens share; it changes when any token changes. Each attempt to guess
        the tokens behind it costs as much time and memory as one call."""
        return _slow_key(b"".join(sorted(known for known, _ in self._known)))


def load_tokens(secret: str | None, file: str | None) -> Tokens:
    """Load the tokens of the settings: one for an admin, a file with more, or both."""
    known = [(secret, Operator("admin", Role.ADMIN))] if secret else []
    return Tokens([*known, *(_read(Path(file)) if file else [])])


def _read(path: Path) -> list[tuple[str, Operator]]:
    try:
        check_mode(path)
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadValue(f"the tokens in {path} cannot be read", why=str(error)) from None
    words = [(number, line.partition("#")[0].split()) for number, line in enumerate(lines, 1)]
    return [_parse(parts, f"{path}, line {number}") for number, parts in words if parts]


def check_mode(path: Path) -> None:
    """Raise BadValue if others may write to this token file. Log a warning if others may read it, unless its owner may
    not write it either, as with secrets of Docker and Kubernetes, which have to be readable."""
    mode = path.stat().st_mode if os.name == "posix" else 0
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BadValue(f"{path} can be written by others", hint=f"chmod 600 {path}")
    if is_exposed(mode):
        log.warning("%s can be read by others: chmod 600 %s", path, path)


def is_exposed(mode: int) -> bool:
    """Return whether others may read a file that its owner may write."""
    return bool(mode & (stat.S_IRGRP | stat.S_IROTH) and mode & stat.S_IWUSR)


def _parse(parts: list[str], place: str) -> tuple[str, Operator]:
    if not 3 <= len(parts) <= 5:
        raise BadValue(f"{place} is not understood", hint="write: name role token [queue,queue [task,task]]")
    name, role, secret, *scopes = parts
    queues, tasks = (_names(words, kind) for words, kind in zip([*scopes, "*", "*"], ("queue", "task"), strict=False))
    return secret, Operator(check_name(name, f"the name in {place}"), Role.parse(role), queues, tasks)


def _names(words: str, kind: str) -> frozenset[str]:
    """Parse the names; `*` means all and gives none."""
    return frozenset() if words == "*" else frozenset(check_name(word, f"{kind} name") for word in words.split(","))
