"""Failures by cause: a thousand dead jobs as three sentences."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from packhorse.clock import DAY, microseconds
from packhorse.fields import FailureFields, failure_fields
from packhorse.web.api.endpoint import Call, get, post
from packhorse.web.telltales import Telltales, telltales_of


class FailuresQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How many, and of which task."""

    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    task: str | None = None


class FailureList(msgspec.Struct):
    """Groups of failures, the latest first."""

    items: list[FailureFields]


class SilenceBody(msgspec.Struct, forbid_unknown_fields=True):
    """For how long, as `24h` or in seconds."""

    duration: str | float = DAY / 1_000_000


class Silenced(msgspec.Struct):
    """The cause, and whether anything changed."""

    cause: str
    changed: bool


@get("/failures")
def list_failures(call: Call, query: FailuresQuery) -> FailureList:
    """Failures grouped by cause: task, kind of error, place, and the message without what varies."""
    groups = [group for group in call.reader.failures() if query.task in (None, group.task)]
    return FailureList([failure_fields(group) for group in groups[: query.limit]])


@get("/failures/{cause}/telltales")
def list_telltales(call: Call, cause: str) -> Telltales:
    """What the arguments of its jobs have in common that those of completed ones have not: of the latest hundred of
    either, in which parts of them it is so."""
    return telltales_of(call.reader, call.reader.failure(cause))


@post("/failures/{cause}/silence")
def silence_failure(call: Call, cause: str, body: SilenceBody) -> Silenced:
    """Somebody knows of it: for a while it is shown apart. It is counted as ever."""
    return Silenced(cause, call.steps.silence(cause, microseconds(body.duration)))


@post("/failures/{cause}/unsilence")
def unsilence_failure(call: Call, cause: str) -> Silenced:
    """Show it among the others again."""
    return Silenced(cause, call.steps.silence(cause, None))
