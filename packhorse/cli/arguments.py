"""The arguments of a new job on the command line: `1407 width=800`, --args, --args-file.

A value is JSON if it parses as JSON, else text; `name:=…` must be JSON. If the task's function is known, the arguments
are checked against it, and a number becomes text where the function takes text.
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
_NO_LIMIT = 1 << 40  # the app checks the size later


class Value(NamedTuple):
    """One value. `text` is what the user wrote, if that may be meant as text."""

    value: Any
    text: str | None = None


class Arguments(NamedTuple):
    """The values by place, and the values by name."""

    by_place: list[Value]
    by_name: dict[str, Value]


def read_arguments(words: tuple[str, ...], args: str | None, args_file: str | None) -> Arguments:
    """Parse the words, and --args or --args-file. Raise CommandError if they cannot be understood."""
    if args is not None and args_file is not None:
        raise CommandError("give --args or --args-file, not both", ExitCode.USAGE)
    if args_file is not None:
        arguments = _from_json(_read(args_file), f"--args-file {args_file}")
    elif args is not None:
        arguments = _from_json(args.encode(), "--args")
    else:
        arguments = Arguments([], {})
    for word in words:
        _add_word(arguments, word)
    return arguments


def _add_word(arguments: Arguments, word: str) -> None:
    named = _NAMED.fullmatch(word)
    if named is None:
        arguments.by_place.append(_json_or_text(word))
        return
    name, sign, text = named.groups()
    if name in arguments.by_name:
        raise CommandError(f"the argument {name} is given twice", ExitCode.USAGE)
    arguments.by_name[name] = Value(_json(text.encode(), name)) if sign == ":=" else _json_or_text(text)


def _json_or_text(text: str) -> Value:
    try:
        return Value(msgspec.json.decode(text), text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return Value(text)


def _from_json(data: bytes, what: str) -> Arguments:
    value = _json(data, what)
    if isinstance(value, dict):
        return Arguments([], {name: Value(each) for name, each in value.items()})
    if isinstance(value, list):
        return Arguments([Value(each) for each in value], {})
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
        raise CommandError(f"cannot read {name}", ExitCode.USAGE, why=error.strerror, source="--args-file") from error


# --- matching the function --------------------------------------------------------------------------------------------


def named_arguments(arguments: Arguments, task: str) -> dict[str, Any]:
    """The arguments by name, for a task whose function is not known here."""
    if arguments.by_place:
        raise CommandError(
            f"the arguments of {task} need names",
            ExitCode.USAGE,
            why="its function is not known here, and neither are the names of its parameters",
            hint="write name=value, or name the app: --app module:attr",
        )
    return {name: each.value for name, each in arguments.by_name.items()}


def bind_arguments(arguments: Arguments, signature: Signature) -> dict[str, Any] | list[Any]:
    """The arguments as this function takes them. Raise BadArguments as the worker would."""
    bound = signature.bind(tuple(arguments.by_place), arguments.by_name)
    plain = {name: _plain(each) for name, each in bound.items()}
    as_json: dict[str, BadArguments] = {}
    while True:
        try:
            signature.decode(encode_args(plain, _NO_LIMIT))
            break
        except BadArguments as error:
            name = error.argument or ""
            text = _text_of(bound.get(name))
            if text is None:
                raise
            if name in as_json:  # neither JSON nor text is right: report the value as it was written
                raise as_json[name] from None
            as_json[name] = error
            plain[name] = text
    args, kwargs = signature.call_with(plain)
    return kwargs if not args else [*args] if not kwargs else plain


def _text_of(value: Any) -> str | None:
    return value.text if isinstance(value, Value) else None


def _plain(value: Any) -> Any:
    return [each.value for each in value] if isinstance(value, list) else value.value
