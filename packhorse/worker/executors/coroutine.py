"""Async functions on one event loop, in one thread, which starts with the first. Stopping one is cancelling it; one
that swallows its cancellation, or blocks the loop, cannot be made to end, and costs the worker its place."""

from __future__ import annotations

import asyncio
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from packhorse.core.outcome import Outcome
from packhorse.worker import attempt
from packhorse.worker.executors.slots import Slots
from packhorse.worker.finisher import Finisher
from packhorse.worker.held_job import HeldJob
from packhorse.worker.outcomes import of_told, of_unknown

UNWINDING = 1.0
"""Seconds in which whatever is still here when the loop ends may clean up."""


class CoroutineExecutor:
    """An event loop that starts with the first job."""

    def __init__(self, slots: Slots, finisher: Finisher, result_limit: int) -> None:
        self._slots = slots
        self._finisher = finisher
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
                # Plain tasks below async middleware run in these threads; asyncio's own number would be too few.
                inner = ThreadPoolExecutor(self._slots.number, "packhorse-inner")
                self._loop.set_default_executor(inner)
                args = (self._loop, inner)
                threading.Thread(target=self._turn, args=args, name="packhorse-loop", daemon=True).start()
            return self._loop

    def _turn(self, loop: asyncio.AbstractEventLoop, inner: ThreadPoolExecutor) -> None:
        try:
            loop.run_forever()
            loop.run_until_complete(self._unwind())
        finally:
            loop.close()
            inner.shutdown()  # waits for its threads
            for held in self._tasks:  # nothing of these runs any more
                held.has_returned = True

    async def _unwind(self) -> None:
        """Whatever is still here is cancelled, unless it was already and cleans up. What goes on after that is left."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            if not task.cancelling():
                task.cancel()
        if left:
            await asyncio.wait(left, timeout=UNWINDING)
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
        self._finisher.put(held, self._outcome_of(held, task))
        self._begin(self._slots.follow(held.slot, self), held.slot)

    def _outcome_of(self, held: HeldJob, task: asyncio.Task[Outcome]) -> Outcome:
        if task.cancelled():
            return self._of_cancelled(held)
        error = task.exception()
        return task.result() if error is None else of_unknown(held, error)

    def _of_cancelled(self, held: HeldJob) -> Outcome:
        """It was told to end, and did. If nobody told it, it cancelled itself, which is a failure like any other."""
        cancelled = asyncio.CancelledError("the task was cancelled from within")
        return of_told(held) or attempt.failed_with(held.job, held.task, cancelled, held.ran)

    def stop(self, held: HeldJob, *, hard: bool) -> bool:
        """Cancel it; a task that swallows its cancellation, or blocks the loop, cannot be made to end."""
        self.loop().call_soon_threadsafe(self._cancel, held)
        return not hard

    def _cancel(self, held: HeldJob) -> None:
        task = self._tasks.get(held)
        if task is not None:
            task.cancel()

    def coroutines(self) -> list[tuple[HeldJob, Any]]:
        """The jobs here, each with its coroutine, to see where it waits. Any thread may ask."""
        return [(held, task.get_coro()) for held, task in dict(self._tasks).items()]

    def close(self) -> None:
        """End the loop, in its own thread: nobody waits for it. Another call would cut its end short."""
        with self._lock:
            if self._loop is not None and not self._is_closed:
                self._is_closed = True
                self._loop.call_soon_threadsafe(self._loop.stop)
