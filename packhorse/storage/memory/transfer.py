"""Moving: the mark, and the rows that go to another storage or come from one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from packhorse.core.job import UniqueLock
from packhorse.storage.contract import BATCH
from packhorse.storage.memory.keeper import Keeper, atomic
from packhorse.storage.transfer import (
    Dumped,
    Lock,
    LoggedLine,
    Measure,
    Move,
    Replaced,
    Section,
    Subscription,
    bare,
    paged,
)


class Transfers(Keeper):
    @atomic
    def move(self) -> Move | None:
        return self._move

    @atomic
    def set_move(self, move: Move | None, *, expected: Move | None) -> bool:
        if self._move != expected:
            return False
        self._move = move
        if move is None:
            self._wake(self._queues)
        return True

    # --- out ------------------------------------------------------------------------------------------------------

    @atomic
    def dump(self, section: Section, *, cursor: str | None = None, limit: int = BATCH) -> Dumped:
        return paged(self._rows_of(section), cursor, limit)

    def _rows_of(self, section: Section) -> list[tuple[str, Any]]:
        """Each with a name by which the rows stand in their order."""
        numbered: dict[Section, Callable[[], Any]] = {
            Section.TASKS: self._tasks.values,
            Section.QUEUES: lambda: map(bare, self._queues.values()),
            Section.CLIENTS: self._clients.values,
            Section.JOBS: lambda: sorted(self._jobs.values(), key=lambda job: job.seq),
            Section.LOCKS: lambda: [
                Lock(key, job_id, lock.period, lock.until, at) for key, (job_id, lock, at) in self._locks.items()
            ],
            Section.REPLACED: lambda: [Replaced(twin, job_id, at) for twin, (job_id, at) in self._replaced.items()],
            Section.SUBSCRIPTIONS: lambda: [
                Subscription(job_id, client) for job_id, clients in self._subscribers.items() for client in clients
            ],
            Section.LOG: lambda: [LoggedLine(job_id, line) for job_id, lines in self._log.items() for line in lines],
            Section.EVENTS: lambda: self._events,
            Section.MEASURES: lambda: [Measure(*key, amount) for key, amount in self._measures.items()],
            Section.FAILURES: self._failures.values,
            Section.SCHEDULES: self._schedules.values,
            Section.TICKS: lambda: self._ticks,
        }
        return [(f"{number:012}", row) for number, row in enumerate(numbered[section]())]

    # --- in -------------------------------------------------------------------------------------------------------

    @atomic
    def load(self, section: Section, rows: Sequence[Any], move: Move, *, expected: Move) -> bool:
        if self._move != expected:
            return False
        for row in rows:
            self._load(section, row)
        self._move = move
        return True

    def _load(self, section: Section, row: Any) -> None:
        if section is Section.TASKS:
            self._tasks[row.name] = row
        elif section is Section.QUEUES:
            self._queues[row.name] = row
        elif section is Section.CLIENTS:
            self._clients[row.id] = row
        elif section is Section.JOBS:
            self._jobs[row.id] = row
            self._seq = max(self._seq, row.seq)
        elif section is Section.LOCKS:
            self._locks[row.key] = (row.job_id, UniqueLock(row.key, row.period, row.until), row.taken_at)
        elif section is Section.REPLACED:
            self._replaced[row.twin] = (row.job_id, row.at)
        elif section is Section.SUBSCRIPTIONS:
            self._subscribers.setdefault(row.job_id, []).append(row.client_id)
        else:
            self._load_record(section, row)

    def _load_record(self, section: Section, row: Any) -> None:
        if section is Section.LOG:
            self._log.setdefault(row.job_id, []).append(row.line)
            self._log_id = max(self._log_id, row.line.id)
        elif section is Section.EVENTS:
            self._events.append(row)
            self._event_id = max(self._event_id, row.id)
        elif section is Section.MEASURES:
            self._measures[row.level, row.at, row.queue, row.task, row.counted] = row.amount
        elif section is Section.FAILURES:
            self._failures[row.cause] = row
        elif section is Section.SCHEDULES:
            self._schedules[row.name] = row
        elif section is Section.TICKS:
            self._ticks.append(row)
