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
    <packhorse.storage.memory.Memory object at ...>
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
            return _open_by_driver(scheme, url, now)
        except ImportError as error:
            hint = f"pip install 'packhorse[{_EXTRAS[scheme]}]'"
            raise MissingDriver(f"no driver for {scheme}:// is installed", why=str(error), hint=hint) from error
    raise BadURL(
        f"there is no storage for {scheme}:// ({urlsplit(url).hostname or 'no host'})",
        hint="use sqlite://, postgresql:// or memory://",
    )


def _open_by_driver(scheme: str, url: str, now: clock.Now | None) -> Storage:
    if scheme in ("postgresql", "postgres"):
        from packhorse.storage.postgres import Postgres

        return Postgres.from_url(url, now=now)
    raise ImportError(f"this Packhorse has no storage for {scheme}:// yet")
