"""One worker, as its foreman sees it: what it has said, what it was told, and how its process is."""

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
_MOST_TOLD = 100
_LONGEST_LINE = 4_096
_FOR_CHILDREN = 1.0
"""Seconds that the children of a worker have to say where they stand; one that holds the interpreter never does."""
STUCK = 15.0
"""Seconds without a look at its jobs' time limits after which a worker is taken for stuck. It looks four times a
second; with many threads that compute, or on a busy machine, it may come to it only every few seconds."""


class _Told(NamedTuple):
    """Where a worker stood: in answer to which order, when, and how many of its children have not said it yet."""

    order: int
    at: float
    items: list[dict[str, Any]]
    awaited: int

    def is_ready(self, now: float) -> bool:
        """Have all said it, or had their time to?"""
        return self.awaited <= 0 or now - self.at >= _FOR_CHILDREN


class Serving(NamedTuple):
    """What the workers of a workers serve: these queues, and others of their choice that hold jobs of these tasks."""

    queues: frozenset[str]
    tasks: frozenset[str] = frozenset()
    choice: tuple[str, ...] = ()

    @classmethod
    def told(cls, message: Message) -> Serving:
        """As a worker told it."""
        queues, tasks, choice = message.get("queues", {}), message.get("tasks", ()), message.get(SERVES, ())
        return cls(frozenset(queues), frozenset(tasks), tuple(choice))


class WorkerHandle:
    """A worker of the workers. The main thread changes it; others read, send, and beat."""

    def __init__(
        self, id: str, process: subprocess.Popen[bytes], channel: Channel, board: SharedStatus, is_extra: bool
    ):
        self.id = id
        self.process = process
        self.channel = channel
        self.board = board
        self.is_extra = is_extra
        self.foreman: str | None = None  # under which id its foreman started it
        self.started_at = time.monotonic()
        self.is_online = False
        self.serving: Serving | None = None  # None: it has not told yet
        self.report: dict[str, Any] = {}
        self.leaving: str | None = None  # why it takes no more jobs
        self.done_when_leaving: int | None = None
        self.failed_when_leaving: int | None = None
        self.found_nothing = False  # in a burst: it leaves because nothing is left to run
        self.is_missed = True  # another takes its place when it goes, if so many are wanted
        self.is_stuck = False  # a job of its would not end
        self.is_ordered = False  # we have told it to end
        self.was_killed = False  # by us
        self.is_unknown = False  # the storage has struck it off
        self.is_frozen = False  # stopped by SIGSTOP, so that nobody beats for it
        self.beaten_at: float | None = None  # by `boot_time`: the last time that somebody did
        self.why_killed: str | None = None  # by us, without any order
        self.overruns: tuple[Overrun, ...] = ()  # of its jobs whose time is over, and which it does not end
        self.quit_at: float | None = None
        self.kill_at: float | None = None
        self.has_worked = self.is_proven = False
        self.lines: deque[str] = deque(maxlen=_LINES)
        self._idle_since = self.started_at
        self._rest = ""
        self._stacks: _Told | None = None
        self._told_order: int | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_active(self) -> bool:
        """Does it take jobs, or is it about to?"""
        return self.leaving is None

    def load(self, slots: int, now: float) -> WorkerLoad:
        """What scaling needs to know of it."""
        busy = int(self.report.get("busy", 0))
        idle_for = 0.0 if busy else now - self._idle_since
        slots = int(self.report.get("slots", 1 if self.is_extra else slots))
        done = int(self.report.get("done", 0)) + int(self.report.get("failed", 0))
        return WorkerLoad(self.id, slots, busy, done, idle_for, self.is_online, self.is_extra)

    def hear(self, message: Message, now: float) -> None:
        """A message from it."""
        match message.pop("say", None):
            case "online":
                self.is_online = True
                self.serving = Serving.told(message)
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
                self._stacks = _Told(message["order"], now, message["items"], int(message.get("more", 0)))
            case "stack" if self._stacks is not None and self._stacks.order == message.get("order"):
                told = self._stacks
                items = [message["stack"], *told.items] if len(told.items) < MOST_STACKS else told.items
                self._stacks = told._replace(items=items, awaited=told.awaited - 1)

    @property
    def is_newly_needless(self) -> bool:
        """Does it leave because nothing is left, and is still counted among those that are wanted?"""
        return self.found_nothing and self.is_missed and not self.is_extra

    def has_answered(self, now: float) -> bool:
        """Has it said where it stands, so that the storage should be told soon? Once for each answer."""
        if self._stacks is None or self._stacks.order == self._told_order or not self._stacks.is_ready(now):
            return False
        self._told_order = self._stacks.order
        return True

    def told(self, now: float) -> dict[str, Any]:
        """What the storage is told of it: its report, what its slots do at this moment, and for a while what it said
        when it was asked where it stands. Of children that have not answered yet nothing is told before they had a
        moment to."""
        stacks, report = self._stacks, {**self.report, **self._slots()}
        if stacks is None or not stacks.is_ready(now) or now - stacks.at > STACKS_TOLD_FOR:
            return report
        age = round(now - stacks.at, 1)
        # The worker has cut what it told itself; its children have not, and this goes into every heartbeat.
        items = msgspec.to_builtins(limit_stacks(msgspec.convert(stacks.items, list[Stack])))
        return {**report, "stacks": {"order": stacks.order, "age_s": age, "items": items}}

    def _slots(self) -> dict[str, Any]:
        """A sample: short jobs never run for long enough to be told of in any other way."""
        if not self.report:
            return {}
        running = [begun for begun in self.board.begun() if not begun.has_ended]
        told = [
            {"slot": each.slot, "job_id": each.job_id, "task": each.task, "since_s": round(each.ago / SECOND, 1)}
            for each in sorted(running, key=lambda each: each.slot)[:_MOST_TOLD]
        ]
        return {"busy": len(running), "running": told}

    def _take_report(self, report: Message, now: float) -> None:
        done = (report.get("done"), report.get("failed"))
        if report.get("busy") or done != (self.report.get("done"), self.report.get("failed")):
            self._idle_since = now
        self.has_worked = self.has_worked or any(done)
        self.report = report

    def streams(self) -> list[tuple[IO[bytes], Callable[[bytes], None]]]:
        """What it writes to, as far as it goes through us, and what becomes of that."""
        found = [(self.process.stderr, self.write), (self.process.stdout, _print)]
        return [(stream, write) for stream, write in found if stream is not None]

    def write(self, data: bytes) -> None:
        """What it wrote to stderr is shown as our own, and the last lines are kept to tell why it died."""
        with suppress(OSError):
            os.write(2, data)
        *lines, rest = (self._rest + data.decode(errors="replace")).split("\n")
        self.lines.extend(lines)
        self._rest = rest[-_LONGEST_LINE:]

    def ordered(self, why: str) -> None:
        """We have told it to end."""
        self.is_ordered = True
        self.leaving = self.leaving or why

    def beat(self) -> None:
        """The storage has accepted a heartbeat for it."""
        self.board.beat()

    def stop_job(self, stop: AbortRequest) -> None:
        """Tell it that one of its jobs should stop."""
        token = stop.token
        words = {"job_id": token.job_id, "owner": token.owner, "fence": token.fence, "reason": stop.reason.value}
        self.channel.send({"do": "stop", **words})

    def stuck_with(self) -> dict[str, int]:
        """The jobs that it runs, and for how many microseconds each, if it does not watch their time limits any more: a
        call may hold the interpreter lock. None: it watches them, or runs nothing. From any thread."""
        with suppress(TypeError, ValueError):  # its board was closed this moment
            if self.board.look_age() >= STUCK:
                running = {begun.job_id: begun.ago for begun in self.board.begun() if not begun.has_ended}
                # An idle worker looks less often: what it has just begun, it will watch in a moment.
                return running if max(running.values(), default=0) >= STUCK * SECOND else {}
        return {}

    def is_stopped(self) -> bool:
        """Was it stopped by a signal, as with `kill -STOP`? Then it does not live, whatever its pid says."""
        if not hasattr(os, "waitid"):
            return False
        try:
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return False

    def has_ended(self) -> bool:
        """Without reaping it, where that is possible: until then its number cannot mean anybody else."""
        if self.process.returncode is not None or not hasattr(os, "waitid"):
            return self.process.poll() is not None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True  # somebody else has reaped it


def _print(data: bytes) -> None:
    with suppress(OSError):
        os.write(1, data)
