"""A guest: somebody else's connection, in whose transaction jobs are enqueued.

Users hold a driver's own connection, or one wrapped by SQLAlchemy or Django. This finds the driver's inside, by what it
can do and not by its class, so that neither library is imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from packhorse.core.errors import BadValue, StorageUnavailable


def sqlalchemy_connection(given: Any) -> Any | None:
    """SQLAlchemy's Connection behind what was given, in a transaction; None: it is not SQLAlchemy's."""
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
    """The driver's own connection behind what was given."""
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
    """Says in our own words what SQLAlchemy would say of a connection that cannot be used."""
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
    """Whatever is done by this connection has to be awaited."""
    return BadValue(
        f"cannot enqueue by {_name(given)}, which has to be awaited",
        hint="await it.run_sync(lambda own: task.using(connection=own).enqueue(…))",
    )


def closed(given: object) -> BadValue:
    """Nothing can be done by this connection any more."""
    return BadValue(f"this {_name(given)} is closed", hint="pass one that is open, in the job's own transaction")


def lost(given: object, error: BaseException) -> StorageUnavailable:
    """The server has gone away, and the caller's transaction with it."""
    return StorageUnavailable(
        f"this {_name(given)} has lost its server",
        why=" ".join(str(error).split()),
        hint="make its transaction again by a new connection",
    )


def failed(given: object) -> BadValue:
    """Something has failed in this transaction: PostgreSQL does nothing more in it, and Django does not commit it."""
    return BadValue(
        f"the transaction of this {_name(given)} has failed already",
        hint="roll it back, to the savepoint before or all",
    )


def elsewhere(there: str, here: str) -> BadValue:
    """This connection leads to another database: a job in there would be lost."""
    return BadValue(
        f"this connection is to {there}; the jobs are in {here}", hint="use a connection to the database of the jobs"
    )


def refused(given: object, wanted: str) -> BadValue:
    """This connection is of no use; `wanted` is what would be."""
    return BadValue(
        f"cannot enqueue by {_name(given)}",
        hint=f"pass {wanted}, a SQLAlchemy Connection or Session, or Django's connection, to the database of the jobs",
    )


def _name(given: object) -> str:
    return f"{type(given).__module__}.{type(given).__name__}"
