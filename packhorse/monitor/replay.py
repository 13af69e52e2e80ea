"""Rebuild a job as it was after each of its events.

`event_objects.py` reads what is needed and calls this. An object is a dict with the names of `Job`. A missing name is
not known: the event that had it was pruned, or only the job itself had it, and the job is gone. What a job reports
about itself (progress, check-ins) has no event: it is known before a worker takes the job, and after the last attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from packhorse.core.event import Event, Kind
from packhorse.core.job import (
    FINAL,
    HELD,
    QUEUED,
    RANK_FORCED,
    RANK_HALTED,
    RANK_RECOVERED,
    RETRYING,
    RUNNING,
    Job,
    Reason,
    State,
    rank_of,
)
from packhorse.core.outcome import Failure
from packhorse.core.transitions import CHOSEN, LONGEST_TOLD

_KEPT = ("seq", "created_by")  # never changes
_LASTING = (*_KEPT, *CHOSEN)
_REPLACEABLE = (*CHOSEN, "args", "meta")
_SAID = ("progress", "progress_text", "checkin", "checkin_at")
_COUNTERS = ("attempts", "failures", "halts", "losses", "snoozes")
_LATEST = ("error", "cause", *_SAID)  # the stored job has the values of its latest attempt
_ABSENT = (
    "due_at", "queued_at", "first_queued_at", "started_at", "ran_until", "finished_at", "owner", "last_owner",
    "abort_at", "abort_reason", "reason", "result", *_LATEST,
)  # fmt: skip

Object = dict[str, Any]


def replay(events: Sequence[Event], stored: Job | None) -> list[Object]:
    """Return the job after each of these events. They are all its own, in order, up to the latest. `stored` is the job
    as it is now, None if it is gone; it has the options that were set when the job was enqueued."""
    objects: list[Object] = []
    for life, is_last in _lives(events):
        objects += _Replay(life, stored if is_last else None).objects()
    return objects


def unknown_in(job: Object) -> list[str]:
    """The names of the job's fields that are not known any more."""
    return [name for name in Job.__struct_fields__ if name not in job]


def _lives(events: Sequence[Event]) -> Iterator[tuple[Sequence[Event], bool]]:
    """Split the events into lives: an id that was deleted may be enqueued again."""
    start = 0
    for place, event in enumerate(events):
        if event.kind is Kind.ADDED and place > start:
            yield events[start:place], False
            start = place
    if events:
        yield events[start:], events[-1].kind is not Kind.DELETED


def _chosen(events: Sequence[Event], stored: Job | None) -> list[Object]:
    """Return the job's options after each event, going back from the present ones. An event that changed an option has
    the old value too."""
    known = {} if stored is None else {name: getattr(stored, name) for name in (*_KEPT, *_REPLACEABLE)}
    chosen: list[Object] = []
    for event in reversed(events):
        facts = event.data or {}
        if event.kind is Kind.PRIORITY_CHANGED:
            chosen.append({**known, "priority": facts["to"]})
            known = {**known, "priority": facts["from"]}
            continue
        chosen.append(known)
        if event.kind is Kind.QUEUE_CHANGED:
            known = {**known, **facts.get("before", {})}
        if event.kind is Kind.REPLACED:
            is_told = "before" in facts  # older versions leave it out
            args = {"args": facts["args"]} if len(facts["args"]) < LONGEST_TOLD else {}
            lasting = {name: value for name, value in known.items() if name in (_LASTING if is_told else _KEPT)}
            known = {**lasting, **facts.get("before", {}), **args}
    return chosen[::-1]


class _Replay:
    """One life of a job: from an `added` event to the last event about it."""

    def __init__(self, events: Sequence[Event], stored: Job | None) -> None:
        self._events = events
        self._stored = stored
        self._job: Object = {}
        self._place = 0
        self._touched = dict.fromkeys(_LATEST, -1)  # the position of the event that changed it last

    def objects(self) -> list[Object]:
        chosen, found = _chosen(self._events, self._stored), []
        for place, event in enumerate(self._events):
            self._place = place
            if event.kind is Kind.REPLACED:
                self._forget(*_REPLACEABLE)
            self._job |= chosen[place]
            self._apply(event)
            found.append((dict(self._job), dict(self._touched)))
        for job, touched in found:
            job |= {name: value for name, value in self._latest().items() if touched[name] == self._touched[name]}
            _set_expiry(job)
        return [job for job, _ in found]

    def _latest(self) -> Object:
        """The stored values of what changed last. A held job may have reported its progress after any of its events, so
        that is left out."""
        job = self._stored
        if job is None:
            return {}
        is_talking = job.state in HELD and job.checkin_at is not None
        return {name: getattr(job, name) for name in _LATEST if not (is_talking and name in _SAID)}

    def _apply(self, event: Event) -> None:
        self._event = event
        self._facts = event.data or {}
        self._before = self._job.get("state")
        self._job |= {"id": event.job_id, "queue": event.queue, "state": event.state}
        if event.state in _STATES:
            self._job["state"] = State(event.state)
        if event.kind is not Kind.READDED:
            self._job.setdefault("fence", event.fence or 0)
        if event.kind not in (Kind.HANDLED, Kind.DELETED):  # which do not change the job
            self._job["updated_at"] = event.at
        step = _STEPS.get(event.kind)
        if step is not None:
            step(self)
        else:  # from a newer version: its effect is not known
            known = {"id", "queue", "state", "created_at", *_KEPT}
            self._forget(*(name for name in Job.__struct_fields__ if name not in known))

    # --- pieces of a step -----------------------------------------------------------------------------------------

    def _set(self, **fields: Any) -> None:
        self._job |= fields
        self._touched |= {name: self._place for name in fields if name in self._touched}

    def _reset(self, names: Iterable[str]) -> None:
        self._set(**dict.fromkeys(names))

    def _forget(self, *names: str) -> None:
        """Mark these as unknown: no event has them."""
        self._reset(names)
        for name in names:
            del self._job[name]

    def _count(self, name: str) -> None:
        if name in self._job:
            self._job[name] += 1

    def _put_in_rank(self) -> None:
        """Give it its ordinary place in line."""
        self._forget("rank")
        if "priority" in self._job:
            self._job["rank"] = rank_of(self._job["priority"])

    def _keep_better_rank(self) -> None:
        """Give it its ordinary place in line, unless it was forced, halted or recovered."""
        if self._job.get("rank", RANK_FORCED) > RANK_HALTED:
            self._put_in_rank()

    def _end_halt(self) -> None:
        """Clear the halt: it ran again, and its worker did not die."""
        if "reason" not in self._job:
            self._forget("reason")
        elif self._job["reason"] is Reason.RUNNER_TIMEOUT:
            self._set(reason=None)
        if self._job.get("rank") in (RANK_RECOVERED, RANK_HALTED):
            self._put_in_rank()

    def _put_in_line(self) -> None:
        self._set(due_at=None, queued_at=self._event.at)
        if self._job.get("first_queued_at", 0) is None:
            self._set(first_queued_at=self._event.at)

    def _leave(self, **fields: Any) -> None:
        """Take it from its worker, or out of the line."""
        self._set(owner=None, due_at=None, finished_at=self._event.at if self._event.state in FINAL else None, **fields)
        if self._event.owner is not None:
            self._set(last_owner=self._event.owner)
            self._forget(*_SAID)
        if self._before in (RUNNING, None):
            self._forget("ran_until")
        if self._before is RUNNING and not self._facts.get("ran"):
            self._set(ran_until=None)
        elif self._before is RUNNING and self._job.get("started_at") is not None:
            self._set(ran_until=self._job["started_at"] + self._facts["ran"])

    def _take_away(self) -> None:
        """Invalidate its token, which ended without an outcome of its own."""
        self._set(fence=(self._event.fence or 0) + 1)

    def _fail(self) -> None:
        self._leave(reason=self._reason())
        self._count("failures")
        self._blame()
        if "why" in self._facts:  # it timed out and was taken from its worker
            self._take_away()

    def _halt(self) -> None:
        self._leave(reason=Reason.RUNNER_TIMEOUT)
        self._take_away()
        self._set(halts=self._facts["halts"])
        self._count("losses")
        failure = Failure("WorkerDied", self._facts["why"], version=self._facts.get("version"))
        self._forget("cause")
        self._set(error=failure.to_json())
        if "task" in self._job:
            self._set(cause=failure.cause(self._job["task"]))

    def _blame(self) -> None:
        """Set the error, of which the event has only the first characters."""
        kind, _, message = self._facts["error"].partition(": ")
        self._set(error=Failure(kind, message, version=self._facts.get("version")).to_json())
        self._forget("cause")

    def _reason(self) -> Reason | None:
        return Reason(self._facts["reason"]) if "reason" in self._facts else None

    # --- what each kind does; as `changes.py`, which wrote it -------------------------------------------------------

    def _added(self) -> None:
        at = self._event.at if self._event.state == QUEUED else None
        self._reset(_ABSENT)
        self._set(**dict.fromkeys(_COUNTERS, 0), fence=0, created_at=self._event.at)
        self._set(due_at=self._facts.get("due_at"), queued_at=at, first_queued_at=at)
        self._put_in_rank()

    def _replaced(self) -> None:
        self._reset(name for name in _ABSENT if name not in ("first_queued_at", "last_owner"))
        self._set(failures=0, due_at=self._facts.get("due_at"))
        self._set(queued_at=self._event.at if self._event.state == QUEUED else None)
        self._keep_better_rank()

    def _readded(self) -> None:
        if self._event.owner is not None:
            self._leave()
            self._take_away()
        if self._before is RUNNING and self._event.owner is not None:
            self._end_halt()
        if "losses" in self._facts:
            self._set(losses=self._facts["losses"])
        if self._facts.get("why") == "recovered":
            self._set(rank=RANK_RECOVERED)
        if self._event.state == QUEUED:
            self._put_in_line()
        else:
            self._set(due_at=self._event.at + self._facts["delay"])

    def _reserved(self) -> None:
        self._set(owner=self._event.owner, fence=self._event.fence)
        self._reset(("due_at", "finished_at", "abort_at", "abort_reason", *_SAID))

    def _started(self) -> None:
        self._set(owner=self._event.owner, fence=self._event.fence, started_at=self._event.at)
        self._count("attempts")
        # The event may be stored late, after the job has reported something.
        self._forget("updated_at", *_SAID)

    def _completed(self) -> None:
        self._leave(reason=None, error=None, cause=None)
        self._forget("result")
        if self._stored is not None:
            self._set(result=self._stored.result)  # only deleting can follow

    def _failed(self) -> None:
        self._fail()
        if self._facts["retry_in"]:
            self._set(due_at=self._event.at + self._facts["retry_in"])
        self._put_in_rank()

    def _broken(self) -> None:
        self._halt() if "halts" in self._facts else self._fail()

    def _halted(self) -> None:
        self._halt()
        self._put_in_rank()
        if self._facts["halts"] == 1:
            self._set(rank=RANK_HALTED)
        self._put_in_line()

    def _snoozed(self) -> None:
        self._leave()
        self._end_halt()
        self._count("snoozes")
        self._set(due_at=self._event.at + self._facts["delay"])
        self._put_in_rank()

    def _abort_asked(self) -> None:
        self._set(owner=self._event.owner, fence=self._event.fence)
        self._set(abort_at=self._event.at, abort_reason=self._reason())
        self._forget(*_SAID)

    def _aborted(self) -> None:
        self._leave(reason=self._reason())
        self._set(**{name: self._facts[name] for name in _COUNTERS if name in self._facts})
        if "error" in self._facts:
            self._blame()
        if "why" in self._facts:
            self._take_away()

    def _force_started(self) -> None:
        if self._before is None:
            self._forget("queued_at", "first_queued_at")
        elif self._before is not QUEUED:
            self._put_in_line()
        self._set(rank=RANK_FORCED, due_at=None)

    def _retried(self) -> None:
        if self._before is None:
            self._forget("failures", "halts", "reason", "first_queued_at")
        elif self._before is not RETRYING:
            self._set(failures=0, halts=0, reason=None, first_queued_at=None)
        self._reset(("finished_at", "abort_at", "abort_reason"))
        self._put_in_line()
        self._put_in_rank()

    def _nothing_more(self) -> None:
        """The queue and state of the event are all that changed."""


_STATES = frozenset(State)
_STEPS: dict[str, Callable[[_Replay], None]] = {
    Kind.ADDED: _Replay._added,
    Kind.QUEUED: _Replay._put_in_line,
    Kind.RESERVED: _Replay._reserved,
    Kind.STARTED: _Replay._started,
    Kind.COMPLETED: _Replay._completed,
    Kind.FAILED: _Replay._failed,
    Kind.READDED: _Replay._readded,
    Kind.BROKEN: _Replay._broken,
    Kind.HALTED: _Replay._halted,
    Kind.SNOOZED: _Replay._snoozed,
    Kind.ABORT_ASKED: _Replay._abort_asked,
    Kind.ABORTED: _Replay._aborted,
    Kind.FORCE_STARTED: _Replay._force_started,
    Kind.PRIORITY_CHANGED: _Replay._keep_better_rank,
    Kind.QUEUE_CHANGED: _Replay._nothing_more,
    Kind.RETRIED: _Replay._retried,
    Kind.REPLACED: _Replay._replaced,
    Kind.HANDLED: _Replay._nothing_more,
    Kind.DELETED: _Replay._nothing_more,
}


def _set_expiry(job: Object) -> None:
    """Set when it would be aborted, if everything that decides this is known."""
    if job["state"] in FINAL or (job["state"] in HELD and job.get("abort_at") is not None):
        job["expire_at"] = None
        return
    limits = [("total_timeout", "first_queued_at")]
    limits += [("expires", "queued_at")] if job["state"] == QUEUED else []
    if any(name not in job for limit in limits for name in limit):
        job.pop("expire_at", None)
        return
    moments = [job[since] + job[limit] for limit, since in limits if None not in (job[limit], job[since])]
    job["expire_at"] = min(moments, default=None)
