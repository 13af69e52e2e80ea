"""Portions: what jobs have said, written a part at a time where a storage does not take all of it at once.

The log writer writes through here. A server, or a proxy before it, may refuse what is too long for it: then half of
it is
tried, and so on. What is refused all by itself gives way to a notice, so that it harms nobody else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import chain
from typing import TypeVar

from packhorse.core.errors import BadValue, StorageUnavailable

log = logging.getLogger("packhorse.worker")

T = TypeVar("T")

LONGEST_REASON = 500
"""Characters of a refusal that are told: it must not be refused for its own length."""
MOST_REFUSALS = 8
"""How many are refused by themselves before others as long are not tried any more: each try holds up the worker."""


def write_in_portions(
    said: list[T],
    write: Callable[[list[T]], object],
    put_back: Callable[[list[T]], object],
    notice_of: Callable[[T, BadValue], T],
    length_of: Callable[[T], int],
) -> None:
    """Write all of it, in its order. While the storage is away, what is not written yet is put back."""
    left = [said]  # the next portion stands last
    notice: T | None = None
    refused: list[int] = []  # their lengths
    lost = 0
    why: BadValue | None = None
    while left:
        portion = left.pop()
        try:
            write(portion)
        except StorageUnavailable:
            put_back([*portion, *_in_order(left)])
            raise
        except BadValue as error:
            middle = len(portion) // 2
            if middle:
                left += portion[middle:], portion[:middle]
            elif portion[0] is notice:
                lost, why = lost + 1, error
                if lost == MOST_REFUSALS:  # it takes nothing at all
                    lost += len(_in_order(left))
                    left = []
            else:
                refused.append(length_of(portion[0]))
                notice = notice_of(portion[0], error)
                if left and len(refused) == MOST_REFUSALS:
                    least = min(refused)
                    left = [[notice_of(each, error) if length_of(each) >= least else each for each in _in_order(left)]]
                left.append([notice])
    if lost:
        log.warning("%d words of jobs are lost: the storage refuses even to be told so: %s", lost, why)


def _in_order(left: list[list[T]]) -> list[T]:
    return list(chain.from_iterable(reversed(left)))


def refusal(noun: str, text: str, error: BadValue) -> str:
    """What stands in the place of a text that was refused."""
    return f"a {noun} of {len(text):,} characters was refused: {str(error)[:LONGEST_REASON]}"
