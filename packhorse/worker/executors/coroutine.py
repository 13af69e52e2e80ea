"""Async functions on one event loop in one thread, which starts with the first job. Stopping a job cancels it. A job
that swallows its cancellation, or blocks the event loop, cannot be ended: its worker must be replaced."""

from __future__ import annotations

import asyncio
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from packhorse.core.outcome import Outcome
from packhorse.worker import attempt
from packhorse.worker.executors.slots import Slots
from packhorse.worker.finisher import OutcomeQueue
from packhorse.worker.held_job import HeldJob
from packhorse.worker.outcomes import of_stopped, of_worker_error

CLEANUP_TIME = 1.0
"""Seconds for the cleanup of jobs that still run when the event loop ends."""


class CoroutineExecutor:
    """An event loop that starts with the first job."""

    def __init__(self, slots: Slots, outcomes: OutcomeQueue, result_limit: int) -> None:
        self._slots = slots
        self._outcomes = outcomes
        self._result_limit = result_limit
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._tasks: dict[HeldJob, asyncio.Task[Outcome]] = {}  # only touched on the loop

    def loop(self) -> asyncio.AbstractEventLoop:
        """The worker's event loop."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                # Plain tasks below async middleware run in these threads; asyncio's default is too few.
                inner = ThreadPoolExecutor(self._slots.number, "packhorse-inner")
                self._loop.set_default_executor(inner)
                args = (self._loop, inner)
                threading.Thread(target=self._run, args=args, name="packhorse-loop", daemon=True).start()
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop, inner: ThreadPoolExecutor) -> None:
        try:
            loop.run_forever()
            loop.run_until_complete(self._cancel_all())
        finally:
            loop.close()
            inner.shutdown()  # waits for its threads
            for held in self._tasks:  # none of these runs any more
                held.has_returned = True

    async def _cancel_all(self) -> None:
        """Cancel every task that is not cancelled yet, and give all of them a while for their cleanup."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            if not task.cancelling():
                task.cancel()
        if left:
            await asyncio.wait(left, timeout=CLEANUP_TIME)
        await asyncio.get_running_loop().shutdown_asyncgens()

    def begin(self, held: HeldJob, slot: int) -> None:
        self.loop().call_soon_threadsafe(self._begin, held, slot)

    def _begin(self, held: HeldJob | None, slot: int) -> None:
        if held is None:
            return
        if not held.claim():
            self._slots.give_up(held)
            return
        self._slots.begin(held, slot)
        attempted = attempt.arun(held.job, held.task, held.chain, held, self._result_limit)
        task = asyncio.get_running_loop().create_task(attempted)
        self._tasks[held] = task
        task.add_done_callback(functools.partial(self._end, held))

    def _end(self, held: HeldJob, task: asyncio.Task[Outcome]) -> None:
        del self._tasks[held]
        self._outcomes.put(held, self._outcome_of(held, task))
        self._begin(self._slots.follow(held.slot, self), held.slot)

    def _outcome_of(self, held: HeldJob, task: asyncio.Task[Outcome]) -> Outcome:
        if task.cancelled():
            return self._of_cancelled(held)
        error = task.exception()
        return task.result() if error is None else of_worker_error(held, error)

    def _of_cancelled(self, held: HeldJob) -> Outcome:
        """The job was asked to stop, and did. If not, it has cancelled itself, which is a failure like any other."""
        cancelled = asyncio.CancelledError("the task was cancelled from within")
        return of_stopped(held) or attempt.failed_with(held.job, held.task, cancelled, held.ran)

    def stop(self, held: HeldJob, *, hard: bool) -> bool:
        """Cancel the job. A job that swallows its cancellation, or blocks the event loop, cannot be ended."""
        self.loop().call_soon_threadsafe(self._cancel, held)
        return not hard

    def _cancel(self, held: HeldJob) -> None:
        task = self._tasks.get(held)
        if task is not None:
            task.cancel()

    def coroutines(self) -> list[tuple[HeldJob, Any]]:
        """The running jobs with their coroutines, to see where they wait. Any thread may ask."""
        return [(held, task.get_coro()) for held, task in dict(self._tasks).items()]

    def close(self) -> None:
        """End the event loop, in its own thread, without waiting for it. A second call would interrupt its end."""
        with self._lock:
            if self._loop is not None and not self._is_closed:
                self._is_closed = True
                self._loop.call_soon_threadsafe(self._loop.stop)
