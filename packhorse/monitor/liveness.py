"""Liveness: which foremen and workers are present, which are silent, which take no jobs and why.

Everything here is computed from stored records and heartbeats, so the web, the API and the command line agree. The
record of a killed process stays until a foreman takes its jobs back, and there may be no foreman. So a process that has
been silent for longer than its lease and a grace period counts as gone: lists leave it out and show its jobs
separately. A process that was only frozen returns with its next heartbeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from packhorse.core.event import Subject
from packhorse.core.job import Job
from packhorse.monitor.served_queues import serves
from packhorse.monitor.text import count_text
from packhorse.storage.records import WorkerInfo

_GRACE = 5  # a fifth of the lease: a silent process is listed that much longer


class Presence(NamedTuple):
    """The processes that are present, and those that are gone without a word."""

    here: list[WorkerInfo]
    gone: list[WorkerInfo]


class ProcessGroup(NamedTuple):
    """A foreman that is gone, with its workers; or a worker without a foreman."""

    chief: WorkerInfo
    crew: list[WorkerInfo]

    @property
    def silent_since(self) -> int:
        """The time of the latest heartbeat of any of them."""
        return max(each.beat_at for each in self.everybody)

    @property
    def everybody(self) -> list[WorkerInfo]:
        return [self.chief, *self.crew]

    def held(self, holds: Mapping[str | None, int]) -> int:
        """Sum the jobs that they hold."""
        return sum(holds.get(each.id, 0) for each in self.everybody)


def is_alive(process: WorkerInfo, now: int, lease: int) -> bool:
    """Was the last heartbeat within the lease? The caller's `lease` counts if it is longer than that of the process."""
    return now - process.beat_at <= process.lease_for(lease)


def busy_slots(workers: Iterable[WorkerInfo], *, running: int, held: int) -> int:
    """How many slots of these workers are busy. They hold `held` jobs, of which the storage knows `running` to run.

    Heartbeats report busy slots, because the storage does not see short jobs run. A heartbeat may be a few seconds old,
    so it counts for no more jobs than the workers hold.
    """
    slots, reported = 0, 0
    for worker in workers:
        busy = worker.report.get("busy")
        slots += worker.concurrency
        reported += min(busy, worker.concurrency) if isinstance(busy, int) else worker.concurrency
    return min(slots, held, max(running, reported))


def started_job_ids(workers: Iterable[WorkerInfo]) -> set[str]:
    """The jobs that were running in these workers at their last heartbeat."""
    entries = [entry for worker in workers for entry in _list_of(worker.report.get("running"))]
    return {entry["job_id"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("job_id"), str)}


def _list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def is_gone(process: WorkerInfo, now: int, lease: int) -> bool:
    """Has it been silent for so long that it counts as gone?"""
    lease = process.lease_for(lease)
    return now - process.beat_at > lease + lease // _GRACE


def presence_of(workers: Iterable[WorkerInfo], now: int, lease: int) -> Presence:
    """Separate the processes that are present, perhaps silent for a moment, from those that are gone."""
    found = Presence([], [])
    for each in workers:
        (found.gone if is_gone(each, now, lease) else found.here).append(each)
    return found


def group_processes(gone: Sequence[WorkerInfo]) -> list[ProcessGroup]:
    """Group the processes that are gone, each foreman with its workers; the latest to fall silent come first."""
    lost = {each.id: ProcessGroup(each, []) for each in gone if each.subject is Subject.FOREMAN}
    for each in gone:
        if each.id in lost:
            continue
        if each.foreman in lost:
            lost[each.foreman].crew.append(each)
        else:
            lost[each.id] = ProcessGroup(each, [])
    return sorted(lost.values(), key=lambda each: (-each.silent_since, each.chief.id))


def group_text(lost: ProcessGroup) -> str:
    """Name the processes, as in "the foreman mule:11 and its 2 workers"."""
    crew = f" and its {count_text(len(lost.crew), 'worker')}" if len(lost.crew) > 1 else " and its worker"
    return f"the {lost.chief.subject} {lost.chief.host}:{lost.chief.pid}{crew if lost.crew else ''}"


def has_free_slot(here: Iterable[WorkerInfo], job: Job) -> bool:
    """Did a worker that serves the job's queue have a free slot at its last heartbeat?"""
    return any(_is_free(worker) for worker in here if serves(worker, job.queue, (job.task,)))


def _is_free(worker: WorkerInfo) -> bool:
    busy, state = worker.report.get("busy", 0), worker.report.get("state", "working")
    return state == "working" and isinstance(busy, int) and busy < worker.concurrency


# --- idle foremen and workers -----------------------------------------------------------------------------------------


class IdleReason(Enum):
    """Why a foreman takes no jobs: in words for one and for many, and the command that changes that."""

    QUIET = ("is quiet: it takes no jobs", "are quiet: they take no jobs", "restart")
    SCALED = ("keeps no workers", "keep no workers", "scale 1")
    STOPPING = ("is stopping: it takes no more jobs", "are stopping: they take no more jobs", None)
    UNHEALTHY = ("cannot start its workers", "cannot start their workers", None)

    def __init__(self, one: str, many: str, remedy: str | None) -> None:
        self.one = one
        self.many = many
        self.remedy = remedy


class IdleForeman(NamedTuple):
    """A foreman that takes no jobs."""

    foreman: WorkerInfo
    idle: IdleReason


def idle_foremen(workers: Sequence[WorkerInfo], now: int, lease: int) -> list[IdleForeman]:
    """The foremen among these that are alive and take no jobs."""
    found = [(each, _idle(each)) for each in workers if each.subject is Subject.FOREMAN and is_alive(each, now, lease)]
    return [IdleForeman(foreman, idle) for foreman, idle in found if idle is not None]


def _idle(foreman: WorkerInfo) -> IdleReason | None:
    match foreman.report.get("state"):
        case "quiet":
            return IdleReason.QUIET
        case "stopping":
            return IdleReason.STOPPING
        case "unhealthy":
            return IdleReason.UNHEALTHY
    return IdleReason.SCALED if foreman.report.get("max") == 0 else None


def accepting_workers(workers: Sequence[WorkerInfo], now: int, lease: int) -> list[WorkerInfo]:
    """The workers among these that are alive and take jobs."""
    idle = {each.foreman.id for each in idle_foremen(workers, now, lease)}
    alive = [each for each in workers if each.subject is Subject.WORKER and is_alive(each, now, lease)]
    return [worker for worker in alive if worker.foreman not in idle and not is_quiet(worker)]


def is_quiet(worker: WorkerInfo) -> bool:
    """Does this worker report that it takes no more jobs?"""
    return worker.report.get("state") == "quiet"


def quiet_text(quiet: Sequence[WorkerInfo]) -> str:
    """Say that these workers, the only ones there are, take no jobs, and what helps."""
    if len(quiet) > 1:
        return f"all {len(quiet)} workers that could run it are quiet: they take no jobs"
    (only,) = quiet
    place = f"{only.host}:{only.pid}"
    restart = f"; `packhorse restart {place}` replaces it" if only.foreman else ""
    return f"the only worker that could run it, {place}, is quiet: it takes no jobs{restart}"


def idle_text(idle: Sequence[IdleForeman]) -> str:
    """Say that these foremen take no jobs, as in "the foreman mule:11 is quiet: it takes no jobs"."""
    if len(idle) == 1:
        (only,) = idle
        problem = only.foreman.report.get("problem") if only.idle is IdleReason.UNHEALTHY else None
        return f"the foreman {_place(only)} {only.idle.one}{f': {problem}' if problem else ''}"
    kinds = [each for each in IdleReason if any(one.idle is each for one in idle)]
    if len(kinds) == 1:
        return f"all {len(idle)} foremen {kinds[0].many}"
    numbers = [(sum(one.idle is each for one in idle), each) for each in kinds]
    counts = [f"{number} {(each.one if number == 1 else each.many).partition(':')[0]}" for number, each in numbers]
    return f"none of the {len(idle)} foremen takes jobs: {', '.join(counts)}"


def resume_command(idle: Sequence[IdleForeman]) -> str | None:
    """The command that resumes them; None if no order can."""
    remedies = [each.remedy for each in IdleReason if each.remedy and any(one.idle is each for one in idle)]
    if not remedies:
        return None
    return f"packhorse {remedies[0]} {_place(idle[0]) if len(idle) == 1 else '--all'}"


def _place(idler: IdleForeman) -> str:
    return f"{idler.foreman.host}:{idler.foreman.pid}"
