"""Lists and counts of jobs. Each call walks sorted sets in the list's natural order and stops after a bounded number of
jobs, a part at a time, so no filter, however odd, can hold up the server."""

from __future__ import annotations

import string
from collections import Counter
from typing import Any, Final, NamedTuple

import msgspec

from packhorse.core.job import HELD, RANK_FORCED, Job
from packhorse.storage import queries
from packhorse.storage.argument_filter import LONGEST, arguments_match, is_long_number, number_of
from packhorse.storage.queries import BY_DUE_TIME, IN_LINE, LATEST_FINISHED, NEWEST, Narrowed, Order, Place
from packhorse.storage.records import Argument, Count, Filter, Page
from packhorse.storage.redis import keys, rows
from packhorse.storage.redis.keeper import Keeper
from packhorse.storage.redis.queues import tallies_in

_AT_ONCE: Final = 1_000
"""How many jobs one script looks at: a few milliseconds of the server."""
_AT_MOST: Final = 5_000
"""How many jobs one call looks at before it answers with what it has."""
_JOBS_AT_ONCE: Final = 500
_IDS_AT_ONCE: Final = 5_000
"""How many jobs one script looks at if their ids are enough."""
_IDS_AT_MOST: Final = 50_000
"""How many jobs one call looks at if their ids are enough."""
_FEW_JOBS: Final = 1_000
"""How many jobs of some queues are all looked at, wherever they lie in the list."""
_LARGEST: Final = 1 << 53
"""No time and no seq is larger; a cursor may say anything."""
_FOLD: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


class _Look(NamedTuple):
    """What one script saw."""

    jobs: list[Job]
    number: int  # that fit
    looked_at: int
    place: Place  # of the last job that was looked at
    is_end: bool


class Lists(Keeper):
    def find(self, where: Filter, *, cursor: str | None = None, limit: int = 50) -> Page:
        order = queries.order_for(where)
        place = after = queries.decode_cursor(cursor, order)
        near, number = self._narrowed(where, order)
        if (few := self._few_that_may_fit(near, order, number)) is not None:
            rest = sorted((job for job in few if after is None or order.place(job) > after), key=order.place)
            following = queries.encode_cursor(order, order.place(rest[limit - 1])) if len(rest) > limit else None
            return Page(rest[:limit], following)
        asked = self._question(near, order)
        found: list[Job] = []
        looked_at = 0
        looks, most = (_AT_ONCE, _AT_MOST) if where.id is None else (_IDS_AT_ONCE, _IDS_AT_MOST)
        while True:
            look = self._look(asked, place, min(limit + 1 - len(found), _JOBS_AT_ONCE), looks)
            found += [job for job in look.jobs if arguments_match(job.args, where.args)]
            looked_at += look.looked_at
            place = look.place
            if len(found) > limit:
                return Page(found[:limit], queries.encode_cursor(order, order.place(found[limit - 1])))
            if look.is_end or (order is LATEST_FINISHED and queries.ended_before(where, place)):
                return Page(found)
            if after is None and len(found) == number and queries.is_tallied(where):
                if self._narrowed(where, order).number == number:  # none has come or gone meanwhile
                    return Page(found)
                number = None
            if looked_at >= max(most, limit):
                return Page(found, queries.encode_cursor(order, place[:1] if order is NEWEST else place))

    def find_by_id(self, part: str, *, cursor: str | None = None, limit: int = 50) -> Page:
        """Only the ids are looked at, so one call looks at many."""
        place = queries.decode_cursor(cursor, NEWEST)
        asked = {**self._question(Filter(), NEWEST), "part": part}
        look = self._look(asked, place, limit, _IDS_AT_ONCE)
        following = None if look.is_end else queries.encode_cursor(NEWEST, look.place[:1])
        return Page(look.jobs, following)

    def count(self, where: Filter, *, cap: int = 10_000) -> Count:
        if queries.is_tallied(where):
            return Count(queries.sum_tallies(where, self.tallies()))
        order = queries.order_for(where)
        where, tallied = self._narrowed(where, order)
        if (few := self._few_that_may_fit(where, order, tallied)) is not None:
            return Count(min(len(few), cap), exact=len(few) <= cap)
        asked = {**self._question(where, order), "counts": True}
        if order is NEWEST and "sets" not in asked:
            asked["walk"] = "each"  # queue after queue
            asked.pop("oldest", None)
        number = looked_at = 0
        place: Place | None = None
        looks, most = (_AT_ONCE, _AT_MOST) if where.id is None else (_IDS_AT_ONCE, _IDS_AT_MOST)
        while True:
            look = self._look(asked, place, cap + 1 - number, looks)
            number += look.number
            looked_at += look.looked_at
            place = look.place
            if number > cap:
                return Count(cap, exact=False)
            if look.is_end:
                return Count(number)
            if looked_at >= most:
                return Count(number, exact=False)

    # --- where to look ----------------------------------------------------------------------------------------------

    def _narrowed(self, where: Filter, order: Order) -> Narrowed:
        """The same jobs, in the queues that the tallies know them to be in."""
        if not queries.is_narrowed(where, order):
            return Narrowed(where)
        (told,) = self._server.send("tallies", ("HGETALL", self._keys.tally))
        numbers: Counter[str] = Counter()
        for tally in tallies_in(told, (where.task or "").encode()):
            if queries.is_counted(tally, where):
                numbers[tally.queue] += tally.number
        return queries.narrow(where, numbers)

    def _few_that_may_fit(self, where: Filter, order: Order, number: int | None) -> list[Job] | None:
        """All jobs that fit, if they are in queues that have few, but in the list's order among all others; None: they
        are many, or nobody knows."""
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
        told = self._server.send("find", *(("ZRANGE", self._keys.queue(name), 0, -1) for name in queues))
        jobs = self.get_many([job_id.decode() for ids in told for job_id in ids])
        return [job for job in jobs if queries.fits(job, where)]

    # --- asking -----------------------------------------------------------------------------------------------------

    def _look(self, asked: dict[str, Any], after: Place | None, most: int, looks: int | None = None) -> _Look:
        """One part of the walk, from behind `after` on."""
        asked = {**asked, "most": most, "looks": looks or _AT_ONCE}
        if after is not None:
            asked["after"] = [max(-_LARGEST, min(number, _LARGEST)) for number in after]
        is_end, looked_at, number, first, second, *told = self._server.run("find", msgspec.msgpack.encode(asked))
        place = after if looked_at == 0 and after is not None else (int(first), int(second))
        jobs = [rows.job_of(one.decode(), head, body) for one, head, body in zip(*[iter(told)] * 3, strict=True)]
        return _Look(jobs, number, looked_at, place, bool(is_end))

    def _question(self, where: Filter, order: Order) -> dict[str, Any]:
        """The walk and the conditions, as find.lua reads them. What the walk's own sets assure is not asked again."""
        names = ("task", "owner", "schedule", "unique_key", "cause", "halted", "created_from", "created_to", "asked_at")
        asked = {name: getattr(where, name) for name in (*names, *_LIMITS)}
        asked["begins"] = where.id
        asked["queues"] = sorted(where.queues) or None
        asked["tasks"] = sorted(where.tasks) or None
        asked["args"] = [_argument(one) for one in where.args] or None
        asked["walk"] = order.name
        asked["rank"] = RANK_FORCED if where.forced else None
        if order is NEWEST and where.created_from is not None:
            asked["oldest"] = where.created_from - queries.CLOCK_SLACK
        if order is NEWEST and where.created_to is not None:
            asked["too_young"] = where.created_to + queries.CLOCK_SLACK
        asked["error"] = None if where.error is None else where.error.translate(_FOLD)
        asked["texts"] = [text.translate(_FOLD) for text in where.texts] or None
        asked["queue"] = None if where.queue is None else keys.place(where.queue, "")
        asked["states"] = "".join(keys.LETTERS[state] for state in sorted(where.states)) or None
        self._choose_sets(asked, where, order)
        asked.update(_WHERE_TO_LOOK)
        return {name: value for name, value in asked.items() if value is not None}

    def _choose_sets(self, asked: dict[str, Any], where: Filter, order: Order) -> None:
        """The best sets to walk: the queue's line, what is due, what has finished, the holder's, all that is held, the
        queue's, or those of all queues."""
        if order is IN_LINE:
            asked.update(line=where.queue, queue=None, states=None)
        elif order is BY_DUE_TIME:
            asked["sets"] = [self._keys.due]
        elif order is LATEST_FINISHED:
            states = sorted(where.states)
            asked["sets"] = [*map(self._keys.finished, states), *map(self._keys.kept, states)]
            asked["states"] = None
        elif where.owner is not None:
            asked["sets"] = [self._keys.held(where.owner)]
        elif where.states and where.states <= HELD:
            asked["held"] = True
        elif queues := queries.queues_named(where):
            asked.update(sets=[self._keys.queue(name) for name in queues], queue=None, queues=None)


def _argument(one: Argument) -> dict[str, Any]:
    """A script holds numbers as doubles, so it takes a long one for text, marked as none by its first sign."""
    asked: dict[str, Any] = {"path": one.path, "value": one.value}
    if (number := number_of(one.value)) is not None:
        asked["number"] = number
    elif is_long_number(one.value):
        asked["long"] = f"\x01{one.value}"
    return asked


_MEASURED: Final = ("priority", "attempts", "took", "waited")
_LIMITS: Final = tuple(f"{edge}_{what}" for what in _MEASURED for edge in ("min", "max"))
_BODY: Final = rows.Body.__struct_fields__
_WHERE_TO_LOOK: Final = {
    **{f"{name}_at": _BODY.index(name) + 1 for name in ("args", "schedule", "unique_key")},
    "longest_args": LONGEST,
}
"""Where in a packed body the fields lie that a filter may ask for."""
