"""A child process: runs isolated jobs one after another, and sends the worker their log lines and outcomes.

The job runs in the child's main thread, so that a signal reaches it; a second thread listens for "stop". The messages
are JSON, one to a line. A child that was asked to stop gets no further job. Before the next job begins, the child kills
and reaps whatever processes the last one has left behind.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

import msgspec

from packhorse.core.context import MESSAGE_LIMIT, JobContext, tidy
from packhorse.core.job import Job
from packhorse.core.outcome import Completed, Failed, Halted, Outcome, Released, Snoozed, Stopped
from packhorse.core.task import RegisteredTask
from packhorse.worker import attempt
from packhorse.worker.ipc import Channel, Message
from packhorse.worker.logging import capture_logging
from packhorse.worker.middleware import Chain
from packhorse.worker.processes import own_children
from packhorse.worker.stacks import coroutine_text, main_thread_text

_OUTCOMES: dict[str, Any] = {kind.__name__: kind for kind in (Completed, Failed, Snoozed, Stopped, Halted, Released)}

Finder = Callable[[str], tuple[RegisteredTask, Chain, bool]]
"""Find the task of this name, its chain, and whether the chain must be awaited."""

_STOPPED = "the job was told to stop"
_THREADS = Path("/proc/self/task")
_CLEANUP_TIMEOUT = 2.0
"""Seconds that the next job waits until what the last one left behind is gone. A process that hangs in the kernel for
longer is killed after that job."""


class StopNow(BaseException):
    """SIGTERM raises it in the job's own thread: the job must end, `finally` blocks may still clean up."""


def encode_outcome(outcome: Outcome) -> Message:
    return {"outcome": type(outcome).__name__, "fields": msgspec.to_builtins(outcome)}


def decode_outcome(message: Message) -> Outcome:
    outcome: Outcome = msgspec.convert(message["fields"], _OUTCOMES[message["outcome"]])
    return outcome


def is_stop(outcome: Outcome) -> bool:
    """Did the job end only because of SIGTERM?"""
    return isinstance(outcome, Failed) and outcome.failure.type == StopNow.__name__


class _ChannelLink:
    """The running job's link to its worker, over the channel. See `WorkerLink`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.runs = False  # a plain job runs: SIGTERM may interrupt it
        self.stops = False  # the job was asked to stop
        self.worker_stops = False  # check-ins say "stop"; the job may continue
        self.coroutine: Any = None  # of an async job

    def log(self, message: str, kind: str = "log") -> None:
        self._channel.send({"log": message, "kind": kind})

    def check_in(self, message: str | None, progress: int | None, progress_text: str | None) -> None:
        self._channel.send({"checkin": message, "progress": progress, "text": progress_text})

    def is_stopping(self) -> bool:
        return self.stops or self.worker_stops

    def should_stop(self) -> bool:
        stops = self.is_stopping()
        if stops:
            self._channel.send({"saw_stop": True})
        return stops

    def stack(self) -> str:
        """The stack of the job: of its coroutine while that waits, else of the main thread."""
        return (coroutine_text(self.coroutine) if self.coroutine is not None else "") or main_thread_text()

    def terminate(self, number: int, frame: FrameType | None) -> None:
        """The handler of SIGTERM."""
        self.stops = True
        if self.runs:
            raise StopNow(_STOPPED)


def serve(end: socket.socket, find: Finder, result_limit: int) -> None:
    """Run jobs until the worker closes its end."""
    channel = Channel(end)
    link = _ChannelLink(channel)
    jobs: SimpleQueue[Job | None] = SimpleQueue()
    signal.signal(signal.SIGTERM, link.terminate)
    threading.Thread(target=_listen, args=(channel, link, jobs), daemon=True).start()
    before = _children()  # none, unless this process is more than a child
    with capture_logging():
        while (job := jobs.get()) is not None:
            task, chain, is_async = find(job.task)
            channel.send(encode_outcome(_run(job, task, chain, is_async, link, result_limit)))
            _kill_leftovers(before)


def _run(
    job: Job, task: RegisteredTask, chain: Chain, is_async: bool, link: _ChannelLink, result_limit: int
) -> Outcome:
    with _output_to(link):
        if is_async:
            return asyncio.run(_run_async(job, task, chain, link, result_limit))
        return _run_plain(job, task, chain, link, result_limit)


def _run_plain(job: Job, task: RegisteredTask, chain: Chain, link: _ChannelLink, result_limit: int) -> Outcome:
    """SIGTERM interrupts the task wherever it is, but never before or after it: its own outcome stands."""

    def interruptible(context: JobContext) -> Any:
        try:
            link.runs = True
            if link.stops:  # it was asked to stop before it began
                raise StopNow(_STOPPED)
            return chain(context)
        finally:
            link.runs = False

    try:
        return attempt.run(job, task, interruptible, link, result_limit)
    except StopNow as error:
        link.runs = False  # the signal may have come just before the line above
        return attempt.failed_with(job, task, error)


async def _run_async(job: Job, task: RegisteredTask, chain: Chain, link: _ChannelLink, result_limit: int) -> Outcome:
    """SIGTERM cancels the task: an exception in the event loop's own code might be lost."""
    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    assert me is not None
    loop.add_signal_handler(signal.SIGTERM, _stop, link, me)
    try:
        if link.stops:
            raise asyncio.CancelledError
        link.coroutine = me.get_coro()
        return await attempt.arun(job, task, chain, link, result_limit)
    except asyncio.CancelledError as error:
        return attempt.failed_with(job, task, StopNow(_STOPPED) if link.stops else error)
    finally:
        link.coroutine = None
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, link.terminate)


def _stop(link: _ChannelLink, task: asyncio.Task[Outcome]) -> None:
    link.stops = True
    task.cancel()


def _listen(channel: Channel, link: _ChannelLink, jobs: SimpleQueue[Job | None]) -> None:
    for message in channel.receive():
        if "job" in message:
            jobs.put(msgspec.convert(message["job"], Job))
        elif message.get("stop"):
            link.stops = True
        elif message.get("worker_stops"):
            link.worker_stops = True
        elif message.get("stack"):
            channel.send({"stack": link.stack()})
    jobs.put(None)


# --- what a job leaves behind ---------------------------------------------------------------------------------------


def _kill_leftovers(but: set[int]) -> None:
    """Kill and reap the processes that the job has started, except these, until there are none: the children of a
    killed process become ours."""
    deadline = time.monotonic() + _CLEANUP_TIMEOUT
    while (left := _children() - _helpers() - but) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with suppress(ChildProcessError):  # a thread that the job left behind has waited for it
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.001)  # a signal is on its way


def _children() -> set[int]:
    """The children of this process, whatever thread has started them."""
    if sys.platform == "darwin":
        return set()  # it has no /proc, and adopts no orphans
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # one call is enough for most jobs
    except ChildProcessError:
        return set()
    found = own_children()
    with suppress(OSError):
        for thread in _THREADS.iterdir():
            with suppress(OSError):  # the thread has ended, and its children belong to another
                found.update(int(pid) for pid in (thread / "children").read_text().split())
    return found


def _helpers() -> set[int]:
    """Python's own helper processes for `multiprocessing`, which the next job uses again: it fails if another has
    reaped them."""
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    return {getattr(server, "_forkserver_pid", None) or 0, getattr(tracker, "_pid", None) or 0}


# --- what a job prints ----------------------------------------------------------------------------------------------


@contextmanager
def _output_to(link: _ChannelLink) -> Iterator[None]:
    before, output = (sys.stdout, sys.stderr), _JobOutput(link)
    sys.stdout = sys.stderr = output
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        output.end()


class _JobOutput(io.TextIOBase):
    """Writes what a job prints into its log, line by line. Of a line that is overwritten, as by a progress bar, it
    keeps the last version."""

    encoding = "utf-8"

    def __init__(self, link: _ChannelLink) -> None:
        self._link = link
        self._rest = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, rest = (self._rest + text).split("\n")
        for one in lines:
            self._log(one)
        self._rest = rest.rpartition("\r")[2][: MESSAGE_LIMIT + 1]
        return len(text)

    def end(self) -> None:
        """The job has ended; its last line may be incomplete."""
        if self._rest:
            self._log(self._rest)

    def _log(self, one: str) -> None:
        self._link.log(tidy(one.rstrip("\r").rpartition("\r")[2]) or "")
