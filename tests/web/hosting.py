"""A program into which the web is mounted: `python -m tests.web.hosting URL plain|wrapped`. Says its port."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.routing import Mount

from packhorse import Packhorse
from packhorse.web.application import make_application
from packhorse.web.security.access import decide_access
from packhorse.web.security.tokens import load_tokens

SECRET = "secret-of-the-host-0123456789"


async def _pass(request: Any, call_next: Any) -> Any:
    return await call_next(request)


def main(url: str, kind: str) -> None:
    web = make_application(Packhorse(url), decide_access("127.0.0.1", load_tokens(SECRET, None)))
    wrapped = [Middleware(BaseHTTPMiddleware, dispatch=_pass)] if kind == "wrapped" else []
    host = Starlette(routes=[Mount("/ops/jobs", web)], middleware=wrapped)
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    asyncio.run(uvicorn.Server(uvicorn.Config(host, log_level="warning")).serve(sockets=[listening]))


if __name__ == "__main__":
    main(*sys.argv[1:])
