"""Redaction: what is never shown, whoever asks. Applied on the server, before anything becomes JSON or HTML.

Values are replaced in arguments, results and meta if their name sounds like a secret, has one of the words that were
set for all (`redact`), or is one that the job's task names (`@app.task(redact=[…])`); passwords in URLs are masked in
errors and log lines. A form that is filled with masked values gives the stored ones back where the mask still stands.
Of a text that leaves the house, `without_secrets` also takes what looks like `password=…`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from packhorse.core.job import Job
from packhorse.core.settings import mask_urls

MASK = "•••"
HIDDEN = '{"hidden": true}'
"""What stands for arguments and results that are not shown at all."""
_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)?$|pwd|token|secret|api[_-]?key|authori[sz]ation|credential|card|cvv|cookie", re.I
)
_SOUNDS = ("pass", "pwd", "token", "secret", "key", "authori", "credential", "card", "cvv", "cookie")
_ESCAPED_NAME = re.compile(r"\\u[0-9a-fA-F]{4}")
_LONGEST = 128  # letters of a name that a task may name
_BETWEEN = r"\x00"  # two names of a path
# In text: a name, quoted or not, and what follows it. Possessive, so that no long word is tried again and again.
_NAMED = re.compile(r"""(?<![\w-])([\w-]++)\\*+["']?[ \t]*+(?::=|=>|=(?!=)|:(?!//))[ \t]*+""")
_VALUE = re.compile(
    r"""[rbfu]{0,2}\\*+(?:"[^"\\\n]*+(?:\\.[^"\\\n]*+)*"?|'[^'\\\n]*+(?:\\.[^'\\\n]*+)*'?)"""
    r"""|(?:(?:bearer|basic|digest|token)[ \t]++)?[^\s,;&()\[\]{}"'<>][^\s,;&)\]}"'<>]*+""",
    re.I,
)
_TELLS_NOTHING = re.compile(r"(?:none|null|true|false)\Z", re.I)
_ERROR_NAME = re.compile(r"(?:Error|Exception|Warning)\Z")

Path = tuple[str, ...]
"""The names of keys from the outside in; lists between them do not count."""


class Names:
    """The names of what is hidden: those that sound like a secret, those in which one of these `words` is found, and
    the `own` ones of a task, as its `redact=` has them. Upper and lower case are the same."""

    def __init__(self, words: Iterable[str] = (), own: Iterable[str] = ()) -> None:
        words, paths = list(words), [path.split(".") for path in own]
        ends = [path[-1] for path in paths]
        self._words = re.compile(_any_of(words), re.I) if words else None
        whole = "|".join(_BETWEEN.join(map(re.escape, path)) for path in paths)
        self._own = re.compile(rf"(?:\A|{_BETWEEN})(?:{whole})\Z", re.I) if paths else None
        self._ends = re.compile(rf"{_any_of(ends)}\Z", re.I) if paths else None
        self._above = max(map(len, paths), default=1) - 1
        self._parts = tuple(dict.fromkeys(part.casefold() for part in (*_SOUNDS, *words, *ends)))
        # In JSON: what may be such a name, and the rest of its text; the group is there if that text is a name.
        # Possessive, and it always comes to a match, so that no long text is gone through again and again: others
        # wrote it.
        self._maybe = re.compile(rf'{_any_of(self._parts)}[^"\\]*+(?:\\.[^"\\]*+)*("\s*+:)?', re.S)

    def may_be_in(self, text: str) -> bool:
        """False: no such name is in this JSON. Most has none of their letters, and that is seen at once."""
        folded = text.casefold()
        if any(part in folded for part in self._parts) and any(found[1] for found in self._maybe.finditer(folded)):
            return True
        return "\\u" in text and _ESCAPED_NAME.search(text) is not None

    def are_named(self, path: Path) -> bool:
        """Did somebody say so of this key? Then nothing of its value is shown, not even whether it is null."""
        if self._words is not None and self._words.search(path[-1]):
            return True
        return self._own is not None and self._own.search("\0".join(path)) is not None

    def hide(self, path: Path) -> bool:
        """Is the value of this key not shown, by its own name or by that of one above it?"""
        return any(
            _SECRET_NAME.search(path[end - 1]) or self.are_named(path[max(0, end - 1 - self._above) : end])
            for end in range(1, len(path) + 1)
        )

    def hide_word(self, name: str) -> bool:
        """The same of a name in some text, where what it is within cannot be told."""
        sounds_so = _SECRET_NAME.search(name) is not None and _ERROR_NAME.search(name) is None
        return sounds_so or self.are_named_in_text(name)

    def are_named_in_text(self, name: str) -> bool:
        """Did somebody say so of a key that is called like this?"""
        return self.are_named((name,)) or (self._ends is not None and self._ends.match(name) is not None)

    def masked(self, value: Any, above: Path = ()) -> Any:
        """This value, with the mask in place of what is hidden in it."""
        if isinstance(value, dict):
            return {name: self._masked(name, each, above) for name, each in value.items()}
        return [self.masked(each, above) for each in value] if isinstance(value, list) else value

    def _masked(self, name: str, value: Any, above: Path) -> Any:
        if self.are_named((*above, name)) or (_SECRET_NAME.search(name) and not isinstance(value, bool | None)):
            return MASK
        if not isinstance(value, dict | list):
            return value
        # Only so many names, and no long ones, or those of others would be gone through again with each key below.
        within = (*above, name if len(name) <= _LONGEST else "")[-self._above :] if self._above else ()
        return self.masked(value, within)


def _any_of(words: Iterable[str]) -> str:
    return f"(?:{'|'.join(map(re.escape, words))})"


USUAL = Names()
"""Those that sound like a secret."""


@functools.lru_cache(1_000)
def _names(words: tuple[str, ...], own: tuple[str, ...]) -> Names:
    return Names(words, own)


class Redaction:
    """What this server hides. `hide_args` shows no arguments and no results at all; `words` are hidden wherever they
    are part of a name; `of_tasks` tells the names that tasks want hidden, as far as they are known."""

    def __init__(
        self,
        *,
        hide_args: bool = False,
        words: Iterable[str] = (),
        of_tasks: Callable[[], Mapping[str, tuple[str, ...]]] = dict,
    ) -> None:
        self.hide_args = hide_args
        self.words = tuple(words)
        self._of_tasks = of_tasks

    def knowing(self, of_tasks: Callable[[], Mapping[str, tuple[str, ...]]]) -> Redaction:
        """The same, with the names of these tasks."""
        return Redaction(hide_args=self.hide_args, words=self.words, of_tasks=of_tasks)

    def names(self, task: str) -> Names:
        """What is hidden of this task's jobs."""
        return _names(self.words, self._of_tasks().get(task, ()))

    def names_of_any(self, is_meant: Callable[[str], bool] = lambda task: True) -> Names:
        """What is hidden of the jobs of one or another of these tasks."""
        tasks = [own for task, own in self._of_tasks().items() if is_meant(task)]
        return _names(self.words, tuple(sorted({name for own in tasks for name in own})))

    def job(self, job: Job) -> Job:
        """The job as it may be shown."""
        names = self.names(job.task)
        return replace(
            job,
            args=self._json(job.args, names) or "{}",
            result=self._json(job.result, names),
            meta=self._json(job.meta, names),
            error=self.text(job.error),
            progress_text=self.text(job.progress_text),
            checkin=self.text(job.checkin),
        )

    def object(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """A job as it was, of which some fields may be missing, as it may be shown."""
        names = self.names(job["task"]) if "task" in job else self.names_of_any()
        shown = {name: self._json(job[name], names) for name in ("args", "result", "meta") if name in job}
        shown |= {name: self.text(job[name]) for name in ("error", "progress_text", "checkin") if name in job}
        return {**job, **shown}

    def json(self, text: str | None, task: str | None = None) -> str | None:
        """Stored JSON of this task, or of one that is not known, as it may be shown. What holds no secret name stays
        exactly as it is."""
        return self._json(text, self.names_of_any() if task is None else self.names(task))

    def _json(self, text: str | None, names: Names) -> str | None:
        if text is None:
            return None
        if self.hide_args:
            return HIDDEN
        if not names.may_be_in(text):
            return text
        try:
            return json.dumps(names.masked(json.loads(text)), ensure_ascii=False)
        except (ValueError, RecursionError):
            return json.dumps(MASK)

    def hides(self, path: Path, names: Names) -> bool:
        """Is the value at this path of the arguments not shown?"""
        return self.hide_args or names.hide(path)

    def text(self, text: str | None) -> str | None:
        """Text as it may be shown: no password in any URL."""
        return None if text is None else mask_urls(text)


def without_secrets(text: str, names: Names = USUAL) -> str:
    """Text with the mask in place of the values that follow names of secrets: `password=…`, `'api_key': '…'`. It knows
    secrets by these names alone.

    >>> without_secrets("login as ann, password=hunter2, failed")
    'login as ann, password=•••, failed'
    """
    parts, done, place = [], 0, 0
    while named := _NAMED.search(text, place):
        place = named.end()
        value = _VALUE.match(text, place) if names.hide_word(named[1]) else None
        if value is not None and (not _TELLS_NOTHING.match(value[0]) or names.are_named_in_text(named[1])):
            quote = next((mark for mark in value[0] if mark in "\"'"), "")
            parts += [text[done:place], quote, MASK, quote]
            done = place = value.end()
    return "".join([*parts, text[done:]])


def unmasked(shown: Any, stored: Any) -> Any:
    """What a user made of the shown value, with the stored secrets where the mask still stands."""
    if isinstance(shown, dict) and isinstance(stored, dict):
        return {
            name: stored[name] if each == MASK and name in stored else unmasked(each, stored.get(name))
            for name, each in shown.items()
        }
    if isinstance(shown, list) and isinstance(stored, list):
        return [unmasked(each, stored[place] if place < len(stored) else None) for place, each in enumerate(shown)]
    return shown
