"""A value in the arguments of a job: `args.order.id:7`. Every storage matches it by the same rules.

Text matches exactly. A number matches if its value is the same; one of more than fifteen digits, or beyond a double, if
it is written the same. `true`, `false` and `null` match themselves. So 42 is found as 42 and as "42". In a list any
member matches. Very long arguments are not searched."""

from __future__ import annotations

import re
from collections.abc import Iterable
from sys import float_info

import msgspec

from packhorse.storage.records import Argument

LONGEST = 65_536
"""How many bytes of arguments are searched."""
_EXACT = 15  # digits that a double holds exactly
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_SOME = re.compile(r"[1-9]")
_PLAIN = re.compile(r"[A-Za-z0-9_ .,:;@=-]+")  # characters that JSON never escapes

_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_text = msgspec.json.Decoder(str).decode


def arguments_match(args: str, wanted: Iterable[Argument]) -> bool:
    """Return whether these arguments, as JSON, have all these values."""
    packed = b""
    for one in wanted:
        try:
            packed = packed or args.encode().strip()
            if len(packed) > LONGEST or not _is_there(packed, one.path, one.value):
                return False
        except (msgspec.MsgspecError, ValueError, RecursionError):  # not JSON, or nested too deeply
            return False
    return True


def _is_there(packed: bytes, path: tuple[str, ...], value: str) -> bool:
    if packed[:1] == b"[":
        return any(_is_there(bytes(each).strip(), path, value) for each in _items(packed))
    if not path:
        return _is_same(packed, value)
    if packed[:1] != b"{":
        return False
    found = _members(packed).get(path[0])
    return found is not None and _is_there(bytes(found).strip(), path[1:], value)


def _is_same(packed: bytes, value: str) -> bool:
    if packed[:1] == b'"':
        return _text(packed) == value
    if packed[:1] == b"{":
        return False
    number = number_of(value)
    return packed == value.encode() or (number is not None and number_of(packed.decode()) == number)


def number_of(value: str) -> float | None:
    """The number that the value stands for, if a double holds it exactly."""
    if len(value) > _EXACT or not _NUMBER.fullmatch(value):
        return None
    number = float(value)
    is_zero = not _SOME.search(re.split("[eE]", value)[0])
    return number if is_zero or float_info.min <= abs(number) <= float_info.max else None


def is_long_number(value: str) -> bool:
    """Return whether it is a number that must be compared as it is written."""
    return len(value) > _EXACT and _NUMBER.fullmatch(value) is not None


def traces_of(wanted: Iterable[Argument]) -> list[str]:
    """Text that must occur in arguments that match, if it is plain: a fast first filter."""
    found = [f'"{key}"' for one in wanted for key in one.path if _PLAIN.fullmatch(key)]
    found += [one.value for one in wanted if number_of(one.value) is None and _PLAIN.fullmatch(one.value)]
    return found
