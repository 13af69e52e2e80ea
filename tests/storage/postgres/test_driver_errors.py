"""The server's errors in our own words: what kind of trouble it is, and what to do about it."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from packhorse.core.errors import (
    BadValue,
    PackhorseError,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
)
from packhorse.storage.postgres.driver_errors import may_pass, translate

ADDRESS = "postgresql://ann:secret@db/shop"


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (errors.DiskFull("could not extend file"), StorageFull),
        (errors.OutOfMemory("out of memory"), StorageFull),
        (errors.ReadOnlySqlTransaction("cannot execute INSERT"), StorageReadOnly),
        (errors.InsufficientPrivilege("permission denied for schema"), StorageReadOnly),
        (errors.UndefinedTable("no such relation"), StorageUnavailable),
        (errors.QueryCanceled("canceling statement due to statement timeout"), StorageUnavailable),
        (errors.LockNotAvailable("canceling statement due to lock timeout"), StorageUnavailable),
        (errors.NotNullViolation("null value in column"), StorageError),
        (errors.NumericValueOutOfRange("bigint out of range"), BadValue),
        (errors.AdminShutdown("terminating connection"), StorageUnavailable),
        (psycopg.OperationalError("server closed the connection unexpectedly"), StorageUnavailable),
        (OverflowError("too large"), BadValue),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_is_told_as_what_it_means(error: Exception, ours: type[PackhorseError]) -> None:
    told = translate(error, ADDRESS)

    assert type(told) is ours
    assert str(error).split()[0] in (told.why or "")
    assert "secret" not in str(told)


@pytest.mark.parametrize(
    ("words", "is_worth_waiting"),
    [
        ('FATAL:  password authentication failed for user "ann"', False),
        ('FATAL:  database "shop" does not exist', False),
        ("FATAL:  sorry, too many clients already", True),
        ("connection refused", True),
    ],
)
def test_only_a_server_that_is_away_is_worth_waiting_for(words: str, is_worth_waiting: bool) -> None:
    told = translate(psycopg.OperationalError(words), ADDRESS)

    assert isinstance(told, StorageUnavailable)
    assert told.may_pass is is_worth_waiting


def test_a_full_server_may_have_room_in_a_moment() -> None:
    assert may_pass(psycopg.OperationalError("FATAL:  sorry, too many clients already"))
    assert may_pass(psycopg.OperationalError("FATAL:  the database system is starting up"))
    assert not may_pass(psycopg.OperationalError("password authentication failed"))


def test_who_may_not_make_the_schema_is_told_how_somebody_else_can() -> None:
    told = translate(errors.InsufficientPrivilege("permission denied for database shop"), ADDRESS)

    assert "packhorse migrate --sql" in (told.hint or "")
