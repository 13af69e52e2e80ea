"""The memory storage: the readable model of what every storage does. For tests and examples; it forgets on exit.

One lock makes each call one atomic step. What happens to a job is decided in `changes.py`; here it is only found,
guarded and kept. The Hypothesis machine drives every other storage side by side with this one.
"""

from __future__ import annotations

import copy
import functools
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec.structs import replace

from packhorse import changes, clock
from packhorse.changes import Changed
from packhorse.errors import ClientNotFound, NotUnique, WorkerNotFound
from packhorse.event import Event, Kind, Subject
from packhorse.failure import Failure
from packhorse.job import (
    FINAL,
    HELD,
    QUEUED,
    RANK_FORCED,
    RANKS,
    WAITING,
    Job,
    NewJob,
    Operation,
    Token,
    UniqueLock,
    is_legal,
)
from packhorse.outcome import Outcome, Verdict
from packhorse.series import LEVELS, MINUTES, Measures, has_failed, measure
from packhorse.storage import listing
from packhorse.storage.contract import Storage
from packhorse.storage.records import (
    DROPPED_LINES,
    LONGEST_LINE,
    Beat,
    CheckIn,
    CheckInAnswer,
    ClientInfo,
    Count,
    Enqueued,
    EventFilter,
    FailureGroup,
    Filter,
    Health,
    LogKind,
    LogLine,
    Page,
    Placement,
    Point,
    Pruned,
    QueueInfo,
    Rescued,
    Retention,
    ScheduleInfo,
    Span,
    Steered,
    Stop,
    Tally,
    TaskInfo,
    Tick,
    WorkerInfo,
    told_ticks,
)
from packhorse.turns import Turns

P = ParamSpec("P")
R = TypeVar("R")


def _atomic(call: Callable[Concatenate[Memory, P], R]) -> Callable[Concatenate[Memory, P], R]:
    @functools.wraps(call)
    def locked(self: Memory, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return call(self, *args, **kwargs)

    return locked


class Memory(Storage):
    """See `contract.py` for what each call guarantees."""

    def __init__(self, now: clock.Now = clock.now) -> None:
        self._now = now
        self._lock = threading.RLock()
        self._woken = threading.Condition(self._lock)
        self._wakes = 0
        self._looked = 0  # how many of the wakes the latest `reserve` has seen
        self._jobs: dict[str, Job] = {}
        self._seq = 0
        self._locks: dict[str, tuple[str, UniqueLock, int]] = {}  # key -> job, lock, taken at
        self._events: list[Event] = []
        self._event_id = 0
        self._log: dict[str, list[LogLine]] = {}
        self._log_id = 0
        self._queues: dict[str, QueueInfo] = {}
        self._tasks: dict[str, TaskInfo] = {}
        self._workers: dict[str, WorkerInfo] = {}
        self._clients: dict[str, ClientInfo] = {}
        self._subscribers: dict[str, list[str]] = {}  # job -> clients
        self._schedules: dict[str, ScheduleInfo] = {}
        self._ticks: list[Tick] = []
        self._failures: dict[str, FailureGroup] = {}
        self._measures: dict[tuple[str, int, str, str, str], int] = {}  # level, at, queue, task, counted
        self._turns = Turns()

    # --- life -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Nothing to let go of."""

    def now(self) -> int:
        return self._now()

    @_atomic
    def health(self) -> Health:
        return Health(kind="memory", url="memory://", version="-", schema=0, latency=0, size=len(self._jobs))

    # --- in and out -----------------------------------------------------------------------------------------------

    @_atomic
    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        before = self._remembered() if any(new.unique or new.subscriber for new in jobs) else {}
        try:
            for new in jobs:
                self._know(new.task, new.queue)
            return [self._enqueue_one(new) for new in jobs]
        except (NotUnique, ClientNotFound):
            self.__dict__.update(before)
            raise

    def _remembered(self) -> dict[str, Any]:
        """All that a refused batch may have touched."""
        copied = {
            name: copy.copy(value) for name, value in self.__dict__.items() if isinstance(value, dict | list | int)
        }
        copied["_subscribers"] = {job_id: list(clients) for job_id, clients in self._subscribers.items()}
        return copied

    def _enqueue_one(self, new: NewJob) -> Enqueued:
        if new.id in self._jobs:
            return Enqueued(new.id, Placement.KEPT)
        if new.unique is not None:
            if new.unique.on_conflict == "replace" and (replaced := self._replaced_by(new, new.unique.key)):
                return Enqueued(replaced, Placement.REPLACED)
            holder = self._holder(new.unique.key)
            if holder is not None and new.unique.on_conflict == "reject":
                raise NotUnique(holder.id, new.unique.key)
            if holder is not None and new.unique.on_conflict == "replace" and holder.state in WAITING:
                self._keep(holder, changes.replaced(holder, new, self.now()))
                self._subscribe(new, holder.id)
                return Enqueued(holder.id, Placement.REPLACED)
            # A holder that runs already cannot be replaced: the new arguments get a job of their own, so that they
            # are not lost.
            if holder is not None and not (new.unique.on_conflict == "replace" and holder.state in HELD):
                self._subscribe(new, holder.id)
                return Enqueued(holder.id, Placement.KEPT)
        self._seq += 1
        self._keep(None, changes.added(new, self._seq, self.now()))
        if new.unique is not None:
            self._locks[new.unique.key] = (new.id, new.unique, self.now())
        self._subscribe(new, new.id)
        return Enqueued(new.id)

    def _replaced_by(self, new: NewJob, key: str) -> str | None:
        """The job whose call this very one has replaced already: its answer was lost."""
        holder = self._locks[key][0] if key in self._locks else None
        told = (event for event in self._events if event.job_id == holder and event.kind is Kind.REPLACED)
        return holder if any((event.data or {}).get("twin") == new.id for event in told) else None

    def _subscribe(self, new: NewJob, job_id: str) -> None:
        """Whoever enqueued wants the outcome, be it of this job or of the twin that stands for it."""
        if new.subscriber is None:
            return
        if new.subscriber not in self._clients:
            raise ClientNotFound(new.subscriber)
        clients = self._subscribers.setdefault(job_id, [])
        if new.subscriber not in clients:
            clients.append(new.subscriber)

    def _holder(self, key: str) -> Job | None:
        """The job that holds this unique key now. A lock is only a pointer: the job's own state says if it holds."""
        job_id, lock, taken_at = self._locks.get(key, ("", UniqueLock(key), 0))
        job = self._jobs.get(job_id)
        if job is None:
            return None
        return job if changes.holds(job, lock, taken_at, self.now()) else None

    @_atomic
    def get(self, job_id: str) -> Job | None:
        return self._jobs.get(job_id)

    @_atomic
    def get_many(self, job_ids: Sequence[str]) -> list[Job]:
        return [self._jobs[job_id] for job_id in job_ids if job_id in self._jobs]

    @_atomic
    def find(self, where: Filter, *, cursor: str | None = None, limit: int = 50) -> Page:
        order = listing.order_of(where.states)
        after = listing.decode_cursor(cursor, order)
        jobs = sorted((job for job in self._jobs.values() if listing.fits(job, where)), key=order.place)
        rest = [job for job in jobs if after is None or order.place(job) > after]
        page = rest[:limit]
        return Page(page, listing.encode_cursor(order, order.place(page[-1])) if len(rest) > limit else None)

    @_atomic
    def count(self, where: Filter, *, cap: int = 10_000) -> Count:
        number = sum(listing.fits(job, where) for job in self._jobs.values())
        if listing.is_tallied(where) or number <= cap:
            return Count(number)
        return Count(cap, exact=False)

    @_atomic
    def tallies(self) -> list[Tally]:
        counted = Counter((job.queue, job.task, job.state) for job in self._jobs.values())
        return [Tally(queue, task, state, number) for (queue, task, state), number in sorted(counted.items())]

    @_atomic
    def queues(self) -> list[QueueInfo]:
        found = []
        for name in sorted(self._queues):
            jobs = [job for job in self._jobs.values() if job.queue == name]
            counts = dict(Counter(job.state for job in jobs))
            heads: dict[int, Job] = {}
            for job in sorted((job for job in jobs if job.state is QUEUED), key=lambda job: job.seq):
                heads.setdefault(job.rank, job)
            oldest = min((job.queued_at or 0 for job in heads.values()), default=None)
            found.append(replace(self._queues[name], counts=counts, oldest_queued_at=oldest))
        return found

    @_atomic
    def tasks(self) -> list[TaskInfo]:
        return [self._tasks[name] for name in sorted(self._tasks)]

    @_atomic
    def announce(self, tasks: Sequence[TaskInfo]) -> None:
        for task in tasks:
            self._know(task.name, task.queue)
            self._tasks[task.name] = replace(task, announced_at=self.now())

    def _know(self, task: str, queue: str) -> None:
        self._tasks.setdefault(task, TaskInfo(task, queue))
        self._queues.setdefault(queue, QueueInfo(queue))

    # --- working --------------------------------------------------------------------------------------------------

    @_atomic
    def reserve(self, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        if owner not in self._workers:
            raise WorkerNotFound(owner)
        self._looked = self._wakes
        self.promote(limit=100)
        self.expire(limit=100)
        taken: list[Job] = []
        for rank in RANKS:
            lines = self._lines(rank, queues)
            shares = self._turns.share({name: len(line) for name, line in lines.items()}, queues, limit - len(taken))
            chosen = [job for name, share in shares.items() for job in lines[name][:share]]
            chosen.sort(key=lambda job: job.seq)
            taken += [self._keep(job, changes.reserved(job, owner, self.now())) for job in chosen]
        return taken

    def _lines(self, rank: int, queues: Collection[str]) -> dict[str, list[Job]]:
        lines: dict[str, list[Job]] = {}
        for job in sorted(self._jobs.values(), key=lambda job: job.seq):
            is_open = rank == RANK_FORCED or not self._queues[job.queue].is_paused
            if job.state is QUEUED and job.rank == rank and job.queue in queues and is_open:
                lines.setdefault(job.queue, []).append(job)
        return lines

    @_atomic
    def finish_and_reserve(
        self, outcomes: Sequence[Outcome], owner: str, queues: Mapping[str, int], limit: int
    ) -> tuple[list[Verdict], list[Job]]:
        if owner not in self._workers:
            raise WorkerNotFound(owner)
        return super().finish_and_reserve(outcomes, owner, queues, limit)

    @_atomic
    def start(self, tokens: Sequence[Token]) -> list[Verdict]:
        verdicts = []
        for token in tokens:
            job = self._held_by(token)
            if job is None:
                verdicts.append(Verdict.STALE)
            elif not is_legal(Operation.START, job.state):
                verdicts.append(Verdict.REPEATED)
            else:
                self._keep(job, changes.started(job, self.now()))
                verdicts.append(Verdict.ACCEPTED)
        return verdicts

    @_atomic
    def finish(self, outcomes: Sequence[Outcome]) -> list[Verdict]:
        return [self._finish(outcome) for outcome in outcomes]

    def _finish(self, outcome: Outcome) -> Verdict:
        job = self._held_by(outcome.token)
        if job is not None:
            self._keep(job, changes.settled(job, outcome, self.now()), outcome.ran)
            return Verdict.ACCEPTED
        return Verdict.REPEATED if self._has_ended(outcome.token) else Verdict.STALE

    @_atomic
    def release(self, tokens: Sequence[Token], why: str) -> list[Verdict]:
        return [self._release(token, why) for token in tokens]

    def _release(self, token: Token, why: str) -> Verdict:
        job = self._held_by(token)
        if job is not None:
            self._keep(job, changes.released(job, self.now(), why))
            return Verdict.ACCEPTED
        return Verdict.REPEATED if self._has_ended(token) else Verdict.STALE

    def _held_by(self, token: Token) -> Job | None:
        job = self._jobs.get(token.job_id)
        if job is None or (job.owner, job.fence) != (token.owner, token.fence):
            return None
        return job

    def _has_ended(self, token: Token) -> bool:
        """Did exactly this attempt end already, with an outcome? Rescue and release raise the fence."""
        job = self._jobs.get(token.job_id)
        return job is not None and (job.owner, job.last_owner, job.fence) == (None, token.owner, token.fence)

    @_atomic
    def check_in(self, checkins: Sequence[CheckIn]) -> list[CheckInAnswer]:
        answers = []
        for one in checkins:
            job = self._held_by(one.token)
            if job is None:
                answers.append(CheckInAnswer.STALE)
                continue
            job, lines = changes.checked_in(job, self.now(), one.message, one.progress, one.progress_text)
            self._jobs[job.id] = job
            self._write_lines(job, [LogLine(text, LogKind(kind)) for kind, text in lines], keep=1_000)
            answers.append(CheckInAnswer.GO_ON if job.abort_at is None else CheckInAnswer.STOP)
        return answers

    @_atomic
    def append_log(self, token: Token, lines: Sequence[LogLine], *, keep: int = 1_000) -> Verdict:
        if self._held_by(token) is None and not self._has_ended(token):
            return Verdict.STALE
        self._write_lines(self._jobs[token.job_id], lines, keep)
        return Verdict.ACCEPTED

    def _write_lines(self, job: Job, lines: Iterable[LogLine], keep: int) -> None:
        log = self._log.setdefault(job.id, [])
        for line in lines:
            self._log_id += 1
            message = line.message[:LONGEST_LINE]
            log.append(replace(line, message=message, at=self.now(), attempt=job.attempts, id=self._log_id))
        if len(log) > keep:
            del log[: len(log) - keep]
            log[:1] = [replace(line, message=DROPPED_LINES, kind=LogKind.LOG) for line in log[:1]]

    # --- steering -------------------------------------------------------------------------------------------------

    @_atomic
    def abort(self, job_ids: Sequence[str], *, by: str | None = None) -> list[Steered]:
        return self._steer(job_ids, Operation.ABORT, lambda job: changes.aborted(job, self.now(), by))

    @_atomic
    def force_start(self, job_ids: Sequence[str], *, by: str | None = None) -> list[Steered]:
        return self._steer(job_ids, Operation.FORCE_START, lambda job: changes.forced(job, self.now(), by))

    @_atomic
    def set_priority(self, job_ids: Sequence[str], priority: int, *, by: str | None = None) -> list[Steered]:
        return self._steer(
            job_ids, Operation.SET_PRIORITY, lambda job: changes.reprioritised(job, priority, self.now(), by)
        )

    @_atomic
    def retry(self, job_ids: Sequence[str], *, by: str | None = None) -> list[Steered]:
        return self._steer(job_ids, Operation.RETRY, lambda job: changes.retried(job, self.now(), by))

    def _steer(self, job_ids: Sequence[str], operation: Operation, change: Callable[[Job], Changed]) -> list[Steered]:
        answers = []
        for job_id in job_ids:
            job = self._jobs.get(job_id)
            if job is None or not is_legal(operation, job.state):
                answers.append(Steered(job_id, False, job.state if job else None))
                continue
            twin = self._holder(job.unique_key) if job.unique_key and operation is Operation.RETRY else None
            if twin is not None and twin.id != job_id:
                answers.append(Steered(job_id, False, job.state, conflict=twin.id))
                continue
            answers.append(Steered(job_id, True, self._keep(job, change(job)).state))
            if operation is Operation.RETRY and job.unique_key:
                self._retake_lock(job.unique_key, job_id)
        return answers

    def _retake_lock(self, key: str, job_id: str) -> None:
        """A job that is retried holds its key again. A lock that is its own already stays as it is."""
        holder_id, lock, _ = self._locks.get(key, ("", UniqueLock(key), 0))
        if holder_id != job_id:
            self._locks[key] = (job_id, replace(lock, period=None), self.now())

    @_atomic
    def delete(self, job_ids: Sequence[str], *, by: str | None = None) -> list[Steered]:
        answers = []
        for job_id in job_ids:
            job = self._jobs.get(job_id)
            if job is None or not is_legal(Operation.DELETE, job.state):
                answers.append(Steered(job_id, False, job.state if job else None))
                continue
            self._remove(job, by)
            answers.append(Steered(job_id, True, job.state))
        return answers

    def _remove(self, job: Job, by: str | None) -> None:
        self._record(changes.deleted(job, self.now(), by))
        del self._jobs[job.id]
        self._log.pop(job.id, None)
        self._subscribers.pop(job.id, None)
        if job.unique_key and self._locks.get(job.unique_key, ("",))[0] == job.id:
            del self._locks[job.unique_key]

    @_atomic
    def pause(self, queue: str, *, by: str | None = None, why: str | None = None) -> bool:
        info = self._queues.setdefault(queue, QueueInfo(queue))
        if info.is_paused:
            return False
        self._queues[queue] = replace(info, paused_at=self.now(), paused_by=by, paused_why=why)
        self._record_about(Subject.QUEUE, Kind.PAUSED, queue=queue, by=by, why=why)
        return True

    @_atomic
    def resume(self, queue: str, *, by: str | None = None) -> bool:
        info = self._queues.get(queue)
        if info is None or not info.is_paused:
            return False
        self._queues[queue] = replace(info, paused_at=None, paused_by=None, paused_why=None)
        self._record_about(Subject.QUEUE, Kind.RESUMED, queue=queue, by=by)
        self._wake()
        return True

    # --- upkeep ---------------------------------------------------------------------------------------------------

    @_atomic
    def promote(self, *, limit: int = 500) -> int:
        due = [job for job in self._jobs.values() if job.due_at is not None and job.due_at <= self.now()]
        due.sort(key=lambda job: (job.due_at, job.seq))
        for job in due[:limit]:
            self._keep(job, changes.promoted(job, self.now()))
        return len(due[:limit])

    @_atomic
    def next_due(self) -> int | None:
        times = [job.due_at for job in self._jobs.values() if job.due_at is not None]
        return max(0, min(times) - self.now()) if times else None

    @_atomic
    def expire(self, *, limit: int = 500) -> int:
        over = [job for job in self._jobs.values() if job.expire_at is not None and job.expire_at <= self.now()]
        over.sort(key=lambda job: (job.expire_at, job.seq))
        for job in over[:limit]:
            self._keep(job, changes.expired(job, self.now()))
        return len(over[:limit])

    @_atomic
    def rescue(self, *, lease: int, why: str, recovered: bool = False, limit: int = 500) -> list[Rescued]:
        held = [job for job in self._jobs.values() if job.state in HELD]
        lost = [job for job in held if not self._is_alive(job.owner, lease)]
        taken = self._take_back(lost[:limit], why, (), recovered)
        for worker in list(self._workers.values()):
            if not self._is_alive(worker.id, lease):
                self._strike_off(worker.id, why)
        return taken

    @_atomic
    def rescue_owner(
        self, owner: str, *, why: str, ran: Collection[str] = (), recovered: bool = False, limit: int = 500
    ) -> list[Rescued]:
        lost = [job for job in self._jobs.values() if job.owner == owner]
        taken = self._take_back(lost[:limit], why, ran, recovered)
        self._strike_off(owner, why)
        return taken

    def _take_back(self, jobs: list[Job], why: str, ran: Collection[str], recovered: bool) -> list[Rescued]:
        taken = []
        for job in jobs:
            change = changes.rescued(job, self.now(), why, ran=job.id in ran, recovered=recovered)
            taken.append(Rescued(job.id, job.owner or "", self._keep(job, change).state))
        return taken

    def _is_alive(self, owner: str | None, lease: int) -> bool:
        worker = self._workers.get(owner or "")
        # A beat far in the future is a clock that was wrong: it would keep a dead worker alive for ever.
        return worker is not None and self.now() - lease <= worker.beat_at <= self.now() + 2 * lease

    def _strike_off(self, owner: str, why: str) -> None:
        if owner in self._workers and not any(job.owner == owner for job in self._jobs.values()):
            worker = self._workers.pop(owner)
            self._record_about(worker.subject, Kind.DIED, owner=owner, why=why)

    @_atomic
    def prune(self, keep: Retention, *, limit: int = 1_000) -> Pruned:
        before = self.now() - keep.events
        newest = self._event_id  # it stays: a storage that numbers its events by the last one must not begin anew
        silent = [client for client in self._clients.values() if client.beat_at <= self.now() - keep.clients]
        silent.sort(key=lambda client: (client.beat_at, client.id))
        for client in silent[:limit]:
            self._forget_client(client.id)
            self._record_about(Subject.CLIENT, Kind.TIMED_OUT, owner=client.id)
        old = [job for job in self._jobs.values() if self._is_prunable(job, keep)]
        old.sort(key=lambda job: (job.finished_at, job.seq))
        for job in old[:limit]:
            self._remove(job, "retention")
        past = self._past_events(before, limit + 1, newest)
        gone = frozenset(past[:limit])
        self._events = [event for event in self._events if event.id not in gone]
        self._ticks = [one for place, one in enumerate(self._ticks) if place >= limit or one.at > before]
        self._failures = {cause: group for cause, group in self._failures.items() if group.last_at > before}
        more = max(len(silent), len(old), len(past)) > limit
        return Pruned(len(old[:limit]), len(gone), len(silent[:limit]), more)

    def _past_events(self, before: int, most: int, newest: int) -> list[int]:
        """The ids of events that are over, among the oldest; none if the very oldest is not."""
        if not self._events or self._events[0].at > before:
            return []
        return [event.id for event in self._events[:most] if event.at <= before and event.id != newest]

    def _is_prunable(self, job: Job, keep: Retention) -> bool:
        if job.state not in FINAL or job.persistent or self._subscribers.get(job.id):
            return False
        if job.finished_at is None or job.finished_at > self.now() - keep.of(job.state):
            return False
        holder = self._holder(job.unique_key) if job.unique_key else None
        return holder is None or holder.id != job.id

    @_atomic
    def roll_up(self) -> None:
        for level, coarser in itertools.pairwise(LEVELS):
            for key in list(self._measures):
                name, at, queue, task, counted = key
                if name == level.name and at + level.width <= self.now() - level.keep:
                    target = (coarser.name, coarser.start_of(at), queue, task, counted)
                    self._measures[target] = self._measures.get(target, 0) + self._measures.pop(key)

    # --- schedules ------------------------------------------------------------------------------------------------

    @_atomic
    def put_schedules(self, schedules: Sequence[ScheduleInfo]) -> None:
        for new in schedules:
            old = self._schedules.get(new.name)
            self._schedules[new.name] = replace(new.following(old), updated_at=self.now())
            if old is None or not new.is_same_plan(old):
                self._record_about(Subject.SCHEDULE, Kind.PUT, queue=new.name, cron=new.cron, tz=new.tz)

    @_atomic
    def schedules(self) -> list[ScheduleInfo]:
        return sorted(self._schedules.values(), key=lambda one: (one.next_at, one.name))

    @_atomic
    def tick(
        self, name: str, slot: int, next_at: int, jobs: Sequence[NewJob], ticks: Sequence[Tick]
    ) -> list[Enqueued] | None:
        schedule = self._schedules.get(name)
        if schedule is None or schedule.paused_at is not None or schedule.next_at != slot or slot > self.now():
            return None
        try:
            enqueued = self.enqueue(jobs)
        except NotUnique:
            enqueued, ticks = [], [replace(one, outcome="skipped", job_id=None) for one in ticks]
        ticks = told_ticks(ticks, jobs, enqueued)
        last_job_id = enqueued[-1].job_id if enqueued else schedule.last_job_id
        last_at = max([slot, *(one.slot for one in ticks)])
        self._schedules[name] = replace(schedule, next_at=next_at, last_at=last_at, last_job_id=last_job_id)
        for one in ticks:
            self._ticks.append(replace(one, at=self.now()))
            self._record_about(Subject.SCHEDULE, Kind.TICKED, queue=name, slot=one.slot, outcome=one.outcome)
        return enqueued

    @_atomic
    def ticks(self, name: str, *, limit: int = 50) -> list[Tick]:
        return [one for one in reversed(self._ticks) if one.schedule == name][:limit]

    @_atomic
    def pause_schedule(self, name: str, paused: bool, *, by: str | None = None) -> bool:
        schedule = self._schedules.get(name)
        if schedule is None or (schedule.paused_at is not None) == paused:
            return False
        self._schedules[name] = replace(
            schedule, paused_at=self.now() if paused else None, paused_by=by if paused else None
        )
        self._record_about(Subject.SCHEDULE, Kind.PAUSED if paused else Kind.RESUMED, queue=name, by=by)
        return True

    @_atomic
    def remove_schedule(self, name: str, *, by: str | None = None) -> bool:
        if self._schedules.pop(name, None) is None:
            return False
        self._record_about(Subject.SCHEDULE, Kind.DELETED, queue=name, by=by)
        return True

    # --- workers and clients --------------------------------------------------------------------------------------

    @_atomic
    def join(self, worker: WorkerInfo) -> None:
        now = self.now()
        self._workers[worker.id] = replace(worker, joined_at=now, beat_at=now)
        self._record_about(worker.subject, Kind.STARTED, owner=worker.id, host=worker.host, pid=worker.pid)

    @_atomic
    def beat(self, reports: Mapping[str, Mapping[str, Any]]) -> Beat:
        for owner, report in reports.items():
            if owner in self._workers:
                self._workers[owner] = replace(self._workers[owner], beat_at=self.now(), report=dict(report))
        unknown = [owner for owner in reports if owner not in self._workers]
        return Beat(self.now(), unknown, self.stops(list(reports)))

    @_atomic
    def stops(self, owners: Sequence[str]) -> list[Stop]:
        asked = [job for job in self._jobs.values() if job.owner in owners]
        return [Stop(job.token, job.abort_reason) for job in asked if job.abort_reason is not None]

    @_atomic
    def leave(self, owner: str, *, why: str = "stopped") -> None:
        for job in [job for job in self._jobs.values() if job.owner == owner]:
            self._keep(job, changes.released(job, self.now(), why))
        worker = self._workers.pop(owner, None)
        if worker is not None:
            self._record_about(worker.subject, Kind.KILLED, owner=owner, why=why)

    @_atomic
    def record_stat(self, owner: str, report: Mapping[str, Any]) -> None:
        if owner in self._workers:
            event = Event(Kind.STAT, self.now(), self._workers[owner].subject, owner=owner, data=dict(report))
            self._record(event)

    @_atomic
    def workers(self) -> list[WorkerInfo]:
        return sorted(self._workers.values(), key=lambda worker: (worker.joined_at, worker.id))

    @_atomic
    def join_client(self, client: ClientInfo) -> None:
        known = self._clients.get(client.id)
        if known is None:
            self._record_about(Subject.CLIENT, Kind.JOINED, owner=client.id, name=client.name)
        joined_at = known.joined_at if known else self.now()
        self._clients[client.id] = replace(client, joined_at=joined_at, beat_at=self.now())

    @_atomic
    def leave_client(self, client_id: str) -> bool:
        if client_id not in self._clients:
            return False
        self._forget_client(client_id)
        self._record_about(Subject.CLIENT, Kind.LEFT, owner=client_id)
        return True

    def _forget_client(self, client_id: str) -> None:
        self._clients.pop(client_id, None)
        for job_id in [job_id for job_id, clients in self._subscribers.items() if client_id in clients]:
            self._unsubscribe(client_id, job_id)

    def _unsubscribe(self, client_id: str, job_id: str) -> None:
        self._subscribers[job_id].remove(client_id)
        if not self._subscribers[job_id]:
            del self._subscribers[job_id]

    @_atomic
    def clients(self) -> list[ClientInfo]:
        return sorted(self._clients.values(), key=lambda client: (client.joined_at, client.id))

    @_atomic
    def subscribe(self, client_id: str, job_ids: Sequence[str]) -> int:
        if client_id not in self._clients:
            raise ClientNotFound(client_id)
        known = [job_id for job_id in job_ids if job_id in self._jobs]
        for job_id in known:
            clients = self._subscribers.setdefault(job_id, [])
            if client_id not in clients:
                clients.append(client_id)
        self._touch(client_id)
        return len(known)

    @_atomic
    def subscribers(self, job_id: str) -> list[str]:
        return sorted(self._subscribers.get(job_id, []))

    @_atomic
    def outcomes_for(self, client_id: str, *, limit: int = 100) -> list[Job]:
        mine = [self._jobs[job_id] for job_id, clients in self._subscribers.items() if client_id in clients]
        ended = [job for job in mine if job.state in FINAL]
        return sorted(ended, key=lambda job: (job.finished_at, job.seq))[:limit]

    @_atomic
    def acknowledge(self, client_id: str, job_ids: Sequence[str]) -> int:
        handled = 0
        for job_id in job_ids:
            job = self._jobs.get(job_id)
            if job is None or job.state not in FINAL or client_id not in self._subscribers.get(job_id, ()):
                continue
            handled += 1
            self._record(changes.handled(job, self.now(), client_id))
            self._unsubscribe(client_id, job_id)
            holder = self._holder(job.unique_key) if job.unique_key else None
            if job_id not in self._subscribers and not job.persistent and holder != job:
                self._remove(job, "subscribers")
        self._touch(client_id)
        return handled

    def _touch(self, client_id: str) -> None:
        """Whoever calls is alive."""
        if client_id in self._clients:
            self._clients[client_id] = replace(self._clients[client_id], beat_at=self.now())

    # --- records --------------------------------------------------------------------------------------------------

    @_atomic
    def events(self, where: EventFilter, *, limit: int = 100, newest_first: bool = False) -> list[Event]:
        found = [event for event in self._events if _event_fits(event, where)]
        return (found[::-1] if newest_first else found)[:limit]

    @_atomic
    def log_lines(self, job_id: str, *, after: int = 0, limit: int = 1_000) -> list[LogLine]:
        return [line for line in self._log.get(job_id, []) if line.id > after][:limit]

    @_atomic
    def failures(self, *, limit: int = 50) -> list[FailureGroup]:
        return sorted(self._failures.values(), key=lambda group: (-group.last_at, group.cause))[:limit]

    @_atomic
    def series(self, span: Span, *, queue: str | None = None, task: str | None = None) -> list[Point]:
        levels, start = span.levels, span.level.start_of(self.now() - span.length)
        points: dict[tuple[int, str, str], dict[str, int]] = {}
        for (name, at, its_queue, its_task, counted), amount in self._measures.items():
            if name in levels and at >= start and queue in (None, its_queue) and task in (None, its_task):
                values = points.setdefault((span.level.start_of(at), its_queue, its_task), {})
                values[counted] = values.get(counted, 0) + amount
        return [Point(*key, values) for key, values in sorted(points.items())]

    @_atomic
    def totals(self) -> dict[str, int]:
        counted: Counter[str] = Counter()
        for (_, _, _, _, name), amount in self._measures.items():
            counted[name] += amount
        return dict(counted)

    # --- wake-up --------------------------------------------------------------------------------------------------

    def wait(self, timeout: float) -> bool:
        with self._woken:
            return self._woken.wait_for(lambda: self._wakes != self._looked, timeout)

    def interrupt(self) -> None:
        with self._woken:
            self._wakes += 1
            self._woken.notify_all()

    def _wake(self) -> None:
        self._wakes += 1
        self._woken.notify()

    # --- keeping --------------------------------------------------------------------------------------------------

    def _keep(self, before: Job | None, change: Changed, ran: int | None = None) -> Job:
        """Store a changed job with its events and measures; wake somebody when it came into line."""
        job = change.job
        self._jobs[job.id] = job
        for event in change.events:
            self._record(event)
        measures: Measures = {}
        measure(measures, before, job, ran)
        at = MINUTES.start_of(self.now())
        for (queue, task, counted), amount in measures.items():
            key = (MINUTES.name, at, queue, task, counted)
            self._measures[key] = self._measures.get(key, 0) + amount
        if has_failed(before, job):
            self._count_failure(job)
        is_in_line = before is not None and (before.state, before.queue) == (QUEUED, job.queue)
        if job.state is QUEUED and (not is_in_line or (before is not None and job.rank < before.rank)):
            self._wake()
        return job

    def _count_failure(self, job: Job) -> None:
        if job.error is None or job.cause is None:
            return
        failure, now = Failure.from_json(job.error), self.now()
        old = self._failures.get(job.cause)
        self._failures[job.cause] = FailureGroup(
            cause=job.cause,
            task=job.task,
            pattern=failure.pattern(),
            place=failure.place,
            number=old.number + 1 if old else 1,
            first_at=old.first_at if old else now,
            last_at=now,
            last_job_id=job.id,
        )

    def _record(self, event: Event) -> None:
        self._event_id += 1
        self._events.append(replace(event, id=self._event_id))

    def _record_about(
        self, subject: Subject, kind: Kind, *, queue: str | None = None, owner: str | None = None, **facts: Any
    ) -> None:
        told = {name: value for name, value in facts.items() if value is not None}
        self._record(Event(kind, self.now(), subject, queue=queue, owner=owner, data=told or None))


def _event_fits(event: Event, where: EventFilter) -> bool:
    return (
        where.job_id in (None, event.job_id)
        and where.subject in (None, event.subject)
        and where.kind in (None, event.kind)
        and where.queue in (None, event.queue)
        and where.owner in (None, event.owner)
        and (where.after is None or event.id > where.after)
        and (where.before is None or event.id < where.before)
    )
