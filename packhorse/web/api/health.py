"""Health, for probes: `/healthz` says whether all works, `/readyz` whether this server can answer.

Neither asks who it is, so neither tells more than yes or no to those who have not said. All who ask at the same time
share one look, which has a thread of its own: no slow page keeps a probe waiting, and no flood of probes the storage.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from packhorse.monitor.health import Facts, Finding, foremen, readable, writable
from packhorse.web.api.endpoint import in_time
from packhorse.web.context import WebContext
from packhorse.web.security.operator import Operator
from packhorse.web.security.redaction import Redaction


class Probes:
    """Answers the probes of one server."""

    def __init__(self, web: WebContext) -> None:
        self._web = web
        self._looking: dict[Any, asyncio.Future[list[Finding]]] = {}

    @functools.cached_property
    def _threads(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(2)

    async def healthz(self, request: Request) -> Response:
        """200 if the storage takes writes and a foreman is alive that takes jobs; 503 if not. For alarms."""
        return _answer(await self._shared(_health), request.state.operator, self._web.redaction)

    async def readyz(self, request: Request) -> Response:
        """200 if this server can read the storage; 503 if not. For those who send requests here."""
        return _answer(await self._shared(_readiness), request.state.operator, self._web.redaction)

    async def _shared(self, look: Callable[[WebContext], list[Finding]]) -> list[Finding]:
        here = (asyncio.get_running_loop(), look)
        if here not in self._looking:
            self._looking[here] = asyncio.ensure_future(in_time(look, self._web, limiter=self._threads))
            self._looking[here].add_done_callback(lambda _: self._looking.pop(here, None))
        return await asyncio.shield(self._looking[here])


def _health(web: WebContext) -> list[Finding]:
    answer = writable(web.storage)
    if not answer.is_ok:
        return [answer]
    return [answer, *foremen(Facts(web.storage, web.app.settings.lease))]


def _readiness(web: WebContext) -> list[Finding]:
    return [readable(web.storage)]


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
