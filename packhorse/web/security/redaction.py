"""Redaction: what is never shown, whoever asks. Applied on the server, before anything becomes JSON or HTML.

Values whose name sounds like a secret are replaced in arguments, results and meta; passwords in URLs are masked in
errors and log lines. A form that is filled with masked values gives the stored ones back where the mask still stands.
Of a text that leaves the house, `without_secrets` also takes what looks like `password=…`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from msgspec.structs import replace

from packhorse.job import Job
from packhorse.settings import mask_urls

MASK = "•••"
HIDDEN = '{"hidden": true}'
"""What stands for arguments and results that are not shown at all."""
_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)?$|pwd|token|secret|api[_-]?key|authori[sz]ation|credential|card|cvv|cookie", re.I
)
# In JSON: what sounds like a secret, and the rest of its text; the group is there if that text is a name. Possessive,
# and it always comes to a match, so that no long text is gone through again and again: others wrote it.
_MAYBE = re.compile(r'(?:pass|pwd|token|secret|key|authori|credential|card|cvv|cookie)[^"\\]*+("\s*+:)?+', re.I)
_ESCAPED_NAME = re.compile(r"\\u[0-9a-fA-F]{4}")
# In text: a name, quoted or not, and what follows it. Possessive, so that no long word is tried again and again.
_NAMED = re.compile(r"""(?<![\w-])([\w-]++)\\*+["']?[ \t]*+(?::=|=>|=(?!=)|:(?!//))[ \t]*+""")
_VALUE = re.compile(
    r"""[rbfu]{0,2}\\*+(?:"(?:\\.|[^"\\\n])*+"?|'(?:\\.|[^'\\\n])*+'?)"""
    r"""|(?:(?:bearer|basic|digest|token)[ \t]++)?[^\s,;&()\[\]{}"'<>][^\s,;&)\]}"'<>]*+""",
    re.I,
)
_TELLS_NOTHING = re.compile(r"(?:none|null|true|false)\Z", re.I)
_ERROR_NAME = re.compile(r"(?:Error|Exception|Warning)\Z")


class Redaction:
    """What this server hides. `hide_args` shows no arguments and no results at all."""

    def __init__(self, *, hide_args: bool = False) -> None:
        self.hide_args = hide_args

    def job(self, job: Job) -> Job:
        """The job as it may be shown."""
        return replace(
            job,
            args=self.json(job.args) or "{}",
            result=self.json(job.result),
            meta=self.json(job.meta),
            error=self.text(job.error),
            progress_text=self.text(job.progress_text),
            checkin=self.text(job.checkin),
        )

    def json(self, text: str | None) -> str | None:
        """Stored JSON as it may be shown. What holds no secret name stays exactly as it is."""
        if text is None:
            return None
        if self.hide_args:
            return HIDDEN
        if not any(found[1] for found in _MAYBE.finditer(text)) and not _ESCAPED_NAME.search(text):
            return text
        try:
            return json.dumps(_masked(json.loads(text)), ensure_ascii=False)
        except (ValueError, RecursionError):
            return json.dumps(MASK)

    def hides(self, name: str) -> bool:
        """Is the value of an argument of this name not shown?"""
        return self.hide_args or _SECRET_NAME.search(name) is not None

    def text(self, text: str | None) -> str | None:
        """Text as it may be shown: no password in any URL."""
        return None if text is None else mask_urls(text)


def without_secrets(text: str) -> str:
    """Text with the mask in place of the values that follow names of secrets: `password=…`, `'api_key': '…'`. It knows
    secrets by these names alone.

    >>> without_secrets("login as ann, password=hunter2, failed")
    'login as ann, password=•••, failed'
    """
    parts, done, place = [], 0, 0
    while named := _NAMED.search(text, place):
        place = named.end()
        value = _VALUE.match(text, place) if _is_secret(named[1]) else None
        if value is not None and not _TELLS_NOTHING.match(value[0]):
            quote = next((mark for mark in value[0] if mark in "\"'"), "")
            parts += [text[done:place], quote, MASK, quote]
            done = place = value.end()
    return "".join([*parts, text[done:]])


def _is_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None and _ERROR_NAME.search(name) is None


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: MASK if _SECRET_NAME.search(name) and not isinstance(each, bool | None) else _masked(each)
            for name, each in value.items()
        }
    return [_masked(each) for each in value] if isinstance(value, list) else value


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
