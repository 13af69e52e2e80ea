"""The OpenAPI 3.1 document, made from the types of the endpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, get_args

import msgspec
from starlette.responses import Response

from packhorse.core.version import __version__
from packhorse.web.api.endpoint import Endpoint
from packhorse.web.api.problem import Problem

_REF = "#/components/schemas/{name}"


def document(endpoints: Iterable[Endpoint], prefix: str = "/api/v1") -> dict[str, Any]:
    """Build the document for these endpoints."""
    endpoints = list(endpoints)
    types = _types(endpoints)
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    of = dict(zip(map(_key, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, of, components)
    paths["/stream"] = {"get": _stream()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Packhorse", "version": __version__, "description": "Background jobs that are never lost."},
        "servers": [{"url": prefix}],
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _types(endpoints: list[Endpoint]) -> list[Any]:
    wanted = [kind for each in endpoints for kind in (each.query, each.body, each.answer) if kind is not None]
    return list({_key(kind): kind for kind in [*wanted, Problem] if not _is_text(kind)}.values())


def _is_text(kind: Any) -> bool:
    """Return whether the answer is a plain response, not JSON."""
    return isinstance(kind, type) and issubclass(kind, Response)


def _first(kind: Any) -> Any:
    """The first, most common type of a union."""
    return kind if isinstance(kind, type) else get_args(kind)[0]


def _key(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else repr(kind)


def _operation(endpoint: Endpoint, of: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", endpoint.path)
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}} for name in names
    ]
    if endpoint.query is not None:
        parameters += _query_parameters(components[endpoint.query.__name__])
    operation: dict[str, Any] = {
        "operationId": endpoint.handler.__name__,
        "summary": endpoint.summary.partition("\n")[0],
        "description": f"{' '.join(endpoint.summary.split())} Role: {endpoint.role.word}.",
        "tags": [endpoint.path.strip("/").partition("/")[0]],
        "parameters": parameters,
        "responses": _responses(endpoint, of),
    }
    if endpoint.body is not None:
        content = {"application/json": {"schema": of[_key(endpoint.body)]}}
        required = any(field.required for field in msgspec.structs.fields(_first(endpoint.body)))
        operation["requestBody"] = {"required": required, "content": content}
    return operation


def _query_parameters(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "query", "required": name in schema.get("required", []), "schema": _without_null(kind)}
        for name, kind in schema["properties"].items()
    ]


def _without_null(kind: dict[str, Any]) -> dict[str, Any]:
    """Remove null from the type: a query leaves such a parameter out."""
    choices = [each for each in kind.get("anyOf", []) if each != {"type": "null"}]
    rest = {name: value for name, value in kind.items() if name not in ("anyOf", "default")}
    if not choices:
        return {name: value for name, value in kind.items() if not (name == "default" and value is None)}
    return {**rest, **choices[0]} if len(choices) == 1 else {**rest, "anyOf": choices}


def _responses(endpoint: Endpoint, of: dict[str, Any]) -> dict[str, Any]:
    problem = {
        "description": "What went wrong, why, and what to do next.",
        "content": {"application/problem+json": {"schema": of[_key(Problem)]}},
    }
    content = (
        {endpoint.answer.media_type: {"schema": {"type": "string"}}}
        if _is_text(endpoint.answer)
        else {"application/json": {"schema": of[_key(endpoint.answer)]}}
    )
    answer = {"description": (_first(endpoint.answer).__doc__ or "").strip().partition("\n")[0], "content": content}
    responses = {str(endpoint.status): answer, "default": problem}
    return {"200": answer, **responses} if endpoint.status == 201 else responses


def _stream() -> dict[str, Any]:
    return {
        "operationId": "stream",
        "summary": "Live numbers, as server-sent events.",
        "description": "Events: hello, overview, job, trouble. Last-Event-ID resumes. Role: view.",
        "tags": ["stream"],
        "parameters": [
            {
                "name": "topics",
                "in": "query",
                "required": False,
                "description": "Separated by commas: overview, job:ID.",
                "schema": {"type": "string"},
            }
        ],
        "responses": {"200": {"description": "A stream.", "content": {"text/event-stream": {}}}},
    }
