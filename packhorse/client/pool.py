"""A pool: workers inside of the program that has the app, for who would rather not start another process.

`app.pool()` makes one. It runs jobs on threads of this very process, by the code that a worker process runs, and does
for them what a foreman does: it beats, it does the chores, it hands on what operators want. What a process of its own
would give is missing: a job that holds the interpreter for longer than the lease loses it, none can be killed, and one
that crashes takes the program along.
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

from packhorse.client.home import Home
from packhorse.core.errors import BadValue
from packhorse.core.settings import load_settings
from packhorse.core.task import RegisteredTask
from packhorse.monitor.served_queues import check_queue_patterns


class Running(Protocol):
    """One start of a pool, until it has stopped: `embedded.EmbeddedPool`."""

    def stop(self) -> None:
        """Take no more jobs, let the running ones finish within the grace, hand back the rest; waits for it.
        Raises what had ended it before."""

    def wait_until_empty(self) -> None:
        """Wait until nothing is left to run, or it has ended. Raises what ended it."""

    @property
    def is_alive(self) -> bool:
        """Whether it runs, or is about to end."""


class Pool:
    """Runs jobs in this process, `concurrency` at a time. It may be started again after a stop.

    >>> pool = app.pool(concurrency=15)
    >>> pool.start()
    >>> pool.stop()
    """

    def __init__(self, app: Home, concurrency: int, queues: Sequence[str] | None = None) -> None:
        # The same check, and the same words, as for the setting.
        self.concurrency = load_settings({"concurrency": concurrency}).concurrency
        if isinstance(queues, str):
            raise BadValue(f"queues must be a list of names, not {queues!r}", hint=f"write [{queues!r}]")
        self.queues = None if queues is None else check_queue_patterns(queues)
        if self.queues == []:
            raise BadValue("queues names no queue", hint="leave it out for all, e.g. queues=['mail', 'bulk.*']")
        self._app = app
        self._lock = threading.RLock()
        self._running: Running | None = None
        self._is_registered = False  # to be stopped when the program ends

    def __repr__(self) -> str:
        return f"<Pool of {self.concurrency}{'' if self.is_running else ', stopped'}>"

    @property
    def is_running(self) -> bool:
        """Whether it was started, and neither stopped nor ended by itself since."""
        running = self._running
        return running is not None and running.is_alive

    def start(self) -> Self:
        """Begin to run jobs, and return at once. Does nothing if it runs already. Signals are left to the program; one
        that ends without `stop` stops its pools, and waits for their jobs as `stop` does."""
        with self._lock:
            if not self.is_running:
                for task in self._app.registry:
                    _refuse_isolated(task)
                # By its name: a worker, and what else is needed here, knows apps, and not the other way round.
                engine: Any = importlib.import_module("packhorse.foreman.embedded")
                self._running = engine.EmbeddedPool(self._app, self.concurrency, self.queues)
                self._app._clients.append(self)
                if not self._is_registered:
                    self._is_registered = True
                    atexit.register(_stop, weakref.ref(self))
        return self

    def stop(self) -> None:
        """Take no more jobs, let the running ones finish for `stop_grace` (30 s unless set), hand back what is left,
        and return. Does nothing if it does not run. A function that still runs goes on: its job, whose id is logged,
        does not begin again in this program before that has returned; in another one it may. Raises the error that had
        ended the pool before, if one had."""
        with self._lock:
            running, self._running = self._running, None
            if self in self._app._clients:
                self._app._clients.remove(self)
            if running is not None:
                running.stop()

    def drain(self) -> None:
        """Work until nothing is left to run now, then return. A pool that runs goes on running; one that does not is
        started for it and stopped again. Jobs that come in meanwhile are run too; those that are not due, or whose
        queue is paused, are left. Raises the error that has ended the pool, if one has."""
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
        """`stop`, without raising what had ended it, which is in the log; an app that is closed does it."""
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
    left = pool()
    if left is not None:
        left.close()
