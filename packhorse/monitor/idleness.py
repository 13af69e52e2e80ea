"""Idleness: who is alive and takes no jobs, why, and what has them go on. Pure, from their own reports.

`why`, `status`, `doctor`, `check` and the web ask it. A worker that still beats takes nothing if it, or its foreman,
was told to be quiet or to stop, or if its foreman keeps no workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from packhorse.core.event import Subject
from packhorse.monitor.presence import is_alive
from packhorse.storage.records import WorkerInfo


class Idle(Enum):
    """Why a foreman takes no jobs: in words for one and for many, and the command that ends it."""

    QUIET = ("is quiet: it takes no jobs", "are quiet: they take no jobs", "restart")
    SCALED = ("keeps no workers", "keep no workers", "scale 1")
    STOPPING = ("is stopping: it takes no more jobs", "are stopping: they take no more jobs", None)
    UNHEALTHY = ("cannot start its workers", "cannot start their workers", None)

    def __init__(self, one: str, many: str, remedy: str | None) -> None:
        self.one = one
        self.many = many
        self.remedy = remedy


class Idler(NamedTuple):
    """A foreman that takes no jobs."""

    foreman: WorkerInfo
    idle: Idle


def idlers(workers: Sequence[WorkerInfo], now: int, lease: int) -> list[Idler]:
    """The foremen among these that are alive and take no jobs."""
    found = [(each, _idle(each)) for each in workers if each.subject is Subject.FOREMAN and is_alive(each, now, lease)]
    return [Idler(foreman, idle) for foreman, idle in found if idle is not None]


def _idle(foreman: WorkerInfo) -> Idle | None:
    match foreman.report.get("state"):
        case "quiet":
            return Idle.QUIET
        case "stopping":
            return Idle.STOPPING
        case "unhealthy":
            return Idle.UNHEALTHY
    return Idle.SCALED if foreman.report.get("max") == 0 else None


def takers(workers: Sequence[WorkerInfo], now: int, lease: int) -> list[WorkerInfo]:
    """The workers among these that are alive and take jobs."""
    idle = {each.foreman.id for each in idlers(workers, now, lease)}
    alive = [each for each in workers if each.subject is Subject.WORKER and is_alive(each, now, lease)]
    return [worker for worker in alive if worker.foreman not in idle and not is_quiet(worker)]


def is_quiet(worker: WorkerInfo) -> bool:
    """Has this worker said that it takes no more jobs?"""
    return worker.report.get("state") == "quiet"


def quiet_text(quiet: Sequence[WorkerInfo]) -> str:
    """That these workers, all that there are, take no jobs, and what helps."""
    if len(quiet) > 1:
        return f"all {len(quiet)} workers that could run it are quiet: they take no jobs"
    (only,) = quiet
    place = f"{only.host}:{only.pid}"
    restart = f"; `packhorse restart {place}` replaces it" if only.foreman else ""
    return f"the only worker that could run it, {place}, is quiet: it takes no jobs{restart}"


def idle_text(idle: Sequence[Idler]) -> str:
    """That these take no jobs: "the foreman mule:11 is quiet: it takes no jobs"."""
    if len(idle) == 1:
        (only,) = idle
        problem = only.foreman.report.get("problem") if only.idle is Idle.UNHEALTHY else None
        return f"the foreman {_place(only)} {only.idle.one}{f': {problem}' if problem else ''}"
    kinds = [each for each in Idle if any(one.idle is each for one in idle)]
    if len(kinds) == 1:
        return f"all {len(idle)} foremen {kinds[0].many}"
    numbers = [(sum(one.idle is each for one in idle), each) for each in kinds]
    told = [f"{number} {(each.one if number == 1 else each.many).partition(':')[0]}" for number, each in numbers]
    return f"none of the {len(idle)} foremen takes jobs: {', '.join(told)}"


def remedy(idle: Sequence[Idler]) -> str | None:
    """The command that has them go on; None: no order to them does."""
    remedies = [each.remedy for each in Idle if each.remedy and any(one.idle is each for one in idle)]
    if not remedies:
        return None
    return f"packhorse {remedies[0]} {_place(idle[0]) if len(idle) == 1 else '--all'}"


def _place(idler: Idler) -> str:
    return f"{idler.foreman.host}:{idler.foreman.pid}"
