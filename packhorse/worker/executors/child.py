"""A child process: runs isolated jobs one after another, and tells the worker what they say and come to.

The job runs in the child's main thread, so that a signal reaches it; a second thread listens for "stop". What goes over
the channel is JSON, one message to a line. A child that was told to stop gets no further job. Before the next job
begins, whatever the last one has started and left behind is killed and reaped.
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
from packhorse.worker.capture import capture_logging
from packhorse.worker.ipc import Channel, Message
from packhorse.worker.middleware import Chain
from packhorse.worker.processes import own_children
from packhorse.worker.stacks import coroutine_text, main_thread_text

_OUTCOMES: dict[str, Any] = {kind.__name__: kind for kind in (Completed, Failed, Snoozed, Stopped, Halted, Released)}

Finder = Callable[[str], tuple[RegisteredTask, Chain, bool]]
"""The task of this name, its chain, and whether that must be awaited."""


_TOLD = "the job was told to end"
_THREADS = Path("/proc/self/task")
_PATIENCE = 2.0
"""Seconds that the next job waits for what the last one left to be gone. Who hangs in the kernel for longer is seen to
after that one."""


class StopNow(BaseException):
    """Raised in the job's own thread by SIGTERM: its time is over, `finally` blocks may still clean up."""


def encode_outcome(outcome: Outcome) -> Message:
    return {"outcome": type(outcome).__name__, "fields": msgspec.to_builtins(outcome)}


def decode_outcome(message: Message) -> Outcome:
    outcome: Outcome = msgspec.convert(message["fields"], _OUTCOMES[message["outcome"]])
    return outcome


def is_stop(outcome: Outcome) -> bool:
    """Did the job end because of SIGTERM, and for no reason of its own?"""
    return isinstance(outcome, Failed) and outcome.failure.type == StopNow.__name__


class _WorkerLine:
    """The running job's line, over the channel. See `context.Line`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.runs = False  # a plain job runs: SIGTERM may interrupt it
        self.stops = False  # the job was told to end
        self.worker_stops = False  # check-ins say stop; the job may go on
        self.coroutine: Any = None  # of the job that runs, if it is one

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
        """Where the job stands. A coroutine is looked at itself, unless it is just what the main thread runs."""
        return (coroutine_text(self.coroutine) if self.coroutine is not None else "") or main_thread_text()

    def terminate(self, number: int, frame: FrameType | None) -> None:
        """SIGTERM has come."""
        self.stops = True
        if self.runs:
            raise StopNow(_TOLD)


def serve(end: socket.socket, find: Finder, result_limit: int) -> None:
    """Run jobs until the worker closes its end."""
    channel = Channel(end)
    line = _WorkerLine(channel)
    jobs: SimpleQueue[Job | None] = SimpleQueue()
    signal.signal(signal.SIGTERM, line.terminate)
    threading.Thread(target=_listen, args=(channel, line, jobs), daemon=True).start()
    before = _children()  # none, unless this process is more than a child
    with capture_logging():
        while (job := jobs.get()) is not None:
            task, chain, is_async = find(job.task)
            channel.send(encode_outcome(_run(job, task, chain, is_async, line, result_limit)))
            _end_what_is_left(before)


def _run(job: Job, task: RegisteredTask, chain: Chain, is_async: bool, line: _WorkerLine, result_limit: int) -> Outcome:
    with _output_to(line):
        if is_async:
            return asyncio.run(_run_async(job, task, chain, line, result_limit))
        return _run_plain(job, task, chain, line, result_limit)


def _run_plain(job: Job, task: RegisteredTask, chain: Chain, line: _WorkerLine, result_limit: int) -> Outcome:
    """SIGTERM raises in it wherever it is, but never before or after it: what it returned or raised stands."""

    def interruptible(context: JobContext) -> Any:
        try:
            line.runs = True
            if line.stops:  # it was told to end before it began
                raise StopNow(_TOLD)
            return chain(context)
        finally:
            line.runs = False

    try:
        return attempt.run(job, task, interruptible, line, result_limit)
    except StopNow as error:
        line.runs = False  # it may have come just before the line above
        return attempt.failed_with(job, task, error)


async def _run_async(job: Job, task: RegisteredTask, chain: Chain, line: _WorkerLine, result_limit: int) -> Outcome:
    """SIGTERM cancels it: raised in the middle of the event loop's own code, an error might go unseen."""
    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    assert me is not None
    loop.add_signal_handler(signal.SIGTERM, _stop, line, me)
    try:
        if line.stops:
            raise asyncio.CancelledError
        line.coroutine = me.get_coro()
        return await attempt.arun(job, task, chain, line, result_limit)
    except asyncio.CancelledError as error:
        return attempt.failed_with(job, task, StopNow(_TOLD) if line.stops else error)
    finally:
        line.coroutine = None
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, line.terminate)


def _stop(line: _WorkerLine, task: asyncio.Task[Outcome]) -> None:
    line.stops = True
    task.cancel()


def _listen(channel: Channel, line: _WorkerLine, jobs: SimpleQueue[Job | None]) -> None:
    for message in channel.receive():
        if "job" in message:
            jobs.put(msgspec.convert(message["job"], Job))
        elif message.get("stop"):
            line.stops = True
        elif message.get("worker_stops"):
            line.worker_stops = True
        elif message.get("stack"):
            channel.send({"stack": line.stack()})
    jobs.put(None)


# --- what a job leaves behind ---------------------------------------------------------------------------------------


def _end_what_is_left(but: set[int]) -> None:
    """Kill and reap what the job has started, except these. A child adopts orphans: who ends leaves us the next
    generation, until there is none."""
    deadline = time.monotonic() + _PATIENCE
    while (left := _children() - _helpers() - but) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with suppress(ChildProcessError):  # somebody who was left in a thread has waited for it
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.001)  # a signal is on its way


def _children() -> set[int]:
    """The children of this process, whichever of its threads has started them."""
    if sys.platform == "darwin":
        return set()  # it has neither of what follows, and no orphans come
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # one call, and most jobs leave nobody
    except ChildProcessError:
        return set()
    found = own_children()
    with suppress(OSError):
        for thread in _THREADS.iterdir():
            with suppress(OSError):  # it has ended, and its children are another's
                found.update(int(pid) for pid in (thread / "children").read_text().split())
    return found


def _helpers() -> set[int]:
    """Python's own helpers for `multiprocessing`, which the next job uses again: a fork server that somebody else has
    reaped, it would not get over."""
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    return {getattr(server, "_forkserver_pid", None) or 0, getattr(tracker, "_pid", None) or 0}


# --- what a job prints ----------------------------------------------------------------------------------------------


@contextmanager
def _output_to(line: _WorkerLine) -> Iterator[None]:
    before, output = (sys.stdout, sys.stderr), _JobOutput(line)
    sys.stdout = sys.stderr = output
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        output.end()


class _JobOutput(io.TextIOBase):
    """What a job prints goes into its log, line by line. Of a line that is written again and again, as a progress bar
    is, the last version counts."""

    encoding = "utf-8"

    def __init__(self, line: _WorkerLine) -> None:
        self._line = line
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
        """The job has ended, if need be in the middle of a line."""
        if self._rest:
            self._log(self._rest)

    def _log(self, one: str) -> None:
        self._line.log(tidy(one.rstrip("\r").rpartition("\r")[2]) or "")
