"""Suggestions: completions of the text in a find or filter box, for the API and the pages.

They complete the last word and keep the words before it. Names come from the cache, so typing seldom reads the storage.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from packhorse.monitor.filters import FILTER_WORDS, ORDERS, SIGN, STATE_WORDS
from packhorse.web.api.endpoint import Call, get
from packhorse.web.reader import Reader

MOST = 20
_SEVERAL = ("state", "queue", "task")  # words that take several values, separated by commas
_FIXED: dict[str, tuple[str, ...]] = {
    "state": tuple(STATE_WORDS),
    "order": ORDERS,
    "since": ("15m", "1h", "6h", "24h", "7d"),
    "until": ("15m", "1h", "6h", "24h", "7d"),
    "attempts": (">1", ">3", "=1"),
    "took": (">1s", ">30s", ">5m", "<1s"),
    "waited": (">1s", ">1m", ">5m", ">1h"),
    "priority": ("10", ">=7", "=1"),
}
ABOUT = {
    "state": "where it stands: dead, or several: dead,aborted",
    "queue": "one or several; mail.* are all that begin so",
    "task": "one or several; img.* are all that begin so",
    "worker": "the worker that has it",
    "cause": "failed for this cause",
    "priority": "this or higher; =5 is exactly this one",
    "attempts": "how often it was begun: >1",
    "took": "how long its latest attempt ran: >30s",
    "waited": "how long it was in line: >5m",
    "schedule": "made by this schedule",
    "key": "holds this unique key",
    "id": "its id begins so",
    "error": "found in the error",
    "text": "found in the id, task, arguments or error",
    "since": "enqueued since: 2h, or a time",
    "until": "enqueued before: 2h, or a time",
    "order": "created, due, finished or took",
}
"""What each filter word is for."""


class Suggestion(NamedTuple):
    """A whole text for the box, and a description of its last word."""

    text: str
    about: str


def suggest(reader: Reader, typed: str, filters: Mapping[str, str] = {}) -> list[Suggestion]:
    """Completions of the text, likeliest first; `filters` are the named filters."""
    before, last = _parted(typed)
    found = _values(reader, last) if ":" in last else _words(reader, last, is_first=not before)
    named = [(f"{SIGN}{name}", words) for name, words in filters.items() if last.lower().removeprefix(SIGN) in name]
    wanted = dict.fromkeys(Suggestion(before + text, about) for text, about in (*named, *found) if text != last)
    return list(islice(wanted, MOST))


def _parted(typed: str) -> tuple[str, str]:
    """Split the text into what stays and its last word."""
    start = typed.rfind(" ") + 1
    return typed[:start], typed[start:]


def _words(reader: Reader, part: str, *, is_first: bool) -> Iterator[tuple[str, str]]:
    """Task and queue names, filter words, states, argument names, workers."""
    low = part.lower()
    yield from (
        (name if is_first else f"{noun}:{name}", noun)
        for noun, names in (("task", _tasks), ("queue", _queues))
        for name, _ in names(reader)
        if low and low in name.lower()
    )
    yield from ((word, "state") for word in STATE_WORDS if low and word.startswith(low))
    yield from ((f"{word}:", ABOUT[word]) for word in FILTER_WORDS if word.startswith(low))
    if low and ("args.".startswith(low) or low.startswith("args.")):
        yield from ((f"args.{name}:", f"argument of {task}") for name, task in _arguments(reader, low[5:]))
    if low:
        workers = [(name, about) for name, about in _workers(reader) if name.startswith(part) or low in about.lower()]
        yield from ((f"worker:{name}", about) for name, about in workers)
        yield f"text:{part}", "search id, task, arguments and error"


def _values(reader: Reader, word: str) -> Iterator[tuple[str, str]]:
    """Values that may follow the colon of a filter word."""
    name, _, value = word.partition(":")
    listed, _, value = value.rpartition(",") if name in _SEVERAL else ("", "", value)
    front = f"{name}:{listed}{',' if listed else ''}"
    known: Iterable[tuple[str, str]] = ((each, "") for each in _FIXED.get(name, ()))
    if name in _KNOWN:
        known = _KNOWN[name](reader)
    low = value.lower()
    yield from ((front + each, about or name) for each, about in known if low in each.lower() or low in about.lower())


def _tasks(reader: Reader) -> Iterator[tuple[str, str]]:
    return ((task.name, "") for task in reader.tasks())


def _queues(reader: Reader) -> Iterator[tuple[str, str]]:
    return ((queue.name, "") for queue in reader.queues())


def _workers(reader: Reader) -> Iterator[tuple[str, str]]:
    return ((worker.id, f"{worker.subject} {worker.host}:{worker.pid}") for worker in reader.workers())


def _schedules(reader: Reader) -> Iterator[tuple[str, str]]:
    return ((schedule.name, schedule.cron) for schedule in reader.schedules())


def _causes(reader: Reader) -> Iterator[tuple[str, str]]:
    return ((group.cause, f"{group.task}: {group.pattern[:80]}") for group in reader.failures())


_KNOWN: dict[str, Callable[[Reader], Iterator[tuple[str, str]]]] = {
    "queue": _queues,
    "task": _tasks,
    "worker": _workers,
    "schedule": _schedules,
    "cause": _causes,
}


def _arguments(reader: Reader, part: str) -> Iterator[tuple[str, str]]:
    """The names of task arguments, as workers announced them."""
    for task in reader.tasks():
        parameters = task.options.get("parameters")
        each = parameters.get("each") if isinstance(parameters, dict) else None
        for one in each if isinstance(each, list) else []:
            name = one.get("name") if isinstance(one, dict) else None
            if not isinstance(name, str) or not re.fullmatch(r"\w+", name) or not name.lower().startswith(part):
                continue
            if not reader.hides(name, task.name):  # a hidden argument cannot be filtered by
                yield name, task.name


class TypedQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The text typed so far."""

    q: Annotated[str, Meta(max_length=1_000)] = ""


class SuggestionFields(msgspec.Struct):
    """A whole text for the box, and a description of its last word."""

    text: str
    about: str


class SuggestionList(msgspec.Struct):
    """Suggestions, likeliest first."""

    items: list[SuggestionFields]


@get("/suggestions")
def list_suggestions(call: Call, query: TypedQuery) -> SuggestionList:
    """Completions of a filter: names of tasks, queues and workers, filter words, and their values."""
    found = suggest(call.reader, query.q, call.web.filters)
    return SuggestionList([SuggestionFields(each.text, each.about) for each in found])


class NamedFilter(msgspec.Struct):
    """A name without its @, and the filter that it stands for."""

    name: str
    filter: str


class NamedFilterList(msgspec.Struct):
    """Named filters, in the order of the settings."""

    items: list[NamedFilter]


@get("/filters")
def list_filters(call: Call) -> NamedFilterList:
    """The filters in [tool.packhorse.filters] of this web server's pyproject.toml."""
    return NamedFilterList([NamedFilter(name, words) for name, words in call.web.filters.items()])
