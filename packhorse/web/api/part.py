"""A part of a list that may be long: queues, tasks, workers, busy slots. Who asks for no limit gets all of it, as ever.

Lists of jobs have cursors of their own, which a storage understands; these lists are in memory when they are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

T = TypeVar("T")


class PartQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How many at most, by their names; `cursor` is the `next` of the answer before. Without a limit, all."""

    cursor: Annotated[str, Meta(max_length=512)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] | None = None


def part_of(items: Iterable[T], name: Callable[[T], str], query: PartQuery) -> tuple[list[T], str | None]:
    """The part that is asked for, and the cursor for the next one."""
    if query.limit is None and query.cursor is None:
        return list(items), None
    rest = sorted((item for item in items if query.cursor is None or name(item) > query.cursor), key=name)
    part = rest[: query.limit]
    return part, name(part[-1]) if len(part) < len(rest) else None
