"""Stacks: where the threads of a worker stand, as it told when an operator asked. See the order `stacks`.

The worker's answer is part of what its foreman reports for it for a few minutes; the web and the command line ask, and
wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from packhorse.core.errors import BadValue
from packhorse.core.event import IN_PROGRAM, NOT_IN_PROGRAM, ForemanAction, ForemanOrder, Kind, Subject
from packhorse.storage.contract import Storage
from packhorse.storage.records import EventFilter, WorkerInfo

MOST_TEXT = 24 << 10
"""Letters that one worker may tell."""
MOST_STACKS = 100
STACKS_TOLD_FOR = 180.0
"""Seconds for which stacks are part of what is reported."""
_MOST_AT_ONCE = 100
"""Orders that others may have given to a foreman just now."""


class Stack(msgspec.Struct, frozen=True):
    """One thread, coroutine or child process; `job_id` is the job that it runs."""

    title: str
    text: str
    job_id: str | None = None


class Stacks(msgspec.Struct, frozen=True):
    """What a worker told: in answer to which order, how many seconds before its last heartbeat."""

    order: int
    age_s: float
    items: list[Stack]

    def of_job(self, job_id: str) -> Stack | None:
        """Where this job stands."""
        return next((stack for stack in self.items if stack.job_id == job_id), None)


def stacks_of(worker: WorkerInfo) -> Stacks | None:
    """What this worker has told lately; None: nothing, or what only a newer version understands."""
    try:
        return msgspec.convert(worker.report.get("stacks"), Stacks)
    except msgspec.ValidationError:
        return None


def ask_for_stacks(storage: Storage, worker: WorkerInfo, *, by: str | None) -> int | None:
    """Have this worker, or all of this foreman, say where they stand; the number of the order, None: no foreman hears
    it."""
    is_foreman = worker.subject is Subject.FOREMAN
    foreman = worker.id if is_foreman else worker.foreman
    order = ForemanOrder(ForemanAction.STACKS, worker=None if is_foreman else worker.id)
    return None if foreman is None else give_order(storage, foreman, order, by=by)


def give_order(storage: Storage, foreman: str, order: ForemanOrder, *, by: str | None) -> int | None:
    """Leave an order with a foreman; its number, None: nobody hears it. Others may give theirs at the same time: one's
    own is the newest that says the same."""
    if not storage.order(foreman, order, by=by):
        return None
    where = EventFilter(subject=Subject.FOREMAN, kind=Kind.ORDERED, owner=foreman)
    newest = storage.events(where, limit=_MOST_AT_ONCE, newest_first=True)
    return next((event.id for event in newest if event.data == order.facts(by)), None)


def refuse_in_program(foreman: WorkerInfo | None, do: ForemanAction) -> None:
    """BadValue if this is a pool in a program, and the order means nothing to one."""
    if foreman is not None and do in NOT_IN_PROGRAM and foreman.info.get(IN_PROGRAM):
        raise BadValue(
            f"{foreman.host}:{foreman.pid} is a pool in a program, which an order cannot {do.value}",
            hint="restart its program; a pool follows quiet, stop and stacks",
        )


def workers_of(worker: WorkerInfo, everybody: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    """Whom an order to this one concerns: the worker itself, or the workers of this foreman."""
    if worker.subject is Subject.FOREMAN:
        return [each for each in everybody if each.foreman == worker.id]
    return [each for each in everybody if each.id == worker.id]


def have_answered(workers: Sequence[WorkerInfo], number: int) -> bool:
    """Have all of these answered the order of this number?"""
    return all((told := stacks_of(worker)) is not None and told.order >= number for worker in workers)


def limit_stacks(items: Sequence[Stack], most: int = MOST_TEXT) -> list[Stack]:
    """As many of these as fit."""
    kept: list[Stack] = []
    for place, stack in enumerate(items):
        most -= len(stack.text) + len(stack.title)
        if most < 0 or place >= MOST_STACKS:
            return [*kept, Stack(f"{len(items) - place} more were left out", "")]
        kept.append(stack)
    return kept
