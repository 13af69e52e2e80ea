"""The Redis storage: Redis from 6.2 on, or Valkey; one Lua script for each operation."""

from __future__ import annotations

from packhorse.storage.redis.storage import Redis

__all__ = ["Redis"]
