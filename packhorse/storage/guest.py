"""A guest: somebody else's connection, in whose transaction jobs are enqueued.

Users hold a driver's own connection, or one wrapped by SQLAlchemy or Django. This finds the driver's inside, by what it
can do and not by its class, so that neither library is imported.
"""

from __future__ import annotations

from typing import Any

from packhorse.errors import BadValue


def sqlalchemy_connection(given: Any) -> Any | None:
    """SQLAlchemy's Connection behind what was given, in a transaction; None: it is not SQLAlchemy's."""
    given = getattr(given, "sync_session", given)
    given = getattr(given, "sync_connection", given)
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
        given.ensure_connection()
        return given.connection
    return given


def refused(given: object, wanted: str) -> BadValue:
    """This connection is of no use; `wanted` is what would be."""
    return BadValue(
        f"cannot enqueue by {type(given).__module__}.{type(given).__name__}",
        hint=f"pass {wanted}, a SQLAlchemy Connection or Session, or Django's connection, to the database of the jobs",
    )
