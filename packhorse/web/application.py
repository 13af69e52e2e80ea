"""The web as one ASGI application: its routes, its limits on requests, and its shutdown.

`packhorse web` closes its streams itself. An application that is mounted into another program gets no notice: uvicorn
ends the lifespan only when all connections are closed, and a stream never closes by itself. So a stream asks
`ServerState` whether the server is stopping. When it is, uvicorn clears `keep_alive` of each open connection, and its
signal handler sets `should_exit`.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import Receive, Scope, Send

from packhorse.client.app import Packhorse
from packhorse.core.errors import StorageUnavailable, TooBusy
from packhorse.web.access_log import AccessLog
from packhorse.web.api import ENDPOINTS
from packhorse.web.api.endpoint import Endpoint, in_time
from packhorse.web.api.health import Probes
from packhorse.web.api.openapi import document
from packhorse.web.api.problem import problem_of, problem_response
from packhorse.web.api.stats import CONTENT_TYPE, metrics_text
from packhorse.web.api.storage_rpc import BODY_LIMIT, StorageRpc
from packhorse.web.api.stream import Sampler, stream
from packhorse.web.context import WebContext
from packhorse.web.pages.routes import page_routes, refuse_page, wants_page
from packhorse.web.security.access import Access
from packhorse.web.security.middleware import RequestGroup, SecurityMiddleware
from packhorse.web.security.redaction import Redaction

UNSEEN = 20.0
"""Seconds that a stream lasts on a server whose shutdown cannot be detected; browsers reconnect."""


class ServerState:
    """The state of the server during one request. `receive` comes from the server."""

    def __init__(self, receive: Any, now: Callable[[], float] = time.monotonic) -> None:
        cycle = getattr(receive, "__self__", None)  # uvicorn's, if no middleware wraps it
        self._cycle = cycle if getattr(cycle, "keep_alive", False) else None
        self._now = now
        self._began_at = now()

    def is_ending(self) -> bool:
        """Return whether the server is stopping; if that is unknown, whether the request has lasted too long."""
        if self._cycle is not None and not self._cycle.keep_alive:
            return True
        signalled = _signalled()
        if signalled is None and self._cycle is None:
            return self._now() - self._began_at > UNSEEN
        return bool(signalled)


def _signalled() -> bool | None:
    """Return whether the server that handles this process's signals received one; None without such a server."""
    for number in (signal.SIGTERM, signal.SIGINT):
        should_exit = getattr(getattr(signal.getsignal(number), "__self__", None), "should_exit", None)
        if isinstance(should_exit, bool):
            return should_exit
    return None


_ROOM = 64 << 10  # bytes of a request besides the arguments of a job
_PAGES = 500  # concurrent requests, including streams
_PROBES = 200
_LOGINS = 200  # concurrent requests to the login page, counted once they are complete
_SMALL = 16 << 10  # bytes of a request without sign-in
_LOGIN_TIME = 10.0  # seconds for its whole body
_WORK = 4_000  # concurrent requests of remote workers: one for each that sleeps, and its other calls
_TOO_MUCH = "this server has more to do at once than it can"
_LATER = "try again a little later"
API = "/api/v1"

Answer = Callable[[Request], Awaitable[Response]]


class Application:
    """The whole web as one ASGI app. `close` ends all streams, so that the server can stop."""

    def __init__(self, web: WebContext, sampler: Sampler) -> None:
        self.web = web
        self.sampler = sampler
        body_limit = max(1 << 20, web.app.settings.payload_limit) + _ROOM
        inner = Starlette(
            routes=_routes(web, sampler), exception_handlers={HTTPException: self._refused}, lifespan=self._lifespan
        )
        groups = _request_groups(body_limit)
        self._middleware = SecurityMiddleware(
            inner, web.access, web.signed_out, lambda request, error: refuse(web, request, error), groups
        )
        self._log = AccessLog(self._middleware, web.redaction)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["server_state"] = ServerState(receive)
        await self._log(scope, receive, send)

    def serve_alone(self) -> None:
        """Note that the app is not mounted, but served at the address for which its access was decided."""
        self._middleware.is_alone = True

    def close(self) -> None:
        self.sampler.close()
        self.web.close()

    async def _refused(self, request: Request, error: Exception) -> Response:
        return refuse(self.web, request, error)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> Any:
        yield
        self.close()


def make_application(app: Packhorse, access: Access, *, redaction: Redaction | None = None) -> Application:
    """Make the web application for the jobs of this app. `access` says who may use it: see `decide_access`."""
    web = WebContext(app, access, redaction=redaction)
    return Application(web, Sampler(web.call))


def _request_groups(body_limit: int) -> list[RequestGroup]:
    """Requests that share a limit; the first group that matches counts. Logins and probes take no place from others."""

    def busy() -> TooBusy:
        return TooBusy(_TOO_MUCH, hint=_LATER)

    def away() -> StorageUnavailable:  # workers retry on it
        return StorageUnavailable(_TOO_MUCH, hint=_LATER)

    return [
        RequestGroup((f"{API}/work",), BODY_LIMIT, most=_WORK, full=away),
        RequestGroup(("/healthz", "/readyz"), _SMALL, most=_PROBES, full=busy, body_time=_LOGIN_TIME, body_first=True),
        RequestGroup(("/login", "/static"), _SMALL, most=_LOGINS, full=busy, body_time=_LOGIN_TIME, body_first=True),
        RequestGroup(("",), body_limit, most=_PAGES, full=busy),
    ]


# --- routes -----------------------------------------------------------------------------------------------------------


def _routes(web: WebContext, sampler: Sampler) -> list[BaseRoute]:
    def guard(answer: Answer) -> Answer:
        return _guarded(answer, web)

    api: list[BaseRoute] = []
    for path in dict.fromkeys(endpoint.path for endpoint in ENDPOINTS):
        methods = {endpoint.method: endpoint for endpoint in ENDPOINTS if endpoint.path == path}
        api.append(Route(path, guard(_responder(methods, web)), methods=list(methods)))

    async def watch(request: Request) -> Response:
        return await stream(request, sampler)

    async def openapi(request: Request) -> Response:
        body = msgspec.json.encode(document(ENDPOINTS, request.scope.get("root_path", "")))
        return Response(body, media_type="application/json")

    async def metrics(request: Request) -> Response:
        return Response(await in_time(metrics_text, web.call(request.state.operator)), media_type=CONTENT_TYPE)

    work, probes = StorageRpc(web), Probes(web)
    api += [Route("/stream", guard(watch)), Route("/openapi.json", guard(openapi))]
    api += [Route("/work", guard(work.greet)), Route("/work/{call}", guard(work.answer), methods=["POST"])]
    others = {"/metrics": metrics, "/healthz": probes.healthz, "/readyz": probes.readyz}
    return [
        Mount(API, routes=api),
        *(Route(path, guard(answer)) for path, answer in others.items()),
        *page_routes(web, guard),
    ]


def _responder(methods: dict[str, Endpoint], web: WebContext) -> Answer:
    async def respond(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await methods[method].respond(request, web)

    return respond


def _guarded(answer: Answer, web: WebContext) -> Answer:
    """Turn every error of the answer into a response."""

    async def guarded(request: Request) -> Response:
        try:
            return await answer(request)
        except Exception as error:  # noqa: BLE001 - `refuse` handles every error
            return refuse(web, request, error)

    return guarded


def refuse(web: WebContext, request: Request, error: Exception) -> Response:
    """The response to a request that failed: a page for a person, a problem for a program."""
    problem = problem_of(error)
    return refuse_page(web, request, problem) if wants_page(request) else problem_response(problem, error)
