"""Commits: having something done when somebody's transaction commits, and not at all if it is rolled back.

For jobs that are in another storage than the caller's data. Between the commit and the enqueueing the process may die,
and the jobs with it; who cannot bear that keeps the jobs in the database of the data (`task.using(connection=…)`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from packhorse.errors import BadValue


def when_committed(transaction: Any, action: Callable[[], object]) -> None:
    """Do `action` when this transaction commits: that of a SQLAlchemy Session, or of a Django connection. Outside of a
    transaction Django does it at once."""
    session = getattr(transaction, "sync_session", transaction)
    if callable(getattr(session, "get_bind", None)):
        _when_session_commits(session, action)
    elif callable(getattr(transaction, "on_commit", None)):  # Django's
        transaction.on_commit(action)
    else:
        raise BadValue(
            f"{type(transaction).__module__}.{type(transaction).__name__} does not tell when it commits",
            hint="pass a SQLAlchemy Session or Django's connection; with another one, enqueue after your commit",
        )


def _when_session_commits(session: Any, action: Callable[[], object]) -> None:
    event = importlib.import_module("sqlalchemy.event")  # there, since a Session of it is

    is_over = False

    def committed(_: Any) -> None:
        nonlocal is_over
        if not is_over:
            is_over = True
            action()

    def rolled_back(_: Any) -> None:
        nonlocal is_over
        is_over = True

    if not session.in_transaction():
        session.begin()  # a commit would else have nothing to do, and tell nobody
    event.listen(session, "after_commit", committed, once=True)
    event.listen(session, "after_rollback", rolled_back, once=True)
