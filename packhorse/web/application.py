"""The server that runs the application, which may be another program's: is it told to stop?

`packhorse web` ends its streams itself. Mounted into another program, nobody tells us: uvicorn sends the end of the
lifespan only when all connections are closed, and a stream never closes by itself. So while a request lasts long, it
asks here. uvicorn tells each open connection not to stay, and whoever handles its signals knows that they came.
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
"""Seconds that a stream lasts at a server whose end cannot be seen; browsers come back."""


class ServerState:
    """One request, as its server has it. `receive` is what the server gave us."""

    def __init__(self, receive: Any, now: Callable[[], float] = time.monotonic) -> None:
        cycle = getattr(receive, "__self__", None)  # uvicorn's, if nothing is wrapped around it
        self._cycle = cycle if getattr(cycle, "keep_alive", False) else None
        self._now = now
        self._began_at = now()

    def is_ending(self) -> bool:
        """Was the server told to stop, or may it have been for too long without a sign of it?"""
        if self._cycle is not None and not self._cycle.keep_alive:
            return True
        signalled = _signalled()
        if signalled is None and self._cycle is None:
            return self._now() - self._began_at > UNSEEN
        return bool(signalled)


def _signalled() -> bool | None:
    """Did the server that handles this process's signals hear one? None: there is no such server."""
    for number in (signal.SIGTERM, signal.SIGINT):
        told = getattr(getattr(signal.getsignal(number), "__self__", None), "should_exit", None)
        if isinstance(told, bool):
            return told
    return None


_ROOM = 64 << 10  # in a request, besides the arguments of a job
_PAGES = 500  # requests in hand, streams among them
_PROBES = 200
_STRANGERS = 200  # at the login page, whole requests only
_SMALL = 16 << 10  # bytes of what a stranger sends
_STRANGERS_TIME = 10.0  # seconds for all of it
_WORK = 4_000  # those of workers elsewhere: one for each that sleeps, and what it does besides
_TOO_MUCH = "this server has more to do at once than it can"
_LATER = "try again a little later"
API = "/api/v1"

Answer = Callable[[Request], Awaitable[Response]]


class Application:
    """The whole web as one ASGI app. `close` ends all streams, so that a server can end too."""

    def __init__(self, web: WebContext, sampler: Sampler) -> None:
        self.web = web
        self.sampler = sampler
        body_limit = max(1 << 20, web.app.settings.payload_limit) + _ROOM
        inner = Starlette(
            routes=_routes(web, sampler), exception_handlers={HTTPException: self._refused}, lifespan=self._lifespan
        )
        lanes = _request_groups(body_limit)
        self._middleware = SecurityMiddleware(
            inner, web.access, web.signed_out, lambda request, error: refuse(web, request, error), lanes
        )
        self._log = AccessLog(self._middleware, web.redaction)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["server_state"] = ServerState(receive)
        await self._log(scope, receive, send)

    def serve_alone(self) -> None:
        """It is not mounted, but served at the very address for which its access was decided."""
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
    """The web for the jobs of this app. `access` says who may come in: see `decide_access`."""
    web = WebContext(app, access, redaction=redaction)
    return Application(web, Sampler(web.call))


def _request_groups(body_limit: int) -> list[RequestGroup]:
    """Who asks for the same room; the first that fits is taken. Strangers and probes take none from the others."""

    def busy() -> TooBusy:
        return TooBusy(_TOO_MUCH, hint=_LATER)

    def away() -> StorageUnavailable:  # workers try again
        return StorageUnavailable(_TOO_MUCH, hint=_LATER)

    return [
        RequestGroup((f"{API}/work",), BODY_LIMIT, most=_WORK, full=away),
        RequestGroup(
            ("/healthz", "/readyz"), _SMALL, most=_PROBES, full=busy, body_time=_STRANGERS_TIME, body_first=True
        ),
        RequestGroup(
            ("/login", "/static"), _SMALL, most=_STRANGERS, full=busy, body_time=_STRANGERS_TIME, body_first=True
        ),
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
    """The answer, or the problem that stood in its way."""

    async def guarded(request: Request) -> Response:
        try:
            return await answer(request)
        except Exception as error:  # noqa: BLE001 - whatever it is, `refuse` has words for it
            return refuse(web, request, error)

    return guarded


def refuse(web: WebContext, request: Request, error: Exception) -> Response:
    """The answer to a request that cannot be served: a page for a person, a problem for a program."""
    problem = problem_of(error)
    return refuse_page(web, request, problem) if wants_page(request) else problem_response(problem, error)
