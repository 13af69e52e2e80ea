"""The fork hook: an object that holds connections or locks registers here and is reset in every forked child.

A child inherits the sockets of its parent, and locks that another thread of the parent may hold. It must use neither.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Resettable(Protocol):
    """An object that a forked child cannot use as it is."""

    def after_fork(self) -> None:
        """Drop what belongs to the parent. Runs in the child, before any other code of it."""


_registered: weakref.WeakSet[Resettable] = weakref.WeakSet()


def reset_after_fork(one: Resettable) -> None:
    """Call `after_fork` of this object in every child that is forked while the object lives."""
    _registered.add(one)


def _after_fork_in_child() -> None:
    for one in list(_registered):
        one.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
