"""How lists of jobs are filtered, sorted and paged: the same for every storage.

Each kind of list has a natural order: queued jobs by rank and age, scheduled ones by when they are due, finished ones
by the latest, anything else by the newest. A cursor is the place of the last job shown, so pages neither repeat nor
skip a job while others come and go."""

from __future__ import annotations

import base64
import binascii
import string
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from packhorse.core.clock import HOUR
from packhorse.core.errors import BadValue
from packhorse.core.job import FINAL, QUEUED, RANK_FORCED, RETRYING, SCHEDULED, Job, State
from packhorse.storage.argument_filter import arguments_match
from packhorse.storage.records import Filter, Tally

Place = tuple[int, ...]


class Order(NamedTuple):
    """A natural order; `place` rises along the list."""

    name: str
    place: Callable[[Job], Place]


IN_LINE = Order("line", lambda job: (job.rank, job.seq))
BY_DUE_TIME = Order("due", lambda job: (job.due_at or 0, job.seq))
LATEST_FINISHED = Order("finished", lambda job: (-(job.finished_at or 0), -job.seq))
NEWEST = Order("newest", lambda job: (-job.seq,))


def order_of(states: Collection[State]) -> Order:
    """The natural order of a list of these states."""
    wanted = frozenset(states)
    if wanted == {QUEUED}:
        return IN_LINE
    if wanted and wanted <= {SCHEDULED, RETRYING}:
        return BY_DUE_TIME
    if wanted and wanted <= FINAL:
        return LATEST_FINISHED
    return NEWEST


def order_for(where: Filter) -> Order:
    """The order of this list: as requested, or natural."""
    return NEWEST if where.order == "created" else order_of(where.states)


CLOCK_SLACK = HOUR
"""Jobs are numbered as they come. Walking from the newest, no job was created later than this after one already seen:
the clock of a storage is never set back by more."""


def ended_before(where: Filter, place: Place) -> bool:
    """For lists by the latest finished: return whether all jobs from this place on ended before the wanted ones were
    created."""
    return where.created_from is not None and -place[0] < where.created_from


def encode_cursor(order: Order, place: Place) -> str:
    """The place as opaque text that is safe in a URL."""
    return base64.urlsafe_b64encode(msgspec.json.encode([order.name, *place])).decode().rstrip("=")


def decode_cursor(cursor: str | None, order: Order) -> Place | None:
    """The place of a cursor. A cursor of another kind of list raises `BadValue`."""
    if cursor is None:
        return None
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        name, *place = msgspec.json.decode(base64.urlsafe_b64decode(padded), type=list[str | int])
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise BadValue(f"this is not a cursor: {cursor[:60]!r}", hint="use the `next` of the page before") from None
    numbers = tuple(number for number in place if isinstance(number, int))
    if name != order.name or len(numbers) != len(place) or len(place) != (1 if order is NEWEST else 2):
        raise BadValue(f"this cursor belongs to another list: {cursor[:60]!r}", hint="start again without a cursor")
    return numbers


_FOLD = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def fits(job: Job, where: Filter) -> bool:
    """Return whether this job fits."""
    return (
        (not where.states or job.state in where.states)
        and where.queue in (None, job.queue)
        and where.task in (None, job.task)
        and is_one_of(job.queue, where.queues)
        and is_one_of(job.task, where.tasks)
        and where.owner in (None, job.owner)
        and where.schedule in (None, job.schedule)
        and where.unique_key in (None, job.unique_key)
        and where.cause in (None, job.cause)
        and where.halted in (None, job.has_lost_worker)
        and is_within(job.priority, where.min_priority, where.max_priority)
        and is_within(job.attempts, where.min_attempts, where.max_attempts)
        and is_within(job.took(where.asked_at), where.min_took, where.max_took)
        and is_within(job.waited(where.asked_at), where.min_waited, where.max_waited)
        and (not where.forced or job.rank == RANK_FORCED)
        and (where.created_from is None or job.created_at >= where.created_from)
        and (where.created_to is None or job.created_at < where.created_to)
        and (where.id is None or job.id.startswith(where.id))
        and (where.error is None or (job.error is not None and _mention([job.error], where.error)))
        and all(_mention([job.id, job.task, job.args, job.error or ""], text) for text in where.texts)
        and arguments_match(job.args, where.args)
    )


def _mention(parts: list[str], text: str) -> bool:
    wanted = text.translate(_FOLD)
    return any(wanted in part.translate(_FOLD) for part in parts)


def is_one_of(name: str, wanted: Collection[str]) -> bool:
    """Return whether this is one of these names, or begins like one that ends with a star. No names mean any."""
    return not wanted or name in wanted or any(name.startswith(one[:-1]) for one in wanted if one.endswith("*"))


def is_within(number: int | None, least: int | None, most: int | None) -> bool:
    """An unknown value is never within limits."""
    if least is None and most is None:
        return True
    return number is not None and (least is None or number >= least) and (most is None or number <= most)


def is_unfiltered(where: Filter) -> bool:
    """Return whether every job fits."""
    return replace(where, order=None) == Filter()


def is_tallied(where: Filter) -> bool:
    """Return whether the tallies answer this, without counting jobs."""
    return replace(where, order=None) == tallied_part(where)


def tallied_part(where: Filter) -> Filter:
    """The part of a filter that the tallies know."""
    return Filter(where.states, where.queue, where.task, where.queues, where.tasks)


FEW_QUEUES = 20
"""Up to this many queues are merged; with more, all jobs are read."""


class Narrowed(NamedTuple):
    """A filter that also names the queues of its jobs, if these are few; and how many jobs the tallies have of its
    queues, tasks and states. None: the tallies were not read."""

    where: Filter
    number: int | None = None


def is_narrowed(where: Filter, order: Order) -> bool:
    """Return whether reading the tallies first helps to find its jobs. No index leads to a task, whose jobs may be
    below millions of others; none has scheduled or finished jobs by queue."""
    names_queue = where.queue is not None or bool(where.queues)
    return where.task is not None or bool(where.tasks) or (names_queue and order in (BY_DUE_TIME, LATEST_FINISHED))


def narrow(where: Filter, numbers: Mapping[str, int]) -> Narrowed:
    """The filter, given how many jobs of its states and tasks the tallies have in each queue."""
    number = sum(numbers.values())
    if where.queue is not None or not 0 < len(numbers) <= FEW_QUEUES:
        return Narrowed(where, number)
    if len(numbers) == 1:
        return Narrowed(replace(where, queue=next(iter(numbers)), queues=frozenset()), number)
    return Narrowed(replace(where, queues=frozenset(numbers)), number)


def sum_tallies(where: Filter, tallies: Iterable[Tally]) -> int:
    """How many jobs fit the states, queues and tasks of the filter."""
    return sum(tally.number for tally in tallies if is_counted(tally, where))


def is_counted(tally: Tally, where: Filter) -> bool:
    """Return whether this tally counts jobs of the states, queues and tasks of the filter."""
    return (
        (not where.states or tally.state in where.states)
        and where.queue in (None, tally.queue)
        and where.task in (None, tally.task)
        and is_one_of(tally.queue, where.queues)
        and is_one_of(tally.task, where.tasks)
    )


def queues_named(where: Filter) -> list[str] | None:
    """The queues of the jobs, if the filter names them in full and they are few; None: any."""
    if where.queue is not None:
        return [where.queue]
    if not 0 < len(where.queues) <= FEW_QUEUES or any(name.endswith("*") for name in where.queues):
        return None
    return sorted(where.queues)


def is_expensive(where: Filter) -> bool:
    """Return whether it searches arguments or errors, which may be long."""
    return bool(where.texts) or where.error is not None or bool(where.args)
