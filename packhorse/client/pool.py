"""A pool: workers inside the program that has the app, without another process.

`app.pool()` makes one. It runs jobs on threads of this process, with the code of a worker process, and does for them
what a foreman does: it sends heartbeats, does the chores and passes on operators' orders. It lacks what a process of
its own provides: a job that holds the interpreter for longer than the lease loses it, no job can be killed, and one
that crashes takes the program with it.
"""

from __future__ import annotations

import atexit
import importlib
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol, Self

from packhorse.client.app_state import AppState
from packhorse.core.errors import BadValue
from packhorse.core.settings import load_settings
from packhorse.core.task import RegisteredTask
from packhorse.monitor.served_queues import check_queue_patterns


class RunningPool(Protocol):
    """A started pool, until it has stopped: `foreman.embedded.EmbeddedPool`."""

    def stop(self) -> None:
        """Take no more jobs, let the running ones finish within the grace, hand back the rest, and return. Raises the
        error that had ended it before."""

    def wait_until_empty(self) -> None:
        """Wait until nothing is left to run, or it has ended. Raises the error that ended it."""

    @property
    def is_alive(self) -> bool:
        """Does it run, or is it stopping?"""


class Pool:
    """Runs jobs in this process, `concurrency` at a time. It may be started again after a stop.

    >>> pool = app.pool(concurrency=15)
    >>> pool.start()
    >>> pool.stop()
    """

    def __init__(self, app: Any, state: AppState, concurrency: int, queues: Sequence[str] | None = None) -> None:
        self.concurrency = load_settings({"concurrency": concurrency}).concurrency
        if isinstance(queues, str):
            raise BadValue(f"queues must be a list of names, not {queues!r}", hint=f"write [{queues!r}]")
        self.queues = None if queues is None else check_queue_patterns(queues)
        if self.queues == []:
            raise BadValue("queues names no queue", hint="leave it out for all, e.g. queues=['mail', 'bulk.*']")
        self._app = app  # the Packhorse, which only the worker's code needs
        self._state = state
        self._lock = threading.RLock()
        self._running: RunningPool | None = None
        self._is_registered = False  # to be stopped when the program ends

    def __repr__(self) -> str:
        return f"<Pool of {self.concurrency}{'' if self.is_running else ', stopped'}>"

    @property
    def is_running(self) -> bool:
        """Was it started, and has it neither stopped nor failed since?"""
        running = self._running
        return running is not None and running.is_alive

    def start(self) -> Self:
        """Start to run jobs, and return immediately. Does nothing if it runs already. The program keeps its signal
        handlers; if it exits without `stop`, its pools stop then, and wait for their jobs as `stop` does."""
        with self._lock:
            if not self.is_running:
                for task in self._state.registry:
                    _refuse_isolated(task)
                # Imported by name: workers and foremen import the client, never the other way round.
                embedded: Any = importlib.import_module("packhorse.foreman.embedded")
                self._running = embedded.EmbeddedPool(self._app, self.concurrency, self.queues)
                self._state.closables.append(self)
                if not self._is_registered:
                    self._is_registered = True
                    atexit.register(_stop, weakref.ref(self))
        return self

    def stop(self) -> None:
        """Take no more jobs, give the running ones `stop_grace` (30 s by default) to finish, hand back the rest, and
        return. Does nothing if it does not run. A function that still runs continues: its job, whose id is logged, does
        not start again in this program before the function has returned; in another program it may. Raises the error
        that had ended the pool before, if any."""
        with self._lock:
            running, self._running = self._running, None
            if self in self._state.closables:
                self._state.closables.remove(self)
            if running is not None:
                running.stop()

    def drain(self) -> None:
        """Run jobs until nothing is left to run now, then return. A stopped pool is started for it and stopped again; a
        running one keeps running. New jobs are run too; jobs that are not due, or whose queue is paused, are left.
        Raises the error that has ended the pool, if any."""
        was_running = self.is_running
        self.start()
        try:
            running = self._running
            if running is not None:
                running.wait_until_empty()
        finally:
            if not was_running:
                self.stop()

    def close(self) -> None:
        """`stop`, without raising the error that had ended it, which is logged; closing the app calls it."""
        with suppress(Exception):
            self.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.stop()
        else:
            self.close()


def _refuse_isolated(task: RegisteredTask) -> None:
    options = task.options
    if options.isolate or options.memory_limit is not None:
        option = "isolate" if options.isolate else "memory_limit"
        raise BadValue(
            f"the task {task.name} has {option}=…, and a pool cannot give it a process of its own",
            hint="run it with `packhorse work`; a pool's queues= may name the others, in an app without this task",
        )


def _stop(pool: weakref.ref[Pool]) -> None:
    still_there = pool()
    if still_there is not None:
        still_there.close()
