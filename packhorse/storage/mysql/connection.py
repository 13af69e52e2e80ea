"""One connection to the server, as the storage uses it: statements with `$1` marks, several of them in one trip."""

from __future__ import annotations

import select
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pymysql

from packhorse.core.errors import PackhorseError
from packhorse.storage.mysql.driver_errors import READ_ONLY, TOO_LONG, code_of
from packhorse.storage.mysql.literals import rendered
from packhorse.storage.sql.server import LostRaceError
from packhorse.storage.sql.statements import Dialect

_LONGEST_SCRIPT = 1_000_000
"""Bytes that are sent in one trip, if the server takes so many."""


class UnexpectedRowCountError(Exception):
    """A statement has changed another number of rows than expected."""


class Result:
    """The result of a statement, already fetched."""

    __slots__ = ("rowcount", "rows")

    def __init__(self, rows: Sequence[Any], rowcount: int) -> None:
        self.rows = rows
        self.rowcount = rowcount

    def fetchone(self) -> Any:
        return self.rows[0] if self.rows else None

    def fetchall(self) -> list[Any]:
        return list(self.rows)


class MySQLConnection:
    """A connection. Used by one thread at a time. `most` is how many bytes the server accepts in one packet: its
    `max_allowed_packet`."""

    def __init__(self, driver: Any, sql: Mapping[str, str], dialect: Dialect, most: int) -> None:
        self.driver = driver
        self.sql = sql
        self.dialect = dialect
        self._most = most
        self._cursor = driver.cursor()

    def render(self, sql: str, values: Sequence[Any]) -> str:
        """A statement with its values in it."""
        return rendered(sql, values)

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Result:
        return self.script([self.render(sql, values)])[0]

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        return self.execute(sql, values).fetchall()

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> list[Result]:
        return self.script([self.render(sql, row) for row in rows])

    def script(self, statements: Sequence[str]) -> list[Result]:
        """Send rendered statements, in as few trips as their length allows. Nothing runs after one that fails."""
        answers: list[Result] = []
        batch: list[bytes] = []
        length, longest = 0, min(_LONGEST_SCRIPT, self._most)
        for statement in statements:
            said = statement.encode()  # here: the driver would send lone surrogates as bytes
            if batch and length + len(said) >= longest:
                answers += self._send(batch)
                batch, length = [], 0
            batch.append(said)
            length += len(said) + 1
        return answers + self._send(batch) if batch else answers

    def _send(self, statements: Sequence[bytes]) -> list[Result]:
        said = b";".join(statements)
        if len(said) >= self._most:
            # Checked here: the server hangs up in the middle of a statement that is much too long, which looks like an
            # outage, and the statement would be sent again.
            raise pymysql.OperationalError(
                TOO_LONG, f"{len(said):,} bytes; the server accepts {self._most:,} in one packet"
            )
        self._cursor.execute(said)
        answers = [Result(self._cursor.fetchall(), self._cursor.rowcount)]
        while self._cursor.nextset():
            answers.append(Result(self._cursor.fetchall(), self._cursor.rowcount))
        return answers

    def undo(self, savepoint: str) -> None:
        """Roll back to the savepoint, unless it is gone with the whole transaction, or with the connection."""
        with suppress(pymysql.Error):
            self.script([f"ROLLBACK TO SAVEPOINT {savepoint}"])

    def is_fit_after(self, error: BaseException | None) -> bool:
        if error is None:
            return True
        if code_of(error) in READ_ONLY:
            return False  # perhaps the server is no longer the primary; a new connection may reach the one that is
        # Any other error may have come in the middle of a result.
        is_known = isinstance(
            error, PackhorseError | pymysql.Error | UnexpectedRowCountError | LostRaceError | UnicodeEncodeError
        )
        return is_known and self._roll_back()

    def _roll_back(self) -> bool:
        """Roll back. False: the connection is unusable."""
        try:
            while self._cursor.nextset():
                pass
            self._cursor.execute("ROLLBACK")
        except (pymysql.Error, OSError):
            return False
        return bool(self.driver.open)

    @property
    def is_alive(self) -> bool:
        """Whether the server is still there. On an idle connection it sends a message before it hangs up, or
        nothing."""
        if not self.driver.open:
            return False
        poll = select.poll()
        poll.register(self.driver._sock.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
        return not poll.poll(0)

    def close(self) -> None:
        with suppress(pymysql.Error, OSError):
            self.driver.close()
