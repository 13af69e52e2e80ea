"""Named filters: which jobs are often meant, written once in the settings, so that all who look mean the same:
`@broken-mail` stands for the words below `[tool.packhorse.filters]`, none of which is such a name itself.

The command line and the web put the words in the place of the name; the web checks all of them when it starts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from packhorse.codec import nearest
from packhorse.errors import BadValue, SettingsError
from packhorse.filter_words import parse_parts, split_words
from packhorse.settings import FILTER_NAME, Settings

SIGN = "@"
_NAMED = re.compile(rf"{SIGN}({FILTER_NAME})")


def named_filters(settings: Settings, now: int) -> dict[str, str]:
    """The filters of these settings; SettingsError tells of all that nobody could use, and where they stand."""
    problems = []
    for name, text in settings.filters.items():
        try:
            parse_parts(_own_words(text), now)
        except BadValue as error:
            hint = f" - {error.hint}" if error.hint else ""
            problems.append(f"{settings.sources[f'filters.{name}']}: the filter {name}: {error.what}{hint}")
    if problems:
        raise SettingsError(problems)
    return settings.filters


def spelled_out(words: Sequence[str], filters: Mapping[str, str]) -> list[str]:
    """These words, apart, with those of a filter in the place of its name. Where no filter has a name, an `@word` is
    text as any other; else one that is no name is refused, for it may be misspelt."""
    parts = split_words(words)
    return [part for word in parts for part in _words_of(word, filters)] if filters else parts


def _words_of(word: str, filters: Mapping[str, str]) -> list[str]:
    named = _NAMED.fullmatch(word)
    if named is None:
        return [word]
    if named[1] not in filters:
        known = ", ".join(f"{SIGN}{name}" for name in list(filters)[:8])
        hint = f"there are {known}; to search for this very text: text:{shlex.quote(word)}"
        raise BadValue(f"no filter is called {word}{nearest(named[1], filters)}", hint=hint)
    try:
        return _own_words(filters[named[1]])
    except BadValue as error:
        raise BadValue(f"the filter {named[1]}: {error.what}", hint=error.hint) from None


def _own_words(text: str) -> list[str]:
    """The words of a filter. One that named others could name itself by way of them, and would never be spelled out."""
    words = split_words([text])
    if inner := next((word for word in words if _NAMED.fullmatch(word)), None):
        hint = f"write the words of {inner} themselves; to search for this very text: text:{shlex.quote(inner)}"
        raise BadValue(f"{inner} stands in it, and a filter that has a name cannot name another", hint=hint)
    return words
