"""What operators do: change jobs, order workers, silence failures, prune. The command line, the API and the pages call
these functions.

A change of many jobs has two halves. First the jobs are selected, each with the version that was seen. Then the action
is applied in batches; a job that has changed since it was seen is skipped.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from packhorse.core.clock import DAY, SECOND
from packhorse.core.errors import BadValue
from packhorse.core.event import IN_PROGRAM, NOT_IN_PROGRAM, ForemanAction, ForemanOrder, Kind, Subject
from packhorse.core.job import HELD, Job, Operation, State, is_legal
from packhorse.core.settings import Settings
from packhorse.core.task import TaskOptions, check_name
from packhorse.monitor.filters import find_all
from packhorse.monitor.stacks import stacks_of
from packhorse.storage import BATCH, Storage
from packhorse.storage.records import (
    ActionResult,
    EventFilter,
    FailureGroup,
    Filter,
    JobVersion,
    Page,
    Pruned,
    Retention,
    WorkerInfo,
)

BATCH_SIZE = 500
"""Jobs in one write: many enough to be fast, few enough that Ctrl-C takes effect soon."""
MAX_WORKERS = MAX_SLOTS = 1_024
_EXAMPLES = 3
_MAX_RECENT_ORDERS = 100
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.2


# --- actions on jobs --------------------------------------------------------------------------------------------------


class JobAction:
    """What to do to jobs: an operation and, where it sets one, the new priority or queue. `new_queue` allows a queue
    that does not exist yet; the caller checks it. `states` are those in which the operation is legal."""

    def __init__(
        self,
        operation: Operation,
        *,
        priority: int | None = None,
        queue: str | None = None,
        new_queue: bool = False,
    ) -> None:
        self.operation = operation
        self.priority = priority
        self.queue = queue
        self.new_queue = new_queue
        self.states = frozenset(state for state in State if is_legal(operation, state))

    def check(self) -> list[Any]:
        """Return the values that the storage takes: the priority, the queue, or nothing. Raise BadValue if one is
        missing or not valid, or if the operation is not for operators."""
        match self.operation:
            case Operation.ABORT | Operation.FORCE_START | Operation.RETRY | Operation.DELETE:
                return []
            case Operation.SET_PRIORITY:
                if self.priority is None:
                    raise BadValue("the priority is missing", hint='e.g. {"priority": 7}')
                return [TaskOptions().with_(priority=self.priority).priority]
            case Operation.SET_QUEUE:
                if not self.queue:
                    raise BadValue("the queue is missing", hint='e.g. {"queue": "slow"}')
                return [check_name(self.queue, "queue name")]
        raise BadValue(
            f"{self.operation} is not an action on jobs",
            hint="abort, force_start, retry, set_priority, set_queue or delete",
        )

    @property
    def verb(self) -> str:
        """As in "will not ... 3 jobs"."""
        match self.operation:
            case Operation.SET_PRIORITY:
                return f"set priority {self.priority} of"
            case Operation.SET_QUEUE:
                return f"move to {self.queue}"
        return str(self.operation).replace("_", " ")

    @property
    def done(self) -> str:
        """As in "3 jobs ..."."""
        match self.operation:
            case Operation.ABORT:
                return "aborted"
            case Operation.FORCE_START:
                return "forced to start"
            case Operation.RETRY:
                return "queued again"
            case Operation.DELETE:
                return "deleted"
            case Operation.SET_PRIORITY:
                return f"moved to priority {self.priority}"
        return f"moved to {self.queue}"

    def legal(self, where: Filter) -> Filter:
        """Narrow the filter to the jobs in a state that allows the action. Raise BadValue if there can be none."""
        return narrow_states(where, self.states, self.verb)

    def apply_to_one(self, handle: Any, *, by: str | None) -> None:
        """Apply it to one job handle. Raise JobNotFound, WrongState or NotUnique."""
        getattr(handle, self.operation.value)(*self.check(), by=by)

    def apply(self, storage: Storage, seen: Mapping[str, JobVersion], *, by: str | None) -> list[ActionResult]:
        """Apply it to these jobs, in one write; skip those that have changed since they were seen."""
        change: Callable[..., list[ActionResult]] = getattr(storage, self.operation.value)
        return change(list(seen), *self.check(), by=by, seen=list(seen.values()))


class ForcedDelete(JobAction):
    """Delete jobs in any state: abort them, wait up to `timeout` microseconds for the running ones, then delete."""

    def __init__(self, timeout: int) -> None:
        super().__init__(Operation.DELETE)
        self.states = frozenset(State)
        self._timeout = timeout

    def apply_to_one(self, handle: Any, *, by: str | None) -> None:
        handle.delete(force=True, timeout=self._timeout / SECOND, by=by)

    def apply(self, storage: Storage, seen: Mapping[str, JobVersion], *, by: str | None) -> list[ActionResult]:
        """Waiting jobs are aborted too, so that none starts in between."""
        results = storage.abort(list(seen), by=by, seen=list(seen.values()))
        held = stopped = [result.job_id for result in results if result.changed]
        for _ in poll(self._timeout):
            held = [job.id for job in storage.get_many(held) if job.state in HELD]
            if not held:
                break
        versions = {job.id: JobVersion.of(job) for job in storage.get_many(stopped)}
        return super().apply(storage, {**seen, **versions}, by=by)


def narrow_states(where: Filter, states: frozenset[State], verb: str) -> Filter:
    """Narrow a filter to these states and drop its order. Raise BadValue if no state is left."""
    possible = where.states & states if where.states else states
    if not possible:
        wanted, allowed = ", ".join(sorted(where.states)), ", ".join(sorted(states))
        raise BadValue(f"cannot {verb} jobs that are {wanted}", hint=f"only those that are {allowed}")
    return replace(where, states=possible, order=None)


# --- jobs that were selected ------------------------------------------------------------------------------------------


class JobSelection(NamedTuple):
    """The jobs that an action is for, each with the version that was seen. `examples` are the first of them; `missing`
    counts the ids that are not in the storage."""

    seen: dict[str, JobVersion]
    examples: list[Job]
    missing: int = 0

    @property
    def ids(self) -> list[str]:
        return list(self.seen)

    @classmethod
    def of(cls, jobs: Iterable[Job], missing: int = 0) -> JobSelection:
        seen: dict[str, JobVersion] = {}
        examples: list[Job] = []
        for job in jobs:
            seen[job.id] = JobVersion.of(job)
            if len(examples) < _EXAMPLES:
                examples.append(job)
        return cls(seen, examples, missing)

    @classmethod
    def union(cls, parts: Iterable[JobSelection]) -> JobSelection:
        """The jobs of several selections as one."""
        every = list(parts)
        seen = {job_id: version for part in every for job_id, version in part.seen.items()}
        examples = [job for part in every for job in part.examples][:_EXAMPLES]
        return cls(seen, examples, sum(part.missing for part in every))


def select_matching(storage: Storage, where: Filter) -> JobSelection:
    """Select every job that matches."""
    return JobSelection.of(find_all(storage, where))


def select_ids(storage: Storage, ids: Sequence[str]) -> JobSelection:
    """Select the jobs with these whole ids."""
    jobs = [job for start in range(0, len(ids), BATCH) for job in storage.get_many(ids[start : start + BATCH])]
    return JobSelection.of(jobs, len(ids) - len(jobs))


def apply_in_batches(
    storage: Storage, action: JobAction, selection: JobSelection, *, by: str | None
) -> Iterator[list[ActionResult]]:
    """Apply the action batch by batch; yield the results of each batch."""
    rest = iter(selection.seen.items())
    while batch := dict(islice(rest, BATCH_SIZE)):
        yield action.apply(storage, batch, by=by)


# --- results ----------------------------------------------------------------------------------------------------------


def outcome_of(action: JobAction, result: ActionResult) -> str:
    """Classify a result: changed, requested, stale, twin, already, gone, or the state that forbids the action."""
    if result.changed:
        is_requested = action.operation is Operation.ABORT and result.state in HELD
        return "requested" if is_requested else "changed"
    if result.stale:
        return "stale"
    if result.conflict:
        return "twin"
    if action.operation is Operation.SET_QUEUE and result.state in action.states:
        return "already"
    return result.state or "gone"


def is_success(outcome: str) -> bool:
    """Is the job as the operator wants it, or on its way there?"""
    return outcome in ("changed", "requested", "already")


def outcome_text(action: JobAction, outcome: str) -> str:
    """Say an outcome in words, as in "3 aborted, 1 skipped: completed"."""
    words = {
        "changed": action.done,
        "requested": "asked to stop",
        "already": f"already in {action.queue}",
        "gone": "not found",
        "stale": "skipped: changed meanwhile",
        "twin": "skipped: a unique twin waits",
    }
    return words.get(outcome, f"skipped: {outcome}")


# --- many jobs over HTTP: as long as a request may take ---------------------------------------------------------------


class Progress(msgspec.Struct):
    """How far an action on many jobs has come. `next` continues it; None: all is done."""

    changed: int = 0
    skipped: dict[str, int] = {}
    next: str | None = None


def apply_to_matching(
    storage: Storage,
    action: JobAction,
    where: Filter,
    *,
    find: Callable[[Filter, str | None, int], Page],
    seen_at: int,
    cursor: str | None,
    budget: float,
    by: str | None,
) -> Progress:
    """Apply the action to the jobs that match and have not changed since `seen_at`, for `budget` seconds. `find`
    reads a page of them."""
    counts: Counter[str] = Counter()
    deadline = time.monotonic() + budget
    while True:
        page = find(where, cursor, BATCH_SIZE)
        _apply_to_unchanged(storage, action, page.jobs, seen_at, counts, by)
        cursor = page.next
        if cursor is None or time.monotonic() > deadline:
            return _progress(counts, cursor)


def apply_to_jobs(
    storage: Storage, action: JobAction, jobs: Sequence[Job], *, missing: int, seen_at: int | None, by: str | None
) -> Progress:
    """Apply the action to these jobs, or to those that have not changed since `seen_at`."""
    counts: Counter[str] = Counter(gone=missing)
    _apply_to_unchanged(storage, action, jobs, seen_at, counts, by)
    return _progress(counts, None)


def _apply_to_unchanged(
    storage: Storage, action: JobAction, jobs: Sequence[Job], seen_at: int | None, counts: Counter[str], by: str | None
) -> None:
    unchanged = [job for job in jobs if seen_at is None or _changed_at(job) <= seen_at]
    counts["stale"] += len(jobs) - len(unchanged)
    if unchanged:
        results = action.apply(storage, JobSelection.of(unchanged).seen, by=by)
        counts.update(_plain_outcome(result) for result in results)


def _changed_at(job: Job) -> int:
    """When the job changed; signs of life of a running job do not count."""
    return (job.started_at if job.state is State.RUNNING else None) or job.updated_at


def _plain_outcome(result: ActionResult) -> str:
    if result.changed:
        return "changed"
    return "stale" if result.stale else "twin" if result.conflict else result.state or "gone"


def _progress(counts: Counter[str], cursor: str | None) -> Progress:
    words = {"stale": "changed since it was seen", "twin": "a unique twin waits"}
    changed = counts.pop("changed", 0)
    return Progress(changed, {words.get(name, name): number for name, number in counts.items() if number}, cursor)


# --- workers ----------------------------------------------------------------------------------------------------------


class SentOrder(NamedTuple):
    """An order, the worker or foreman that it is for, the foreman that carries it out, and its number."""

    order: ForemanOrder
    worker: WorkerInfo
    foreman: str
    number: int


def send_order(storage: Storage, worker: WorkerInfo, order: ForemanOrder, *, by: str | None) -> SentOrder:
    """Leave an order with the foreman of this worker, or with this foreman. Raise BadValue if none can take it."""
    is_foreman = worker.subject is Subject.FOREMAN
    if not is_foreman:
        if order.do is ForemanAction.SCALE:
            raise BadValue(f"{worker.id} is a worker, and only a foreman has workers", hint="scale its foreman")
        order = ForemanOrder(order.do, worker=worker.id, now=order.now)
    foreman = worker.id if is_foreman else worker.foreman
    if order.do in NOT_IN_PROGRAM:
        known = worker if is_foreman else next((each for each in storage.workers() if each.id == foreman), None)
        check_accepts(known, order.do)
    number = None
    if foreman is not None and storage.order(foreman, order, by=by):
        number = _number_of(storage, foreman, order, by)
    if foreman is None or number is None:
        raise BadValue(f"{worker.id[:40]} has no foreman and cannot receive orders", hint="it may have exited")
    return SentOrder(order, worker, foreman, number)


def _number_of(storage: Storage, foreman: str, order: ForemanOrder, by: str | None) -> int | None:
    """The id of the event that stores the order. Others may send theirs at the same time: ours is the newest equal
    one."""
    where = EventFilter(subject=Subject.FOREMAN, kind=Kind.ORDERED, owner=foreman)
    newest = storage.events(where, limit=_MAX_RECENT_ORDERS, newest_first=True)
    return next((event.id for event in newest if event.data == order.facts(by)), None)


def check_accepts(foreman: WorkerInfo | None, do: ForemanAction) -> None:
    """Raise BadValue if this foreman is a pool in a program and cannot follow such an order."""
    if foreman is not None and do in NOT_IN_PROGRAM and foreman.info.get(IN_PROGRAM):
        raise BadValue(
            f"{foreman.host}:{foreman.pid} is a pool in a program, which an order cannot {do.value}",
            hint="restart its program; a pool follows quiet, stop and stacks",
        )


def open_orders(workers: Iterable[WorkerInfo], sent: Iterable[SentOrder]) -> list[SentOrder]:
    """The orders that their foremen have not followed yet. A foreman that has exited has followed."""
    reports = {worker.id: worker.report for worker in workers}
    return [each for each in sent if each.foreman in reports and _last_order(reports[each.foreman]) < each.number]


def _last_order(report: Mapping[str, Any]) -> int:
    number = report.get("order")
    return number if isinstance(number, int) else 0


def scale_order(least: int | None, most: int | None, slots: int | None = None) -> ForemanOrder:
    """The order to keep so many workers with so many slots each. Raise BadValue if the numbers make no sense."""
    if (least is None) != (most is None) or (least is None and slots is None):
        raise BadValue("missing least and most, or slots", hint="give least and most, or slots, or all three")
    if least is not None and most is not None and not 0 <= least <= most <= MAX_WORKERS:
        raise BadValue(
            f"{least} to {most} is not a valid number of workers", hint=f"0 to {MAX_WORKERS:,}, the smaller first"
        )
    if slots is not None and not 1 <= slots <= MAX_SLOTS:
        raise BadValue(f"a worker cannot have {slots:,} slots", hint=f"1 to {MAX_SLOTS:,}")
    return ForemanOrder(ForemanAction.SCALE, least=least, most=most, slots=slots)


def ask_for_stacks(storage: Storage, worker: WorkerInfo, *, by: str | None) -> SentOrder:
    """Ask this worker, or all workers of this foreman, for their stacks."""
    return send_order(storage, worker, ForemanOrder(ForemanAction.STACKS), by=by)


def workers_of(worker: WorkerInfo, workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    """The workers that an order to this one concerns: itself, or those of this foreman."""
    if worker.subject is Subject.FOREMAN:
        return [each for each in workers if each.foreman == worker.id]
    return [each for each in workers if each.id == worker.id]


def have_answered(workers: Sequence[WorkerInfo], number: int) -> bool:
    """Have all of these reported their stacks since the order of this number?"""
    return all((stacks := stacks_of(worker)) is not None and stacks.order >= number for worker in workers)


def poll(timeout: int | None) -> Iterator[None]:
    """Yield for each look at the storage: soon at first, then every fifth of a second. End after `timeout`
    microseconds, with one last look; None never ends."""
    deadline = None if timeout is None else time.monotonic() + timeout / SECOND
    pause = _FIRST_PAUSE
    while True:
        yield
        left = pause if deadline is None else deadline - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(pause, left))
        pause = min(pause * 1.3, _LONGEST_PAUSE)


# --- failures ---------------------------------------------------------------------------------------------------------


class Silence(NamedTuple):
    """How long a cause of failures is silenced: for a duration, until another code version fails, or whichever comes
    first. Neither: it is not silenced."""

    duration: int | None = None
    version: str | None = None


def silence(
    storage: Storage, group: FailureGroup, duration: int | None, *, until_next_version: bool, by: str | None
) -> Silence:
    """List the failures of this cause below the others: for the duration, for a day if nothing is said. They are still
    counted."""
    version = group.known_version() if until_next_version else None
    chosen = Silence(DAY if duration is None and version is None else duration, version)
    storage.silence_failure(group.cause, chosen.duration, version=chosen.version, by=by)
    return chosen


def unsilence(storage: Storage, group: FailureGroup, *, by: str | None) -> bool:
    """List them with the others again. Return False if the failures are gone."""
    return storage.silence_failure(group.cause, None, by=by)


# --- retention --------------------------------------------------------------------------------------------------------


def retention(settings: Settings) -> Retention:
    """How long the settings keep things."""
    return Retention(
        completed=settings.keep_completed,
        dead=settings.keep_dead,
        aborted=settings.keep_aborted,
        events=settings.keep_events,
        clients=settings.client_timeout,
    )


def prune(storage: Storage, keep: Retention) -> Iterator[Pruned]:
    """Remove what is older than its retention, batch by batch; yield the sums so far, the last one without `more`."""
    jobs = events = clients = 0
    while True:
        batch = storage.prune(keep)
        jobs, events, clients = jobs + batch.jobs, events + batch.events, clients + batch.clients
        yield Pruned(jobs, events, clients, batch.more)
        if not batch.more:
            return
