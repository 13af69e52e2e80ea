"""How the lines of a log look: as text for people, or as JSON or logfmt for programs that collect them.

The foreman and its workers write theirs to stderr in the same form; `packhorse work --log-format` says in which.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime

LOG_FORMATS = ("text", "json", "logfmt")


def formatter_of(name: str) -> logging.Formatter:
    """A formatter for one of `LOG_FORMATS`."""
    if name == "text":
        return logging.Formatter("%(asctime)s %(levelname)-7s %(message)s")
    return _JsonLines() if name == "json" else _Logfmt()


class _JsonLines(logging.Formatter):
    """One JSON object on each line; a traceback is in `error`."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_fields(self, record), ensure_ascii=False)


class _Logfmt(logging.Formatter):
    """One line of name=value; what has spaces or quotation marks in it is quoted as in JSON."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{name}={_quoted(value)}" for name, value in _fields(self, record).items())


def _fields(formatter: logging.Formatter, record: logging.LogRecord) -> Mapping[str, str]:
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    fields = {"at": at, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
    if record.exc_info:
        fields["error"] = formatter.formatException(record.exc_info)
    return fields


def _quoted(value: str) -> str:
    is_plain = value.isprintable() and value and not any(sign in value for sign in ' "=\\')
    return value if is_plain else json.dumps(value, ensure_ascii=False)
