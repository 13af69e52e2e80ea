"""Filters: which jobs a user means, from words to what a storage understands.

The app, the command line and the web pages take the same words.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from packhorse.codec import nearest
from packhorse.errors import BadValue
from packhorse.job import QUEUED, State, parse_states
from packhorse.storage.records import Filter

STATE_WORDS = [*map(str, State), "waiting", "held", "unfinished", "finished", "failed", "halted", "pending"]


class JobFilter(TypedDict, total=False):
    """What `app.jobs(...)` and `app.count(...)` take; all that is given must hold, and None does not matter."""

    state: str | Iterable[str] | None
    queue: str | None
    task: str | None
    worker: str | None
    cause: str | None
    halted: bool | None
    min_priority: int | None
    text: str | None


def parse_filter(words: JobFilter) -> Filter:
    """The filter that a user's words mean; a word that is none is a BadValue."""
    for name in words:
        if name not in JobFilter.__annotations__:
            raise BadValue(f"jobs cannot be found by {name!r}{nearest(name, JobFilter.__annotations__)}")
        _check(name, words[name])  # type: ignore[literal-required]
    states, halted = _states(words.get("state"))
    return Filter(
        states=states,
        queue=words.get("queue"),
        task=words.get("task"),
        owner=words.get("worker"),
        cause=words.get("cause"),
        halted=halted or words.get("halted"),
        min_priority=words.get("min_priority"),
        text=words.get("text"),
    )


_KINDS: dict[str, type] = {"halted": bool, "min_priority": int}


def _check(name: str, value: object) -> None:
    if value is None or name == "state":
        return
    kind = _KINDS.get(name, str)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        told = {str: "text", bool: "True or False", int: "a whole number"}[kind]
        raise BadValue(f"{name} must be {told}, not {value!r}")


def _states(state: str | Iterable[str] | None) -> tuple[frozenset[State], bool]:
    """The states that are meant, and whether only those of their jobs whose worker died: "halted" is queued again."""
    if not isinstance(state, str | Iterable | None):
        raise BadValue(f"state must be a word or several, not {state!r}", hint="e.g. 'dead' or ['queued', 'running']")
    words = [state] if isinstance(state, str) else list(state or ())
    if any(str(word).lower() in ("halted", "halt") for word in words):
        if len(words) > 1:
            raise BadValue("halted cannot be asked for together with other states", hint="ask for it alone")
        return frozenset({QUEUED}), True
    return frozenset().union(*map(_parse, words)), False


def _parse(word: str) -> frozenset[State]:
    try:
        return parse_states(word)
    except BadValue as error:
        error.what += nearest(str(word).lower(), STATE_WORDS)
        raise
