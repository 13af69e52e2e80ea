"""The poller: one read a second on behalf of all threads, so that an idle foreman reads almost nothing else.

Each thread gets the result, and reads more only if there is something for it to do. While nothing happens, the poller
reads less often.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping

from msgspec.structs import replace

from packhorse.core.clock import SECOND
from packhorse.core.event import Event, ForemanOrder, Kind, Subject
from packhorse.core.job import QUEUED
from packhorse.foreman.background import BackgroundLoop
from packhorse.foreman.chores.runner import ChoreRunner
from packhorse.foreman.heartbeat import ForemanRecord, Heartbeat, boot_time
from packhorse.foreman.processes import WorkerGroup
from packhorse.foreman.scaling import Demand
from packhorse.foreman.worker_handle import Serving
from packhorse.monitor.served_queues import queues_to_serve
from packhorse.storage.contract import Storage
from packhorse.storage.records import EventFilter, Filter, PollResult, QueueInfo
from packhorse.storage.transfer import Move, Stage, closed

log = logging.getLogger("packhorse")

_EVERY = 1.0
_EVERY_WHEN_IDLE = 2.5
_IDLE_AFTER = 15.0
"""Seconds without a job, an order or a new worker after which it reads less often."""


class Poller:
    """Polls the storage for one foreman."""

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
        self._move_notice = MoveNotice(storage)
        self._order: str | None = None  # the last that the workers received; new workers read it themselves
        self._busy_at = boot_time()
        self._done = 0
        self.is_slow = False  # it reads less often
        self.loop = BackgroundLoop("looking ahead", self.step, longest_retry=1.0)

    def step(self) -> float:
        """Read once, and pass on the result."""
        owners = [worker.id for worker in self._workers.members if worker.is_online]
        foreman, sent = self._record.id, boot_time()
        try:
            result = self._storage.poll(foreman, owners, after=self._orders.poll_after(foreman))
        except Exception:
            self._backlog.forget()
            raise
        self._heartbeat.on_poll(result, sent, boot_time())
        self._chore_runner.on_poll(result)
        self._backlog.on_poll(result)
        self._orders.on_poll(result, foreman)
        self._move_notice.on_poll(result, sent)
        if result.order != self._order:
            self._order = result.order
            self._workers.broadcast({"do": "order", "order": result.order})
        if result.queued or result.stops or result.ordered or not self._are_workers_idle():
            self._busy_at = sent
        self.is_slow = sent - self._busy_at >= _IDLE_AFTER
        return _EVERY_WHEN_IDLE if self.is_slow else _EVERY

    def poll_often(self) -> None:
        """A worker has started a job: read now, and more often from now on."""
        if self.is_slow:
            self.is_slow = False
            self.loop.wake()

    def _are_workers_idle(self) -> bool:
        """Are there workers, and do all of them wait for jobs? Without workers, only the poller looks for jobs."""
        members = self._workers.members
        done = sum(worker.report.get("done", 0) for worker in members)
        is_same, self._done = done == self._done, done
        is_waiting = all(worker.is_online and not worker.report.get("busy") for worker in members)
        return bool(members) and is_same and is_waiting


# --- what waits ---------------------------------------------------------------------------------------------------

OtherQueues = dict[str, list[str]]
"""Queues, each with the tasks of its jobs."""

_FORCED_SEEN = 100
_ANNOUNCE_AGAIN = 5.0
_MAX_REPORTED = 1_000
_FORCED = Filter(states=frozenset({QUEUED}), forced=True)


class Backlog:
    """The jobs that wait for the workers of one foreman."""

    def __init__(self, storage: Storage, workers: WorkerGroup, wake: Callable[[], None]) -> None:
        self.demand: Demand | None = None  # None: unknown, because the storage does not answer
        self._storage = storage
        self._workers = workers
        self._wake = wake
        self._announced: OtherQueues = {}
        self._announce_again_at = 0.0
        self.loop = BackgroundLoop("reading the backlog", self.step, longest_retry=2.0)

    def on_poll(self, result: PollResult) -> None:
        """The poller's result."""
        if result.queued:
            self.loop.wake()
        elif self.demand != Demand():
            self.demand = Demand()
            self._wake()

    def forget(self) -> None:
        """The storage does not answer."""
        self.demand = None

    def step(self) -> None:
        """Read the backlog once."""
        try:
            self.demand, others = read_demand(self._storage, self._workers.serving)
            self._announce(others, time.monotonic())
            if self.demand.backlog:
                self._workers.wake_idle()
        except Exception:
            self.forget()
            raise
        self._wake()

    def _announce(self, others: OtherQueues, now: float) -> None:
        """Have the workers serve these queues too. They may stop serving a queue by themselves, so repeat it after a
        while."""
        if others and (others.keys() != self._announced.keys() or now >= self._announce_again_at):
            self._announced, self._announce_again_at = others, now + _ANNOUNCE_AGAIN
            self._workers.broadcast({"do": "serve", "queues": dict(itertools.islice(others.items(), _MAX_REPORTED))})


def read_demand(storage: Storage, serving: Serving | None) -> tuple[Demand, OtherQueues]:
    """The waiting jobs in the queues that the workers serve (all, if `serving` is None), and the waiting queues that
    match their choice but are not served yet."""
    waiting = {queue.name: queue for queue in storage.queues() if queue.counts.get(QUEUED)}
    others: OtherQueues = {}
    if serving is not None:
        if serving.choice and not waiting.keys() <= serving.queues:
            found = queues_to_serve(storage.tallies(), serving.tasks, serving.choice)
            others = {name: sorted(tasks) for name, tasks in found.items() if name not in serving.queues}
        waiting = {name: queue for name, queue in waiting.items() if name in serving.queues or name in others}
    return _demand_of(storage, waiting), others


def _demand_of(storage: Storage, waiting: Mapping[str, QueueInfo]) -> Demand:
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

_READ_AGAIN = 10.0
"""Seconds between two reads of how far the move has come."""
_LOG_AGAIN = 600.0
"""Seconds after which it is logged again."""


class MoveNotice:
    """Logs that the storage is being moved, or was moved."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._logged: Stage | None = None
        self._read_at = self._log_again_at = 0.0

    def on_poll(self, result: PollResult, now: float) -> None:
        """The poller's result; `now` is in seconds, by a clock that cannot be set."""
        if not result.moved:
            self._logged, self._read_at = None, 0.0
        elif now >= self._read_at:
            self._read_at = now + _READ_AGAIN
            self._log(self._storage.move(), now)

    def _log(self, move: Move | None, now: float) -> None:
        if move is not None and (move.stage is not self._logged or now >= self._log_again_at):
            self._logged, self._log_again_at = move.stage, now + _LOG_AGAIN
            log.warning("%s", _move_text(move))


def _move_text(move: Move) -> str:
    ends = "no more jobs come from it: start workers on the new one"
    return f"{closed(move).what}; {ends if move.stage is Stage.MOVED else 'no job starts meanwhile'}"


# --- operators' orders ------------------------------------------------------------------------------------------------

_PAGE = 100
_LONGEST_WRITE = 120.0
"""Seconds that writing an order may take at most."""


class Orders:
    """Reads the orders of operators for this foreman when the poller has seen one, and passes them to the main loop.
    Each order is followed once. `wake` wakes the foreman's loop."""

    def __init__(self, storage: Storage, record: ForemanRecord, wake: Callable[[], None]) -> None:
        self.taken: int | None = None  # the id of the order that is being followed
        self.followed: int | None = None  # the id of the last order that was followed; it shows operators that it was
        self._storage = storage
        self._record = record
        self._wake = wake
        self._waiting: deque[tuple[int, ForemanOrder | None]] = deque()
        self._id: str | None = None
        self.read_to = 0  # all orders up to this event were read
        self._polled_for, self._polled_to = "", 0  # how far the poller has come, on storages that show events in order
        self._seen: set[int] = set()  # the orders after `read_to` that were taken
        self._next_read_to = (0, 0.0)  # an event about foremen, and when it was the newest
        self.loop = BackgroundLoop("looking for orders", self.step, longest_retry=2.0)

    def poll_after(self, foreman: str) -> int:
        """The event after which the poller looks for orders to this foreman. Where events may become visible late, it
        is `read_to`, so that late ones are found."""
        return self._polled_to if foreman == self._polled_for else self.read_to

    def on_poll(self, result: PollResult, foreman: str) -> None:
        """The poller's result for this foreman."""
        is_set_back = 0 < result.looked_to < self.poll_after(foreman)  # a server has lost its latest events
        if result.looked_to:
            self._polled_for, self._polled_to = foreman, result.looked_to
        if result.ordered or is_set_back or self._id != self._record.id:
            self.loop.wake()

    def step(self) -> float:
        """Read the orders once."""
        owner = self._record.id
        if owner != self._id:
            self.read_to, self._id = self._newest(EventFilter(kind=Kind.STARTED, owner=owner)), owner
            self._next_read_to = (self.read_to, time.monotonic())
            self._seen.clear()
        found = [event for event in self._unread(owner) if event.id not in self._seen]
        for event in found:
            self._seen.add(event.id)
            self._waiting.append((event.id, ForemanOrder.of(event)))
        self._advance()
        if found:
            self._wake()
        return _LONGEST_WRITE

    def _unread(self, owner: str) -> list[Event]:
        """The orders after `read_to`, the oldest first. Read backwards from the newest: reading forwards stops at an
        event that is still being written."""
        found: list[Event] = []
        before: int | None = None
        while True:
            where = EventFilter(
                subject=Subject.FOREMAN, kind=Kind.ORDERED, owner=owner, after=self.read_to, before=before
            )
            page = self._storage.events(where, limit=_PAGE, newest_first=True)
            found += page
            if len(page) < _PAGE:
                return found[::-1]
            before = page[-1].id

    def _advance(self) -> None:
        """After `_LONGEST_WRITE` seconds, no event older than a visible one can still appear: everything up to it was
        read."""
        number, seen_at = self._next_read_to
        if time.monotonic() - seen_at >= _LONGEST_WRITE:
            self.read_to = number
            self._seen = {order for order in self._seen if order > number}
            self._next_read_to = (self._newest(EventFilter()), time.monotonic())

    def _newest(self, where: EventFilter) -> int:
        """The id of the newest matching event about foremen, or 0."""
        found = self._storage.events(replace(where, subject=Subject.FOREMAN), limit=1, newest_first=True)
        return found[0].id if found else 0

    def take(self) -> Iterator[ForemanOrder]:
        """The new orders, the oldest first. An order counts as followed when the next one is requested."""
        while self._waiting:
            self.taken, order = self._waiting.popleft()
            if order is None:
                log.warning("an operator's order is unknown to this version")
            else:
                yield order
            # Set after the order took effect: operators read it to see the effect.
            self.followed = max(self.taken, self.followed or 0)
