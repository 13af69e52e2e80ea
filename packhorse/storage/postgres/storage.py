"""The PostgreSQL storage, put together: one schema of one database, its connections, its bell, and the groups of
operations."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from packhorse.core import clock
from packhorse.core.errors import BadURL, BadValue, StorageNotFound, did_you_mean
from packhorse.core.fair_share import FairShare
from packhorse.storage import transfer
from packhorse.storage.contract import BATCH
from packhorse.storage.postgres import schema
from packhorse.storage.postgres.connection import PostgresConnection
from packhorse.storage.postgres.database import Database, Options
from packhorse.storage.postgres.driver_errors import not_understood, without_password
from packhorse.storage.postgres.in_and_out import InAndOut
from packhorse.storage.postgres.lists import Lists
from packhorse.storage.postgres.notifier import Notifier
from packhorse.storage.postgres.records import Records
from packhorse.storage.postgres.statements import dialect_for, statements_for
from packhorse.storage.postgres.transaction import Transaction
from packhorse.storage.postgres.transfer import Transfers
from packhorse.storage.postgres.upkeep import Upkeep
from packhorse.storage.postgres.workers import Workers
from packhorse.storage.postgres.working import Working
from packhorse.storage.records import Health, Migration, OperationSums
from packhorse.storage.sql.scan_cursor import ScanCursor
from packhorse.storage.sql.schedules import Schedules
from packhorse.storage.sql.steering import Steering

_OWN_OPTIONS = Options._fields
_DRIVERS_OPTIONS = {each.keyword.decode() for each in Conninfo.get_defaults()} | {"ssl"}
# It stands in names and in texts of statements: nothing that would have to be written otherwise in one of them.
_SCHEMA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_YES_OR_NO = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
_LONG_TRANSACTION = 600
_MANY_DEAD_ROWS = 500_000


class Postgres(Working, InAndOut, Workers, Upkeep, Transfers, Records, Lists, Steering, Schedules):
    """Jobs in a PostgreSQL database. Open it with `open_storage("postgresql://user@host/database")`.

    The clock is the server's.
    """

    event_stride = BATCH  # each row may be a pack of so many

    def __init__(self, address: str, *, options: Options | None = None, now: clock.Now | None = None) -> None:
        options = options or Options()
        if not _SCHEMA_NAME.fullmatch(options.schema):
            raise BadURL(
                f"a schema cannot be called {options.schema!r} here",
                hint="up to 63 letters (a to z), digits and underscores, and no digit at the beginning",
            )
        self.options = options
        self._clock = now
        self._sql = statements_for(options.schema)
        self._dialect = dialect_for(options.schema)
        self._turns = FairShare()
        self._known = {}
        self._last_line = ""
        self._cursor = ScanCursor(slow=0.01)
        self._db = Database(
            address,
            options,
            self._sql,
            self._dialect,
            prepare=self._prepare,
            now=now,
            after_commit=self._committed,
        )
        self._notifier = Notifier(self._db, self._sql, now)

    @classmethod
    def from_url(cls, url: str, *, now: clock.Now | None = None) -> Postgres:
        """`postgresql://user:password@host:port/database`; `?schema=packhorse`, `?pgbouncer=1`, `?connections=10`,
        `?patience=10s`; what else stands behind the question mark is for the driver, as `sslmode=require`."""
        try:
            parts = urlsplit(url, allow_fragments=False)  # a # may stand in a password
        except ValueError as error:
            raise not_understood(error, url) from None
        options, rest = _options(url, parse_qsl(parts.query, keep_blank_values=True))
        query = f"?{urlencode(rest, quote_via=quote)}" if rest else ""
        # Not `urlunsplit`: where no host is named, as for the server's socket, it would leave the slashes out.
        address = f"postgresql://{parts.netloc}{parts.path}{query}"
        try:
            conninfo_to_dict(address)
        except ProgrammingError as error:
            raise not_understood(error, url) from None
        return cls(address, options=options, now=now)

    def _prepare(self, connection: PostgresConnection) -> None:
        name = self.options.schema
        missing = StorageNotFound(
            f"{without_password(self._db.address)} has no Packhorse jobs in its schema {name}",
            why="the schema does not exist or has no tables of ours, and looking does not make it",
            hint="name another with ?schema=, or put the first job in: packhorse enqueue NAME",
        )
        schema.prepare(connection, name, missing=None if self._makes else missing)

    def close(self) -> None:
        self._known.clear()
        self._here = None
        self._notifier.close()
        self._db.pool.close()

    def _committed(self, tx: Transaction) -> None:
        if tx.wakes:  # a job came into line, wherever in it
            self._cursor.forget()
            self._notifier.notify()
        if tx.deltas:
            self._counting(tx.deltas)

    # --- migrations -----------------------------------------------------------------------------------------------

    def pending_migrations(self) -> list[Migration]:
        with self._db.unprepared() as connection:
            missing = schema.pending(connection, self.options.schema)
            is_there = schema.is_there(connection, self.options.schema)
        return [Migration(*step) for step in schema.script(self.options.schema, missing, is_there=is_there)]

    def migrate(self) -> list[str]:
        with self._db.unprepared() as connection:
            return schema.migrate(connection, self.options.schema)

    # --- wake-up --------------------------------------------------------------------------------------------------

    def wait(self, timeout: float, queues: Sequence[str] = ()) -> bool:
        return self._notifier.wait(timeout, queues)

    def interrupt(self) -> None:
        self._notifier.interrupt()

    # --- health ---------------------------------------------------------------------------------------------------

    def measured(self) -> list[OperationSums]:
        return self._db.meter.sums()

    def connections(self) -> tuple[int, int]:
        return self._db.pool.connections()

    def health(self) -> Health:
        began_at = time.perf_counter()
        self._db.read("now", self._sql["now"])
        latency = round((time.perf_counter() - began_at) * 1e6)
        ((version, synchronous, fsync, size, dead_rows, used, most, oldest),) = self._db.read(
            "health", self._sql["server_facts"]
        )
        opened, in_use = self.connections()
        is_safe = "off" not in (fsync, synchronous)
        return Health(
            kind="postgresql",
            url=without_password(self._db.address),
            version=version,
            schema=schema.SCHEMA,
            latency=latency,
            size=size,
            connections_open=opened,
            connections_in_use=in_use,
            busy_retries=self._db.meter.busy_retries,
            operations=self._db.meter.report(),
            facts={
                "schema_name": self.options.schema,
                "synchronous_commit": synchronous,
                "dead_rows": dead_rows,
                "server_connections": used,
                "max_connections": most,
                "oldest_transaction": oldest,
            },
            problems=[*transfer.problems(self.move()), *_problems(is_safe, used, most, oldest or 0, dead_rows)],
        )


def _problems(is_safe: bool, used: int, most: int, oldest: int, dead_rows: int) -> Iterator[str]:
    if not is_safe:
        yield "the server does not wait for its disk: a power cut may lose jobs"
    if used > 0.9 * most:
        yield f"{used} of the server's {most} connections are in use"
    if oldest > _LONG_TRANSACTION:
        yield f"a transaction has been open for {oldest:,} seconds: nothing can be cleaned up behind it"
    if dead_rows > _MANY_DEAD_ROWS:
        yield f"{dead_rows:,} dead rows wait for vacuum in the table of jobs"


def _options(url: str, pairs: list[tuple[str, str]]) -> tuple[Options, list[tuple[str, str]]]:
    options, rest = Options(), []
    for name, value in pairs:
        if name == "schema":
            options = options._replace(schema=value)
        elif name == "pgbouncer":
            if value.lower() not in _YES_OR_NO:
                raise BadURL(f"{without_password(url)!r}: pgbouncer cannot be {value!r}", hint="say ?pgbouncer=1, or 0")
            options = options._replace(pgbouncer=_YES_OR_NO[value.lower()])
        elif name == "connections":
            if not value.isdecimal() or int(value) < 1:
                raise BadURL(
                    f"{without_password(url)!r}: connections cannot be {value!r}", hint="a whole number from 1 on"
                )
            options = options._replace(connections=int(value))
        elif name == "patience":
            try:
                options = options._replace(patience=clock.microseconds(value, "patience") / clock.SECOND)
            except BadValue as error:
                raise BadURL(f"{without_password(url)!r}: {error}") from error
        elif name not in _DRIVERS_OPTIONS:
            meant = did_you_mean(name, (*_OWN_OPTIONS, *_DRIVERS_OPTIONS))
            raise BadURL(
                f"{without_password(url)!r}: there is no option {name!r}{meant}",
                hint=f"the options are {', '.join(_OWN_OPTIONS)}, and those of libpq, as sslmode",
            )
        else:
            rest.append((name, value))
    return options, rest
