"""A held job: a job in this worker's hands, from reserving until its outcome is stored.

The fetcher makes it, an executor runs it, the finisher ends it. It is also the running job's link to its worker: it
keeps what the job logs and reports until the loop writes that to the storage.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque

from packhorse.core.clock import SECOND
from packhorse.core.job import Job, Reason, Token
from packhorse.core.task import RegisteredTask
from packhorse.core.transitions import said
from packhorse.storage.records import CheckIn, LogKind, LogLine, count_lost, dropped_lines
from packhorse.worker.middleware import Chain

BARE_EVERY = 2.0
"""Seconds between two stored check-ins that carry no text. The storage only needs a sign of life now and then: the
worker itself sees each one."""
MAX_LINES = 1_000
"""Log lines that a job may keep here between two writes. Beyond that the oldest are dropped and counted."""
_CREATE_BUFFER = threading.Lock()


class WorkerStop:
    """Whether the whole worker wants its jobs to stop. Its held jobs share one."""

    is_wanted = False  # the worker is stopping: check-ins answer "stop"
    is_forced = False  # the grace period is over: running jobs are interrupted


class HeldJob:
    """One job, its task, and how far it is. One thread at a time writes it, all may read it. Defaults that most jobs
    never change are class attributes: the worker makes one of these for every job."""

    began_at: float | None = None
    is_marked = False  # as running, in the storage
    starts_first = False  # the storage must know of its start before it begins
    slot = -1
    times_seen = 0  # how often the loop has seen it running
    given: int | None = None  # the slot that it may begin in; `Slots` keeps it
    place: int | None = None  # in the shared status
    has_returned = False  # its function returned after the worker had given it up
    saw_stop = False  # a check-in has told the job to stop
    stop_reason: Reason | None = None
    stop_why = ""
    stopped_at: float | None = None
    checked_in_at: float | None = None
    _buffer: LogBuffer | None = None  # most jobs log nothing

    def __init__(
        self, job: Job, task: RegisteredTask, chain: Chain, is_async: bool, worker_stop: WorkerStop, now: float
    ) -> None:
        self.job = job
        self.task = task
        self.chain = chain
        self.is_async = is_async
        self.reserved_at = now
        self._worker_stop = worker_stop
        self._claims = [True]
        self._ends = [True]

    # --- who has it -----------------------------------------------------------------------------------------------

    def claim(self) -> bool:
        """Take the job, to run it or to hand it back. Only the first caller gets True: one pop is one atomic step."""
        try:
            return self._claims.pop()
        except IndexError:
            return False

    @property
    def is_claimed(self) -> bool:
        return not self._claims

    def settle(self) -> bool:
        """Fix the outcome of the job. Only the first caller gets True; a later outcome is dropped."""
        try:
            return self._ends.pop()
        except IndexError:
            return False

    @property
    def is_settled(self) -> bool:
        return not self._ends

    def begin(self, slot: int) -> None:
        self.slot = slot
        self.began_at = self.checked_in_at = time.monotonic()

    @property
    def ran(self) -> int:
        """Microseconds since the job began; 0 only if it has not begun."""
        return 0 if self.began_at is None else max(1, round((time.monotonic() - self.began_at) * SECOND))

    def stop(self, reason: Reason, why: str) -> None:
        """Ask the job to stop; its next check-in says so."""
        self.stop_why = why
        self.stopped_at = time.monotonic()
        self.stop_reason = reason

    @property
    def is_interrupted(self) -> bool:
        """Is the worker stopping, and the grace period over?"""
        return self._worker_stop.is_forced

    # --- the job's link to its worker: see `WorkerLink` -------------------------------------------------------------

    @property
    def buffer(self) -> LogBuffer:
        """What the job has logged and reported."""
        if self._buffer is None:
            with _CREATE_BUFFER:  # the job may log from threads of its own
                if self._buffer is None:
                    self._buffer = LogBuffer()
        return self._buffer

    @property
    def has_logged(self) -> bool:
        """Has the job ever logged or reported anything?"""
        return self._buffer is not None

    @property
    def has_unwritten(self) -> bool:
        """Is there something to write to the storage?"""
        return bool(self._buffer)

    def log(self, message: str, kind: str = "log") -> None:
        self.buffer.log(message, kind)

    def check_in(self, message: str | None, progress: int | None, progress_text: str | None) -> None:
        self.checked_in_at = time.monotonic()
        self.buffer.check_in(message, progress, progress_text)

    def is_stopping(self) -> bool:
        return self.stop_reason is not None or self._worker_stop.is_wanted

    def should_stop(self) -> bool:
        if self.is_stopping():
            self.saw_stop = True
        return self.saw_stop


class LogBuffer:
    """What a running job has logged and reported and the storage does not know yet.

    The job adds from its own threads while the loop takes. Lines keep their order; of check-ins only the last message
    and the last progress are stored with the job. The time of a line is by the monotonic clock, in microseconds.
    """

    __slots__ = ("_bare_after", "_has_checked_in", "_last", "_lines", "_lock", "_lost", "_messages", "_progress")

    def __init__(self) -> None:
        self._messages: deque[str] = deque(maxlen=1)
        self._progress: deque[tuple[int, str | None]] = deque(maxlen=1)
        self._has_checked_in = False  # without a text,
        self._bare_after = float("-inf")  # which is written after this moment
        self._lock = threading.Lock()
        self._lines: deque[LogLine] = deque()
        self._lost = 0  # lines that were dropped
        self._last: dict[str, str] = {}  # the last text of each kind of check-in

    def __bool__(self) -> bool:
        return bool(self._messages or self._progress or self._lines or self._is_bare_due())

    def _is_bare_due(self) -> bool:
        return self._has_checked_in and time.monotonic() >= self._bare_after

    def log(self, message: str, kind: str) -> None:
        line = LogLine(message, LogKind(kind), at=monotonic_now())
        with self._lock:
            self._lines.append(line)
            self._drop_oldest()

    def check_in(self, message: str | None, progress: int | None, progress_text: str | None) -> None:
        if message is not None:
            self._messages.append(message)
        if progress is not None:
            self._progress.append((progress, progress_text))
        if message is None and progress is None:
            self._has_checked_in = True
        for kind, text in said(message, progress, progress_text):
            if self._last.get(kind) != text:  # a loop may report the same a thousand times
                self._last[kind] = text
                self.log(text, kind)

    def take_lines(self) -> list[LogLine]:
        with self._lock:
            lines, lost = list(self._lines), self._lost
            self._lines.clear()
            self._lost = 0
        return [LogLine(dropped_lines(lost), at=lines[0].at), *lines] if lost else lines

    def put_lines_back(self, lines: list[LogLine]) -> None:
        """The lines could not be written. They stay the oldest, and are the first to be dropped."""
        with self._lock:
            self._lines.extendleft(reversed(lines))
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        while len(self._lines) > MAX_LINES:
            self._lost += count_lost([self._lines.popleft().message])

    def take_checkin(self, token: Token) -> CheckIn | None:
        """The last message and the last progress; both are log lines as well. Both are None for a bare sign of life."""
        is_bare_due = self._is_bare_due()
        message = self._messages.popleft() if self._messages else None
        percent, text = self._progress.popleft() if self._progress else (None, None)
        if message is None and percent is None and not is_bare_due:
            return None
        self._has_checked_in, self._bare_after = False, time.monotonic() + BARE_EVERY
        return CheckIn(token, message, percent, text, is_logged=True)

    def put_checkin_back(self, checkin: CheckIn) -> None:
        """The check-in could not be written. What the job has reported since is newer and stays."""
        if checkin.message is not None and not self._messages:
            self._messages.append(checkin.message)
        if checkin.progress is not None and not self._progress:
            self._progress.append((checkin.progress, checkin.progress_text))
        if checkin.message is None and checkin.progress is None:
            self._has_checked_in, self._bare_after = True, float("-inf")


def monotonic_now() -> int:
    """The monotonic clock in microseconds, as the lines of a `LogBuffer` carry it."""
    return round(time.monotonic() * SECOND)


# --- runs that outlive their worker -----------------------------------------------------------------------------------

_UNRETURNED: set[HeldJob] = set()  # any thread adds and removes, each in one atomic step
"""Jobs whose function still runs on a thread of this process although its worker has given it up.

A thread does not end with its worker. In a program with a pool, a job that was handed back or given up may still run.
The loop and the timeouts note it here before they write its outcome, and no pool of this process begins the job again
until that run has returned. Other processes do not know of it. A worker process notes nothing: its threads end with it.
"""


def note_unreturned(held: HeldJob) -> None:
    """Remember that this run continues while another thread settles the job; the finisher sets `has_returned`."""
    _drop_returned()
    _UNRETURNED.add(held)


def unreturned_ids() -> set[str]:
    """The ids of the jobs that still run. An id that exists in two storages counts for both."""
    if not _UNRETURNED:  # the usual case, asked for every batch of jobs
        return set()
    _drop_returned()
    return {held.job.id for held in _UNRETURNED.copy()}


def _drop_returned() -> None:
    for held in _UNRETURNED.copy():
        if held.has_returned:
            _UNRETURNED.discard(held)


os.register_at_fork(after_in_child=_UNRETURNED.clear)  # threads are not forked
