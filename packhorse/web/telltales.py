"""Telltales: what the arguments of failed jobs have in common that those of completed ones have not, in a sample.

The page of a cause and the API ask. It looks at no more than a hundred jobs of either kind and four megabytes, and does
not look long where there are few, so it costs the same with a million of them; what chance alone might have done is not
told.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeGuard

import msgspec
from msgspec.structs import replace

from packhorse.core.job import ABORTED, COMPLETED, DEAD, RETRYING, Job
from packhorse.storage.records import FailureGroup, Filter
from packhorse.web.reader import Reader
from packhorse.web.security.redaction import MASK

MOST = 5
_SAMPLE = 100
_PAGE = 25
_CALLS = 6
_BYTES = 4 << 20
_FEWEST = 5  # jobs of either kind from which anything can be learned
_LONG_ARGS = 64_000
_LONG_VALUE = 60
_DEEPEST = 4
_PATHS = 200
_SURE = 1.63  # of the Kolmogorov-Smirnov test: one finding in a hundred is chance

Number = int | float


class Telltale(msgspec.Struct, frozen=True):
    """One thing that tells failed jobs from completed ones: how large a part of either is like this."""

    argument: str
    test: str  # '= "PT"', '≥ 501'
    failed: float
    completed: float

    @property
    def weight(self) -> float:
        return self.failed - self.completed


class Telltales(msgspec.Struct, frozen=True):
    """What was found, the clearest first, and in how many jobs."""

    items: list[Telltale]
    failed: int
    completed: int

    @property
    def is_enough(self) -> bool:
        """Were there enough jobs to say anything?"""
        return min(self.failed, self.completed) >= _FEWEST


def telltales_of(reader: Reader, group: FailureGroup) -> Telltales:
    """What tells the jobs of this cause from jobs of the same task that went well."""
    wanted = Filter(task=group.task, cause=group.cause)
    failed = _sample(reader, [replace(wanted, states=frozenset({state})) for state in (DEAD, RETRYING, ABORTED)])
    completed = _sample(reader, [Filter(states=frozenset({COMPLETED}), task=group.task)])
    return compare(failed, completed)


def _sample(reader: Reader, filters: Iterable[Filter]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    size = 0
    for jobs in islice(_pages(reader, filters), _CALLS):
        found += [values for job in jobs if (values := _values(job)) is not None]
        size += sum(len(job.args) + len(job.result or "") for job in jobs)
        if len(found) >= _SAMPLE or size >= _BYTES:
            break
    return found[:_SAMPLE]


def _pages(reader: Reader, filters: Iterable[Filter]) -> Iterator[list[Job]]:
    """The jobs of each filter in turn. A page is short, although more may follow, where the storage has looked at many
    jobs for it: then that filter is left."""
    for where in filters:
        page = reader.find(where, None, _PAGE)
        yield page.jobs
        while page.next is not None and 2 * len(page.jobs) > _PAGE:
            page = reader.find(where, page.next, _PAGE)
            yield page.jobs


def _values(job: Job) -> dict[str, Any] | None:
    """A job's arguments by their paths; None if they are too long to be looked into."""
    if len(job.args) > _LONG_ARGS:
        return None
    try:
        return dict(_walk("", json.loads(job.args), _DEEPEST))
    except (ValueError, RecursionError):
        return None


def _walk(path: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and depth:
        for name, inner in value.items():
            yield from _walk(f"{path}.{name}" if path else name, inner, depth - 1)
    elif isinstance(value, list | dict):
        yield f"length of {path}", len(value)
    elif value != MASK:
        yield path, value
        if isinstance(value, str) and len(value) > _LONG_VALUE:
            yield f"length of {path}", len(value)


# --- comparing --------------------------------------------------------------------------------------------------------


def compare(failed: list[dict[str, Any]], completed: list[dict[str, Any]]) -> Telltales:
    """What tells the one from the other; each is given by the paths of its arguments."""
    found: list[Telltale] = []
    if min(len(failed), len(completed)) >= _FEWEST:
        least = _SURE * math.sqrt((len(failed) + len(completed)) / (len(failed) * len(completed)))
        for path in sorted({path for values in failed for path in values})[:_PATHS]:
            best = max(_of_argument(path, failed, completed), key=lambda each: each.weight)
            if best.weight > least:
                found.append(best)
    found.sort(key=lambda each: (-each.weight, each.argument))
    return Telltales(found[:MOST], len(failed), len(completed))


def _of_argument(path: str, failed: list[dict[str, Any]], completed: list[dict[str, Any]]) -> Iterator[Telltale]:
    """The candidates of one argument: each of its values, and each limit that its numbers may have passed."""
    bad, good = ([_text(values[path]) for values in side if path in values] for side in (failed, completed))
    usual = Counter(good)
    for text, number in Counter(bad).items():
        yield Telltale(path, f"= {text}", number / len(failed), usual[text] / len(completed))
    numbers = [sorted(_numbers(path, side)) for side in (failed, completed)]
    for limit in {*numbers[0]}:
        above = [len(side) - bisect_left(side, limit) for side in numbers]
        below = [bisect_right(side, limit) for side in numbers]
        yield Telltale(path, f"≥ {_text(limit)}", above[0] / len(failed), above[1] / len(completed))
        yield Telltale(path, f"≤ {_text(limit)}", below[0] / len(failed), below[1] / len(completed))


def _numbers(path: str, side: Iterable[dict[str, Any]]) -> list[Number]:
    return [value for values in side if _is_number(value := values.get(path))]


def _is_number(value: object) -> TypeGuard[Number]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONG_VALUE else f"{text[:_LONG_VALUE]}…"
