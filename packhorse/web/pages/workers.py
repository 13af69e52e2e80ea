"""Workers: host, foreman, worker, slots; what each does just now and how it is."""

from __future__ import annotations

from typing import Any, NamedTuple

from packhorse.event import Subject
from packhorse.job import Job
from packhorse.storage.records import WorkerInfo
from packhorse.web.api.jobs import short_call
from packhorse.web.pages.page import Asked, Elsewhere, Shown, page
from packhorse.web.pages.words import safe
from packhorse.web.site import Call

_MOST_SHOWN = 50
_FIGURES = {"done": 0, "failed": 0, "rss": 0}


class Process(NamedTuple):
    """A worker or a foreman, and the jobs in its hands."""

    info: WorkerInfo
    is_alive: bool
    jobs: list[tuple[Job, str]]
    report: dict[str, Any]


class Crew(NamedTuple):
    """A foreman, if there is one, and its workers."""

    foreman: Process | None
    workers: list[Process]


@page("/workers", "workers")
def workers(call: Call, asked: Asked) -> Shown:
    """Every process, host by host."""
    now, held = call.reader.now(), call.reader.held()
    processes = [_process(call, worker, held, now) for worker in call.reader.workers()]
    hosts: dict[str, list[Crew]] = {}
    for crew in _crews(processes):
        first = crew.foreman or crew.workers[0]
        hosts.setdefault(first.info.host or "unknown host", []).append(crew)
    known = {worker.info.id for worker in processes}
    lost = [(job, safe(short_call(job))) for job in held if job.owner not in known]
    return Shown("workers.html", "Workers", {"hosts": hosts, "lost": lost, "clients": _clients(call)})


def _process(call: Call, worker: WorkerInfo, held: list[Job], now: int) -> Process:
    jobs = [(job, safe(short_call(job))) for job in held if job.owner == worker.id]
    jobs.sort(key=lambda pair: pair[0].started_at or now)
    figures = {name: value for name in _FIGURES if isinstance(value := worker.report.get(name, 0), int)}
    return Process(worker, call.reader.is_alive(worker, now), jobs[:_MOST_SHOWN], {**_FIGURES, **figures})


def _crews(processes: list[Process]) -> list[Crew]:
    foremen = {each.info.id: Crew(each, []) for each in processes if each.info.subject is Subject.FOREMAN}
    alone: list[Crew] = []
    for each in processes:
        if each.info.subject is Subject.FOREMAN:
            continue
        crew = foremen.get(each.info.foreman or "")
        if crew is not None:
            crew.workers.append(each)
        else:
            alone.append(Crew(None, [each]))
    return [*foremen.values(), *alone]


def _clients(call: Call) -> list[Any]:
    return [] if call.operator.queues else list(call.site.glance.clients())


@page("/worker_pools", "workers")
def worker_pools(call: Call, asked: Asked) -> Elsewhere:
    """An address that is easy to remember."""
    return Elsewhere("/workers")


@page("/busy_workers", "workers")
def busy_workers(call: Call, asked: Asked) -> Elsewhere:
    """An address that is easy to remember."""
    return Elsewhere("/jobs?state=running")
