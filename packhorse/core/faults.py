"""What cannot become JSON, and how that is told: the error names the innermost value at fault, and what to do instead.

`codec.py` asks, once a value was written or could not be. A value's own code may raise anything; here it does no harm.
"""

from __future__ import annotations

import inspect
import math
import re
import types
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import msgspec

from packhorse.core.errors import BadArguments, BadResult

DEPTH_LIMIT = 64
"""The most levels of lists and objects inside each other."""


def to_json(value: Any) -> Any:
    """msgspec asks this about a value of a type that it does not know."""
    if isinstance(value, str):
        return str.__str__(value)  # of a subclass, whose own __str__ may say something else
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(type(value), "model_dump"):  # pydantic, which need not be installed
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    raise TypeError(f"{type(value).__name__} is not plain data")


encode = msgspec.json.Encoder(enc_hook=to_json).encode


def fault_of(value: Any) -> str | None:
    """Which of the faults in `refusal` this value has, if any."""
    try:
        return fault_in(encode(value), value)
    except RecursionError:
        return "depth"
    except UnicodeEncodeError:
        return "surrogate"
    except Exception:  # noqa: BLE001 - a value's own code may raise anything
        return "type"


def fault_in(raw: bytes, value: Any) -> str | None:
    """What JSON was made of and cannot give back. Each look at the text is cheap, and most end there."""
    if len(raw) > 2 * DEPTH_LIMIT and is_too_deep(raw):
        return "depth"
    if b"null" in raw and not _came_back_equal(raw, value) and _holds_nan(value):  # msgspec writes NaN as null
        return "nan"
    if b"\\u0000" in raw and _NUL.search(raw):
        return "nul"
    return None


_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_NOISE = bytes(set(range(256)) - set(b'[]{}"'))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")


def is_too_deep(raw: bytes) -> bool:
    """Is this JSON nested deeper than anybody should have to read?"""
    if raw.count(b"[") + raw.count(b"{") <= DEPTH_LIMIT:
        return False
    quoted = raw.replace(rb"\\", b"").replace(rb"\"", b"").translate(_ONE_KIND, _NOISE).replace(b'""', b"")
    brackets = re.sub(rb'"[^"]*"', b"", quoted)
    for _ in range(DEPTH_LIMIT):
        brackets = brackets.replace(b"[]", b"")  # takes the innermost level away
        if not brackets:
            return False
    return True


def _came_back_equal(raw: bytes, value: Any) -> bool:
    """Far quicker than to search for NaN, and it settles the matter for plain values."""
    try:
        return bool(msgspec.json.decode(raw) == value)
    except Exception:  # noqa: BLE001 - a value's own comparison may raise anything
        return False


def _holds_nan(value: Any) -> bool:
    kind = type(value)
    if kind in (str, int, bool, types.NoneType, msgspec.Raw):
        return False
    if kind is float:
        return not math.isfinite(value)
    if kind is dict:
        return any(map(_holds_nan, value.values()))
    if kind in (list, tuple, set, frozenset):
        return any(map(_holds_nan, value))
    return _holds_nan(msgspec.to_builtins(value, enc_hook=to_json))


def refusal(value: Any, owner: str | None) -> BadArguments | BadResult:
    """The error that names the innermost value which cannot become JSON, and says why."""
    where, argument, fault = "the result", None, fault_of(value)
    if owner is not None:
        argument = next((name for name in value if fault_of({name: value[name]})), next(iter(value)))
        where, value, fault = f"argument {argument!r}", value[argument], fault_of({argument: value[argument]})
    value, path, is_circle = _descend(value, fault)
    what, hint = _describe(value, "circle" if is_circle else fault)
    if path and fault != "depth":
        where += f" at {argument or ''}{path}"
    if owner is None and (kind := _unrun(value)):
        return BadResult(
            f"the task returned {kind} instead of doing its work: what is in it has not run",
            hint="let the function, and what wraps it, await or exhaust it, and return a value",
        )
    if owner is None:
        kept = "the task has run to its end; only what it returned cannot be kept"
        return BadResult(f"{where}: {what}", why=kept, hint=hint.replace("pass ", "return "))
    prefix = f"{owner}(): " if owner else ""
    return BadArguments(f"{prefix}{where}: {what}", argument=argument, hint=hint)


def _unrun(value: Any) -> str | None:
    """What a function made that does nothing by being called; None of any other value."""
    if inspect.iscoroutine(value):
        value.close()  # else Python warns that nobody has awaited it
        return "a coroutine"
    return "a generator" if inspect.isgenerator(value) or inspect.isasyncgen(value) else None


def _descend(value: Any, fault: str | None) -> tuple[Any, str, bool]:
    """The innermost value with this fault, the path to it, and whether the way leads in a circle."""
    path, passed = "", {id(value)}
    for _ in range(DEPTH_LIMIT):
        step, child = next(((s, c) for s, c in _children(value) if fault_of(c) == fault), (None, None))
        if step is None:
            break
        if id(child) in passed:
            return value, path, True
        path, value = path + step, child
        passed.add(id(child))
    return value, path, False


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]", child
    elif isinstance(value, list | tuple | set | frozenset):
        for index, child in enumerate(value):
            yield f"[{index}]", child
    elif not isinstance(value, type):
        attrs = [field.name for field in getattr(value, "__attrs_attrs__", ())]
        for name in getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", attrs):
            if not name.startswith("_"):  # which says nothing to who only made the whole
                yield f".{name}", getattr(value, name, None)


def _describe(value: Any, fault: str | None) -> tuple[str, str]:
    match fault:
        case "circle":
            return "it contains itself", "pass the ids of what belongs together"
        case "depth":
            return f"it is nested deeper than {DEPTH_LIMIT} levels", "store it elsewhere and pass a reference"
        case "surrogate":
            return "text with half a character (a lone surrogate) cannot become JSON", "pass bytes, or repair the text"
        case "nan":
            return f"{value!r} cannot become JSON, which has no NaN or Infinity", "pass None, or text"
        case "nul":
            return "the text has a NUL character ('\\0'), which no storage takes", "remove it, or pass bytes"
    if isinstance(value, int):
        return "an integer of more than 4,300 digits cannot become JSON", "pass it as text, in hexadecimal"
    if isinstance(value, dict):
        key = next((key for key in value if fault_of({key: None})), None)
        return f"the key {key!r} cannot become JSON", "the keys of a dict are text or numbers"
    return f"<{type(value).__name__} object> cannot become JSON", "pass its id, or make it a dataclass"
