"""An INSERT of any number of rows.

The driver gives the interpreter's lock away for each row that it is handed, and has to wait for it while jobs run. So
many rows go in with one statement, as JSON.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from packhorse.storage.sql.rows import Row, to_json

_MANY = 8
"""So many rows are worth the reading of JSON."""


class Insert:
    """Puts rows into these columns of a table; `conflict` says what becomes of one that is there."""

    def __init__(self, table: str, columns: Sequence[str], conflict: str = "") -> None:
        into = f"INSERT INTO {table} ({', '.join(columns)})"
        values = ", ".join(f"value ->> {number}" for number in range(len(columns)))
        self._each = f"{into} VALUES ({', '.join('?' * len(columns))}) {conflict}"
        self._all = f"{into} SELECT {values} FROM json_each(?) WHERE true {conflict}"

    def put(self, connection: sqlite3.Connection | sqlite3.Cursor, rows: Sequence[Row]) -> None:
        if len(rows) >= _MANY:
            connection.execute(self._all, (to_json(rows),))
        elif rows:
            connection.executemany(self._each, rows)
