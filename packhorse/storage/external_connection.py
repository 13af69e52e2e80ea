"""The caller's own database connection, in whose transaction jobs are enqueued."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from packhorse.core.errors import BadValue, StorageUnavailable


def sqlalchemy_connection(given: Any) -> Any | None:
    """The SQLAlchemy Connection of what was given, in a transaction; None: it is not from SQLAlchemy."""
    if callable(getattr(given, "run_sync", None)):
        raise asynchronous(given)
    if hasattr(given, "get_bind") and callable(getattr(given, "connection", None)):
        given = given.connection()  # a Session
    if not hasattr(given, "exec_driver_sql"):
        return None
    if not given.in_transaction():
        given.begin()  # its commit would else have nothing to do
    return given


def driver_connection(given: Any) -> Any:
    """The driver's connection inside of what was given."""
    wrapped = sqlalchemy_connection(given)
    if wrapped is not None:
        return wrapped.connection.driver_connection
    if callable(getattr(given, "ensure_connection", None)):  # Django's
        if getattr(given, "needs_rollback", False):
            raise failed(given)  # it will not commit, whatever the server says
        given.ensure_connection()
        return given.connection
    return given


@contextmanager
def telling(given: object) -> Iterator[None]:
    """Translate the errors of SQLAlchemy about connections that cannot be used."""
    try:
        yield
    except Exception as error:
        names = {type(error).__name__, type(getattr(error, "orig", None)).__name__}
        if "ResourceClosedError" in names:
            raise closed(given) from error
        if "MissingGreenlet" in names:
            raise asynchronous(given) from error
        if "InFailedSqlTransaction" in names:
            raise failed(given) from error
        raise


def asynchronous(given: object) -> BadValue:
    """This connection is asynchronous."""
    return BadValue(
        f"cannot enqueue by {_name(given)}, which has to be awaited",
        hint="await it.run_sync(lambda own: task.using(connection=own).enqueue(…))",
    )


def closed(given: object) -> BadValue:
    """This connection is closed."""
    return BadValue(f"this {_name(given)} is closed", hint="pass one that is open, in the job's own transaction")


def lost(given: object, error: BaseException) -> StorageUnavailable:
    """The server is gone, and the caller's transaction with it."""
    return StorageUnavailable(
        f"this {_name(given)} has lost its server",
        why=" ".join(str(error).split()),
        hint="make its transaction again by a new connection",
    )


def failed(given: object) -> BadValue:
    """A statement has failed in this transaction: PostgreSQL accepts no other one, and Django does not commit."""
    return BadValue(
        f"the transaction of this {_name(given)} has failed already",
        hint="roll it back, to the savepoint before or all",
    )


def elsewhere(there: str, here: str) -> BadValue:
    """This connection is to another database: a job would be lost there."""
    return BadValue(
        f"this connection is to {there}; the jobs are in {here}", hint="use a connection to the database of the jobs"
    )


def refused(given: object, wanted: str) -> BadValue:
    """This connection cannot be used; `wanted` is what can."""
    return BadValue(
        f"cannot enqueue by {_name(given)}",
        hint=f"pass {wanted}, a SQLAlchemy Connection or Session, or Django's connection, to the database of the jobs",
    )


def _name(given: object) -> str:
    return f"{type(given).__module__}.{type(given).__name__}"
