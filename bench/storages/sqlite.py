"""SQLite: a file in the trial's folder."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from bench.storages.storage import Storage


class SQLite(Storage):
    """Nothing to start and nothing to stop."""

    name = "sqlite"

    @property
    def version(self) -> str:
        return f"SQLite {sqlite3.sqlite_version}"

    def fresh(self, folder: Path) -> str:
        return f"sqlite:///{folder / 'jobs.db'}"

    def __exit__(self, *_: object) -> None:
        pass
