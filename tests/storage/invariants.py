"""Laws that hold for every job of every storage after every step, whatever was done before.

The model test asks them of what a storage says about itself, so they also see a bug that all storages share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from packhorse.core.event import Event, Kind
from packhorse.core.job import FINAL, HELD, QUEUED, RANK_HALTED, RETRYING, RUNNING, SCHEDULED, UNFINISHED, Job, rank_of
from packhorse.core.outcome import Failure
from packhorse.core.transitions import CHOSEN
from packhorse.monitor.replay import Object, replay, unknown_in
from packhorse.storage.records import Tally

# What ends a holding, once for each time that a job was reserved. `aborted` and `readded` do so when they name the
# worker that held the job: one that was waiting is aborted, and one that failed is readded, in nobody's hands.
_ALWAYS_ENDS = frozenset({Kind.COMPLETED, Kind.FAILED, Kind.BROKEN, Kind.SNOOZED, Kind.HALTED})
_ENDS_WITH_OWNER = frozenset({Kind.ABORTED, Kind.READDED})


def check_job(job: Job) -> None:
    """The fields of one job agree with its state."""
    state = job.state
    assert (job.owner is not None) == (state in HELD), f"owner {job.owner} of a {state} job"
    assert (job.due_at is not None) == (state in (SCHEDULED, RETRYING)), f"due_at of a {state} job"
    assert (job.finished_at is not None) == (state in FINAL), f"finished_at of a {state} job"
    assert job.abort_at is None or state in HELD | FINAL, f"a {state} job is asked to stop, and nobody hears it"
    assert (job.abort_at is None) == (job.abort_reason is None)
    assert job.expire_at is None or state in UNFINISHED, f"a {state} job can still expire"
    assert job.queued_at is not None or state is not QUEUED
    assert job.started_at is not None or state is not RUNNING
    assert job.started_at is not None or job.ran_until is None, "it was measured, and never began"
    assert job.rank <= RANK_HALTED or job.rank == rank_of(job.priority), f"rank {job.rank}, priority {job.priority}"
    assert job.halts <= job.losses, "a halt is a loss"


def check_history(job: Job | None, events: Sequence[Event]) -> None:
    """A job and all events of its id, from the first on, tell the same story. None: it was deleted."""
    if job is None:
        assert not events or events[-1].kind is Kind.DELETED, "a job is gone and no event says so"
        return
    assert events, "a job without an event"
    assert events[-1].kind is not Kind.DELETED, "a deleted job is still there"
    assert events[-1].state == job.state, f"the job is {job.state}, its last event says {events[-1].state}"
    check_holdings(events, held=int(job.state in HELD))
    life = _last_life(events)
    fences = [event.fence or 0 for event in life if event.kind is Kind.RESERVED]
    assert fences == sorted(set(fences)), f"the fence did not rise: {fences}"
    assert job.fence >= max(fences, default=0)
    assert job.state not in HELD or job.fence == fences[-1], "held with another fence than it was reserved with"
    begun = [event.kind for event in life].count(Kind.STARTED)
    assert job.attempts == begun, f"{job.attempts} attempts are counted, {begun} are told"


_MAY_BE_UNKNOWN = {"updated_at", "progress", "progress_text", "checkin", "checkin_at"}
_NOT_REPLAYED = {
    name: -1
    for name in Job.__struct_fields__
    if name not in (*CHOSEN, "id", "seq", "created_by", "args", "meta", "result", "error", "cause", "state")
    and name not in _MAY_BE_UNKNOWN
}


def check_replay(job: Job | None, events: Sequence[Event], past: Sequence[tuple[int, Job]]) -> None:
    """The events of a job add up to it, and to what it was before: `past` has the number of its events at some moments,
    and how it was stored then. What follows from a part of the events, is what follows from all of them."""
    objects = replay(events, None if job is None else replace(job, **_NOT_REPLAYED))
    if job is not None and job.state not in HELD:
        assert set(unknown_in(objects[-1])) <= _MAY_BE_UNKNOWN, f"not known: {unknown_in(objects[-1])}"
        _check_agrees(objects[-1], job, is_latest=True)
    for number, then in past:
        _check_agrees(objects[number - 1], then)
    for start in range(1, min(len(events), 6)):
        for part, whole in zip(replay(events[start:], job), objects[start:], strict=True):
            wrong = {name: (part[name], whole[name]) for name in part if name in whole and part[name] != whole[name]}
            assert not wrong, f"without its first {start} events: {wrong}"


def _check_agrees(told: Object, job: Job, *, is_latest: bool = False) -> None:
    """What was replayed is what was stored, as far as it is known."""
    if job.state in HELD:  # its signs of life change these, and are no events
        told = {name: value for name, value in told.items() if name not in _MAY_BE_UNKNOWN}
    if not is_latest and told.get("error") is not None and job.error is not None:
        short, whole = Failure.from_json(told["error"]), Failure.from_json(job.error)
        assert whole.summary().startswith(short.summary())
        assert whole.version == short.version
        told = {**told, "error": job.error}
    wrong = {name: (value, getattr(job, name)) for name, value in told.items() if value != getattr(job, name)}
    assert not wrong, f"told, and stored: {wrong}"


def check_holdings(events: Iterable[Event], held: int) -> None:
    """Nothing is lost and nothing ends twice: each time that a job was reserved has one end, or goes on."""
    reserved = ended = 0
    for event in events:
        reserved += event.kind is Kind.RESERVED
        ended += event.kind in _ALWAYS_ENDS or (event.kind in _ENDS_WITH_OWNER and event.owner is not None)
    assert reserved == ended + held, f"reserved {reserved} times, ended {ended} times, held {held}"


def check_pruned(before: Sequence[Event], after: Sequence[Event], moment: int, limit: int) -> None:
    """Of the oldest events that were there, those up to this moment are gone, but for the newest; none of them if the
    very oldest is younger. Nothing else is gone."""
    left = {event.id for event in after}
    gone = [event for event in before if event.id not in left]
    assert all(event.at <= moment for event in gone), f"pruned too early: {gone}"
    past = [event for event in before[: limit + 1] if event.at <= moment and event is not before[-1]]
    expected = past[:limit] if before and before[0].at <= moment else []
    assert gone == expected, f"{len(gone)} events are gone, {len(expected)} are past"


def check_tallies(told: Iterable[Tally], jobs: Iterable[Job]) -> None:
    """The tallies are what counting gives."""
    counted = Counter((job.queue, job.task, job.state) for job in jobs)
    assert {(one.queue, one.task, one.state): one.number for one in told if one.number} == counted


def check_unique(jobs: Iterable[Job], keys: Iterable[str]) -> None:
    """Each of these keys, which nobody may replace and which no period holds, has at most one unfinished job."""
    holders = Counter(job.unique_key for job in jobs if job.state in UNFINISHED)
    for key in keys:
        assert holders[key] <= 1, f"{holders[key]} unfinished jobs hold the key {key!r}"


def _last_life(events: Sequence[Event]) -> Sequence[Event]:
    """An id that was deleted may be enqueued again, and begins with fence 0."""
    for place in range(len(events), 0, -1):
        if events[place - 1].kind is Kind.DELETED:
            return events[place:]
    return events
