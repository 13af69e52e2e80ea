"""The PostgreSQL storage: one schema of one database, its connections, its notifier, and what it does in its own
way."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import psycopg
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from packhorse.core import clock
from packhorse.core.errors import BadURL, BadValue, StorageNotFound, did_you_mean
from packhorse.core.event import Event
from packhorse.core.fair_share import FairShare
from packhorse.core.job import Job, NewJob, State, Token
from packhorse.core.outcome import Outcome, Verdict
from packhorse.storage import transfer
from packhorse.storage.contract import BATCH
from packhorse.storage.engine import new_jobs
from packhorse.storage.external_connection import elsewhere
from packhorse.storage.postgres import schema
from packhorse.storage.postgres.connection import PostgresConnection, can_be_stored
from packhorse.storage.postgres.database import Database, Options
from packhorse.storage.postgres.driver_errors import not_understood, translate, without_password
from packhorse.storage.postgres.events import EventReader
from packhorse.storage.postgres.external_connection import await_pipeline, joined
from packhorse.storage.postgres.hot_path import HotPath, placements
from packhorse.storage.postgres.lists import PATIENCE, PostgresIndex
from packhorse.storage.postgres.notifier import Notifier
from packhorse.storage.postgres.statements import dialect_for, statements_for
from packhorse.storage.postgres.transaction import PostgresTransaction
from packhorse.storage.postgres.transfer import PostgresTransfers
from packhorse.storage.records import (
    Enqueued,
    EventFilter,
    Health,
    HeartbeatReply,
    LogLine,
    Migration,
    OperationSums,
    QueueInfo,
)
from packhorse.storage.sql.lists import JobLists
from packhorse.storage.sql.rows import to_json
from packhorse.storage.sql.server import FOLD_AFTER, ServerStorage
from packhorse.storage.sql.storage import abort_request_of
from packhorse.storage.sql.transaction import Shared
from packhorse.storage.transfer import may_go_on

_OWN_OPTIONS = Options._fields
_DRIVERS_OPTIONS = {each.keyword.decode() for each in Conninfo.get_defaults()} | {"ssl"}
# It stands in names and in texts of statements: nothing that would have to be written otherwise in one of them.
_SCHEMA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_YES_OR_NO = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
_FOLDED_AT_A_TIME = 20_000
_LONG_TRANSACTION = 600
_MANY_DEAD_ROWS = 500_000


class Postgres(ServerStorage):
    """Jobs in a PostgreSQL database. Open it with `open_storage("postgresql://user@host/database")`.

    The clock is the server's.
    """

    event_stride = BATCH  # each row may be a batch of so many

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
        self._shared = Shared(self._sql, self._dialect)
        self._db: Database = Database(
            address,
            options,
            self._shared,
            prepare=self._prepare,
            now=now,
            after_commit=self._committed,
        )
        self._notifier = Notifier(self._db, self._sql, now)
        self._lists = JobLists(self._db, self._sql, self._dialect, PostgresIndex, PATIENCE)
        self._events = EventReader(self._db, self._dialect, self.moment)
        self._transfers = PostgresTransfers(self._db, self._sql, self._dialect, self._events)
        self._hot_path = HotPath(self, self._db, self._shared, self._notifier, FairShare())
        self._server: list[Any] | None = None  # which database of which running server has the jobs

    @classmethod
    def from_url(cls, url: str, *, now: clock.Now | None = None) -> Postgres:
        """`postgresql://user:password@host:port/database`; `?schema=packhorse`, `?pgbouncer=1`, `?connections=10`,
        `?patience=10s`; other options are for the driver, as `sslmode=require`."""
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
        schema.prepare(connection, name, missing=None if self._creates else missing)

    def close(self) -> None:
        self._shared.names.clear()
        self._server = None
        self._notifier.close()
        self._db.pool.close()

    def moment(self) -> int | None:
        """What statements take as the time: None for the server's own."""
        return None if self._clock is None else self._clock()

    def _committed(self, tx: PostgresTransaction) -> None:
        if tx.wakes:  # a job came into a queue, anywhere in it
            self._hot_path.cursor.forget()
            self._notifier.notify()
        if tx.deltas:
            self.note_deltas(tx.deltas)

    # --- migrations -----------------------------------------------------------------------------------------------

    def pending_migrations(self) -> list[Migration]:
        with self._db.unprepared() as connection:
            missing = schema.pending(connection, self.options.schema)
            is_there = schema.is_there(connection, self.options.schema)
        return [Migration(*step) for step in schema.script(self.options.schema, missing, is_there=is_there)]

    def migrate(self) -> list[str]:
        with self._db.unprepared() as connection:
            return schema.migrate(connection, self.options.schema)

    # --- the hot path: `hot_path.py` -------------------------------------------------------------------------------

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if not jobs:
            return []
        enqueued = self._hot_path.enqueue(jobs)
        return self._write("enqueue", lambda tx: self._enqueue(tx, jobs)) if enqueued is None else enqueued

    def _enqueue(self, tx: PostgresTransaction, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if any(new.unique or new.subscriber for new in jobs):
            return new_jobs.enqueue(tx, jobs)
        tx.know({new.queue for new in jobs}, {new.task: new.queue for new in reversed(jobs)})
        return placements(jobs, tx.insert_new(jobs))

    def reserve(self, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        return self._hot_path.reserve(owner, queues, limit)

    def wait_and_reserve(self, owner: str, queues: Mapping[str, int], limit: int, timeout: float) -> list[Job]:
        return self._hot_path.wait_and_reserve(owner, queues, limit, timeout)

    def start(self, tokens: Sequence[Token], agos: Sequence[int] = ()) -> list[Verdict]:
        return self._hot_path.start(tokens, agos)

    def finish(self, outcomes: Sequence[Outcome]) -> list[Verdict]:
        return self._hot_path.finish(outcomes)

    def finish_and_reserve(
        self, outcomes: Sequence[Outcome], owner: str, queues: Mapping[str, int], limit: int
    ) -> tuple[list[Verdict], list[Job]]:
        return self._hot_path.finish_and_reserve(outcomes, owner, queues, limit)

    def heartbeat(self, reports: Mapping[str, Mapping[str, Any]]) -> HeartbeatReply:
        """In one statement for all workers of a foreman: every foreman calls this every few seconds."""
        rows = [{"owner": owner, "report": to_json(report)} for owner, report in sorted(reports.items())]
        found = self._db.run("beat", self._sql["beat"], (to_json(rows), self.moment()))
        known = {owner for owner, beaten, *_ in found if beaten is not None}
        now = found[0][2] if found else self.now()
        stops = [abort_request_of((job_id, owner, *rest)) for owner, _, _, job_id, *rest in found if job_id]
        return HeartbeatReply(now, [owner for owner in reports if owner not in known], stops)

    # --- a caller's transaction ---------------------------------------------------------------------------------------

    def enqueue_within(self, connection: object, jobs: Sequence[NewJob]) -> list[Enqueued]:
        here = self._server or self._read_server()
        if not jobs:
            return []
        self._make_known(jobs)
        await_pipeline(connection)
        try:
            with joined(connection, self._sql, self._dialect) as external:
                now, *there = external.execute(self._sql["which_server"]).fetchone()
                if there != here and there != self._read_server():  # it may have been restarted
                    which = f"the database {there[0]}" if there[0] != here[0] else "another server"
                    raise elsewhere(which, without_password(self._db.address))
                tx = PostgresTransaction(external, self._shared, now if self._clock is None else self._clock())
                tx.read_outside = self.get_many
                # Closing the storage waits for this transaction from now on. The mark is read on a connection of our
                # own: the caller's may see only what was there when its transaction began.
                external.execute(self._sql["share_writing"])
                may_go_on(self.move(), "enqueue")
                enqueued = self._enqueue_outside(tx, jobs)
                tx.flush()
                if external.may_notify:
                    external.execute(self._sql["hint"], (to_json(sorted({new.queue for new in jobs})), tx.now))
        except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
            raise  # the transaction lost a race: code that repeats it expects this error
        except psycopg.Error as error:
            raise translate(error, self._db.address) from error
        return enqueued

    def _make_known(self, jobs: Sequence[NewJob]) -> None:
        """Write names on a connection of our own. In the caller's transaction they would be locked until it ends, for
        all who enqueue with them. Each statement commits by itself, so this cannot wait for a transaction that waits
        for the caller."""
        if self._shared.names.have_all(jobs):
            return
        may_go_on(self.move(), "enqueue")
        tasks = sorted({new.task: new.queue for new in reversed(jobs)}.items())
        queues = sorted({new.queue for new in jobs})

        def write(connection: PostgresConnection) -> None:
            for task in tasks:
                connection.execute(self._sql["know_task"], task)
            for queue in queues:
                connection.execute(self._sql["know_queue"], (queue,))

        self._db.read_with("know", write)
        self._shared.names.add([*(("task", task) for task, _ in tasks), *(("queue", queue) for queue in queues)])

    def _read_server(self) -> list[Any]:
        """Which database of which running server has the jobs. This also creates missing tables, which the caller's
        transaction must not do."""
        ((_, *self._server),) = self._db.read("whereabouts", self._sql["which_server"])
        return self._server

    # --- queries --------------------------------------------------------------------------------------------------

    def get_many(self, job_ids: Sequence[str]) -> list[Job]:
        return super().get_many([job_id for job_id in job_ids if can_be_stored(job_id)])

    def subscribers(self, job_id: str) -> list[str]:
        return super().subscribers(job_id) if can_be_stored(job_id) else []

    def outcomes_for(self, client_id: str, *, limit: int = 100) -> list[Job]:
        return super().outcomes_for(client_id, limit=limit) if can_be_stored(client_id) else []

    def log_lines(self, job_id: str, *, after: int = 0, limit: int = 1_000) -> list[LogLine]:
        return super().log_lines(job_id, after=after, limit=limit) if can_be_stored(job_id) else []

    def events(self, where: EventFilter, *, limit: int = 100, newest_first: bool = False) -> list[Event]:
        return self._events.read(where, limit, newest_first=newest_first)

    def queues(self) -> list[QueueInfo]:
        paused: dict[str, list[Any]] = {}
        counts: defaultdict[str, dict[State, int]] = defaultdict(dict)
        oldest: dict[str, int] = {}
        for name, what, number, *rest in self._db.read("queues", self._sql["all_queues"]):
            if not what:
                paused[name] = [number, *rest]
            elif what == "oldest":
                oldest[name] = number
            else:
                counts[name][State(what)] = number
        return [
            QueueInfo(name, counts.get(name, {}), at, by, why, until, oldest.get(name))
            for name, (at, by, why, until) in sorted(paused.items())
        ]

    # --- maintenance ----------------------------------------------------------------------------------------------

    def expire(self, *, limit: int = 500) -> int:
        ((is_any,),) = self._db.read("expire", self._sql["has_expired"], (self.moment(),))
        return super().expire(limit=limit) if is_any else 0

    def _fold(self, tx: PostgresTransaction) -> bool:
        ((is_ours,),) = tx.execute(self._sql["lock_measures"]).fetchall()
        if is_ours:
            ((number,),) = tx.execute(self._sql["fold_deltas"], (_FOLDED_AT_A_TIME,)).fetchall()
            if number == _FOLDED_AT_A_TIME:
                self._unfolded = FOLD_AFTER  # there are more: the next call folds them
        return bool(is_ours)

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
