"""Every operation that is not hot, once for all storages: functions over a transaction."""

from __future__ import annotations

from packhorse.storage.engine.engine import Engine

__all__ = ["Engine"]
