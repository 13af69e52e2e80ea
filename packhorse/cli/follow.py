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

from packhorse.cli.context import CommandContext
from packhorse.cli.output import ProgressLine, escape, fit_line, paint, place_text, say, short_id, state_style
from packhorse.client.app import Packhorse
from packhorse.core.clock import SECOND
from packhorse.core.errors import JobNotFound, WaitTimeout
from packhorse.core.event import Event, Subject
from packhorse.core.job import FINAL, WAITING, Job, State
from packhorse.core.outcome import Failure
from packhorse.monitor.filters import find_all
from packhorse.monitor.serializers import event_fields, job_fields, log_fields
from packhorse.monitor.text import attempt_text, call_text, error_line, note_text, span_text, state_text
from packhorse.storage import BATCH, Storage
from packhorse.storage.queries import fits
from packhorse.storage.records import EventFilter, Filter, LogKind, LogLine

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


def follow_jobs(context: CommandContext, where: Filter, number: int | None, *, only_ids: bool) -> None:
    """Print the jobs that fit, those that changed last below, and from then on each that is new or has changed."""
    storage = context.storage
    last = newest_event(storage)  # before the list: what happens meanwhile is told twice rather than not at all
    printer = _Printer(context, only_ids)
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

    def __init__(self, context: CommandContext, only_ids: bool) -> None:
        self._context = context
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
        elif self._context.as_json:
            self._context.print_json(job_fields(self._context.client.effective_job(job), self._context.storage.now()))
        else:
            say(self._line(job))

    def _line(self, job: Job) -> str:
        shown = self._context.shown
        job_id = short_id(job.id) if shown.is_terminal else job.id
        state = paint(f"{state_text(job):<9}", state_style(job.state))
        tries = attempt_text(self._context.client.effective_job(job))
        start = f"{paint(shown.clock_time(job.updated_at), 'dim')}  {escape(job_id)}  {state}  {tries:>5}  "
        queue = "" if shown.is_terminal and job.queue == job.task else f"{job.queue}  "
        parts = [f"{queue}{call_text(job, whole=not shown.is_terminal)}", note_text(job)]
        return f"{start}{fit_line(start, escape('  '.join(filter(None, parts))))}"


_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.2
_SOON = 0.7  # seconds after which one wants to know why a job waits


def looks(patience: int | None) -> Iterator[None]:
    """Come back for each look at the storage, soon at first, then every fifth of a second; end with the patience,
    given in microseconds, after one last look."""
    deadline = None if patience is None else time.monotonic() + patience / SECOND
    pause = _FIRST_PAUSE
    while True:
        yield
        left = pause if deadline is None else deadline - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(pause, left))
        pause = min(pause * 1.3, _LONGEST_PAUSE)


class Watcher:
    """Follows one job. With `as_data` its log lines are what the user asked for: they go to stdout."""

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
        self._since = 0.0
        self._has_explained = False

    def follow(self, patience: int | None = None) -> Job:
        """Watch until the job has ended; the job as it is then. Raises WaitTimeout and JobNotFound."""
        try:
            for _ in looks(patience):
                job = self._look()
                if job.state in FINAL:
                    return job
        finally:
            self._bar.clear()
        return self._look_once_more(patience or 0)

    def _look_once_more(self, patience: int) -> Job:
        handle = self._client.get(self._id)
        why = handle.why()
        if handle.is_finished:
            return handle.record
        what = f"job {self._id} ({handle.task}) did not end within {span_text(patience)}: it is {handle.state}"
        raise WaitTimeout(self._id, what, why=why, hint=f"it goes on: packhorse wait {short_id(self._id)}")

    def _look(self) -> Job:
        # The job first: lines that come after this look are there at the next one, or its state was final before them.
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

    # --- what it shows ----------------------------------------------------------------------------------------------

    def _show_lines(self) -> None:
        while lines := self._storage.log_lines(self._id, after=self._last_line):
            self._last_line = lines[-1].id
            for line in lines:
                self._show_line(line)

    def _show_line(self, line: LogLine) -> None:
        if self._as_data and self._context.as_json:
            self._context.print_json({"log": log_fields(line)})
        elif self._as_data or line.kind in (LogKind.LOG, LogKind.CHECKIN):  # the rest is told in other words
            self._bar.clear()
            style = "red" if line.kind is LogKind.ERROR else None
            say(paint(escape(line.message), style, err=not self._as_data), err=not self._as_data)

    def _show_events(self) -> None:
        while events := self._storage.events(EventFilter(job_id=self._id, after=self._last_event)):
            self._last_event = events[-1].id
            for event in events:
                self._context.print_json({"event": event_fields(event)})

    def _show_stage(self, job: Job) -> None:
        """Tell of a failed attempt when it has failed, and of waiting when it takes a while."""
        stage = (job.state, job.attempts, job.failures)
        if stage != self._stage:
            self._stage, self._since, self._has_explained = stage, time.monotonic(), False
            if job.state is State.RETRYING:
                self._note(_failed_attempt(self._client.effective_job(job), self._storage.now()))
                self._has_explained = True
        elif job.state in WAITING and not self._has_explained and time.monotonic() - self._since > _SOON:
            self._has_explained = True
            self._note(f"it waits: {escape(self._client.get(self._id).why())}")

    def _note(self, text: str) -> None:
        self._bar.clear()
        self._context.note(paint(text, "dim", err=True))


def _failed_attempt(job: Job, now: int) -> str:
    place = place_text(Failure.from_json(job.error).place) if job.error else ""
    at = f" at {place}" if place else ""
    next_try = span_text(max(0, (job.due_at or now) - now))
    text = f"attempt {job.failures} of {job.max_attempts} failed: {error_line(job)}{at}; next try in {next_try}"
    return f"{escape(text)}\n  see it: packhorse job {short_id(job.id)} --trace"
