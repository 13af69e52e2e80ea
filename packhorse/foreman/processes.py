"""The worker processes of a foreman: starts them, reads their messages, stops them, and finds out why they ended.

Only the foreman's main thread starts and ends workers: a worker dies with the thread that started it. Other threads may
read `members`, send messages to them and record their heartbeats.
"""

from __future__ import annotations

import fcntl
import functools
import logging
import os
import re
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

import msgspec
from msgspec.structs import replace

from packhorse.core.outcome import Overrun
from packhorse.core.settings import Settings, mask_url
from packhorse.foreman import process_tree
from packhorse.foreman.scaling import YOUNG, WorkerLoad
from packhorse.foreman.worker_handle import Serving, WorkerHandle
from packhorse.worker.ipc import EXIT_STUCK, Channel, Message
from packhorse.worker.shared_status import SharedStatus
from packhorse.worker.spool import Spool

log = logging.getLogger("packhorse")

QUIT_GRACE = 3.0
"""Seconds between the message to quit and the kill."""
_UNKNOWN_GRACE = 0.5
"""The same for a worker that the storage no longer knows: others have its jobs."""


class Launch(msgspec.Struct, frozen=True):
    """How to start a worker. The command gets each worker's own options, then `arguments`, and for the extra workers of
    forced jobs `extra_arguments`."""

    target: str
    command: Sequence[str]
    url: str
    concurrency: int
    arguments: Sequence[str] = ()
    extra_arguments: Sequence[str] = ("--max-jobs", "1")
    spool: Path | None = None  # the directory for outcomes that could not be stored

    @classmethod
    def of(cls, target: str, settings: Settings, arguments: Sequence[str] = ()) -> Self:
        """`python -m packhorse.worker TARGET`."""
        command = [sys.executable, "-m", "packhorse.worker", target]
        return cls(target, command, settings.url, settings.concurrency, arguments, spool=Spool.of(settings).directory)


class WorkerExit(msgspec.Struct, frozen=True):
    """The exit of a worker. `died` is True if nothing had asked it to end."""

    owner: str
    why: str
    died: bool
    ran: list[str] = []  # the jobs that had started and not ended
    is_young: bool = False
    needs_replacement: bool = True  # False if the foreman must learn now that it needs no replacement
    lines: list[str] = []  # the last lines of its stderr
    done: int = 0  # finished attempts, as last reported
    failed: int = 0  # the failed ones among them
    overruns: tuple[Overrun, ...] = ()  # the outcomes of jobs for which it was killed
    foreman: str | None = None  # the id under which its foreman started it


class WorkerGroup:
    """All workers of one foreman. `members` is replaced, never changed, so any thread may iterate over it."""

    def __init__(self, launch: Launch, selector: selectors.BaseSelector, on_online: Callable[[], None]) -> None:
        self.members: tuple[WorkerHandle, ...] = ()
        self.serving: Serving | None = None  # None: no worker has reported it yet
        self.starts = 0
        self._launch = launch
        self._selector = selector
        self._on_online = on_online
        self._memory = process_tree.MemoryWatch()
        self._memory_read_at = time.monotonic()
        self._orphans: set[int] = set()
        self._pidfds: dict[str, int] = {}

    # --- members --------------------------------------------------------------------------------------------------

    @property
    def active(self) -> list[WorkerHandle]:
        """The ordinary workers that take jobs, or will soon."""
        return [worker for worker in self.members if worker.is_active and not worker.is_extra]

    @property
    def extra(self) -> list[WorkerHandle]:
        return [worker for worker in self.members if worker.is_active and worker.is_extra]

    @property
    def leaving(self) -> list[WorkerHandle]:
        return [worker for worker in self.members if not worker.is_active]

    @property
    def starting(self) -> int:
        return sum(not worker.is_online for worker in self.members if worker.is_active)

    def get(self, id: str) -> WorkerHandle | None:
        return next((worker for worker in self.members if worker.id == id), None)

    def loads(self, now: float) -> list[WorkerLoad]:
        """The facts for scaling."""
        slots = self._launch.concurrency
        return [worker.load(slots, now) for worker in self.members if worker.is_active]

    def set_launch(self, launch: Launch) -> None:
        """How to start workers from now on."""
        self._launch = launch

    def set_slots(self, slots: int) -> None:
        """The number of slots of ordinary workers that start from now on."""
        self._launch = replace(self._launch, concurrency=slots)

    # --- starting -------------------------------------------------------------------------------------------------

    def start(self, foreman: str, *, is_extra: bool = False) -> WorkerHandle:
        """Start a worker under a new id. Raises OSError if the system refuses."""
        owner = secrets.token_urlsafe(16)
        slots = 1 if is_extra else self._launch.concurrency
        status = SharedStatus.create(make_status_directory() / STATUS_FILE, slots)
        ours, theirs = Channel.pair()
        try:
            process = self._spawn(owner, foreman, status, theirs, slots, is_extra)
        except OSError:
            ours.close()
            status.close()
            _unlink_status(status)
            raise
        finally:
            theirs.close()
        worker = WorkerHandle(owner, process, ours, status, is_extra)
        worker.foreman = foreman
        self.members = (*self.members, worker)
        self.starts += 1
        self._watch(worker)
        return worker

    def _spawn(
        self, owner: str, foreman: str, status: SharedStatus, channel: Channel, slots: int, is_extra: bool
    ) -> subprocess.Popen[bytes]:
        # Writing to a closing terminal fails, so only the foreman writes to it.
        in_terminal = os.isatty(1)
        # Every user of the machine can read a command line; a password goes through the environment.
        has_secret = mask_url(self._launch.url) != self._launch.url
        own = {
            "--id": owner,
            "--shared-status": status.path,
            "--channel": channel.fileno(),
            "--foreman": foreman,
            "--parent": os.getpid(),
            "--concurrency": slots,
            **({} if has_secret else {"--url": self._launch.url}),
            **({} if (spool := Spool(self._launch.spool).path_of(owner)) is None else {"--spool": spool}),
        }
        return subprocess.Popen(
            [
                *self._launch.command,
                *(f"{name}={value}" for name, value in own.items()),  # a value may begin with a dash
                *(["--flush-lines"] if in_terminal else []),
                *self._launch.arguments,
                *(self._launch.extra_arguments if is_extra else ()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if in_terminal else None,
            stderr=subprocess.PIPE,
            bufsize=0,
            pass_fds=(channel.fileno(),),
            env={**os.environ, "PACKHORSE_URL": self._launch.url},
            start_new_session=True,  # everything it starts can be killed with it, and Ctrl-C reaches only the foreman
        )

    def _watch(self, worker: WorkerHandle) -> None:
        worker.channel.socket.setblocking(False)
        self._selector.register(worker.channel, selectors.EVENT_READ, lambda: self._read_channel(worker))
        for stream, write in worker.streams():
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, functools.partial(self._copy, stream, write))
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):  # an older kernel: SIGCHLD wakes the loop
                self._pidfds[worker.id] = pidfd = os.pidfd_open(worker.pid)
                self._selector.register(
                    pidfd, selectors.EVENT_READ, lambda: None
                )  # its only purpose is to wake the loop

    # --- reading --------------------------------------------------------------------------------------------------

    def _read_channel(self, worker: WorkerHandle) -> bool:
        """Read its messages. Return False if there is nothing more for now."""
        messages, is_open = worker.channel.read()
        now = time.monotonic()
        was_online = worker.is_online
        for message in messages:
            worker.receive_message(message, now)
        if worker.is_online and not was_online:
            self.serving = worker.serving
            _unlink_status(worker.status)
            self._on_online()
        if not is_open:
            self._unwatch(worker.channel)
            # It can no longer receive messages, and should be about to end.
            worker.kill_at = worker.kill_at or now + QUIT_GRACE
        return bool(messages) and is_open

    def _copy(self, stream: IO[bytes], write: Callable[[bytes], None]) -> bool:
        """Copy what a worker writes to this stream. Return False if there is nothing more for now."""
        try:
            data = os.read(stream.fileno(), 65_536)
        except BlockingIOError:
            return False
        if data:
            write(data)
        else:
            self._unwatch(stream)
        return bool(data)

    def _unwatch(self, source: Any) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(source)

    # --- stopping -------------------------------------------------------------------------------------------------

    def broadcast(self, message: Message) -> None:
        """Send a message to all workers."""
        for worker in self.members:
            worker.channel.send(message)

    def call_result_handlers(self, jobs: Sequence[str]) -> bool:
        """Have one worker call the result handlers for jobs that no worker of ours has ended. Return False if there is
        no worker. Any thread may call it."""
        worker = next((worker for worker in self.members if worker.is_active and worker.is_online), None)
        if worker is not None:
            worker.channel.send({"do": "ended", "jobs": list(jobs)})
        return worker is not None

    def wake_idle(self) -> None:
        """Jobs wait: have workers with free slots look for them, in case the storage did not wake them. Any thread may
        call it."""
        for worker in self.members:
            if worker.is_online and worker.is_active and worker.report.get("busy", 0) < worker.report.get("slots", 0):
                worker.channel.send({"do": "look"})

    def drain(self, worker: WorkerHandle, why: str, grace: float) -> None:
        """Give it this many seconds to finish its jobs; then it must quit."""
        if worker.quit_at is None:
            worker.mark_ordered(why)
            worker.quit_at = time.monotonic() + grace
            worker.channel.send({"do": "drain", "why": why})

    def end_if_starting(self, worker: WorkerHandle) -> None:
        """A worker that is still importing its app reads no messages. SIGTERM ends it; if it is further, SIGTERM makes
        it drain."""
        with suppress(ProcessLookupError):
            worker.process.terminate()

    def quit(self, worker: WorkerHandle, why: str) -> None:
        """Have it release its jobs and end; kill it after a moment."""
        if worker.kill_at is None:
            worker.mark_ordered(why)
            worker.kill_at = time.monotonic() + QUIT_GRACE
            worker.channel.send({"do": "quit", "why": why})

    def stuck_jobs(self) -> dict[str, dict[str, int]]:
        """Our workers that no longer watch time limits, with their jobs and for how many microseconds these have run.
        Any thread may call it."""
        return {worker.id: jobs for worker in self.members if (jobs := worker.running_if_stuck())}

    def end_overrun(self, overrun: Overrun) -> bool:
        """A job is over its time limit. If its worker is ours and stuck, the main thread kills it and stores this
        outcome; otherwise the worker ends the job itself. Return False if the worker is not ours. Any thread may call
        it."""
        worker = self.get(overrun.token.owner)
        if worker is None:
            return False
        if overrun.token.job_id in worker.running_if_stuck() and all(
            overrun.token != each.token for each in worker.overruns
        ):
            worker.overruns = (*worker.overruns, overrun)
        return True

    def end_unknown(self, worker: WorkerHandle) -> None:
        """The storage no longer knows it. It may have left by itself; if not, others run its jobs by now, so end it
        soon, with everything it has started."""
        if worker.kill_at is None:
            worker.leaving = worker.leaving or "the storage no longer knows it"
            worker.kill_at = time.monotonic() + _UNKNOWN_GRACE
            worker.channel.send({"do": "quit"})

    def kill(self, worker: WorkerHandle, why: str) -> None:
        """Kill it and everything it has started, now. Its jobs are released, and their history says why."""
        worker.mark_ordered(why)
        worker.leaving = why  # replaces the reason of an earlier request
        self._kill(worker)

    def kill_stopped(self, worker: WorkerHandle, why: str) -> None:
        """Kill a worker that a signal has stopped, and everything it has started, before others get its jobs. Its
        running attempts count as lost."""
        log.warning("worker %d %s; killing it", worker.pid, why)
        worker.leaving = worker.leaving or why
        worker.why_killed = f"worker {worker.pid} {why}"
        self._kill(worker)

    def next_deadline_in(self, now: float) -> float | None:
        """Seconds until `enforce_deadlines` must act."""
        moments = [worker.kill_at or worker.quit_at for worker in self.members]
        return min((max(0.0, moment - now) for moment in moments if moment is not None), default=None)

    def enforce_deadlines(self, now: float) -> None:
        """Quit or kill the workers that have not ended in time."""
        for worker in self.members:
            if worker.kill_at is not None and now >= worker.kill_at:
                log.warning("worker %d has not ended in time; killing it", worker.pid)
                worker.kill_at = now + QUIT_GRACE
                self._kill(worker)
            elif worker.kill_at is None and worker.quit_at is not None and now >= worker.quit_at:
                self.quit(worker, "its time to finish was over")

    def _kill(self, worker: WorkerHandle) -> None:
        worker.was_killed = True
        self._orphans.update(process_tree.kill_session(worker.pid))

    # --- ends -----------------------------------------------------------------------------------------------------

    def collect_exits(self) -> list[WorkerExit]:
        """Reap the workers that have ended, and return their exits."""
        ended = [self._reap(worker) for worker in self.members if worker.has_ended()]
        self._orphans = process_tree.reap(self._orphans)
        return ended

    def watch_memory(self, now: float) -> None:
        """About once a second, read how often the kernel ran out of memory."""
        if now - self._memory_read_at >= 1.0:
            self._memory_read_at = now
            self._memory.read()

    def _reap(self, worker: WorkerHandle) -> WorkerExit:
        # Kill its children first: a job that another worker gets must not run on here.
        self._orphans.update(process_tree.kill_session(worker.pid))
        while self._read_channel(worker):
            pass
        for stream, write in worker.streams():
            while self._copy(stream, write):
                pass
        ended = self._exit_of(worker, worker.process.wait())
        self._remove(worker)
        return ended

    def _exit_of(self, worker: WorkerHandle, code: int) -> WorkerExit:
        why = process_tree.why_it_ended(worker.pid, code, self._memory.reason() if code < 0 else None)
        was_ended = worker.was_killed and (worker.was_ordered or worker.is_unknown)  # by us, as part of an ordered end
        # A worker that holds jobs does not die of SIGTERM: see `end_if_starting`.
        was_starting = worker.was_ordered and code == -signal.SIGTERM
        in_order = was_ended or was_starting or code == EXIT_STUCK or (code == 0 and worker.leaving is not None)
        if in_order and code == -signal.SIGKILL:
            why = worker.why_killed or f"worker {worker.pid} was killed: {worker.leaving}"
        elif in_order:
            why = worker.leaving or why
        elif worker.why_killed is not None:
            why = worker.why_killed
        elif code == 0:
            why += " although nothing had asked it to"
        # A worker that ended itself to be replaced has worked, unless it reports that it has not.
        has_worked = worker.has_worked or (in_order and worker.done_when_leaving != 0)
        was_asked_or_done = worker.was_ordered or worker.found_nothing
        is_young = time.monotonic() - worker.started_at < YOUNG and not has_worked and not was_asked_or_done
        return WorkerExit(
            owner=worker.id,
            why=why,
            died=not in_order,
            ran=worker.status.running(),
            is_young=is_young,
            needs_replacement=not worker.is_newly_surplus,
            lines=list(worker.lines),
            done=int(worker.done_when_leaving or worker.report.get("done") or 0),
            failed=int(worker.failed_when_leaving or worker.report.get("failed") or 0),
            overruns=worker.overruns,
            foreman=worker.foreman,
        )

    def _remove(self, worker: WorkerHandle) -> None:
        self.members = tuple(other for other in self.members if other is not worker)
        self._unwatch(worker.channel)
        worker.channel.close()
        for stream, _ in worker.streams():
            self._unwatch(stream)
            stream.close()
        pidfd = self._pidfds.pop(worker.id, None)
        if pidfd is not None:
            self._unwatch(pidfd)
            os.close(pidfd)
        worker.status.close()
        _unlink_status(worker.status)


def _unlink_status(status: SharedStatus) -> None:
    """Remove its name. It stays open in both processes, and nothing is left behind when they end."""
    with suppress(OSError):
        status.path.unlink(missing_ok=True)
        status.path.parent.rmdir()


# --- directories of shared statuses -----------------------------------------------------------------------------------

PREFIX = "packhorse-"
STATUS_FILE = "board"
_OUR_NAME = re.compile(re.escape(PREFIX) + "[a-z0-9_]{8}")
"""The names that `mkdtemp` makes: other directories may be empty for a reason."""
_MIN_AGE = 60.0
"""Seconds in which the owner of a new one may not have locked it yet."""


def make_status_directory() -> Path:
    """A directory for the shared status of one worker."""
    return Path(tempfile.mkdtemp(prefix=PREFIX))


def remove_stale_directories() -> int:
    """Remove the status directories of dead owners; return their number. The owner locks its file for as long as it
    lives, in any container, so a file that can be locked has no owner."""
    number = 0
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another foreman is faster, or it belongs to another user
            number += _remove_if_stale(directory)
    return number


def _remove_if_stale(directory: Path) -> bool:
    facts = directory.lstat()
    if facts.st_uid != os.geteuid() or time.time() - facts.st_mtime < _MIN_AGE or directory.is_symlink():
        return False
    status = directory / STATUS_FILE
    try:
        descriptor = os.open(status, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:  # the owner died while making or removing it
        if _OUR_NAME.fullmatch(directory.name) is None:
            return False
        directory.rmdir()  # fails unless it is empty
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status.unlink()
        directory.rmdir()
    finally:
        os.close(descriptor)
    return True


# --- a rolling restart ------------------------------------------------------------------------------------------------


class RollingRestart:
    """Replaces workers one after the other; each old one drains only when its replacement is online. If the new code
    does not start, the old workers stay. `start` starts a worker, or returns None if it must wait."""

    def __init__(
        self, workers: WorkerGroup, start: Callable[[], WorkerHandle | None], drain: Callable[[WorkerHandle, str], None]
    ) -> None:
        self._workers = workers
        self._start = start
        self._drain = drain
        self._old: list[str] = []
        self._replacement: str | None = None

    @property
    def is_under_way(self) -> bool:
        return bool(self._old)

    def begin(self, only: str | None = None) -> None:
        """Replace all current workers, or only this one. A restart under way then includes workers that started
        meanwhile."""
        if only is not None:
            self._old = [*(old for old in self._old if old != only), only]
            return
        self._old = [worker.id for worker in self._workers.active]
        self._replacement = None

    def step(self) -> None:
        """Take the next steps that are possible now."""
        self._old = [worker.id for worker in self._workers.active if worker.id in self._old]
        if not self._old:
            return
        replacement = self._workers.get(self._replacement or "")
        if replacement is None:
            started = self._start()
            self._replacement = started.id if started else None
        elif replacement.is_online:
            self._replacement = None
            old = self._workers.get(self._old.pop(0))
            if old is not None:
                self._drain(old, "replaced by a new worker")
