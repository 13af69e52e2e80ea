"""Has a worker call the users' result handlers for jobs that ended in no worker of ours.

A worker calls the handlers for its own jobs. Jobs that were aborted or expired while they waited, that a foreign worker
ended, or whose worker died for good, end without one. One living foreman of each app is the caller for these: it
follows the events, and records its position as an event of its own after each batch. The next caller continues from the
last recorded position, so handlers are called at least once for each end, and again for those after that position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from packhorse.core.clock import SECOND, Now
from packhorse.core.event import Event, Kind, Subject
from packhorse.core.settings import Settings
from packhorse.storage import Storage
from packhorse.storage.records import HAS_RESULT_HANDLERS, EventFilter, WorkerInfo

CallHandlers = Callable[[Sequence[str]], bool]
"""Passes the ids of ended jobs to a worker. Returns False if there is none now."""

_BATCH = 500
_ENDS = frozenset({Kind.ABORTED, Kind.BROKEN})
_COMPLETED = frozenset({Kind.COMPLETED})
_CAME_OR_WENT = frozenset({Kind.STARTED, Kind.KILLED, Kind.DIED})
_HANDLED_TO = "results_told_to"
"""The key of a recorded position: the events up to which jobs that failed, and completed jobs, are handled."""
_RECORD_EVERY = 600 * SECOND
_MAX_EVENTS = 20_000
"""The last position is searched among so many events of foremen."""
_CHECK_EVERY = 10 * SECOND
"""How often the workers are read while nothing has ended. It is also how long a storage waits for a slow transaction
before it shows later events: older events are certainly visible."""


class CallResultHandlers:
    """Follows the events if this foreman is the caller. `me` returns its id. `now` measures time spans; it may be
    inexact."""

    name = "tell_results"
    interval = 2.0

    def __init__(
        self, storage: Storage, settings: Settings, me: Callable[[], str], call: CallHandlers, now: Now | None = None
    ) -> None:
        self._storage = storage
        self._lease = settings.lease
        self._me = me
        self._call = call
        self._now = now or storage.approximate_now
        self._caller_id = ""  # the id under which it became the caller
        self._after: dict[frozenset[Kind], int] = {}  # its position by kinds of events; empty if it is not the caller
        self._workers: dict[str, WorkerInfo] = {}
        self._has_foreign = False
        self._newest = 0  # the newest event at the last read of the workers
        self._has_called = False  # since the last recorded position
        self._is_behind = False  # there was no worker to call the handlers
        self._ran_at = self._checked_at = self._recorded_at = 0

    def run(self) -> float | None:
        """Runs again soon if more jobs have ended than one run handles, and late if another foreman is the caller."""
        now = self._now()
        was_away = not 0 <= now - self._ran_at <= self._lease
        if was_away or self._me() != self._caller_id:
            self._after = {}  # it may have counted as dead, and another foreman may have become the caller
        passed = 0
        if not self._after or not 0 <= now - self._checked_at < _CHECK_EVERY:
            if not self._is_caller():
                return _CHECK_EVERY / SECOND
            passed = self._check_workers(now)
        is_more = self._handle_all(passed)
        self._ran_at = now  # not after an error: other foremen may have reached the storage
        return 0.05 if is_more else None

    def _handle_all(self, passed: int) -> bool:
        """Handle the jobs that have ended. If those were all, the events until `passed` need not be read again. Return
        whether there are more."""
        self._is_behind = is_more = False
        for kinds in (_ENDS, _COMPLETED) if self._has_foreign else (_ENDS,):
            is_more = (bool(self._after) and self._handle(kinds)) or is_more
        if not self._after:
            return False
        is_all = not is_more and not self._is_behind
        if is_all:
            self._after = {kinds: max(event, passed) for kinds, event in self._after.items()}
        if self._has_called or (is_all and not 0 <= self._now() - self._recorded_at <= _RECORD_EVERY):
            self._record_position()
        return is_more

    # --- the caller -----------------------------------------------------------------------------------------------

    def _is_caller(self) -> bool:
        """Is this foreman the caller now? If not, it drops its position."""
        self._workers = {worker.id: worker for worker in self._storage.workers()}
        own = self._workers.get(self._me())
        caller = None if own is None else caller_of(self._workers.values(), own, self._storage.now(), self._lease)
        if caller is None or caller.id != self._me():
            self._after = {}
        return caller is not None and caller.id == self._me()

    def _check_workers(self, now: int) -> int:
        """Start as the caller, or read the workers again. Return the event up to which all events are certainly
        visible."""
        passed, self._checked_at = self._newest, now
        if not self._after:
            self._begin(now)
            passed = 0
        self._newest = self._last(EventFilter())
        # Only foreign workers complete jobs without calling handlers; ours may complete thousands a second, so read
        # completed events only if there are foreign ones.
        self._has_foreign = any(map(is_foreign, self._workers.values())) or self._had_foreign()
        return passed

    def _had_foreign(self) -> bool:
        """Has a foreign worker started or ended since the last completed job that was read?"""
        where = EventFilter(subject=Subject.WORKER, kinds=_CAME_OR_WENT, after=self._after[_COMPLETED])
        found = self._storage.events(where, limit=_BATCH, newest_first=True)
        return len(found) == _BATCH or any(map(_is_of_foreign, found))

    # --- its position ---------------------------------------------------------------------------------------------

    def _begin(self, now: int) -> None:
        """Continue from the last position of the app; the first caller starts with the events since it joined."""
        self._caller_id = self._me()
        self._has_called, self._recorded_at = False, now
        position = self._last_position()
        if position is None:
            joined = self._last(EventFilter(subject=Subject.FOREMAN, kind=Kind.STARTED, owner=self._caller_id))
            self._after = {_ENDS: joined, _COMPLETED: joined}
            self._record_position()
        else:
            self._after = {_ENDS: position[0], _COMPLETED: position[1]}

    def _last_position(self) -> tuple[int, int] | None:
        """The last recorded position, if there still is one."""
        app, before = app_of(self._workers[self._caller_id]), None
        for _ in range(_MAX_EVENTS // _BATCH):
            positions = EventFilter(subject=Subject.FOREMAN, kind=Kind.STAT, before=before)
            found = self._storage.events(positions, limit=_BATCH, newest_first=True)
            for event in found:
                data = event.data or {}
                if _HANDLED_TO in data and data.get("target") == app:
                    ends, completed = data[_HANDLED_TO]
                    return int(ends), int(completed)
            if len(found) < _BATCH:
                break
            before = found[-1].id
        return None

    def _record_position(self) -> None:
        handled_to = [self._after[_ENDS], self._after[_COMPLETED]]
        self._storage.record_stat(
            self._caller_id, {_HANDLED_TO: handled_to, "target": app_of(self._workers[self._caller_id])}
        )
        self._has_called, self._recorded_at = False, self._now()

    def _last(self, where: EventFilter) -> int:
        return next((event.id for event in self._storage.events(where, limit=1, newest_first=True)), 0)

    # --- calling the handlers -------------------------------------------------------------------------------------

    def _handle(self, kinds: frozenset[Kind]) -> bool:
        """Handle the next ends of these kinds. Return whether there are more."""
        where = EventFilter(subject=Subject.JOB, kinds=kinds, after=self._after[kinds])
        found = self._storage.events(where, limit=_BATCH)
        if not found or not self._is_caller():
            return False
        unhandled = self._unhandled(found)
        if unhandled and not self._call(unhandled):
            self._is_behind = True
            return False  # until a worker is there
        self._has_called = self._has_called or bool(unhandled)
        self._after[kinds] = found[-1].id
        return len(found) == _BATCH

    def _unhandled(self, ends: Sequence[Event]) -> list[str]:
        """The jobs for which no worker of ours has called the handlers."""
        owners = {event.owner for event in ends if event.owner is not None} - self._workers.keys()
        last = {owner: self._last_of(owner) for owner in owners}
        return [event.job_id for event in ends if event.job_id is not None and self._is_unhandled(event, last)]

    def _is_unhandled(self, event: Event, last: Mapping[str, Event | None]) -> bool:
        """`last` has the last events of workers that are gone."""
        if event.owner is None:
            return True
        worker = self._workers.get(event.owner)
        if worker is not None:
            return is_foreign(worker)
        end = last[event.owner]
        if end is None:
            return False
        # With a `why`, the foreman wrote the end: it killed the worker that did not end the job.
        was_ended_for_it = "why" in (event.data or {})
        if (end.kind is Kind.DIED or was_ended_for_it) and event.kind is not Kind.COMPLETED:
            return True
        return _is_of_foreign(end)

    def _last_of(self, owner: str) -> Event | None:
        about = EventFilter(subject=Subject.WORKER, owner=owner)
        return next(iter(self._storage.events(about, limit=1, newest_first=True)), None)


def caller_of(workers: Iterable[WorkerInfo], own: WorkerInfo, now: int, lease: int) -> WorkerInfo | None:
    """The foreman that calls the handlers for the app of this foreman: of the living ones with result handlers, the
    first that joined. Those without active workers come last. None if none lives."""
    able = [
        each
        for each in workers
        if each.subject is Subject.FOREMAN and app_of(each) == app_of(own) and each.is_beating(now, now, lease)
        # Programs of an older version do not have this field, and never become the caller.
        if each.info.get(HAS_RESULT_HANDLERS)
    ]
    return min(able, key=lambda each: (not _has_workers(each), each.joined_at, each.id), default=None)


def _has_workers(foreman: WorkerInfo) -> bool:
    """Does it have a worker that is online, and one that stays? Its first heartbeat does not say."""
    return bool(foreman.report.get("online", True) and foreman.report.get("crew", True))


def app_of(foreman: WorkerInfo) -> Any:
    """Identifies the app of a foreman or of a pool."""
    return foreman.info.get("app") or foreman.info.get("target")


def is_foreign(worker: WorkerInfo) -> bool:
    """Is it a worker in another language, which has no result handlers?"""
    return worker.subject is Subject.WORKER and "python" not in worker.info


def _is_of_foreign(event: Event) -> bool:
    """Does this event of a worker show a foreign one?"""
    record = (event.data or {}).get("object")
    return isinstance(record, dict) and "python" not in (record.get("info") or {})
