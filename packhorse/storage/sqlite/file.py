"""The file of a SQLite storage: made where there is none, opened, and missed when it is removed or replaced.

The database has all its connections from here. SQLite goes by the name when it opens a file, and would go on writing
into one that is no longer there; so whoever has connections open asks `is_lost` before using them.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from packhorse.core.errors import StorageUnavailable
from packhorse.storage.sqlite import room
from packhorse.storage.sqlite.companions import Companions, refuse_orphans


class StorageFile:
    """The file at this path that was opened last, with its companions."""

    def __init__(self, path: Path, synchronous: str, prepare: Callable[[sqlite3.Connection], None]) -> None:
        self.path = path
        self.log = path.with_name(path.name + "-wal")
        self._synchronous = synchronous
        self._prepare = prepare
        self._companions = Companions(path)

    # --- opening --------------------------------------------------------------------------------------------------

    def make_ready(self) -> None:
        """Just before the first connection: the file is there, though it may be empty."""
        self.refuse_strangers()
        try:
            self._check_place()
        except OSError as error:
            hint = "check the path and its permissions"
            what = f"cannot open {self.path}"
            raise StorageUnavailable(what, why=error.strerror, hint=hint, may_pass=False) from error
        self._companions.expect_file()

    def connect_writer(self) -> sqlite3.Connection:
        """The one connection that writes, which makes the tables too. SQLite may be busy."""
        connection = self.connect()
        try:
            connection.execute("PRAGMA busy_timeout = 0")  # the database waits by itself
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            # Foremen fold the log back before it comes to this; see `Database.fold_log`.
            connection.execute("PRAGMA wal_autocheckpoint = 16000")
            connection.execute(f"PRAGMA journal_size_limit = {room.MOST}")
            # A batch of jobs that lie far from each other changes more pages than the 2 MB hold that are usual.
            connection.execute("PRAGMA cache_size = -8000")
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def connect(self) -> sqlite3.Connection:
        """Another connection to the file that was made ready, and to no other."""
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, cached_statements=256)
        if self.is_lost():  # SQLite has a file now, but goes to its log only with the first statement
            connection.close()
            hint = "trying again tells what is there now"
            raise StorageUnavailable(f"{self.path} was removed or replaced just now", hint=hint)
        return connection

    def meet_companions(self) -> None:
        """The file is open, and they are there."""
        self._companions.meet()

    def _check_place(self) -> None:
        if self.path.is_dir():
            hint = "name a file in it: sqlite:///jobs.db"
            raise StorageUnavailable(f"{self.path} is a directory", hint=hint, may_pass=False)
        if not self.path.parent.is_dir():
            what = f"cannot open {self.path}: there is no directory {self.path.parent}"
            raise StorageUnavailable(what, hint="make it first", may_pass=False)
        refuse_orphans(self.path)
        if not self.path.exists():
            # Jobs may carry addresses and names: nobody but the owner reads a file that we make.
            try:
                os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            except OSError as error:
                hint = "check the permissions of the directory, or name a file in another one"
                what = f"cannot create {self.path}"
                raise StorageUnavailable(what, why=error.strerror, hint=hint, may_pass=False) from error

    # --- removed, or replaced by another --------------------------------------------------------------------------

    def is_lost(self) -> bool:
        """Is something else, or nothing, where the file was?"""
        return self._companions.is_file_lost()

    def refuse_strangers(self) -> None:
        """Raise StorageUnavailable if what is there must not be opened, as it lies with the former file's log."""
        self._companions.refuse_strangers()

    def leave(self) -> None:
        """It is lost, and all connections to it are closed: the next one may be another."""
        self._companions.forget()

    def closing(self, is_for_good: bool) -> AbstractContextManager[None]:
        """While the connections are closed, for good or for the moment of a fork."""
        return self._companions.closing(is_for_good)
