"""Where jobs live. `open_storage(url)` is the only place that knows every implementation, and imports it on demand."""

from __future__ import annotations

from urllib.parse import urlsplit

from packhorse import clock
from packhorse.errors import BadURL, MissingDriver
from packhorse.storage.contract import BATCH, Storage

__all__ = ["BATCH", "Storage", "open_storage"]

# Storages whose driver is an extra, and the extra's name.
_EXTRAS = {
    "redis": "redis",
    "rediss": "redis",
    "redis+sentinel": "redis",
    "redis+cluster": "redis",
    "postgresql": "postgres",
    "postgres": "postgres",
    "mysql": "mysql",
    "mariadb": "mysql",
}


def open_storage(url: str, *, now: clock.Now | None = None) -> Storage:
    """The storage at this address. `now` replaces its clock, for tests.

    >>> open_storage("memory://")
    <packhorse.storage.memory.storage.Memory object at ...>
    """
    scheme, separator, _ = str(url).partition("://")
    if not separator:
        raise BadURL(f"{url!r} is not a storage address", hint="write sqlite:///jobs.db, or another scheme://…")
    if scheme == "memory":
        from packhorse.storage.memory import Memory

        return Memory(now or clock.now)
    if scheme == "sqlite":
        from packhorse.storage.sqlite import SQLite

        return SQLite.from_url(url, now=now)
    if scheme in _EXTRAS:
        try:
            return _open_with_driver(url, _EXTRAS[scheme], now)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("packhorse"):
                raise
            hint = f"pip install 'packhorse[{_EXTRAS[scheme]}]'"
            raise MissingDriver(f"no driver for {scheme}:// is installed", why=str(error), hint=hint) from error
    raise BadURL(
        f"there is no storage for {scheme}:// ({urlsplit(url).hostname or 'no host'})",
        hint="use sqlite://, postgresql://, mysql://, redis:// or memory://",
    )


def _open_with_driver(url: str, extra: str, now: clock.Now | None) -> Storage:
    if extra == "redis":
        from packhorse.storage.redis import Redis

        return Redis.from_url(url, now=now)
    if extra == "postgres":
        from packhorse.storage.postgres import Postgres

        return Postgres.from_url(url, now=now)
    from packhorse.storage.mysql import MySQL

    return MySQL.from_url(url, now=now)
