"""The filter of a job list as its address holds it, word by word: each word is a chip that can be removed.

Links put some words under their own names (`?state=dead&queue=mail`); `q` holds the words that people type. A typed
word takes precedence over one from a link.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from packhorse.core.errors import BadValue
from packhorse.monitor.filters import (
    FILTER_WORDS,
    SIGN,
    chooses_some,
    expand_names,
    parse_words_apart,
    split_words,
    word_name,
)
from packhorse.storage.records import Filter
from packhorse.web.pages.page import address

Query = dict[str, str]
_TRIED = 4  # chips removed one by one to find which of them empties the list
_TRYING = 0.03  # seconds, for all of them


class Chip(NamedTuple):
    """A word of the filter, and the query of the list without it."""

    text: str
    rest: Query

    @property
    def path(self) -> str:
        return address("/jobs", **self.rest)


def filter_of(query: Query, now: int) -> Filter:
    """Parse the address of the list into a filter."""
    return parse_words_apart(_words(query), now)


def expand_named_filters(query: Query, filters: Mapping[str, str]) -> Query:
    """Replace the name of a named filter with its words; return a query without such a name unchanged."""
    written = query.get("q", "")
    if SIGN not in written:
        return query
    words = expand_names([written], filters)
    return {**query, "q": shlex.join(words)} if words != split_words([written]) else query


def selects_jobs(query: Query, now: int) -> bool:
    """Does the address narrow the list enough to act on its jobs? An order alone does not."""
    return chooses_some(_words(query), now)


def filter_text(query: Query) -> str:
    """Return the query as filter words, for a shell and for actions on all matching jobs."""
    try:
        return shlex.join(_words(query))
    except BadValue:
        return query["q"]


def without_state(query: Query) -> Query:
    """Return the query without its state, so that it covers jobs of every state."""
    words = [word for word in _written(query) if word_name(word) != "state"]
    kept = {name: value for name, value in query.items() if name not in ("state", "cursor")}
    return {**kept, "q": shlex.join(words)} if len(words) < len(_written(query)) else kept


def filter_chips(query: Query) -> list[Chip]:
    """Make a chip for each word of the filter."""
    bare = {name: value for name, value in query.items() if name != "cursor"}
    written = _written(query)
    chips = [
        Chip(word, {**bare, "q": shlex.join(written[:place] + written[place + 1 :])})
        for place, word in enumerate(written)
    ]
    return chips + [Chip(f"{name}: {query[name]}", {**bare, name: ""}) for name in FILTER_WORDS if query.get(name)]


def emptying(chips: list[Chip], now: int, has_any: Callable[[Filter], bool]) -> list[Chip]:
    """Find the chips whose removal would bring jobs into an empty list, as far as a short search can say."""
    until, found = time.monotonic() + _TRYING, []
    for chip in chips[:_TRIED] if len(chips) > 1 else []:
        if has_any(filter_of(chip.rest, now)):
            found.append(chip)
        if time.monotonic() > until:
            break
    return found


def _words(query: Query) -> list[str]:
    """Return every word; raise BadValue if they cannot be split."""
    text = query.get("q", "").strip()
    words = split_words([text]) if text else []
    said = {word_name(word) for word in words} - {"text"}
    return words + [f"{name}:{query[name]}" for name in FILTER_WORDS if query.get(name) and name not in said]


def _written(query: Query) -> list[str]:
    """Return the words in `q`, split if possible."""
    text = query.get("q", "").strip()
    try:
        return split_words([text]) if text else []
    except BadValue:
        return [text]
