"""Lists and counts of jobs. Each call walks an index in the order of the list and stops after a bounded number of jobs,
so that no filter can block the storage."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any

from packhorse.core.job import HELD, RANK_FORCED, RANKS, RETRYING, Job, Reason
from packhorse.storage import queries
from packhorse.storage.argument_filter import LONGEST, arguments_match, traces_of
from packhorse.storage.queries import BY_DUE_TIME, FEW_QUEUES, IN_LINE, LATEST_FINISHED, NEWEST, Narrowed, Order, Place
from packhorse.storage.records import Count, Filter, Page, Tally
from packhorse.storage.sql.rows import job_of, to_json
from packhorse.storage.sql.statements import Dialect
from packhorse.storage.sql.transaction import Database, SQLConnection

AT_A_TIME = 500
_FEWEST = 5
AT_MOST = 5_000
"""How many jobs one call looks at before it returns what it has found."""
_AT_LEAST = 1_500  # before it may run out of patience
_COUNTED_FOR_EACH = 3  # a count looks at so many times as many jobs as a list
_PLACES = {
    IN_LINE.name: "{rank}, seq",
    BY_DUE_TIME.name: "due_at, seq",
    LATEST_FINISHED.name: "-finished_at, -seq",
    NEWEST.name: "-seq",
}
_FEW_IDS = 500  # with the same beginning: all are looked at
_FEW_JOBS = 2_000  # of some queues: all are looked at, wherever they are in the list
_NEAR = 200  # jobs: the search for a time ends when it is so close
HIGHEST = 1 << 62
_LAST_CHARACTER = chr(0x10FFFF)


class JobLists:
    """Lists and counts for one storage. `patience` is how many seconds a call may look for jobs: on some servers that
    takes long."""

    def __init__(
        self,
        db: Database,
        sql: Mapping[str, str],
        dialect: Dialect,
        index: type[Index],
        patience: float = math.inf,
    ) -> None:
        self.patience = patience
        self._db = db
        self._sql = sql
        self._dialect = dialect
        self._index_type = index

    def find(self, where: Filter, cursor: str | None, limit: int) -> Page:
        order = queries.order_for(where)
        after = queries.decode_cursor(cursor, order)

        def work(connection: SQLConnection) -> Page:
            found: list[Job] = []
            looked_at = 0
            ends_at = time.monotonic() + self.patience
            index = self._index(connection)
            near, number = index.narrowed(where, order)
            if (few := index.few_that_may_fit(near, order, number)) is not None:
                rest = [place for place in index.in_order(order, near, few) if after is None or place > after]
                found = sorted(index.fitting(near, rest[:limit], limit), key=order.place)
                return Page(found, queries.encode_cursor(order, rest[limit - 1]) if len(rest) > limit else None)
            walk = index.walk(order, near, after)
            at_a_time = min(AT_A_TIME, max(limit * 2, 100))
            while places := list(islice(walk, at_a_time)):
                looked_at += len(places)
                found += sorted(index.fitting(near, places, limit + 1 - len(found)), key=order.place)
                if len(found) > limit:
                    return Page(found[:limit], queries.encode_cursor(order, order.place(found[limit - 1])))
                if index.is_past(near, order, places[-1]):
                    return Page(found)
                if after is None and len(found) == number and queries.is_tallied(where):
                    if index.narrowed(where, order).number == number:  # none has come or gone meanwhile
                        return Page(found)
                    number = None
                if looked_at >= AT_MOST or (looked_at >= _AT_LEAST and time.monotonic() > ends_at):
                    return Page(found, queries.encode_cursor(order, places[-1]))
                at_a_time = AT_A_TIME  # few fit
            return Page(found)

        return self._db.read_with("find", work)

    def ids_with(self, part: str, cursor: str | None, limit: int) -> tuple[list[str], str | None]:
        """Ids that begin or end with this, and where the next call continues."""

        def work(connection: SQLConnection) -> tuple[list[str], str | None]:
            index = self._index(connection)
            beginning = index.ids_that_begin(part, limit) if cursor is None else []
            ending, following = index.ids_that_end(part, cursor, limit)
            return list(dict.fromkeys(beginning + ending)), following

        return self._db.read_with("find", work)

    def count(self, where: Filter, cap: int, tallies: Callable[[], list[Tally]]) -> Count:
        if queries.is_tallied(where):
            return Count(queries.sum_tallies(where, tallies()))

        def work(connection: SQLConnection) -> Count:
            number = looked_at = 0
            ends_at = time.monotonic() + self.patience
            index = self._index(connection)
            order = queries.order_for(where) if where.cause is None else NEWEST
            near, tallied = index.narrowed(where, order)
            if (few := index.few_that_may_fit(near, order, tallied)) is not None:
                number = index.number_fitting(near, few)
                return Count(min(number, cap), exact=number <= cap)
            walk = index.walk(order, near, None)
            most = AT_MOST if queries.is_expensive(near) else max(_COUNTED_FOR_EACH * AT_MOST, cap)
            while places := list(islice(walk, 2_000)):
                number += index.number_fitting(near, places)
                looked_at += len(places)
                if number > cap:
                    return Count(cap, exact=False)
                if looked_at >= most or (looked_at >= _AT_LEAST and time.monotonic() > ends_at):
                    return Count(number, exact=next(walk, None) is None)
            return Count(number)

        return self._db.read_with("count", work)

    def _index(self, connection: SQLConnection) -> Index:
        return self._index_type(connection, self._dialect, self._sql)


class Index:
    """Walks the indexes over the jobs. The last number of a place is the seq, negative if the order is descending."""

    ids_at_a_time = 100_000
    """How many ids one call looks at."""

    def __init__(self, connection: SQLConnection, dialect: Dialect, statements: Mapping[str, str]) -> None:
        self._execute = connection.execute
        self._dialect = dialect
        self._jobs = self._ids = f"{dialect.prefix}job"
        self._sql = statements

    # --- where to look --------------------------------------------------------------------------------------------

    def narrowed(self, where: Filter, order: Order) -> Narrowed:
        """The same jobs, in the queues in which the tallies count them."""
        if not queries.is_narrowed(where, order):
            return Narrowed(where)
        condition, values = self._conditions(queries.tallied_part(where))
        sql = f"SELECT queue, sum(number) FROM ({self._sql['all_tallies']}) AS tally WHERE {condition}"
        rows = self._execute(self._dialect.say(f"{sql} GROUP BY queue"), values).fetchall()
        return queries.narrow(where, {queue: int(number) for queue, number in rows})

    def few_that_may_fit(self, where: Filter, order: Order, number: int | None) -> list[Place] | None:
        """All jobs among which those that fit are, if they are few; None: they are many, or their number is unknown."""
        if number == 0:
            return []
        named = self.named_so(where)
        return self._few_of_their_kind(where, order, number) if named is None else named

    def _few_of_their_kind(self, where: Filter, order: Order, number: int | None) -> list[Place] | None:
        """The places of all jobs of a cause or of some queues, if they are few."""
        if where.cause is not None and order is not NEWEST:
            walk = self._newest_with("cause", where.cause, HIGHEST)
        elif number is None or number > _FEW_JOBS or order not in (BY_DUE_TIME, LATEST_FINISHED):
            return None
        elif (queues := self._queues_meant(where)) is not None:
            walk = self._newest_of_queues(queues, HIGHEST)
        else:
            return None
        places = list(islice(walk, _FEW_JOBS + 1))
        return places if len(places) <= _FEW_JOBS else None

    # --- walking --------------------------------------------------------------------------------------------------

    def walk(self, order: Order, where: Filter, after: Place | None) -> Iterator[Place]:
        """The places of the jobs that may fit, in the order of the list, after `after`."""
        if order is IN_LINE:
            return self._walk_line(where, after)
        if order is BY_DUE_TIME:
            # Few jobs retry, and those have an index to themselves; many may be scheduled.
            which = "state = 'retrying'" if where.states == {RETRYING} else "due_at IS NOT NULL"
            return self._rows(
                f"SELECT due_at, seq FROM {self._jobs} WHERE {which} AND (due_at, seq) > (?, ?) ORDER BY due_at, seq",
                after or (-1, -1),
            )
        if order is LATEST_FINISHED:
            return merge(*(self._walk_finished(state.value, after) for state in sorted(where.states)))
        return self._walk_newest(where, after)

    def _walk_line(self, where: Filter, after: Place | None) -> Iterator[Place]:
        start_rank, start_seq = after or (RANKS[0], -1)
        for rank in [RANK_FORCED] if where.forced else RANKS:
            if rank < start_rank:
                continue
            queues = [where.queue] if where.queue else self._queues_of(rank, where)
            behind = start_seq if rank == start_rank else -1
            first = max(_FEWEST, AT_A_TIME // max(len(queues), 1))
            yield from merge(*(self._walk_one_line(rank, queue, behind, first) for queue in queues))

    def _walk_one_line(self, rank: int, queue: str, behind: int, first: int) -> Iterator[Place]:
        return self._rows(
            f"SELECT rank, seq FROM {self._jobs} WHERE state = 'queued' AND {self._dialect.of_rank}"
            " AND queue = ? AND seq > ? ORDER BY rank, seq",
            (behind,),
            (*self._of_rank(rank), queue),
            first,
        )

    def _of_rank(self, rank: int) -> list[int]:
        return [rank] * self._dialect.of_rank.count("?")

    def _queues_of(self, rank: int, where: Filter) -> list[str]:
        rows = self._execute(self._sql["lines_of_rank"], (rank, "", HIGHEST)).fetchall()
        return [row[0] for row in rows if queries.is_one_of(row[0], where.queues)]

    def _queues_meant(self, where: Filter) -> list[str] | None:
        """The queues in which the jobs are, if they are few; None: they may be in any."""
        if (named := queries.queues_named(where)) is not None or not where.queues:
            return named
        rows = self._execute(self._dialect.say(f"SELECT name FROM {self._dialect.prefix}queue")).fetchall()
        names = sorted(row[0] for row in rows if queries.is_one_of(row[0], where.queues))
        return names if len(names) <= FEW_QUEUES else None

    def _walk_finished(self, state: str, after: Place | None) -> Iterator[Place]:
        return self._rows(
            f"SELECT -finished_at, -seq FROM {self._jobs} WHERE state = ? AND finished_at IS NOT NULL"
            " AND (finished_at, seq) < (?, ?) ORDER BY finished_at DESC, seq DESC",
            (-after[0], -after[1]) if after else (HIGHEST, HIGHEST),
            (state,),
        )

    def _walk_newest(self, where: Filter, after: Place | None) -> Iterator[Place]:
        """Along the best index: by owner, held jobs, by cause, by queue, or all jobs."""
        behind = -after[0] if after else self._end_of(where.created_to)
        if where.owner is not None:
            return self._newest_with("owner", where.owner, behind)
        if where.states and where.states <= HELD:
            return self._newest_held(behind)
        if where.cause is not None:
            return self._newest_with("cause", where.cause, behind)
        if (queues := self._queues_meant(where)) is not None:
            return self._newest_of_queues(queues, behind)
        return self._newest_of_all(behind)

    def _end_of(self, moment: int | None) -> int:
        """A seq from which on all jobs were created after this moment, found by bisection; `CLOCK_SLACK` says how far
        creation times may be out of order."""
        if moment is None:
            return HIGHEST
        too_young = moment + queries.CLOCK_SLACK
        (high, created_at), end = self._edge("<=", HIGHEST, "DESC"), HIGHEST
        if created_at < too_young:
            return end
        low, _ = self._edge(">=", 0, "ASC")
        while high - low > _NEAR:
            middle = (low + high) // 2
            seq, created_at = self._edge(">=", middle, "ASC")
            if created_at >= too_young:
                end, high = seq, middle
            else:
                low = max(seq, middle)
        return end

    def _edge(self, sign: str, seq: int, direction: str) -> tuple[int, int]:
        """The seq and creation time of the first job on this side of a seq."""
        sql = f"SELECT seq, created_at FROM {self._jobs} WHERE seq {sign} ? ORDER BY seq {direction} LIMIT 1"
        row: tuple[int, int] | None = self._execute(self._dialect.say(sql), (seq,)).fetchone()
        return row or (HIGHEST, 0)

    def _newest_of_all(self, behind: int) -> Iterator[Place]:
        return self._rows(f"SELECT -seq FROM {self._jobs} WHERE seq < ? ORDER BY seq DESC", (behind,))

    def _newest_held(self, behind: int) -> Iterator[Place]:
        seq = self._dialect.unordered_seq
        sql = f"SELECT -seq FROM {self._jobs} WHERE owner IS NOT NULL AND {seq} < ? ORDER BY {seq} DESC"
        return self._rows(sql, (behind,))

    def _newest_with(self, column: str, value: str, behind: int) -> Iterator[Place]:
        """Along an index over this column and the seq."""
        sql = f"SELECT -seq FROM {self._jobs} WHERE {column} = ? AND seq < ? ORDER BY seq DESC"
        return self._rows(sql, (behind,), (value,))

    def _newest_of_queues(self, queues: list[str], behind: int) -> Iterator[Place]:
        first = max(_FEWEST, AT_A_TIME // max(len(queues), 1))
        return merge(*(self._newest_of_queue(queue, behind, first) for queue in queues))

    def _newest_of_queue(self, queue: str, behind: int, first: int) -> Iterator[Place]:
        sql = f"SELECT -seq FROM {self._jobs} WHERE queue = ? AND seq < ? ORDER BY seq DESC"
        return self._rows(sql, (behind,), (queue,), first)

    def _rows(self, sql: str, behind: Place, values: Sequence[Any] = (), first: int = AT_A_TIME) -> Iterator[Place]:
        """Rows after a place, in parts: an open cursor would block SQLite's checkpoints, and a server would send
        everything. The `first` part may be small, as little is wanted of one walk among many."""
        sql = self._dialect.say(f"{sql} LIMIT ?")
        part = first
        while rows := self._part(sql, (*values, *behind, part)):
            yield from rows
            if len(rows) < part:
                return
            part = min(4 * part, AT_A_TIME)
            behind = tuple(abs(number) for number in rows[-1][-len(behind) :])

    def _part(self, sql: str, values: Sequence[Any]) -> list[Place]:
        return self._execute(sql, values).fetchall()

    def ids_that_begin(self, part: str, limit: int) -> list[str]:
        """Ids that begin with this."""
        before, values = _ids_before(_behind(part))
        sql = f"SELECT id FROM {self._ids} WHERE id >= ? AND {before} ORDER BY id DESC LIMIT ?"
        return [row[0] for row in self._execute(self._dialect.say(sql), (part, *values, limit)).fetchall()]

    def ids_that_end(self, part: str, cursor: str | None, limit: int) -> tuple[list[str], str | None]:
        """Ids that end with this, and where the next call continues. They may be anywhere: a long part of the index is
        read backwards, so that the newest of our own ids come first."""
        before, values = _ids_before(cursor)
        sql = f"SELECT id FROM {self._ids} WHERE {before} ORDER BY id DESC LIMIT 1 OFFSET {self.ids_at_a_time - 1}"
        edge = self._execute(self._dialect.say(sql), values).fetchone()
        first = edge[0] if edge else ""
        like = f"id LIKE ?{self._dialect.escape}"
        # One lower limit alone: of two, SQLite may go along the wrong one and read all ids.
        stretch, limits = ("id >= ?", [first]) if cursor is None else ("id < ? AND id >= ?", [cursor, first])
        sql = f"SELECT id FROM {self._ids} WHERE {stretch} AND {like} ORDER BY id DESC LIMIT ?"
        asked = (*limits, f"%{_escaped(part)}", limit)
        rows = self._execute(self._dialect.say(sql), asked).fetchall()
        following = rows[-1][0] if len(rows) == limit else first or None
        return [row[0] for row in rows if row[0].endswith(part)], following

    def is_past(self, where: Filter, order: Order, place: Place) -> bool:
        """Whether all jobs after this place are older than the filter wants."""
        if where.created_from is None:
            return False
        if order is LATEST_FINISHED:
            return queries.ended_before(where, place)
        if order is not NEWEST:
            return False
        sql = self._dialect.say(f"SELECT created_at FROM {self._jobs} WHERE seq = ?")
        row = self._execute(sql, (-place[0],)).fetchone()
        return row is not None and row[0] < where.created_from - queries.CLOCK_SLACK

    # --- filtering ------------------------------------------------------------------------------------------------

    def named_so(self, where: Filter) -> list[Place] | None:
        """All jobs whose id begins with that of the filter, if they are few; None: they are many, or it has none."""
        if where.id is None:
            return None
        before, values = _ids_before(_behind(where.id))
        sql = f"SELECT seq FROM {self._ids} WHERE id >= ? AND {before} LIMIT ?"
        rows = self._execute(self._dialect.say(sql), (where.id, *values, _FEW_IDS + 1)).fetchall()
        return [(row[0],) for row in rows] if len(rows) <= _FEW_IDS else None

    def fitting(self, where: Filter, places: list[Place], most: int) -> list[Job]:
        """The jobs at these places that fit: at least the first `most` of them."""
        if where.args:
            places = self._with_arguments(where, places)
        return [job_of(row) for row in self._ask(self._dialect.job, where, places)] if places else []

    def in_order(self, order: Order, where: Filter, places: list[Place]) -> list[Place]:
        """The places of those that fit, in order. Jobs may be large, so they are not read for this."""
        if where.args:
            places = self._with_arguments(where, places)
        columns = _PLACES[order.name].format(rank=self._dialect.name("rank"))
        return sorted(tuple(row) for row in self._ask(columns, where, places)) if places else []

    def number_fitting(self, where: Filter, places: list[Place]) -> int:
        if where.args:
            return len(self._with_arguments(where, places))
        number: int = self._ask("count(*)", where, places)[0][0] if places else 0
        return number

    def _with_arguments(self, where: Filter, places: list[Place]) -> list[Place]:
        """Those whose arguments fit. Databases differ in JSON, so their text is compared here."""
        rows = self._ask(f"seq, {self._dialect.args}", where, places) if places else []
        return [(seq,) for seq, args in rows if arguments_match(args, where.args)]

    def _ask(self, columns: str, where: Filter, places: list[Place]) -> list[Any]:
        condition, values = self._conditions(where)
        seqs = to_json([abs(place[-1]) for place in places])
        sql = f"SELECT {columns} FROM {self._jobs} WHERE seq {self._dialect.one_of_numbers} AND {condition}"
        return self._execute(self._dialect.say(sql), [seqs, *values]).fetchall()

    def _conditions(self, where: Filter) -> tuple[str, list[Any]]:
        """The filter in SQL, from fixed pieces. Only values come from users."""
        pieces: list[Piece] = []
        if where.states:
            pieces.append((f"state {self._dialect.one_of_texts}", [to_json(sorted(where.states))]))
        columns = ("queue", "task", "owner", "schedule", "unique_key", "cause")
        pieces += [(f"{column} = ?", [value]) for column in columns if (value := getattr(where, column)) is not None]
        pieces += [self._one_of("queue", where.queues)] if where.queues else []
        pieces += [self._one_of("task", where.tasks)] if where.tasks else []
        if where.halted is not None:
            halted = "(halts > 0 AND COALESCE(reason, '') = ?)"
            pieces.append((halted if where.halted else f"NOT {halted}", [Reason.RUNNER_TIMEOUT.value]))
        if where.forced:
            pieces.append((self._dialect.of_rank, self._of_rank(RANK_FORCED)))
        pieces += _within("priority", [], where.min_priority, where.max_priority)
        pieces += _within("attempts", [], where.min_attempts, where.max_attempts)
        pieces += _within(_TOOK, [where.asked_at], where.min_took, where.max_took)
        pieces += _within(_WAITED, [where.asked_at], where.min_waited, where.max_waited)
        if where.created_from is not None:
            pieces.append(("created_at >= ?", [where.created_from]))
        if where.created_to is not None:
            pieces.append(("created_at < ?", [where.created_to]))
        if where.id is not None:
            pieces.append((f"substr(id, 1, {len(where.id)}) = ?", [where.id]))
        if where.error is not None:
            pieces.append(self._mentions(["error"], where.error))
        pieces += [self._mentions(["id", "task", self._dialect.args, "error"], text) for text in where.texts]
        if where.args:
            pieces.append((f"length({self._dialect.args}) <= {LONGEST}", []))
            pieces += [self._mentions([self._dialect.args], trace) for trace in traces_of(where.args)]
        if not pieces:
            return self._dialect.true, []
        return " AND ".join(sql for sql, _ in pieces), [value for _, values in pieces for value in values]

    def _one_of(self, column: str, names: Iterable[str]) -> Piece:
        """The column is one of these names, or begins like one that ends with a star."""
        exact = [name for name in names if not name.endswith("*")]
        starts = [name[:-1] for name in names if name.endswith("*")]
        either = [f"{column} {self._dialect.one_of_texts}"] if exact else []
        either += [f"substr({column}, 1, {len(start)}) = ?" for start in starts]
        return f"({' OR '.join(either)})", [*([to_json(sorted(exact))] if exact else []), *starts]

    def _mentions(self, columns: Sequence[str], text: str) -> Piece:
        likes = [self._dialect.like.replace("{column}", column) for column in columns]
        return f"({' OR '.join(likes)})", [f"%{_escaped(text)}%"] * len(likes)


Piece = tuple[str, list[Any]]
"""A condition, and its values."""

_TOOK = """(CASE WHEN state = 'running' THEN ? WHEN state IN ('queued', 'scheduled', 'reserved') THEN NULL
    WHEN ran_until >= started_at THEN ran_until ELSE coalesce(finished_at, updated_at) END - started_at)"""
_WAITED = "(CASE WHEN state = 'queued' THEN ? WHEN started_at >= queued_at THEN started_at END - queued_at)"


def _within(number: str, values: list[Any], least: int | None, most: int | None) -> list[Piece]:
    """The number is between these. One below zero, from a clock that was set back, counts as zero."""
    pieces: list[Piece] = []
    if least is not None and least > 0:
        pieces.append((f"{number} >= ?", [*values, least]))
    elif least is not None:
        pieces.append((f"{number} IS NOT NULL", list(values)))
    if most is not None:
        pieces.append((f"{number} <= ?", [*values, most]))
    return pieces


def _ids_before(bound: str | None) -> tuple[str, list[str]]:
    """The ids before this one, or all: a condition, and its values."""
    return ("id >= ?", [""]) if bound is None else ("id < ?", [bound])


def _behind(part: str) -> str | None:
    """What sorts after everything that begins with this part; None: nothing does. In ASCII where possible: not every
    database can hold other characters."""
    if not part:
        return None
    return part[:-1] + chr(ord(part[-1]) + 1) if part[-1] < "~" else part + _LAST_CHARACTER


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
