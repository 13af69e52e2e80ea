"""Banners: what is wrong just now, said on every page, each with its cause and the next step; three at most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, TypeGuard

from packhorse.core.clock import MINUTE, SECOND
from packhorse.core.event import Subject
from packhorse.core.job import HELD, WAITING, State
from packhorse.core.version import __version__
from packhorse.monitor.liveness import IdleReason, accepting_workers, idle_foremen, idle_text, resume_command
from packhorse.monitor.schedules import late_by
from packhorse.monitor.served_queues import tasks_by_queue, why_unserved
from packhorse.monitor.stats import RunStats, stats_by_queue
from packhorse.monitor.text import count_text, pause_text
from packhorse.storage.records import Health, QueueInfo, Span, WorkerInfo
from packhorse.storage.transfer import Move, Stage, closed
from packhorse.web.pages.page import address
from packhorse.web.pages.words import number, sentence, span
from packhorse.web.reader import Reader

MOST = 3
_BEHIND = MINUTE
_APART = 2.0  # seconds
_LOOKED_BACK = 10 * MINUTE
_DEPLOYING = 10 * MINUTE
_NAMED = 3  # of many queues
_LONGEST = 120  # letters of what somebody wrote


class Banner(NamedTuple):
    """One thing that is wrong. `link` leads to where more is known; `command` mends it."""

    is_grave: bool
    head: str
    text: str
    link: tuple[str, str] | None = None  # path and words
    command: str | None = None


def banners(reader: Reader, health: Health, move: Move | None, place: str) -> list[Banner]:
    """The gravest first. That the storage is moved is said everywhere, for nothing that is done there counts. What else
    it has to say is for the overview: its own page says it anyway, and elsewhere it would stand in the way for as long
    as nobody mends it."""
    now = reader.now()
    if move is not None and move.stage is Stage.MOVED:
        return [_moved(move)]  # what is left in it concerns nobody
    found = [] if move is None else [_moved(move)]
    found += [*_nobody(reader, now), *_idle(reader, now), *_behind(reader, now), *_late(reader, now), *_paused(reader)]
    found += [*_skewed(reader, now), *_mixed(reader, now), *_mixed_code(reader, now)]
    if place == "overview":
        found += _storage(health, move)
    return sorted(found, key=lambda banner: not banner.is_grave)[:MOST]


def _moved(move: Move) -> Banner:
    why = closed(move)
    return Banner(True, f"{_capital(why.what)}.", f"{_capital(why.hint or '')}.", ("/storage", "Storage"))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _nobody(reader: Reader, now: int) -> Iterator[Banner]:
    workers = [worker for worker in reader.workers() if worker.subject is Subject.WORKER]
    silent = [worker for worker in workers if not reader.is_alive(worker, now)]
    waiting = sum(queue.counts.get(state, 0) for queue in reader.queues() for state in WAITING)
    waits = {0: "No jobs wait.", 1: "1 job waits."}.get(waiting, f"{number(waiting)} jobs wait.")
    foremen = _foremen(reader, now)
    if len(silent) == len(workers):
        if foremen:
            yield from _not_started(reader, now, foremen, waits)
        elif waiting or workers:
            text = f"{waits}{_fell_silent(reader, workers, now)}"
            yield Banner(True, "No worker is running.", text, ("/workers", "Workers"), "packhorse work")
    elif silent:
        who = f"{silent[0].host} pid {silent[0].pid}" if len(silent) == 1 else f"{len(silent)} workers"
        since = span(now - max(worker.beat_at for worker in silent))
        yield Banner(True, "A worker has fallen silent.", f"{who}, for {since}.", ("/workers", "Workers"))


def _fell_silent(reader: Reader, workers: list[WorkerInfo], now: int) -> str:
    """When the last of them gave a sign of life, and what is left in their hands."""
    if not workers:
        return ""
    held = sum(queue.counts.get(state, 0) for queue in reader.queues() for state in HELD)
    holding = f", holding {count_text(held, 'job')}" if held else ""
    return f" The last fell silent {span(now - max(worker.beat_at for worker in workers))} ago{holding}."


def _not_started(reader: Reader, now: int, foremen: list[WorkerInfo], waits: str) -> Iterator[Banner]:
    """That foremen are there and no workers: wrong only if that takes long, for they start some when there is work."""
    is_late = any(_age(queue, now) > _BEHIND and not queue.is_paused for queue in reader.queues())
    problem = next((each.report["problem"] for each in foremen if each.report.get("problem")), None)
    if is_late and len(idle_foremen(foremen, now, reader.lease)) < len(foremen):
        text = f"{waits} {problem[:_LONGEST]}" if isinstance(problem, str) else waits
        yield Banner(True, "The foreman has no worker.", text, ("/workers", "Workers"))


def _idle(reader: Reader, now: int) -> Iterator[Banner]:
    """Foremen that are alive and take no jobs: grave if nobody else does."""
    idle = [each for each in idle_foremen(reader.workers(), now, reader.lease) if each.idle is not IdleReason.STOPPING]
    if not idle:
        return
    is_grave = not accepting_workers(reader.workers(), now, reader.lease)
    head = "No jobs are taken." if is_grave else "Some workers take no jobs."
    yield Banner(is_grave, head, f"{_capital(idle_text(idle))}.", ("/workers", "Workers"), resume_command(idle))


def _storage(health: Health, move: Move | None) -> Iterator[Banner]:
    told = closed(move).what if move else None
    for problem in health.problems:
        if problem != told:
            yield Banner(False, "Storage:", sentence(problem), ("/storage", "Storage"))


def _behind(reader: Reader, now: int) -> Iterator[Banner]:
    late = [queue for queue in reader.queues() if _age(queue, now) > _BEHIND and not queue.is_paused]
    taking = accepting_workers(reader.workers(), now, reader.lease)
    if not late or not taking:
        return  # without workers it goes without saying
    tasks_of = tasks_by_queue(reader.tallies())
    served = {queue.name for queue in late if not why_unserved(taking, queue.name, tasks_of.get(queue.name, ()))}
    flows = reader.reckoned(
        "flows",
        Span.TWO_HOURS,
        lambda points: stats_by_queue(point for point in points if point.at > now - _LOOKED_BACK),
    )
    late.sort(key=lambda queue: -_age(queue, now))
    yield from _unserved([queue for queue in late if queue.name not in served], now)
    behind = [queue for queue in late if queue.name in served and _grows(flows.get(queue.name))]
    if len(behind) > 1:
        waited = f"The oldest job has waited {span(_age(behind[0], now))}; more came in ten minutes than ended."
        text = f"{_names([queue.name for queue in behind])} {waited}"
        yield Banner(True, f"{number(len(behind))} queues are falling behind.", text, ("/queues", "Queues"))
    for queue in behind if len(behind) == 1 else ():
        flow = flows[queue.name]
        came, went = number(flow.added), number(flow.completed + flow.dead + flow.aborted)
        text = f"Its oldest job has waited {span(_age(queue, now))}; {came} came in ten minutes, {went} ended."
        yield Banner(
            True, f"{queue.name} is falling behind.", text, (address(f"/queues/{queue.name}"), "See the queue")
        )


def _grows(flow: RunStats | None) -> bool:
    """Does more come than ends?"""
    return flow is not None and flow.added > flow.completed + flow.dead + flow.aborted


def _names(names: list[str]) -> str:
    """The first of them."""
    return ", ".join(names[:_NAMED]) + (" …" if len(names) > _NAMED else ".")


def _unserved(queues: list[QueueInfo], now: int) -> Iterator[Banner]:
    """Queues whose jobs nobody will ever take, told as one: they mostly have one cause, and there may be hundreds."""
    if not queues:
        return
    first, waited = queues[0], f"oldest job has waited {span(_age(queues[0], now))}."
    if len(queues) == 1:
        link = (address(f"/queues/{first.name}"), "See the queue")
        yield Banner(True, f"No worker serves {first.name}.", f"Its {waited}", link)
    else:
        text = f"{_names([queue.name for queue in queues])} The {waited}"
        yield Banner(True, f"No worker serves {number(len(queues))} queues.", text, ("/queues", "Queues"))


def _age(queue: QueueInfo, now: int) -> int:
    return 0 if queue.oldest_queued_at is None else now - queue.oldest_queued_at


def _late(reader: Reader, now: int) -> Iterator[Banner]:
    """Schedules that nobody has seen to, told as one: they mostly have one cause."""
    late = {each.name: by for each in reader.schedules() if (by := late_by(each, now)) is not None}
    if not late:
        return
    foremen = count_text(len(_foremen(reader, now)), "foreman is", "foremen are")
    why = "no foreman is running" if foremen.startswith("0 ") else f"{foremen} running, but none has seen to it"
    due = f"due {span(max(late.values()))} ago: {why}."
    if len(late) == 1:
        yield Banner(False, f"The schedule {next(iter(late))} is late.", f"It was {due}", ("/schedules", "Schedules"))
    else:
        text = f"{_names(list(late))} The first was {due}"
        yield Banner(False, f"{number(len(late))} schedules are late.", text, ("/schedules", "Schedules"))


def _skewed(reader: Reader, now: int) -> Iterator[Banner]:
    """Machines whose clock goes wrong. Jobs do not mind, for only the storage's clock counts, but people who read logs
    of several machines beside each other do."""
    skews = {each.host: each.report.get("skew") for each in _foremen(reader, now)}
    apart = {host: SECOND * skew for host, skew in skews.items() if _is_apart(skew)}
    if apart:
        host, skew = max(apart.items(), key=lambda item: abs(item[1]))
        others = f", and {count_text(len(apart) - 1, 'other machine')}" if len(apart) > 1 else ""
        told = f"The clock of {host[:_LONGEST]} is {span(abs(skew))} {'ahead' if skew > 0 else 'behind'}{others}."
        text = f"{told} Only the storage's counts; let all ask the same time server."
        yield Banner(False, "Clocks differ.", text, ("/workers", "Workers"))


def _is_apart(skew: object) -> TypeGuard[float]:
    return isinstance(skew, int | float) and abs(skew) > _APART


def _mixed(reader: Reader, now: int) -> Iterator[Banner]:
    """That not all are of one version: usual during a deployment, and forgotten after one now and then."""
    versions = Counter(str(each.info["version"])[:_LONGEST] for each in _foremen(reader, now) if "version" in each.info)
    if set(versions) - {__version__}:
        run = [f"{count_text(number, 'foreman', 'foremen')} of {name}" for name, number in sorted(versions.items())]
        be = "is" if run[0].startswith("1 ") else "are"
        text = f"There {be} {', '.join(run[:MOST])}; this page is of {__version__}."
        yield Banner(False, "Versions are mixed.", text, ("/workers", "Workers"))


def _mixed_code(reader: Reader, now: int) -> Iterator[Banner]:
    """That workers run different versions of the user's code, for longer than a deployment takes."""
    alive = [each for each in reader.workers() if each.subject is Subject.WORKER and reader.is_alive(each, now)]
    since: dict[str, int] = {}
    for each in alive:
        if each.code_version is not None:
            since[each.code_version] = min(since.get(each.code_version, now), each.joined_at)
    if len(since) > 1 and now - max(since.values()) > _DEPLOYING:
        newest = sorted(since, key=lambda version: -since[version])
        run = [f"{sum(each.code_version == version for each in alive)} of {version[:_LONGEST]}" for version in newest]
        text = f"Of the workers, {', '.join(run[:MOST])}{' …' if len(run) > MOST else ''}; the newest first."
        yield Banner(False, "Versions of your code are mixed.", text, ("/workers", "Workers"))


def _foremen(reader: Reader, now: int) -> list[WorkerInfo]:
    return [each for each in reader.workers() if each.subject is Subject.FOREMAN and reader.is_alive(each, now)]


def _paused(reader: Reader) -> Iterator[Banner]:
    paused = [queue for queue in reader.queues() if queue.is_paused and queue.counts.get(State.QUEUED, 0)]
    if len(paused) == 1:
        (queue,) = paused
        waits = f"{count_text(queue.counts[State.QUEUED], 'waits', 'wait')} in it"
        text = f"{waits}; paused{pause_text(queue, reader.now())}."
        yield Banner(False, f"The queue {queue.name} is paused.", text, (f"/queues/{queue.name}", "See the queue"))
    elif paused:
        names = ", ".join(queue.name for queue in paused[:_NAMED]) + (" …" if len(paused) > _NAMED else "")
        yield Banner(False, f"{len(paused)} queues are paused.", names, ("/queues", "Queues"))
