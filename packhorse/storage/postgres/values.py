"""Values as this storage means them: text, whole numbers and lists become what psycopg makes of them by itself,
whatever the program around has told it about its own. Used by our connections, and by cursors on those of callers."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.postgres import register_default_adapters, types

ADAPTERS = AdaptersMap(types=types)
"""Untouched by what somebody registers in `psycopg.adapters`."""
register_default_adapters(ADAPTERS)


def can_be_stored(text: str) -> bool:
    """May this text be in a table? One with a NUL is in none, and PostgreSQL refuses even to look for it."""
    return "\0" not in text


class PlainCursor(psycopg.RawCursor[tuple[Any, ...]]):
    """A cursor with `$1` marks and tuples for rows on anybody's connection, deaf to what that one was taught."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(connection, row_factory=psycopg.rows.tuple_row)

    @property
    def adapters(self) -> AdaptersMap:
        return ADAPTERS
