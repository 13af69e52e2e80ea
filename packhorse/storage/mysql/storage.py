"""The MySQL storage: one database of one server, its connections, its notifier, and what it does in its own way."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pymysql

from packhorse.core import clock
from packhorse.core.errors import StorageNotFound
from packhorse.core.event import Event
from packhorse.core.fair_share import FairShare
from packhorse.core.job import QUEUED, Job, NewJob, State, Token
from packhorse.core.metrics import DAYS, HOURS, MINUTES
from packhorse.core.outcome import Outcome, Verdict
from packhorse.storage import transfer
from packhorse.storage.engine import new_jobs
from packhorse.storage.external_connection import elsewhere
from packhorse.storage.mysql import schema
from packhorse.storage.mysql.address import Address, parse
from packhorse.storage.mysql.connection import MySQLConnection
from packhorse.storage.mysql.database import Database
from packhorse.storage.mysql.driver_errors import LOST_RACES, NOT_THERE, code_of
from packhorse.storage.mysql.events import EventReader
from packhorse.storage.mysql.external_connection import joined
from packhorse.storage.mysql.hot_path import HotPath
from packhorse.storage.mysql.lists import PATIENCE, MySQLIndex
from packhorse.storage.mysql.literals import RawSQL, literal, rendered
from packhorse.storage.mysql.notifier import Notifier
from packhorse.storage.mysql.statements import NOW, dialect_for, statements_for
from packhorse.storage.mysql.transaction import MySQLTransaction, check_known_id, write_names
from packhorse.storage.mysql.transfer import MySQLTransfers
from packhorse.storage.records import (
    Enqueued,
    EventFilter,
    Health,
    HeartbeatReply,
    Migration,
    OperationSums,
    Point,
    QueueInfo,
    Span,
    search_depth,
)
from packhorse.storage.sql.lists import JobLists
from packhorse.storage.sql.rows import from_json, to_json
from packhorse.storage.sql.server import ServerStorage
from packhorse.storage.sql.storage import abort_request_of
from packhorse.storage.sql.transaction import Shared
from packhorse.storage.transfer import may_go_on

_FOLDED_AT_A_TIME = 1_000
_MOST_FOLDS = 20
_LONG_HISTORY = 1_000_000


class MySQL(ServerStorage):
    """Jobs in a MySQL or MariaDB database. Open it with `open_storage("mysql://user@host/database")`.

    The clock is the server's.
    """

    def __init__(self, address: Address, *, now: clock.Now | None = None) -> None:
        self.address = address
        self._clock = now
        self._sql = statements_for(address.database)
        self._dialect = dialect_for(address.database)
        self._shared = Shared(self._sql, self._dialect)
        self._db: Database = Database(
            address,
            self._shared,
            prepare=self._prepare,
            now=now,
            after_commit=self._committed,
        )
        self._notifier = Notifier(self._has_work)
        self._lists = JobLists(self._db, self._sql, self._dialect, MySQLIndex, PATIENCE)
        self._events = EventReader(self._db, self._dialect, self.now)
        self._transfers = MySQLTransfers(self._db, self._sql, self._dialect)
        self._hot_path = HotPath(self, self._db, self._shared, self._notifier, FairShare())
        self._own_id: str | None = None

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
        schema.prepare(connection, self.address.database, missing=None if self._creates else missing)

    def close(self) -> None:
        self._shared.names.clear()
        self._db.pool.close()

    def moment(self) -> int | RawSQL:
        """What statements take as the time."""
        return RawSQL(NOW) if self._clock is None else self._clock()

    def _committed(self, tx: MySQLTransaction) -> None:
        if tx.wakes:
            self._hot_path.cursor.forget()
            self._notifier.notify()
        self.note_deltas(tx.deltas)

    # --- migrations -----------------------------------------------------------------------------------------------

    def pending_migrations(self) -> list[Migration]:
        with self._db.unprepared() as connection:
            missing = schema.pending(connection, self.address.database)
        return [Migration(name, sql) for name, sql in schema.script(self.address.database, missing)]

    def migrate(self) -> list[str]:
        with self._db.unprepared() as connection:
            return schema.migrate(connection, self.address.database)

    # --- the hot path: `hot_path.py` -------------------------------------------------------------------------------

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if not jobs:
            return []
        enqueued = self._hot_path.enqueue(jobs)
        return self._write("enqueue", lambda tx: self._enqueue(tx, jobs)) if enqueued is None else enqueued

    def _enqueue(self, tx: MySQLTransaction, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if any(new.unique or new.subscriber for new in jobs):
            return new_jobs.enqueue(tx, jobs)
        tx.know({new.queue for new in jobs}, {new.task: new.queue for new in reversed(jobs)})
        try:
            tx.nested(lambda own: own.insert_new(jobs))
        except pymysql.IntegrityError as error:
            check_known_id(error)
            return new_jobs.enqueue(tx, jobs)  # a call is repeated whose answer was lost
        return [Enqueued(new.id) for new in jobs]

    def reserve(self, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        return self._hot_path.reserve(owner, queues, limit)

    def start(self, tokens: Sequence[Token], agos: Sequence[int] = ()) -> list[Verdict]:
        verdicts = super().start(tokens, agos)
        self._hot_path.forget(tokens)
        return verdicts

    def finish(self, outcomes: Sequence[Outcome]) -> list[Verdict]:
        return self._hot_path.finish(outcomes)

    def finish_and_reserve(
        self, outcomes: Sequence[Outcome], owner: str, queues: Mapping[str, int], limit: int
    ) -> tuple[list[Verdict], list[Job]]:
        return self._hot_path.finish_and_reserve(outcomes, owner, queues, limit)

    def heartbeat(self, reports: Mapping[str, Mapping[str, Any]]) -> HeartbeatReply:
        """In one round trip for all workers of a foreman: every foreman calls this every few seconds."""
        if not reports:
            return HeartbeatReply(self.now(), [], [])
        cases = (f"WHEN {literal(owner)} THEN {literal(to_json(report))}" for owner, report in reports.items())
        report = RawSQL(f"CASE id {' '.join(cases)} END")
        owners = to_json(sorted(reports))

        def work(connection: MySQLConnection) -> HeartbeatReply:
            beat = connection.render(self._sql["beat"], (self.moment(), report, owners))
            beaten, found = connection.script([beat, connection.render(self._sql["beaten"], (self.moment(), owners))])
            unknown = []
            if beaten.rowcount < len(reports):
                known = {owner for (owner,) in connection.rows(self._sql["known_among"], (owners,))}
                unknown = [owner for owner in reports if owner not in known]
            stops = [abort_request_of(row[1:]) for row in found.rows if row[1] is not None]
            return HeartbeatReply(int(found.rows[0][0]), unknown, stops)

        return self._db.read_with("beat", work)

    # --- a caller's transaction ---------------------------------------------------------------------------------------

    def enqueue_within(self, connection: object, jobs: Sequence[NewJob]) -> list[Enqueued]:
        # On a connection of our own: the caller's transaction must not create tables, and would lock the names that it
        # writes until it ends, for all who enqueue with them.
        here = self._storage_id()
        if not self._shared.names.have_all(jobs):
            may_go_on(self.move(), "enqueue")
            self._write_names(jobs)
        if not jobs:
            return []
        try:
            with joined(connection, self._sql, self._dialect) as external:
                self._check_storage(external, here)
                mark, now = external.execute(self._sql["share_writing"]).fetchone()
                own_now = int(now) if self._clock is None else self._clock()
                tx = MySQLTransaction(external, self._shared, own_now, mark)
                tx.read_outside = self.get_many
                tx.client_exists_outside = self._client_exists
                may_go_on(self._read_mark(tx), "enqueue")
                enqueued = self._enqueue_outside(tx, jobs)
                tx.flush()
        except pymysql.Error as error:
            if code_of(error) in LOST_RACES:
                raise  # the transaction lost a race: code that repeats it expects this error
            raise self._db.translated(error) from error
        return enqueued

    def _write_names(self, jobs: Sequence[NewJob]) -> None:
        """Each statement commits by itself, so this cannot wait for a transaction that waits for the caller."""
        tasks, queues = {new.task: new.queue for new in reversed(jobs)}, sorted({new.queue for new in jobs})
        self._db.read_with("know", lambda connection: write_names(connection, self._sql, tasks, queues))
        self._shared.names.add([*(("task", task) for task in tasks), *(("queue", queue) for queue in queues)])

    def _client_exists(self, client_id: str) -> bool:
        return bool(self._db.read("clients", self._sql["client_exists_unlocked"], (client_id,)))

    def _storage_id(self) -> str:
        """Identifies these tables."""
        if self._own_id is None:
            ((self._own_id,),) = self._db.read("which_server", self._sql["which_storage"])
        return self._own_id

    def _check_storage(self, connection: MySQLConnection, here: str) -> None:
        try:
            there = connection.execute(self._sql["which_storage"]).fetchone()[0]
        except Exception as error:
            if code_of(getattr(error, "orig", error)) not in NOT_THERE:
                raise
            there = None
        if there != here:
            raise elsewhere("another server", self.address.shown)

    # --- queries --------------------------------------------------------------------------------------------------

    def queues(self) -> list[QueueInfo]:
        def work(connection: MySQLConnection) -> list[QueueInfo]:
            paused: dict[str, list[Any]] = {}
            counts: defaultdict[str, dict[State, int]] = defaultdict(dict)
            for name, state, number, *rest in connection.rows(self._sql["all_queues"]):
                if state:
                    counts[name][State(state)] = number
                else:
                    paused[name] = [number, *rest]
            oldest = self._oldest(connection, [name for name, numbers in counts.items() if numbers.get(QUEUED)])
            return [
                QueueInfo(name, counts.get(name, {}), at, by, why, until, oldest.get(name))
                for name, (at, by, why, until) in sorted(paused.items())
            ]

        return self._db.read_with("queues", work)

    def _oldest(self, connection: MySQLConnection, queues: list[str]) -> dict[str, int]:
        """Since when the oldest queued job of each of these queues waits; see `search_depth`. In two trips: in MariaDB
        a part of a statement cannot look a little into each of the queues that another part finds."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        unsure: list[tuple[str, int]] = []
        if not queues:
            return {}
        for queue, rank, since, is_oldest in connection.rows(self._sql["first_in_line"], (to_json(queues),)):
            found[queue].append(since)
            if not is_oldest:
                unsure.append((queue, rank))
        depth = search_depth(len(unsure))
        if depth > 1:
            few = connection.executemany(self._sql["oldest_in_line"], [(*line, depth) for line in unsure])
            for (queue, _), answer in zip(unsure, few, strict=True):
                found[queue] += [since for (since,) in answer.rows if since is not None]  # None: all taken meanwhile
        return {queue: min(times) for queue, times in found.items()}

    def events(self, where: EventFilter, *, limit: int = 100, newest_first: bool = False) -> list[Event]:
        return self._events.read(where, limit, newest_first=newest_first)

    def series(self, span: Span, *, queue: str | None = None, task: str | None = None) -> list[Point]:
        width, start = span.level.width, span.level.start_of(self.now() - span.length)
        parts = [rendered(self._sql["measured"], (level, start, queue, task)) for level in span.levels]
        parts.append(rendered(self._sql["unfolded_measures"], (start, queue, task)))
        points: dict[tuple[int, str, str], dict[str, int]] = {}
        # In one statement: between two of them another process may fold.
        (result,) = self._db.read_with("series", lambda connection: connection.script([" UNION ALL ".join(parts)]))
        for at, its_queue, its_task, text in result.rows:
            values = points.setdefault((at - at % width, its_queue, its_task), {})
            for counted, amount in from_json(text).items():
                values[counted] = values.get(counted, 0) + amount
        return [Point(*key, values) for key, values in sorted(points.items())]

    # --- maintenance ----------------------------------------------------------------------------------------------

    def promote(self, *, limit: int = 500) -> int:
        return super().promote(limit=limit) if self._is_late() else 0

    def expire(self, *, limit: int = 500) -> int:
        return super().expire(limit=limit) if self._is_late() else 0

    def _is_late(self) -> bool:
        """Whether jobs are due or have expired. A read before a transaction: mostly there is nothing to do."""
        return bool(self._db.read("promote", self._sql["late"], (self.moment(),))[0][0])

    def roll_up(self) -> None:
        ages = [level.keep + level.width for level in (MINUTES, HOURS, DAYS)]
        if self._db.read("roll_up", self._sql["has_to_fold"], (self.moment(), *ages))[0][0]:
            super().roll_up()

    def _fold(self, tx: MySQLTransaction) -> bool:
        if not tx.execute(self._sql["lock_measures"]).fetchall():
            return False
        for _ in range(_MOST_FOLDS):
            numbers = [row[0] for row in tx.execute(self._sql["unfolded"], (_FOLDED_AT_A_TIME,)).fetchall()]
            if numbers:
                tx.execute(self._sql["fold_deltas"], (to_json(numbers),))
                tx.execute(self._sql["delete_deltas"], (to_json(numbers),))
            if len(numbers) < _FOLDED_AT_A_TIME:
                break
        return True

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
