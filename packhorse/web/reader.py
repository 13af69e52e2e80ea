"""Reads for one operator: only their queues, with secrets masked. The API and the pages read through it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from packhorse.client.app import Packhorse
from packhorse.client.job import JobHandle
from packhorse.core.errors import BadValue, FailureNotFound, JobNotFound, QueueNotFound, WorkerNotFound, did_you_mean
from packhorse.core.event import Event
from packhorse.core.job import ABORTED, DEAD, HELD, RETRYING, Job, State, effective
from packhorse.core.outcome import Failure
from packhorse.monitor.filters import SHORTEST_PART, SLOWEST_OF, UNIQUE_PART, find_by_id_part, find_pages, slowest
from packhorse.monitor.liveness import Presence, is_alive, presence_of
from packhorse.monitor.served_queues import SERVES, matches_patterns, strings_in
from packhorse.monitor.text import span_text
from packhorse.storage.queries import is_expensive, is_one_of, is_tallied, sum_tallies
from packhorse.storage.records import (
    Count,
    FailureGroup,
    Filter,
    Health,
    LogLine,
    Page,
    Point,
    QueueInfo,
    ScheduleInfo,
    Span,
    Tally,
    TaskInfo,
    WorkerInfo,
)
from packhorse.storage.transfer import Move
from packhorse.web.cache import Cache
from packhorse.web.history import ExitedWorker, History
from packhorse.web.security.operator import Operator
from packhorse.web.security.redaction import Redaction

T = TypeVar("T")
_MOST_HELD = 5_000
_COUNTED = 5_000  # jobs that are read to count how many match in each state
_COUNTED_DEARLY = 2_000  # the same if arguments or errors have to be read
_PATIENCE = 0.08  # seconds to search through ids
_LOOKING = 0.03  # seconds to search for jobs without an index
_COUNTING = 0.03  # seconds to count the jobs left of all causes, or the matches in each state
_COUNTING_ON = 1.0  # seconds of an exact count before the caller receives an interim number
_LEFT = (RETRYING, DEAD)
_MOST_LEFT = 1_000
_FEW_LEFT = 200  # up to so many jobs in a state are read rather than counted for each cause


class Reader:
    """The reads of one operator."""

    def __init__(self, app: Packhorse, cache: Cache, redaction: Redaction, operator: Operator) -> None:
        self._app = app
        self._storage = app.storage
        self._cache = cache
        self._redaction = redaction
        self._operator = operator
        self.history = History(self._storage, redaction, operator)

    @property
    def lease(self) -> int:
        return self._app.settings.lease

    def now(self) -> int:
        """The time by the storage's clock. It is read once, so that a whole answer refers to one moment."""
        return self._asked_at

    @cached_property
    def _asked_at(self) -> int:
        return self._storage.now()

    # --- jobs -----------------------------------------------------------------------------------------------------

    def get(self, job_id: str) -> Job:
        """The job, redacted. Raise JobNotFound also if its queue is not the operator's."""
        return self.shown(self.stored(job_id))

    def get_all(self, ids: Sequence[str]) -> list[Job]:
        """The jobs with these ids, redacted, in this order. Raise JobNotFound as `get` does."""
        found = {job.id: job for job in self._storage.get_many(sorted({*ids}))}
        missing = next((job_id for job_id in ids if job_id not in found or not self._sees(found[job_id])), None)
        if missing is not None:
            raise JobNotFound(missing)
        return [self.shown(found[job_id]) for job_id in ids]

    def _sees(self, job: Job) -> bool:
        return self._operator.sees(job.queue)

    def shown(self, job: Job) -> Job:
        """The job, redacted, with the defaults of its task filled in."""
        return effective(self._redaction.job(job), self._options_of.get(job.task))

    @cached_property
    def _options_of(self) -> dict[str, dict[str, Any]]:
        return {task.name: task.options for task in self._cache.tasks()}

    def stored(self, job_id: str) -> Job:
        """The job as stored, not redacted. Raise JobNotFound as `get` does."""
        job = self._storage.get(job_id)
        if job is None or not self._operator.sees(job.queue):
            raise JobNotFound(job_id)
        return job

    def find(self, where: Filter, cursor: str | None, limit: int) -> Page:
        """Matching jobs, as many as are found within a time limit, without those of other queues. `order:took` sorts
        only the jobs that could be read in that time. `next` is the cursor for more."""
        if where.order == "took":
            latest, following = self._latest(self._scoped(where), cursor)
            return Page([self.shown(job) for job in slowest(latest, self.now())[:limit]], following)
        found, following = self._look(self._scoped(where), cursor, limit)
        return Page([self.shown(job) for job in found], following)

    def _latest(self, where: Filter, cursor: str | None) -> tuple[list[Job], str | None]:
        """The latest thousand matches, or as many as are found within the time limit, and the cursor for the rest."""
        found, following = self._look(where, cursor, SLOWEST_OF)
        return found, following if len(found) < SLOWEST_OF else None

    def _look(self, where: Filter, cursor: str | None, limit: int) -> tuple[list[Job], str | None]:
        """Up to `limit` matches, as many as are found within the time limit, and the cursor for more. One storage call
        reads some thousands of jobs; the matches may lie far behind them."""
        found: list[Job] = []
        until = time.monotonic() + _LOOKING
        while True:
            page = self._storage.find(where, cursor=cursor, limit=limit - len(found))
            found += [job for job in page.jobs if self._operator.sees(job.queue)]
            cursor = page.next
            if cursor is None or len(found) >= limit or time.monotonic() > until:
                return found, cursor

    def these(self, ids: list[str]) -> list[Job]:
        """The jobs with these ids, redacted, in this order; skip those that do not exist."""
        return [self.shown(job) for job in self._storage.get_many(ids) if self._operator.sees(job.queue)]

    def count(self, where: Filter, cap: int = 10_000) -> Count:
        """How many jobs match."""
        where = self._scoped(where)
        if where.queue is not None and not self._operator.sees(where.queue):
            return Count(0)
        if is_tallied(where):
            return Count(sum_tallies(where, self._tallies))
        if where.queue is not None or not self._operator.queues:
            return self._storage.count(where, cap=cap)
        counts = [self._storage.count(replace(where, queue=queue), cap=cap) for queue in sorted(self._operator.queues)]
        return Count(sum(count.number for count in counts), exact=all(count.exact for count in counts))

    def count_on(self, where: Filter, cursor: str | None) -> tuple[int, str | None]:
        """How many jobs match after the cursor, as far as a second allows, and the cursor to continue from. Each
        storage call is bounded, even if few of many jobs match."""
        where = replace(self._scoped(where), order=None)
        if is_tallied(where) and cursor is None:
            return self.count(where).number, None
        number, until = 0, time.monotonic() + _COUNTING_ON
        for page in find_pages(self._storage, where, cursor):
            number += sum(self._operator.sees(job.queue) for job in page.jobs)
            cursor = page.next
            if time.monotonic() > until:
                break
        return number, cursor

    def count_each_state(self, where: Filter) -> dict[State, Count]:
        """How many jobs match in each state, rarest state first; states that would take too long are missing."""
        if is_tallied(where):
            return {state: self.count(replace(where, states=frozenset({state}))) for state in State}
        left = _COUNTED_DEARLY if is_expensive(where) else _COUNTED
        counts: dict[State, Count] = {}
        stored = Counter(dict.fromkeys(State, 0))
        for tally in self._storage.tallies() if self._operator.queues else self._tallies:
            stored[tally.state] += tally.number
        until = time.monotonic() + _COUNTING
        for state in sorted(State, key=lambda state: stored[state]):
            asked = replace(where, states=frozenset({state}), order=None)
            if not sum_tallies(Filter(asked.states, where.queue, where.task, where.queues, where.tasks), self._tallies):
                counts[state] = Count(0)
            elif time.monotonic() > until:
                continue
            elif stored[state] <= left and (counted := self.count(asked)).exact:
                counts[state] = counted
                left -= stored[state]
        return counts

    @cached_property
    def _tallies(self) -> list[Tally]:
        """Read once, so that all numbers of a page are of one moment."""
        return [tally for tally in self._storage.tallies() if self._operator.sees(tally.queue)]

    def tallies(self) -> list[Tally]:
        """Exact job counts by queue, task and state."""
        return self._tallies

    def with_part(self, part: str) -> list[Job]:
        """The jobs whose id is this, or starts or ends with it, as far as they are found within a time limit."""
        wanted = part.strip().lower()
        exact = self._storage.get(part.strip())
        if exact is not None:
            return [self.shown(exact)] if self._operator.sees(exact.queue) else []
        if len(wanted) < SHORTEST_PART:
            return []
        found, _ = find_by_id_part(self._storage, wanted, _PATIENCE, enough=1 if len(wanted) >= UNIQUE_PART else 2)
        return [self.shown(job) for job in found if self._operator.sees(job.queue)]

    def why(self, job_id: str, span: Callable[[int], str] = span_text) -> str:
        """Why the job is in its state, in a clause; `span` formats durations."""
        self.stored(job_id)
        return self._redaction.text(JobHandle(self._app._state, job_id).why(span=span)) or ""

    def log_lines(self, job_id: str, after: int, limit: int) -> list[LogLine]:
        self.stored(job_id)
        lines = self._storage.log_lines(job_id, after=after, limit=limit)
        return [replace(line, message=self._redaction.text(line.message) or "") for line in lines]

    def _scoped(self, where: Filter) -> Filter:
        """Restrict the filter to this operator. Raise BadValue if it names a hidden argument. A text search reads
        stored jobs including their masked values, so an operator can find out by trial what they contain."""
        if hidden := self._hidden_path(where):
            raise BadValue(
                f"args.{'.'.join(hidden)} is not shown here, and cannot be searched for",
                hint="the command line can: packhorse jobs",
            )
        if where.queue is None and len(self._operator.queues) == 1:
            return replace(where, queue=next(iter(self._operator.queues)))
        return where

    def _hidden_path(self, where: Filter) -> tuple[str, ...] | None:
        """The first argument of the filter that a task to which the filter may apply hides; None without one."""
        if not where.args:
            return None
        names = self._redaction.names_of_any(
            lambda task: where.task in (None, task) and is_one_of(task, where.tasks),
        )
        return next((one.path for one in where.args if self._redaction.hides(one.path, names)), None)

    def hides(self, argument: str, task: str) -> bool:
        """Return whether this argument of this task is hidden."""
        return self._redaction.hides((argument,), self._redaction.names(task))

    # --- everything else ----------------------------------------------------------------------------------------------

    def health(self) -> Health:
        return self._cache.health()

    def move(self) -> Move | None:
        return self._cache.move()

    def queues(self) -> list[QueueInfo]:
        return [queue for queue in self._cache.queues() if self._operator.sees(queue.name)]

    def turning_points(self) -> list[Event]:
        """Recent events of foremen, dead workers and queues, newest first."""
        return [
            event for event in self._cache.turning_points() if event.queue is None or self._operator.sees(event.queue)
        ]

    def queue(self, name: str) -> QueueInfo:
        """The queue of this name. Raise QueueNotFound, which suggests the nearest name."""
        known = {queue.name: queue for queue in self.queues()}
        if name not in known:
            near = did_you_mean(name, known).removeprefix("; ")
            raise QueueNotFound(name[:128], hint=near or "the first job makes it")
        return known[name]

    def tasks(self) -> list[TaskInfo]:
        """The tasks of the operator's queues, and those that the token may enqueue."""
        mine, named = self._operator.sees, self._operator.tasks
        return [self._shown_task(task) for task in self._cache.tasks() if mine(task.queue) or task.name in named]

    def _shown_task(self, task: TaskInfo) -> TaskInfo:
        """Redact the default arguments, which workers announce for a unique task."""
        if not task.options.get("defaults"):
            return task
        stored = msgspec.json.encode(task.options["defaults"]).decode()
        shown = self._redaction.json(stored, task.name)
        return task if shown is stored else replace(task, options={**task.options, "defaults": json.loads(shown or "")})

    def workers(self) -> list[WorkerInfo]:
        """Every known worker and foreman, alive or gone, limited to what this operator may see."""
        return [self._shown(worker) for worker in self._cache.workers()]

    def presence(self) -> Presence:
        """Which workers are present, and which have gone without a sign-off."""
        return presence_of(self.workers(), self.now(), self.lease)

    def worker(self, owner: str) -> WorkerInfo:
        """The worker or foreman of this id. Raise WorkerNotFound if there is none."""
        for worker in self.workers():
            if worker.id == owner:
                return worker
        raise WorkerNotFound(owner[:128], hint="it may have ended; the page Workers has those that are there")

    def _shown(self, worker: WorkerInfo) -> WorkerInfo:
        if not self._operator.queues:
            return worker
        report = {name: value for name, value in worker.report.items() if name not in ("running", "stacks")}
        queues, info = [name for name in worker.queues if self._operator.sees(name)], worker.info
        if isinstance(chosen := info.get(SERVES), list):
            words = strings_in(chosen)
            mine = [word for word in words if any(matches_patterns(queue, [word]) for queue in self._operator.queues)]
            info = {**info, SERVES: mine}
        return replace(worker, report=report, queues=queues, info=info)

    def exited_workers(self) -> list[ExitedWorker]:
        """The workers that exited in the last day, latest first."""
        return [self.history.shown_exit(each) for each in self._cache.exited_workers()]

    def is_alive(self, worker: WorkerInfo, now: int) -> bool:
        return is_alive(worker, now, self.lease)

    def held(self) -> list[Job]:
        """The jobs that workers hold."""
        return list(self._walk(Filter(states=HELD), _MOST_HELD))

    def _walk(self, where: Filter, most: int) -> Iterator[Job]:
        cursor = None
        while most > 0:
            page = self.find(where, cursor, 200)
            yield from page.jobs
            most, cursor = most - len(page.jobs), page.next
            if cursor is None:
                return

    def holds(self, held: Iterable[Job]) -> Counter[str | None]:
        """How many jobs each worker holds."""
        return Counter(job.owner for job in held)

    def schedules(self) -> list[ScheduleInfo]:
        return [
            replace(schedule, args=self._redaction.json(schedule.args, schedule.task) or "{}")
            for schedule in self._cache.schedules()
            if self._operator.sees(schedule.queue or schedule.task)
        ]

    def failures(self) -> list[FailureGroup]:
        """Failures by cause, latest first."""
        groups = self._cache.failures()
        if self._operator.queues:
            tasks = {task.name for task in self.tasks()}
            groups = [group for group in groups if group.task in tasks]
        return [replace(group, pattern=self._redaction.text(group.pattern) or "") for group in groups]

    def open_failures(self) -> list[FailureGroup]:
        """The failures that are not silenced."""
        now = self.now()
        return [group for group in self.failures() if not group.is_silenced(now)]

    def failure(self, cause: str) -> FailureGroup:
        """All failures of one cause. Raise FailureNotFound if there are none."""
        for group in self.failures():
            if group.cause == cause:
                return group
        raise FailureNotFound(cause[:40], hint="its jobs may be gone; the page Failures has those that are there")

    def failure_counts(self, span: Span) -> dict[str, dict[int, int]]:
        """How many failures of each cause there were in each interval, by its start."""
        return self._cache.failure_counts(span)

    def left_of(self, causes: Sequence[str]) -> dict[str, dict[str, Count]]:
        """How many jobs of each cause are retrying and dead, up to a thousand of either. Without an index that is slow:
        causes that exceed the time limit are left out, and are counted by a later call."""
        found: dict[str, dict[str, Count]] = {}
        few = self._cache.left_of(("few", self._operator.queues), self._few_left)
        until = time.monotonic() + _COUNTING
        for cause in causes:
            key = (cause, self._operator.queues)
            if len(few) == len(_LEFT):
                found[cause] = {state.value: Count(few[state][cause]) for state in _LEFT}
            elif not found or self._cache.is_known(key) or time.monotonic() < until:
                found[cause] = self._cache.left_of(key, partial(self._left_of, cause, few))
        return found

    def _few_left(self) -> dict[State, Counter[str | None]]:
        """How many jobs of each cause there are, in the states with few jobs: one read finds them all."""
        found: dict[State, Counter[str | None]] = {}
        for state in _LEFT:
            where = Filter(states=frozenset({state}))
            if self.count(where).number <= _FEW_LEFT:
                page = self.find(where, None, _FEW_LEFT)
                if page.next is None:
                    found[state] = Counter(job.cause for job in page.jobs)
        return found

    def _left_of(self, cause: str, few: Mapping[State, Counter[str | None]]) -> dict[str, Count]:
        return {
            state.value: Count(few[state][cause])
            if state in few
            else self.count(Filter(states=frozenset({state}), cause=cause), _MOST_LEFT)
            for state in _LEFT
        }

    def jobs_of(self, cause: str, cap: int = 10_000) -> dict[str, int]:
        """How many jobs of the cause are retrying, dead and aborted; a number that equals `cap` may be larger."""
        states = (RETRYING, DEAD, ABORTED)
        wanted = {state.value: Filter(states=frozenset({state}), cause=cause) for state in states}
        return {name: self.count(where, cap).number for name, where in wanted.items()}

    def example_of(self, group: FailureGroup) -> Failure | None:
        """The last failure of a cause, if its job still exists and has not failed for another cause since."""
        try:
            job = self.get(group.last_job_id)
        except JobNotFound:
            return None
        return Failure.from_json(job.error) if job.error and job.cause == group.cause else None

    def series(self, span: Span, queue: str | None = None, task: str | None = None) -> list[Point]:
        return [
            point
            for point in self._cache.series(span)
            if self._operator.sees(point.queue) and queue in (None, point.queue) and task in (None, point.task)
        ]

    def computed(self, name: Hashable, span: Span, compute: Callable[[list[Point]], T]) -> T:
        """A value computed from the points of this span; operators with the same queues share it."""
        key = (name, span, self._operator.queues)
        return self._cache.computed(key, self._cache.series(span), lambda: compute(self.series(span)))

    def began_at(self) -> int | None:
        """When the first job was enqueued, as precisely as the points are kept; None if that is before all of them."""
        now, began = self.now(), None
        for span in reversed(Span):  # the coarsest points reach back farthest
            kept_from = span.level.start_of(now - span.length)
            if began is not None and began < kept_from:
                break
            first = self._first_point(span)
            if first is None or first <= kept_from:
                break
            began = first
        return began

    def _first_point(self, span: Span) -> int | None:
        points = self._cache.series(span)
        return self._cache.computed(("first", span), points, lambda: min((point.at for point in points), default=None))

    def totals(self) -> dict[str, int] | None:
        """All-time counts; None for an operator of some queues, because they are not kept by queue."""
        return None if self._operator.queues else self._cache.totals()
