"""The application: one ASGI app with the API, the pages, the stream and the probes, behind the gate.

`packhorse web` serves it; it may also be mounted into another ASGI app, under any prefix:

>>> Mount("/jobs", make_application(app, access))
"""

from __future__ import annotations

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
from packhorse.web.api.metrics import CONTENT_TYPE, metrics_text
from packhorse.web.api.openapi import document
from packhorse.web.api.problem import problem_of, problem_response
from packhorse.web.api.stream import stream
from packhorse.web.api.work import BODY_LIMIT, Work
from packhorse.web.host import Serving
from packhorse.web.pages.serving import page_routes, refuse_page, wants_page
from packhorse.web.sampler import Sampler
from packhorse.web.security.access import Access
from packhorse.web.security.gate import Gate, Lane
from packhorse.web.security.redaction import Redaction
from packhorse.web.site import Site

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

    def __init__(self, site: Site, sampler: Sampler) -> None:
        self.site = site
        self.sampler = sampler
        body_limit = max(1 << 20, site.app.settings.payload_limit) + _ROOM
        inner = Starlette(
            routes=_routes(site, sampler), exception_handlers={HTTPException: self._refused}, lifespan=self._lifespan
        )
        lanes = _lanes(body_limit)
        self._gate = Gate(
            inner, site.access, site.signed_out, lambda request, error: refuse(site, request, error), lanes
        )
        self._log = AccessLog(self._gate, site.redaction)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["serving"] = Serving(receive)
        await self._log(scope, receive, send)

    def serve_alone(self) -> None:
        """It is not mounted, but served at the very address for which its access was decided."""
        self._gate.is_alone = True

    def close(self) -> None:
        self.sampler.close()
        self.site.close()

    async def _refused(self, request: Request, error: Exception) -> Response:
        return refuse(self.site, request, error)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> Any:
        yield
        self.close()


def make_application(app: Packhorse, access: Access, *, redaction: Redaction | None = None) -> Application:
    """The web for the jobs of this app. `access` says who may come in: see `decide_access`."""
    site = Site(app, access, redaction=redaction)
    return Application(site, Sampler(site.call))


def _lanes(body_limit: int) -> list[Lane]:
    """Who asks for the same room; the first that fits is taken. Strangers and probes take none from the others."""

    def busy() -> TooBusy:
        return TooBusy(_TOO_MUCH, hint=_LATER)

    def away() -> StorageUnavailable:  # workers try again
        return StorageUnavailable(_TOO_MUCH, hint=_LATER)

    return [
        Lane((f"{API}/work",), BODY_LIMIT, most=_WORK, full=away),
        Lane(("/healthz", "/readyz"), _SMALL, most=_PROBES, full=busy, body_time=_STRANGERS_TIME, body_first=True),
        Lane(("/login", "/static"), _SMALL, most=_STRANGERS, full=busy, body_time=_STRANGERS_TIME, body_first=True),
        Lane(("",), body_limit, most=_PAGES, full=busy),
    ]


# --- routes -----------------------------------------------------------------------------------------------------------


def _routes(site: Site, sampler: Sampler) -> list[BaseRoute]:
    def guard(answer: Answer) -> Answer:
        return _guarded(answer, site)

    api: list[BaseRoute] = []
    for path in dict.fromkeys(endpoint.path for endpoint in ENDPOINTS):
        methods = {endpoint.method: endpoint for endpoint in ENDPOINTS if endpoint.path == path}
        api.append(Route(path, guard(_responder(methods, site)), methods=list(methods)))

    async def watch(request: Request) -> Response:
        return await stream(request, sampler)

    async def openapi(request: Request) -> Response:
        body = msgspec.json.encode(document(ENDPOINTS, request.scope.get("root_path", "")))
        return Response(body, media_type="application/json")

    async def metrics(request: Request) -> Response:
        return Response(await in_time(metrics_text, site.call(request.state.operator)), media_type=CONTENT_TYPE)

    work, probes = Work(site), Probes(site)
    api += [Route("/stream", guard(watch)), Route("/openapi.json", guard(openapi))]
    api += [Route("/work", guard(work.greet)), Route("/work/{call}", guard(work.answer), methods=["POST"])]
    others = {"/metrics": metrics, "/healthz": probes.healthz, "/readyz": probes.readyz}
    return [
        Mount(API, routes=api),
        *(Route(path, guard(answer)) for path, answer in others.items()),
        *page_routes(site, guard),
    ]


def _responder(methods: dict[str, Endpoint], site: Site) -> Answer:
    async def respond(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await methods[method].respond(request, site)

    return respond


def _guarded(answer: Answer, site: Site) -> Answer:
    """The answer, or the problem that stood in its way."""

    async def guarded(request: Request) -> Response:
        try:
            return await answer(request)
        except Exception as error:  # noqa: BLE001 - whatever it is, `refuse` has words for it
            return refuse(site, request, error)

    return guarded


def refuse(site: Site, request: Request, error: Exception) -> Response:
    """The answer to a request that cannot be served: a page for a person, a problem for a program."""
    problem = problem_of(error)
    return refuse_page(site, request, problem) if wants_page(request) else problem_response(problem, error)
