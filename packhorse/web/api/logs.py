"""The log of a job: pages of lines as JSON, and the whole log as a text file."""

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

_AT_ONCE = 200  # lines of a text that are in memory together; each may have ten thousand characters
_ODD = re.compile(r"[^0-9A-Za-z_.-]")


class LevelQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Only lines of this level or above."""

    level: LogLevel = LogLevel.DEBUG


class LogQuery(AfterQuery, kw_only=True, forbid_unknown_fields=True):
    """Which lines: after the line with the id `after`, how many, and the lowest level."""

    level: LogLevel = LogLevel.DEBUG


class LogPage(msgspec.Struct):
    """Lines of a log; `last` is `after` of the next page. `limit` counts lines of every level, so more lines may follow
    an empty page, unless `last` equals `after`."""

    items: list[LogFields]
    last: int


class LogText(StreamingResponse):
    """The log as text."""

    media_type = "text/plain"


@get("/jobs/{id}/log")
def get_log(call: Call, id: str, query: LogQuery) -> LogPage:
    """The lines that a job wrote, oldest first."""
    lines = call.reader.log_lines(id, query.after, query.limit)
    shown = [log_fields(line) for line in lines if line.level.reaches(query.level)]
    return LogPage(shown, lines[-1].id if lines else query.after)


@get("/jobs/{id}/log.txt")
def get_log_text(call: Call, id: str, query: LevelQuery) -> LogText:
    """All lines that a job wrote, as a plain text file."""
    call.reader.stored(id)  # before the response starts, so that an unknown job is a 404
    headers = {"content-disposition": f'attachment; filename="{_ODD.sub("_", id)}.log.txt"'}
    return LogText(_text(call, id, query.level), headers=headers)


def _text(call: Call, id: str, level: LogLevel) -> Iterator[str]:
    """Yield the text in pieces, each read after the previous one was sent."""
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
    """Indent all but the first line of a message, so that no message can imitate another one or a new attempt."""
    kind = "" if line.kind is LogKind.LOG else f"{line.kind}: "
    message = safe(line.message).replace("\n", "\n    ")
    return f"{iso(line.at)} {kind}{message}\n"
