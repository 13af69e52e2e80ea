"""Lists and counts of jobs. Each call walks an index in the list's natural order and stops after a bounded number of
jobs, so no filter, however odd, can hold up the storage."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from heapq import merge
from itertools import islice
from typing import Any

from packhorse.job import HELD, RANKS, Job
from packhorse.storage import listing
from packhorse.storage.listing import BY_DUE_TIME, IN_LINE, LATEST_FINISHED, Order, Place
from packhorse.storage.records import Count, Filter, Page
from packhorse.storage.sqlite.keeper import SQL, Keeper
from packhorse.storage.sqlite.rows import JOB_COLUMNS, job_of, to_json

_AT_ONCE = 500
_AT_MOST = 20_000
"""How many jobs one call looks at before it answers with what it has."""
_TEXT = "(id LIKE ? ESCAPE '\\' OR task LIKE ? ESCAPE '\\' OR {args} LIKE ? ESCAPE '\\' OR error LIKE ? ESCAPE '\\')"


class Lists(Keeper):
    def find(self, where: Filter, *, cursor: str | None = None, limit: int = 50) -> Page:
        order = listing.order_of(where.states)
        after = listing.decode_cursor(cursor, order)

        def work(connection: sqlite3.Connection) -> Page:
            found: list[Job] = []
            looked_at = 0
            walk = _walk(connection, order, where, after)
            while places := list(islice(walk, min(_AT_ONCE, max(limit * 2, 100)))):
                looked_at += len(places)
                fitting = sorted(_fitting(connection, where, places), key=order.place)
                found += fitting
                if len(found) > limit:
                    return Page(found[:limit], listing.encode_cursor(order, order.place(found[limit - 1])))
                if looked_at >= _AT_MOST:
                    return Page(found, listing.encode_cursor(order, places[-1]))
            return Page(found)

        return self._db.read_with("find", work)

    def count(self, where: Filter, *, cap: int = 10_000) -> Count:
        if listing.is_tallied(where):
            return Count(
                sum(
                    tally.number
                    for tally in self.tallies()
                    if (not where.states or tally.state in where.states)
                    and where.queue in (None, tally.queue)
                    and where.task in (None, tally.task)
                )
            )

        def work(connection: sqlite3.Connection) -> Count:
            number = looked_at = 0
            walk = _walk(connection, listing.order_of(where.states), where, None)
            while places := list(islice(walk, 2_000)):
                number += _number_fitting(connection, where, places)
                looked_at += len(places)
                if number > cap:
                    return Count(cap, exact=False)
                if looked_at >= max(5 * _AT_MOST, cap):
                    return Count(number, exact=next(walk, None) is None)
            return Count(number)

        return self._db.read_with("count", work)


# --- walking the indexes --------------------------------------------------------------------------------------------


def _walk(connection: sqlite3.Connection, order: Order, where: Filter, after: Place | None) -> Iterator[Place]:
    """The places of the jobs that may fit, in the list's order, behind `after`. The seq is each place's last number,
    negative where the order falls."""
    if order is IN_LINE:
        return _walk_line(connection, where, after)
    if order is BY_DUE_TIME:
        start = after or (-1, -1)
        return _rows(
            connection,
            "SELECT due_at, seq FROM packhorse_job WHERE due_at IS NOT NULL AND (due_at, seq) > (?, ?)"
            " ORDER BY due_at, seq",
            start,
        )
    if order is LATEST_FINISHED:
        return merge(*(_walk_finished(connection, state.value, after) for state in sorted(where.states)))
    return _walk_newest(connection, where, after)


def _walk_line(connection: sqlite3.Connection, where: Filter, after: Place | None) -> Iterator[Place]:
    start_rank, start_seq = after or (RANKS[0], -1)
    for rank in range(max(start_rank, RANKS[0]), RANKS[-1] + 1):
        queues = [where.queue] if where.queue else _queues_of(connection, rank)
        behind = start_seq if rank == start_rank else -1
        lines = [
            _rows(
                connection,
                "SELECT rank, seq FROM packhorse_job"
                " WHERE state = 'queued' AND rank = ? AND queue = ? AND seq > ? ORDER BY seq",
                (rank, queue, behind),
            )
            for queue in queues
        ]
        yield from merge(*lines)


def _queues_of(connection: sqlite3.Connection, rank: int) -> list[str]:
    return [row[0] for row in connection.execute(SQL["lines_of_rank"], (rank, "", -1)).fetchall()]


def _walk_finished(connection: sqlite3.Connection, state: str, after: Place | None) -> Iterator[Place]:
    finished_at, seq = (-after[0], -after[1]) if after else (1 << 62, 1 << 62)
    return _rows(
        connection,
        "SELECT -finished_at, -seq FROM packhorse_job WHERE state = ? AND finished_at IS NOT NULL"
        " AND (finished_at, seq) < (?, ?) ORDER BY finished_at DESC, seq DESC",
        (state, finished_at, seq),
    )


def _walk_newest(connection: sqlite3.Connection, where: Filter, after: Place | None) -> Iterator[Place]:
    """The best index: the holder's, all held jobs, the queue's, or simply all jobs."""
    conditions, order = ["seq < ?"], "seq"
    values: list[int | str] = [-after[0] if after else 1 << 62]
    if where.owner is not None:
        conditions.append("owner = ?")
        values.append(where.owner)
    elif where.states and where.states <= HELD:
        # The pluses keep SQLite from walking over all jobs to have the few held ones in order.
        conditions, order = ["+seq < ?", "owner IS NOT NULL"], "+seq"
    elif where.queue is not None:
        conditions.append("queue = ?")
        values.append(where.queue)
    return _rows(
        connection, f"SELECT -seq FROM packhorse_job WHERE {' AND '.join(conditions)} ORDER BY {order} DESC", values
    )


def _rows(connection: sqlite3.Connection, sql: str, values: Any) -> Iterator[Place]:
    # A cursor left open would hold up checkpoints, so it is read in parts that are fetched whole.
    cursor = connection.execute(sql, values)
    while rows := cursor.fetchmany(_AT_ONCE):
        yield from rows


# --- filtering ------------------------------------------------------------------------------------------------------


def _fitting(connection: sqlite3.Connection, where: Filter, places: list[Place]) -> list[Job]:
    condition, values = _conditions(where)
    seqs = to_json([abs(place[-1]) for place in places])
    sql = f"SELECT {JOB_COLUMNS} FROM packhorse_job WHERE seq IN (SELECT value FROM json_each(?)) AND {condition}"
    return [job_of(row) for row in connection.execute(sql, [seqs, *values]).fetchall()]


def _number_fitting(connection: sqlite3.Connection, where: Filter, places: list[Place]) -> int:
    condition, values = _conditions(where)
    seqs = to_json([abs(place[-1]) for place in places])
    sql = f"SELECT count(*) FROM packhorse_job WHERE seq IN (SELECT value FROM json_each(?)) AND {condition}"
    number: int = connection.execute(sql, [seqs, *values]).fetchone()[0]
    return number


def _conditions(where: Filter) -> tuple[str, list[Any]]:
    """The filter in SQL, from fixed pieces; only values come from users."""
    pieces: list[tuple[str, list[Any]]] = []
    if where.states:
        pieces.append(("state IN (SELECT value FROM json_each(?))", [to_json(sorted(where.states))]))
    columns = ("queue", "task", "owner", "schedule", "unique_key", "cause")
    pieces += [(f"{column} = ?", [value]) for column in columns if (value := getattr(where, column)) is not None]
    if where.halted is not None:
        pieces.append(("(halts > 0) = ?", [int(where.halted)]))
    if where.min_priority is not None:
        pieces.append(("priority >= ?", [where.min_priority]))
    if where.created_from is not None:
        pieces.append(("created_at >= ?", [where.created_from]))
    if where.created_to is not None:
        pieces.append(("created_at < ?", [where.created_to]))
    if where.text is not None:
        escaped = where.text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        args = "coalesce(args, (SELECT long.args FROM packhorse_large_args AS long WHERE long.job = seq))"
        pieces.append((_TEXT.format(args=args), [f"%{escaped}%"] * 4))
    if not pieces:
        return "1", []
    return " AND ".join(sql for sql, _ in pieces), [value for _, values in pieces for value in values]
