"""Result handlers: a thread of the worker that calls users' functions for jobs that have ended.

The finisher puts a job in once its outcome is stored. The foreman adds jobs that ended in no worker of ours: while they
waited, in a foreign worker, or with their worker. A handler cannot harm its job: what it raises goes into the job's
log, and the call is repeated three times after growing waits. A call that waits here is lost if the worker is killed; a
subscriber loses nothing.
"""

from __future__ import annotations

import heapq
import inspect
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from packhorse.client.app import Packhorse
from packhorse.client.hooks import ResultHandler, name_of
from packhorse.client.job import JobHandle
from packhorse.core import transitions
from packhorse.core.errors import BadValue, StorageError
from packhorse.core.job import FINAL, Job, Token
from packhorse.core.outcome import Failure, Outcome
from packhorse.storage.records import LogKind, LogLine
from packhorse.worker.logging import about

WAITS = (0.1, 1.0, 10.0)
"""Seconds before each repeated call of a handler that raised."""
_BATCH = 100

log = logging.getLogger("packhorse.results")


class EndedJob(NamedTuple):
    """A job as its worker held it, and its outcome."""

    job: Job
    outcome: Outcome


class EndedElsewhere(NamedTuple):
    """A job that ended in no worker of ours."""

    job_id: str


class HandlerCall(NamedTuple):
    """One call of a handler for one job, now or later."""

    due_at: float
    number: int  # decides between equals
    handler: ResultHandler
    record: Job
    token: Token
    failures: int = 0


class ResultHandlers:
    """Calls an app's result handlers, one after the other. At most `limit` ended jobs wait for it. Then `put` waits for
    up to `patience` seconds, which slows the worker down, before it drops a job."""

    def __init__(
        self, app: Packhorse, *, limit: int = 1_000, waits: Sequence[float] = WAITS, patience: float = 1.0
    ) -> None:
        self._app = app
        self._limit = limit
        self._waits = waits
        self._patience = patience
        self._changed = threading.Condition()
        self._ended: deque[EndedJob | EndedElsewhere] = deque()
        self._calls: list[HandlerCall] = []  # a heap: those that are to be repeated
        self._current: deque[HandlerCall] = deque()
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._is_over = False
        self._is_stuck = False

    def wants(self, task: str) -> bool:
        """Is there a handler for jobs of this task?"""
        hooks = self._app.hooks
        if hooks.on_success or hooks.on_failure or hooks.on_result.get(task):
            return True
        return task in self._app.registry and self._app.registry.get(task).on_result is not None

    def put(self, job: Job, outcome: Outcome) -> bool:
        """The storage has accepted this outcome. Call the handlers if it was the job's last.

        False: there is no handler, or too many jobs wait and this one is dropped, or `close` was called.
        """
        return self.wants(job.task) and self._put(EndedJob(job, outcome))

    def put_ended(self, job_ids: Sequence[str]) -> int:
        """Call the handlers for these jobs, which have ended elsewhere. Return how many were taken."""
        return sum(self._put(EndedElsewhere(job_id)) for job_id in job_ids) if self._app.has_result_handlers else 0

    def _put(self, ended: EndedJob | EndedElsewhere) -> bool:
        with self._changed:
            if self._is_closing or not self._has_room():
                return False
            self._ended.append(ended)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="packhorse-results", daemon=True)
                self._thread.start()
        return True

    def close(self, timeout: float = 5.0) -> int:
        """Take no more jobs, and make the waiting calls without further waits, for `timeout` seconds at most. Return
        how many jobs and calls are left."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout)
        with self._changed:
            self._is_over = True
            left = len(self._ended) + len(self._calls) + len(self._current)
            self._changed.notify_all()
        if left:
            log.error("skipped %d calls of result handlers: the worker had to stop", left)
        return left

    def _has_room(self) -> bool:
        if len(self._ended) < self._limit:
            return True
        if not self._is_stuck and self._changed.wait_for(lambda: len(self._ended) < self._limit, self._patience):
            return True
        if not self._is_stuck:
            # From now on drop jobs without waiting, until the thread has taken some again.
            self._is_stuck = True
            log.error(
                "result handlers are too slow: %d ended jobs wait; no handlers are called for further ones", self._limit
            )
        return False

    # --- in the thread --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            ended, calls = self._next()
            if not ended and not calls:
                return
            self._current.extend(calls + self._calls_for(ended))
            while self._current and not self._is_over:
                self._make(self._current[0])
                self._current.popleft()

    def _next(self) -> tuple[list[EndedJob | EndedElsewhere], list[HandlerCall]]:
        """Wait for the next jobs and calls. Both empty: `close` was called and all is done."""
        with self._changed:
            while not self._is_over:
                calls = self._due_calls()
                ended = [self._ended.popleft() for _ in range(min(len(self._ended), _BATCH))]
                if ended:
                    self._is_stuck = False
                    self._changed.notify_all()
                if ended or calls or self._is_closing:
                    return ended, calls
                self._changed.wait(self._calls[0].due_at - time.monotonic() if self._calls else None)
        return [], []

    def _due_calls(self) -> list[HandlerCall]:
        now = float("inf") if self._is_closing else time.monotonic()
        due = []
        while self._calls and self._calls[0].due_at <= now:
            due.append(heapq.heappop(self._calls))
        return due

    def _calls_for(self, ended: list[EndedJob | EndedElsewhere]) -> list[HandlerCall]:
        stored: dict[str, Job] = {}
        with suppress(StorageError):
            stored = {job.id: job for job in self._app.storage.get_many([_id_of(one) for one in ended])}
        return [call for one in ended for call in self._calls_about(one, stored.get(_id_of(one)))]

    def _calls_about(self, ended: EndedJob | EndedElsewhere, stored: Job | None) -> list[HandlerCall]:
        if isinstance(ended, EndedJob):
            record, token = _final_record(ended, stored), ended.job.token
        else:
            record = stored if stored is not None and stored.state in FINAL else None
            token = Token(ended.job_id, (stored.last_owner if stored else None) or "", stored.fence if stored else 0)
        if record is None:
            return []
        handlers = self._app.hooks.handlers_of(record.task, record.state)
        own = self._app.registry.get(record.task).on_result if record.task in self._app.registry else None
        if own is not None:
            handlers.insert(0, own)
        return [HandlerCall(0.0, next(self._numbers), handler, record, token) for handler in handlers]

    def _make(self, call: HandlerCall) -> None:
        try:
            _run(call.handler, JobHandle.of(self._app._state, call.record))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a failing handler harms neither job nor worker
            self._note(call, error)
            if call.failures < len(self._waits):
                due_at = time.monotonic() + self._waits[call.failures]
                with self._changed:
                    heapq.heappush(self._calls, call._replace(due_at=due_at, failures=call.failures + 1))

    def _note(self, call: HandlerCall, error: BaseException) -> None:
        left = len(self._waits) - call.failures
        tries = f"{left} more tries" if left > 1 else "1 more try" if left else "no more tries"
        text = f"result handler {name_of(call.handler)}: {Failure.of(error).summary()} ({tries})"
        log.warning("job %s: %s", call.record.id, text, exc_info=error, extra=about(call.record))
        with suppress(StorageError, BadValue):  # it may be too long for the server; the worker's own log has it
            lines = [LogLine(text, LogKind.ERROR)]
            self._app.storage.append_log(call.token, lines, keep=self._app.settings.keep_log_lines)


def _id_of(ended: EndedJob | EndedElsewhere) -> str:
    return ended.job.id if isinstance(ended, EndedJob) else ended.job_id


def _run(handler: ResultHandler, job: JobHandle[object]) -> None:
    answer = handler(job)
    if inspect.iscoroutine(answer):
        from asyncio import run

        run(answer)


def _final_record(ended: EndedJob, stored: Job | None) -> Job | None:
    """The job as it ended; None if this outcome was not its last."""
    job, outcome = ended
    computed = transitions.settled(job, outcome, job.updated_at + outcome.ran + outcome.ago).job
    if stored is not None and stored.fence == computed.fence and stored.state in FINAL:
        return stored
    # The job is deleted, or an operator has retried it, or the storage is away: use what this worker knows.
    return computed if computed.state in FINAL else None
