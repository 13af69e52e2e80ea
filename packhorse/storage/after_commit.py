"""Commits: having something done when somebody's transaction commits, and not at all if it is rolled back.

For jobs that are in another storage than the caller's data. Between the commit and the enqueueing the process may die,
and the jobs with it; who cannot bear that keeps the jobs in the database of the data (`task.using(connection=…)`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from packhorse.core.errors import BadValue


def when_committed(transaction: Any, action: Callable[[], object]) -> None:
    """Do `action` when this transaction commits: that of a SQLAlchemy Session, or of a Django connection. Outside of a
    transaction Django does it at once."""
    if callable(transaction) and hasattr(transaction, "registry"):
        transaction = transaction()  # SQLAlchemy's scoped_session, which stands for the one of this thread
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


_ASKED = "packhorse_when_committed"
"""Where a Session keeps what is to be done: each action with the transactions that it hangs on."""
_DUE = "packhorse_committed"
"""Where it keeps what is to be done as soon as the transaction, which has committed, has ended."""


def _when_session_commits(session: Any, action: Callable[[], object]) -> None:
    if not session.in_transaction():
        session.begin()  # a commit would else have nothing to do, and tell nobody
    if _ASKED not in session.info:
        event = importlib.import_module("sqlalchemy.event")  # there, since a Session of it is
        session.info[_ASKED], session.info[_DUE] = [], []
        event.listen(session, "after_commit", _committed)
        event.listen(session, "after_soft_rollback", _rolled_back)
        event.listen(session, "after_transaction_end", _ended)
    session.info[_ASKED].append((_with_those_around(session.get_nested_transaction()), action))


def _committed(session: Any) -> None:
    """Nothing is done yet: an error would leave the Session between two transactions, of no more use."""
    if not session.in_nested_transaction():  # else a savepoint was released, which has not committed anything
        session.info[_DUE], session.info[_ASKED] = session.info[_ASKED], []


def _rolled_back(session: Any, ended: Any) -> None:
    """A savepoint that is rolled back takes along what was asked for within it, and nothing else."""
    session.info[_ASKED] = [one for one in session.info[_ASKED] if ended not in one[0]]


def _ended(session: Any, ended: Any) -> None:
    """By commit, and then it is time; by rollback, or because the session was closed."""
    if ended.parent is not None:
        return
    due, session.info[_DUE], session.info[_ASKED] = session.info[_DUE], [], []
    with ExitStack() as all_of_them:  # each is done, whatever becomes of the others
        for _, action in reversed(due):
            all_of_them.callback(action)


def _with_those_around(savepoint: Any) -> list[Any]:
    """A savepoint, and those that it is a part of."""
    within = []
    while savepoint is not None and savepoint.nested:
        within.append(savepoint)
        savepoint = savepoint.parent
    return within
