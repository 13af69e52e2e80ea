"""The poller: one look a second at what lies ahead, on behalf of all duties, so that an idle foreman asks its storage
next to nothing else. Each is told what was seen, and asks on only when there is something for it. While nothing happens
it looks less often.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Collection, Mapping

from packhorse.core.clock import SECOND
from packhorse.core.job import QUEUED
from packhorse.foreman.background import BackgroundLoop
from packhorse.foreman.chores.runner import ChoreRunner
from packhorse.foreman.heartbeat import ForemanRecord, Heartbeat, boot_time
from packhorse.foreman.orders import Orders
from packhorse.foreman.processes import WorkerGroup
from packhorse.foreman.scaling import Demand
from packhorse.foreman.worker_handle import Serving
from packhorse.monitor.served_queues import queues_to_serve
from packhorse.storage.contract import Storage
from packhorse.storage.records import Filter, Outlook, QueueInfo
from packhorse.storage.transfer import Move, Stage, closed

_EVERY = 1.0
_EVERY_WHEN_IDLE = 2.5
_IDLE_AFTER = 15.0
"""Seconds without a job, an order or a worker that comes, after which it looks less often."""


class Poller:
    """Looks for one foreman."""

    def __init__(
        self,
        storage: Storage,
        workers: WorkerGroup,
        record: ForemanRecord,
        heartbeat: Heartbeat,
        backlog: Backlog,
        orders: Orders,
        chore_runner: ChoreRunner,
    ) -> None:
        self._storage = storage
        self._workers = workers
        self._record = record
        self._heartbeat = heartbeat
        self._backlog = backlog
        self._orders = orders
        self._chore_runner = chore_runner
        self._removal = MoveNotice(storage)
        self._order: str | None = None  # the last that the workers was told; who starts later asks the storage
        self._busy_at = boot_time()
        self._done = 0
        self.rests = False  # it looks less often
        self.loop = BackgroundLoop("looking ahead", self.step, longest_retry=1.0)

    def step(self) -> float:
        """Look once, and tell everybody."""
        owners = [worker.id for worker in self._workers.members if worker.is_online]
        foreman, sent = self._record.id, boot_time()
        try:
            outlook = self._storage.outlook(foreman, owners, after=self._orders.look_after(foreman))
        except Exception:
            self._backlog.forget()
            raise
        self._heartbeat.on_poll(outlook, sent, boot_time())
        self._chore_runner.on_poll(outlook)
        self._backlog.on_poll(outlook)
        self._orders.on_poll(outlook, foreman)
        self._removal.on_poll(outlook, sent)
        if outlook.order != self._order:
            self._order = outlook.order
            self._workers.broadcast({"do": "order", "order": outlook.order})
        if outlook.queued or outlook.stops or outlook.ordered or not self._is_crew_idle():
            self._busy_at = sent
        self.rests = sent - self._busy_at >= _IDLE_AFTER
        return _EVERY_WHEN_IDLE if self.rests else _EVERY

    def stir(self) -> None:
        """A worker has begun a job: look, and more often from now on."""
        if self.rests:
            self.rests = False
            self.loop.wake()

    def _is_crew_idle(self) -> bool:
        """Are there workers, all of which wait for jobs? Where there is none, nobody else looks for jobs."""
        members = self._workers.members
        done = sum(worker.report.get("done", 0) for worker in members)
        is_same, self._done = done == self._done, done
        is_waiting = all(worker.is_online and not worker.report.get("busy") for worker in members)
        return bool(members) and is_same and is_waiting


# --- what waits ---------------------------------------------------------------------------------------------------

Others = dict[str, list[str]]
"""Queues with the tasks whose jobs they hold."""

_FORCED_SEEN = 100
_TELL_AGAIN = 5.0
_MOST_TOLD = 1_000
_FORCED = Filter(states=frozenset({QUEUED}), forced=True)


class Backlog:
    """The latest reading."""

    def __init__(self, storage: Storage, workers: WorkerGroup, wake: Callable[[], None]) -> None:
        self.demand: Demand | None = None  # None: unknown, because the storage does not answer
        self._storage = storage
        self._workers = workers
        self._wake = wake
        self._told: Others = {}
        self._tell_again = 0.0
        self.loop = BackgroundLoop("reading the backlog", self.step, longest_retry=2.0)

    def on_poll(self, outlook: Outlook) -> None:
        """What the poller has seen."""
        if outlook.queued:
            self.loop.wake()
        elif self.demand != Demand():
            self.demand = Demand()
            self._wake()

    def forget(self) -> None:
        """The storage does not answer."""
        self.demand = None

    def step(self) -> None:
        """Read it once."""
        try:
            self.demand, others = read_need(self._storage, self._workers.serving)
            self._tell(others, time.monotonic())
            if self.demand.backlog:
                self._workers.wake_idle()
        except Exception:
            self.forget()
            raise
        self._wake()

    def _tell(self, others: Others, now: float) -> None:
        """Have the workers serve these queues; those that have left one meanwhile are told again after a while."""
        if others and (others.keys() != self._told.keys() or now >= self._tell_again):
            self._told, self._tell_again = others, now + _TELL_AGAIN
            self._workers.broadcast({"do": "serve", "queues": dict(itertools.islice(others.items(), _MOST_TOLD))})


def read_need(storage: Storage, serving: Serving | None) -> tuple[Demand, Others]:
    """What waits in the queues that are served, None: in any; and those of them that are not the workers' own."""
    waiting = {queue.name: queue for queue in storage.queues() if queue.counts.get(QUEUED)}
    others: Others = {}
    if serving is not None:
        if serving.choice and not waiting.keys() <= serving.queues:
            found = queues_to_serve(storage.tallies(), serving.tasks, serving.choice)
            others = {name: sorted(tasks) for name, tasks in found.items() if name not in serving.queues}
        waiting = {name: queue for name, queue in waiting.items() if name in serving.queues or name in others}
    return _need_of(storage, waiting), others


def _need_of(storage: Storage, waiting: Mapping[str, QueueInfo]) -> Demand:
    if not waiting:
        return Demand()
    forced = [job.queue for job in storage.find(_FORCED, limit=_FORCED_SEEN).jobs if job.queue in waiting]
    running = [queue for queue in waiting.values() if not queue.is_paused]
    past_pause = [waiting[name] for name in forced if waiting[name].is_paused]
    backlog = len(past_pause) + sum(queue.counts[QUEUED] for queue in running)
    return Demand(backlog, _oldest_wait(storage, running + past_pause), len(forced))


def _oldest_wait(storage: Storage, queues: Collection[QueueInfo]) -> float:
    since = [queue.oldest_queued_at for queue in queues if queue.oldest_queued_at is not None]
    return max(0, storage.now() - min(since)) / SECOND if since else 0.0


# --- a storage that is moved --------------------------------------------------------------------------------------

log = logging.getLogger("packhorse")

_LOOK_AGAIN = 10.0
"""Seconds between two looks at how far a move is."""
_TELL_AGAIN = 600.0
"""Seconds after which it is told again."""


class MoveNotice:
    """Of one foreman's storage; mostly there is none."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._told: Stage | None = None
        self._look_at = self._tell_again_at = 0.0

    def on_poll(self, outlook: Outlook, now: float) -> None:
        """What the poller has seen; `now` is in seconds, by a clock that nobody turns."""
        if not outlook.moved:
            self._told, self._look_at = None, 0.0
        elif now >= self._look_at:
            self._look_at = now + _LOOK_AGAIN
            self._tell(self._storage.move(), now)

    def _tell(self, move: Move | None, now: float) -> None:
        if move is not None and (move.stage is not self._told or now >= self._tell_again_at):
            self._told, self._tell_again_at = move.stage, now + _TELL_AGAIN
            log.warning("%s", _text(move))


def _text(move: Move) -> str:
    ends = "nothing more will come from it: start workers on the new one"
    return f"{closed(move).what}; {ends if move.stage is Stage.MOVED else 'meanwhile no job begins'}"
