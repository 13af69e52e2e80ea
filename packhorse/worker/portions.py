"""Portions: what jobs have said, written a part at a time where a storage does not take all of it at once.

The scribe writes through here. A server, or a proxy before it, may refuse what is too long for it: then half of it is
tried, and so on. What is refused all by itself gives way to a notice, so that it harms nobody else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import chain
from typing import TypeVar

from packhorse.errors import BadValue, StorageUnavailable

log = logging.getLogger("packhorse.worker")

T = TypeVar("T")

LONGEST_REASON = 500
"""Characters of a refusal that are told: it must not be refused for its own length."""


def write_in_portions(
    said: list[T],
    write: Callable[[list[T]], object],
    notice_of: Callable[[T, BadValue], T],
    put_back: Callable[[list[T]], object],
) -> None:
    """Write all of it, in its order. While the storage is away, what is not written yet is put back."""
    left = [said]  # the next portion stands last
    notice: T | None = None
    dropped: list[BadValue] = []
    while left:
        portion = left.pop()
        try:
            write(portion)
        except StorageUnavailable:
            put_back([*portion, *chain.from_iterable(reversed(left))])
            raise
        except BadValue as error:
            middle = len(portion) // 2
            if middle:
                left += portion[middle:], portion[:middle]
            elif portion[0] is not notice:
                notice = notice_of(portion[0], error)
                left.append([notice])
            else:
                dropped.append(error)
    if dropped:
        log.warning("%d words of jobs are lost: the storage refuses even to be told so: %s", len(dropped), dropped[0])


def refusal(noun: str, text: str, error: BadValue) -> str:
    """What stands in the place of a text that was refused."""
    return f"a {noun} of {len(text):,} characters was refused: {str(error)[:LONGEST_REASON]}"
