"""Following a job to its end: its log lines, its progress, its failed attempts, and why it waits.

`run` and `job --follow` use it. It only looks: a job that nobody watches any more goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from packhorse.cli.invocation import Invocation
from packhorse.cli.job_text import place_text
from packhorse.cli.output import escape, paint, say, short_id
from packhorse.cli.progress import ProgressLine
from packhorse.client.app import Packhorse
from packhorse.core.clock import SECOND
from packhorse.core.errors import JobNotFound, WaitTimeout
from packhorse.core.job import FINAL, WAITING, Job, State
from packhorse.core.outcome import Failure
from packhorse.monitor.serializers import event_fields, log_fields
from packhorse.monitor.text import error_line, span_text
from packhorse.storage.records import EventFilter, LogKind, LogLine

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

    def __init__(self, invocation: Invocation, client: Packhorse, job_id: str, *, as_data: bool = False) -> None:
        self._invocation = invocation
        self._client = client
        self._storage = client.storage
        self._id = job_id
        self._as_data = as_data
        self._bar = ProgressLine(short_id(job_id), quiet=invocation.quiet)
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
        if self._as_data and self._invocation.as_json:
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
        if self._as_data and self._invocation.as_json:
            self._invocation.print_json({"log": log_fields(line)})
        elif self._as_data or line.kind in (LogKind.LOG, LogKind.CHECKIN):  # the rest is told in other words
            self._bar.clear()
            style = "red" if line.kind is LogKind.ERROR else None
            say(paint(escape(line.message), style, err=not self._as_data), err=not self._as_data)

    def _show_events(self) -> None:
        while events := self._storage.events(EventFilter(job_id=self._id, after=self._last_event)):
            self._last_event = events[-1].id
            for event in events:
                self._invocation.print_json({"event": event_fields(event)})

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
        self._invocation.note(paint(text, "dim", err=True))


def _failed_attempt(job: Job, now: int) -> str:
    place = place_text(Failure.from_json(job.error).place) if job.error else ""
    at = f" at {place}" if place else ""
    next_try = span_text(max(0, (job.due_at or now) - now))
    text = f"attempt {job.failures} of {job.max_attempts} failed: {error_line(job)}{at}; next try in {next_try}"
    return f"{escape(text)}\n  see it: packhorse job {short_id(job.id)} --trace"
