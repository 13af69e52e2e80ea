"""Run an action when the caller's transaction commits, and not at all if it is rolled back.

For jobs in another storage than the caller's data. The process may die between the commit and the enqueue, and the jobs
with it; if that matters, keep the jobs in the database of the data (`task.using(connection=…)`)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from packhorse.core.errors import BadValue


def when_committed(transaction: Any, action: Callable[[], object]) -> None:
    """Run `action` when this transaction commits: that of a SQLAlchemy Session, or of a Django connection. Outside of a
    transaction Django runs it immediately."""
    if callable(transaction) and hasattr(transaction, "registry"):
        transaction = transaction()  # SQLAlchemy's scoped_session: the one of this thread
    session = getattr(transaction, "sync_session", transaction)
    if callable(getattr(session, "get_bind", None)):
        _when_session_commits(session, action)
    elif callable(getattr(transaction, "on_commit", None)):  # Django's
        transaction.on_commit(action)
    else:
        raise BadValue(
            f"{type(transaction).__module__}.{type(transaction).__name__} cannot report its commit",
            hint="pass a SQLAlchemy Session or Django's connection; with another one, enqueue after your commit",
        )


_ASKED = "packhorse_when_committed"
"""In a Session: the actions, each with the savepoints it depends on."""
_DUE = "packhorse_committed"
"""In a Session: the actions to run as soon as the committed transaction has ended."""


def _when_session_commits(session: Any, action: Callable[[], object]) -> None:
    if not session.in_transaction():
        session.begin()  # otherwise a commit does nothing and sends no event
    if _ASKED not in session.info:
        event = importlib.import_module("sqlalchemy.event")  # installed, since there is a Session
        session.info[_ASKED], session.info[_DUE] = [], []
        event.listen(session, "after_commit", _committed)
        event.listen(session, "after_soft_rollback", _rolled_back)
        event.listen(session, "after_transaction_end", _ended)
    session.info[_ASKED].append((_with_those_around(session.get_nested_transaction()), action))


def _committed(session: Any) -> None:
    """Runs nothing yet: an error would leave the Session unusable between two transactions."""
    if not session.in_nested_transaction():  # otherwise only a savepoint was released
        session.info[_DUE], session.info[_ASKED] = session.info[_ASKED], []


def _rolled_back(session: Any, ended: Any) -> None:
    """A savepoint that is rolled back drops the actions that were added inside of it."""
    session.info[_ASKED] = [one for one in session.info[_ASKED] if ended not in one[0]]


def _ended(session: Any, ended: Any) -> None:
    """After a commit the actions are due; after a rollback or a close there are none."""
    if ended.parent is not None:
        return
    due, session.info[_DUE], session.info[_ASKED] = session.info[_DUE], [], []
    with ExitStack() as all_of_them:  # runs each, even if another fails
        for _, action in reversed(due):
            all_of_them.callback(action)


def _with_those_around(savepoint: Any) -> list[Any]:
    """A savepoint, and those around it."""
    within = []
    while savepoint is not None and savepoint.nested:
        within.append(savepoint)
        savepoint = savepoint.parent
    return within
