"""Converts arguments and results to JSON text and back.

The client encodes when it enqueues, the worker decodes before it calls the task. A payload is always one JSON object,
argument name to value, so that any language can enqueue and anyone can read it. A value comes back equal by its type
hint; a value that JSON cannot hold is rejected at enqueue with the argument's name, never stored as something else.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID

import msgspec

from packhorse.core.context import find_context_parameter, hint_for_missing
from packhorse.core.errors import BadArguments, BadResult, PayloadTooLarge, did_you_mean

PAYLOAD_LIMIT = 1024 * 1024
"""The maximum size of a job's arguments or its result: bytes of JSON in UTF-8."""

DEPTH_LIMIT = 64
"""The maximum depth of nested lists and objects."""

Function = Callable[..., Any]


def to_json(value: Any) -> Any:
    """msgspec calls this for a value of a type that it does not know."""
    if isinstance(value, str):
        return str.__str__(value)  # a subclass may override __str__
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(type(value), "model_dump"):  # pydantic, which may not be installed
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    raise TypeError(f"{type(value).__name__} is not plain data")


encode = msgspec.json.Encoder(enc_hook=to_json).encode


class Signature:
    """The parameters of a task's function: binds a call to names, writes it as JSON, and reads it back by type hint.

    >>> def send_notice(user_id: int, email: str = "") -> None: ...
    >>> Signature.of(send_notice).encode((7,), {"email": "a@b.c"})
    '{"user_id":7,"email":"a@b.c"}'
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self.name = getattr(innermost(function), "__qualname__", repr(function)).rpartition("<locals>.")[2]
        self._parameters = _parameters_of(function, self.name)
        context = find_context_parameter(self.name, self._parameters, lambda hint: _resolve(hint, function))
        self._context = None if context is None else self._place_of(context)
        if context is not None:
            del self._parameters[context.name]
        self._only_by_position = self._of_kind(inspect.Parameter.POSITIONAL_ONLY)
        self._by_position = self._only_by_position + self._of_kind(inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._star = next(iter(self._of_kind(inspect.Parameter.VAR_POSITIONAL)), None)
        self._double_star = next(iter(self._of_kind(inspect.Parameter.VAR_KEYWORD)), None)
        self.names = tuple(name for name in self._parameters if name != self._double_star)
        self._by_keyword = frozenset(self.names) - {*self._only_by_position, self._star}
        self._required = frozenset(
            n for n in self.names if n != self._star and self._parameters[n].default is inspect.Parameter.empty
        )
        # With so many positional arguments, none that is required is missing; -1: others may be.
        self._enough = len(self._by_position) if self._required <= set(self._by_position) else -1
        self._reader: msgspec.json.Decoder[Any] | None = None
        self._extra_reader: msgspec.json.Decoder[Any] | None = None

    @staticmethod
    def of(function: Function) -> Signature:
        """The signature of a function, bound method, partial or other callable; the same object each time."""
        try:
            return _signature_of(function)
        except TypeError:  # a callable without a hash is not cached
            return Signature(function)

    @functools.cached_property
    def plain_defaults(self) -> dict[str, Any]:
        """The defaults that JSON can hold, by name."""
        defaults = {name: one.default for name, one in self._parameters.items() if one.default is not one.empty}
        return {name: value for name, value in defaults.items() if problem_of(value) is None}

    def described(self) -> Iterator[tuple[str, Any, bool, bool]]:
        """Each parameter: its name, its type, whether it is required, and whether it may be passed by position. The
        type is Any if it cannot be found."""
        for name in self.names:
            hint: Any = Any
            with suppress(BadArguments):
                hint = self._hint(self._parameters[name])
            if name == self._star:
                hint = types.GenericAlias(list, (hint,))
            yield name, hint, name in self._required, name in self._by_position

    @property
    def takes_any_name(self) -> bool:
        """Does the function have **keywords, so that any argument name fits?"""
        return self._double_star is not None

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The call as argument name to value; arguments that were not passed are left out, so their defaults apply
        later.

        Further positional arguments become a list under the name of `*args`; further keywords are merged in.
        """
        bound = dict(zip(self._by_position, args, strict=False))
        if len(args) > len(self._by_position):
            if self._star is None:
                count = f"{len(args)}, and it takes {len(bound)}"
                raise BadArguments(f"{self.name}() got too many arguments by position: {count}")
            bound[self._star] = list(args[len(self._by_position) :])
        if not (kwargs.keys() <= self._by_keyword and bound.keys().isdisjoint(kwargs)):
            self._check_keywords(kwargs, bound)
        bound.update(kwargs)
        if not self._required <= bound.keys():
            raise self._missing([name for name in self.names if name in self._required and name not in bound])
        return bound

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], limit: int = PAYLOAD_LIMIT) -> str:
        """The call as the text of one JSON object."""
        if len(args) == self._enough and not kwargs:
            text = _to_text(self._in_positions(*args), limit, self.name)
        elif args or not self._required <= kwargs.keys() <= self._by_keyword:
            text = _to_text(self.bind(args, kwargs), limit, self.name)
        else:
            text = _to_text(kwargs, limit, self.name)
        self._check(text)
        if self._text_hints and not _NEVER_BYTES.issuperset(map(type, (*args, *kwargs.values()))):
            self._refuse_bytes(self.bind(args, kwargs))
        return text

    @functools.cached_property
    def _text_hints(self) -> dict[str, Any]:
        """The type hints of the parameters that contain text; that of `**keywords` applies to all other names."""
        hints = {}
        for name, parameter in self._parameters.items():
            with suppress(BadArguments):
                hints[name] = self._hint(parameter)
        return {name: hint for name, hint in hints.items() if _takes_text(hint)}

    def _refuse_bytes(self, bound: Mapping[str, Any]) -> None:
        """Bytes become base64, which would pass as text, but another text than the one meant."""
        others = self._text_hints.get(self._double_star) if self._double_star else None
        for name, value in bound.items():
            hint = self._text_hints.get(name) if name in self._parameters and name != self._double_star else others
            if hint is None or type(value) in _NEVER_BYTES:
                continue
            if found := _bytes_for_text(value, types.GenericAlias(list, (hint,)) if name == self._star else hint):
                kind, path = found
                where = f", at {name}{path}," if path else ""
                raise BadArguments(
                    f"{self.name}(): the argument {name!r}{where} is {kind}, and must be text",
                    argument=name,
                    hint="decode it: value.decode(); or use bytes as its type hint, which is stored as base64",
                )

    @functools.cached_property
    def _in_positions(self) -> Callable[..., Any]:
        """Returns a function that combines one value for each position into what is encoded. A struct is built in a
        quarter of the time of a dict, but leaves out values that are `msgspec.UNSET`; all its fields are required, so
        the check notices a missing one."""
        if len(self._required) == self._enough:
            return msgspec.defstruct("Places", self._by_position, bases=(_Positions,), gc=False)
        return lambda *args: dict(zip(self._by_position, args, strict=True))

    def _check(self, text: str) -> None:
        """Read the arguments as the worker will, so that the caller gets the error and not the worker. Takes a third of
        a microsecond. A hint that cannot be read is left to the worker, which reports it at its start."""
        try:
            reader = self._reader or self.prepare()
        except BadArguments:
            return
        try:
            reader.decode(text)
            if self._extra_reader:
                dict(self._extras(text, self._extra_reader))
        except (ValueError, TypeError, RecursionError) as error:
            raise self._mismatch(text, error) from error

    def decode(self, text: str) -> dict[str, Any]:
        """The stored arguments, converted by type hint; raises BadArguments if they do not fit the function."""
        reader = self._reader or self.prepare()
        try:
            found = msgspec.structs.asdict(reader.decode(text))
            if self._extra_reader:
                found.update(self._extras(text, self._extra_reader))
        except (ValueError, TypeError, RecursionError) as error:  # msgspec's own errors are ValueErrors
            raise self._mismatch(text, error) from error
        if len(found) > len(self._required):
            return {name: value for name, value in found.items() if value is not msgspec.UNSET}
        return found

    def call_with(self, decoded: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The result of `decode` as positional and keyword arguments for `function(*args, **kwargs)`."""
        if not self._only_by_position and self._star is None:
            return (), decoded
        kwargs = dict(decoded)
        rest = kwargs.pop(self._star, ()) if self._star else ()
        names = self._by_position if rest else self._only_by_position
        args = [kwargs.pop(name) if name in kwargs else self._parameters[name].default for name in names]
        return (*args, *rest), kwargs

    def call_with_context(self, decoded: dict[str, Any], context: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """`call_with`, plus the running job if the function has a parameter for it."""
        args, kwargs = self.call_with(decoded)
        if self._context is None:
            return args, kwargs
        name, place, is_only_by_place = self._context
        if place is not None and (is_only_by_place or len(args) > len(self._only_by_position)):
            return (*args[:place], context, *args[place:]), kwargs
        return args, {**kwargs, name: context}

    @property
    def takes_context(self) -> bool:
        """Does the function have a parameter for the running job?"""
        return self._context is not None

    def _place_of(self, context: inspect.Parameter) -> tuple[str, int | None, bool]:
        """The parameter for the running job: its name, how many arguments precede it by position (None: keyword only),
        and whether it is positional only."""
        if context.kind is context.KEYWORD_ONLY:
            return context.name, None, False
        return context.name, list(self._parameters).index(context.name), context.kind is context.POSITIONAL_ONLY

    def prepare(self) -> msgspec.json.Decoder[Any]:
        """Prepare `decode`; raises BadArguments if a type hint cannot be found or cannot be read from JSON.

        `decode` does it when needed, because at registration the names in hints may not exist yet. A worker does it
        when it starts, to find an invalid hint before the first job.
        """
        hints = {name: self._hint(parameter) for name, parameter in self._parameters.items()}
        if self._double_star:
            self._extra_reader = msgspec.json.Decoder(hints.pop(self._double_star), dec_hook=_from_json)
        if self._star:
            hints[self._star] = types.GenericAlias(list, (hints[self._star],))
        fields = [(n, hint) if n in self._required else (n, hint, msgspec.UNSET) for n, hint in hints.items()]
        is_strict = not self.takes_any_name
        shape = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=is_strict, gc=False)
        self._reader = msgspec.json.Decoder(shape, dec_hook=_from_json)
        return self._reader

    @functools.cached_property
    def result_hint(self) -> Any:
        """The return type of the function, for `decode_result`; Any if it has none that can be read."""
        return self._returned()

    def may_hold_keys(self) -> bool:
        """May an argument or the result contain an object? True unless all hints exclude it. Not cached, because a hint
        may name something that its module defines later."""
        return not all(_is_plain(hint) for hint in [*(hint for _, hint, _, _ in self.described()), self._returned()])

    def _returned(self) -> Any:
        try:
            returned = _signature(self.function).return_annotation
            return Any if returned is inspect.Signature.empty else _readable(_resolve(returned, self.function))
        except (NameError, TypeError, ValueError, AttributeError, SyntaxError):
            return Any

    def _of_kind(self, kind: Any) -> tuple[str, ...]:
        return tuple(p.name for p in self._parameters.values() if p.kind is kind)

    def _hint(self, parameter: inspect.Parameter) -> Any:
        if parameter.annotation is parameter.empty:
            return Any
        why: Exception
        try:
            hint = _resolve(parameter.annotation, self.function)
            return _readable(typing.Optional[hint] if parameter.default is None else hint)  # noqa: UP045
        except (NameError, AttributeError, SyntaxError) as error:
            problem, why = "cannot be found", error
            advice = "import or define it at the top of its module, outside `if TYPE_CHECKING`"
        except TypeError as error:
            problem, why = "cannot be read from JSON", error
            advice = "use plain types, dataclasses or msgspec structs, or leave the hint out"
        what = f"{self.name}(): the type hint of the argument {parameter.name!r} {problem}"
        raise BadArguments(what, argument=parameter.name, why=str(why), hint=advice) from why

    def _extras(self, text: str, reader: msgspec.json.Decoder[Any]) -> Iterator[tuple[str, Any]]:
        for name, raw in _RAW_OBJECT.decode(text).items():
            if name not in self.names:
                try:
                    yield name, reader.decode(raw)
                except msgspec.ValidationError as error:
                    what, path = _split_message(error)
                    raise msgspec.ValidationError(f"{what} - at `$.{name}{path}`") from error

    def _check_keywords(self, kwargs: dict[str, Any], bound: dict[str, Any]) -> None:
        for name in kwargs:
            if self._context is not None and name == self._context[0]:
                raise BadArguments(f"{self.name}() gets {name!r} from its worker: it is the running job", argument=name)
            if name in self._only_by_position or name == self._star:
                raise BadArguments(f"{self.name}() takes {name!r} by position, not as a keyword", argument=name)
            if name in bound:
                raise BadArguments(f"{self.name}() got two values for the argument {name!r}", argument=name)
            if name not in self.names and not self.takes_any_name:
                raise self._unknown(name)

    def _unknown(self, name: str) -> BadArguments:
        rest = did_you_mean(name, self.names) or f"; it takes {', '.join(self.names) or 'none'}"
        return BadArguments(f"{self.name}() has no argument {name!r}{rest}", argument=name)

    def _missing(self, names: list[str]) -> BadArguments:
        what = "the argument" if len(names) == 1 else "the arguments"
        needed = f"{self.name}() needs {what} {' and '.join(map(repr, names))}"
        return BadArguments(needed, argument=names[0], hint=hint_for_missing(names))

    def _mismatch(self, text: str, error: Exception) -> BadArguments:
        what, path = _split_message(error)
        if not path and (field := re.fullmatch(r"object (missing|contains) .*`(.+)`", what)):
            return self._missing([field[2]]) if field[1] == "missing" else self._unknown(field[2])
        if not path:
            return BadArguments(f"the stored arguments of {self.name}() cannot be read", why=what)
        argument = re.split(r"[.\[]", path[1:])[0]
        where = f"argument {argument!r}" + (f" at {path[1:]}" if path[1:] != argument else "")
        came = None
        with suppress(ValueError, LookupError, RecursionError):
            came = f"it is {reprlib.repr(msgspec.json.decode(text)[argument])}"
        return BadArguments(f"{self.name}(): {where}: {what}", argument=argument, why=came)


@functools.lru_cache(maxsize=1024)
def _signature_of(function: Function) -> Signature:
    return Signature(function)


def encode_args(args: Mapping[str, Any], limit: int = PAYLOAD_LIMIT) -> str:
    """Arguments by name as the text of one JSON object, for a task whose function is unknown here."""
    for name in args:
        if not isinstance(name, str):
            raise BadArguments(f"the names of arguments must be text, not {name!r}", hint='e.g. {"user_id": 7}')
    return _to_text(dict(args), limit, "")


def encode_result(value: Any, limit: int = PAYLOAD_LIMIT) -> str:
    """The return value of a task, as JSON text."""
    return _to_text(value, limit, None)


def decode_result(text: str, type_hint: Any = Any) -> Any:
    """A stored result, converted to `type_hint`; raises BadResult if it does not fit."""
    try:
        return msgspec.json.decode(text, type=type_hint, dec_hook=_from_json)
    except (ValueError, TypeError, RecursionError) as error:
        what, path = _split_message(error)
        raise BadResult(f"the stored result{path and f' at {path}'} cannot be read: {what}") from error


def canonical_json(value: Any) -> bytes:
    """`value` as JSON with sorted object keys and set members: equal values give equal bytes."""
    return _CANONICAL.encode(value)


# --- Functions and their hints ---


def innermost(function: Any) -> Any:
    """The plain function inside partials, methods, decorators and callable objects, where the code is."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif inspect.isfunction(inspect.getattr_static(type(function), "__call__", None)):
            function = type(function).__call__
        else:
            return function


def _takes_text(hint: Any) -> bool:
    """Does this hint contain text? Classes with fields may; pydantic checks its own."""
    members = typing.get_args(hint)
    if typing.get_origin(hint) is dict:
        members = members[1:]  # nearly all keys are text, and hardly any are bytes
    if members and typing.get_origin(hint) is not typing.Literal:
        return any(_takes_text(member) for member in members)
    if hint is str:
        return True
    return isinstance(hint, type) and hint not in _TEXTLESS and not hasattr(hint, "model_validate_json")


def _bytes_for_text(value: Any, hint: Any) -> tuple[str, str] | None:
    """The type of the bytes in this value where its hint requires text, and the path to them; None if there are
    none."""
    try:
        plain = msgspec.to_builtins(value, builtin_types=_BYTES, str_keys=True, enc_hook=to_json)
        msgspec.convert(plain, hint, builtin_types=_BYTES, str_keys=True, dec_hook=_from_json)
    except msgspec.ValidationError as error:
        what, path = _split_message(error)
        found = re.fullmatch(r"expected (.+), got (bytes|bytearray|memoryview)", what)
        return (found[2], path) if found and "str" in found[1].split(" | ") else None
    except (ValueError, TypeError, RecursionError):  # it was read as JSON, so this is the only possible error
        return None
    return None


def _signature(function: Function) -> inspect.Signature:
    if sys.version_info >= (3, 14):  # hints are evaluated when read, and their names may not exist yet
        import annotationlib

        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)


def _parameters_of(function: Function, name: str) -> dict[str, inspect.Parameter]:
    try:
        return dict(_signature(function).parameters)
    except (ValueError, TypeError) as error:
        advice = "wrap it in a function of your own"
        raise BadArguments(f"{name} does not say which arguments it takes", why=str(error), hint=advice) from error


def _resolve(annotation: Any, function: Function) -> Any:
    """A hint as a type: names are looked up where the function was written."""
    home = innermost(function)

    def holder() -> None: ...

    holder.__annotations__ = {"it": annotation}
    generics = {parameter.__name__: parameter for parameter in getattr(home, "__type_params__", ())}
    return typing.get_type_hints(holder, getattr(home, "__globals__", {}), generics, include_extras=True)["it"]


def _readable(hint: Any) -> Any:
    """The hint as msgspec accepts it: a union whose members look alike in JSON becomes one that tries them in turn."""
    try:
        msgspec.json.Decoder(hint)
        return hint
    except TypeError:
        origin, members = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return _EitherType("Either", (), {"members": tuple(map(_readable, members))})
        if not isinstance(origin, type) or not members:
            raise
        return origin[tuple(member if member is ... else _readable(member) for member in members)]  # type: ignore[index]


def _is_plain(hint: Any) -> bool:
    """Do such values have no keys in JSON, at any level?"""
    if isinstance(hint, _EitherType):
        return all(map(_is_plain, hint.members))
    origin, members = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return True
    if origin is typing.Annotated:
        return _is_plain(members[0])
    if origin in (typing.Union, types.UnionType, list, set, frozenset, tuple):
        return all(member is ... or _is_plain(member) for member in members)
    if hint is None or hint is types.NoneType:
        return True
    plain = (str, bytes, int, float, PurePath)
    return isinstance(hint, type) and (issubclass(hint, plain) or hint.__module__ in ("datetime", "decimal", "uuid"))


class _EitherType(type):
    """A union such as `date | str` as a type of its own, because msgspec cannot distinguish its members."""

    members: tuple[Any, ...]

    def __instancecheck__(cls, value: Any) -> bool:
        return True  # msgspec calls this with the result of `convert`

    def convert(cls, value: Any) -> Any:
        """The member that is written exactly as it was read, else the first that fits."""
        fitting = []
        for member in sorted(cls.members, key=lambda m: (typing.get_origin(m) or m) in _GREEDY):
            try:
                found = msgspec.convert(value, member, dec_hook=_from_json, str_keys=True)
            except ValueError:
                continue
            if msgspec.to_builtins(found, enc_hook=to_json, str_keys=True) == value:
                return found
            fitting.append(found)
        if not fitting:
            names = " | ".join(getattr(member, "__name__", str(member)) for member in cls.members)
            raise ValueError(f"Expected `{names}`, got `{type(value).__name__}`")
        return fitting[0]


_GREEDY: tuple[Any, ...] = (str, dict, list, Any)  # they fit nearly everything, so they come last


# --- Values ---


_WRITTEN_AS: dict[type, type] = {str: str, int: int, float: float, PurePath: str}


def _from_json(kind: Any, value: Any) -> Any:
    """msgspec calls this for a hint of an unknown type, to convert and check the value."""
    if isinstance(kind, _EitherType):
        return kind.convert(value)
    if hasattr(kind, "model_validate_json"):
        try:
            return kind.model_validate_json(msgspec.json.encode(value))
        except ValueError as error:
            raise ValueError(_first_problem(error)) from error
    if isinstance(kind, type) and any(
        issubclass(kind, ours) and isinstance(value, plain) for ours, plain in _WRITTEN_AS.items()
    ):
        return kind(value)
    return value


def _first_problem(error: Any) -> str:
    first = error.errors(include_url=False)[0]  # pydantic's whole message is a page long
    return ": ".join([*map(str, first["loc"]), first["msg"]])


_CANONICAL = msgspec.json.Encoder(enc_hook=to_json, order="sorted")
_BYTES = (bytes, bytearray, memoryview)
_NEVER_BYTES = frozenset({str, int, float, bool, types.NoneType, datetime, date, Decimal, UUID})
_TEXTLESS = frozenset({*_BYTES, *_NEVER_BYTES, object, list, dict, tuple, set, frozenset}) - {str}
_RAW_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Positions(msgspec.Struct):
    """The values of a call, each at the position of its argument."""


def _by_name(value: Any) -> Any:
    return msgspec.structs.asdict(value) if isinstance(value, _Positions) else value


def _to_text(value: Any, limit: int, owner: str | None) -> str:
    """`value` as JSON; `owner` is the function whose arguments these are, "" if unknown, None for a result."""
    try:
        raw = encode(value)
    except Exception as error:  # the value's own code may raise anything
        raise json_error(_by_name(value), owner) from error
    if len(raw) > limit:
        if owner is None:
            raise PayloadTooLarge("the data of the result", len(raw), limit, setting="result_limit")
        raise PayloadTooLarge(f"the arguments{owner and f' of {owner}()'}", len(raw), limit)
    text = raw.decode()  # searching text is much faster than searching bytes
    if (len(raw) > 2 * DEPTH_LIMIT or "null" in text or "\\u0000" in text) and problem_in(raw, _by_name(value)):
        raise json_error(_by_name(value), owner)
    return text


def _split_message(error: Exception) -> tuple[str, str]:
    """msgspec's "Expected `int`, got `str` - at `$.user.age`" as "expected int, got str" and ".user.age"."""
    what, _, path = str(error).partition(" - at `$")
    if got := re.fullmatch("Expected `(.+)`, got `(.+)`", what):
        what = f"expected {got[1]}, got {got[2]}"
    return what[:1].lower() + what[1:], path.removesuffix("`")


def problem_of(value: Any) -> str | None:
    """The first problem in `json_error` that this value has, or None."""
    try:
        return problem_in(encode(value), value)
    except RecursionError:
        return "depth"
    except UnicodeEncodeError:
        return "surrogate"
    except Exception:  # noqa: BLE001 - the value's own code may raise anything
        return "type"


def problem_in(raw: bytes, value: Any) -> str | None:
    """Find what JSON would change. Each check of the text is cheap, and most calls end there."""
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
    """Is this JSON nested deeper than `DEPTH_LIMIT`?"""
    if raw.count(b"[") + raw.count(b"{") <= DEPTH_LIMIT:
        return False
    quoted = raw.replace(rb"\\", b"").replace(rb"\"", b"").translate(_ONE_KIND, _NOISE).replace(b'""', b"")
    brackets = re.sub(rb'"[^"]*"', b"", quoted)
    for _ in range(DEPTH_LIMIT):
        brackets = brackets.replace(b"[]", b"")  # removes the innermost level
        if not brackets:
            return False
    return True


def _came_back_equal(raw: bytes, value: Any) -> bool:
    """Much faster than searching for NaN, and sufficient for plain values."""
    try:
        return bool(msgspec.json.decode(raw) == value)
    except Exception:  # noqa: BLE001 - the value's own comparison may raise anything
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


def json_error(value: Any, owner: str | None) -> BadArguments | BadResult:
    """The error that names the innermost value which cannot become JSON, and why."""
    where, argument, problem = "the result", None, problem_of(value)
    if owner is not None:
        argument = next((name for name in value if problem_of({name: value[name]})), next(iter(value)))
        where, value, problem = f"argument {argument!r}", value[argument], problem_of({argument: value[argument]})
    value, path, is_circle = _descend(value, problem)
    what, hint = _describe(value, "circle" if is_circle else problem)
    if path and problem != "depth":
        where += f" at {argument or ''}{path}"
    if owner is None and (kind := _unstarted_kind(value)):
        return BadResult(
            f"the task returned {kind} instead of doing its work: the code in it has not run",
            hint="let the function, and what wraps it, await or exhaust it, and return a value",
        )
    if owner is None:
        kept = "the task has finished its work; only its return value cannot be stored"
        return BadResult(f"{where}: {what}", why=kept, hint=hint.replace("pass ", "return "))
    prefix = f"{owner}(): " if owner else ""
    return BadArguments(f"{prefix}{where}: {what}", argument=argument, hint=hint)


def _unstarted_kind(value: Any) -> str | None:
    """The kind of an object that does nothing when it is made (a coroutine, a generator); None for other values."""
    if inspect.iscoroutine(value):
        value.close()  # prevents Python's warning about an unawaited coroutine
        return "a coroutine"
    return "a generator" if inspect.isgenerator(value) or inspect.isasyncgen(value) else None


def _descend(value: Any, problem: str | None) -> tuple[Any, str, bool]:
    """The innermost value with this problem, the path to it, and whether the path is a cycle."""
    path, passed = "", {id(value)}
    for _ in range(DEPTH_LIMIT):
        step, child = next(((s, c) for s, c in _children(value) if problem_of(c) == problem), (None, None))
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
            if not name.startswith("_"):  # the caller built only the outer value
                yield f".{name}", getattr(value, name, None)


def _describe(value: Any, problem: str | None) -> tuple[str, str]:
    match problem:
        case "circle":
            return "it contains itself", "pass the ids of what belongs together"
        case "depth":
            return f"it is nested deeper than {DEPTH_LIMIT} levels", "store it elsewhere and pass a reference"
        case "surrogate":
            return "text with half a character (a lone surrogate) cannot become JSON", "pass bytes, or repair the text"
        case "nan":
            return f"{value!r} cannot become JSON, which has no NaN or Infinity", "pass None, or text"
        case "nul":
            return "the text has a NUL character ('\\0'), which no storage accepts", "remove it, or pass bytes"
    if isinstance(value, int):
        return "an integer of more than 4,300 digits cannot become JSON", "pass it as text, in hexadecimal"
    if isinstance(value, dict):
        key = next((key for key in value if problem_of({key: None})), None)
        return f"the key {key!r} cannot become JSON", "the keys of a dict must be text or numbers"
    return f"<{type(value).__name__} object> cannot become JSON", "pass its id, or make it a dataclass"
