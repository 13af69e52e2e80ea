"""What storages on a database server share: the server's clock, tables that looking does not make, and counters that
are folded now and then. The groups of operations of PostgreSQL and MySQL build on it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from packhorse.core import clock
from packhorse.core.errors import SchemaOutdated, SchemaTooNew, StorageError, StorageNotFound
from packhorse.storage.sql.keeper import Keeper
from packhorse.storage.transfer import Move, decode

FOLD_AFTER = 2_000
"""Rows that this process adds before it folds all that it finds."""
MADE_AGAIN = frozenset({"enqueue"})
"""Calls that are made again when the connection broke in the middle, and nobody knows whether the server had done
them. That is harmless, as their jobs have ids; whoever asked would make it again with others, and have twins."""


class Served(Keeper):
    _clock: clock.Now | None  # the server's own, unless a test brings one
    _makes = True
    _unfolded = 0
    _due_seen: tuple[float, int | None] | None = None  # when a call that found no job was told when the next is due

    def now(self) -> int:
        if self._clock is not None:
            return self._clock()
        ((now,),) = self._db.read("now", self._sql["now"])
        return int(now)

    def require_existing(self) -> None:
        self._makes = False

    def _mark_of(self, tx: Any) -> Move | None:
        return decode(tx.mark_text)

    def _counting(self, rows: int) -> None:
        """So many rows were added to what is to be folded."""
        self._unfolded += rows
        if self._unfolded >= FOLD_AFTER:
            self._unfolded = 0
            with suppress(StorageError):  # what was asked for is done; the next one folds
                self._fold()

    @abstractmethod
    def _fold(self) -> None:
        """Sum up what was counted."""


def make_sure(
    what: str, versions: tuple[int, int], wanted: int, make: Callable[[], object], missing: StorageNotFound | None
) -> None:
    """That this program, which knows the version `wanted`, can work with what is there: its version, and the oldest
    program that it is for. Where nothing is it is made, or, for those who only look, is `missing`."""
    present, oldest = versions
    if present == 0:
        if missing is not None:
            raise missing
        make()
    elif present < wanted:
        raise SchemaOutdated(f"{what} version {present}; this Packhorse needs {wanted}", hint="run: packhorse migrate")
    elif present > wanted and oldest > wanted:
        raise SchemaTooNew(
            f"{what} version {present}; this Packhorse knows versions up to {wanted}",
            hint="upgrade Packhorse in this program: pip install -U packhorse",
        )
