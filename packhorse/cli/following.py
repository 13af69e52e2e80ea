"""Following what happens, as `tail -f` follows a file: `jobs --follow` and `events --follow`, until Ctrl-C.

It only looks. It ends by itself when nobody reads any more, as in `packhorse events -f | head`.
"""

from __future__ import annotations

import io
import select
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from msgspec.structs import replace

from packhorse.cli.invocation import Invocation
from packhorse.cli.output import escape, fit_line, paint, say, short_id, state_style
from packhorse.core.event import Event, Subject
from packhorse.core.job import Job
from packhorse.monitor.filters import find_all
from packhorse.monitor.serializers import job_fields
from packhorse.monitor.text import attempt_text, call_text, note_text, state_text
from packhorse.storage import BATCH, Storage
from packhorse.storage.queries import fits
from packhorse.storage.records import EventFilter, Filter

_PAUSE = 0.25  # seconds between two looks when nothing happens
_EDGE_PAUSE = 2.0  # seconds between two looks at what was looked over
_REMEMBERED = 10_000  # jobs whose last line is known, so that it is not printed twice


def new_events(storage: Storage, where: EventFilter, last: int) -> Iterator[Event]:
    """Events that fit, behind the one with this id, as they come; ends only when nobody reads stdout any more."""
    for found in _looks(storage, where, last):
        yield from found


def stored_events(storage: Storage, where: EventFilter) -> Iterator[list[Event]]:
    """All events that fit and are there by now, some at a time."""
    seen, last = 0, newest_event(storage)
    while found := [each for each in storage.events(replace(where, after=seen), limit=BATCH) if each.id <= last]:
        yield found
        seen = found[-1].id


def newest_event(storage: Storage) -> int:
    """The id of the newest event there is; 0 if there is none."""
    newest = storage.events(EventFilter(), limit=1, newest_first=True)
    return newest[0].id if newest else 0


def _looks(storage: Storage, where: EventFilter, last: int) -> Iterator[list[Event]]:
    edge = _Edge(storage, last)
    while _is_read():
        looked_over = edge.look()
        found = storage.events(replace(where, after=last), limit=BATCH)
        if found:
            last = found[-1].id
            yield found
        else:
            last = max(last, looked_over)
            time.sleep(_PAUSE)


class _Edge:
    """The event up to which all that were written can be read: a look that finds nothing need not go over them again.
    Where several write at once, an event may be there while one with a smaller id is still to come; but whoever asks on
    from an event is shown only what is beyond that."""

    def __init__(self, storage: Storage, start: int) -> None:
        self._storage = storage
        self._edge = start
        self._candidate = start
        self._next_look = time.monotonic() + _EDGE_PAUSE

    def look(self) -> int:
        """The id of that event, brought up to date now and then."""
        if time.monotonic() >= self._next_look:
            if self._storage.events(EventFilter(after=self._candidate - 1), limit=1):
                self._edge = self._candidate
                self._candidate = max(self._edge, newest_event(self._storage))
            self._next_look = time.monotonic() + _EDGE_PAUSE
        return self._edge


def _is_read() -> bool:
    """Is there still somebody at the other end of stdout? A pipe that is closed shows it before it is written to."""
    try:
        watch = select.poll()
        watch.register(sys.stdout.fileno(), 0)
        return not watch.poll(0)
    except (OSError, ValueError, AttributeError, io.UnsupportedOperation):  # no file, or a system without poll
        return True


# --- jobs -------------------------------------------------------------------------------------------------------------


def follow_jobs(invocation: Invocation, where: Filter, number: int | None, *, only_ids: bool) -> None:
    """Print the jobs that fit, those that changed last below, and from then on each that is new or has changed."""
    storage = invocation.storage
    last = newest_event(storage)  # before the list: what happens meanwhile is told twice rather than not at all
    printer = _Printer(invocation, only_ids)
    printer.print(sorted(find_all(storage, where, number), key=lambda job: job.updated_at))
    about = EventFilter(subject=Subject.JOB, queue=where.queue)
    for found in _looks(storage, about, last):
        printer.print(_changed(storage, where, found))


def _changed(storage: Storage, where: Filter, events: Sequence[Event]) -> Iterator[Job]:
    """The jobs as they are now that these events are about, if they are still there and fit."""
    ids = list(dict.fromkeys(event.job_id for event in events if event.job_id))
    jobs = {job.id: job for job in storage.get_many(ids)}
    return (jobs[job_id] for job_id in ids if job_id in jobs and fits(jobs[job_id], where))


class _Printer:
    """Prints a line for each job, unless it would be the same as the one before."""

    def __init__(self, invocation: Invocation, only_ids: bool) -> None:
        self._invocation = invocation
        self._only_ids = only_ids
        self._told: dict[str, tuple[object, ...]] = {}

    def print(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            stage = (state_text(job), job.attempt, job.priority, job.due_at, job.fence)
            if self._told.pop(job.id, None) != stage:
                self._print(job)
            self._told[job.id] = stage
        for old in list(islice(self._told, max(0, len(self._told) - _REMEMBERED))):
            del self._told[old]

    def _print(self, job: Job) -> None:
        if self._only_ids:
            say(escape(job.id))
        elif self._invocation.as_json:
            self._invocation.print_json(
                job_fields(self._invocation.client.effective_job(job), self._invocation.storage.now())
            )
        else:
            say(self._line(job))

    def _line(self, job: Job) -> str:
        shown = self._invocation.shown
        job_id = short_id(job.id) if shown.is_terminal else job.id
        state = paint(f"{state_text(job):<9}", state_style(job.state))
        tries = attempt_text(self._invocation.client.effective_job(job))
        start = f"{paint(shown.clock_time(job.updated_at), 'dim')}  {escape(job_id)}  {state}  {tries:>5}  "
        queue = "" if shown.is_terminal and job.queue == job.task else f"{job.queue}  "
        parts = [f"{queue}{call_text(job, whole=not shown.is_terminal)}", note_text(job)]
        return f"{start}{fit_line(start, escape('  '.join(filter(None, parts))))}"
