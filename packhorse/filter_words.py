"""Filter words: which jobs a user means, written as text: `state:dead queue:mail since:2h`.

The words are those of `app.jobs(...)`, with `since:` and `until:` besides. The command line and the find box of the web
pages take them alike.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from packhorse.clock import from_datetime, microseconds
from packhorse.codec import nearest
from packhorse.errors import BadValue
from packhorse.filters import STATE_WORDS, parse_filter
from packhorse.job import Job, parse_states
from packhorse.storage import Storage
from packhorse.storage.records import Filter

_PAGE = 200
FILTER_WORDS = ("state", "queue", "task", "worker", "cause", "priority", "schedule", "key", "text", "since", "until")
_OTHER_WORDS = {"name": "task", "error": "text", "args": "text", "id": "text", "owner": "worker", "status": "state"}


def parse_words(words: Sequence[str], now: int) -> Filter:
    """The filter that a user's words mean. A word alone is a state, or text to be found in the job.

    >>> parse_words(["dead", "queue:mail", "since:2h"], now)
    Filter(states=frozenset({<State.DEAD: 'dead'>}), queue='mail', created_from=…)
    """
    found: dict[str, str] = {}
    texts: list[str] = []
    for word in _split(words):
        name, value = _named(word) or _lone_word(word)
        if name == "text":
            texts.append(value)
        elif name in found:
            raise BadValue(f"{name} is given twice", hint="several states are written state:dead,aborted")
        else:
            found[name] = value
    return _filter(found, " ".join(texts) or None, now)


def _split(words: Sequence[str]) -> list[str]:
    """Words that came in one argument, as in --where 'state:dead since:2h', are taken apart."""
    try:
        return [part for word in words for part in (shlex.split(word) if " " in word else [word])]
    except ValueError as error:
        raise BadValue(f"the filter cannot be understood: {error}", hint="close the quotation mark") from None


def _named(word: str) -> tuple[str, str] | None:
    """A word such as `queue:mail`; None: it only looks like one, as `ValueError:` or `http://…` do."""
    name, colon, value = word.partition(":")
    name = _OTHER_WORDS.get(name, name)
    if colon and name in FILTER_WORDS:
        return name, value
    if not value or not name.isidentifier() or not name.islower() or value.startswith("//"):
        return None
    hint = f"jobs are found by {', '.join(FILTER_WORDS)}; to search for this very text: text:{shlex.quote(word)}"
    raise BadValue(f"jobs cannot be found by {name!r}{nearest(name, FILTER_WORDS)}", hint=hint)


def _lone_word(word: str) -> tuple[str, str]:
    try:
        if word.lower() not in ("halted", "halt"):
            for part in word.split(","):
                parse_states(part)
        return "state", word
    except BadValue:
        import difflib  # only who has made a mistake needs it

        near = difflib.get_close_matches(word.lower(), STATE_WORDS, n=1, cutoff=0.7)
        if near:
            hint = f"to search for this very text: text:{shlex.quote(word)}"
            raise BadValue(f"there is no state {word!r}; did you mean {str(near[0])!r}?", hint=hint) from None
        return "text", word


def _filter(found: dict[str, str], text: str | None, now: int) -> Filter:
    for name in ("task", "queue"):
        if "*" in found.get(name, ""):
            raise BadValue(f"a {name} is named in full, without *", hint=f"text:{found[name].strip('*.')} finds parts")
    states = found["state"].split(",") if "state" in found else None
    where = parse_filter(
        {
            "state": states,
            "queue": found.get("queue"),
            "task": found.get("task"),
            "worker": found.get("worker"),
            "cause": found.get("cause"),
            "min_priority": _number(found.get("priority")),
            "text": text,
        }
    )
    rest: dict[str, Any] = {"schedule": found.get("schedule"), "unique_key": found.get("key")}
    if "since" in found:
        rest["created_from"] = past_moment(found["since"], now)
    if "until" in found:
        rest["created_to"] = past_moment(found["until"], now)
    return replace(where, **rest)


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        raise BadValue(f"priority must be a whole number, not {text!r}") from None


def find_all(storage: Storage, where: Filter, limit: int | None = None) -> Iterator[Job]:
    """The jobs that fit, page by page, in the list's natural order."""
    cursor, left = None, limit
    while left is None or left > 0:
        page = storage.find(where, cursor=cursor, limit=_PAGE if left is None else min(left, _PAGE))
        yield from page.jobs
        left = None if left is None else left - len(page.jobs)
        cursor = page.next
        if cursor is None:
            return


def parse_moment(text: str) -> datetime:
    """The moment that a user wrote; BadValue if it is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        hint = "write ISO 8601, e.g. 2030-01-31T07:00 or 2030-01-31T07:00Z"
        raise BadValue(f"{text!r} is not a time", hint=hint) from None
    try:
        return moment if moment.tzinfo else moment.astimezone()
    except (ValueError, OverflowError):  # the first or the last day of all that calendars have
        raise BadValue(f"{text!r} is not a time that has a zone here", hint="name the zone, e.g. Z for UTC") from None


def past_moment(text: str, now: int) -> int:
    """A moment in the past: a time, or a duration before now."""
    try:
        return now - microseconds(text, "time")
    except BadValue:
        pass
    try:
        return from_datetime(parse_moment(text))
    except BadValue as error:
        error.hint = f"write how long ago, e.g. 2h or 3d; or {(error.hint or '').removeprefix('write ')}"
        raise
