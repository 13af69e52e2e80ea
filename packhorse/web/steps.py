"""What an operator does: steering jobs and queues. Every change over HTTP, by API or by page, is made here.

Whether the role suffices is asked by whoever has the route; here only the queues are.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
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
from packhorse.core.event import NOT_IN_PROGRAM, ForemanAction, ForemanOrder, Kind, Subject
from packhorse.core.job import WAITING, Job, Operation, State, is_legal
from packhorse.monitor.actions import retention
from packhorse.monitor.stacks import ask_for_stacks, have_answered, refuse_in_program, workers_of
from packhorse.storage import BATCH
from packhorse.storage.backup import NO_NEED, back_up, beside, compact, file_of
from packhorse.storage.records import ActionResult, EventFilter, Filter, Pruned, WorkerInfo
from packhorse.web.glance import Glance
from packhorse.web.reader import Reader
from packhorse.web.security.operator import Operator, Role
from packhorse.web.security.redaction import unmasked
from packhorse.web.step import Many, Step

_AT_ONCE = 500
_PATIENCE = 4.0  # seconds that a worker has to say where it stands
_LOOK = 0.15
_WRITERS_END = 5.0  # seconds until others have ended what they write
_BUDGET = 2.0  # seconds of one call for many jobs; the caller goes on from the cursor
_UNKNOWN_TASK = '"known": false enqueues it for workers yet to come'
_CHANGED = "changed since it was seen"

T = TypeVar("T")


class Progress(msgspec.Struct):
    """How far a step for many jobs has come. `next` continues; without it, all is done."""

    changed: int = 0
    skipped: dict[str, int] = {}
    next: str | None = None


class Steps:
    """What one operator does."""

    def __init__(self, app: Packhorse, glance: Glance, reader: Reader, operator: Operator) -> None:
        self._app = app
        self._glance = glance
        self._reader = reader
        self._operator = operator

    # --- one job --------------------------------------------------------------------------------------------------

    def steer(self, step: Step, job_id: str, *, unknown: str | None = None) -> Job:
        """Do this to one job. Raises JobNotFound, WrongState and NotUnique. Answers the job as it was before.
        `unknown` is as in `check`."""
        job = self._reader.stored(job_id)
        handle, by = JobHandle[Any](self._app._state, job_id), self._operator.name
        match step.operation:
            case Operation.ABORT:
                handle.abort(by=by)
            case Operation.FORCE_START:
                handle.force_start(by=by)
            case Operation.RETRY:
                handle.retry(by=by)
            case Operation.DELETE:
                handle.delete(by=by)
            case Operation.SET_QUEUE:
                self._require_known(step.named_queue, unknown, step.new)
                handle.set_queue(step.named_queue, by=by)
            case Operation.SET_PRIORITY:
                handle.set_priority(step.named_priority, by=by)
            case _:
                raise BadValue(f"{step.operation} cannot be done to jobs")
        self._glance.forget()
        return job

    def enqueue(
        self,
        task: str,
        args: Mapping[str, Any],
        options: Mapping[str, Any],
        *,
        known: bool,
        job_id: str | None,
        unknown: str = _UNKNOWN_TASK,
    ) -> JobHandle[Any]:
        """A new job; see `new_call`."""
        (handle,) = self.enqueue_all([self.new_call(task, args, options, known=known, job_id=job_id, unknown=unknown)])
        return handle

    def enqueue_all(self, calls: Sequence[NewCall[Any]]) -> list[JobHandle[Any]]:
        """New jobs, all or none of them: at most as many as a storage takes at once."""
        if len(calls) > BATCH:
            raise BadValue(f"{len(calls):,} jobs came in one request; {BATCH:,} may", hint="send them in several")
        handles = self._app.enqueue_many(calls)
        self._glance.forget()
        return handles

    def new_call(
        self,
        task: str,
        args: Mapping[str, Any],
        options: Mapping[str, Any],
        *,
        known: bool,
        job_id: str | None,
        unknown: str = _UNKNOWN_TASK,
    ) -> NewCall[Any]:
        """A job that is to be. TaskNotFound names the nearest task, and BadArguments the argument that does not fit
        what workers announced of it, unless `known` is False. `unknown` is how to say that, where this is asked for."""
        names = [each.name for each in self._reader.tasks()]
        if not known or task in names:
            self._require_task(task)
        else:
            near = did_you_mean(task, names).removeprefix("; ")
            raise TaskNotFound(f"no task is called {task!r}", hint=" ".join(filter(None, [near, unknown])))
        call: NewCall[Any] = self._app.call(task, args, known=known, **{"created_by": self._operator.name, **options})
        if job_id is not None:
            call = NewCall(replace(call.job, id=job_id), has_own_id=True)
        self._operator.require_queue(call.job.queue)
        return call

    def copy(self, job_id: str, args: Mapping[str, Any] | None, options: Mapping[str, Any]) -> JobHandle[Any]:
        """A new job like this one; masked values in `args` mean the stored ones."""
        job = self._reader.stored(job_id)
        handle: JobHandle[Any] = JobHandle.of(self._app._state, job)
        wanted = None if args is None else unmasked(dict(args), msgspec.json.decode(job.args))
        if wanted is not None:  # as it is, whoever may steer the job may also retry it
            self._require_task(job.task)
        if (queue := options.get("queue")) is not None:
            self._operator.require_queue(queue)
        copied = handle.copy(wanted, **{"created_by": self._operator.name, **options})
        self._glance.forget()
        return copied

    def _require_task(self, task: str) -> None:
        """Whose workers have announced it says where a task belongs; that somebody has put a job of it into a queue
        says nothing."""
        known = [each for each in self._glance.tasks() if each.name == task and each.announced_at is not None]
        self._operator.require_task(task, known[0].queue if known else None)

    def _require_known(self, queue: str, unknown: str | None, new: bool) -> None:
        """A queue that is written wrong would be one that nobody serves."""
        self._operator.require_queue(queue)
        names = [each.name for each in self._reader.queues()]
        if not new and queue not in names:
            near = did_you_mean(queue, names).removeprefix("; ")
            raise QueueNotFound(queue[:128], hint=" ".join(filter(None, [near, unknown])) or "the first job makes it")

    # --- many jobs ------------------------------------------------------------------------------------------------

    def possible(self, operation: Operation, where: Filter) -> Filter:
        """Of the jobs that fit, those to which it can be done. BadValue if that can be none."""
        can = frozenset(state for state in State if is_legal(operation, state))
        states = where.states & can if where.states else can
        if not states:
            asked, allowed = ", ".join(sorted(where.states)), ", ".join(sorted(can))
            raise BadValue(
                f"{operation} cannot be done to jobs that are {asked}", hint=f"only to those that are {allowed}"
            )
        return replace(where, states=states, order=None)

    def check(self, step: Step, *, unknown: str | None = None) -> Many:
        """How this is done to many jobs; raises what is wrong with the priority or the queue. `unknown` is how to say
        that the queue is new, where this is asked for."""
        if step.operation is Operation.SET_QUEUE and step.queue:
            self._require_known(step.queue, unknown, step.new)
        return step.to_many()

    def steer_many(self, step: Step, where: Filter, seen_at: int, cursor: str | None) -> Progress:
        """Do this to all jobs that fit and have not changed since `seen_at`, for as long as a request may take."""
        act, where = self.check(step), self.possible(step.operation, where)
        done: Counter[str] = Counter()
        until = time.monotonic() + _BUDGET
        while True:
            page = self._reader.find(where, cursor, _AT_ONCE)
            jobs = [job for job in page.jobs if _was_seen(job, seen_at)]
            done[_CHANGED] += len(page.jobs) - len(jobs)
            self._count(done, act(self._app.storage, jobs, self._operator.name) if jobs else [])
            cursor = page.next
            if cursor is None or time.monotonic() > until:
                break
        self._glance.forget()
        return Progress(done.pop("changed", 0), {word: number for word, number in done.items() if number}, cursor)

    def purge(self, queue: str, seen_at: int, cursor: str | None = None) -> Progress:
        """Delete what waits in this queue and has not changed since `seen_at`, for as long as a request may take."""
        self._operator.require(Role.ADMIN)
        self._reader.queue(queue)
        return self.steer_many(Step(Operation.DELETE), Filter(states=WAITING, queue=queue), seen_at, cursor)

    def steer_these(self, step: Step, ids: list[str], seen_at: int | None = None) -> Progress:
        """Do this to these jobs, or to those of them that have not changed since `seen_at`."""
        act = self.check(step)
        jobs = self._app.storage.get_many(ids)
        mine = [job for job in jobs if self._operator.sees(job.queue)]
        seen = [job for job in mine if seen_at is None or _was_seen(job, seen_at)]
        done: Counter[str] = Counter({"gone": len(ids) - len(mine), _CHANGED: len(mine) - len(seen)})
        self._count(done, act(self._app.storage, seen, self._operator.name) if seen else [])
        self._glance.forget()
        return Progress(done.pop("changed", 0), {word: number for word, number in done.items() if number})

    @staticmethod
    def _count(done: Counter[str], answers: list[ActionResult]) -> None:
        for answer in answers:
            if answer.changed:
                done["changed"] += 1
            elif answer.stale:
                done[_CHANGED] += 1
            elif answer.conflict:
                done["a unique twin waits"] += 1
            else:
                done[answer.state or "gone"] += 1

    # --- workers --------------------------------------------------------------------------------------------------

    def order(self, owner: str, order: ForemanOrder) -> None:
        """Have a foreman, or by way of it one of its workers, do this soon. Workers serve all queues, so a token of
        some of them does not suffice."""
        self._require_all_queues()
        to = self._reader.worker(owner)
        foreman = to.id if to.subject is Subject.FOREMAN else to.foreman
        if to.subject is not Subject.FOREMAN:
            if order.do is ForemanAction.SCALE:
                raise BadValue(f"{owner[:40]} is a worker, and only a foreman has workers")
            order = replace(order, worker=to.id)
        if order.do in NOT_IN_PROGRAM and foreman is not None:
            refuse_in_program(next((each for each in self._reader.workers() if each.id == foreman), None), order.do)
        if foreman is None or not self._app.storage.order(foreman, order, by=self._operator.name):
            raise BadValue(f"{owner[:40]} has no foreman, who could hear it")
        self._glance.forget()

    def stacks(self, owner: str) -> list[WorkerInfo]:
        """Have a worker, or all of a foreman, say where their threads stand, and wait a moment for it. Answers those
        that have."""
        self._require_all_queues()
        to, storage = self._reader.worker(owner), self._app.storage
        number = ask_for_stacks(storage, to, by=self._operator.name)
        if number is None:
            raise BadValue(f"{owner[:40]} has no foreman, who could hear it")
        until = time.monotonic() + _PATIENCE
        while not have_answered(crew := workers_of(to, storage.workers()), number) and time.monotonic() < until:
            time.sleep(_LOOK)
        self._glance.forget()
        return [worker for worker in crew if have_answered([worker], number)]

    def _require_all_queues(self, deed: str = "order workers about") -> None:
        if self._operator.queues:
            raise NotAllowed(f"{self._operator.name} may not {deed}", hint="sign in with a token of all queues")

    # --- the storage ----------------------------------------------------------------------------------------------

    def prune(self) -> Pruned:
        """Remove what is over by the settings, for as long as a request may take. `more`: ask again."""
        self._require_all_queues("prune the storage")
        keep, until = retention(self._app.settings), time.monotonic() + _BUDGET
        jobs = events = clients = 0
        while True:
            gone = self._app.storage.prune(keep)
            jobs, events, clients = jobs + gone.jobs, events + gone.events, clients + gone.clients
            if not gone.more or time.monotonic() > until:
                break
        self._glance.forget()
        return Pruned(jobs, events, clients, gone.more)

    def back_up(self) -> tuple[Path, int]:
        """Copy a SQLite storage to a file beside it, with the time in its name. Its path and its size."""
        self._require_all_queues("back up the storage")
        source = file_of(self._app.storage)
        self._app.storage.move()  # says if the file that is there is none to be opened
        file = beside(source, self._app.storage.now())
        if file.exists():
            raise BadValue(f"{file.name} is there already", hint="wait a second")
        try:
            return file, back_up(source, file)
        except (OSError, sqlite3.Error) as error:
            raise BadValue(f"the storage cannot be copied to {file.name}", why=str(error)) from error

    def compact(self) -> tuple[int, int]:
        """Write a SQLite storage anew without the space of what was removed. Its size before and after."""
        self._require_all_queues("compact the storage")
        path = file_of(self._app.storage, "compacted", NO_NEED)
        self._app.storage.move()  # says if the file that is there is none to be opened
        try:
            sizes = compact(path, _WRITERS_END)
        except sqlite3.Error as error:
            hint = "others write to it, or the disk is full; no job was lost"
            raise BadValue("the storage cannot be compacted just now", why=str(error), hint=hint) from error
        self._glance.forget()
        return sizes

    # --- failures, queues and schedules ---------------------------------------------------------------------------

    def silence(self, cause: str, duration: int | None, *, until_next_version: bool = False) -> bool:
        """Show the failures of this cause apart for so long, or until one of another version of the code comes; or with
        None again among the others."""
        group = self._reader.failure(cause)
        version = group.known_version() if until_next_version else None
        by = self._operator.name
        changed = self._app.storage.silence_failure(cause, duration, version=version, by=by)
        self._glance.forget()
        return changed

    def pause(self, queue: str, why: str | None, duration: Duration | None = None) -> bool:
        """Let no job of this queue begin, for so long or until it is resumed; this takes the place of a pause that
        would end by itself. False: it was paused already."""
        self._reader.queue(queue)
        changed = self._app.pause(queue, by=self._operator.name, why=why, duration=duration)
        self._glance.forget()
        return changed

    def pause_again(self, queue: str) -> bool | None:
        """Take back that it was resumed: for the same reason, and for what is left of its time. None: that is over, and
        nothing was changed. False: it was paused already."""
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
        """Undo a pause. False: it was not paused."""
        self._reader.queue(queue)
        changed = self._app.resume(queue, by=self._operator.name)
        self._glance.forget()
        return changed

    def pause_schedule(self, name: str) -> bool:
        return self._on_schedule(name, lambda: self._app.pause_schedule(name, by=self._operator.name))

    def resume_schedule(self, name: str) -> bool:
        return self._on_schedule(name, lambda: self._app.resume_schedule(name, by=self._operator.name))

    def run_schedule(self, name: str) -> JobHandle[Any]:
        return self._on_schedule(name, lambda: self._app.run_schedule_now(name, by=self._operator.name))

    def skip_schedule(self, name: str) -> datetime:
        return self._on_schedule(name, lambda: self._app.skip_schedule(name, by=self._operator.name))

    def remove_schedule(self, name: str) -> bool:
        return self._on_schedule(name, lambda: self._app.remove_schedule(name, by=self._operator.name))

    def _on_schedule(self, name: str, act: Callable[[], T]) -> T:
        schedule = find_schedule(self._app.storage, name)
        self._operator.require_queue(schedule.queue or schedule.task)
        answer = act()
        self._glance.forget()
        return answer


def _was_seen(job: Job, seen_at: int) -> bool:
    """Is it as it was then? Signs of life of one that runs are no change."""
    changed_at = job.started_at if job.state is State.RUNNING else None
    return (changed_at or job.updated_at) <= seen_at
