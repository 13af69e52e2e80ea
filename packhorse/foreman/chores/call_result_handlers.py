"""Tell results: jobs that have ended in no worker of ours are told to one, which calls the users' result handlers.

A worker calls them itself for the jobs that it has run. Jobs that were aborted or expired while they waited, that a
foreign worker has ended, or whose worker has died for good, end without one. Of the foremen of one app that live, one
tells of them: the teller. It follows the events, and writes down after telling how far it has come, as an event of its
own: a mark. The next teller of the app goes on from the last mark, so each end is told at least once. What a teller had
told and not yet marked when it died is told again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from packhorse.core.clock import SECOND, Now
from packhorse.core.event import Event, Kind, Subject
from packhorse.core.settings import Settings
from packhorse.storage import Storage
from packhorse.storage.records import TELLS_RESULTS, EventFilter, WorkerInfo

Tell = Callable[[Sequence[str]], bool]
"""Hands the ids of jobs that have ended to a worker. False: there is none at the moment."""

_AT_ONCE = 500
_ENDS = frozenset({Kind.ABORTED, Kind.BROKEN})
_COMPLETED = frozenset({Kind.COMPLETED})
_CAME_OR_WENT = frozenset({Kind.STARTED, Kind.KILLED, Kind.DIED})
_TOLD_TO = "results_told_to"
"""Of a mark: the events up to which was told of jobs that came to nothing, and of completed ones."""
_MARK_EVERY = 600 * SECOND
_MOST_MARKS = 20_000
"""Events of foremen among which the last mark is looked for."""
_SEE_EVERY = 10 * SECOND
"""How often who is there is looked at while nothing has ended. It is also how long a storage waits for a slow
transaction before it shows the events after it: what is older can be passed over."""


class CallResultHandlers:
    """Follows the events if this foreman is the teller. `me` is its id. `now` measures how long ago something was done:
    it demand not be exact."""

    name = "tell_results"
    interval = 2.0

    def __init__(
        self, storage: Storage, settings: Settings, me: Callable[[], str], tell: Tell, now: Now | None = None
    ) -> None:
        self._storage = storage
        self._lease = settings.lease
        self._me = me
        self._tell = tell
        self._now = now or storage.approximate_now
        self._id = ""  # under which it became the teller
        self._after: dict[frozenset[Kind], int] = {}  # the events that were looked at, by their kinds; none: no teller
        self._workers: dict[str, WorkerInfo] = {}
        self._has_foreign = False
        self._newest = 0  # the newest event when it last looked who is there
        self._has_told = False  # since the last mark
        self._is_behind = False  # there was no worker to tell
        self._ran_at = self._seen_at = self._marked_at = 0

    def run(self) -> float | None:
        """Comes again at once if more has ended than one run tells of, and late if another one tells."""
        now = self._now()
        was_away = not 0 <= now - self._ran_at <= self._lease
        if was_away or self._me() != self._id:
            self._after = {}  # it may have been taken for dead, and another one have told since
        passed = 0
        if not self._after or not 0 <= now - self._seen_at < _SEE_EVERY:
            if not self._is_teller():
                return _SEE_EVERY / SECOND
            passed = self._review(now)
        is_more = self._look(passed)
        self._ran_at = now  # not if it could not reach the storage, which others may have reached
        return 0.05 if is_more else None

    def _look(self, passed: int) -> bool:
        """Tell of what has ended. If that was all, the events until `passed` demand not be read again. True: there is
        more."""
        self._is_behind = is_more = False
        for kinds in (_ENDS, _COMPLETED) if self._has_foreign else (_ENDS,):
            is_more = (bool(self._after) and self._look_at(kinds)) or is_more
        if not self._after:
            return False
        is_all = not is_more and not self._is_behind
        if is_all:
            self._after = {kinds: max(event, passed) for kinds, event in self._after.items()}
        if self._has_told or (is_all and not 0 <= self._now() - self._marked_at <= _MARK_EVERY):
            self._mark()
        return is_more

    # --- who tells ------------------------------------------------------------------------------------------------

    def _is_teller(self) -> bool:
        """Is it this foreman that tells now? If not, it keeps no place among the events."""
        self._workers = {worker.id: worker for worker in self._storage.workers()}
        own = self._workers.get(self._me())
        teller = None if own is None else teller_of(self._workers.values(), own, self._storage.now(), self._lease)
        if teller is None or teller.id != self._me():
            self._after = {}
        return teller is not None and teller.id == self._me()

    def _review(self, now: int) -> int:
        """The teller begins, or looks who is there. Answers the event up to which all are visible for sure."""
        passed, self._seen_at = self._newest, now
        if not self._after:
            self._begin(now)
            passed = 0
        self._newest = self._last(EventFilter())
        # Of what others complete nobody else tells; of ours there may be thousands a second, so these are not read.
        self._has_foreign = any(map(is_foreign, self._workers.values())) or self._had_foreign()
        return passed

    def _had_foreign(self) -> bool:
        """Has a foreign worker come or gone since the last job that was looked at was completed?"""
        where = EventFilter(subject=Subject.WORKER, kinds=_CAME_OR_WENT, after=self._after[_COMPLETED])
        found = self._storage.events(where, limit=_AT_ONCE, newest_first=True)
        return len(found) == _AT_ONCE or any(map(_is_of_foreign, found))

    # --- how far it has come --------------------------------------------------------------------------------------

    def _begin(self, now: int) -> None:
        """Go on from the last mark of the app; the first teller ever begins with what happened since it joined."""
        self._id = self._me()
        self._has_told, self._marked_at = False, now
        marked = self._last_mark()
        if marked is None:
            joined = self._last(EventFilter(subject=Subject.FOREMAN, kind=Kind.STARTED, owner=self._id))
            self._after = {_ENDS: joined, _COMPLETED: joined}
            self._mark()
        else:
            self._after = {_ENDS: marked[0], _COMPLETED: marked[1]}

    def _last_mark(self) -> tuple[int, int] | None:
        """None: there is none, or none any more."""
        app, before = app_of(self._workers[self._id]), None
        for _ in range(_MOST_MARKS // _AT_ONCE):
            marks = EventFilter(subject=Subject.FOREMAN, kind=Kind.STAT, before=before)
            found = self._storage.events(marks, limit=_AT_ONCE, newest_first=True)
            for event in found:
                data = event.data or {}
                if _TOLD_TO in data and data.get("target") == app:
                    ends, completed = data[_TOLD_TO]
                    return int(ends), int(completed)
            if len(found) < _AT_ONCE:
                break
            before = found[-1].id
        return None

    def _mark(self) -> None:
        told_to = [self._after[_ENDS], self._after[_COMPLETED]]
        self._storage.record_stat(self._id, {_TOLD_TO: told_to, "target": app_of(self._workers[self._id])})
        self._has_told, self._marked_at = False, self._now()

    def _last(self, where: EventFilter) -> int:
        return next((event.id for event in self._storage.events(where, limit=1, newest_first=True)), 0)

    # --- telling --------------------------------------------------------------------------------------------------

    def _look_at(self, kinds: frozenset[Kind]) -> bool:
        """Tell of the next ends of these kinds. True: there are more."""
        where = EventFilter(subject=Subject.JOB, kinds=kinds, after=self._after[kinds])
        found = self._storage.events(where, limit=_AT_ONCE)
        if not found or not self._is_teller():
            return False
        untold = self._untold(found)
        if untold and not self._tell(untold):
            self._is_behind = True
            return False  # a worker will be there the next time
        self._has_told = self._has_told or bool(untold)
        self._after[kinds] = found[-1].id
        return len(found) == _AT_ONCE

    def _untold(self, ends: Sequence[Event]) -> list[str]:
        """The jobs of which no worker of ours has told by itself."""
        owners = {event.owner for event in ends if event.owner is not None} - self._workers.keys()
        last = {owner: self._last_of(owner) for owner in owners}
        return [event.job_id for event in ends if event.job_id is not None and self._is_untold(event, last)]

    def _is_untold(self, event: Event, last: Mapping[str, Event | None]) -> bool:
        """`last` has the last events of workers that are gone."""
        if event.owner is None:
            return True
        worker = self._workers.get(event.owner)
        if worker is not None:
            return is_foreign(worker)
        end = last[event.owner]
        if end is None:
            return False
        # Somebody else says why it ended: its worker was killed because it did not end it.
        was_ended_for_it = "why" in (event.data or {})
        if (end.kind is Kind.DIED or was_ended_for_it) and event.kind is not Kind.COMPLETED:
            return True
        return _is_of_foreign(end)

    def _last_of(self, owner: str) -> Event | None:
        about = EventFilter(subject=Subject.WORKER, owner=owner)
        return next(iter(self._storage.events(about, limit=1, newest_first=True)), None)


def teller_of(workers: Iterable[WorkerInfo], own: WorkerInfo, now: int, lease: int) -> WorkerInfo | None:
    """Who tells for the app of this foreman: of those that live, and have result handlers, the one that joined first.
    One that has no worker that takes jobs could tell nobody, so it comes after those that have. None: none lives."""
    able = [
        each
        for each in workers
        if each.subject is Subject.FOREMAN and app_of(each) == app_of(own) and each.is_beating(now, now, lease)
        # One of an older program does not say: it tells of a part only, and so is never the one.
        if each.info.get(TELLS_RESULTS)
    ]
    return min(able, key=lambda each: (not _has_workers(each), each.joined_at, each.id), default=None)


def _has_workers(foreman: WorkerInfo) -> bool:
    """Has it a worker that is there, and one that does not just end? It does not say so with its first heartbeat."""
    return bool(foreman.report.get("online", True) and foreman.report.get("crew", True))


def app_of(foreman: WorkerInfo) -> Any:
    """By what the app of a foreman, or of a pool, is known."""
    return foreman.info.get("app") or foreman.info.get("target")


def is_foreign(worker: WorkerInfo) -> bool:
    """Is it a worker without our code, which knows of no result handlers?"""
    return worker.subject is Subject.WORKER and "python" not in worker.info


def _is_of_foreign(event: Event) -> bool:
    """The same for an event of a worker."""
    told = (event.data or {}).get("object")
    return isinstance(told, dict) and "python" not in (told.get("info") or {})
