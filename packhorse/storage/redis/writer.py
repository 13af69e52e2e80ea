"""The writer: runs operations in transactions, and runs them again when another call was faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from packhorse.core import clock
from packhorse.core.errors import StorageUnavailable
from packhorse.storage.redis.keys import Keys
from packhorse.storage.redis.server import Server
from packhorse.storage.redis.transaction import Conflict, Transaction
from packhorse.storage.transfer import Move, decode, may_go_on, quiet_answer

R = TypeVar("R")

_ATTEMPTS = 60
"""How often an operation is tried. Whenever one loses a race, another has won it, so this many losses never happen to
all of them. With the pauses between them, sixty attempts are about two seconds."""


class NextDue(NamedTuple):
    """When the next job is due, as the reply of an empty reserve said."""

    due_in: int | None  # microseconds
    received_at: float  # on this process's clock


class Writer:
    """Writes to one storage. `next_due` is forgotten with every write of this process."""

    def __init__(self, server: Server, keys: Keys, now: clock.Now | None) -> None:
        self._server = server
        self._keys = keys
        self._now = now
        self._mark: bytes | None = None  # of a move of this storage, as last seen
        self.next_due: NextDue | None = None

    def write(self, name: str, work: Callable[[Transaction], R], *, finds_unowned: bool = False) -> R:
        """Run `work` and write what it wants in one step. If something that it has read changes meanwhile, run it
        again: it must have no effect outside of its transaction."""
        return self.until_done(name, lambda: self.attempt(name, work, finds_unowned=finds_unowned))

    def attempt(self, name: str, work: Callable[[Transaction], R], *, finds_unowned: bool = False) -> tuple[bool, R]:
        """Run `work` once. Return (was it written, its result).

        The mark of a move is a precondition like any other value, so no call has to read it first.
        """
        nothing: Any = None
        if self._mark is not None and not may_go_on(self.read_mark(), name):
            return True, quiet_answer(name)
        tx = Transaction(self._server, self._keys, name, self._now, finds_unowned=finds_unowned)
        tx.require_text(self._keys.move, self._mark)
        try:
            result = work(tx)
        except Conflict:
            return False, nothing
        if tx.is_empty:
            return True, result
        self.next_due = None
        is_written = bool(self._server.run(tx.script, *tx.words()))
        if not is_written:
            self.read_mark()
        return is_written, result

    def read_mark(self) -> Move | None:
        """Return the mark of a move of this storage."""
        (self._mark,) = self._server.send("move", ("GET", self._keys.move))
        return decode(self._mark)

    def transaction(self, name: str) -> Transaction:
        return Transaction(self._server, self._keys, name, self._now)

    def until_done(self, name: str, attempt: Callable[[], tuple[bool, R]]) -> R:
        """Call `attempt` until it returns (True, result), and return the result."""
        for number in range(_ATTEMPTS):
            is_done, result = attempt()
            if is_done:
                return result
            self._server.pause(number)
        raise StorageUnavailable(
            f"{name} lost {_ATTEMPTS} races in a row", hint="other calls change the same jobs all the time; try again"
        )
