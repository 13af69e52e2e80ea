"""The duties of a foreman: all that waits for the storage, each in a thread of its own. So the main loop never does.

The heartbeat and the exits of dead workers begin first, and end last; the others go to work once the storage knows
the foreman.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from packhorse.core.clock import SECOND
from packhorse.core.outcome import Overrun
from packhorse.core.settings import Settings
from packhorse.foreman.chores.chore import Chore, EndWorker, StuckJobs, TrustedTime
from packhorse.foreman.chores.runner import ChoreRunner
from packhorse.foreman.dead_workers import ExitRecorder
from packhorse.foreman.heartbeat import ForemanRecord, Heartbeat
from packhorse.foreman.orders import Orders
from packhorse.foreman.poller import Backlog, Poller
from packhorse.foreman.processes import WorkerGroup
from packhorse.storage.contract import Storage
from packhorse.worker.spool import Spool

Chores = Sequence[Chore] | Callable[[TrustedTime, EndWorker, StuckJobs], Sequence[Chore]]
"""The chores, or a function that makes them and is handed what tells the time while this foreman is steady, what ends
those of its workers that do not end a job in time, and what tells which of them are stuck."""


class Duties:
    """Of one foreman. `report` is what it says of itself, `wake` wakes its loop; see `Heartbeat` for the rest."""

    def __init__(
        self,
        storage: Storage,
        settings: Settings,
        workers: WorkerGroup,
        record: ForemanRecord,
        chores: Chores,
        *,
        report: Callable[[], dict[str, Any]],
        wake: Callable[[], None],
        announce: Callable[[], None] = lambda: None,
        hasty: bool = False,
    ) -> None:
        beat, lease = settings.heartbeat / SECOND, settings.lease / SECOND
        spool = Spool.of(settings)
        self.heartbeat = Heartbeat(
            storage,
            workers,
            record,
            heartbeat=beat,
            lease=lease,
            report=report,
            wake=wake,
            announce=announce,
            hasty=hasty,
            spool=spool,
        )
        self.exits = ExitRecorder(storage, spool)
        self.backlog = Backlog(storage, workers, wake)
        self.orders = Orders(storage, record, wake)

        def end_overrun(overrun: Overrun) -> bool:
            is_ours = workers.end_overrun(overrun)
            if is_ours:
                wake()
            return is_ours

        if callable(chores):
            chores = chores(self.heartbeat.trusted_time, end_overrun, workers.stuck_jobs)
        self.chore_runner = ChoreRunner(chores)
        self.poller = Poller(storage, workers, record, self.heartbeat, self.backlog, self.orders, self.chore_runner)
        self.are_at_work = False

    def begin(self) -> None:
        """Make the foreman known, and keep it so."""
        self.exits.loop.start()
        self.heartbeat.loop.start()

    def go_to_work(self) -> None:
        """Once, when the storage knows the foreman, and former processes of this machine were settled: their jobs go
        first."""
        if not self.are_at_work:
            self.are_at_work = True
            for each in (self.backlog, self.orders, self.chore_runner, self.poller):
                each.loop.start()

    def adjust(self, settings: Settings) -> None:
        """The settings were read again."""
        self.chore_runner.adjust(settings)
        self.heartbeat.set_order(settings.chosen_order)

    def rest(self) -> None:
        """The foreman stops: no more upkeep, and nobody demand know what waits. Orders are still heard."""
        self.chore_runner.loop.stop()
        self.backlog.loop.stop()

    def end(self) -> None:
        """All but the exits, which has the last word."""
        for each in (self.poller, self.chore_runner, self.backlog, self.orders):
            each.loop.stop()
        self.heartbeat.loop.stop(1.0)
