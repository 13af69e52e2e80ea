"""Health, for probes: `/healthz` says whether jobs can run, `/readyz` whether this server can answer.

Neither needs a token. Without one, a response has the names of the checks and their results, and no sentences. Requests
that come at the same time share one run of the checks. Probes have their own threads, so slow pages do not delay them.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from packhorse.monitor.health import Caller, Facts, Finding, findings
from packhorse.web.api.endpoint import in_time
from packhorse.web.context import WebContext
from packhorse.web.security.operator import Operator
from packhorse.web.security.redaction import Redaction


class Probes:
    """Answers the probes of one server."""

    def __init__(self, web: WebContext) -> None:
        self._web = web
        self._running: dict[Any, asyncio.Future[list[Finding]]] = {}

    @functools.cached_property
    def _threads(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(2)

    async def healthz(self, request: Request) -> Response:
        """200 if the storage takes writes and a foreman is alive that takes jobs; 503 if not. For alarms."""
        return _answer(await self._shared(Caller.HEALTHZ), request.state.operator, self._web.redaction)

    async def readyz(self, request: Request) -> Response:
        """200 if this server can read the storage; 503 if not. For load balancers."""
        return _answer(await self._shared(Caller.READYZ), request.state.operator, self._web.redaction)

    async def _shared(self, caller: Caller) -> list[Finding]:
        key = (asyncio.get_running_loop(), caller)
        if key not in self._running:
            self._running[key] = asyncio.ensure_future(in_time(_findings, self._web, caller, limiter=self._threads))
            self._running[key].add_done_callback(lambda _: self._running.pop(key, None))
        return await asyncio.shield(self._running[key])


def _findings(web: WebContext, caller: Caller) -> list[Finding]:
    return list(findings(Facts(web.storage, web.app.settings.lease), caller))


def _answer(found: list[Finding], operator: Operator | None, redaction: Redaction) -> Response:
    is_well = all(finding.is_ok for finding in found)
    checks = [
        {
            "name": finding.name,
            "ok": finding.is_ok,
            **({"sentence": redaction.text(finding.sentence)} if operator else {}),
        }
        for finding in found
    ]
    body = msgspec.json.encode({"status": "ok" if is_well else "unhealthy", "checks": checks})
    return Response(body, 200 if is_well else 503, media_type="application/json")
