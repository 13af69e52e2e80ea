"""Named filters: which jobs are often meant, written once in the settings, so that all who look mean the same:
`@broken-mail` stands for the words below `[tool.packhorse.filters]`, none of which is such a name itself.

The command line and the web put the words in the place of the name. One that nobody can use is the trouble of who names
it: it is told with its place there, by `doctor` and by the web, and all others go on.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from packhorse.core.errors import BadValue, SettingsError, did_you_mean
from packhorse.core.settings import FILTER_NAME, Settings
from packhorse.monitor.filter_words import parse_parts, split_words, word_name

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


class NamedFilters(dict[str, str]):
    """The filters that can be used; `bad` says what is wrong with each of the others, and where it stands."""

    def __init__(self, filters: Mapping[str, str] = {}, bad: Mapping[str, str] = {}) -> None:
        super().__init__(filters)
        self.bad = dict(bad)


def usable_filters(settings: Settings, now: int) -> NamedFilters:
    """The filters of these settings, told apart."""
    found = NamedFilters(bad=settings.bad_filters)
    for name, text in settings.filters.items():
        try:
            found.update(named_filters(replace(settings, filters={name: text}), now))
        except SettingsError as error:
            found.bad[name] = error.problems[0]
    return found


def spelled_out(words: Sequence[str], filters: Mapping[str, str]) -> list[str]:
    """These words, apart, with those of a filter in the place of its name. Where no filter has a name, an `@word` is
    text as any other; else one that is no name is refused, for it may be misspelt."""
    parts = split_words(words)
    bad = filters.bad if isinstance(filters, NamedFilters) else {}
    if not filters and not bad:
        return parts
    for word in parts:
        if word.removeprefix(SIGN) in bad and _NAMED.fullmatch(word):
            raise BadValue(f"{word} cannot be used: {bad[word.removeprefix(SIGN)]}", hint="mend it there")
    brought = [(part, word) for word in parts for part in _words_of(word, filters)]
    _refuse_twice(brought)
    return [part for part, _ in brought]


def _refuse_twice(brought: Sequence[tuple[str, str]]) -> None:
    """Of words and what was written for each: tell if a name brings one that is there already. It was not seen."""
    first: dict[str, tuple[str, str]] = {}
    for part, word in brought:
        name = word_name(part)
        other, other_word = first.get(name, (word, word))
        if name in first and name != "text" and (part, other) != (word, other_word):
            told = [text if text == by else f"{by} brings {text}" for text, by in ((other, other_word), (part, word))]
            raise BadValue(f"{name} is given twice: {' and '.join(told)}", hint="leave one of them out")
        first.setdefault(name, (part, word))


def _words_of(word: str, filters: Mapping[str, str]) -> list[str]:
    named = _NAMED.fullmatch(word)
    if named is None:
        return [word]
    if named[1] not in filters:
        known = ", ".join(f"{SIGN}{name}" for name in list(filters)[:8])
        hint = f"there are {known or 'none that can be used'}; to search for this very text: text:{shlex.quote(word)}"
        raise BadValue(f"no filter is called {word}{did_you_mean(named[1], filters)}", hint=hint)
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
