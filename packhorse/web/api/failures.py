"""Failures by cause: a thousand dead jobs as three sentences."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from packhorse.core.clock import DAY, microseconds
from packhorse.monitor.serializers import CauseFields, FailureFields, failure_fields
from packhorse.storage.records import Span
from packhorse.web.api.endpoint import Call, get, post
from packhorse.web.api.stats import SpanQuery


class FailuresQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How many, and of which task; with `span`, how many of each there were over that time: `2h` has a count a minute,
    `48h` one an hour, `90d` one a day."""

    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    task: str | None = None
    span: Span | None = None


class FailureList(msgspec.Struct):
    """Groups of failures, the latest first."""

    items: list[FailureFields]


class SilenceBody(msgspec.Struct, forbid_unknown_fields=True):
    """For how long, as `24h` or in seconds; or until a failure of another version of the code comes; or whichever is
    first. For a day, if neither is said."""

    duration: str | float | None = None
    until_next_version: bool = False


class Silenced(msgspec.Struct):
    """The cause, and whether anything changed."""

    cause: str
    changed: bool


@get("/failures")
def list_failures(call: Call, query: FailuresQuery) -> FailureList:
    """Failures grouped by cause: task, kind of error, place, and the message without what varies."""
    groups = [group for group in call.reader.failures() if query.task in (None, group.task)][: query.limit]
    counts = call.reader.failure_counts(query.span) if query.span is not None else {}
    return FailureList([failure_fields(replace(group, counts=counts.get(group.cause, {}))) for group in groups])


@get("/failures/{cause}")
def get_failure(call: Call, cause: str, query: SpanQuery) -> CauseFields:
    """One cause: what became of its jobs, its latest failure, and how many there were over time."""
    group = call.reader.failure(cause)
    counts = call.reader.failure_counts(query.span).get(cause, {})
    fields = {**msgspec.structs.asdict(failure_fields(replace(group, counts=counts))), **call.reader.jobs_of(cause)}
    return CauseFields(**fields, example=call.reader.example_of(group))


@post("/failures/{cause}/silence")
def silence_failure(call: Call, cause: str, body: SilenceBody) -> Silenced:
    """Somebody knows of it: for a while it is shown apart. It is counted as ever."""
    is_said = body.duration is not None or body.until_next_version
    duration = microseconds(body.duration) if body.duration is not None else None if is_said else DAY
    call.actions.silence(cause, duration, until_next_version=body.until_next_version)
    return Silenced(cause, True)


@post("/failures/{cause}/unsilence")
def unsilence_failure(call: Call, cause: str) -> Silenced:
    """Show it among the others again."""
    return Silenced(cause, call.actions.unsilence(cause))
