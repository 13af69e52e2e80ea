"""Lists and counts of jobs. Each call walks sorted sets in the order of the list, one part at a time, and stops after a
bounded number of jobs, so no filter can hold up the server."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from packhorse.core.job import HELD, RANK_FORCED, Job
from packhorse.storage import queries
from packhorse.storage.argument_filter import LONGEST, arguments_match, is_long_number, number_of
from packhorse.storage.contract import BATCH
from packhorse.storage.queries import BY_DUE_TIME, IN_LINE, LATEST_FINISHED, NEWEST, Narrowed, Order, Place
from packhorse.storage.records import Argument, Count, Filter, Page, Tally
from packhorse.storage.redis import keys, rows
from packhorse.storage.redis.keys import STATES, Keys
from packhorse.storage.redis.records import pairs
from packhorse.storage.redis.server import Server

_AT_ONCE: Final = 1_000
"""Jobs that one script examines: a few milliseconds of the server."""
_AT_MOST: Final = 5_000
"""Jobs that one call examines before it returns what it has found."""
_JOBS_AT_ONCE: Final = 500
_IDS_AT_ONCE: Final = 5_000
"""Jobs that one script examines if their ids are enough."""
_IDS_AT_MOST: Final = 50_000
"""Jobs that one call examines if their ids are enough."""
_FEW_JOBS: Final = 1_000
"""If the queues of a filter have no more jobs than this, all of them are examined, whatever the order."""
_LARGEST: Final = 1 << 53
"""No time and no seq is larger, but a cursor may be."""
_FOLD: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


class _Part(NamedTuple):
    """What one script returned."""

    jobs: list[Job]
    number: int  # that fit
    examined: int
    place: Place  # of the last job that was examined
    is_end: bool


class Lists:
    def __init__(self, server: Server, keys: Keys) -> None:
        self._server = server
        self._keys = keys

    def get_many(self, job_ids: Sequence[str]) -> list[Job]:
        return [job for some in rows.chunks(job_ids, BATCH) for job in self._get_some(some)]

    def _get_some(self, job_ids: Sequence[str]) -> list[Job]:
        reply = self._server.run("get", *job_ids)
        return [
            rows.job_of(job_id, head, body or b"")
            for job_id, head, body in zip(job_ids, reply[::2], reply[1::2], strict=True)
            if head is not None
        ]

    def tallies(self) -> list[Tally]:
        (reply,) = self._server.send("tallies", ("HGETALL", self._keys.tally))
        return tallies_in(reply)

    def outcomes_for(self, client_id: str, limit: int) -> list[Job]:
        def read(start: int, most: int) -> list[Job]:
            words = self._server.run("outcomes", client_id, start, most)
            return [rows.job_of(one.decode(), head, body) for one, head, body in zip(*[iter(words)] * 3, strict=True)]

        return list(rows.in_parts(read, limit, _JOBS_AT_ONCE))

    def find(self, where: Filter, *, cursor: str | None = None, limit: int = 50) -> Page:
        order = queries.order_for(where)
        place = after = queries.decode_cursor(cursor, order)
        near, number = self._narrow(where, order)
        if (few := self._small_result(near, order, number)) is not None:
            rest = sorted((job for job in few if after is None or order.place(job) > after), key=order.place)
            following = queries.encode_cursor(order, order.place(rest[limit - 1])) if len(rest) > limit else None
            return Page(rest[:limit], following)
        query = self._query(near, order)
        found: list[Job] = []
        examined = 0
        per_script, most = (_AT_ONCE, _AT_MOST) if where.id is None else (_IDS_AT_ONCE, _IDS_AT_MOST)
        while True:
            part = self._examine(query, place, min(limit + 1 - len(found), _JOBS_AT_ONCE), per_script)
            found += [job for job in part.jobs if arguments_match(job.args, where.args)]
            examined += part.examined
            place = part.place
            if len(found) > limit:
                return Page(found[:limit], queries.encode_cursor(order, order.place(found[limit - 1])))
            if part.is_end or (order is LATEST_FINISHED and queries.ended_before(where, place)):
                return Page(found)
            if after is None and len(found) == number and queries.is_tallied(where):
                if self._narrow(where, order).number == number:  # no job came or went meanwhile
                    return Page(found)
                number = None
            if examined >= max(most, limit):
                return Page(found, queries.encode_cursor(order, place[:1] if order is NEWEST else place))

    def find_by_id(self, id_part: str, *, cursor: str | None = None, limit: int = 50) -> Page:
        """Examine only the ids, so that one call examines many jobs."""
        place = queries.decode_cursor(cursor, NEWEST)
        query = {**self._query(Filter(), NEWEST), "part": id_part}
        part = self._examine(query, place, limit, _IDS_AT_ONCE)
        following = None if part.is_end else queries.encode_cursor(NEWEST, part.place[:1])
        return Page(part.jobs, following)

    def count(self, where: Filter, *, cap: int = 10_000) -> Count:
        if queries.is_tallied(where):
            return Count(queries.sum_tallies(where, self.tallies()))
        order = queries.order_for(where)
        where, tallied = self._narrow(where, order)
        if (few := self._small_result(where, order, tallied)) is not None:
            return Count(min(len(few), cap), exact=len(few) <= cap)
        query = {**self._query(where, order), "counts": True}
        if order is NEWEST and "sets" not in query:
            query["walk"] = "each"  # queue after queue
            query.pop("oldest", None)
        number = examined = 0
        place: Place | None = None
        per_script, most = (_AT_ONCE, _AT_MOST) if where.id is None else (_IDS_AT_ONCE, _IDS_AT_MOST)
        while True:
            part = self._examine(query, place, cap + 1 - number, per_script)
            number += part.number
            examined += part.examined
            place = part.place
            if number > cap:
                return Count(cap, exact=False)
            if part.is_end:
                return Count(number)
            if examined >= most:
                return Count(number, exact=False)

    # --- small results ------------------------------------------------------------------------------------------------

    def _narrow(self, where: Filter, order: Order) -> Narrowed:
        """The same filter, limited to the queues that have such jobs according to the tallies."""
        if not queries.is_narrowed(where, order):
            return Narrowed(where)
        (reply,) = self._server.send("tallies", ("HGETALL", self._keys.tally))
        numbers: Counter[str] = Counter()
        for tally in tallies_in(reply, (where.task or "").encode()):
            if queries.is_counted(tally, where):
                numbers[tally.queue] += tally.number
        return queries.narrow(where, numbers)

    def _small_result(self, where: Filter, order: Order, number: int | None) -> list[Job] | None:
        """All jobs that fit, if their queues have few jobs but the order of the list mixes them with all others. None:
        there are many, or nothing says how many."""
        if number == 0:
            return []
        if number is None or number > _FEW_JOBS or order not in (BY_DUE_TIME, LATEST_FINISHED):
            return None
        queues = queries.queues_named(where)
        if not queues:
            return None
        sizes = self._server.send("find", *(("ZCARD", self._keys.queue(name)) for name in queues))
        if sum(sizes) > _FEW_JOBS:
            return None
        words = self._server.send("find", *(("ZRANGE", self._keys.queue(name), 0, -1) for name in queues))
        jobs = self.get_many([job_id.decode() for ids in words for job_id in ids])
        return [job for job in jobs if queries.fits(job, where)]

    # --- the script ---------------------------------------------------------------------------------------------------

    def _examine(self, query: dict[str, Any], after: Place | None, most: int, per_script: int | None = None) -> _Part:
        """Walk one part of the list, after the place `after`."""
        query = {**query, "most": most, "looks": per_script or _AT_ONCE}
        if after is not None:
            query["after"] = [max(-_LARGEST, min(number, _LARGEST)) for number in after]
        is_end, examined, number, first, second, *words = self._server.run("find", msgspec.msgpack.encode(query))
        place = after if examined == 0 and after is not None else (int(first), int(second))
        jobs = [rows.job_of(one.decode(), head, body) for one, head, body in zip(*[iter(words)] * 3, strict=True)]
        return _Part(jobs, number, examined, place, bool(is_end))

    def _query(self, where: Filter, order: Order) -> dict[str, Any]:
        """The walk and the conditions, as find.lua reads them, without those that all jobs of the walked sets meet."""
        names = ("task", "owner", "schedule", "unique_key", "cause", "halted", "created_from", "created_to", "asked_at")
        query = {name: getattr(where, name) for name in (*names, *_LIMITS)}
        query["begins"] = where.id
        query["queues"] = sorted(where.queues) or None
        query["tasks"] = sorted(where.tasks) or None
        query["args"] = [_argument(one) for one in where.args] or None
        query["walk"] = order.name
        query["rank"] = RANK_FORCED if where.forced else None
        if order is NEWEST and where.created_from is not None:
            query["oldest"] = where.created_from - queries.CLOCK_SLACK
        if order is NEWEST and where.created_to is not None:
            query["too_young"] = where.created_to + queries.CLOCK_SLACK
        query["error"] = None if where.error is None else where.error.translate(_FOLD)
        query["texts"] = [text.translate(_FOLD) for text in where.texts] or None
        query["queue"] = None if where.queue is None else keys.place(where.queue, "")
        query["states"] = "".join(keys.LETTERS[state] for state in sorted(where.states)) or None
        self._choose_sets(query, where, order)
        query.update(_WHERE_TO_LOOK)
        return {name: value for name, value in query.items() if value is not None}

    def _choose_sets(self, query: dict[str, Any], where: Filter, order: Order) -> None:
        """Choose the smallest sets that contain all jobs that fit."""
        if order is IN_LINE:
            query.update(line=where.queue, queue=None, states=None)
        elif order is BY_DUE_TIME:
            query["sets"] = [self._keys.due]
        elif order is LATEST_FINISHED:
            states = sorted(where.states)
            query["sets"] = [*map(self._keys.finished, states), *map(self._keys.kept, states)]
            query["states"] = None
        elif where.owner is not None:
            query["sets"] = [self._keys.held(where.owner)]
        elif where.states and where.states <= HELD:
            query["held"] = True
        elif queues := queries.queues_named(where):
            query.update(sets=[self._keys.queue(name) for name in queues], queue=None, queues=None)


def _argument(one: Argument) -> dict[str, Any]:
    """A script holds numbers as doubles, so it compares a long number as text, marked by its first character."""
    condition: dict[str, Any] = {"path": one.path, "value": one.value}
    if (number := number_of(one.value)) is not None:
        condition["number"] = number
    elif is_long_number(one.value):
        condition["long"] = f"\x01{one.value}"
    return condition


_MEASURED: Final = ("priority", "attempts", "took", "waited")
_LIMITS: Final = tuple(f"{edge}_{what}" for what in _MEASURED for edge in ("min", "max"))
_BODY: Final = rows.Body.__struct_fields__
_WHERE_TO_LOOK: Final = {
    **{f"{name}_at": _BODY.index(name) + 1 for name in ("args", "schedule", "unique_key")},
    "longest_args": LONGEST,
}
"""The positions in a packed body of the fields that a filter may test."""


def tallies_in(reply: Sequence[bytes], ending: bytes = b"") -> list[Tally]:
    """The tallies of this reply, or only those whose tasks end like this."""
    found = []
    for field, number in pairs(reply):
        if field.endswith(ending) and int(number):
            try:
                queue, task = keys.names_of(field[1:])
                found.append(Tally(queue, task, STATES[chr(field[0])], int(number)))
            except (ValueError, LookupError):  # of a job whose record cannot be read
                continue
    return sorted(found, key=lambda tally: (tally.queue, tally.task, tally.state))
