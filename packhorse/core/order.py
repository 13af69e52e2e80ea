"""Orders: what an operator wants of a foreman and its crew, wherever they run.

The command line writes one through the storage (`storage.order`), the foreman finds it as the event `ordered` and does
what it says. It holds for as long as that foreman lives: one that is started again knows nothing of it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from packhorse.core.event import Event


class Do(StrEnum):
    """What is wanted."""

    QUIET = "quiet"  # take no more jobs; what runs goes on
    STOP = "stop"  # finish what runs, and end
    RESTART = "restart"  # give way to fresh workers, one after the other
    SCALE = "scale"  # keep so many workers, or give each so many slots
    STACKS = "stacks"  # say where every thread stands


IN_PROGRAM = "in_program"
"""A foreman's record has this if it is a pool in somebody's program: there neither new code nor more workers can come
from an order."""
NOT_IN_PROGRAM = frozenset({Do.RESTART, Do.SCALE})


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """One order. `worker` is the one of the crew that is meant, None: all of them, and the foreman."""

    do: Do
    worker: str | None = None
    least: int | None = None  # of `scale`: how many workers at least,
    most: int | None = None  # and at most
    slots: int | None = None  # and of each; workers with another number give way to fresh ones
    now: bool = False  # of `stop`: without waiting for what runs, which is handed back

    def facts(self, by: str | None) -> dict[str, Any]:
        """What the event says."""
        told: dict[str, Any] = msgspec.to_builtins(self)
        return {**told, "by": by} if by else told

    @classmethod
    def of(cls, event: Event) -> Order | None:
        """The order that this event is; None: one that only a newer version knows."""
        try:
            return msgspec.convert(event.data or {}, cls)
        except msgspec.ValidationError:
            return None
