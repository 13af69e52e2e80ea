"""Failures by cause: a thousand dead jobs as three sentences."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from packhorse.fields import FailureFields, failure_fields
from packhorse.web.api.endpoint import Call, get


class FailuresQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How many, and of which task."""

    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    task: str | None = None


class FailureList(msgspec.Struct):
    """Groups of failures, the latest first."""

    items: list[FailureFields]


@get("/failures")
def list_failures(call: Call, query: FailuresQuery) -> FailureList:
    """Failures grouped by cause: task, kind of error, place, and the message without what varies."""
    groups = [group for group in call.reader.failures() if query.task in (None, group.task)]
    return FailureList([failure_fields(group) for group in groups[: query.limit]])
