"""Is all well? What probes want to know: is the storage there and writable, is a foreman alive that takes jobs, does
nothing wait for too long? `packhorse check` and `/healthz` ask it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from packhorse.core.errors import StorageError
from packhorse.core.event import Subject
from packhorse.core.job import QUEUED, State
from packhorse.monitor.liveness import idle_foremen, idle_text, is_alive, resume_command
from packhorse.monitor.served_queues import tasks_by_queue, why_unserved
from packhorse.monitor.text import count_text, held_back_text, span_text
from packhorse.storage import Storage
from packhorse.storage.records import Filter, QueueInfo, WorkerInfo
from packhorse.storage.transfer import closed

_DELAYED = frozenset({State.SCHEDULED, State.RETRYING})


class Finding(NamedTuple):
    """One thing that was looked at, in a sentence."""

    name: str
    is_well: bool
    sentence: str


def look(storage: Storage, lease: int, max_age: int) -> Iterator[Finding]:
    """What there is to be found; `max_age` is how long the oldest waiting job may have waited. If the storage does not
    answer, that is all."""
    try:
        yield _storage(storage)
    except StorageError as error:
        why = f" ({error.why})" if error.why else ""
        yield Finding("storage", False, f"{error.what}{why}")
        return
    now, workers, queues = storage.now(), storage.workers(), storage.queues()
    lines = [queue for queue in queues if queue.oldest_queued_at is not None and not queue.is_paused]
    yield _foreman(workers, now, lease)
    yield from _served(storage, [each for each in workers if is_alive(each, now, lease)], lines, now, lease)
    oldest = _oldest(lines, now, max_age)
    yield oldest._replace(sentence=oldest.sentence + held_back_text(queues))
    yield overdue(storage, now, max_age)


def _storage(storage: Storage) -> Finding:
    storage.beat({})  # a write that changes nothing
    move = storage.move()
    if move is not None:
        return Finding("storage", False, closed(move).what)
    health = storage.health()
    problems = "".join(f"; {problem}" for problem in health.problems)
    return Finding("storage", True, f"the storage answers in {health.latency / 1000:.1f} ms and takes writes{problems}")


def _foreman(workers: Sequence[WorkerInfo], now: int, lease: int) -> Finding:
    """One that is alive is well if somebody takes jobs: one that was told to be quiet, that keeps no workers, or whose
    workers die as they start, leaves every job where it is."""
    foremen = [worker for worker in workers if worker.subject is Subject.FOREMAN]
    alive = [foreman for foreman in foremen if is_alive(foreman, now, lease)]
    if not foremen:
        return Finding("foreman", False, "no foreman is running")
    if not alive:
        silence = span_text(min(now - foreman.beat_at for foreman in foremen))
        return Finding("foreman", False, f"no foreman has given a sign of life for {silence}")
    number = "1 foreman" if len(alive) == 1 else f"{len(alive)} foremen"
    troubles = [*_idle(alive, now, lease), *(text for foreman in alive if (text := _dying(foreman)))]
    is_well = len(idle_foremen(alive, now, lease)) + sum(_dying(foreman) is not None for foreman in alive) < len(alive)
    return Finding("foreman", is_well, "; ".join([f"{number} alive", *troubles]))


def _idle(alive: Sequence[WorkerInfo], now: int, lease: int) -> Iterator[str]:
    """Who of these takes no jobs, and what has them go on."""
    found = idle_foremen(alive, now, lease)
    if len(found) == len(alive):
        order = resume_command(found)
        yield idle_text(found) + (f"; `{order}` has {'it' if len(found) == 1 else 'them'} go on" if order else "")
    else:
        yield from (idle_text([each]) for each in found)


def _dying(foreman: WorkerInfo) -> str | None:
    """That none of its workers lives, because they die as they start."""
    report = foreman.report
    if report.get("state") != "working" or report.get("online") or "next_start_in" not in report:
        return None
    problem = report.get("problem")
    return f"the foreman {foreman.host}:{foreman.pid} has no worker{f': {problem}' if problem else ''}"


def _served(
    storage: Storage, alive: Sequence[WorkerInfo], lines: Sequence[QueueInfo], now: int, lease: int
) -> Iterator[Finding]:
    """Jobs in a queue that none of the workers serves wait for ever. While there is no worker at all, a foreman starts
    some; and one that serves the queue may be about to start, so a while is allowed."""
    crew = [worker for worker in alive if worker.subject is Subject.WORKER]
    named = {queue for worker in crew for queue in worker.queues}
    late = [line for line in lines if line.name not in named and now - (line.oldest_queued_at or now) > lease]
    if not crew or not late:
        return
    tasks = tasks_by_queue(storage.tallies())
    for line in late:
        lack = why_unserved(crew, line.name, tasks.get(line.name, ()))
        if lack is not None:
            waits = count_text(line.counts.get(QUEUED, 0), "job waits", "jobs wait")
            yield Finding("served", False, f"{lack.what}; {waits}")


def _oldest(lines: Sequence[QueueInfo], now: int, max_age: int) -> Finding:
    if not lines:
        return Finding("oldest", True, "no job waits in line")
    oldest = min(lines, key=lambda queue: queue.oldest_queued_at or now)
    age = now - (oldest.oldest_queued_at or now)
    is_well = age <= max_age
    limit = "" if is_well else f"; {span_text(max_age)} is allowed"
    return Finding("oldest", is_well, f"the oldest waiting job, of {oldest.name}, has waited {span_text(age)}{limit}")


def overdue(storage: Storage, now: int, max_age: int) -> Finding:
    """Jobs that are due come into line only if somebody does the chores."""
    first = storage.find(Filter(states=_DELAYED), limit=1).jobs
    late = now - (first[0].due_at or now) if first else 0
    if late <= max_age:
        return Finding("due", True, "no job is overdue")
    return Finding("due", False, f"a job of {first[0].queue} has been due for {span_text(late)} and is not in line")
