"""The SQLite storage, put together: one file, its connections, its bell, and the groups of operations."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from packhorse.core import clock
from packhorse.core.errors import BadURL, BadValue, did_you_mean
from packhorse.core.fair_share import FairShare
from packhorse.storage.contract import OTHER_QUEUES
from packhorse.storage.records import Health, Migration, OperationSums
from packhorse.storage.sql.lists import Lists
from packhorse.storage.sql.schedules import Schedules
from packhorse.storage.sql.steering import Steering
from packhorse.storage.sql.workers import Workers
from packhorse.storage.sqlite import filesystem, schema
from packhorse.storage.sqlite.database import Database, Options
from packhorse.storage.sqlite.in_and_out import InAndOut
from packhorse.storage.sqlite.notifier import Notifier
from packhorse.storage.sqlite.records import Records
from packhorse.storage.sqlite.statements import SQL
from packhorse.storage.sqlite.transfer import Transfers
from packhorse.storage.sqlite.upkeep import Upkeep
from packhorse.storage.sqlite.working import Working
from packhorse.storage.transfer import problems

_LARGE_WAL = 256 * 1024 * 1024
_LITTLE_ROOM = 64 * 1024 * 1024


class SQLite(Working, InAndOut, Upkeep, Records, Lists, Steering, Schedules, Workers, Transfers):
    """Jobs in a SQLite file. Open it with `open_storage("sqlite:///jobs.db")` or `SQLite("jobs.db")`.

    Several processes and threads of one machine may share the file. The clock is the machine's.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, options: Options | None = None, now: clock.Now | None = None
    ) -> None:
        self._now = now or clock.now
        self.path = Path(path).absolute()
        self._turns = FairShare()
        self._known = {}
        self._last_lines = {}
        self._dealt = {}
        self._only_looks = False
        self._notifier = Notifier(self.path, lambda: self._db.version())
        self._db = Database(
            self.path,
            options or Options(),
            prepare=self._prepare,
            after_commit=self._notifier.notify,
            now=self._now,
            forget=self._known.clear,
        )

    @classmethod
    def from_url(cls, url: str, *, now: clock.Now | None = None) -> SQLite:
        """`sqlite:///relative.db`, `sqlite:////absolute.db`; `?synchronous=full|normal|off`, `?patience=30s`."""
        rest, _, query = url.removeprefix("sqlite://").partition("?")
        if not rest.startswith("/") or rest in ("/", "//"):
            raise BadURL(
                f"{url!r} names no file",
                hint="write sqlite:///jobs.db for a file here, sqlite:////var/lib/jobs.db for another place",
            )
        if "\0" in unquote(rest):
            raise BadURL(f"{url!r} has a NUL byte in it")
        if rest == "/:memory:":
            raise BadURL(f"{url!r}: a SQLite database in memory cannot be shared", hint="use memory://")
        return cls(unquote(rest[1:]), options=_options(url, query), now=now)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        schema.prepare(connection, self.path, only_looks=self._only_looks)

    def require_existing(self) -> None:
        self._only_looks = True

    def now(self) -> int:
        return self._now()

    def close(self) -> None:
        self._known.clear()
        self._db.close()

    # --- migrations -----------------------------------------------------------------------------------------------

    def pending_migrations(self) -> list[Migration]:
        self._db.refuse_mismatch()
        return [Migration(*step) for step in schema.script(schema.pending(self.path))]

    def migrate(self) -> list[str]:
        """Opening the file does it; a copy of an older one is kept beside it."""
        self._db.refuse_mismatch()
        pending = [name for _, name, _ in schema.pending(self.path)]
        self.close()
        only_looked, self._only_looks = self._only_looks, False
        try:
            self.tallies()
        finally:
            self._only_looks = only_looked
        return pending

    # --- wake-up --------------------------------------------------------------------------------------------------

    def wait(self, timeout: float, queues: Sequence[str] = ()) -> bool:
        # A ring wakes whoever sleeps, and is passed on: nobody need say that other queues concern him too.
        return self._notifier.wait(timeout, [queue for queue in queues if queue != OTHER_QUEUES])

    def interrupt(self) -> None:
        self._notifier.interrupt()

    # --- health ---------------------------------------------------------------------------------------------------

    def measured(self) -> list[OperationSums]:
        return self._db.meter.sums()

    def connections(self) -> tuple[int, int]:
        return self._db.connections()

    def health(self) -> Health:
        began_at = time.perf_counter()
        ((pages, page_size, free_pages, version),) = self._db.read("health", SQL["file_facts"])
        latency = round((time.perf_counter() - began_at) * 1e6)
        wal = self.path.with_name(self.path.name + "-wal")
        wal_size = wal.stat().st_size if wal.exists() else 0
        disk = os.statvfs(self.path.parent)
        free = disk.f_bavail * disk.f_frsize
        opened, in_use = self.connections()
        return Health(
            kind="sqlite",
            url=f"sqlite:///{self.path}",
            version=version,
            schema=schema.SCHEMA,
            latency=latency,
            size=pages * page_size + wal_size,
            free=free,
            connections_open=opened,
            connections_in_use=in_use,
            busy_retries=self._db.meter.busy_retries,
            operations=self._db.meter.report(),
            facts={
                "synchronous": self._db.options.synchronous,
                "wal_size": wal_size,
                "free_pages": free_pages,
                "page_size": page_size,
            },
            problems=[
                *problems(self.move()),
                *_problems(wal_size, free, self._db.options),
                *_file_system_problems(self.path),
            ],
            notes=[note for note in (filesystem.library_note(),) if note is not None],
        )


def _options(url: str, query: str) -> Options:
    options = Options()
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "synchronous" and value.lower() in ("full", "normal", "off"):
            options = options._replace(synchronous=value.lower())
        elif name == "synchronous":
            raise BadURL(f"{url!r}: synchronous cannot be {value!r}", hint="use full, normal or off")
        elif name == "patience":
            try:
                options = options._replace(patience=clock.microseconds(value, "patience") / clock.SECOND)
            except BadValue as error:
                raise BadURL(f"{url!r}: {error}") from error
        else:
            raise BadURL(
                f"{url!r}: there is no option {name!r}{did_you_mean(name, ('synchronous', 'patience'))}",
                hint="the options are synchronous and patience",
            )
    return options


def _file_system_problems(path: Path) -> list[str]:
    problem = filesystem.file_system_problem(path)
    return [] if problem is None else [problem]


def _problems(wal_size: int, free: int, options: Options) -> list[str]:
    problems = []
    if wal_size > _LARGE_WAL:
        problems.append(f"the write-ahead log has grown to {wal_size:,} bytes: some program keeps a read open")
    if free < _LITTLE_ROOM:
        problems.append(f"only {free:,} bytes are free on the disk")
    if options.synchronous == "off":
        problems.append("synchronous=off: a power cut may lose or damage jobs")
    return problems
