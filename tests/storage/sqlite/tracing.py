"""What SQLite is told to do: every statement of every connection, just before it runs."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

Told = Callable[[str], object]


@contextlib.contextmanager
def traced(told: Told) -> Iterator[None]:
    """Hear every statement, with its values filled in, of the connections that are opened in this block."""
    connect = sqlite3.connect

    def connect_traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_trace_callback(told)
        return connection

    sqlite3.connect = connect_traced  # type: ignore[assignment]
    try:
        yield
    finally:
        sqlite3.connect = connect
