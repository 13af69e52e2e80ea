"""Workers: hosts, foremen, workers and slots; what each one does now, and its health."""

from __future__ import annotations

from typing import Any, NamedTuple

from packhorse.core.clock import SECOND
from packhorse.core.errors import BadValue, NotAllowed
from packhorse.core.event import ForemanAction, ForemanOrder, Subject
from packhorse.core.job import Job, State
from packhorse.monitor.actions import scale_order, workers_of
from packhorse.monitor.liveness import ProcessGroup, busy_slots, group_processes
from packhorse.monitor.served_queues import queues_served_by
from packhorse.monitor.stacks import Stack, Stacks, stacks_of
from packhorse.storage.records import WorkerInfo
from packhorse.web.api.jobs import short_call
from packhorse.web.context import Call
from packhorse.web.pages.error_text import Piece, pieces_of
from packhorse.web.pages.filters import short
from packhorse.web.pages.page import PageRequest, PageResponse, Redirect, form_action, page, redirect_with_undo
from packhorse.web.security.operator import Role
from packhorse.web.text import safe

_MOST_SHOWN = 50
_MOST_NAMED = 10  # jobs listed for a group of processes that is gone
_WHOLE = 40  # up to this many workers are shown with their jobs, more as one row each
_ROWS = 500  # beyond this many workers, further hosts are only named
_FIGURES = {"done": 0, "failed": 0, "rss": 0, "max_rss": 0, "cpu_percent": 0}

_BECAME = {"halted": "halted, in line again", "readded": "in line again", "broken": "dead"}


class Process(NamedTuple):
    """A worker or a foreman, and the jobs it holds."""

    info: WorkerInfo
    is_alive: bool
    jobs: list[tuple[Job, str]]
    report: dict[str, Any]
    busy: int

    @property
    def patterns(self) -> list[str]:
        """The patterns that it serves besides the queues in its record."""
        return queues_served_by(self.info)[len(self.info.queues) :]


class Crew(NamedTuple):
    """A foreman, if there is one, and its workers."""

    foreman: Process | None
    workers: list[Process]

    @property
    def limits(self) -> tuple[int, int]:
        """The minimum and maximum number of workers, if the foreman reports them."""
        report = self.foreman.info.report if self.foreman else {}
        least, most = (report.get(name) for name in ("min", "max"))
        number = len(self.workers)
        return least if isinstance(least, int) else number, most if isinstance(most, int) else number

    @property
    def slots(self) -> int | None:
        """The slots of each new worker; None: the foreman's version does not report them."""
        slots = self.foreman.info.report.get("slots") if self.foreman else None
        return slots if isinstance(slots, int) else None

    @property
    def grace(self) -> int | None:
        """How long jobs may continue to run when a worker is replaced; None: the foreman does not report it."""
        return _grace(self.foreman.info) if self.foreman else None


class ExitSummary(NamedTuple):
    """Processes that are gone without a word, the number of jobs they hold, and some of these jobs."""

    crew: ProcessGroup
    number: int
    jobs: list[Job]


class Host(NamedTuple):
    """A machine, and the processes on it."""

    name: str
    crews: list[Crew]

    @property
    def workers(self) -> list[Process]:
        return [worker for crew in self.crews for worker in crew.workers]

    @property
    def busy(self) -> int:
        return sum(worker.busy for worker in self.workers)

    @property
    def slots(self) -> int:
        return sum(worker.info.concurrency for worker in self.workers)

    @property
    def silent(self) -> int:
        return sum(not worker.is_alive for worker in self.workers)


def _grace(foreman: WorkerInfo) -> int | None:
    seconds = foreman.info.get("drain_s")
    return round(seconds * SECOND) if isinstance(seconds, int | float) else None


@page("/workers", "workers")
def workers(call: Call, request: PageRequest) -> PageResponse:
    """List the processes of every host, or of one. Many workers are listed as rows that link to their own pages."""
    now, held = call.reader.now(), call.reader.held()
    jobs = _by_owner(held)
    here, gone = call.reader.presence()
    hosts = _hosts([_process(call, worker, jobs, now) for worker in here])
    wanted = [host for host in hosts if host.name == request.query["host"]] if request.query.get("host") else hosts
    shown = _first_of(wanted)
    known = {worker.id for worker in (*here, *gone)}
    lost = [(job, safe(short_call(job))) for job in held if job.owner not in known][:_ROWS]
    context = {
        "hosts": shown,
        "others": [host for host in hosts if host not in shown],
        "is_folded": sum(len(host.workers) for host in shown) > _WHOLE,
        "lost": lost,
        "fallen": [_fallen(crew, jobs) for crew in group_processes(gone)[:_MOST_SHOWN]],
        "has_foreman": any(each.subject is Subject.FOREMAN for each in here),
        "clients": _clients(call)[:_ROWS],
        "may_order": may_order(call),
        "departures": call.reader.exited_workers(),
        "BECAME": _BECAME,
    }
    return PageResponse("workers.html", "Workers", context)


def _hosts(processes: list[Process]) -> list[Host]:
    hosts: dict[str, Host] = {}
    for crew in _crews(processes):
        name = (crew.foreman or crew.workers[0]).info.host or "unknown host"
        hosts.setdefault(name, Host(name, [])).crews.append(crew)
    return list(hosts.values())


def _first_of(hosts: list[Host]) -> list[Host]:
    """Return as many hosts as there is room for, but at least one."""
    shown: list[Host] = []
    for host in hosts:
        if shown and sum(len(each.workers) for each in (*shown, host)) > _ROWS:
            break
        shown.append(host)
    return shown


def _fallen(crew: ProcessGroup, held: dict[str | None, list[Job]]) -> ExitSummary:
    jobs = [job for each in crew.everybody for job in held.get(each.id, [])]
    return ExitSummary(crew, len(jobs), jobs[:_MOST_NAMED])


def _by_owner(held: list[Job]) -> dict[str | None, list[Job]]:
    """Group jobs by owner in one pass: there may be thousands of workers and jobs."""
    found: dict[str | None, list[Job]] = {}
    for job in held:
        found.setdefault(job.owner, []).append(job)
    return found


def _process(call: Call, worker: WorkerInfo, held: dict[str | None, list[Job]], now: int) -> Process:
    own = held.get(worker.id, [])
    busy = busy_slots([worker], running=sum(job.state is State.RUNNING for job in own), held=len(own))
    first = sorted(own, key=lambda job: (job.state is not State.RUNNING, job.started_at or now))[:_MOST_SHOWN]
    jobs = [(job, safe(short_call(job))) for job in first]
    figures = {name: value for name in _FIGURES if isinstance(value := worker.report.get(name, 0), int)}
    return Process(worker, call.reader.is_alive(worker, now), jobs, {**_FIGURES, **figures}, busy)


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
    return [] if call.operator.queues else list(call.web.cache.clients())


class StackDump(NamedTuple):
    """The latest stacks that a worker reported: each thread with its job and its pieces of text."""

    process: Process
    at: int | None
    stacks: list[tuple[Stack, list[Piece]]]

    @property
    def others(self) -> list[tuple[Stack, list[Piece]]]:
        """The stacks that run no job."""
        return [pair for pair in self.stacks if pair[0].job_id is None]


@page("/workers/{id}", "workers")
def worker(call: Call, request: PageRequest, id: str) -> PageResponse:
    """Show one worker, or the workers of one foreman, with their stacks."""
    chosen, now, held = call.reader.worker(id), call.reader.now(), _by_owner(call.reader.held())
    stood = [_stood(call, each, held, now) for each in workers_of(chosen, call.reader.workers())]
    context = {
        "worker": _process(call, chosen, held, now),
        "stood": stood,
        "has_told": any(each.at is not None for each in stood),
        "grace": next((_grace(each) for each in call.reader.workers() if each.id == chosen.foreman), None),
        "may_order": may_order(call),
    }
    return PageResponse("worker.html", f"{chosen.subject.capitalize()} {short(chosen.id)}", context)


def _stood(call: Call, info: WorkerInfo, held: dict[str | None, list[Job]], now: int) -> StackDump:
    reported = stacks_of(info)
    return StackDump(
        _process(call, info, held, now),
        stood_at(info, reported) if reported else None,
        [(stack, pieces_of(stack.text)) for stack in reported.items] if reported else [],
    )


def stood_at(info: WorkerInfo, reported: Stacks) -> int:
    """Return when the worker took the stacks, by the storage's clock."""
    return info.beat_at - round(reported.age_s * SECOND)


def may_order(call: Call) -> bool:
    """May this operator send orders to workers?"""
    return call.operator.may(Role.OPERATE) and not call.operator.queues


@form_action("/workers/{id}/stacks")
def stacks(call: Call, request: PageRequest, id: str) -> Redirect:
    """Ask the workers for their stacks."""
    is_told = bool(call.actions.stacks(id))
    return Redirect(f"/workers/{id}?said={'stacks' if is_told else 'no_stacks'}")


@form_action("/workers/{id}/quiet")
def quiet(call: Call, request: PageRequest, id: str) -> Redirect:
    """Stop taking jobs."""
    _ordered(call, id, ForemanOrder(ForemanAction.QUIET))
    return redirect_with_undo(call, "/workers", "quieted", id)


@form_action("/workers/{id}/restart")
def restart(call: Call, request: PageRequest, id: str) -> Redirect:
    """Replace the workers with new ones."""
    return _ordered(call, id, ForemanOrder(ForemanAction.RESTART))


@form_action("/workers/{id}/stop", Role.ADMIN)
def stop(call: Call, request: PageRequest, id: str) -> Redirect:
    """Stop when the running jobs have ended."""
    return _ordered(call, id, ForemanOrder(ForemanAction.STOP))


@form_action("/workers/{id}/scale")
def scale(call: Call, request: PageRequest, id: str) -> PageResponse | Redirect:
    """Set the number of workers and the slots of each. A change of slots replaces every worker, so it needs
    confirmation."""
    least, most, slots = (request.field(name) for name in ("least", "most", "slots"))
    if not (least.isdigit() and most.isdigit() and (slots or "1").isdigit() and len(least + most + slots) < 16):
        raise BadValue("how many workers? two numbers are needed", hint="e.g. at least 2, at most 8")
    order, foreman = scale_order(int(least), int(most), int(slots) if slots else None), call.reader.worker(id)
    if request.field("sure") != "yes" and foreman.subject is Subject.FOREMAN and _replaces(foreman, order):
        return _ask_to_replace(call, foreman, order)
    return _ordered(call, id, order)


def _replaces(foreman: WorkerInfo, order: ForemanOrder) -> bool:
    return order.slots is not None and order.slots != foreman.report.get("slots")


def _ask_to_replace(call: Call, foreman: WorkerInfo, order: ForemanOrder) -> PageResponse:
    """Ask for confirmation: jobs that run past the grace period start again."""
    crew, now = {worker.id for worker in workers_of(foreman, call.reader.workers())}, call.reader.now()
    running = [now - job.started_at for job in call.reader.held() if job.owner in crew and job.started_at is not None]
    context = {
        "foreman": foreman,
        "order": order,
        "slots": foreman.report.get("slots"),
        "grace": _grace(foreman),
        "running": len(running),
        "longest": max(running, default=0),
    }
    return PageResponse("scale.html", "Other slots?", context)


def _ordered(call: Call, owner: str, order: ForemanOrder) -> Redirect:
    call.actions.order(owner, order)
    return Redirect("/workers?said=ordered")


@page("/worker_pools", "workers")
def worker_pools(call: Call, request: PageRequest) -> Redirect:
    """Redirect a memorable address."""
    return Redirect("/workers")


@page("/busy_workers", "workers")
def busy_workers(call: Call, request: PageRequest) -> Redirect:
    """Redirect a memorable address."""
    return Redirect("/jobs?state=running")


@page("/clients", "workers")
def clients(call: Call, request: PageRequest) -> PageResponse:
    """List every known client."""
    if call.operator.queues:
        raise NotAllowed("clients are not shown to tokens of some queues only")
    timeout = call.web.app.settings.shown("client_timeout")
    return PageResponse("clients.html", "Clients", {"clients": call.web.cache.clients(), "timeout": timeout})
