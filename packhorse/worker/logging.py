"""How the lines of a log look: as text for people, or as JSON or logfmt for programs that collect them.

The foreman and its workers write theirs to stderr in the same form; `packhorse work --log-format` says in which. For
programs, a line that is about a job, or that a task writes while it runs, has the job's id, task, queue and attempt as
fields, and so has what was passed as `extra`.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from typing import Any

from packhorse.core.context import CURRENT, JobContext
from packhorse.core.job import Job

LOG_FORMATS = ("text", "json", "logfmt")
TRACEBACK = "traceback"
"""As this a record may carry, in its `extra`, the traceback of an exception that is known as text only."""
_LINE_END = re.compile(r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]")
_USUAL = frozenset({*vars(logging.LogRecord("", 0, "", 0, "", None, None)), "message", "asctime", "taskName"})


def formatter_of(name: str) -> logging.Formatter:
    """A formatter for one of `LOG_FORMATS`."""
    if name == "text":
        return _Text("%(asctime)s %(levelname)-7s %(message)s")
    return _JsonLines() if name == "json" else _Logfmt()


def about(job: Job | JobContext) -> dict[str, Any]:
    """What the lines about a job have as fields; the `extra` of a record."""
    return {"job_id": job.id, "task": job.task, "queue": job.queue, "attempt": job.attempt}


class _Text(logging.Formatter):
    """A line, and below it the traceback of what is an error. Only the first line of a record begins at the left, so no
    text in it, which may come from a job or from another machine, can pass for another record."""

    def format(self, record: logging.LogRecord) -> str:
        traceback = getattr(record, TRACEBACK, None)
        text = super().format(record)
        if traceback and record.levelno >= logging.ERROR:
            text = f"{text}\n{traceback.rstrip()}"
        if record.name.partition(".")[0] == "packhorse":
            text = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
        return _LINE_END.sub("\n    ", text)


class _JsonLines(logging.Formatter):
    """One JSON object on each line; a traceback is in `error`."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_fields(self, record), ensure_ascii=False, default=str)


class _Logfmt(logging.Formatter):
    """One line of name=value; what has spaces or quotation marks in it is quoted as in JSON."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{_name(name)}={_quoted(value)}" for name, value in _fields(self, record).items())


def _fields(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, Any]:
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    fields = {"at": at, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
    job = CURRENT.get()
    extra = {name: value for name, value in vars(record).items() if name not in _USUAL}
    error = extra.pop(TRACEBACK, None)
    if record.exc_info:
        error = formatter.formatException(record.exc_info)
    if error:
        fields["error"] = error
    return {**fields, **({} if job is None else about(job)), **extra, **fields}


def _name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "_.-" else "_" for letter in str(name))


def _quoted(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    is_plain = text.isprintable() and text and not any(sign in text for sign in ' "=\\')
    return text if is_plain else json.dumps(text, ensure_ascii=False)
