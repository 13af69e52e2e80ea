"""Where jobs live. `open_storage(url)` is the only place that knows every implementation, and imports it on demand;
other packages may register theirs."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from packhorse.core import clock
from packhorse.core.errors import BadURL, MissingDriver
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
    if scheme in ("http", "https"):
        from packhorse.storage.remote import Remote

        return Remote.from_url(url, now=now)
    if scheme in _EXTRAS:
        try:
            return _open_with_driver(url, _EXTRAS[scheme], now)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("packhorse"):
                raise
            hint = f"pip install 'packhorse[{_EXTRAS[scheme]}]'"
            raise MissingDriver(f"no driver for {scheme}:// is installed", why=str(error), hint=hint) from error
    brought: Storage = _others(url, scheme).from_url(url, now=now)
    return brought


def _open_with_driver(url: str, extra: str, now: clock.Now | None) -> Storage:
    if extra == "redis":
        from packhorse.storage.redis import Redis

        return Redis.from_url(url, now=now)
    if extra == "postgres":
        from packhorse.storage.postgres import Postgres

        return Postgres.from_url(url, now=now)
    from packhorse.storage.mysql import MySQL

    return MySQL.from_url(url, now=now)


def _others(url: str, scheme: str) -> Any:
    """The class that an installed package has registered for this scheme: docs/storages.md."""
    from importlib.metadata import entry_points  # slow to import, and hardly ever needed

    for found in entry_points(group="packhorse.storages", name=scheme):
        try:
            return found.load()
        except (ImportError, AttributeError) as error:
            what = f"the storage for {scheme}:// cannot be imported: {found.value}"
            raise MissingDriver(what, why=str(error), hint="look at the package that registers it") from error
    try:
        host = urlsplit(url).hostname or "no host"
    except ValueError as error:
        host = str(error)
    raise BadURL(
        f"there is no storage for {scheme}:// ({host})",
        hint="use sqlite://, postgresql://, mysql://, redis://, http:// or memory://, or install what brings it",
    )
