"""Reading for one operator: only the queues that concern them, and secrets masked. API and pages read through it."""

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
_COUNTED = 5_000  # jobs that are looked at to tell how many fit in each state
_COUNTED_DEARLY = 2_000  # if arguments or errors have to be read
_PATIENCE = 0.08  # seconds of looking through ids
_LOOKING = 0.03  # seconds of looking for jobs that no index leads to
_COUNTING = 0.03  # seconds of counting, of all causes what is left, or what fits in each state
_COUNTING_ON = 1.0  # seconds of counting exactly, before the caller learns how far it is
_LEFT = (RETRYING, DEAD)
_MOST_LEFT = 1_000
_FEW_LEFT = 200  # jobs of all causes in a state that are read rather than counted cause by cause


class Reader:
    """What one operator sees."""

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
        """The time by the storage's clock, which is asked once: an answer is of one moment."""
        return self._asked_at

    @cached_property
    def _asked_at(self) -> int:
        return self._storage.now()

    # --- jobs -----------------------------------------------------------------------------------------------------

    def get(self, job_id: str) -> Job:
        """The job as it may be shown; JobNotFound also if it is of a queue that does not concern them."""
        return self.shown(self.stored(job_id))

    def get_all(self, ids: Sequence[str]) -> list[Job]:
        """Those with these ids, in this order, as they may be shown; JobNotFound as `get` raises it."""
        found = {job.id: job for job in self._storage.get_many(sorted({*ids}))}
        lost = next((job_id for job_id in ids if job_id not in found or not self._sees(found[job_id])), None)
        if lost is not None:
            raise JobNotFound(lost)
        return [self.shown(found[job_id]) for job_id in ids]

    def _sees(self, job: Job) -> bool:
        return self._operator.sees(job.queue)

    def shown(self, job: Job) -> Job:
        """A job that they may see, as it may be shown, with what it leaves to its task."""
        return effective(self._redaction.job(job), self._options_of.get(job.task))

    @cached_property
    def _options_of(self) -> dict[str, dict[str, Any]]:
        return {task.name: task.options for task in self._cache.tasks()}

    def stored(self, job_id: str) -> Job:
        """The job as it is, for copying it."""
        job = self._storage.get(job_id)
        if job is None or not self._operator.sees(job.queue):
            raise JobNotFound(job_id)
        return job

    def find(self, where: Filter, cursor: str | None, limit: int) -> Page:
        """Jobs that fit, as many as are found soon; those of other queues are left out. By `order:took` they are those
        that took longest of as many as could be looked at. `next` is where to look for more."""
        if where.order == "took":
            latest, following = self._latest(self._scoped(where), cursor)
            return Page([self.shown(job) for job in slowest(latest, self.now())[:limit]], following)
        found, following = self._look(self._scoped(where), cursor, limit)
        return Page([self.shown(job) for job in found], following)

    def _latest(self, where: Filter, cursor: str | None) -> tuple[list[Job], str | None]:
        """The latest thousand that fit, or as many as are found soon, and where to go on with looking for the rest."""
        found, following = self._look(where, cursor, SLOWEST_OF)
        return found, following if len(found) < SLOWEST_OF else None

    def _look(self, where: Filter, cursor: str | None, limit: int) -> tuple[list[Job], str | None]:
        """So many that fit, or as many as are found soon, and where to go on. One call of a storage looks at some
        thousands; what is asked for may be below many more."""
        found: list[Job] = []
        until = time.monotonic() + _LOOKING
        while True:
            page = self._storage.find(where, cursor=cursor, limit=limit - len(found))
            found += [job for job in page.jobs if self._operator.sees(job.queue)]
            cursor = page.next
            if cursor is None or len(found) >= limit or time.monotonic() > until:
                return found, cursor

    def these(self, ids: list[str]) -> list[Job]:
        """Those of these jobs that there are, in this order."""
        return [self.shown(job) for job in self._storage.get_many(ids) if self._operator.sees(job.queue)]

    def count(self, where: Filter, cap: int = 10_000) -> Count:
        """How many fit."""
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
        """How many fit from there on, as far as they are counted within a second, and where to count on. What is asked
        of the storage each time is bounded, however few fit among however many."""
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
        """How many jobs fit in each state, if that is known, or counted soon: what is few is counted first."""
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
        """Asked for once: a page has a number for each state, and all are of one moment."""
        return [tally for tally in self._storage.tallies() if self._operator.sees(tally.queue)]

    def tallies(self) -> list[Tally]:
        """Exact numbers of jobs by queue, task and state."""
        return self._tallies

    def with_part(self, part: str) -> list[Job]:
        """The jobs whose id is this, or begins or ends so, as far as can be found at once."""
        wanted = part.strip().lower()
        exact = self._storage.get(part.strip())
        if exact is not None:
            return [self.shown(exact)] if self._operator.sees(exact.queue) else []
        if len(wanted) < SHORTEST_PART:
            return []
        found, _ = find_by_id_part(self._storage, wanted, _PATIENCE, enough=1 if len(wanted) >= UNIQUE_PART else 2)
        return [self.shown(job) for job in found if self._operator.sees(job.queue)]

    def why(self, job_id: str, span: Callable[[int], str] = span_text) -> str:
        """Why the job is where it is, in a clause; `span` says how a duration is written."""
        self.stored(job_id)
        return self._redaction.text(JobHandle(self._app._state, job_id).why(span=span)) or ""

    def log_lines(self, job_id: str, after: int, limit: int) -> list[LogLine]:
        self.stored(job_id)
        lines = self._storage.log_lines(job_id, after=after, limit=limit)
        return [replace(line, message=self._redaction.text(line.message) or "") for line in lines]

    def _scoped(self, where: Filter) -> Filter:
        """The filter for this operator. An argument that is not shown cannot be asked for, either. A search for text
        goes through stored jobs, masked values included: who may search can try out what is in them."""
        if hidden := self._hidden_path(where):
            raise BadValue(
                f"args.{'.'.join(hidden)} is not shown here, and cannot be searched for",
                hint="the command line can: packhorse jobs",
            )
        if where.queue is None and len(self._operator.queues) == 1:
            return replace(where, queue=next(iter(self._operator.queues)))
        return where

    def _hidden_path(self, where: Filter) -> tuple[str, ...] | None:
        """What the filter asks for although one of the tasks that it may mean does not show it."""
        if not where.args:
            return None
        names = self._redaction.names_of_any(
            lambda task: where.task in (None, task) and is_one_of(task, where.tasks),
        )
        return next((one.path for one in where.args if self._redaction.hides(one.path, names)), None)

    def hides(self, argument: str, task: str) -> bool:
        """Is this argument of this task not shown?"""
        return self._redaction.hides((argument,), self._redaction.names(task))

    # --- around them ----------------------------------------------------------------------------------------------

    def health(self) -> Health:
        return self._cache.health()

    def move(self) -> Move | None:
        return self._cache.move()

    def queues(self) -> list[QueueInfo]:
        return [queue for queue in self._cache.queues() if self._operator.sees(queue.name)]

    def turning_points(self) -> list[Event]:
        """What lately happened to foremen, lost workers and queues, the newest first."""
        return [
            event for event in self._cache.turning_points() if event.queue is None or self._operator.sees(event.queue)
        ]

    def queue(self, name: str) -> QueueInfo:
        """The queue of this name; QueueNotFound names the nearest."""
        known = {queue.name: queue for queue in self.queues()}
        if name not in known:
            near = did_you_mean(name, known).removeprefix("; ")
            raise QueueNotFound(name[:128], hint=near or "the first job makes it")
        return known[name]

    def tasks(self) -> list[TaskInfo]:
        """Those of their queues, and those of which their token creates jobs."""
        mine, named = self._operator.sees, self._operator.tasks
        return [self._shown_task(task) for task in self._cache.tasks() if mine(task.queue) or task.name in named]

    def _shown_task(self, task: TaskInfo) -> TaskInfo:
        """Of a unique one workers also tell the defaults of its arguments."""
        if not task.options.get("defaults"):
            return task
        stored = msgspec.json.encode(task.options["defaults"]).decode()
        shown = self._redaction.json(stored, task.name)
        return task if shown is stored else replace(task, options={**task.options, "defaults": json.loads(shown or "")})

    def workers(self) -> list[WorkerInfo]:
        """Every worker and foreman that is known, gone or not; of what they run, what concerns this operator."""
        return [self._shown(worker) for worker in self._cache.workers()]

    def presence(self) -> Presence:
        """Who of them is there, and who is gone without a word."""
        return presence_of(self.workers(), self.now(), self.lease)

    def worker(self, owner: str) -> WorkerInfo:
        """The worker or foreman of this id; WorkerNotFound if there is none."""
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
        """The workers that have ended in the last day, the latest first."""
        return [self.history.shown_exit(each) for each in self._cache.exited_workers()]

    def is_alive(self, worker: WorkerInfo, now: int) -> bool:
        return is_alive(worker, now, self.lease)

    def held(self) -> list[Job]:
        """The jobs in workers' hands."""
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
        """How many jobs each worker has."""
        return Counter(job.owner for job in held)

    def schedules(self) -> list[ScheduleInfo]:
        return [
            replace(schedule, args=self._redaction.json(schedule.args, schedule.task) or "{}")
            for schedule in self._cache.schedules()
            if self._operator.sees(schedule.queue or schedule.task)
        ]

    def failures(self) -> list[FailureGroup]:
        """Failures by cause, the latest first."""
        groups = self._cache.failures()
        if self._operator.queues:
            tasks = {task.name for task in self.tasks()}
            groups = [group for group in groups if group.task in tasks]
        return [replace(group, pattern=self._redaction.text(group.pattern) or "") for group in groups]

    def open_failures(self) -> list[FailureGroup]:
        """Those that nobody has silenced."""
        now = self.now()
        return [group for group in self.failures() if not group.is_silenced(now)]

    def failure(self, cause: str) -> FailureGroup:
        """All failures of one cause; FailureNotFound if there are none."""
        for group in self.failures():
            if group.cause == cause:
                return group
        raise FailureNotFound(cause[:40], hint="its jobs may be gone; the page Failures has those that are there")

    def failure_counts(self, span: Span) -> dict[str, dict[int, int]]:
        """How many failures of each cause there were in each interval, by its beginning."""
        return self._cache.failure_counts(span)

    def left_of(self, causes: Sequence[str]) -> dict[str, dict[str, Count]]:
        """How many jobs of each cause retry and are dead, up to a thousand of either. Where no index leads to them that
        takes a while: what cannot be counted at once is left out, and is there when somebody looks again."""
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
        """How many jobs of each cause there are, in the states in which there are few at all: one look finds them."""
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
        """How many of its jobs there are to do something about, by state; `cap` may mean more."""
        states = (RETRYING, DEAD, ABORTED)
        wanted = {state.value: Filter(states=frozenset({state}), cause=cause) for state in states}
        return {name: self.count(where, cap).number for name, where in wanted.items()}

    def example_of(self, group: FailureGroup) -> Failure | None:
        """The last failure of a cause, as long as its job is there and has not failed otherwise since."""
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
        """What comes of the points of this span; all whom the same queues concern share it."""
        key = (name, span, self._operator.queues)
        return self._cache.computed(key, self._cache.series(span), lambda: compute(self.series(span)))

    def began_at(self) -> int | None:
        """When the first job came to this storage, as finely as its points tell; None: before all that is kept."""
        now, began = self.now(), None
        for span in reversed(Span):  # the coarsest points reach back the farthest
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
        """All-time counts; None for an operator of some queues, because they are counted for all together."""
        return None if self._operator.queues else self._cache.totals()
