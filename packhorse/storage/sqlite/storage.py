"""The SQLite storage: one file, its connections, its notifier, and what it does in its own way."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

from packhorse.core import clock
from packhorse.core.errors import BadURL, BadValue, did_you_mean
from packhorse.core.event import Event
from packhorse.core.fair_share import FairShare
from packhorse.core.job import Job, NewJob, Token
from packhorse.core.outcome import Outcome, Verdict
from packhorse.storage.after_commit import when_committed
from packhorse.storage.contract import OTHER_QUEUES
from packhorse.storage.records import (
    Enqueued,
    EventFilter,
    Health,
    HeartbeatReply,
    Migration,
    OperationSums,
    PollResult,
)
from packhorse.storage.sql.lists import Index, JobLists
from packhorse.storage.sql.rows import to_json
from packhorse.storage.sql.storage import SQLStorage, abort_request_of
from packhorse.storage.sql.transaction import Shared
from packhorse.storage.sqlite import filesystem, schema
from packhorse.storage.sqlite.database import Database, Options
from packhorse.storage.sqlite.events import read_events
from packhorse.storage.sqlite.external_connection import joined, own_connection
from packhorse.storage.sqlite.hot_path import HotPath
from packhorse.storage.sqlite.notifier import Notifier
from packhorse.storage.sqlite.statements import DIALECT, SQL
from packhorse.storage.sqlite.transaction import SQLiteTransaction
from packhorse.storage.sqlite.transfer import SQLiteTransfers
from packhorse.storage.transfer import may_go_on, problems

R = TypeVar("R")

_LARGE_WAL = 256 * 1024 * 1024
_LITTLE_ROOM = 64 * 1024 * 1024


_LOOK_THEMSELVES = frozenset({"enqueue", "reserve", "start", "finish", "finish_and_reserve"})
"""Hot operations that need no statement to see whether the storage is being moved. Enqueue and reserve read the mark in
one that they need anyway; the others change only held jobs, of which a storage that is copied has none."""


class SQLite(SQLStorage):
    """Jobs in a SQLite file. Open it with `open_storage("sqlite:///jobs.db")` or `SQLite("jobs.db")`.

    Several processes and threads of one machine may share the file. The clock is the machine's.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, options: Options | None = None, now: clock.Now | None = None
    ) -> None:
        self._now = now or clock.now
        self.path = Path(path).absolute()
        self._sql, self._dialect = SQL, DIALECT
        self._shared = Shared(SQL, DIALECT)
        self._fair_share = FairShare()
        self._only_looks = False
        self._notifier = Notifier(self.path, lambda: self._db.version())
        self._db: Database = Database(
            self.path,
            options or Options(),
            self._shared,
            prepare=self._prepare,
            after_commit=self._notifier.notify,
            now=self._now,
        )
        self._lists = JobLists(self._db, SQL, DIALECT, Index)
        self._transfers = SQLiteTransfers(self._db)
        self._hot_path = HotPath(self._write, self._notifier, self._shared.names, self._fair_share)

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
        self._shared.names.clear()
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

    def _write(self, name: str, work: Callable[[Any], R]) -> R:
        return self._db.write(name, work) if name in _LOOK_THEMSELVES else super()._write(name, work)

    # --- the hot path: `hot_path.py` -------------------------------------------------------------------------------

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return self._write("enqueue", lambda tx: self._hot_path.enqueue(tx, jobs)) if jobs else []

    def reserve(self, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        return self._hot_path.reserve(owner, queues, limit)

    def start(self, tokens: Sequence[Token], agos: Sequence[int] = ()) -> list[Verdict]:
        self._hot_path.forget(tokens)
        return super().start(tokens, agos)

    def finish(self, outcomes: Sequence[Outcome]) -> list[Verdict]:
        return self._hot_path.finish(outcomes)

    def finish_and_reserve(
        self, outcomes: Sequence[Outcome], owner: str, queues: Mapping[str, int], limit: int
    ) -> tuple[list[Verdict], list[Job]]:
        return self._hot_path.finish_and_reserve(outcomes, owner, queues, limit)

    # --- workers --------------------------------------------------------------------------------------------------

    def heartbeat(self, reports: Mapping[str, Mapping[str, Any]]) -> HeartbeatReply:
        """Without reading the records, and with the abort requests of the same moment: every foreman calls this every
        few seconds."""

        def work(tx: SQLiteTransaction) -> HeartbeatReply:
            unknown = [
                owner
                for owner, report in reports.items()
                if tx.execute(SQL["beat"], (tx.now, to_json(report), owner)).rowcount == 0
            ]
            rows = tx.execute(SQL["jobs_to_stop"], (to_json(list(reports)),)).fetchall()
            return HeartbeatReply(tx.now, unknown, [abort_request_of(row) for row in rows])

        return self._write("beat", work)

    # --- a caller's transaction ---------------------------------------------------------------------------------------

    def enqueue_within(self, connection: object, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if not jobs:
            return []
        if self._db.is_open:
            self._db.ensure_prepared()  # the file may have been replaced
        with joined(connection, self._db.path, self._db.ensure_prepared) as cursor:
            if not self._db.is_open:
                # The caller's transaction holds the file: opening it, or creating its tables, would wait for the
                # caller's commit, which waits for us.
                schema.prepare_within(cursor, self._db.path)
            tx = SQLiteTransaction(cursor, self._shared, self.now())
            may_go_on(self._read_mark(tx), "enqueue")
            enqueued = self._hot_path.enqueue(tx, jobs)
            tx.flush()
        with suppress(BadValue):  # not every connection reports its commit
            when_committed(connection, self._notifier.notify)
        return enqueued

    def can_be_read_beside(self, connection: object) -> bool:
        own = own_connection(connection)
        try:
            return self._db.is_open or not own.in_transaction or schema.is_ready(own)
        except sqlite3.Error:  # `enqueue_within` reports it
            return True

    def get_many(self, job_ids: Sequence[str]) -> list[Job]:
        if not self._db.is_open and self._has_no_tables():
            # Creating them waits for the write lock. The caller's own open transaction may hold it, with the tables and
            # the first jobs in it, and could never commit while we wait.
            return []
        return super().get_many(job_ids)

    def _has_no_tables(self) -> bool:
        self._db.refuse_mismatch()
        return schema.has_none(self._db.path)

    # --- events ---------------------------------------------------------------------------------------------------

    def events(self, where: EventFilter, *, limit: int = 100, newest_first: bool = False) -> list[Event]:
        return read_events(self._db, where, limit, newest_first=newest_first)

    def poll(self, foreman: str, owners: Sequence[str], *, after: int = 0) -> PollResult:
        self._db.checkpoint()  # here, because only foremen call this, every second, and no job waits for it
        return super().poll(foreman, owners, after=after)

    # --- wake-up --------------------------------------------------------------------------------------------------

    def wait(self, timeout: float, queues: Sequence[str] = ()) -> bool:
        # A notification wakes any waiter and is passed on, so nothing is needed for other queues.
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
