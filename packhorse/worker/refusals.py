"""Refusals: outcomes that the storage does not take together, written a part at a time, for the loop and the admission.

A server, or a proxy before it, may refuse what is too long for it: then half of it is tried, and so on. What is refused
all by itself is shortened. What is refused even then is given up, with an error in the log: it must not keep the others
from being written down. Its job stays in the hands of the worker until that leaves, and is handed back then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from packhorse.core.errors import BadValue
from packhorse.core.outcome import Outcome, Verdict
from packhorse.worker.outcomes import of_refused

log = logging.getLogger("packhorse.worker")

T = TypeVar("T")

MOST_CALLS = 32
"""After so many the rest waits for the next time: meanwhile nobody looks after the jobs that run."""


class Written(NamedTuple, Generic[T]):
    """What became of a batch: what was written, as it was, with the verdicts; whose outcome is lost; and what was not
    tried yet."""

    batch: list[tuple[T, Outcome]]
    verdicts: list[Verdict]
    lost: list[T]
    left: list[tuple[T, Outcome]]


def finish_in_portions(
    batch: Sequence[tuple[T, Outcome]], finish: Callable[[Sequence[tuple[T, Outcome]]], list[Verdict]]
) -> Written[T]:
    """Write down this batch, which was refused as a whole. Raises what `finish` raises, but for BadValue; to write
    again what was written before does no harm."""
    written: Written[T] = Written([], [], [], [])
    done, ends = 0, [len(batch), len(batch) // 2]  # where portions end, the next one last
    for _ in range(MOST_CALLS):
        while ends and ends[-1] == done:
            ends.pop()
        if not ends:
            break
        portion = batch[done : ends[-1]]
        try:
            verdicts = finish(portion)
        except BadValue as error:
            if len(portion) > 1:
                ends.append(done + len(portion) // 2)
            else:
                _write_short(written, *portion[0], error, finish)
                done += 1
        else:
            written.batch.extend(portion)
            written.verdicts.extend(verdicts)
            done += len(portion)
    written.left.extend(batch[done:])
    return written


def _write_short(
    written: Written[T],
    whose: T,
    outcome: Outcome,
    error: BadValue,
    finish: Callable[[Sequence[tuple[T, Outcome]]], list[Verdict]],
) -> None:
    short = (whose, of_refused(outcome, error))
    try:
        verdicts = finish([short])
    except BadValue as again:
        told = "job %s: the storage takes nothing that is said of its end; it stays here until this worker ends: %s"
        log.error(told, outcome.token.job_id, again)
        written.lost.append(whose)
    else:
        written.batch.append(short)
        written.verdicts.extend(verdicts)
