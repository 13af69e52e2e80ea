"""Tell results: jobs that have ended in no worker of ours are told to one, which calls the users' result handlers.

A worker calls them itself for the jobs that it has run. Jobs that were aborted or expired while they waited, that a
foreign worker has ended, or whose worker has died for good, end without one. Every foreman looks for them; which of the
foremen of one app tells of a job follows from the job's id, so that it is told once. How far a foreman has come it
writes down as an event; the next one of the app goes on from there, so jobs that ended in between are told too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from packhorse.clock import SECOND
from packhorse.event import Event, Kind, Subject
from packhorse.presence import is_alive
from packhorse.settings import Settings
from packhorse.storage import Storage
from packhorse.storage.records import EventFilter, WorkerInfo

Tell = Callable[[Sequence[str]], bool]
"""Hands the ids of jobs that have ended to a worker. False: there is none at the moment."""

_AT_ONCE = 500
_ENDS = frozenset({Kind.ABORTED, Kind.BROKEN})
_COMPLETED = frozenset({Kind.COMPLETED})
_TOLD_TO = "results_told_to"
"""Of an event of a foreman: the events up to which it has told of jobs that came to nothing, and of completed ones."""
_MARK_EVERY = 600 * SECOND
_MOST_MARKS = 5_000
"""Events of foremen among which the last mark is looked for."""


class TellResults:
    """Follows the events from where the last foreman of the app ended, or, if there was none, from its first run on.
    `me` is the id of this foreman."""

    name = "tell_results"
    interval = 2.0

    def __init__(self, storage: Storage, settings: Settings, me: Callable[[], str], tell: Tell) -> None:
        self._storage = storage
        self._lease = settings.lease
        self._me = me
        self._tell = tell
        self._after: dict[frozenset[Kind], int] = {}  # the events that were looked at, by their kinds
        self._workers: dict[str, WorkerInfo] = {}
        self._has_told = False  # since then
        self._is_behind = False  # there was no worker to tell
        self._completed_to = 0
        self._marked_at = 0  # when it was last written down how far it has come

    def run(self) -> float | None:
        """Comes again at once if more has ended than one run tells of."""
        if _ENDS not in self._after:
            self._begin()
        is_time = self._storage.now() - self._marked_at > _MARK_EVERY
        newest = self._newest(EventFilter()) if is_time else 0
        is_more = self._look_at(_ENDS)
        self._see_workers()
        foreign = [worker.id for worker in self._workers.values() if is_foreign(worker)]
        # Of what others complete nobody else tells; of ours there may be thousands a second, so these are not read.
        if foreign and _COMPLETED not in self._after:
            joined = EventFilter(subject=Subject.WORKER, kind=Kind.STARTED, owner=foreign[0])
            self._after[_COMPLETED] = self._newest(joined)
        if _COMPLETED in self._after:
            is_more = self._look_at(_COMPLETED) or is_more
            if not foreign and not is_more:
                self._completed_to = self._after.pop(_COMPLETED)  # until the next one joins
        if self._has_told or (is_time and not is_more):
            if not is_more and not self._is_behind:
                self._after[_ENDS] = max(self._after[_ENDS], newest)
            self._mark()
        return 0.05 if is_more else None

    def _begin(self) -> None:
        """From where to go on. While others of the app are there, they tell of what is older."""
        self._see_workers()
        newest = self._newest(EventFilter())
        left = None if len(self._equals()) > 1 else self._left_by_former()
        self._marked_at = self._storage.now()
        if left is None:
            self._after[_ENDS] = self._completed_to = newest
            self._mark()
        else:
            self._after[_ENDS], self._after[_COMPLETED] = left

    def _left_by_former(self) -> tuple[int, int] | None:
        """How far the last foreman of this app had come; None: there was none, or that is no longer known."""
        target, before = self._target(), None
        for _ in range(_MOST_MARKS // _AT_ONCE):
            marks = EventFilter(subject=Subject.FOREMAN, kind=Kind.STAT, before=before)
            found = self._storage.events(marks, limit=_AT_ONCE, newest_first=True)
            for event in found:
                data = event.data or {}
                if _TOLD_TO in data and data.get("target") == target:
                    ends, completed = data[_TOLD_TO]
                    return int(ends), int(completed)
            if len(found) < _AT_ONCE:
                break
            before = found[-1].id
        return None

    def _mark(self) -> None:
        self._has_told = False
        self._marked_at = self._storage.now()
        ends = self._after[_ENDS]
        completed = self._after.get(_COMPLETED) or max(self._completed_to, ends)
        self._storage.record_stat(self._me(), {_TOLD_TO: [ends, completed], "target": self._target()})

    def _target(self) -> str | None:
        own = self._workers.get(self._me())
        return None if own is None else own.info.get("app") or own.info.get("target")

    def _look_at(self, kinds: frozenset[Kind]) -> bool:
        """Tell of the next ends of these kinds. True: there are more."""
        where = EventFilter(subject=Subject.JOB, kinds=kinds, after=self._after[kinds])
        found = self._storage.events(where, limit=_AT_ONCE)
        ended = [event.job_id for event in found if event.job_id is not None and self._is_untold(event)]
        mine = self._share_of(ended) if ended else []
        if mine and not self._tell(mine):
            self._is_behind = True
            return False  # a worker will be there the next time
        self._is_behind = False
        self._has_told = self._has_told or bool(mine)
        if found:
            self._after[kinds] = found[-1].id
        return len(found) == _AT_ONCE

    def _is_untold(self, event: Event) -> bool:
        """Has no worker of ours told of it by itself?"""
        if event.owner is None:
            return True
        if event.owner not in self._workers:
            self._see_workers()
        worker = self._workers.get(event.owner)
        if worker is not None:
            return is_foreign(worker)
        about = EventFilter(subject=Subject.WORKER, owner=event.owner)
        last = next(iter(self._storage.events(about, limit=1, newest_first=True)), None)
        if last is None:
            return False
        # Somebody else says why it ended: its worker was killed because it did not end it.
        was_ended_for_it = "why" in (event.data or {})
        if (last.kind is Kind.DIED or was_ended_for_it) and event.kind is not Kind.COMPLETED:
            return True
        told = (last.data or {}).get("object")
        return isinstance(told, dict) and "python" not in (told.get("info") or {})

    def _share_of(self, jobs: Sequence[str]) -> list[str]:
        """Those of these jobs that this foreman tells of, and none of its equals does."""
        self._see_workers()
        equals = self._equals()
        return [job_id for job_id in jobs if min(equals, key=lambda each: _lot(each, job_id)) == self._me()]

    def _equals(self) -> list[str]:
        """The foremen of this app that live, this one among them."""
        now, target = self._storage.now(), self._target()
        others = [
            each.id
            for each in self._workers.values()
            if each.subject is Subject.FOREMAN and (each.info.get("app") or each.info.get("target")) == target
            if is_alive(each, now, self._lease) and each.id != self._me()
        ]
        return [self._me(), *others]

    def _see_workers(self) -> None:
        self._workers = {worker.id: worker for worker in self._storage.workers()}

    def _newest(self, where: EventFilter) -> int:
        return next((event.id for event in self._storage.events(where, limit=1, newest_first=True)), 0)


def is_foreign(worker: WorkerInfo) -> bool:
    """Is it a worker without our code, which knows of no result handlers?"""
    return worker.subject is Subject.WORKER and "python" not in worker.info


def _lot(foreman: str, job_id: str) -> bytes:
    return hashlib.sha256(f"{foreman} {job_id}".encode()).digest()
