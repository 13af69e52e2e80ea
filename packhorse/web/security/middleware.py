"""The gate: what every request passes before anything else looks at it.

It answers only to our own names, takes changes only from our own pages or from programs, reads no endless bodies, finds
out who asks, lets only so many in at once, and puts the headers on every answer that keep a browser from being turned
against its user.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request, cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from packhorse.core.errors import BadValue, NotAllowed, NotSignedIn, PackhorseError, PayloadTooLarge, StorageUnavailable
from packhorse.web.security.access import Access
from packhorse.web.security.operator import Operator, Role
from packhorse.web.security.sessions import COOKIE, SignedOut

Refuse = Callable[[Request, Exception], Response]
"""Makes the answer to a request that cannot be served."""

READING = frozenset({"GET", "HEAD", "OPTIONS"})
OPEN_PATHS = ("/static/", "/healthz", "/readyz", "/login")
"""What is answered without asking who it is."""

BODY_TIME = 30.0
"""Seconds in which the whole body of a request must be there."""
_LOOK = 2.0  # seconds that a request waits for the storage to say which sessions are over
_CLOSING = (408, 413)  # after these answers the rest of the request may still come, and is nobody's
_OF_PROXIES = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via")
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


class RequestGroup:
    """Requests below some paths, which are counted apart from all others: however many there are of one lane, those of
    another come through. Where strangers may send a body, it is read before it counts: who sends slowly takes no place
    from those who have sent all."""

    def __init__(
        self,
        starts: tuple[str, ...],
        body_limit: int,
        *,
        most: int,
        full: Callable[[], PackhorseError],
        body_time: float = BODY_TIME,
        body_first: bool = False,
    ) -> None:
        self.body_limit = body_limit  # bytes
        self.body_time = body_time  # seconds
        self.body_first = body_first
        self._starts = starts
        self._most = most
        self._full = full
        self._in_hand = 0

    def is_for(self, path: str) -> bool:
        return any(not start or path == start or path.startswith(f"{start}/") for start in self._starts)

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


class SecurityMiddleware:
    """ASGI middleware around the whole web."""

    def __init__(
        self, app: ASGIApp, access: Access, signed_out: SignedOut, refuse: Refuse, lanes: Sequence[RequestGroup]
    ) -> None:
        self._app = app
        self._access = access
        self._signed_out = signed_out
        self._refuse = refuse
        self._request_groups = lanes  # the first that fits is taken
        self.is_alone = False  # served by `packhorse web`, at the address for which `access` was decided

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # there are no web sockets here, and a start or an end is none of our business
            await self._app(scope, receive, send)
            return
        # A mount further in adds its own part to root_path; links begin where we do.
        scope.setdefault("state", {})["root"] = scope.get("root_path", "")
        headers = Headers(scope=scope)
        self._access.proxies.apply(scope, headers)
        guarded = _HeaderSender(scope, send)
        try:
            lane = self._group(scope)
            self._check(scope, headers, lane.body_limit)
            scope["state"]["operator"] = await self._operator(scope, headers)
            body = _LimitedBody(receive, guarded, lane.body_limit, lane.body_time)
            if lane.body_first:
                await body.read()
            with lane.entered():  # strangers, who are refused before, count nowhere
                await self._app(scope, body, guarded)
        except (PackhorseError, HTTPException) as error:
            await self._refuse(Request(scope), error)(scope, receive, guarded)

    def _group(self, scope: Scope) -> RequestGroup:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return next(lane for lane in self._request_groups if lane.is_for(path))

    def _check(self, scope: Scope, headers: Headers, limit: int) -> None:
        host = headers.get("host", "")
        if not self._access.answers(host):
            raise NotAllowed(
                f"this server does not go by the name {host[:80]!r}", hint="packhorse web --allow-host NAME"
            )
        if scope["method"] not in READING:
            _check_origin(headers, host)
        length = headers.get("content-length", "")
        if length and "transfer-encoding" in headers:
            scope["state"]["close"] = True  # where this request ends, and what comes behind it, nobody can know
            raise BadValue(
                "the request has both Content-Length and Transfer-Encoding, so its end cannot be known",
                hint="send one of them",
            )
        if length.isdigit() and int(length) > limit:
            raise _too_large(int(length), limit)

    async def _operator(self, scope: Scope, headers: Headers) -> Operator | None:
        """Who asks; None where nobody needs to say."""
        if self._access.is_open:
            self._check_open(headers)
            return self._access.capped(Operator("local", Role.ADMIN))
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        try:
            found = await self._known(scope, headers)
        except StorageUnavailable:
            if path.startswith(OPEN_PATHS):
                return None
            raise
        if found is not None:
            return self._access.capped(found)
        if path.startswith(OPEN_PATHS):
            return None
        if "authorization" in headers:
            raise NotSignedIn("this token is not known here", hint="send Authorization: Bearer TOKEN with one that is")
        raise NotSignedIn("nobody is signed in", hint="send Authorization: Bearer TOKEN, or sign in at /login")

    def _check_open(self, headers: Headers) -> None:
        """Where nobody is asked who they are, only this machine may be answered. What a request says of itself, such as
        its Host, proves nothing; that we listen at a loopback address does, unless a proxy passes on to it."""
        if self._access.open_mount:
            return
        if not self.is_alone:
            raise NotAllowed(
                "the web is mounted without tokens, so anybody who reaches this program could read and delete all jobs",
                hint="decide_access(host, load_tokens(SECRET, None)), or where the program lets nobody in who may not"
                " see the jobs: decide_access(host, Tokens(), open_mount=True)",
            )
        if passed := next((name for name in _OF_PROXIES if name in headers), None):
            raise NotAllowed(
                "this request came through a proxy, and without tokens only this machine is answered",
                why=f"it has the header {passed}",
                hint="set PACKHORSE_WEB_TOKEN, or --token-file FILE with a line for each: name role token",
            )

    async def _known(self, scope: Scope, headers: Headers) -> Operator | None:
        kind, _, secret = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            found = self._access.tokens.find(secret.strip())
            if found is None:  # a right token comes in, whoever else tries wrong ones from behind the same proxy
                peer = (scope.get("client") or ("",))[0]
                self._access.tries.check(peer)
                self._access.tries.note_wrong(peer)
            return found
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE)
        session = self._access.sessions.read(cookie) if cookie else None
        if session is None:
            return None
        if self._signed_out.is_due:
            with suppress(TimeoutError):  # a storage that goes away keeps out nobody who was in
                await asyncio.wait_for(run_in_threadpool(self._signed_out.look), _LOOK)
        if not self._signed_out.has_looked:  # since this server began: it may be over
            raise StorageUnavailable(
                "whether this session was signed out of is not known yet, because the storage does not answer",
                hint="try again when it does, or send Authorization: Bearer TOKEN",
            )
        if session.id in self._signed_out:
            return None
        scope["state"]["session"] = session
        return session.operator


def _check_origin(headers: Headers, host: str) -> None:
    """A change must come from our own pages, or from a program. Browsers say where a request comes from, and let no
    foreign page send JSON; what says nothing and is no form is a program."""
    if headers.get("authorization", "").lower().startswith("bearer "):
        return  # no browser sends a token by itself
    fetch_site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if fetch_site is not None and fetch_site != "same-origin":
        raise NotAllowed(
            f"this change was asked for by another site ({fetch_site[:40]})", hint="use the pages of this server"
        )
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        raise NotAllowed(f"this change was asked for by {origin[:80]}", hint="use the pages of this server")
    if fetch_site is None and origin is None:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in _FORMS or headers.get("cookie"):
            raise NotAllowed(
                "it cannot be seen where this change comes from",
                hint="send JSON (Content-Type: application/json) and a token instead of a cookie",
            )


def _too_large(size: int, limit: int) -> PayloadTooLarge:
    return PayloadTooLarge("the bytes of this request", size, limit)


class _HeaderSender:
    """Sends an answer with the headers of every answer."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store")
            if self._closes(message["status"]):
                headers["connection"] = "close"
        await self._send(message)

    def _closes(self, status: int) -> bool:
        is_plain = self._scope.get("http_version", "1.1").startswith("1")  # later ones have no such header
        return is_plain and (status in _CLOSING or self._scope["state"].get("close", False))


class _LimitedBody:
    """Receives a request, as long as its body stays below the limit, whatever its headers say, and comes in time."""

    def __init__(self, receive: Receive, answer: _HeaderSender, limit: int, seconds: float) -> None:
        self._receive = receive
        self._answer = answer
        self._limit = limit
        self._until = time.monotonic() + seconds
        self._size = 0
        self._is_whole = False
        self._read: list[Message] = []

    async def read(self) -> None:
        """Wait until all of it is there, or nobody who would send it."""
        messages: list[Message] = []
        while not self._is_whole:
            messages.append(await self._next())
        self._read = messages

    async def __call__(self) -> Message:
        return self._read.pop(0) if self._read else await self._next()

    async def _next(self) -> Message:
        if self._is_whole:  # what may still come is that somebody has gone
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, self._until - time.monotonic()))
        except TimeoutError:
            self._is_whole = True
            if self._answer.has_begun:
                return {"type": "http.disconnect"}
            raise HTTPException(408) from None
        self._size += len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        if self._size > self._limit:
            raise _too_large(self._size, self._limit)
        return message


def safe_path(path: str) -> str:
    """A place of ours to go on to after signing in; anything that could lead elsewhere is the start page."""
    if not path.startswith("/") or path.startswith("//") or "\\" in path or not path.isprintable():
        return "/"
    return path
