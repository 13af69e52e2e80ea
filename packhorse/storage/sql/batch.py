"""A batch of new jobs, some of which are unique: which of them go in together, and which must be looked at one by one.

Pure; `sql/in_and_out.py` asks it for each job, and stores what it has gathered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from packhorse.core.job import NewJob
from packhorse.storage.records import Enqueued, Placement


class Batch:
    """`stored` are those of their ids that are stored already; `holders` the jobs that hold their keys, by key, or None
    where that is not known; `replaced` those ids whose calls took the place of another's."""

    def __init__(self, stored: Iterable[str], holders: dict[str, str | None], replaced: Collection[str] = ()) -> None:
        self._seen = set(stored)
        self._holders = holders
        self._replaced = replaced
        self._run: list[NewJob] = []

    def place(self, new: NewJob) -> Enqueued | None:
        """What becomes of the next job; None: it must be looked at, after what was gathered is stored."""
        if new.id in self._seen:
            return Enqueued(new.id, Placement.KEPT)
        lock = new.unique
        if new.subscriber is not None or new.id in self._replaced or (lock is not None and lock.period == 0):
            return None
        if lock is not None and lock.key in self._holders:
            holder = self._holders[lock.key]
            return Enqueued(holder, Placement.KEPT) if holder is not None and lock.on_conflict == "keep" else None
        if lock is not None:
            self._holders[lock.key] = new.id  # it waits from now on, and so holds its key
        self._seen.add(new.id)
        self._run.append(new)
        return Enqueued(new.id)

    def note(self, new: NewJob, answer: Enqueued) -> None:
        """This is what became of one that was looked at. Who holds its key now is not known here."""
        if answer.job_id == new.id:
            self._seen.add(new.id)
        if new.unique is not None:
            self._holders[new.unique.key] = None

    def take_run(self) -> list[NewJob]:
        """Jobs that meet nobody, gathered since the last time."""
        run, self._run = self._run, []
        return run
