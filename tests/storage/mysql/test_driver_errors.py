"""The server's errors in our own words: what kind of trouble it is, and what to do about it."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest
from pymysql import err
from pymysql.constants import CLIENT

from packhorse.core.errors import (
    BadValue,
    PackhorseError,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
)
from packhorse.storage.mysql import MySQL
from packhorse.storage.mysql.database import Database
from packhorse.storage.mysql.driver_errors import may_pass, refuse_old, refuse_others, translate
from tests.children import PATIENCE


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (err.OperationalError(1021, "Disk full"), StorageFull),
        (err.InternalError(1114, "The table is full"), StorageFull),
        (err.InternalError(3, "Error writing file '/tmp/MY1' (OS errno 28 - No space left on device)"), StorageFull),
        (
            err.InternalError(1026, "Error writing file './shop/job' (errno: 28 \"No space left on device\")"),
            StorageFull,
        ),
        (err.OperationalError(1030, 'Got error 122 "Disk quota exceeded" from storage engine InnoDB'), StorageFull),
        (err.InternalError(1005, "Can't create table 'job' (errno: 135 - No more room in record file)"), StorageFull),
        (err.OperationalError(1030, "Got error 168 - 'Unknown error' from storage engine"), StorageUnavailable),
        (
            err.InternalError(3, "Error writing file '/tmp/MY28' (Errcode: 5 \"Input/output error\")"),
            StorageUnavailable,
        ),
        (err.OperationalError(1290, "running with the --read-only option"), StorageReadOnly),
        (err.OperationalError(1142, "INSERT command denied"), StorageReadOnly),
        (err.ProgrammingError(1146, "Table doesn't exist"), StorageUnavailable),
        (err.OperationalError(1049, "Unknown database 'shop'"), StorageUnavailable),
        (err.OperationalError(1045, "Access denied for user"), StorageUnavailable),
        (
            err.OperationalError(1969, "Query execution was interrupted (max_statement_time exceeded)"),
            StorageUnavailable,
        ),
        (err.OperationalError(1205, "Lock wait timeout exceeded"), StorageUnavailable),
        (err.IntegrityError(1048, "Column 'args' cannot be null"), StorageError),
        (err.DataError(1406, "Data too long for column"), BadValue),
        (err.DataError(1264, "Out of range value"), BadValue),
        (err.InternalError(1153, "Got a packet bigger than 'max_allowed_packet' bytes"), BadValue),
        (err.OperationalError(1665, "Cannot execute statement: impossible to write to binary log"), StorageUnavailable),
        (err.OperationalError(2013, "Lost connection"), StorageUnavailable),
        (err.InterfaceError(0, "Already closed"), StorageUnavailable),
        (OverflowError("too large"), BadValue),
    ],
    ids=lambda value: str(value.args[0]) if isinstance(value, Exception) else "",
)
def test_an_error_is_told_as_what_it_means(error: Exception, ours: type[PackhorseError]) -> None:
    told = translate(error, "mysql://ann@db/shop")

    assert type(told) is ours
    assert str(error.args[-1]).split()[0] in (told.why or "")


@pytest.mark.parametrize(("code", "is_worth_waiting"), [(1045, False), (1049, False), (1142, False), (2003, True)])
def test_only_a_server_that_is_away_is_worth_waiting_for(code: int, is_worth_waiting: bool) -> None:
    told = translate(pymysql.OperationalError(code, "refused"), "mysql://ann@db/shop")

    assert isinstance(told, StorageUnavailable)
    assert told.may_pass is is_worth_waiting


def test_a_full_server_may_have_room_in_a_moment() -> None:
    assert may_pass(pymysql.OperationalError(1040, "Too many connections"))
    assert not may_pass(pymysql.OperationalError(1045, "Access denied"))


@pytest.mark.parametrize(
    "version", ["8.0.17", "8.4.3", "9.1.0-commercial", "10.6.0-MariaDB", "5.5.5-10.11.18-MariaDB-log"]
)
def test_a_server_that_is_new_enough_is_taken(version: str) -> None:
    refuse_old(version)


@pytest.mark.parametrize("version", ["5.7.44-log", "8.0.16", "10.5.29-MariaDB", "5.5.5-10.3.39-MariaDB"])
def test_a_server_that_is_too_old_is_refused(version: str) -> None:
    with pytest.raises(StorageUnavailable, match="or newer"):
        refuse_old(version)


@pytest.mark.parametrize(
    ("version", "comment", "name"),
    [
        ("8.0.11-TiDB-v8.1.0", "TiDB Server (Apache License 2.0) Community Edition, MySQL 8.0 compatible", "TiDB"),
        ("8.0.35", "TiDB Server (Apache License 2.0) Community Edition, MySQL 8.0 compatible", "TiDB"),
        ("8.0.30-Vitess", "Version: 19.0.0 (Git revision …)", "Vitess"),
    ],
)
def test_a_server_that_only_speaks_as_mysql_does_is_refused_by_name(version: str, comment: str, name: str) -> None:
    with pytest.raises(StorageError, match=f"the server is {name}, which is not supported") as caught:
        refuse_others(version, comment)

    assert not isinstance(caught.value, StorageUnavailable), "it is not waited for"


@pytest.mark.parametrize(
    ("version", "comment"),
    [
        ("8.4.3", "MySQL Community Server - GPL"),
        ("10.11.6-MariaDB", "mariadb.org binary"),
        ("8.0.36-28", "Percona Server"),
    ],
)
def test_one_that_is_mysql_is_not(version: str, comment: str) -> None:
    refuse_others(version, comment)


def test_it_is_refused_when_it_is_first_connected_to() -> None:
    driver = SimpleNamespace(get_server_info=lambda: "8.0.35")
    connection: Any = SimpleNamespace(driver=driver, rows=lambda sql: [("8.0.35", "TiDB Server (Apache License 2.0)")])

    with pytest.raises(StorageError, match="TiDB"):
        Database._prepare_first(Database.__new__(Database), connection)


class OfMySQL(threading.Thread):
    """As much of a MySQL server as is heard before it lets anybody in: without TLS, and asking for the password in the
    way that is usual there."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def run(self) -> None:
        with self._listener, self._listener.accept()[0] as client:
            plugin = b"caching_sha2_password\0"
            able = (CLIENT.PROTOCOL_41 | CLIENT.SECURE_CONNECTION | CLIENT.PLUGIN_AUTH).to_bytes(4, "little")
            greeting = (
                b"\n8.0.40\0" + bytes(4) + b"12345678\0" + able[:2] + b"\xff\2\0" + able[2:] + b"\x15" + bytes(10)
            )
            self._say(client, 0, greeting + b"901234567890\0" + plugin)
            client.recv(4_096)
            self._say(client, 2, b"\1\4")  # the password itself, please
            client.recv(4_096)
            self._say(client, 4, b"\1a public key")
            client.recv(4_096)

    @staticmethod
    def _say(client: socket.socket, number: int, said: bytes) -> None:
        client.sendall(len(said).to_bytes(3, "little") + bytes([number]) + said)


def test_a_package_that_is_missing_for_logging_in_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymysql._auth._have_cryptography", False)
    server = OfMySQL()
    server.start()
    storage = MySQL.from_url(f"mysql://ann:secret@127.0.0.1:{server.port}/shop?ssl_mode=disabled")

    with pytest.raises(StorageUnavailable, match="cannot log in") as told:
        storage.tallies()

    assert told.value.hint == "pip install cryptography, or have TLS: ?ssl_mode=required"
    assert "secret" not in str(told.value)
    server.join(PATIENCE)


def test_who_may_not_make_the_tables_is_told_how_somebody_else_can() -> None:
    words = "CREATE command denied to user 'ann'@'localhost' for table `shop`.`packhorse_meta`"
    told = translate(pymysql.OperationalError(1142, words), "mysql://ann@db/shop")

    assert "packhorse migrate --sql" in (told.hint or "")
