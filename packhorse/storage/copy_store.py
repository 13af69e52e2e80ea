"""Copy a storage to another one, which may be of another kind: what `packhorse copy-store` does.

The source is closed: it takes no jobs and hands none out, and jobs that workers hold may end. Then nothing in it
changes any more, and it is copied page by page. The progress is stored in the target, in the same step as each page, so
an interrupted copy continues where it ended. The last steps mark the source as moved and open the target. No job is in
two open storages at any time, so none is lost and none runs twice."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from packhorse.core.clock import SECOND
from packhorse.core.errors import CopyRefused, CopyTimeout
from packhorse.core.event import Event
from packhorse.core.ids import new_id
from packhorse.core.job import HELD
from packhorse.storage import BATCH, Storage
from packhorse.storage.records import EventFilter, Filter
from packhorse.storage.transfer import Move, Section, Stage

SECTIONS = tuple(Section)
DONE = "done"
"""In place of a section: all are copied."""
_LOOK = 0.2
_SUM = 1 << 61
_encode = msgspec.json.Encoder().encode


class End(NamedTuple):
    """One of the two storages, and its address without the password."""

    storage: Storage
    address: str


class Progress(NamedTuple):
    """The progress of a copy: rows done, of about how many, and what it does now."""

    done: int
    total: int
    doing: str


Report = Callable[[Progress], None]


class Drain(NamedTuple):
    """How to wait for held jobs."""

    patience: float
    lease: int
    report: Report


def copy_storage(
    source: End, target: End, *, patience: float = 600.0, lease: int = 15 * SECOND, report: Report = lambda _: None
) -> dict[str, int]:
    """Move everything from one storage to the other, or continue an interrupted copy between the two. Waits up to
    `patience` seconds for held jobs; jobs of workers that are silent for the lease, or for their own longer one, are
    taken back. Return how many rows of each section are in the target, which is open then.

    Raises `CopyRefused` when the target is not empty, or one of them belongs to another copy."""
    mark = _begin(source, target)
    _close(source, target, mark, Drain(patience, lease, report))
    mark = _copy_all(source, target, mark, report)
    _verify(source, target, mark, report)
    _hand_over(source, target, mark)
    return dict(mark.counts)


def check_apart(source: End, target: End) -> None:
    """Raise `CopyRefused` if both have the same address."""
    if source.address == target.address:
        raise CopyRefused(f"{source.address} and {target.address} are the same storage", hint="name another to copy to")


def cancel(source: End) -> Move:
    """Open a source again whose copy was interrupted. The target stays closed, unless it has received nothing: then it
    is opened by calling this with it. Return the mark that is removed."""
    mark = source.storage.move()
    if mark is None:
        raise CopyRefused(f"{source.address} is not being moved")
    if mark.stage is Stage.MOVED:
        raise CopyRefused(f"{source.address} was moved to {mark.other}", hint=f"use that one: {mark.other}")
    if mark.stage is Stage.FILLING and mark.section:
        raise CopyRefused(
            f"{source.address} has a part of what is in {mark.other}, which is copied to it",
            hint=f"packhorse copy-store {mark.other} --cancel opens that one; then empty this one",
        )
    _set(source, None, mark)
    return mark


# --- starting --------------------------------------------------------------------------------------------------------


def _begin(source: End, target: End) -> Move:
    """The mark of the target: a new one, or that of the copy that continues."""
    check_apart(source, target)
    left, filled = source.storage.move(), target.storage.move()
    if left is not None and left.stage is Stage.FILLING:
        raise CopyRefused(
            f"{source.address} is itself being filled from {left.other}", hint="wait until that copy has ended"
        )
    if left is not None and filled is not None and left.copy == filled.copy:
        return _check_empty(source, target, filled)
    if filled is None:
        if left is not None and left.stage is not Stage.MOVED and left.other == target.address:
            raise CopyRefused(
                f"{target.address} no longer knows the copy that had begun", hint=_cancel_hint(source.address)
            )
        if left is not None:
            verb = "was moved" if left.stage is Stage.MOVED else "is being moved"
            raise CopyRefused(f"{source.address} {verb} to {left.other}", hint=_hint_for(left, source.address))
        return _check_empty(source, target, _begin_new(source, target))
    if filled.stage is not Stage.FILLING or filled.other != source.address:
        raise CopyRefused(_belongs_elsewhere(target, filled), hint="name another storage to copy to")
    if left is None and filled.section:
        raise CopyRefused(f"{target.address} has a part of a copy that was cancelled", hint=_emptied(target.address))
    if left is not None:
        raise CopyRefused(
            f"{target.address} has a part of another copy of {source.address}", hint=_emptied(target.address)
        )
    return _check_empty(source, target, filled)


def _begin_new(source: End, target: End) -> Move:
    there = _contents(target.storage)
    if there and _latest(source.storage) == _latest(target.storage) != []:
        # Otherwise the hint to empty one would destroy the other.
        what = f"{source.address} and {target.address} seem to be the same storage: both have the same latest event"
        raise CopyRefused(what, hint="nothing was changed; name another storage to copy to")
    if there:
        raise _not_empty(target, there)
    target.storage.announce([], order=source.storage.poll("", []).order)
    mark = Move(new_id(), Stage.FILLING, source.address, target.storage.now())
    _set(target, mark, None)
    if source.storage.move() == mark:
        _set(target, None, mark)
        raise CopyRefused(f"{source.address} and {target.address} are the same storage")
    return mark


def _check_empty(source: End, target: End, mark: Move) -> Move:
    """Now that the target is closed, check that nothing was stored in it before: it would mix with the copy."""
    there = "" if mark.section else _contents(target.storage)
    if not there:
        return mark
    if source.storage.move() is None:
        _set(target, None, mark)
        raise _not_empty(target, there)
    raise CopyRefused(f"{target.address} is not empty: it has {there}", hint=_cancel_hint(source.address))


def _not_empty(target: End, there: str) -> CopyRefused:
    return CopyRefused(
        f"{target.address} is not empty: it has {there}", hint=f"nothing was changed; {_emptied(target.address)}"
    )


def _emptied(address: str) -> str:
    """How to empty a storage, and what to name instead."""
    kind = address.partition(":")[0].partition("+")[0]
    if kind == "sqlite":
        file = address.removeprefix("sqlite:///")
        return f"name a file that is not there yet, or remove {file}, {file}-wal and {file}-shm if you do not need them"
    if kind in ("redis", "rediss", "unix"):
        return "name another database of the server, e.g. redis://localhost/1, or empty this one: FLUSHDB"
    return "name another database, or drop the tables packhorse_… in this one if you do not need them"


def _contents(storage: Storage) -> str:
    """What a storage contains, in words; empty if nothing."""
    jobs = sum(tally.number for tally in storage.tallies()) or len(storage.find(Filter(), limit=1).jobs)
    if jobs:
        return _jobs(jobs)
    if storage.events(EventFilter(), limit=1):
        return "events of jobs that are gone, or of workers"
    others: dict[str, Callable[[], Sequence[object]]] = {
        "schedules": storage.schedules,
        "tasks that were announced": storage.tasks,
        "queues": storage.queues,
        "clients": storage.clients,
        "failures": storage.failures,
    }
    return next((name for name, found in others.items() if found()), "")


def _latest(storage: Storage) -> list[Event]:
    return storage.events(EventFilter(), limit=1, newest_first=True)


def _belongs_elsewhere(target: End, mark: Move) -> str:
    if mark.stage is Stage.FILLING:
        return f"{target.address} is being filled from {mark.other}"
    return f"{target.address} {'was' if mark.stage is Stage.MOVED else 'is being'} moved to {mark.other}"


def _hint_for(mark: Move, address: str) -> str:
    return f"use that one: {mark.other}" if mark.stage is Stage.MOVED else _cancel_hint(address)


def _cancel_hint(address: str) -> str:
    return f"packhorse copy-store {address} --cancel opens it again"


# --- closing ----------------------------------------------------------------------------------------------------------


def _close(source: End, target: End, filling: Move, drain: Drain) -> None:
    """Close the source: nothing in it changes any more when this returns."""
    mark = source.storage.move()
    if mark is None:
        mark = Move(filling.copy, Stage.CLOSING, target.address, source.storage.now())
        _set(source, mark, None)
    if mark.stage is Stage.CLOSING:
        try:
            _wait_for_held(source.storage, drain)
        except BaseException:
            # Nothing is copied yet: open the storage again.
            source.storage.set_move(None, expected=mark)
            target.storage.set_move(None, expected=filling)
            raise
        _set(source, replace(mark, stage=Stage.FROZEN), mark)


def _wait_for_held(storage: Storage, drain: Drain) -> None:
    began_at = time.monotonic()
    while held := _number_held(storage):
        waited = time.monotonic() - began_at
        if waited > drain.patience:
            raise CopyTimeout(
                f"{_jobs(held)} did not end in time; nothing was copied, and the storage is open again",
                hint="wait longer with --wait, or see which: packhorse jobs held",
            )
        if waited * SECOND > _longest_lease(storage, drain):  # a living worker has beaten since
            storage.rescue(lease=drain.lease, why="silent while the storage was closed for copying")
        drain.report(Progress(0, 1, f"waiting for {_jobs(held)} that workers hold"))
        time.sleep(min(_LOOK, max(drain.patience - waited, 0.001)))


def _longest_lease(storage: Storage, drain: Drain) -> int:
    return max((each.lease_for(drain.lease) for each in storage.workers()), default=drain.lease)


def _number_held(storage: Storage) -> int:
    """Count held jobs one by one. A tally may be off by one, and that job would run in both."""
    number, cursor = 0, None
    while True:
        page = storage.find(Filter(states=HELD), cursor=cursor, limit=BATCH)
        number, cursor = number + len(page.jobs), page.next
        if cursor is None:
            return number


def _jobs(number: int) -> str:
    return "1 job" if number == 1 else f"{number:,} jobs"


# --- copying ----------------------------------------------------------------------------------------------------------


def _copy_all(source: End, target: End, mark: Move, report: Report) -> Move:
    total = _about_how_many(source.storage)
    while mark.section != DONE:
        section = Section(mark.section or SECTIONS[0])
        page = source.storage.dump(section, cursor=mark.cursor, limit=BATCH)
        after = replace(
            mark,
            section=section if page.next is not None else _following(section),
            cursor=page.next,
            counts=_added(mark.counts, section, len(page.rows)),
            sums=_added(mark.sums, section, checksum(page.rows)),
        )
        # If the answer was lost, the mark is there already.
        if not target.storage.load(section, page.rows, after, expected=mark) and target.storage.move() != after:
            raise CopyRefused(f"another process copies to {target.address} too", hint="let one of them end")
        mark = after
        done = sum(mark.counts.values())
        report(Progress(done, max(total, done), f"copying {section}"))
    return mark


def _about_how_many(storage: Storage) -> int:
    """Jobs and events, which are nearly all rows."""
    oldest = storage.events(EventFilter(), limit=1)
    newest = storage.events(EventFilter(), limit=1, newest_first=True)
    events = (newest[0].id - oldest[0].id) // storage.event_stride + 1 if oldest and newest else 0
    return sum(tally.number for tally in storage.tallies()) + events


def _following(section: Section) -> str:
    return {**dict(itertools.pairwise(SECTIONS)), SECTIONS[-1]: DONE}[section]


def _added(numbers: dict[str, int], section: Section, number: int) -> dict[str, int]:
    return {**numbers, section.value: (numbers.get(section.value, 0) + number) % _SUM}


def checksum(rows: list[msgspec.Struct]) -> int:
    """A checksum of rows in any order: two storages with the same number have the same rows."""
    return sum(int.from_bytes(blake2b(_encode(row), digest_size=7).digest(), "big") for row in rows) % _SUM


# --- ending -----------------------------------------------------------------------------------------------------------


def _verify(source: End, target: End, mark: Move, report: Report) -> None:
    """Read everything back from the target: as many rows as the source had, and the same ones."""
    total, done = sum(mark.counts.values()), 0
    places: Counter[tuple[str, str, str]] = Counter()
    for section in SECTIONS:
        cursor, number, found = None, 0, 0
        while True:
            page = target.storage.dump(section, cursor=cursor, limit=BATCH)
            number, found = number + len(page.rows), (found + checksum(page.rows)) % _SUM
            done += len(page.rows)
            if section is Section.JOBS:
                places.update((job.queue, job.task, job.state.value) for job in page.rows)
            report(Progress(done, max(total, done), f"checking {section}"))
            if (cursor := page.next) is None:
                break
        if (number, found) != (mark.counts.get(section.value, 0), mark.sums.get(section.value, 0)):
            raise CopyRefused(
                f"the {section} in {target.address} are not those of {source.address}: {number:,} of"
                f" {mark.counts.get(section.value, 0):,}, or changed",
                hint=f"nothing is lost: {_cancel_hint(source.address)}",
            )
    # Counted from the jobs themselves: the source may count a broken record in its former state.
    if {(one.queue, one.task, one.state.value): one.number for one in target.storage.tallies() if one.number} != places:
        raise CopyRefused(f"the tallies of {target.address} do not match its jobs", hint=_cancel_hint(source.address))


def _hand_over(source: End, target: End, filling: Move) -> None:
    mark = source.storage.move()
    if mark is None or mark.copy != filling.copy:
        raise CopyRefused(
            f"{source.address} was opened again meanwhile, so the copy is useless", hint="empty the new one"
        )
    if mark.stage is not Stage.MOVED:
        _set(source, replace(mark, stage=Stage.MOVED), mark)
    _set(target, None, filling)


def _set(end: End, mark: Move | None, expected: Move | None) -> None:
    if not end.storage.set_move(mark, expected=expected) and end.storage.move() != mark:
        raise CopyRefused(f"another process moves {end.address} too", hint="let one of them end")
