"""What all groups of operations share: the server, the names of keys, and changing jobs in one step."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from packhorse.core import clock, transitions
from packhorse.core.errors import StorageUnavailable
from packhorse.core.fair_share import FairShare
from packhorse.storage.contract import Storage
from packhorse.storage.redis.keys import Keys, id_of
from packhorse.storage.redis.notifier import Notifier
from packhorse.storage.redis.server import Server
from packhorse.storage.redis.transaction import Transaction
from packhorse.storage.transfer import Move, decode, may_go_on, quiet_answer

R = TypeVar("R")

_ATTEMPTS = 60
"""How often a call begins anew because others were quicker. Each time one of them got on, so this never happens to all;
with the pauses between, sixty are about two seconds."""


class NextDue(NamedTuple):
    """In how many microseconds the next job is due, as a reserve was told that got nothing."""

    due_in: int | None
    told_at: float  # this process's clock


class Keeper(Storage):
    """The part of the Redis storage that every group of operations builds on."""

    _server: Server
    _notifier: Notifier
    _turns: FairShare
    _now: clock.Now | None
    _keys: Keys
    _next_due: NextDue | None
    _mark: bytes | None  # of a move, as it was last seen

    def _change(self, name: str, work: Callable[[Transaction], R]) -> R:
        """Let `work` read and decide, and write what it wants in one step. It is done again, with a fresh transaction,
        when something that it has read was changed meanwhile; so it must do nothing but through its transaction."""

        return self._until_done(name, lambda: self._attempt(name, work))

    def _attempt(self, name: str, work: Callable[[Transaction], R]) -> tuple[bool, R]:
        """As `_change`, but once: whether it was written, and the result. While the storage is moved, only some calls
        may; the mark that they know of is compared with what is written, so nobody has to ask for it."""
        if self._mark is not None and not may_go_on(self._look_for_mark(), name):
            answer: R = quiet_answer(name)
            return True, answer
        tx = self._transaction(name)
        tx.must_read(self._keys.move, self._mark)
        result = work(tx)
        if tx.is_empty:
            return True, result
        self._next_due = None
        is_written = bool(self._server.run("apply_new" if tx.adds else "apply", *tx.words()))
        if not is_written:
            self._look_for_mark()
        return is_written, result

    def _look_for_mark(self) -> Move | None:
        (self._mark,) = self._server.send("move", ("GET", self._keys.move))
        return decode(self._mark)

    def _transaction(self, name: str) -> Transaction:
        return Transaction(self._server, self._keys, name, self._now)

    def _until_done(self, name: str, attempt: Callable[[], tuple[bool, R]]) -> R:
        """The result of the first attempt that says so."""
        for number in range(_ATTEMPTS):
            is_done, result = attempt()
            if is_done:
                return result
            self._server.pause(number)
        raise StorageUnavailable(
            f"{name} was overtaken {_ATTEMPTS} times", hint="something changes the same jobs all the time; try again"
        )

    # --- what reserving does, too -----------------------------------------------------------------------------------

    def _promote(self, tx: Transaction, limit: int) -> int:
        """Queue what is due."""
        (marks,) = tx.ask(("ZRANGEBYSCORE", self._keys.due, "-inf", tx.now, "LIMIT", 0, limit))
        jobs = tx.jobs(map(id_of, marks)).values()
        due = [job for job in jobs if job.due_at is not None and job.due_at <= tx.now]
        for job in due:
            tx.keep(job, transitions.promoted(job, tx.now))
        return len(due)

    def _expire(self, tx: Transaction, limit: int) -> int:
        """Abort what has waited or lived too long."""
        (marks,) = tx.ask(("ZRANGEBYSCORE", self._keys.expiring, "-inf", tx.now, "LIMIT", 0, limit))
        jobs = tx.jobs(map(id_of, marks)).values()
        over = [job for job in jobs if job.expire_at is not None and job.expire_at <= tx.now]
        for job in over:
            tx.keep(job, transitions.expired(job, tx.now))
        return len(over)
