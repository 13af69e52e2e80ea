"""The stream: live numbers as server-sent events, from the one sampler that all viewers share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from packhorse.core.version import __version__
from packhorse.web.sampler import Sampler, Viewer

_RETRY = 3_000  # milliseconds after which a browser comes back


async def stream(request: Request, sampler: Sampler) -> Response:
    """The answer to `GET /stream?topics=overview,job:ID`."""
    topics = [topic for topic in request.query_params.get("topics", "overview").split(",") if topic]
    last_id = request.headers.get("last-event-id") or request.query_params.get("last_event_id")
    is_over = request.state.serving.is_ending
    viewer = sampler.join(request.state.operator, topics or ["overview"], last_id, is_over)
    headers = {"x-accel-buffering": "no"}
    return StreamingResponse(_events(sampler, viewer), media_type="text/event-stream", headers=headers)


async def _events(sampler: Sampler, viewer: Viewer) -> AsyncIterator[bytes]:
    try:
        yield f"retry: {_RETRY}\nevent: hello\ndata: {_hello()}\n\n".encode()
        while (texts := await viewer.take()) is not None:
            yield texts
    finally:
        sampler.leave(viewer)


def _hello() -> str:
    return msgspec.json.encode({"version": __version__}).decode()
