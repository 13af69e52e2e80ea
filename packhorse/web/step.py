"""A step of an operator: what is to be done to a job, or to many, and what it sets. Made by the API and by the pages of
what somebody asked for; `steps.py` takes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from packhorse.core.errors import BadValue
from packhorse.core.job import Job, Operation
from packhorse.core.task import TaskOptions, check_name
from packhorse.storage import Storage
from packhorse.storage.records import ActionResult, JobVersion

Many = Callable[[Storage, Sequence[Job], str], list[ActionResult]]
"""Does something to these jobs, as far as they are as they were seen, on behalf of somebody."""


class Step(NamedTuple):
    """An operation; the priority or the queue is of those that set one."""

    operation: Operation
    priority: int | None = None
    queue: str | None = None
    new: bool = False  # the queue need not be known yet

    @property
    def named_priority(self) -> int:
        if self.priority is None:
            raise BadValue("which priority? the request does not say", hint='e.g. {"priority": 7}')
        return self.priority

    @property
    def named_queue(self) -> str:
        if not self.queue:
            raise BadValue("which queue? the request does not say", hint='e.g. {"queue": "slow"}')
        return self.queue

    def to_many(self) -> Many:
        """How it is done to many jobs. Raises BadValue for a priority or a queue that cannot be."""
        match self.operation:
            case Operation.ABORT:
                return lambda storage, jobs, by: _to(jobs, partial(storage.abort, by=by))
            case Operation.FORCE_START:
                return lambda storage, jobs, by: _to(jobs, partial(storage.force_start, by=by))
            case Operation.RETRY:
                return lambda storage, jobs, by: _to(jobs, partial(storage.retry, by=by))
            case Operation.DELETE:
                return lambda storage, jobs, by: _to(jobs, partial(storage.delete, by=by))
            case Operation.SET_PRIORITY:
                number = TaskOptions().with_(priority=self.named_priority).priority
                return lambda storage, jobs, by: _to(jobs, partial(storage.set_priority, priority=number, by=by))
            case Operation.SET_QUEUE:
                name = check_name(self.named_queue, "queue name")
                return lambda storage, jobs, by: _to(jobs, partial(storage.set_queue, queue=name, by=by))
        raise BadValue(
            f"{self.operation} cannot be done to many jobs",
            hint="abort, force_start, retry, set_priority, set_queue or delete",
        )


def _to(jobs: Sequence[Job], steer: Callable[..., list[ActionResult]]) -> list[ActionResult]:
    return steer([job.id for job in jobs], seen=[JobVersion.of(job) for job in jobs])
