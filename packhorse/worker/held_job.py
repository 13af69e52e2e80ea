"""A held job: a job in this worker's hands, from reserving until its outcome is stored.

The loop makes it, an executor runs it, the finisher ends it. It is also the job's line to the outside: what the job
says is kept here until the loop writes it down.
"""

from __future__ import annotations

import threading
import time

from packhorse.core.clock import SECOND
from packhorse.core.job import Job, Reason
from packhorse.core.task import RegisteredTask
from packhorse.worker.job_log import JobLog
from packhorse.worker.middleware import Chain

_OPENING = threading.Lock()


class WorkerStop:
    """Whether a whole worker wants its jobs to end. Shared by its held jobs."""

    is_wanted = False  # since the worker was told to stop: check-ins say so
    is_forced = False  # the grace is over: jobs are cut short


class HeldJob:
    """One job, its task, and where it stands. Written by one thread at a time, read by all. What most held jobs never
    set
    has its default here: a held job is made for every job."""

    began_at: float | None = None
    is_marked = False  # as running, in the storage
    starts_first = False  # its start is written down before it begins
    slot = -1
    looks = 0  # how often the loop has found it running
    given: int | None = None  # the slot that it may begin in, until it does; kept by `Slots`
    place: int | None = None  # on the shared status
    has_returned = False  # too late: it was given up before
    saw_stop = False  # a check-in has told the job to stop
    stop_reason: Reason | None = None
    stop_why = ""
    stopped_at: float | None = None
    checked_in_at: float | None = None
    _job_log: JobLog | None = None  # most jobs say nothing

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
        """Take it, to run it or to hand it back; only the first gets it. One pop is one atomic step."""
        try:
            return self._claims.pop()
        except IndexError:
            return False

    @property
    def is_claimed(self) -> bool:
        return not self._claims

    def settle(self) -> bool:
        """Its outcome is known; whatever comes later is too late, and gets False."""
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
        """Microseconds since it began; 0 only if it has not begun."""
        return 0 if self.began_at is None else max(1, round((time.monotonic() - self.began_at) * SECOND))

    def stop(self, reason: Reason, why: str) -> None:
        """Somebody wants it to end."""
        self.stop_why = why
        self.stopped_at = time.monotonic()
        self.stop_reason = reason

    @property
    def is_cut_short(self) -> bool:
        """Is the grace of its stopping worker over?"""
        return self._worker_stop.is_forced

    # --- the job's line to the outside: see context.Line ----------------------------------------------------------

    @property
    def job_log(self) -> JobLog:
        """What the job says."""
        if self._job_log is None:
            with _OPENING:  # the job may have threads of its own
                if self._job_log is None:
                    self._job_log = JobLog()
        return self._job_log

    @property
    def has_logged(self) -> bool:
        """Has it ever said something?"""
        return self._job_log is not None

    @property
    def has_unwritten(self) -> bool:
        """Has it said something that is not written down yet?"""
        return bool(self._job_log)

    def log(self, message: str, kind: str = "log") -> None:
        self.job_log.log(message, kind)

    def check_in(self, message: str | None, progress: int | None, progress_text: str | None) -> None:
        self.checked_in_at = time.monotonic()
        self.job_log.check_in(message, progress, progress_text)

    def is_stopping(self) -> bool:
        return self.stop_reason is not None or self._worker_stop.is_wanted

    def should_stop(self) -> bool:
        if self.is_stopping():
            self.saw_stop = True
        return self.saw_stop
