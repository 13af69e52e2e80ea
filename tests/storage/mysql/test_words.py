"""The server's errors in our own words: what kind of trouble it is, and what to do about it."""

from __future__ import annotations

import pymysql
import pytest
from pymysql import err

from packhorse.errors import BadValue, PackhorseError, StorageError, StorageFull, StorageReadOnly, StorageUnavailable
from packhorse.storage.mysql.trouble import may_pass, refuse_old, translate


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (err.OperationalError(1021, "Disk full"), StorageFull),
        (err.InternalError(1114, "The table is full"), StorageFull),
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
        (OverflowError("too large"), BadValue),
    ],
    ids=lambda value: str(value.args[0]) if isinstance(value, Exception) else "",
)
def test_an_error_is_told_as_what_it_means(error: Exception, ours: type[PackhorseError]) -> None:
    told = translate(error, "mysql://ann@db/shop")

    assert type(told) is ours
    assert str(error.args[-1]).split()[0] in (told.why or "")


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
