"""The security middleware: the checks that every request passes first.

It answers only to allowed host names, accepts changes only from our own pages or from programs, limits the size and the
time of bodies, identifies the operator, limits concurrent requests, and adds security headers to every response.
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
"""Makes the response to a request that is refused."""

READING = frozenset({"GET", "HEAD", "OPTIONS"})
OPEN_PATHS = ("/static/", "/healthz", "/readyz", "/login")
"""Paths that are served without sign-in."""

BODY_TIME = 30.0
"""Seconds in which the whole body of a request must arrive."""
_LOOK = 2.0  # seconds that a request waits for the storage to list the sessions that were signed out of
_CLOSING = (408, 413)  # close after these: the rest of the request may still arrive and must not be parsed
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
    """Requests below some paths, with a limit of their own: many requests of one group cannot block another group. With
    `body_first`, a request counts only once its body has arrived, so that slow senders who are not signed in take no
    place from others."""

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
        self._active = 0

    def is_for(self, path: str) -> bool:
        return any(not start or path == start or path.startswith(f"{start}/") for start in self._starts)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Count one request of this group while it is served. Raise `full` if there are too many."""
        if self._active >= self._most:
            raise self._full()
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1


class SecurityMiddleware:
    """ASGI middleware around the whole web."""

    def __init__(
        self, app: ASGIApp, access: Access, signed_out: SignedOut, refuse: Refuse, groups: Sequence[RequestGroup]
    ) -> None:
        self._app = app
        self._access = access
        self._signed_out = signed_out
        self._refuse = refuse
        self._request_groups = groups  # the first that matches counts
        self.is_alone = False  # served by `packhorse web`, at the address for which `access` was decided

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # there are no web sockets here; the app handles its lifespan
            await self._app(scope, receive, send)
            return
        # An inner mount adds its own part to root_path; links start at ours.
        scope.setdefault("state", {})["root"] = scope.get("root_path", "")
        headers = Headers(scope=scope)
        self._access.proxies.apply(scope, headers)
        guarded = _HeaderSender(scope, send)
        try:
            group = self._group(scope)
            self._check(scope, headers, group.body_limit)
            scope["state"]["operator"] = await self._operator(scope, headers)
            body = _LimitedBody(receive, guarded, group.body_limit, group.body_time)
            if group.body_first:
                await body.read()
            with group.entered():  # requests without sign-in were refused above and do not count
                await self._app(scope, body, guarded)
        except (PackhorseError, HTTPException) as error:
            await self._refuse(Request(scope), error)(scope, receive, guarded)

    def _group(self, scope: Scope) -> RequestGroup:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return next(group for group in self._request_groups if group.is_for(path))

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
            scope["state"]["close"] = True  # the end of this request, and what follows it, cannot be known
            raise BadValue(
                "the request has both Content-Length and Transfer-Encoding, so its end cannot be known",
                hint="send one of them",
            )
        if length.isdigit() and int(length) > limit:
            raise _too_large(int(length), limit)

    async def _operator(self, scope: Scope, headers: Headers) -> Operator | None:
        """The operator of the request; None on a path that needs no sign-in."""
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
        """Raise NotAllowed unless the request comes from this machine; there are no tokens. The headers of a request,
        such as Host, prove nothing. A loopback address does, unless a proxy forwards to it."""
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
            if found is None:  # a valid token is accepted, even if others behind the same proxy try wrong ones
                peer = (scope.get("client") or ("",))[0]
                self._access.tries.check(peer)
                self._access.tries.note_wrong(peer)
            return found
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE)
        session = self._access.sessions.read(cookie) if cookie else None
        if session is None:
            return None
        if self._signed_out.is_due:
            with suppress(TimeoutError):  # signed-in operators stay signed in while the storage is unavailable
                await asyncio.wait_for(run_in_threadpool(self._signed_out.look), _LOOK)
        if not self._signed_out.has_looked:  # not once since this server started: the session may be over
            raise StorageUnavailable(
                "whether this session was signed out of is not known yet, because the storage does not answer",
                hint="try again when it does, or send Authorization: Bearer TOKEN",
            )
        if session.id in self._signed_out:
            return None
        scope["state"]["session"] = session
        return session.operator


def _check_origin(headers: Headers, host: str) -> None:
    """Raise NotAllowed unless a change comes from our own pages or from a program. Browsers send the origin of a
    request and let no foreign page send JSON; a request without an origin that is not a form comes from a program."""
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
    """Sends a response with the security headers."""

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
        is_plain = self._scope.get("http_version", "1.1").startswith("1")  # later versions have no such header
        return is_plain and (status in _CLOSING or self._scope["state"].get("close", False))


class _LimitedBody:
    """Receives a request. It limits the size of the body, whatever the headers say, and the time that it takes."""

    def __init__(self, receive: Receive, answer: _HeaderSender, limit: int, seconds: float) -> None:
        self._receive = receive
        self._answer = answer
        self._limit = limit
        self._until = time.monotonic() + seconds
        self._size = 0
        self._is_whole = False
        self._read: list[Message] = []

    async def read(self) -> None:
        """Wait until the whole body has arrived, or the client has gone."""
        messages: list[Message] = []
        while not self._is_whole:
            messages.append(await self._next())
        self._read = messages

    async def __call__(self) -> Message:
        return self._read.pop(0) if self._read else await self._next()

    async def _next(self) -> Message:
        if self._is_whole:  # only the disconnect may still follow
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
    """Return a local path to open after the sign-in; the start page instead of any path that could lead elsewhere."""
    if not path.startswith("/") or path.startswith("//") or "\\" in path or not path.isprintable():
        return "/"
    return path
