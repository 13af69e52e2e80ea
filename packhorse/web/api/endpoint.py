"""Endpoints: a typed function becomes a route, and its types become its part of the OpenAPI document.

A handler takes the call, then the parameters in braces of its path, then optionally `query` and `body`, which are
msgspec structs, as its answer is. It is a plain function and runs in a thread, because storages are synchronous.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, TypeVar, get_type_hints

import anyio
import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from packhorse.core.errors import BadValue, TooBusy
from packhorse.web.context import Call, WebContext
from packhorse.web.security.operator import Role

TIME_LIMIT = 30.0

Handler = Callable[..., Any]


class Endpoint:
    """One operation of the API."""

    def __init__(self, method: str, path: str, handler: Handler, role: Role, status: int) -> None:
        hints = get_type_hints(handler, include_extras=True)  # limits are in the annotations
        self.method = method
        self.path = path
        self.handler = handler
        self.role = role
        self.status = status
        self.query: type[Any] | None = hints.get("query")
        self.body: Any = hints.get("body")  # a struct, or a choice of types
        self.answer: Any = hints.get("return")
        self.summary = (handler.__doc__ or "").strip()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.handler(*args, **kwargs)

    async def respond(self, request: Request, web: WebContext) -> Response:
        """Respond to a request; raise its errors."""
        call = web.call(request.state.operator)
        call.operator.require(self.role)
        given: dict[str, Any] = dict(request.path_params)
        if self.query is not None:
            given["query"] = parse_query(request.query_params.multi_items(), self.query)
        if self.body is not None:
            given["body"] = _parse_body(await read_body(request), self.body)
        answer = await in_time(self.handler, call, **given)
        if isinstance(answer, Response):
            return answer
        status = self.status
        if status == 201 and not any(getattr(each, "is_new", True) for each in _each(answer)):
            status = 200
        return Response(msgspec.json.encode(answer), status, media_type="application/json")


def _each(answer: Any) -> list[Any]:
    return answer if isinstance(answer, list) else [answer]


async def in_time(
    function: Callable[..., Any], *args: Any, limiter: anyio.CapacityLimiter | None = None, **kwargs: Any
) -> Any:
    """Call a plain function in a thread; raise TooBusy after the time limit. `limiter` has threads of its own."""
    work = functools.partial(function, *args, **kwargs)
    try:
        return await asyncio.wait_for(anyio.to_thread.run_sync(work, limiter=limiter), TIME_LIMIT)
    except TimeoutError:
        raise TooBusy(
            f"the answer took longer than {TIME_LIMIT:g} s", hint="ask for less, or try again later"
        ) from None


async def read_body(request: Request) -> bytes:
    """The body of a request. The security middleware limits its size and the time that it takes."""
    return await request.body()


def parse_query(words: Sequence[tuple[str, str]], wanted: type[Any]) -> Any:
    """Parse the query into a struct. Raise BadValue with the parameter that is wrong. Empty text counts as left out."""
    if len(dict(words)) < len(words):
        raise BadValue("the query has a word twice", hint="write each once")
    texts = {field.name for field in msgspec.structs.fields(wanted) if field.type in (str, str | None)}
    given = {name: value for name, value in words if value != "" or name not in texts}
    if nothing := [name for name in given if name not in texts and given[name].lower() == "null"]:
        raise BadValue(f"{nothing[0]} cannot be null", hint="leave it out")
    try:
        return msgspec.convert(given, wanted, strict=False)
    except msgspec.ValidationError as error:
        names = ", ".join(field.name for field in msgspec.structs.fields(wanted))
        raise BadValue(f"the query is not understood: {_plain(error)}", hint=f"it may have {names}") from None


def _parse_body(body: bytes, wanted: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body or b"{}", type=wanted)
    except msgspec.ValidationError as error:
        raise BadValue(f"the body is not understood: {_plain(error)}", hint="see /api/v1/openapi.json") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadValue(f"the body is not JSON: {error}", hint="send an object, e.g. {}") from None


def _plain(error: Exception) -> str:
    return str(error).replace("`", "'")


def _made(method: str, path: str, role: Role, status: int) -> Callable[[Handler], Endpoint]:
    return lambda handler: Endpoint(method, path, handler, role, status)


def get(path: str, *, role: Role = Role.VIEW) -> Callable[[Handler], Endpoint]:
    """An endpoint that only reads."""
    return _made("GET", path, role, 200)


def post(path: str, *, role: Role = Role.OPERATE, status: int = 200) -> Callable[[Handler], Endpoint]:
    """An endpoint that changes something."""
    return _made("POST", path, role, status)


def delete(path: str, *, role: Role = Role.ADMIN) -> Callable[[Handler], Endpoint]:
    """An endpoint that removes something."""
    return _made("DELETE", path, role, 200)


__all__ = ["Call", "Endpoint", "delete", "get", "in_time", "parse_query", "post", "read_body"]


T = TypeVar("T")


class PartQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How many, sorted by name; `cursor` is `next` of the previous answer. Without a limit, all."""

    cursor: Annotated[str, Meta(max_length=512)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] | None = None


def part_of(items: Iterable[T], name: Callable[[T], str], query: PartQuery) -> tuple[list[T], str | None]:
    """The requested part of the items, and the cursor for the next part."""
    if query.limit is None and query.cursor is None:
        return list(items), None
    rest = sorted((item for item in items if query.cursor is None or name(item) > query.cursor), key=name)
    part = rest[: query.limit]
    return part, name(part[-1]) if len(part) < len(rest) else None
