"""The access log: a line for each request, and on level debug the request and its response, without secrets.

The logger is `packhorse.web.access`. It never writes tokens, cookies, or what is sent to the login page. It masks
values in bodies by their names, as the pages do, also in the arguments that remote workers receive.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from packhorse.core.errors import StorageError
from packhorse.monitor.text import shorten
from packhorse.web.security.redaction import MASK, Names, Redaction, without_secrets
from packhorse.web.text import safe

log = logging.getLogger("packhorse.web.access")

_LONGEST = 2_000  # characters of a body, or of an address
_MOST_KEPT = 64 << 10  # bytes of a body that are looked at
_NESTED = frozenset({"args", "result", "meta", "error"})  # JSON within JSON, as storages keep it
_SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization", "set-cookie", "x-api-key"})


class AccessLog:
    """ASGI middleware around the gate: what it refuses is told, too."""

    def __init__(self, app: ASGIApp, redaction: Redaction) -> None:
        self._app = app
        self._redaction = redaction
        self._names = Names(redaction.words)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not log.isEnabledFor(logging.INFO):
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, keeps=log.isEnabledFor(logging.DEBUG))
        try:
            await self._app(scope, exchange.receive if exchange.keeps else receive, exchange.send)
        finally:
            self._log(exchange)
            if exchange.keeps:  # reads the hidden names from the storage
                await run_in_threadpool(self._log_bodies, exchange)

    def _log(self, exchange: _Exchange) -> None:
        scope = exchange.scope
        facts = {
            "client": (scope.get("client") or ("-",))[0],
            "operator": getattr(scope.get("state", {}).get("operator"), "name", "-"),
            "request": f"{scope['method']} {self._address(scope)}",
            "status": exchange.status or "-",  # the client disconnected first
            "size": exchange.answered.size,
            "ms": round(1_000 * (time.monotonic() - exchange.began_at), 1),
        }
        log.info('%s %s "%s" %s %d bytes %.1f ms', *facts.values(), extra=facts)

    def _address(self, scope: Scope) -> str:
        query = scope.get("query_string", b"").decode("latin-1")
        path = without_secrets(scope["path"], self._names)
        words = without_secrets(unquote(query.replace("+", " ")), self._names)
        return _text(f"{path}?{words}" if query else path)

    def _log_bodies(self, exchange: _Exchange) -> None:
        try:
            names = self._redaction.names_of_any()
        except StorageError:  # the hidden names are unknown, so log no body
            names = None
        self._log_part("request", exchange, exchange.asked, exchange.scope["headers"], names)
        self._log_part("answer", exchange, exchange.answered, exchange.headers, names)

    def _log_part(
        self, name: str, exchange: _Exchange, body: _Kept, headers: Iterable[tuple[bytes, bytes]], names: Names | None
    ) -> None:
        pairs = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in headers}
        shown = " ".join(
            f"{key}={MASK if key in _SECRET_HEADERS else json.dumps(_text(value))}" for key, value in pairs.items()
        )
        log.debug("%s: %s | %s", name, shown, self._body(exchange, body, pairs.get("content-type", ""), names))

    def _body(self, exchange: _Exchange, body: _Kept, kind: str, names: Names | None) -> str:
        if not body.size:
            return "no body"
        is_shown = "json" in kind and body.size <= _MOST_KEPT and exchange.path != "/login"
        if names is None or self._redaction.hide_args or not is_shown:
            return f"{body.size} bytes{f' of {_text(kind)}' if kind else ''}"
        try:
            value = json.loads(bytes(body.kept))
        except (ValueError, RecursionError):
            return f"{body.size} bytes that are not JSON"
        return _text(json.dumps(names.masked(_unfolded(value)), ensure_ascii=False))


class _Kept:
    """The bytes that have gone by, as far as they are kept."""

    def __init__(self) -> None:
        self.size = 0
        self.kept = bytearray()

    def add(self, part: bytes, *, keeps: bool) -> None:
        self.size += len(part)
        if keeps and len(self.kept) < _MOST_KEPT:
            self.kept += part[: _MOST_KEPT - len(self.kept)]


class _Exchange:
    """A request and its answer, as they go by."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, keeps: bool) -> None:
        self.scope = scope
        self.path = scope["path"].removeprefix(scope.get("root_path", ""))
        self.keeps = keeps
        self.began_at = time.monotonic()
        self.status: int | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.asked, self.answered = _Kept(), _Kept()
        self._receive, self._send = receive, send

    async def receive(self) -> Message:
        message = await self._receive()
        self.asked.add(message.get("body", b""), keeps=True)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], message.get("headers", [])
        elif message["type"] == "http.response.body":
            self.answered.add(message.get("body", b""), keeps=self.keeps)
        await self._send(message)


def _unfolded(value: Any) -> Any:
    """With the JSON that storages keep as text, so that the names in it are seen."""
    if isinstance(value, list):
        return [_unfolded(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: _loaded(each) if name in _NESTED else _unfolded(each) for name, each in value.items()}


def _loaded(value: Any) -> Any:
    if not isinstance(value, str):
        return _unfolded(value)
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return without_secrets(value)


def _text(text: str) -> str:
    """On one line, and not without end: others wrote it."""
    return shorten(safe(text).replace("\n", "\\n"), _LONGEST)
