"""The MySQL storage, put together: one database of one server, its connections, its bell, and the groups of
operations."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from packhorse.core import clock
from packhorse.core.errors import StorageNotFound
from packhorse.core.fair_share import FairShare
from packhorse.storage import transfer
from packhorse.storage.mysql import schema
from packhorse.storage.mysql.address import Address, parse
from packhorse.storage.mysql.connection import MySQLConnection
from packhorse.storage.mysql.database import Database
from packhorse.storage.mysql.in_and_out import InAndOut
from packhorse.storage.mysql.lists import Lists
from packhorse.storage.mysql.notifier import Notifier
from packhorse.storage.mysql.records import Records
from packhorse.storage.mysql.statements import dialect_for, statements_for
from packhorse.storage.mysql.transaction import Transaction
from packhorse.storage.mysql.transfer import Transfers
from packhorse.storage.mysql.upkeep import Upkeep
from packhorse.storage.mysql.workers import Workers
from packhorse.storage.mysql.working import Working
from packhorse.storage.records import Health, Migration, OperationSums
from packhorse.storage.sql.rows import to_json
from packhorse.storage.sql.scan_cursor import ScanCursor
from packhorse.storage.sql.schedules import Schedules
from packhorse.storage.sql.steering import Steering

_LONG_HISTORY = 1_000_000


class MySQL(Working, InAndOut, Workers, Upkeep, Lists, Steering, Schedules, Records, Transfers):
    """Jobs in a MySQL or MariaDB database. Open it with `open_storage("mysql://user@host/database")`.

    The clock is the server's.
    """

    def __init__(self, address: Address, *, now: clock.Now | None = None) -> None:
        self.address = address
        self._clock = now
        self._sql = statements_for(address.database)
        self._dialect = dialect_for(address.database)
        self._turns = FairShare()
        self._known = {}
        self._last_lines = {}
        self._dealt = {}
        self._cursor = ScanCursor(slow=0.05, skips_ranks=True)
        self._own_id = None
        self._found_nothing = False
        self._paused = set()
        self._db = Database(
            address,
            self._sql,
            self._dialect,
            prepare=self._prepare,
            now=now,
            after_commit=self._committed,
        )
        self._notifier = Notifier(self._has_work)

    @classmethod
    def from_url(cls, url: str, *, now: clock.Now | None = None) -> MySQL:
        """`mysql://user:password@host:port/database` or `mariadb://…`; the options are in `address.py`."""
        return cls(parse(url), now=now)

    def _prepare(self, connection: MySQLConnection) -> None:
        missing = StorageNotFound(
            f"{self.address.shown} has no Packhorse jobs in it",
            why="the database has no tables of ours, and looking does not make them",
            hint="name another database, or put the first job in: packhorse enqueue NAME",
        )
        schema.prepare(connection, self.address.database, missing=None if self._makes else missing)

    def close(self) -> None:
        self._known.clear()
        self._db.pool.close()

    def _committed(self, tx: Transaction) -> None:
        if tx.wakes:
            self._cursor.forget()
            self._notifier.notify()
        self._counting(tx.deltas)

    # --- migrations -----------------------------------------------------------------------------------------------

    def pending_migrations(self) -> list[Migration]:
        with self._db.unprepared() as connection:
            missing = schema.pending(connection, self.address.database)
        return [Migration(name, sql) for name, sql in schema.script(self.address.database, missing)]

    def migrate(self) -> list[str]:
        with self._db.unprepared() as connection:
            return schema.migrate(connection, self.address.database)

    # --- wake-up --------------------------------------------------------------------------------------------------

    def wait(self, timeout: float, queues: Sequence[str] = ()) -> bool:
        return self._notifier.wait(timeout, queues)

    def interrupt(self) -> None:
        self._notifier.interrupt()

    def _has_work(self, queues: Sequence[str]) -> bool:
        return bool(self._db.read("wait", self._sql["has_work"], (to_json(queues),)))

    # --- health ---------------------------------------------------------------------------------------------------

    def measured(self) -> list[OperationSums]:
        return self._db.meter.sums()

    def connections(self) -> tuple[int, int]:
        return self._db.pool.connections()

    def health(self) -> Health:
        began_at = time.perf_counter()
        self._db.read("now", self._sql["now"])
        latency = round((time.perf_counter() - began_at) * 1e6)
        ((version, comment, flushes, most, packet, size),) = self._db.read(
            "health", self._sql["server_facts"], (self.address.database,)
        )
        counters = {name.lower(): int(value) for name, value in self._db.read("health", self._sql["server_counters"])}
        used, history = counters.get("threads_connected", 0), counters.get("innodb_history_list_length", 0)
        opened, in_use = self.connections()
        return Health(
            kind="mariadb" if "mariadb" in f"{version} {comment}".lower() else "mysql",
            url=self.address.shown,
            version=version,
            schema=schema.SCHEMA,
            latency=latency,
            size=None if size is None else int(size),
            connections_open=opened,
            connections_in_use=in_use,
            busy_retries=self._db.meter.busy_retries,
            operations=self._db.meter.report(),
            facts={
                "database": self.address.database,
                "isolation": "READ COMMITTED",
                "innodb_flush_log_at_trx_commit": flushes,
                "max_allowed_packet": packet,
                "server_connections": used,
                "max_connections": most,
                "history_length": history,
            },
            problems=[*transfer.problems(self.move()), *_problems(flushes, used, most, history)],
        )


def _problems(flushes: int, used: int, most: int, history: int) -> Iterator[str]:
    if flushes != 1:
        yield "the server does not wait for its disk: a power cut may lose jobs"
    if used > 0.9 * most:
        yield f"{used} of the server's {most} connections are in use"
    if history > _LONG_HISTORY:
        yield f"{history:,} old versions of rows wait to be cleaned up: a transaction may be open for long"
