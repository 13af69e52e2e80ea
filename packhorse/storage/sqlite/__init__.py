"""The SQLite storage: one file, no server. The default."""

from __future__ import annotations

from packhorse.storage.sqlite.storage import SQLite

__all__ = ["SQLite"]
