"""Follow events, jobs that change, and one job until it ends.

It only reads: the jobs go on without it. `jobs --follow` and `events --follow` run until Ctrl-C, or until the reader of
stdout is gone, as in `packhorse events -f | head`.
"""

from __future__ import annotations

import io
import select
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from msgspec.structs import replace

from packhorse.cli.context import CommandContext
from packhorse.cli.output import ProgressLine, escape, fit_line, paint, place_text, say, short_id, state_style
from packhorse.client.app import Packhorse
from packhorse.core.errors import JobNotFound, WaitTimeout
from packhorse.core.event import Event, Subject
from packhorse.core.job import FINAL, WAITING, Job, State
from packhorse.core.outcome import Failure
from packhorse.monitor.actions import poll
from packhorse.monitor.filters import find_all
from packhorse.monitor.serializers import event_fields, job_fields, log_fields
from packhorse.monitor.text import attempt_text, call_text, error_line, note_text, span_text, state_text
from packhorse.storage import BATCH, Storage
from packhorse.storage.queries import fits
from packhorse.storage.records import EventFilter, Filter, LogKind, LogLine

_PAUSE = 0.25  # seconds between two reads when nothing happens
_SAFE_POINT_PAUSE = 2.0  # seconds between two updates of the safe point
_REMEMBERED = 10_000  # jobs whose last line is remembered, so as not to print it twice
_EXPLAIN_AFTER = 0.7  # seconds after which to say why a job waits


# --- events -----------------------------------------------------------------------------------------------------------


def new_events(storage: Storage, where: EventFilter, last: int) -> Iterator[Event]:
    """Yield matching events after the one with this id, as they come. End when the reader of stdout is gone."""
    for found in _new_batches(storage, where, last):
        yield from found


def stored_events(storage: Storage, where: EventFilter) -> Iterator[list[Event]]:
    """Yield all matching events that exist now, in batches."""
    seen, last = 0, newest_event(storage)
    while found := [each for each in storage.events(replace(where, after=seen), limit=BATCH) if each.id <= last]:
        yield found
        seen = found[-1].id


def newest_event(storage: Storage) -> int:
    """The id of the newest event; 0 if there is none."""
    newest = storage.events(EventFilter(), limit=1, newest_first=True)
    return newest[0].id if newest else 0


def _new_batches(storage: Storage, where: EventFilter, last: int) -> Iterator[list[Event]]:
    safe_point = _SafePoint(storage, last)
    while _has_reader():
        safe = safe_point.update()
        found = storage.events(replace(where, after=last), limit=BATCH)
        if found:
            last = found[-1].id
            yield found
        else:
            last = max(last, safe)
            time.sleep(_PAUSE)


class _SafePoint:
    """The event up to which every event is visible, so that a read that finds nothing need not start before it. With
    several writers an event may be visible before one with a smaller id. The storage never returns events beyond such
    a gap."""

    def __init__(self, storage: Storage, start: int) -> None:
        self._storage = storage
        self._safe = start
        self._candidate = start
        self._next_update = time.monotonic() + _SAFE_POINT_PAUSE

    def update(self) -> int:
        """The id of that event, brought up to date every few seconds."""
        if time.monotonic() >= self._next_update:
            if self._storage.events(EventFilter(after=self._candidate - 1), limit=1):
                self._safe = self._candidate
                self._candidate = max(self._safe, newest_event(self._storage))
            self._next_update = time.monotonic() + _SAFE_POINT_PAUSE
        return self._safe


def _has_reader() -> bool:
    """Does anything still read stdout? A closed pipe shows it before we write to it."""
    try:
        watch = select.poll()
        watch.register(sys.stdout.fileno(), 0)
        return not watch.poll(0)
    except (OSError, ValueError, AttributeError, io.UnsupportedOperation):  # no file, or a system without poll
        return True


# --- jobs that change -------------------------------------------------------------------------------------------------


def follow_jobs(context: CommandContext, where: Filter, number: int | None, *, only_ids: bool) -> None:
    """Print the matching jobs, the last changed ones last, then each job that is new or changes."""
    storage = context.storage
    last = newest_event(storage)  # before the list: a change in between is printed twice rather than never
    printer = _JobPrinter(context, only_ids)
    printer.print(sorted(find_all(storage, where, number), key=lambda job: job.updated_at))
    for found in _new_batches(storage, EventFilter(subject=Subject.JOB, queue=where.queue), last):
        printer.print(_changed_jobs(storage, where, found))


def _changed_jobs(storage: Storage, where: Filter, events: Sequence[Event]) -> Iterator[Job]:
    """The jobs of these events as they are now, if they still exist and match."""
    ids = list(dict.fromkeys(event.job_id for event in events if event.job_id))
    jobs = {job.id: job for job in storage.get_many(ids)}
    return (jobs[job_id] for job_id in ids if job_id in jobs and fits(jobs[job_id], where))


class _JobPrinter:
    """Prints a line for each job, unless it equals the job's last line."""

    def __init__(self, context: CommandContext, only_ids: bool) -> None:
        self._context = context
        self._only_ids = only_ids
        self._printed: dict[str, tuple[object, ...]] = {}

    def print(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            facts = (state_text(job), job.attempt, job.priority, job.due_at, job.fence)
            if self._printed.pop(job.id, None) != facts:
                self._print(job)
            self._printed[job.id] = facts
        for old in list(islice(self._printed, max(0, len(self._printed) - _REMEMBERED))):
            del self._printed[old]

    def _print(self, job: Job) -> None:
        context = self._context
        if self._only_ids:
            say(escape(job.id))
        elif context.as_json:
            context.print_json(job_fields(context.client.effective_job(job), context.storage.now()))
        else:
            say(self._line(job))

    def _line(self, job: Job) -> str:
        display = self._context.display
        job_id = short_id(job.id) if display.is_terminal else job.id
        state = paint(f"{state_text(job):<9}", state_style(job.state))
        tries = attempt_text(self._context.client.effective_job(job))
        start = f"{paint(display.clock_time(job.updated_at), 'dim')}  {escape(job_id)}  {state}  {tries:>5}  "
        queue = "" if display.is_terminal and job.queue == job.task else f"{job.queue}  "
        parts = [f"{queue}{call_text(job, whole=not display.is_terminal)}", note_text(job)]
        return f"{start}{fit_line(start, escape('  '.join(filter(None, parts))))}"


# --- one job ----------------------------------------------------------------------------------------------------------


class JobFollower:
    """Follows one job until it ends: its log lines, its progress, its failed attempts, and why it waits. With `as_data`
    the log lines are what the user asked for, and go to stdout."""

    def __init__(self, context: CommandContext, client: Packhorse, job_id: str, *, as_data: bool = False) -> None:
        self._context = context
        self._client = client
        self._storage = client.storage
        self._id = job_id
        self._as_data = as_data
        self._bar = ProgressLine(short_id(job_id), quiet=context.quiet)
        self._last_line = 0
        self._last_event = 0
        self._stage: tuple[State, int, int] | None = None
        self._stage_began = 0.0
        self._has_explained = False

    def follow(self, timeout: int | None = None) -> Job:
        """Follow the job until it ends; return it. Raise WaitTimeout or JobNotFound."""
        try:
            for _ in poll(timeout):
                job = self._look()
                if job.state in FINAL:
                    return job
        finally:
            self._bar.clear()
        handle = self._client.get(self._id)
        why = handle.why()
        if handle.is_finished:
            return handle.record
        what = f"job {self._id} ({handle.task}) did not end within {span_text(timeout or 0)}: it is {handle.state}"
        raise WaitTimeout(self._id, what, why=why, hint=f"the job continues: packhorse wait {short_id(self._id)}")

    def _look(self) -> Job:
        # Read the job before its lines: if it has ended, all of its lines are there.
        job = self._storage.get(self._id)
        self._show_lines()
        if job is None:
            raise JobNotFound(self._id)
        if self._as_data and self._context.as_json:
            self._show_events()
        else:
            self._show_stage(job)
        if job.state is State.RUNNING and job.progress is not None:
            self._bar.update(job.progress, job.progress_text or job.checkin or "")
        return job

    def _show_lines(self) -> None:
        while lines := self._storage.log_lines(self._id, after=self._last_line):
            self._last_line = lines[-1].id
            for line in lines:
                self._show_line(line)

    def _show_line(self, line: LogLine) -> None:
        if self._as_data and self._context.as_json:
            self._context.print_json({"log": log_fields(line)})
        elif self._as_data or line.kind in (LogKind.LOG, LogKind.CHECKIN):  # the bar and notices say the rest
            self._bar.clear()
            style = "red" if line.kind is LogKind.ERROR else None
            say(paint(escape(line.message), style, err=not self._as_data), err=not self._as_data)

    def _show_events(self) -> None:
        while events := self._storage.events(EventFilter(job_id=self._id, after=self._last_event)):
            self._last_event = events[-1].id
            for event in events:
                self._context.print_json({"event": event_fields(event)})

    def _show_stage(self, job: Job) -> None:
        """Report each failed attempt, and why the job waits if that takes a while."""
        stage = (job.state, job.attempts, job.failures)
        if stage != self._stage:
            self._stage, self._stage_began, self._has_explained = stage, time.monotonic(), False
            if job.state is State.RETRYING:
                self._note(_attempt_text(self._client.effective_job(job), self._storage.now()))
                self._has_explained = True
        elif job.state in WAITING and not self._has_explained and time.monotonic() - self._stage_began > _EXPLAIN_AFTER:
            self._has_explained = True
            self._note(f"it waits: {escape(self._client.get(self._id).why())}")

    def _note(self, text: str) -> None:
        self._bar.clear()
        self._context.note(paint(text, "dim", err=True))


def _attempt_text(job: Job, now: int) -> str:
    place = place_text(Failure.from_json(job.error).place) if job.error else ""
    at = f" at {place}" if place else ""
    next_try = span_text(max(0, (job.due_at or now) - now))
    text = f"attempt {job.failures} of {job.max_attempts} failed: {error_line(job)}{at}; next try in {next_try}"
    return f"{escape(text)}\n  see it: packhorse job {short_id(job.id)} --trace"
