"""What a task takes, told to programs that do not have its code: the names of its arguments, and JSON Schemas of them.

A worker announces `parameters_of(signature)`; who enqueues by name makes a `Signature` of it again, and checks with
that as far as is known. Whatever a schema cannot say fits: the worker has the last word.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Union

import msgspec

from packhorse.core.codec import Signature

_DEEPEST = 3  # levels of lists in a schema; what is inside them is left to the worker
_MOST_WORDS = 50  # of a choice
_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "null": None,
    "object": dict,
}

Schema = dict[str, Any]


class Parameter(msgspec.Struct, frozen=True, omit_defaults=True):
    """One argument. `schema` is a JSON Schema, with nothing in it if all is allowed."""

    name: str
    schema: Schema = {}
    is_needed: bool = False
    has_place: bool = False  # it may be given by its place, without its name


class Parameters(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that a task takes, in order."""

    each: tuple[Parameter, ...] = ()
    takes_any_name: bool = False


def parameters_of(signature: Signature) -> Parameters:
    """What there is to tell about a function."""
    return Parameters(
        tuple(
            Parameter(name, _schema(hint), is_needed, has_place)
            for name, hint, is_needed, has_place in signature.described()
        ),
        signature.takes_any_name,
    )


def signature_of(task: str, parameters: Parameters, defaults: Mapping[str, Any]) -> Signature | None:
    """A signature that stands in for that of a task whose code is elsewhere; None if no function could have it.

    Every argument may be given by its name, as arguments are stored. `defaults` are those that are known.
    """
    try:
        listed = [_parameter(one, defaults) for one in parameters.each]
        if parameters.takes_any_name:
            listed.append(inspect.Parameter("_others", inspect.Parameter.VAR_KEYWORD))
        shape = inspect.Signature(sorted(listed, key=lambda one: one.kind))
    except (ValueError, TypeError):  # names that are none, an order that cannot be: not written by us
        return None

    def stand_in() -> None: ...

    stand_in.__qualname__ = task
    stand_in.__signature__ = shape  # type: ignore[attr-defined]
    return Signature(stand_in)


def _parameter(one: Parameter, defaults: Mapping[str, Any]) -> inspect.Parameter:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if one.has_place else inspect.Parameter.KEYWORD_ONLY
    # UNSET: there is a default, and nobody here knows it.
    default = inspect.Parameter.empty if one.is_needed else defaults.get(one.name, msgspec.UNSET)
    return inspect.Parameter(one.name, kind, default=default, annotation=_type(one.schema))


# --- from hints to schemas --------------------------------------------------------------------------------------------


def _schema(hint: Any) -> Schema:
    """The schema of a type hint, without what is deep inside; nothing where msgspec cannot tell."""
    try:
        (found,), components = msgspec.json.schema_components([hint], ref_template="{name}")
    except Exception:  # noqa: BLE001 - a hint's own code may raise anything, and a worker must start all the same
        return {}
    return _plain(found, components, _DEEPEST)


def _plain(schema: Mapping[str, Any], components: Mapping[str, Any], levels: int) -> Schema:
    if "$ref" in schema:
        found = components[schema["$ref"]]
        # Of a class only what it is in JSON. Enums may know more words than they list: `_missing_` finds them.
        return {"type": found["type"]} if found.get("type") in ("object", "array") else {}
    if "anyOf" in schema:
        members = [_plain(one, components, levels) for one in schema["anyOf"]]
        return {"anyOf": members} if all(members) else {}
    if "enum" in schema:
        return {"enum": schema["enum"]} if len(schema["enum"]) <= _MOST_WORDS else {}
    if schema.get("format") == "decimal":
        return {"type": ["string", "number"]}  # both are read
    if schema.get("type") == "array" and levels and (items := _items(schema, components, levels - 1)):
        return {"type": "array", "items": items}
    return {"type": schema["type"]} if "type" in schema else {}


def _items(schema: Mapping[str, Any], components: Mapping[str, Any], levels: int) -> Schema:
    items = schema.get("items")
    return _plain(items, components, levels) if isinstance(items, dict) and "prefixItems" not in schema else {}


# --- from schemas to types --------------------------------------------------------------------------------------------


def _type(schema: Mapping[str, Any]) -> Any:
    """The type hint that a schema stands for; Any where it says what we do not know, or what msgspec cannot read."""
    try:
        hint = _hint(schema)
        msgspec.json.Decoder(hint)
        return hint
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError):
        return Any


def _hint(schema: Mapping[str, Any]) -> Any:
    if "anyOf" in schema:
        return _union(map(_hint, schema["anyOf"]))
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union(_TYPES[one] for one in kind)
    if kind == "array":
        return types.GenericAlias(list, (_hint(schema.get("items", {})),))
    return Any if kind is None else _TYPES[kind]


def _union(members: Iterable[Any]) -> Any:
    return Union[tuple(members)]  # noqa: UP007 - how many there are is not known before
