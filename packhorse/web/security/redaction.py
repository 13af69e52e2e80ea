"""Redaction: values that no operator sees. The server masks them before it writes JSON or HTML.

It masks values in arguments, results and meta if their name sounds like a secret, contains a word of the setting
`redact`, or is named by the job's task (`@app.task(redact=[…])`). It masks passwords of URLs in errors and log lines.
When a form comes back, values that still are the mask are replaced by the stored ones. In text that leaves the
installation, `without_secrets` also masks what looks like `password=…`.
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
"""Replaces arguments and results if all of them are hidden."""
_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)?$|pwd|token|secret|api[_-]?key|authori[sz]ation|credential|card|cvv|cookie", re.I
)
_SOUNDS = ("pass", "pwd", "token", "secret", "key", "authori", "credential", "card", "cvv", "cookie")
_ESCAPED_NAME = re.compile(r"\\u[0-9a-fA-F]{4}")
_LONGEST = 128  # characters of a name in `redact=`
_BETWEEN = r"\x00"  # separates the names of a path
# In text: a name, quoted or not, and what follows it. Possessive, so that long words cause no backtracking.
_NAMED = re.compile(r"""(?<![\w-])([\w-]++)\\*+["']?[ \t]*+(?::=|=>|=(?!=)|:(?!//))[ \t]*+""")
_VALUE = re.compile(
    r"""[rbfu]{0,2}\\*+(?:"[^"\\\n]*+(?:\\.[^"\\\n]*+)*"?|'[^'\\\n]*+(?:\\.[^'\\\n]*+)*'?)"""
    r"""|(?:(?:bearer|basic|digest|token)[ \t]++)?[^\s,;&()\[\]{}"'<>][^\s,;&)\]}"'<>]*+""",
    re.I,
)
_TELLS_NOTHING = re.compile(r"(?:none|null|true|false)\Z", re.I)
_ERROR_NAME = re.compile(r"(?:Error|Exception|Warning)\Z")

Path = tuple[str, ...]
"""The names of keys, outermost first; lists between them do not count."""


class Names:
    """The names of hidden values: those that sound like a secret, those that contain one of `words`, and a task's `own`
    from its `redact=`. Case does not matter."""

    def __init__(self, words: Iterable[str] = (), own: Iterable[str] = ()) -> None:
        words, paths = list(words), [path.split(".") for path in own]
        ends = [path[-1] for path in paths]
        self._words = re.compile(_any_of(words), re.I) if words else None
        whole = "|".join(_BETWEEN.join(map(re.escape, path)) for path in paths)
        self._own = re.compile(rf"(?:\A|{_BETWEEN})(?:{whole})\Z", re.I) if paths else None
        self._ends = re.compile(rf"{_any_of(ends)}\Z", re.I) if paths else None
        self._above = max(map(len, paths), default=1) - 1
        self._parts = tuple(dict.fromkeys(part.casefold() for part in (*_SOUNDS, *words, *ends)))
        # In JSON: what may be such a name, and the rest of its string; the group matches if the string is a key.
        # Possessive, and it always matches, so that long untrusted text causes no backtracking.
        self._maybe = re.compile(rf'{_any_of(self._parts)}[^"\\]*+(?:\\.[^"\\]*+)*("\s*+:)?', re.S)

    def may_be_in(self, text: str) -> bool:
        """Return False if this JSON has no hidden name. For most JSON, a quick substring search decides."""
        folded = text.casefold()
        if any(part in folded for part in self._parts) and any(found[1] for found in self._maybe.finditer(folded)):
            return True
        return "\\u" in text and _ESCAPED_NAME.search(text) is not None

    def are_named(self, path: Path) -> bool:
        """Return whether `words` or `own` names this key. Then its value is hidden entirely, even if it is null."""
        if self._words is not None and self._words.search(path[-1]):
            return True
        return self._own is not None and self._own.search("\0".join(path)) is not None

    def hide(self, path: Path) -> bool:
        """Return whether the value of this key is hidden, because of its own name or that of a parent."""
        return any(
            _SECRET_NAME.search(path[end - 1]) or self.are_named(path[max(0, end - 1 - self._above) : end])
            for end in range(1, len(path) + 1)
        )

    def hide_word(self, name: str) -> bool:
        """Return whether the value of this name in text is hidden; the parents of the name are unknown there."""
        sounds_so = _SECRET_NAME.search(name) is not None and _ERROR_NAME.search(name) is None
        return sounds_so or self.are_named_in_text(name)

    def are_named_in_text(self, name: str) -> bool:
        """Return whether `words`, or the end of a path in `own`, names this key."""
        return self.are_named((name,)) or (self._ends is not None and self._ends.match(name) is not None)

    def masked(self, value: Any, above: Path = ()) -> Any:
        """Replace the hidden parts of the value by the mask."""
        if isinstance(value, dict):
            return {name: self._masked(name, each, above) for name, each in value.items()}
        return [self.masked(each, above) for each in value] if isinstance(value, list) else value

    def _masked(self, name: str, value: Any, above: Path) -> Any:
        if self.are_named((*above, name)) or (_SECRET_NAME.search(name) and not isinstance(value, bool | None)):
            return MASK
        if not isinstance(value, dict | list):
            return value
        # Keep few names and no long ones, because each key below searches them again.
        within = (*above, name if len(name) <= _LONGEST else "")[-self._above :] if self._above else ()
        return self.masked(value, within)


def _any_of(words: Iterable[str]) -> str:
    return f"(?:{'|'.join(map(re.escape, words))})"


USUAL = Names()
"""The names that sound like a secret."""


@functools.lru_cache(1_000)
def _names(words: tuple[str, ...], own: tuple[str, ...]) -> Names:
    return Names(words, own)


class Redaction:
    """What this server hides. `hide_args` hides all arguments and results; `words` hides values whose name contains one
    of them; `of_tasks` returns the names that tasks redact, as far as they are known."""

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
        """A copy that also hides the names of these tasks."""
        return Redaction(hide_args=self.hide_args, words=self.words, of_tasks=of_tasks)

    def names(self, task: str) -> Names:
        """The hidden names of this task's jobs."""
        return _names(self.words, self._of_tasks().get(task, ()))

    def names_of_any(self, is_meant: Callable[[str], bool] = lambda task: True) -> Names:
        """The hidden names of all these tasks together."""
        tasks = [own for task, own in self._of_tasks().items() if is_meant(task)]
        return _names(self.words, tuple(sorted({name for own in tasks for name in own})))

    def job(self, job: Job) -> Job:
        """Redact the job."""
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
        """Redact a past state of a job, in which fields may be missing."""
        names = self.names(job["task"]) if "task" in job else self.names_of_any()
        shown = {name: self._json(job[name], names) for name in ("args", "result", "meta") if name in job}
        shown |= {name: self.text(job[name]) for name in ("error", "progress_text", "checkin") if name in job}
        return {**job, **shown}

    def json(self, text: str | None, task: str | None = None) -> str | None:
        """Redact stored JSON of this task, or of an unknown one. JSON without a hidden name is returned unchanged."""
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
        """Return whether the argument at this path is hidden."""
        return self.hide_args or names.hide(path)

    def text(self, text: str | None) -> str | None:
        """Mask the passwords of URLs in the text."""
        return None if text is None else mask_urls(text)


def without_secrets(text: str, names: Names = USUAL) -> str:
    """Mask the values that follow names of secrets in the text: `password=…`, `'api_key': '…'`. It recognises secrets
    by these names alone.

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
    """Return the value that a user edited, with each mask that is left replaced by the stored secret."""
    if isinstance(shown, dict) and isinstance(stored, dict):
        return {
            name: stored[name] if each == MASK and name in stored else unmasked(each, stored.get(name))
            for name, each in shown.items()
        }
    if isinstance(shown, list) and isinstance(stored, list):
        return [unmasked(each, stored[place] if place < len(stored) else None) for place, each in enumerate(shown)]
    return shown
