"""The memory storage: jobs in dictionaries, for tests and examples. It forgets everything on exit.

The readable model of what a storage does, and the shortest: a transaction for the engine, and the queries. One lock
makes each call one atomic step. The model test drives every other storage side by side with this one.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec.structs import replace

from packhorse.core import clock, transitions
from packhorse.core.errors import ClientNotFound
from packhorse.core.event import Event, Kind
from packhorse.core.fair_share import FairShare
from packhorse.core.job import FINAL, HELD, QUEUED, RANK_FORCED, Job, NewJob, State, UniqueLock
from packhorse.core.metrics import (
    CAUSE_MINUTES,
    CAUSED,
    MINUTES,
    Level,
    Measures,
    has_failed,
    measure,
    measure_deleted,
)
from packhorse.core.outcome import Failure, Outcome, Verdict
from packhorse.core.transitions import Transition
from packhorse.storage import queries
from packhorse.storage.contract import BATCH
from packhorse.storage.engine import Engine, attempts
from packhorse.storage.records import (
    AbortRequest,
    ClientInfo,
    Count,
    EventFilter,
    FailureGroup,
    Filter,
    Health,
    LogKind,
    LogLine,
    Page,
    Point,
    PollResult,
    QueueInfo,
    ScheduleInfo,
    Span,
    Tally,
    TaskInfo,
    Tick,
    WorkerInfo,
    count_lost,
    dropped_lines,
    search_depth,
)
from packhorse.storage.transfer import (
    Dumped,
    Lock,
    LoggedLine,
    Measure,
    Move,
    Replaced,
    Section,
    Subscription,
    bare,
    may_go_on,
    paged,
    poll_result,
    problems,
    quiet_answer,
)
from packhorse.storage.waiters import Waiters

P = ParamSpec("P")
R = TypeVar("R")
Record = TypeVar("Record", QueueInfo, ScheduleInfo, WorkerInfo, ClientInfo)

_MISSING: Any = object()


class Tables:
    """What is stored. A transaction writes with `put` and `drop`, which remember how to undo it."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.keys: dict[str, Lock] = {}
        self.replaced: dict[str, Replaced] = {}
        self.subscribers: dict[str, tuple[str, ...]] = {}  # job -> clients
        self.logs: dict[str, tuple[LogLine, ...]] = {}  # by job
        self.events: dict[int, Event] = {}
        self.measures: dict[tuple[str, int, str, str, str], int] = {}  # level, at, queue, task, counted
        self.failures: dict[str, FailureGroup] = {}
        self.queues: dict[str, QueueInfo] = {}
        self.tasks: dict[str, TaskInfo] = {}
        self.schedules: dict[str, ScheduleInfo] = {}
        self.ticks: dict[int, Tick] = {}
        self.workers: dict[str, WorkerInfo] = {}
        self.clients: dict[str, ClientInfo] = {}
        self.settings: dict[str, str] = {}
        self.last: Counter[str] = Counter()  # the last number given to a job, an event, a log line, a tick
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []

    def of(self, kind: type[Any]) -> dict[str, Any]:
        tables: dict[type[Any], dict[str, Any]] = {
            QueueInfo: self.queues,
            TaskInfo: self.tasks,
            ScheduleInfo: self.schedules,
            WorkerInfo: self.workers,
            ClientInfo: self.clients,
        }
        return tables[kind]

    def next(self, counter: str) -> int:
        self.last[counter] += 1
        return self.last[counter]

    def put(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        self._undo.append((table, key, table.get(key, _MISSING)))
        table[key] = value

    def drop(self, table: dict[Any, Any], key: Any) -> None:
        if key in table:
            self._undo.append((table, key, table.pop(key)))

    def atomically(self, work: Callable[[], R]) -> R:
        """Run `work`; if it raises, undo what it has written."""
        start = len(self._undo)
        try:
            return work()
        except BaseException:
            while len(self._undo) > start:
                table, key, value = self._undo.pop()
                if value is _MISSING:
                    del table[key]
                else:
                    table[key] = value
            raise

    def commit(self) -> None:
        self._undo.clear()

    def subscribe(self, job_id: str, client_id: str) -> None:
        if client_id not in self.subscribers.get(job_id, ()):
            self.put(self.subscribers, job_id, (*self.subscribers.get(job_id, ()), client_id))


class Transaction:
    """One operation; see `storage/transaction.py`."""

    def __init__(self, tables: Tables, now: int) -> None:
        self.now = now
        self.woken: dict[str, None] = {}  # queues
        self.looked_at: Collection[str] = ()  # queues
        self._tables = tables

    def nested(self, work: Callable[[Transaction], R]) -> R:
        return self._tables.atomically(lambda: work(self))

    # --- jobs -----------------------------------------------------------------------------------------------------

    def jobs(self, job_ids: Collection[str], *, with_keys: bool = False) -> dict[str, Job]:
        jobs = self._tables.jobs
        return {job_id: jobs[job_id] for job_id in job_ids if job_id in jobs}

    def stored(self, job_ids: Collection[str]) -> set[str]:
        return {job_id for job_id in job_ids if job_id in self._tables.jobs}

    def insert(self, jobs: Sequence[NewJob]) -> None:
        for new in jobs:
            self._store(None, transitions.added(new, self._tables.next("job"), self.now))
            if new.unique is not None:
                lock = new.unique
                taken = Lock(lock.key, new.id, lock.period, lock.until, self.now)
                self._tables.put(self._tables.keys, lock.key, taken)

    def keep(self, before: Job, change: Transition, ran: int | None = None) -> Job:
        return self._store(before, change, ran)

    def _store(self, before: Job | None, change: Transition, ran: int | None = None) -> Job:
        job = change.job
        self._tables.put(self._tables.jobs, job.id, job)
        self.record(change.events)
        measures: Measures = {}
        measure(measures, before, job, ran)
        self._count(measures)
        if has_failed(before, job) and job.error is not None and job.cause is not None:
            self._count_failure(job.cause, Failure.from_json(job.error), job)
        is_in_line = before is not None and before.state is QUEUED and before.queue == job.queue
        if job.state is QUEUED and not (is_in_line and before is not None and job.rank >= before.rank):
            self.wake([job.queue])
        return job

    def _count(self, measures: Measures) -> None:
        table, at = self._tables.measures, MINUTES.start_of(self.now)
        for (queue, task, counted), amount in measures.items():
            key = (MINUTES.name, at, queue, task, counted)
            self._tables.put(table, key, table.get(key, 0) + amount)

    def _count_failure(self, cause: str, failure: Failure, job: Job) -> None:
        group = self._tables.failures.get(cause)
        if group is None:
            about = (cause, job.task, failure.pattern(), failure.place)
            group = FailureGroup(*about, 0, self.now, self.now, job.id, first_version=failure.version)
        number, place = group.number + 1, failure.place
        group = replace(
            group.with_failure(failure.version), number=number, place=place, last_at=self.now, last_job_id=job.id
        )
        self._tables.put(self._tables.failures, cause, group)
        key = (CAUSE_MINUTES.name, CAUSE_MINUTES.start_of(self.now), cause, job.task, CAUSED)
        self._tables.put(self._tables.measures, key, self._tables.measures.get(key, 0) + 1)

    def remove(self, jobs: Sequence[Job], by: str | None) -> None:
        tables = self._tables
        for job in jobs:
            self.record([transitions.deleted(job, self.now, by)])
            measures: Measures = {}
            measure_deleted(measures, job)
            self._count(measures)
            for table in (tables.jobs, tables.logs, tables.subscribers):
                tables.drop(table, job.id)
            key = job.unique_key
            if key and (lock := tables.keys.get(key)) is not None and lock.job_id == job.id:
                tables.drop(tables.keys, key)

    def lock_keys(self, keys: Collection[str]) -> None:
        """There is one writer."""

    def holders(self, keys: Collection[str]) -> dict[str, Job]:
        found = {}
        for key in keys:
            lock = self._tables.keys.get(key)
            job = None if lock is None else self._tables.jobs.get(lock.job_id)
            if lock is not None and job is not None:
                unique = UniqueLock(key, lock.period, lock.until)
                if transitions.holds(job, unique, lock.taken_at, self.now):
                    found[key] = job
        return found

    def retake_key(self, key: str, job_id: str) -> None:
        lock = self._tables.keys.get(key, Lock(key, "", None, "finish", 0))
        if lock.job_id != job_id:
            self._tables.put(self._tables.keys, key, replace(lock, job_id=job_id, period=None, taken_at=self.now))

    def replaced_by(self, call_ids: Collection[str]) -> dict[str, str]:
        replaced = self._tables.replaced
        return {call_id: replaced[call_id].job_id for call_id in call_ids if call_id in replaced}

    def remember_replaced(self, call_id: str, job_id: str) -> None:
        self._tables.put(self._tables.replaced, call_id, Replaced(call_id, job_id, self.now))

    # --- lists of jobs ------------------------------------------------------------------------------------------------

    def _list(self, fits: Callable[[Job], bool], order: Callable[[Job], Any], limit: int) -> list[Job]:
        return sorted(filter(fits, self._tables.jobs.values()), key=order)[:limit]

    def due_jobs(self, limit: int) -> list[Job]:
        return self._list(
            lambda job: job.due_at is not None and job.due_at <= self.now, lambda job: (job.due_at, job.seq), limit
        )

    def expired_jobs(self, limit: int) -> list[Job]:
        return self._list(
            lambda job: job.expire_at is not None and job.expire_at <= self.now,
            lambda job: (job.expire_at, job.seq),
            limit,
        )

    def held_jobs(self, owners: Collection[str], limit: int) -> list[Job]:
        return self._list(lambda job: job.owner in owners, lambda job: job.seq, limit)

    def lost_jobs(self, silent: Collection[str], limit: int) -> list[Job]:
        return self.held_jobs(silent, limit)  # these include unknown owners

    def unowned_jobs(self, limit: int) -> list[Job]:
        return self._list(lambda job: job.state in HELD and job.owner is None, lambda job: job.seq, limit)

    def prunable_jobs(self, state: State, before: int, limit: int) -> list[Job]:
        def is_prunable(job: Job) -> bool:
            return (
                job.state is state
                and job.finished_at is not None
                and job.finished_at <= before
                and not job.persistent
                and job.id not in self._tables.subscribers
                and not (job.unique_key and self.holders([job.unique_key]).get(job.unique_key) == job)
            )

        return self._list(is_prunable, lambda job: (job.finished_at, job.seq), limit)

    def lines(self, queues: Collection[str], limit: int) -> dict[int, dict[str, list[Job]]]:
        self.looked_at = queues
        paused = {name for name in queues if name in self._tables.queues and self._tables.queues[name].is_paused}
        lines: defaultdict[int, defaultdict[str, list[Job]]] = defaultdict(lambda: defaultdict(list))
        for job in self._tables.jobs.values():
            if job.state is QUEUED and job.queue in queues and (job.rank == RANK_FORCED or job.queue not in paused):
                lines[job.rank][job.queue].append(job)
        for line in itertools.chain.from_iterable(by_queue.values() for by_queue in lines.values()):
            line.sort(key=lambda job: job.seq)
            del line[limit:]
        return {rank: dict(by_queue) for rank, by_queue in lines.items()}

    # --- records --------------------------------------------------------------------------------------------------

    def records(self, kind: type[Record], names: Collection[str]) -> dict[str, Record]:
        table = self._tables.of(kind)
        return {name: table[name] for name in names if name in table}

    def add(self, record: WorkerInfo) -> bool:
        if record.id in self._tables.workers:
            return False
        self.put(record)
        return True

    def put(self, record: QueueInfo | ScheduleInfo | WorkerInfo | ClientInfo | TaskInfo) -> None:
        self._tables.put(self._tables.of(type(record)), _name_of(record), record)

    def delete(self, record: ScheduleInfo | ClientInfo) -> None:
        self._tables.drop(self._tables.of(type(record)), _name_of(record))
        if isinstance(record, ClientInfo):
            for job_id in self.subscriptions(record.id, limit=len(self._tables.subscribers)):
                self.unsubscribe(job_id, record.id)

    def delete_idle_worker(self, owner: str) -> WorkerInfo | None:
        worker = self._tables.workers.get(owner)
        if worker is None or any(job.owner == owner for job in self._tables.jobs.values()):
            return None
        self._tables.drop(self._tables.workers, owner)
        return worker

    def know(self, queues: Collection[str], tasks: Mapping[str, str] = {}) -> None:
        for queue in queues:
            if queue not in self._tables.queues:
                self.put(QueueInfo(queue))
        for task, queue in tasks.items():
            if task not in self._tables.tasks:
                self.put(TaskInfo(task, queue))

    def put_order(self, order: str) -> None:
        self._tables.put(self._tables.settings, "order", order)

    def put_ticks(self, ticks: Sequence[Tick]) -> None:
        for tick in ticks:
            self._tables.put(self._tables.ticks, self._tables.next("tick"), tick)

    # --- workers and clients ------------------------------------------------------------------------------------------

    def worker(self, owner: str) -> WorkerInfo | None:
        return self._tables.workers.get(owner)

    def silent_owners(self, first: int, last: int, lease: int) -> list[str]:
        workers = self._tables.workers
        silent = {worker.id for worker in workers.values() if not worker.is_beating(first, last, lease)}
        holding = {job.owner for job in self._tables.jobs.values() if job.owner is not None}
        return sorted(silent | (holding - workers.keys()))

    def silent_clients(self, before: int, limit: int) -> list[str]:
        silent = [client for client in self._tables.clients.values() if client.beat_at <= before]
        return [client.id for client in sorted(silent, key=lambda client: (client.beat_at, client.id))][:limit]

    def subscribe(self, job_id: str, client_id: str) -> None:
        if client_id not in self._tables.clients:
            raise ClientNotFound(client_id)
        self._tables.subscribe(job_id, client_id)

    def unsubscribe(self, job_id: str, client_id: str) -> None:
        rest = tuple(client for client in self._tables.subscribers.get(job_id, ()) if client != client_id)
        if rest:
            self._tables.put(self._tables.subscribers, job_id, rest)
        else:
            self._tables.drop(self._tables.subscribers, job_id)

    def subscribers(self, job_ids: Collection[str]) -> dict[str, tuple[str, ...]]:
        subscribers = self._tables.subscribers
        return {job_id: subscribers[job_id] for job_id in job_ids if job_id in subscribers}

    def subscriptions(self, client_id: str, limit: int) -> list[str]:
        wanted = (job_id for job_id, clients in self._tables.subscribers.items() if client_id in clients)
        return sorted(wanted)[:limit]

    # --- history ----------------------------------------------------------------------------------------------------

    def record(self, events: Iterable[Event]) -> None:
        for event in events:
            number = self._tables.next("event")
            self._tables.put(self._tables.events, number, replace(event, id=number))

    def add_log_lines(self, job: Job, lines: Sequence[LogLine], keep: int) -> None:
        added = [replace(line, id=self._tables.next("line")) for line in lines]
        log = [*self._tables.logs.get(job.id, ()), *added]
        if len(log) > keep:
            dropped = [line.message for line in log[: len(log) - keep + 1]]
            log = log[len(log) - keep :]
            log[:1] = [replace(line, message=dropped_lines(count_lost(dropped)), kind=LogKind.LOG) for line in log[:1]]
        self._tables.put(self._tables.logs, job.id, tuple(log))

    def silence(self, cause: str, until: int | None, by: str | None, version: str | None) -> tuple[str, bool] | None:
        group = self._tables.failures.get(cause)
        if group is None:
            return None
        silenced = replace(group, silenced_until=until, silenced_by=by, silenced_version=version)
        self._tables.put(self._tables.failures, cause, silenced)
        return group.task, group.has_silence

    def prune_history(self, before: int, limit: int) -> tuple[int, bool]:
        tables = self._tables
        oldest = list(itertools.islice(tables.events.values(), limit + 1))
        is_over = bool(oldest) and oldest[0].at <= before
        past = [event.id for event in oldest if is_over and event.at <= before and event.id != tables.last["event"]]
        for number in past[:limit]:
            tables.drop(tables.events, number)
        for number, tick in list(itertools.islice(tables.ticks.items(), limit)):
            if tick.at <= before:
                tables.drop(tables.ticks, number)
        for call_id, replaced in list(itertools.islice(tables.replaced.items(), limit)):
            if replaced.at <= before:
                tables.drop(tables.replaced, call_id)
        for cause, group in list(tables.failures.items()):
            if group.last_at <= before:
                tables.drop(tables.failures, cause)
        return len(past[:limit]), len(past) > limit

    def fold_measures(self, level: Level, into: Level | None, before: int) -> None:
        measures = self._tables.measures
        for key in [key for key in measures if key[0] == level.name and key[1] <= before]:
            if into is not None:
                target = (into.name, into.start_of(key[1]), *key[2:])
                self._tables.put(measures, target, measures.get(target, 0) + measures[key])
            self._tables.drop(measures, key)

    def wake(self, queues: Iterable[str]) -> None:
        self.woken.update(dict.fromkeys(queues))


def _name_of(record: QueueInfo | ScheduleInfo | WorkerInfo | ClientInfo | TaskInfo) -> str:
    return record.id if isinstance(record, WorkerInfo | ClientInfo) else record.name


def locked(call: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A call that sees no half-done operation of another thread."""

    @functools.wraps(call)
    def under_lock(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return call(self, *args, **kwargs)

    return under_lock


class Memory(Engine[Transaction]):
    """Jobs that live in this process alone."""

    supports_threaded_wait = True

    def __init__(self, now: clock.Now = clock.now) -> None:
        self._now = now
        self._lock = threading.RLock()
        self._tables = Tables()
        self._fair_share = FairShare()
        self._move: Move | None = None
        self._waiters = Waiters(self._lock)
        self._unnoticed: set[str] = set()  # queues that got jobs while no worker waited, until the next `reserve`
        self._is_interrupted = False  # also a thread that is about to wait

    def now(self) -> int:
        return self._now()

    def approximate_now(self) -> int:
        return self._now()

    def close(self) -> None:
        """There is nothing to close."""

    @locked
    def health(self) -> Health:
        facts = (problems(self._move), len(self._tables.jobs))
        return Health("memory", "memory://", version="-", schema=0, latency=0, size=facts[1], problems=facts[0])

    # --- writing --------------------------------------------------------------------------------------------------

    @locked
    def _write(self, name: str, work: Callable[[Transaction], R]) -> R:
        if not may_go_on(self._move, name):
            self._forget_wake_ups(self._tables.queues)  # there is nothing to be woken for
            answer: R = quiet_answer(name)
            return answer
        tx = Transaction(self._tables, self.now())
        result = self._tables.atomically(lambda: work(tx))
        self._tables.commit()
        self._forget_wake_ups(tx.looked_at)
        self._wake(tx.woken)
        return result

    @locked
    def finish_and_reserve(
        self, outcomes: Sequence[Outcome], owner: str, queues: Mapping[str, int], limit: int
    ) -> tuple[list[Verdict], list[Job]]:
        attempts.require_worker(Transaction(self._tables, self.now()), owner)
        return self.finish(outcomes), self.reserve(owner, queues, limit)

    # --- jobs -----------------------------------------------------------------------------------------------------

    @locked
    def get_many(self, job_ids: Sequence[str]) -> list[Job]:
        return [self._tables.jobs[job_id] for job_id in job_ids if job_id in self._tables.jobs]

    @locked
    def find(self, where: Filter, *, cursor: str | None = None, limit: int = 50) -> Page:
        order = queries.order_for(where)
        after = queries.decode_cursor(cursor, order)
        jobs = sorted((job for job in self._tables.jobs.values() if queries.fits(job, where)), key=order.place)
        rest = [job for job in jobs if after is None or order.place(job) > after]
        page = rest[:limit]
        return Page(page, queries.encode_cursor(order, order.place(page[-1])) if len(rest) > limit else None)

    @locked
    def count(self, where: Filter, *, cap: int = 10_000) -> Count:
        number = sum(queries.fits(job, where) for job in self._tables.jobs.values())
        if queries.is_tallied(where) or number <= cap:
            return Count(number)
        return Count(cap, exact=False)

    @locked
    def tallies(self) -> list[Tally]:
        counted = Counter((job.queue, job.task, job.state) for job in self._tables.jobs.values())
        return [Tally(queue, task, state, number) for (queue, task, state), number in sorted(counted.items())]

    @locked
    def queues(self) -> list[QueueInfo]:
        counts: defaultdict[str, Counter[State]] = defaultdict(Counter)
        lines: defaultdict[tuple[str, int], list[Job]] = defaultdict(list)
        for job in sorted(self._tables.jobs.values(), key=lambda job: job.seq):
            counts[job.queue][job.state] += 1
            if job.state is QUEUED:
                lines[job.queue, job.rank].append(job)
        depth = search_depth(sum(not _is_oldest(line[0]) for line in lines.values()))
        oldest: dict[str, int] = {}
        for (queue, _), line in lines.items():
            since = min(job.queued_at or 0 for job in line[: 1 if _is_oldest(line[0]) else depth])
            oldest[queue] = min(since, oldest.get(queue, since))
        return [
            replace(queue, counts=dict(counts[name]), oldest_queued_at=oldest.get(name))
            for name, queue in sorted(self._tables.queues.items())
        ]

    @locked
    def tasks(self) -> list[TaskInfo]:
        return [task for _, task in sorted(self._tables.tasks.items())]

    # --- schedules, workers, clients ----------------------------------------------------------------------------------

    @locked
    def schedules(self) -> list[ScheduleInfo]:
        return sorted(self._tables.schedules.values(), key=lambda one: (one.next_at, one.name))

    @locked
    def ticks(self, name: str, *, limit: int = 50) -> list[Tick]:
        return [tick for tick in reversed(self._tables.ticks.values()) if tick.schedule == name][:limit]

    @locked
    def workers(self) -> list[WorkerInfo]:
        return sorted(self._tables.workers.values(), key=lambda worker: (worker.joined_at, worker.id))

    @locked
    def abort_requests(self, owners: Sequence[str]) -> list[AbortRequest]:
        return [
            AbortRequest(job.token, job.abort_reason)
            for job in self._tables.jobs.values()
            if job.owner in owners and job.abort_reason is not None
        ]

    @locked
    def poll(self, foreman: str, owners: Sequence[str], *, after: int = 0) -> PollResult:
        jobs = self._tables.jobs.values()
        orders = (one.id for one in self._tables.events.values() if one.kind is Kind.ORDERED and one.owner == foreman)
        slots = (schedule.next_at for schedule in self._tables.schedules.values() if schedule.paused_at is None)
        paused = (queue for queue in self._tables.queues.values() if queue.is_paused)
        return poll_result(
            self.now(),
            self._move,
            stops=any(job.owner in owners and job.abort_reason is not None for job in jobs),
            queued=any(job.state is QUEUED for job in jobs),
            ordered=any(number > after for number in orders),
            held=any(job.state in HELD for job in jobs),
            due_at=min((job.due_at for job in jobs if job.due_at is not None), default=None),
            expire_at=min((job.expire_at for job in jobs if job.expire_at is not None), default=None),
            next_at=min(slots, default=None),
            resume_at=min((queue.paused_until for queue in paused if queue.paused_until is not None), default=None),
            order=self._tables.settings.get("order"),
        )

    @locked
    def clients(self) -> list[ClientInfo]:
        wanted = Counter(itertools.chain.from_iterable(self._tables.subscribers.values()))
        found = [replace(client, subscriptions=wanted[client.id]) for client in self._tables.clients.values()]
        return sorted(found, key=lambda client: (client.joined_at, client.id))

    @locked
    def subscribers(self, job_id: str) -> list[str]:
        return sorted(self._tables.subscribers.get(job_id, ()))

    @locked
    def outcomes_for(self, client_id: str, *, limit: int = 100) -> list[Job]:
        wanted = [
            self._tables.jobs[job_id] for job_id, clients in self._tables.subscribers.items() if client_id in clients
        ]
        ended = [job for job in wanted if job.state in FINAL]
        return sorted(ended, key=lambda job: (job.finished_at, job.seq))[:limit]

    # --- history ----------------------------------------------------------------------------------------------------

    @locked
    def events(self, where: EventFilter, *, limit: int = 100, newest_first: bool = False) -> list[Event]:
        events = self._tables.events.values()
        found = (event for event in (reversed(events) if newest_first else events) if where.matches(event))
        return list(itertools.islice(found, limit))

    @locked
    def log_lines(self, job_id: str, *, after: int = 0, limit: int = 1_000) -> list[LogLine]:
        return [line for line in self._tables.logs.get(job_id, ()) if line.id > after][:limit]

    @locked
    def failures(self, *, limit: int = 50, span: Span | None = None) -> list[FailureGroup]:
        found = sorted(self._tables.failures.values(), key=lambda group: (-group.last_at, group.cause))[:limit]
        return found if span is None else [replace(group, counts=self._counts_of(group.cause, span)) for group in found]

    def _counts_of(self, cause: str, span: Span) -> dict[int, int]:
        levels, start = span.cause_levels, span.level.start_of(self.now() - span.length)
        counts: Counter[int] = Counter()
        for (level, at, its_cause, _, _), amount in self._tables.measures.items():
            if level in levels and at >= start and its_cause == cause:
                counts[span.level.start_of(at)] += amount
        return dict(sorted(counts.items()))

    @locked
    def series(self, span: Span, *, queue: str | None = None, task: str | None = None) -> list[Point]:
        levels, start = span.levels, span.level.start_of(self.now() - span.length)
        points: dict[tuple[int, str, str], dict[str, int]] = {}
        for (level, at, its_queue, its_task, counted), amount in self._tables.measures.items():
            if level in levels and at >= start and queue in (None, its_queue) and task in (None, its_task):
                values = points.setdefault((span.level.start_of(at), its_queue, its_task), {})
                values[counted] = values.get(counted, 0) + amount
        return [Point(*key, values) for key, values in sorted(points.items())]

    @locked
    def totals(self) -> dict[str, int]:
        totals: Counter[str] = Counter()
        for (_, _, _, _, counted), amount in self._tables.measures.items():
            if counted != CAUSED:
                totals[counted] += amount
        return dict(totals)

    # --- copying to another storage -----------------------------------------------------------------------------------

    @locked
    def move(self) -> Move | None:
        return self._move

    @locked
    def set_move(self, move: Move | None, *, expected: Move | None) -> bool:
        if self._move != expected:
            return False
        self._move = move
        if move is None:
            self._wake(self._tables.queues)
        return True

    @locked
    def dump(self, section: Section, *, cursor: str | None = None, limit: int = BATCH) -> Dumped:
        tables = self._tables
        rows: Iterable[Any]
        if section is Section.QUEUES:
            rows = map(bare, tables.queues.values())
        elif section is Section.JOBS:
            rows = sorted(tables.jobs.values(), key=lambda job: job.seq)
        elif section is Section.SUBSCRIPTIONS:
            rows = [
                Subscription(job_id, client) for job_id, clients in tables.subscribers.items() for client in clients
            ]
        elif section is Section.LOG:
            rows = [LoggedLine(job_id, line) for job_id, lines in tables.logs.items() for line in lines]
        elif section is Section.MEASURES:
            rows = [Measure(*key, amount) for key, amount in tables.measures.items()]
        else:
            rows = getattr(tables, _TABLES[section]).values()
        return paged([(f"{number:012}", row) for number, row in enumerate(rows)], cursor, limit)

    @locked
    def load(self, section: Section, rows: Sequence[Any], move: Move, *, expected: Move) -> bool:
        if self._move != expected:
            return False
        for row in rows:
            self._load(section, row)
        self._tables.commit()
        self._move = move
        return True

    def _load(self, section: Section, row: Any) -> None:
        tables = self._tables
        if section is Section.SUBSCRIPTIONS:
            tables.subscribe(row.job_id, row.client_id)
        elif section is Section.LOG:
            tables.logs[row.job_id] = (*tables.logs.get(row.job_id, ()), row.line)
            tables.last["line"] = max(tables.last["line"], row.line.id)
        elif section is Section.MEASURES:
            tables.measures[row.level, row.at, row.queue, row.task, row.counted] = row.amount
        elif section is Section.TICKS:
            tables.ticks[tables.next("tick")] = row
        else:
            getattr(tables, _TABLES[section])[getattr(row, _NAMES[section])] = row
            if section is Section.JOBS:
                tables.last["job"] = max(tables.last["job"], row.seq)
            elif section is Section.EVENTS:
                tables.last["event"] = max(tables.last["event"], row.id)

    # --- wake-up ----------------------------------------------------------------------------------------------------

    @locked
    def wait(self, timeout: float, queues: Sequence[str] = ()) -> bool:
        if self._unnoticed.intersection(queues):
            return True
        return self._waiters.wait(timeout, queues, lambda: self._is_interrupted)

    @locked
    def interrupt(self) -> None:
        self._is_interrupted = True
        self._waiters.recheck_all()

    def _wake(self, queues: Iterable[str]) -> None:
        self._unnoticed.update([queue for queue in queues if not self._waiters.wake_one([queue])])

    def _forget_wake_ups(self, queues: Collection[str]) -> None:
        """A worker looks for jobs in these queues."""
        if queues:
            self._is_interrupted = False
            self._unnoticed.difference_update(queues)


_NAMES = {
    Section.TASKS: "name",
    Section.QUEUES: "name",
    Section.CLIENTS: "id",
    Section.JOBS: "id",
    Section.LOCKS: "key",
    Section.REPLACED: "twin",
    Section.EVENTS: "id",
    Section.FAILURES: "cause",
    Section.SCHEDULES: "name",
}
_TABLES = {section: section.value for section in Section} | {Section.LOCKS: "keys"}


def _is_oldest(first: Job) -> bool:
    """Return whether the first of a line has waited longer than the others; see `search_depth`."""
    return first.queued_at == first.created_at
