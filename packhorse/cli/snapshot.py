"""A snapshot: everything that one screen about the whole system needs, read from the storage in a few calls.

`status` and `top` are made of it. What it comes to (rates, who is behind, what an operator should know) is pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from packhorse.core.clock import HOUR, MINUTE, SECOND
from packhorse.core.event import Subject
from packhorse.core.job import HELD, WAITING, State
from packhorse.core.settings import Settings
from packhorse.monitor.liveness import (
    IdleForeman,
    IdleReason,
    accepting_workers,
    busy_slots,
    group_processes,
    group_text,
    idle_foremen,
    idle_text,
    is_alive,
    resume_command,
)
from packhorse.monitor.served_queues import UnservedReason, tasks_by_queue, why_unserved
from packhorse.monitor.stats import RunStats, run_stats
from packhorse.monitor.text import count_text, pause_text, significant, span_text
from packhorse.storage import Storage
from packhorse.storage.records import Health, Point, QueueInfo, Span, WorkerInfo
from packhorse.storage.transfer import Move, Stage, closed

_LATELY = 5  # minutes over which rates are taken
_BARS = 10
_LATE = MINUTE  # what waits longer than this may mean that its queue is behind
_VERY_LATE = 5 * MINUTE
_BLOCKS = "▁▂▃▄▅▆▇█"
_PLAIN_BLOCKS = "_.:-=+*#"


class Flow(NamedTuple):
    """What goes through a queue: arriving and ending a second, and what ended in each tenth of the last hour."""

    comes: float = 0.0
    ends: float = 0.0
    hour: tuple[int, ...] = (0,) * _BARS


class Snapshot(msgspec.Struct, frozen=True, dict=True):
    """How everything stands at one moment."""

    now: int
    lease: int
    health: Health
    queues: Sequence[QueueInfo]
    workers: Sequence[WorkerInfo]
    points: Sequence[Point]  # of the last two hours, by minute
    move: Move | None = None
    tasks_of: Mapping[str, Collection[str]] = {}  # of the unfinished jobs in each queue

    def lack(self, queue: str) -> UnservedReason | None:
        """Why none of the workers that are alive takes jobs from this queue, if it is so."""
        return why_unserved(self.alive(Subject.WORKER), queue, self.tasks_of.get(queue, ()))

    def alive(self, subject: Subject) -> list[WorkerInfo]:
        """The foremen, or the workers, that have given a sign of life within their lease."""
        return [each for each in self.workers if each.subject is subject and is_alive(each, self.now, self.lease)]

    @property
    def idlers(self) -> list[IdleForeman]:
        """The foremen that are alive and take no jobs."""
        return idle_foremen(self.workers, self.now, self.lease)

    @property
    def takers(self) -> list[WorkerInfo]:
        """The workers that are alive and take jobs."""
        return accepting_workers(self.workers, self.now, self.lease)

    @property
    def waiting(self) -> int:
        """How many jobs wait, for a worker or for their time."""
        return sum(number_in(queue, WAITING) for queue in self.queues)

    @property
    def waits(self) -> str:
        """The same as a clause; those that only wait for their time are in nobody's way."""
        queued = sum(number_in(queue, [State.QUEUED]) for queue in self.queues)
        waits = count_text(queued or self.waiting, "job waits", "jobs wait")
        return waits if queued else f"{waits} for {'its' if self.waiting == 1 else 'their'} time"

    @property
    def slots(self) -> tuple[int, int]:
        """How many are busy, of how many."""
        crew = self.alive(Subject.WORKER)
        running, held = (sum(number_in(queue, states) for queue in self.queues) for states in ([State.RUNNING], HELD))
        return busy_slots(crew, running=running, held=held), sum(worker.concurrency for worker in crew)

    @property
    def last_hour(self) -> RunStats:
        """What the attempts of the last hour came to."""
        return run_stats(point for point in self.points if point.at > self.now - HOUR)

    def flow(self, queue: str) -> Flow:
        """What goes through this queue."""
        return flow_of(self._points_of.get(queue, []), self.now)

    @cached_property
    def _points_of(self) -> dict[str, list[Point]]:
        """The points by their queues, sorted once: there may be thousands of either."""
        found: dict[str, list[Point]] = {}
        for point in self.points:
            found.setdefault(point.queue, []).append(point)
        return found


def take_snapshot(storage: Storage, settings: Settings) -> Snapshot:
    """Read it."""
    return Snapshot(
        storage.now(),
        settings.lease,
        storage.health(),
        storage.queues(),
        storage.workers(),
        storage.series(Span.TWO_HOURS),
        storage.move(),
        tasks_by_queue(storage.tallies()),
    )


# --- what it comes to -------------------------------------------------------------------------------------------------


def flow_of(points: Iterable[Point], now: int) -> Flow:
    """The rates of the last five minutes, and the ends of the last hour."""
    since = now - now % MINUTE - (_LATELY - 1) * MINUTE
    seconds = (now - since) / SECOND
    comes = ends = 0
    hour = [0] * _BARS
    for point in points:
        ended = sum(point.values.get(name, 0) for name in ("completed", "dead", "aborted"))
        if point.at >= since:
            comes += point.values.get("added", 0)
            ends += ended
        place = (point.at + MINUTE - 1 - (now - HOUR)) * _BARS // HOUR
        if place >= 0:
            hour[min(place, _BARS - 1)] += ended
    return Flow(comes / seconds, ends / seconds, tuple(hour))


def bars(numbers: Sequence[int], encoding: str = "utf-8") -> str:
    """The numbers as a row of bars, each as high as its share of the largest; of plain characters, where the terminal
    has no others."""
    blocks = _BLOCKS if encoding.lower().startswith("utf") else _PLAIN_BLOCKS
    most = max(numbers, default=0)
    return "".join(blocks[-(-(len(blocks) - 1) * number // most) if most else 0] for number in numbers)


def number_in(queue: QueueInfo, states: Iterable[State]) -> int:
    """How many of its jobs are in one of these states."""
    return sum(queue.counts.get(state, 0) for state in states)


class Notice(NamedTuple):
    """Something that an operator should know, and what to try."""

    sentence: str
    hint: str


def notices(snapshot: Snapshot) -> Iterator[Notice]:
    """What an operator should know, the worst first."""
    if snapshot.move is not None:
        why = closed(snapshot.move)
        yield Notice(why.what, why.hint or "packhorse storage")
        if snapshot.move.stage is Stage.MOVED:
            return  # what is left in it concerns nobody
    crew = snapshot.alive(Subject.WORKER)
    yield from _about_crew(snapshot)
    yield from _about_silence(snapshot, is_somebody_there=bool(snapshot.alive(Subject.FOREMAN)))
    for queue in snapshot.queues:
        is_waiting = bool(crew and number_in(queue, WAITING))
        yield from _about_queue(snapshot, queue, snapshot.lack(queue.name) if is_waiting else None)
    told = closed(snapshot.move).what if snapshot.move else None
    for problem in snapshot.health.problems:
        if problem != told:
            yield Notice(problem, "packhorse storage")


def _about_crew(snapshot: Snapshot) -> Iterator[Notice]:
    """Does somebody take jobs?"""
    idle, foremen = snapshot.idlers, snapshot.alive(Subject.FOREMAN)
    waits = snapshot.waits
    if snapshot.waiting and not snapshot.takers and snapshot.move is None:
        if not foremen:
            yield Notice(f"no worker is running, and {waits}", "packhorse work")
        elif len(idle) == len(foremen):
            yield Notice(f"{idle_text(idle)}, and {waits}", _hint(idle))
            return
        else:
            yield Notice(f"no worker is running yet, and {waits}", "packhorse workers")
    for each in idle:
        if each.idle is not IdleReason.STOPPING:
            yield Notice(idle_text([each]), _hint([each]))


def _hint(idle: Sequence[IdleForeman]) -> str:
    if order := resume_command(idle):
        return order
    return "look into its log" if any(each.idle is IdleReason.UNHEALTHY for each in idle) else "packhorse work"


def _about_silence(snapshot: Snapshot, *, is_somebody_there: bool) -> Iterator[Notice]:
    silent = [each for each in snapshot.workers if not is_alive(each, snapshot.now, snapshot.lease)]
    if not silent:
        return
    lost = group_processes(silent)
    who = group_text(lost[0]) if len(lost) == 1 else count_text(len(silent), "process", "processes")
    hosts = "" if len(lost) == 1 else f" on {', '.join(sorted({each.host for each in silent})[:3])}"
    since = span_text(snapshot.now - lost[0].silent_since)
    held = sum(number_in(queue, HELD) for queue in snapshot.queues)
    rest, hint = "they held no jobs", "packhorse workers --gone"
    if is_somebody_there:
        rest = "another foreman takes their jobs back"
    elif held:
        rest, hint = f"no foreman is there to take back the {count_text(held, 'job')} in their hands", "packhorse work"
    yield Notice(f"{who}{hosts} fell silent {since} ago; {rest}", hint)


def _about_queue(snapshot: Snapshot, queue: QueueInfo, lack: UnservedReason | None) -> Iterator[Notice]:
    queued = queue.counts.get(State.QUEUED, 0)
    if queue.is_paused:
        since = f" for {span_text(snapshot.now - (queue.paused_at or 0))} now"
        told = f"{queue.name} is paused{pause_text(queue, snapshot.now, since)}"
        yield Notice(told, f"packhorse resume {queue.name}")
    elif lack is not None:
        waiting = number_in(queue, WAITING)
        waits = count_text(queued or waiting, "job waits", "jobs wait")
        time = "" if queued else f" for {'its' if waiting == 1 else 'their'} time"
        yield Notice(f"{lack.what}; {waits}{time}", lack.hint)
    elif not queued or queue.oldest_queued_at is None:
        return
    elif snapshot.now - queue.oldest_queued_at > _LATE and snapshot.takers:
        yield from _about_delay(snapshot, queue)


def _about_delay(snapshot: Snapshot, queue: QueueInfo) -> Iterator[Notice]:
    flow, waited = snapshot.flow(queue.name), snapshot.now - (queue.oldest_queued_at or snapshot.now)
    if flow.comes > flow.ends * 1.1:
        sentence = f"{queue.name} is behind: {significant(flow.comes)} a second arrive, {significant(flow.ends)} end"
        yield Notice(sentence, "packhorse scale +2 --all")
    elif waited > _VERY_LATE:
        yield Notice(
            f"{queue.name}: the oldest job has waited {span_text(waited)}", f"packhorse jobs queue:{queue.name}"
        )
