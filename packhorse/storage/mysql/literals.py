"""Values into statements. The only place where the storage's SQL and the values of a call meet.

A statement marks its values: `$1` is one value, `$1*` a JSON list as the inside of `IN (…)`, `$1()` rows as they stand
behind VALUES.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from pymysql.converters import escape_string

from packhorse.storage.sql.rows import from_json

_MARK = re.compile(r"\$(\d+)(\*|\(\))?")


class RawSQL(str):
    """A value that is SQL itself, and comes from us."""

    __slots__ = ()


@lru_cache(maxsize=2048)
def _parts(sql: str) -> tuple[tuple[str, ...], tuple[tuple[int, str], ...]]:
    """The texts of a statement, and the marks between them: (place of the value, kind)."""
    pieces = _MARK.split(sql)
    return tuple(pieces[::3]), tuple(
        (int(number) - 1, kind or "") for number, kind in zip(pieces[1::3], pieces[2::3], strict=True)
    )


def literal(value: Any) -> str:
    """A value as SQL writes it. Holds for sessions in which a backslash escapes, as in ours."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return value if type(value) is RawSQL else f"'{escape_string(value)}'"
    return str(int(value))


def portable_literal(value: Any) -> str:
    """The same for a caller's session with any mode and character set: text as its bytes."""
    if isinstance(value, str) and type(value) is not RawSQL:
        return f"_utf8mb4 x'{value.encode().hex()}'"
    return literal(value)


def rendered(sql: str, values: Sequence[Any], say: Callable[[Any], str] = literal) -> str:
    """The statement with its values in it."""
    texts, marks = _parts(sql)
    if not marks:
        return sql
    said = [texts[0]]
    for text, (place, kind) in zip(texts[1:], marks, strict=True):
        value = values[place]
        if kind == "":
            said.append(say(value))
        elif kind == "*":
            said.append(",".join([say(one) for one in from_json(value)]) or "NULL")  # IN (NULL) fits nothing
        else:
            said.append(",".join([f"({','.join([say(one) for one in row])})" for row in value]))
        said.append(text)
    return "".join(said)
