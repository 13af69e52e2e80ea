"""Moving a storage: the mark, and the rows that go to another storage or come from one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from packhorse.storage.broken_records import facts_in
from packhorse.storage.records import LogLine, QueueInfo, log_kind
from packhorse.storage.sql.rows import FIELDS, Row, event_of, event_row, from_json, job_of, job_row, to_json
from packhorse.storage.sql.statements import Dialect
from packhorse.storage.sql.transaction import Database, SQLConnection, SQLTransaction, place_of
from packhorse.storage.transfer import (
    ROWS,
    Dumped,
    LoggedLine,
    Move,
    Section,
    bare,
    decode,
    encode,
)


class Table(NamedTuple):
    """The table of a section, and the order of its pages."""

    name: str
    columns: tuple[str, ...]
    order: tuple[str, ...]


_EVENT = ("id", "at", "kind", "subject", "job_id", "queue", "state", "owner", "fence", "data")
_LINE = ("message", "kind", "at", "attempt", "id")
_PAUSE = ("name", "paused_at", "paused_by", "paused_why", "paused_until", "timed_at")
_COUNTED = ("level", "at", "queue", "task", "counted")


def _fields(section: Section, *counted: str) -> tuple[str, ...]:
    """The columns of a section's rows; `counted` fields have none."""
    return tuple(name for name in ROWS[section].__struct_fields__ if name not in counted)


TABLES = {
    Section.TASKS: Table("task", _fields(Section.TASKS), ("name",)),
    Section.QUEUES: Table("queue", _PAUSE, ("name",)),
    Section.CLIENTS: Table("client", _fields(Section.CLIENTS, "subscriptions"), ("id",)),
    Section.JOBS: Table("job", FIELDS, ("seq",)),
    Section.LOCKS: Table("unique_lock", _fields(Section.LOCKS), ("key",)),
    Section.REPLACED: Table("replaced", _fields(Section.REPLACED), ("at", "twin")),
    Section.SUBSCRIPTIONS: Table("subscriber", _fields(Section.SUBSCRIPTIONS), ("job_id", "client_id")),
    Section.LOG: Table("log_line", ("job_id", *_LINE), ("id",)),
    Section.EVENTS: Table("event", _EVENT, ("id",)),
    Section.FAILURES: Table("failure", _fields(Section.FAILURES, "counts"), ("cause",)),
    Section.SCHEDULES: Table("schedule", _fields(Section.SCHEDULES), ("name",)),
    Section.TICKS: Table("tick", _fields(Section.TICKS), ("id",)),
    Section.MEASURES: Table("measure", (*_COUNTED, "amount"), _COUNTED),
}
_JSON = {"options", "info"}


class Transfers:
    """Moving into and out of one storage. A database overrides what it stores elsewhere, and how it locks."""

    counted = "measure"
    """The table, or the view, of all that is counted."""
    dumped_only: Mapping[Section, tuple[str, ...]] = {Section.MEASURES: ("level <> 'tally'",)}
    """Conditions for the rows that are of use in another storage."""

    def __init__(self, db: Database, sql: Mapping[str, str], dialect: Dialect) -> None:
        self._db = db
        self._sql = sql
        self._dialect = dialect

    # --- the mark -------------------------------------------------------------------------------------------------

    def move(self) -> Move | None:
        return self._db.read_with("move", self.mark_in)

    def mark_in(self, connection: SQLConnection) -> Move | None:
        """The mark of a move, as this connection sees it."""
        row = connection.execute(self._sql["get_move"]).fetchone()
        return None if row is None else decode(row[0])

    def set_move(self, move: Move | None, expected: Move | None) -> bool:
        def work(tx: SQLTransaction) -> bool:
            self._stop_others(tx)
            return self._put_mark(tx, move, expected)

        return self._db.write("set_move", work)

    def _stop_others(self, tx: Any) -> None:
        """Wait until no other call runs, and let none begin before this transaction ends. A database with one writer
        does nothing."""

    def _put_mark(self, tx: Any, move: Move | None, expected: Move | None) -> bool:
        if self.mark_in(tx) != expected:
            return False
        key = self._dialect.name("key")
        if expected is not None:
            tx.execute(self._dialect.say(f"DELETE FROM {self._dialect.prefix}meta WHERE {key} = ?"), ("move",))
        if move is not None:
            put = self._dialect.say(f"INSERT INTO {self._dialect.prefix}meta ({key}, value) VALUES (?, ?)")
            tx.execute(put, ("move", encode(move)))
        else:
            tx.wakes = True
        return True

    # --- out ------------------------------------------------------------------------------------------------------

    def dump(self, section: Section, cursor: str | None, limit: int) -> Dumped:
        table = TABLES[section]
        after = [] if cursor is None else from_json(cursor)
        rows = self._db.read("dump", self._page(section, table, bool(after)), (*after, limit))
        width = len(rows[0]) - len(table.order) if rows else 0
        following = to_json(list(rows[-1][width:])) if len(rows) == limit else None
        return Dumped([_out(section, row[:width]) for row in rows], following)

    def _page(self, section: Section, table: Table, is_later: bool) -> str:
        """The statement that reads a page. The last columns of a row are the cursor of the next page."""
        name = self._dialect.name
        order = ", ".join(map(name, table.order))
        columns = self._dialect.job if section is Section.JOBS else ", ".join(map(name, table.columns))
        source, where, group = table.name, list(self.dumped_only.get(section, ())), ""
        if section is Section.MEASURES:
            source = self.counted
            columns = f"{order}, sum(amount)"
            group = f" GROUP BY {order}"
        if is_later:
            where.append(f"({order}) > ({', '.join('?' * len(table.order))})")
        condition = f" WHERE {' AND '.join(where)}" if where else ""
        return self._dialect.say(
            f"SELECT {columns}, {order} FROM {self._dialect.prefix}{source}{condition}{group} ORDER BY {order} LIMIT ?"
        )

    # --- in -------------------------------------------------------------------------------------------------------

    def load(self, section: Section, rows: Sequence[Any], move: Move, expected: Move) -> bool:
        def work(tx: SQLTransaction) -> bool:
            if not self._put_mark(tx, move, expected):
                return False
            if rows:
                self._load(tx, section, rows)
            return True

        return self._db.write("load", work)

    def _load(self, tx: Any, section: Section, rows: Sequence[Any]) -> None:
        if section is Section.JOBS:
            for job in rows:
                tx.move(None, place_of(job))
        self._insert_rows(tx, section, [_in(section, row) for row in rows])

    def _insert_rows(self, tx: Any, section: Section, rows: Sequence[Row]) -> None:
        table = TABLES[section]
        columns, marks = ", ".join(map(self._dialect.name, table.columns)), ", ".join("?" * len(table.columns))
        sql = f"INSERT INTO {self._dialect.prefix}{table.name} ({columns}) VALUES ({marks})"
        tx.executemany(self._dialect.say(sql), rows)


def _out(section: Section, row: Row) -> Any:
    """The record in a row of a table."""
    kind: Any = ROWS[section]
    if section is Section.JOBS:
        return job_of(row)
    if section is Section.EVENTS:
        return event_of(row)
    if section is Section.QUEUES:
        name, at, by, why, until, timed_at = row
        return QueueInfo(name, {}, at, by, why, until if at is not None and timed_at == at else None)
    if section is Section.LOG:
        job_id, message, kind_of_line, *rest = row
        return LoggedLine(job_id, LogLine(message, log_kind(kind_of_line), *rest))
    if section is Section.MEASURES:
        *place, amount = row
        return kind(*place, int(amount))
    columns = TABLES[section].columns
    return kind(*(facts_in(value) if name in _JSON else value for name, value in zip(columns, row, strict=True)))


def _in(section: Section, row: Any) -> Row:
    """The row of a record."""
    if section is Section.JOBS:
        return job_row(row)
    if section is Section.EVENTS:
        *about, owner, fence, data = event_row(row)
        return (row.id, *about, owner or None, fence or None, data or None)
    if section is Section.QUEUES:
        queue = bare(row)
        return (queue.name, queue.paused_at, queue.paused_by, queue.paused_why, queue.paused_until, queue.paused_at)
    if section is Section.LOG:
        line = row.line
        return (row.job_id, line.message, line.kind.value, line.at, line.attempt, line.id)
    values = ((name, getattr(row, name)) for name in TABLES[section].columns)
    return tuple(to_json(value) if name in _JSON else value for name, value in values)
