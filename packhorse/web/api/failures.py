"""Failures grouped by cause."""

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
    """How many, and of which task; with `span`, also the counts over that time: `2h` has one per minute, `48h` one per
    hour, `90d` one per day."""

    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    task: str | None = None
    span: Span | None = None


class FailureList(msgspec.Struct):
    """Groups of failures, latest first."""

    items: list[FailureFields]


class SilenceBody(msgspec.Struct, forbid_unknown_fields=True):
    """How long, as `24h` or in seconds, or until another version of the code fails, whichever comes first. A day by
    default."""

    duration: str | float | None = None
    until_next_version: bool = False


class Silenced(msgspec.Struct):
    """The cause, and whether anything changed."""

    cause: str
    changed: bool


@get("/failures")
def list_failures(call: Call, query: FailuresQuery) -> FailureList:
    """Failures grouped by cause: task, kind of error, place, and the message without its variable parts."""
    groups = [group for group in call.reader.failures() if query.task in (None, group.task)][: query.limit]
    counts = call.reader.failure_counts(query.span) if query.span is not None else {}
    return FailureList([failure_fields(replace(group, counts=counts.get(group.cause, {}))) for group in groups])


@get("/failures/{cause}")
def get_failure(call: Call, cause: str, query: SpanQuery) -> CauseFields:
    """One cause: its jobs by state, its latest failure, and its failures over time."""
    group = call.reader.failure(cause)
    counts = call.reader.failure_counts(query.span).get(cause, {})
    fields = {**msgspec.structs.asdict(failure_fields(replace(group, counts=counts))), **call.reader.jobs_of(cause)}
    return CauseFields(**fields, example=call.reader.example_of(group))


@post("/failures/{cause}/silence")
def silence_failure(call: Call, cause: str, body: SilenceBody) -> Silenced:
    """Silence a known cause: it is listed apart until the silence ends. Its failures still count."""
    has_end = body.duration is not None or body.until_next_version
    duration = microseconds(body.duration) if body.duration is not None else None if has_end else DAY
    call.actions.silence(cause, duration, until_next_version=body.until_next_version)
    return Silenced(cause, True)


@post("/failures/{cause}/unsilence")
def unsilence_failure(call: Call, cause: str) -> Silenced:
    """End the silence of a cause."""
    return Silenced(cause, call.actions.unsilence(cause))
