"""Forks: a forked child inherits connections and locks that are its parent's. Whoever has such things registers here,
and in the child `part_ways` is called, before anything else runs."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """Something that must begin anew in a child."""

    def part_ways(self) -> None: ...


_all: weakref.WeakSet[Forked] = weakref.WeakSet()


def part_ways_after_fork(one: Forked) -> None:
    """Call its `part_ways` in every child that is forked while it lives."""
    _all.add(one)


def _after_fork_in_child() -> None:
    for one in list(_all):
        one.part_ways()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
