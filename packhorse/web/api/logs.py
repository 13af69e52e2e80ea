"""A job's log: line by line as JSON, as the page follows it, and all of it as plain text, to keep or to send on."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
from starlette.responses import StreamingResponse

from packhorse.core.errors import JobNotFound
from packhorse.monitor.serializers import LogFields, iso, log_fields
from packhorse.storage.records import LogKind, LogLevel, LogLine
from packhorse.web.api.endpoint import Call, get
from packhorse.web.api.jobs import AfterQuery
from packhorse.web.text import safe

_AT_ONCE = 200  # lines of a text that are held in memory; each may have ten thousand characters
_ODD = re.compile(r"[^0-9A-Za-z_.-]")


class LevelQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Only lines of this level, or above it."""

    level: LogLevel = LogLevel.DEBUG


class LogQuery(AfterQuery, kw_only=True, forbid_unknown_fields=True):
    """From where on, how many, and of which level at least; `after` is the id of the last line seen."""

    level: LogLevel = LogLevel.DEBUG


class LogPage(msgspec.Struct):
    """Lines of a log; `last` is the `after` of the next page. With a level, `limit` lines are looked at: there may be
    more although a page is empty, unless `last` is what `after` was."""

    items: list[LogFields]
    last: int


class LogText(StreamingResponse):
    """The log as text."""

    media_type = "text/plain"


@get("/jobs/{id}/log")
def get_log(call: Call, id: str, query: LogQuery) -> LogPage:
    """The lines that a job wrote, the oldest first."""
    lines = call.reader.log_lines(id, query.after, query.limit)
    shown = [log_fields(line) for line in lines if line.level.reaches(query.level)]
    return LogPage(shown, lines[-1].id if lines else query.after)


@get("/jobs/{id}/log.txt")
def get_log_text(call: Call, id: str, query: LevelQuery) -> LogText:
    """All lines that a job wrote, as a file of plain text."""
    call.reader.stored(id)  # before the answer begins: what is not there is a 404
    headers = {"content-disposition": f'attachment; filename="{_ODD.sub("_", id)}.log.txt"'}
    return LogText(_text(call, id, query.level), headers=headers)


def _text(call: Call, id: str, level: LogLevel) -> Iterator[str]:
    """A piece at a time, each when the one before has been sent."""
    last, attempt = 0, None
    try:
        while lines := call.reader.log_lines(id, last, _AT_ONCE):
            shown = []
            for line in lines:
                if line.level.reaches(level):
                    shown += [] if line.attempt == attempt else [f"--- attempt {line.attempt} ---\n"]
                    shown.append(_line(line))
                    attempt = line.attempt
            last = lines[-1].id
            yield "".join(shown)
    except JobNotFound:
        yield "--- the job was deleted meanwhile, and the rest with it ---\n"


def _line(line: LogLine) -> str:
    """Only the first line of a message begins at the left: no message can pass for another, or for a new attempt."""
    kind = "" if line.kind is LogKind.LOG else f"{line.kind}: "
    message = safe(line.message).replace("\n", "\n    ")
    return f"{iso(line.at)} {kind}{message}\n"
