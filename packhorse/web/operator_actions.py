"""Every change that the API and the pages make for one operator: `monitor/actions.py` plus the operator's permissions.
The route checks the role; this module checks queues and tasks."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from packhorse.client.app import Packhorse
from packhorse.client.job import JobHandle
from packhorse.client.job_builder import NewCall
from packhorse.client.schedule import find_schedule
from packhorse.core.clock import SECOND, Duration
from packhorse.core.errors import BadValue, NotAllowed, QueueNotFound, TaskNotFound, did_you_mean
from packhorse.core.event import ForemanOrder, Kind, Subject
from packhorse.core.job import WAITING, Job, Operation
from packhorse.monitor import actions
from packhorse.monitor.actions import JobAction, Progress
from packhorse.storage import BATCH
from packhorse.storage.backup import NO_NEED, back_up, beside, compact, file_of
from packhorse.storage.records import EventFilter, Filter, Pruned, WorkerInfo
from packhorse.web.cache import Cache
from packhorse.web.reader import Reader
from packhorse.web.security.operator import Operator, Role
from packhorse.web.security.redaction import unmasked

_STACKS_TIMEOUT = 4 * SECOND
_WRITERS_TIMEOUT = 5.0  # seconds for other processes to end their writes
_BUDGET = 2.0  # seconds of one request for many jobs; the caller continues from the cursor
_UNKNOWN_TASK = '"known": false enqueues it for workers that start later'

T = TypeVar("T")


class OperatorActions:
    """The changes that one operator may make."""

    def __init__(self, app: Packhorse, cache: Cache, reader: Reader, operator: Operator) -> None:
        self._app = app
        self._cache = cache
        self._reader = reader
        self._operator = operator
        self._by = operator.name

    # --- one job --------------------------------------------------------------------------------------------------

    def apply(self, action: JobAction, job_id: str, *, new_queue_hint: str | None = None) -> Job:
        """Apply the action to one job; return the job as it was before. Raise JobNotFound, WrongState or NotUnique;
        QueueNotFound as `check` does."""
        job = self._reader.stored(job_id)
        self.check(action, new_queue_hint=new_queue_hint)
        action.apply_to_one(JobHandle[Any](self._app._state, job_id), by=self._by)
        self._cache.forget()
        return job

    def check(self, action: JobAction, *, new_queue_hint: str | None = None) -> None:
        """Raise BadValue for an invalid priority or queue, QueueNotFound for a queue that does not exist: a misspelt
        queue would have no workers. `new_queue_hint` says how to create a new one."""
        action.check()
        if action.operation is not Operation.SET_QUEUE or action.queue is None:
            return
        self._operator.require_queue(action.queue)
        names = [each.name for each in self._reader.queues()]
        if not action.new_queue and action.queue not in names:
            hints = did_you_mean(action.queue, names).removeprefix("; "), new_queue_hint
            raise QueueNotFound(action.queue[:128], hint=" ".join(filter(None, hints)) or "its first job creates it")

    def enqueue(
        self,
        task: str,
        args: Mapping[str, Any],
        options: Mapping[str, Any],
        *,
        known: bool,
        job_id: str | None,
        unknown_hint: str = _UNKNOWN_TASK,
    ) -> JobHandle[Any]:
        """Enqueue a new job; see `new_call`."""
        call = self.new_call(task, args, options, known=known, job_id=job_id, unknown_hint=unknown_hint)
        (handle,) = self.enqueue_all([call])
        return handle

    def enqueue_all(self, calls: Sequence[NewCall[Any]]) -> list[JobHandle[Any]]:
        """Enqueue all of these jobs or none of them."""
        if len(calls) > BATCH:
            raise BadValue(f"the request has {len(calls):,} jobs; the limit is {BATCH:,}", hint="send several requests")
        handles = self._app.enqueue_many(calls)
        self._cache.forget()
        return handles

    def new_call(
        self,
        task: str,
        args: Mapping[str, Any],
        options: Mapping[str, Any],
        *,
        known: bool,
        job_id: str | None,
        unknown_hint: str = _UNKNOWN_TASK,
    ) -> NewCall[Any]:
        """Build a job that can be enqueued. Raise TaskNotFound with the nearest name and `unknown_hint`, and
        BadArguments if an argument does not match what workers announced, unless `known` is False."""
        names = [each.name for each in self._reader.tasks()]
        if not known or task in names:
            self._require_task(task)
        else:
            near = did_you_mean(task, names).removeprefix("; ")
            raise TaskNotFound(f"no task is called {task!r}", hint=" ".join(filter(None, [near, unknown_hint])))
        call: NewCall[Any] = self._app.call(task, args, known=known, **{"created_by": self._by, **options})
        if job_id is not None:
            call = NewCall(replace(call.job, id=job_id), has_own_id=True)
        self._operator.require_queue(call.job.queue)
        return call

    def copy(self, job_id: str, args: Mapping[str, Any] | None, options: Mapping[str, Any]) -> JobHandle[Any]:
        """Enqueue a copy of this job; masked values in `args` stand for the stored ones."""
        job = self._reader.stored(job_id)
        handle: JobHandle[Any] = JobHandle.of(self._app._state, job)
        new_args = None if args is None else unmasked(dict(args), msgspec.json.decode(job.args))
        if new_args is not None:  # an exact copy needs no more permission than a retry
            self._require_task(job.task)
        if (queue := options.get("queue")) is not None:
            self._operator.require_queue(queue)
        copied = handle.copy(new_args, **{"created_by": self._by, **options})
        self._cache.forget()
        return copied

    def _require_task(self, task: str) -> None:
        """Only a worker's announcement says which queue a task belongs to; a stored job does not."""
        announced = [each for each in self._cache.tasks() if each.name == task and each.announced_at is not None]
        self._operator.require_task(task, announced[0].queue if announced else None)

    # --- many jobs ------------------------------------------------------------------------------------------------

    def apply_to_matching(self, action: JobAction, where: Filter, seen_at: int, cursor: str | None) -> Progress:
        """Apply the action to the matching jobs that have not changed since `seen_at`, until the time limit of a
        request."""
        self.check(action)
        progress = actions.apply_to_matching(
            self._app.storage,
            action,
            action.legal(where),
            find=self._reader.find,
            seen_at=seen_at,
            cursor=cursor,
            budget=_BUDGET,
            by=self._by,
        )
        self._cache.forget()
        return progress

    def apply_to_ids(self, action: JobAction, ids: list[str], seen_at: int | None = None) -> Progress:
        """Apply the action to the jobs with these ids; with `seen_at`, skip those that changed after it."""
        self.check(action)
        jobs = [job for job in self._app.storage.get_many(ids) if self._operator.sees(job.queue)]
        missing = len(ids) - len(jobs)
        progress = actions.apply_to_jobs(self._app.storage, action, jobs, missing=missing, seen_at=seen_at, by=self._by)
        self._cache.forget()
        return progress

    def purge(self, queue: str, seen_at: int, cursor: str | None = None) -> Progress:
        """Delete the waiting jobs of this queue that have not changed since `seen_at`."""
        self._operator.require(Role.ADMIN)
        self._reader.queue(queue)
        where = Filter(states=WAITING, queue=queue)
        return self.apply_to_matching(JobAction(Operation.DELETE), where, seen_at, cursor)

    # --- workers --------------------------------------------------------------------------------------------------

    def order(self, owner: str, order: ForemanOrder) -> None:
        """Send an order to a foreman or to one of its workers."""
        self._require_all_queues()
        actions.send_order(self._app.storage, self._reader.worker(owner), order, by=self._by)
        self._cache.forget()

    def stacks(self, owner: str) -> list[WorkerInfo]:
        """Ask a worker, or all workers of a foreman, for their stacks; return those that answer in time."""
        self._require_all_queues()
        storage, worker = self._app.storage, self._reader.worker(owner)
        sent = actions.ask_for_stacks(storage, worker, by=self._by)
        workers: list[WorkerInfo] = []
        for _ in actions.poll(_STACKS_TIMEOUT):
            workers = actions.workers_of(worker, storage.workers())
            if actions.have_answered(workers, sent.number):
                break
        self._cache.forget()
        return [each for each in workers if actions.have_answered([each], sent.number)]

    def _require_all_queues(self, action: str = "give orders to workers") -> None:
        if self._operator.queues:
            raise NotAllowed(f"{self._operator.name} may not {action}", hint="sign in with a token for all queues")

    # --- the storage ----------------------------------------------------------------------------------------------

    def prune(self) -> Pruned:
        """Remove what has expired by the settings, until the time limit of a request; `more` if some is left."""
        self._require_all_queues("prune the storage")
        deadline, batches = (
            time.monotonic() + _BUDGET,
            actions.prune(self._app.storage, actions.retention(self._app.settings)),
        )
        pruned = next(batch for batch in batches if not batch.more or time.monotonic() > deadline)
        self._cache.forget()
        return pruned

    def back_up(self) -> tuple[Path, int]:
        """Copy a SQLite storage to a file next to it, named after the time; return its path and size."""
        self._require_all_queues("back up the storage")
        source = file_of(self._app.storage)
        self._app.storage.move()  # raises if the file cannot be opened as a storage
        file = beside(source, self._app.storage.now())
        if file.exists():
            raise BadValue(f"{file.name} exists already", hint="try again in a second")
        try:
            return file, back_up(source, file)
        except (OSError, sqlite3.Error) as error:
            raise BadValue(f"the storage cannot be copied to {file.name}", why=str(error)) from error

    def compact(self) -> tuple[int, int]:
        """Rewrite a SQLite storage without its unused space; return its size before and after."""
        self._require_all_queues("compact the storage")
        path = file_of(self._app.storage, "compacted", NO_NEED)
        self._app.storage.move()  # raises if the file cannot be opened as a storage
        try:
            sizes = compact(path, _WRITERS_TIMEOUT)
        except sqlite3.Error as error:
            hint = "another process writes to it, or the disk is full; no job was lost"
            raise BadValue("the storage cannot be compacted now", why=str(error), hint=hint) from error
        self._cache.forget()
        return sizes

    # --- failures, queues and schedules ---------------------------------------------------------------------------

    def silence(self, cause: str, duration: int | None, *, until_next_version: bool = False) -> None:
        """List the failures of this cause below the others until the silence ends."""
        group = self._reader.failure(cause)
        actions.silence(self._app.storage, group, duration, until_next_version=until_next_version, by=self._by)
        self._cache.forget()

    def unsilence(self, cause: str) -> bool:
        changed = actions.unsilence(self._app.storage, self._reader.failure(cause), by=self._by)
        self._cache.forget()
        return changed

    def pause(self, queue: str, why: str | None, duration: Duration | None = None) -> bool:
        """Start no job of this queue for the duration, or until it is resumed. Replace a pause that has an end. Return
        False if the queue was paused already."""
        self._reader.queue(queue)
        changed = self._app.pause(queue, by=self._by, why=why, duration=duration)
        self._cache.forget()
        return changed

    def pause_again(self, queue: str) -> bool | None:
        """Undo a resume: pause again with the same reason, for the time that was left. Return None if no time is left,
        False if the queue was paused already."""
        paused = EventFilter(subject=Subject.QUEUE, kind=Kind.PAUSED, queue=queue)
        events = self._app.storage.events(paused, limit=1, newest_first=True)
        was = events[0].data or {} if events else {}
        until, why = was.get("until"), was.get("why")
        left = None if until is None else (until - self._app.storage.now()) / SECOND
        if left is not None and left <= 0:
            self._reader.queue(queue)
            return None
        return self.pause(queue, why, left)

    def resume(self, queue: str) -> bool:
        """Resume the queue; return False if it was not paused."""
        self._reader.queue(queue)
        changed = self._app.resume(queue, by=self._by)
        self._cache.forget()
        return changed

    def pause_schedule(self, name: str) -> bool:
        return self._on_schedule(name, lambda: self._app.pause_schedule(name, by=self._by))

    def resume_schedule(self, name: str) -> bool:
        return self._on_schedule(name, lambda: self._app.resume_schedule(name, by=self._by))

    def run_schedule(self, name: str) -> JobHandle[Any]:
        return self._on_schedule(name, lambda: self._app.run_schedule_now(name, by=self._by))

    def skip_schedule(self, name: str) -> datetime:
        return self._on_schedule(name, lambda: self._app.skip_schedule(name, by=self._by))

    def remove_schedule(self, name: str) -> bool:
        return self._on_schedule(name, lambda: self._app.remove_schedule(name, by=self._by))

    def _on_schedule(self, name: str, act: Callable[[], T]) -> T:
        schedule = find_schedule(self._app.storage, name)
        self._operator.require_queue(schedule.queue or schedule.task)
        result = act()
        self._cache.forget()
        return result
