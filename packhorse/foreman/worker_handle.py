"""One worker as its foreman sees it: its reports, the orders to it, and its process."""

from __future__ import annotations

import os
import subprocess
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, NamedTuple

import msgspec

from packhorse.core.clock import SECOND
from packhorse.core.outcome import Overrun
from packhorse.foreman.scaling import WorkerLoad
from packhorse.monitor.served_queues import SERVES
from packhorse.monitor.stacks import MOST_STACKS, STACKS_TOLD_FOR, Stack, limit_stacks
from packhorse.storage.records import AbortRequest
from packhorse.worker.ipc import Channel, Message
from packhorse.worker.shared_status import SharedStatus

_LINES = 20
_MAX_REPORTED = 100
_LONGEST_LINE = 4_096
_CHILDREN_TIMEOUT = 1.0
"""Seconds that the children of a worker have to send their stacks; one that holds the interpreter lock never does."""
STUCK = 15.0
"""Seconds without a check of its jobs' time limits after which a worker counts as stuck. It checks four times a second;
with many computing threads, or on a busy machine, only every few seconds."""


class _StackReply(NamedTuple):
    """The stacks of a worker: for which order, received when, and from how many children they are still missing."""

    order: int
    at: float
    items: list[dict[str, Any]]
    awaited: int

    def is_ready(self, now: float) -> bool:
        """Have all children replied, or had their time to?"""
        return self.awaited <= 0 or now - self.at >= _CHILDREN_TIMEOUT


class Serving(NamedTuple):
    """The queues that the workers serve, and the patterns by which they also serve other queues with jobs of these
    tasks."""

    queues: frozenset[str]
    tasks: frozenset[str] = frozenset()
    choice: tuple[str, ...] = ()

    @classmethod
    def from_message(cls, message: Message) -> Serving:
        """From a worker's message."""
        queues, tasks, choice = message.get("queues", {}), message.get("tasks", ()), message.get(SERVES, ())
        return cls(frozenset(queues), frozenset(tasks), tuple(choice))


class WorkerHandle:
    """A worker of this foreman. The main thread changes it; other threads read it, send messages and record
    heartbeats."""

    def __init__(
        self, id: str, process: subprocess.Popen[bytes], channel: Channel, status: SharedStatus, is_extra: bool
    ):
        self.id = id
        self.process = process
        self.channel = channel
        self.status = status
        self.is_extra = is_extra
        self.foreman: str | None = None  # the id under which its foreman started it
        self.started_at = time.monotonic()
        self.is_online = False
        self.serving: Serving | None = None  # None: not reported yet
        self.report: dict[str, Any] = {}
        self.leaving: str | None = None  # why it takes no more jobs
        self.done_when_leaving: int | None = None
        self.failed_when_leaving: int | None = None
        self.found_nothing = False  # in a burst: it leaves because nothing is left to run
        self.needs_replacement = True  # it is replaced when it ends, if so many workers are wanted
        self.is_stuck = False  # it holds a job that does not end
        self.was_ordered = False  # we have ordered it to end
        self.was_killed = False  # by us
        self.is_unknown = False  # the storage no longer knows it
        self.is_frozen = False  # stopped by a signal, so it gets no heartbeats
        self.beat_at: float | None = None  # its last heartbeat, by `boot_time`
        self.why_killed: str | None = None  # by us, without an order to end
        self.overruns: tuple[Overrun, ...] = ()  # its jobs that are over their time limits and that it does not end
        self.quit_at: float | None = None
        self.kill_at: float | None = None
        self.has_worked = self.is_proven = False
        self.lines: deque[str] = deque(maxlen=_LINES)
        self._idle_since = self.started_at
        self._rest = ""
        self._stacks: _StackReply | None = None
        self._reported_order: int | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_active(self) -> bool:
        """Does it take jobs, or will it soon?"""
        return self.leaving is None

    def load(self, slots: int, now: float) -> WorkerLoad:
        """The facts for scaling."""
        busy = int(self.report.get("busy", 0))
        idle_for = 0.0 if busy else now - self._idle_since
        slots = int(self.report.get("slots", 1 if self.is_extra else slots))
        done = int(self.report.get("done", 0)) + int(self.report.get("failed", 0))
        return WorkerLoad(self.id, slots, busy, done, idle_for, self.is_online, self.is_extra)

    def receive_message(self, message: Message, now: float) -> None:
        """Process a message from it."""
        match message.pop("say", None):
            case "online":
                self.is_online = True
                self.serving = Serving.from_message(message)
                self._idle_since = now
            case "report":
                self._take_report(message, now)
            case "stuck" | "leaving" as said:
                self.leaving = self.leaving or str(message.get("why", said))
                self.is_stuck = self.is_stuck or said == "stuck"
                self.done_when_leaving = message.get("done")
                self.failed_when_leaving = message.get("failed")
                self.found_nothing = bool(message.get("found_nothing"))
            case "stacks":
                self._stacks = _StackReply(message["order"], now, message["items"], int(message.get("more", 0)))
            case "stack" if self._stacks is not None and self._stacks.order == message.get("order"):
                reply = self._stacks
                items = [message["stack"], *reply.items] if len(reply.items) < MOST_STACKS else reply.items
                self._stacks = reply._replace(items=items, awaited=reply.awaited - 1)

    @property
    def is_newly_surplus(self) -> bool:
        """Does it leave because nothing is left, while it still counts among the wanted ones?"""
        return self.found_nothing and self.needs_replacement and not self.is_extra

    def has_new_stacks(self, now: float) -> bool:
        """Has it sent stacks that the storage does not have yet? True once for each reply."""
        if self._stacks is None or self._stacks.order == self._reported_order or not self._stacks.is_ready(now):
            return False
        self._reported_order = self._stacks.order
        return True

    def stored_report(self, now: float) -> dict[str, Any]:
        """Its report for the storage: its own, a sample of its slots, and for a while the stacks that it sent. The
        stacks wait a moment for those of its children."""
        stacks, report = self._stacks, {**self.report, **self._slots()}
        if stacks is None or not stacks.is_ready(now) or now - stacks.at > STACKS_TOLD_FOR:
            return report
        age = round(now - stacks.at, 1)
        # The worker has limited its own stacks, its children have not, and every heartbeat carries them.
        items = msgspec.to_builtins(limit_stacks(msgspec.convert(stacks.items, list[Stack])))
        return {**report, "stacks": {"order": stacks.order, "age_s": age, "items": items}}

    def _slots(self) -> dict[str, Any]:
        """A sample: most short jobs end before the worker reports them."""
        if not self.report:
            return {}
        running = [begun for begun in self.status.begun() if not begun.has_ended]
        shown = [
            {"slot": each.slot, "job_id": each.job_id, "task": each.task, "since_s": round(each.ago / SECOND, 1)}
            for each in sorted(running, key=lambda each: each.slot)[:_MAX_REPORTED]
        ]
        return {"busy": len(running), "running": shown}

    def _take_report(self, report: Message, now: float) -> None:
        done = (report.get("done"), report.get("failed"))
        if report.get("busy") or done != (self.report.get("done"), self.report.get("failed")):
            self._idle_since = now
        self.has_worked = self.has_worked or any(done)
        self.report = report

    def streams(self) -> list[tuple[IO[bytes], Callable[[bytes], None]]]:
        """The streams that it writes to through us, each with its destination."""
        found = [(self.process.stderr, self.write), (self.process.stdout, _print)]
        return [(stream, write) for stream, write in found if stream is not None]

    def write(self, data: bytes) -> None:
        """Copy its stderr to ours, and keep the last lines to explain its death."""
        with suppress(OSError):
            os.write(2, data)
        *lines, rest = (self._rest + data.decode(errors="replace")).split("\n")
        self.lines.extend(lines)
        self._rest = rest[-_LONGEST_LINE:]

    def mark_ordered(self, why: str) -> None:
        """We have ordered it to end."""
        self.was_ordered = True
        self.leaving = self.leaving or why

    def beat(self) -> None:
        """Record an accepted heartbeat in its shared status."""
        self.status.beat()

    def stop_job(self, stop: AbortRequest) -> None:
        """Ask it to stop one of its jobs."""
        token = stop.token
        words = {"job_id": token.job_id, "owner": token.owner, "fence": token.fence, "reason": stop.reason.value}
        self.channel.send({"do": "stop", **words})

    def running_if_stuck(self) -> dict[str, int]:
        """Its running jobs, and for how many microseconds each has run, if it no longer watches their time limits, as
        when a call holds the interpreter lock; otherwise empty. Any thread may call it."""
        with suppress(TypeError, ValueError):  # the shared status was just closed
            if self.status.look_age() >= STUCK:
                running = {begun.job_id: begun.ago for begun in self.status.begun() if not begun.has_ended}
                # An idle worker checks less often: it will soon check what it has just started.
                return running if max(running.values(), default=0) >= STUCK * SECOND else {}
        return {}

    def is_stopped(self) -> bool:
        """Has a signal stopped it, as with `kill -STOP`? Then it counts as dead."""
        if not hasattr(os, "waitid"):
            return False
        try:
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return False

    def has_ended(self) -> bool:
        """Has it ended? Checked without reaping it where possible, so that its pid cannot be reused."""
        if self.process.returncode is not None or not hasattr(os, "waitid"):
            return self.process.poll() is not None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True  # something else has reaped it


def _print(data: bytes) -> None:
    with suppress(OSError):
        os.write(1, data)
