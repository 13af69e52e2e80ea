"""What the storage tests build upon: jobs in any state, workers, and short words for what a test looks at."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar

from packhorse.core.clock import HOUR, SECOND
from packhorse.core.event import Event, Kind
from packhorse.core.job import (
    ABORTED,
    COMPLETED,
    DEAD,
    QUEUED,
    RESERVED,
    RETRYING,
    RUNNING,
    SCHEDULED,
    Job,
    NewJob,
    Reason,
    State,
    Token,
    UniqueLock,
)
from packhorse.core.outcome import Completed, Failed, Failure, Outcome, Snoozed, Stopped, Verdict
from packhorse.storage.contract import Storage
from packhorse.storage.records import CheckIn, EventFilter, Filter, LogLine, Tally, WorkerInfo

LEASE = 15 * SECOND
WORKER = "ann"
FAILURE = Failure("ValueError", "no such address", place="mail.py:12")

R = TypeVar("R")
Test = Callable[..., None]
_numbers = itertools.count(1)


# --- cases ----------------------------------------------------------------------------------------------------------


def cases(names: str | tuple[str, ...], values: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test once for each value, all on the same storage. A failure names its case.

    Use it as `pytest.mark.parametrize`, where one case does not disturb the next: the storage is set up once.
    """
    names = (names,) if isinstance(names, str) else names
    rows = [dict(zip(names, value if len(names) > 1 else (value,), strict=True)) for value in values]

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run_all(**fixtures: Any) -> None:
            for row in rows:
                try:
                    test(**fixtures, **row)
                except BaseException as error:
                    error.add_note("in the case " + ", ".join(f"{name}={value}" for name, value in row.items()))
                    raise

        signature = inspect.signature(test)
        remaining = [each for name, each in signature.parameters.items() if name not in names]
        setattr(run_all, "__signature__", signature.replace(parameters=remaining))  # noqa: B010 - mypy knows no such name
        return run_all

    return decorate


# --- jobs -----------------------------------------------------------------------------------------------------------


def new_job(job_id: str | None = None, *, queue: str = "mail", task: str = "send", **options: Any) -> NewJob:
    return NewJob(id=job_id or f"job-{next(_numbers):06}", task=task, queue=queue, **options)


def new_jobs(number: int, **options: Any) -> list[NewJob]:
    return [new_job(**options) for _ in range(number)]


def unique(key: str = "k", **options: Any) -> UniqueLock:
    return UniqueLock(key, **options)


def add(storage: Storage, job_id: str | None = None, **options: Any) -> Job:
    """A new job, as it is stored."""
    new = new_job(job_id, **options)
    storage.enqueue([new])
    return stored(storage, new.id)


def stored(storage: Storage, job_id: str) -> Job:
    job = storage.get(job_id)
    assert job is not None, f"job {job_id} is gone"
    return job


def in_state(
    storage: Storage, state: State, *, owner: str = WORKER, begun: bool = False, lived: bool = False, **options: Any
) -> Job:
    """A job in this state. With `begun`, also a scheduled or queued one has an attempt behind it, and so a token;
    with `lived`, it has failed once before."""
    options.setdefault("queue", f"line-{next(_numbers)}")  # of its own, so that reserving it takes no other
    if state is SCHEDULED and not (begun or lived):
        return add(storage, delay=HOUR, **options)
    job = add(storage, **options)
    if lived:
        token = run(storage, job, owner).token
        storage.check_in([CheckIn(token, "half way", 50, "pages")])
        job = finish(storage, Failed(token, FAILURE, retry_in=0))
    if state is QUEUED and not begun:
        return job
    if state is RESERVED:
        return take(storage, job, owner)
    return _brought_on(storage, run(storage, job, owner), state)


def _brought_on(storage: Storage, job: Job, state: State) -> Job:
    """A running job, one step later."""
    if state is QUEUED:
        assert storage.release([job.token], "handed back") == [Verdict.ACCEPTED]
    elif state is not RUNNING:
        outcome: dict[State, Outcome] = {
            SCHEDULED: Snoozed(job.token, delay=HOUR),
            RETRYING: Failed(job.token, FAILURE, retry_in=HOUR),
            COMPLETED: Completed(job.token, result='"sent"'),
            DEAD: Failed(job.token, FAILURE),
            ABORTED: Stopped(job.token, Reason.ABORTED),
        }
        finish(storage, outcome[state])
    job = stored(storage, job.id)
    assert job.state is state
    return job


def in_every_state(storage: Storage, **options: Any) -> dict[State, Job]:
    return {state: in_state(storage, state, **options) for state in State}


# --- work -----------------------------------------------------------------------------------------------------------


def join(storage: Storage, owner: str = WORKER) -> str:
    if owner not in {worker.id for worker in storage.workers()}:
        storage.join(WorkerInfo(id=owner))
    return owner


def take(storage: Storage, job: Job, owner: str = WORKER) -> Job:
    """The job, which is the next of its queue, in this worker's hands."""
    (taken,) = storage.reserve(join(storage, owner), {job.queue: 1}, 1)
    assert taken.id == job.id
    return taken


def run(storage: Storage, job: Job, owner: str = WORKER) -> Job:
    token = take(storage, job, owner).token
    assert storage.start([token]) == [Verdict.ACCEPTED]
    return stored(storage, job.id)


def finish(storage: Storage, outcome: Outcome) -> Job:
    assert storage.finish([outcome]) == [Verdict.ACCEPTED]
    return stored(storage, outcome.token.job_id)


def reserve_ids(storage: Storage, *queues: str, limit: int = 100, owner: str = WORKER) -> list[str]:
    return ids(storage.reserve(join(storage, owner), dict.fromkeys(queues or ("mail",), 1), limit))


def last_token(job: Job) -> Token:
    """The token of the present or the last attempt."""
    return Token(job.id, job.owner or job.last_owner or WORKER, job.fence)


def at_once(calls: Sequence[Callable[[], R]]) -> list[R]:
    """Make all calls at the same time, each in its own thread; their answers."""
    start = Barrier(len(calls))

    def call(wanted: Callable[[], R]) -> R:
        start.wait()
        return wanted()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(call, calls))


# --- looking --------------------------------------------------------------------------------------------------------


def ids(jobs: Iterable[Job]) -> list[str]:
    return [job.id for job in jobs]


def history(storage: Storage, job_id: str) -> list[Event]:
    return storage.events(EventFilter(job_id=job_id), limit=1_000)


def kinds(storage: Storage, job_id: str) -> list[Kind]:
    return [event.kind for event in history(storage, job_id)]


def snapshot(storage: Storage, job_id: str) -> tuple[Job | None, list[Event], list[LogLine]]:
    """All that is known of a job, to see that nothing changed."""
    return storage.get(job_id), history(storage, job_id), storage.log_lines(job_id)


def find_all(storage: Storage, where: Filter | None = None, *, limit: int = 50) -> list[Job]:
    """Every page, one after the other."""
    where, found, cursor = where or Filter(), [], None
    for _ in range(10_000):
        page = storage.find(where, cursor=cursor, limit=limit)
        found += page.jobs
        cursor = page.next
        if cursor is None:
            return found
    raise AssertionError("the pages do not end")


def recount(storage: Storage) -> list[Tally]:
    """The tallies, counted from the jobs themselves."""
    numbers: dict[tuple[str, str, State], int] = {}
    for job in find_all(storage, limit=1_000):
        key = (job.queue, job.task, job.state)
        numbers[key] = numbers.get(key, 0) + 1
    return [Tally(*key, number=number) for key, number in sorted(numbers.items())]


def tallies(storage: Storage) -> list[Tally]:
    told = [tally for tally in storage.tallies() if tally.number]
    return sorted(told, key=lambda tally: (tally.queue, tally.task, tally.state))
