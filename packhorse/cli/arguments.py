"""The arguments of a new job, as they are written on the command line: `1407 width=800`, --args, --args-file.

A value is JSON if it can be read as such, else text; `name:=…` must be JSON. Where the task's function is known, the
arguments are checked against it, and a number that was meant as text becomes text.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from packhorse.cli.errors import CommandError, ExitCode
from packhorse.core.codec import Signature, encode_args
from packhorse.core.errors import BadArguments

_NAMED = re.compile(r"([A-Za-z_]\w*)(:?=)(.*)", re.DOTALL)
_ANY_SIZE = 1 << 40  # the app, which knows the limit, looks at that


class Value(NamedTuple):
    """One value; `text` is how it was written, if it may have been meant as text."""

    value: Any
    text: str | None = None


class Given(NamedTuple):
    """What was written: values by place, and values by name."""

    by_place: list[Value]
    by_name: dict[str, Value]


def read_given(words: tuple[str, ...], args: str | None, args_file: str | None) -> Given:
    """Take the words apart, and read --args or --args-file. CommandError says what cannot be understood."""
    if args is not None and args_file is not None:
        raise CommandError("give --args or --args-file, not both", ExitCode.USAGE)
    if args_file is not None:
        given = _from_json(_read(args_file), f"--args-file {args_file}")
    elif args is not None:
        given = _from_json(args.encode(), "--args")
    else:
        given = Given([], {})
    for word in words:
        _add_word(given, word)
    return given


def _add_word(given: Given, word: str) -> None:
    named = _NAMED.fullmatch(word)
    if named is None:
        given.by_place.append(_guessed(word))
        return
    name, sign, text = named.groups()
    if name in given.by_name:
        raise CommandError(f"the argument {name} is given twice", ExitCode.USAGE)
    given.by_name[name] = Value(_json(text.encode(), name)) if sign == ":=" else _guessed(text)


def _guessed(text: str) -> Value:
    try:
        return Value(msgspec.json.decode(text), text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return Value(text)


def _from_json(data: bytes, what: str) -> Given:
    value = _json(data, what)
    if isinstance(value, dict):
        return Given([], {name: Value(each) for name, each in value.items()})
    if isinstance(value, list):
        return Given([Value(each) for each in value], {})
    hint = """write an object: '{"user_id": 7}'"""
    raise CommandError(f"{what} must be a JSON object or list", ExitCode.USAGE, hint=hint)


def _json(data: bytes, what: str) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        hint = """quote it for the shell: name:='{"a": [1, 2]}', --args '{"name": "text"}'"""
        raise CommandError(f"{what} is not JSON", ExitCode.USAGE, why=str(error), hint=hint) from error


def _read(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise CommandError(
            f"{name} cannot be read", ExitCode.USAGE, why=error.strerror, source="--args-file"
        ) from error


# --- fitting the function ---------------------------------------------------------------------------------------------


def named_only(given: Given, task: str) -> dict[str, Any]:
    """The arguments by name, for a task whose function nobody here knows."""
    if given.by_place:
        raise CommandError(
            f"the arguments of {task} need names",
            ExitCode.USAGE,
            why="its function is not known here, so nobody can tell what they are called",
            hint="write name=value, or name the app: --app module:attr",
        )
    return {name: each.value for name, each in given.by_name.items()}


def fitted(given: Given, signature: Signature) -> dict[str, Any] | list[Any]:
    """The arguments as this function takes them, checked; raises BadArguments as the worker would."""
    bound = signature.bind(tuple(given.by_place), given.by_name)
    plain = {name: _plain(each) for name, each in bound.items()}
    as_json: dict[str, BadArguments] = {}
    while True:
        try:
            signature.decode(encode_args(plain, _ANY_SIZE))
            break
        except BadArguments as error:
            name = error.argument or ""
            text = _meant_as_text(bound.get(name))
            if text is None:
                raise
            if name in as_json:  # neither fits: tell of the value as it was written
                raise as_json[name] from None
            as_json[name] = error
            plain[name] = text
    args, kwargs = signature.call_with(plain)
    return kwargs if not args else [*args] if not kwargs else plain


def _meant_as_text(value: Any) -> str | None:
    return value.text if isinstance(value, Value) else None


def _plain(value: Any) -> Any:
    return [each.value for each in value] if isinstance(value, list) else value.value
