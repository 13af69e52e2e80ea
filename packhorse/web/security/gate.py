"""The gate: what every request passes before anything else looks at it.

It answers only to our own names, takes changes only from our own pages or from programs, reads no endless bodies, finds
out who asks, lets only so many in at once, and puts the headers on every answer that keep a browser from being turned
against its user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from packhorse.errors import NotAllowed, NotSignedIn, PackhorseError, PayloadTooLarge
from packhorse.web.security.access import Access
from packhorse.web.security.operator import Operator, Role
from packhorse.web.security.sessions import COOKIE

Refuse = Callable[[Request, Exception], Response]
"""Makes the answer to a request that cannot be served."""

READING = frozenset({"GET", "HEAD", "OPTIONS"})
OPEN_PATHS = ("/static/", "/healthz", "/readyz", "/login")
"""What is answered without asking who it is."""

_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with no-referrer, browsers send their own forms with `Origin: null`
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Lane:
    """Requests below one path, which are counted apart from all others: however many there are of one lane, those of
    another come through."""

    def __init__(self, start: str, body_limit: int, *, most: int, full: Callable[[], PackhorseError]) -> None:
        self.body_limit = body_limit  # bytes
        self._start = start
        self._most = most
        self._full = full
        self._in_hand = 0

    def is_for(self, path: str) -> bool:
        return not self._start or path == self._start or path.startswith(f"{self._start}/")

    @contextmanager
    def entered(self) -> Iterator[None]:
        """One request of this lane is in hand. Raises `full` if there are too many."""
        if self._in_hand >= self._most:
            raise self._full()
        self._in_hand += 1
        try:
            yield
        finally:
            self._in_hand -= 1


class Gate:
    """ASGI middleware around the whole web."""

    def __init__(self, app: ASGIApp, access: Access, refuse: Refuse, lanes: Sequence[Lane]) -> None:
        self._app = app
        self._access = access
        self._refuse = refuse
        self._lanes = lanes  # the first that fits is taken

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # there are no web sockets here, and a start or an end is none of our business
            await self._app(scope, receive, send)
            return
        # A mount further in adds its own part to root_path; links begin where we do.
        scope.setdefault("state", {})["root"] = scope.get("root_path", "")
        headers = Headers(scope=scope)
        guarded = _with_headers(send)
        try:
            lane = self._lane(scope)
            self._check(scope, headers, lane.body_limit)
            scope["state"]["operator"] = self._operator(scope, headers)
            with lane.entered():  # strangers, who are refused before, count nowhere
                await self._app(scope, _limited(receive, lane.body_limit), guarded)
        except PackhorseError as error:
            await self._refuse(Request(scope), error)(scope, receive, guarded)

    def _lane(self, scope: Scope) -> Lane:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return next(lane for lane in self._lanes if lane.is_for(path))

    def _check(self, scope: Scope, headers: Headers, limit: int) -> None:
        host = headers.get("host", "")
        if not self._access.answers(host):
            raise NotAllowed(
                f"this server does not go by the name {host[:80]!r}", hint="packhorse web --allow-host NAME"
            )
        if scope["method"] not in READING:
            _check_origin(headers, host)
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > limit:
            raise _too_large(int(length), limit)

    def _operator(self, scope: Scope, headers: Headers) -> Operator | None:
        """Who asks; None where nobody needs to say."""
        if self._access.is_open:
            return self._access.capped(Operator("local", Role.ADMIN))
        found = self._known(scope, headers)
        if found is not None:
            return self._access.capped(found)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path.startswith(OPEN_PATHS):
            return None
        raise NotSignedIn("nobody is signed in", hint="send Authorization: Bearer TOKEN, or sign in at /login")

    def _known(self, scope: Scope, headers: Headers) -> Operator | None:
        kind, _, secret = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            found = self._access.tokens.find(secret.strip())
            if found is None:  # a right token comes in, whoever else tries wrong ones from behind the same proxy
                peer = (scope.get("client") or ("",))[0]
                self._access.tries.check(peer)
                self._access.tries.note_wrong(peer)
            return found
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE)
        return self._access.sessions.operator(cookie) if cookie else None


def _check_origin(headers: Headers, host: str) -> None:
    """A change must come from our own pages, or from a program. Browsers say where a request comes from, and let no
    foreign page send JSON; what says nothing and is no form is a program."""
    if headers.get("authorization", "").lower().startswith("bearer "):
        return  # no browser sends a token by itself
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site != "same-origin":
        raise NotAllowed(
            f"this change was asked for by another site ({site[:40]})", hint="use the pages of this server"
        )
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        raise NotAllowed(f"this change was asked for by {origin[:80]}", hint="use the pages of this server")
    if site is None and origin is None:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in _FORMS or headers.get("cookie"):
            raise NotAllowed(
                "it cannot be seen where this change comes from",
                hint="send JSON (Content-Type: application/json) and a token instead of a cookie",
            )


def _too_large(size: int, limit: int) -> PayloadTooLarge:
    return PayloadTooLarge("the bytes of this request", size, limit)


def _limited(receive: Receive, limit: int) -> Receive:
    """The request, as long as its body stays below the limit, whatever its headers say."""
    size = 0

    async def limited() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise _too_large(size, limit)
        return message

    return limited


def _with_headers(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return guarded


def safe_path(path: str) -> str:
    """A place of ours to go on to after signing in; anything that could lead elsewhere is the start page."""
    if not path.startswith("/") or path.startswith("//") or "\\" in path or not path.isprintable():
        return "/"
    return path
