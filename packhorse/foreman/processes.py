"""The workers: a foreman's workers as processes. Starts them, hears them, tells them to stop, sees why they ended.

Only the foreman's main thread starts and ends workers: a worker dies with the thread that started it. Other threads may
read `members`, send to them, and beat for them.
"""

from __future__ import annotations

import functools
import logging
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

import msgspec
from msgspec.structs import replace

from packhorse.core.outcome import Overrun
from packhorse.core.settings import Settings, mask_url
from packhorse.foreman import process_tree
from packhorse.foreman.crash_backoff import YOUNG
from packhorse.foreman.scaling import WorkerLoad
from packhorse.foreman.status_directory import BOARD, make_directory
from packhorse.foreman.worker_handle import Serving, WorkerHandle
from packhorse.worker.ipc import EXIT_STUCK, Channel, Message
from packhorse.worker.shared_status import SharedStatus
from packhorse.worker.spool import Spool

log = logging.getLogger("packhorse")

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
QUIT_GRACE = 3.0
"""Seconds between being told to quit and being killed."""
_STRUCK_OFF_GRACE = 0.5
"""The same for one whose jobs others have by now; one that has left the storage by itself ends within that time."""


class Launch(msgspec.Struct, frozen=True):
    """How a worker is started. The workers adds to the command what is each worker's own, then `arguments`, and for the
    extra workers that forced jobs get `extra_arguments`."""

    target: str
    command: Sequence[str]
    url: str
    concurrency: int
    arguments: Sequence[str] = ()
    extra_arguments: Sequence[str] = ("--max-jobs", "1")
    spool: Path | None = None  # the directory for outcomes that cannot be delivered

    @classmethod
    def of(cls, target: str, settings: Settings, arguments: Sequence[str] = ()) -> Self:
        """`python -m packhorse.worker TARGET`."""
        command = [sys.executable, "-m", "packhorse.worker", target]
        return cls(target, command, settings.url, settings.concurrency, arguments, spool=Spool.of(settings).directory)


class WorkerExit(msgspec.Struct, frozen=True):
    """A worker's end. `died` tells whether anybody had ordered it."""

    owner: str
    why: str
    died: bool
    ran: list[str] = []  # the jobs that had begun and not ended
    is_young: bool = False
    is_missed: bool = True  # False: nobody demand take its place, which the foreman has not heard before
    lines: list[str] = []  # the last that it wrote to stderr
    done: int = 0  # the attempts that had ended, as far as it has told
    failed: int = 0  # those among them that had failed
    overruns: tuple[Overrun, ...] = ()  # what is to be said of jobs for which it was killed
    foreman: str | None = None  # under which id its foreman started it


class WorkerGroup:
    """All workers of one foreman. `members` is replaced, never changed, so any thread may go through it."""

    def __init__(self, launch: Launch, selector: selectors.BaseSelector, on_online: Callable[[], None]) -> None:
        self.members: tuple[WorkerHandle, ...] = ()
        self.serving: Serving | None = None  # None: none of its workers has told yet
        self.starts = 0
        self._launch = launch
        self._selector = selector
        self._on_online = on_online
        self._memory = MemoryWatch()
        self._looked_at = time.monotonic()
        self._orphans: set[int] = set()
        self._pidfds: dict[str, int] = {}

    # --- who is there ---------------------------------------------------------------------------------------------

    @property
    def active(self) -> list[WorkerHandle]:
        """The ordinary workers that take jobs, or are about to."""
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
        """What scaling needs to know."""
        slots = self._launch.concurrency
        return [worker.load(slots, now) for worker in self.members if worker.is_active]

    def set_launch(self, launch: Launch) -> None:
        """How each worker is started from now on."""
        self._launch = launch

    def set_slots(self, slots: int) -> None:
        """How many each ordinary worker has that is started from now on."""
        self._launch = replace(self._launch, concurrency=slots)

    # --- starting -------------------------------------------------------------------------------------------------

    def start(self, foreman: str, *, is_extra: bool = False) -> WorkerHandle:
        """Start a worker under a new id. Raises OSError when the system has no room for it."""
        owner = secrets.token_urlsafe(16)
        slots = 1 if is_extra else self._launch.concurrency
        board = SharedStatus.create(make_directory() / BOARD, slots)
        ours, theirs = Channel.pair()
        try:
            process = self._spawn(owner, foreman, board, theirs, slots, is_extra)
        except OSError:
            ours.close()
            board.close()
            _hide(board)
            raise
        finally:
            theirs.close()
        worker = WorkerHandle(owner, process, ours, board, is_extra)
        worker.foreman = foreman
        self.members = (*self.members, worker)
        self.starts += 1
        self._watch(worker)
        return worker

    def _spawn(
        self, owner: str, foreman: str, board: SharedStatus, channel: Channel, slots: int, is_extra: bool
    ) -> subprocess.Popen[bytes]:
        # What writes to a terminal that is being closed fails; so only we do.
        in_terminal = os.isatty(1)
        # Everybody on the machine can read a command line; a password goes by the environment.
        has_secret = mask_url(self._launch.url) != self._launch.url
        own = {
            "--id": owner,
            "--shared-status": board.path,
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
            start_new_session=True,  # so that all it starts can be killed with it, and Ctrl-C reaches only us
        )

    def _watch(self, worker: WorkerHandle) -> None:
        worker.channel.socket.setblocking(False)
        self._selector.register(worker.channel, selectors.EVENT_READ, lambda: self._hear(worker))
        for stream, write in worker.streams():
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, functools.partial(self._copy, stream, write))
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):  # the kernel is older than Python: SIGCHLD wakes us
                self._pidfds[worker.id] = pidfd = os.pidfd_open(worker.pid)
                self._selector.register(pidfd, selectors.EVENT_READ, lambda: None)  # waking up is enough

    # --- hearing --------------------------------------------------------------------------------------------------

    def _hear(self, worker: WorkerHandle) -> bool:
        """Take what it says. False: nothing more for now."""
        messages, is_open = worker.channel.read()
        now = time.monotonic()
        was_online = worker.is_online
        for message in messages:
            worker.hear(message, now)
        if worker.is_online and not was_online:
            self.serving = worker.serving
            _hide(worker.board)
            self._on_online()
        if not is_open:
            self._unwatch(worker.channel)
            # It cannot be told anything any more; it should be about to end.
            worker.kill_at = worker.kill_at or now + QUIT_GRACE
        return bool(messages) and is_open

    def _copy(self, stream: IO[bytes], write: Callable[[bytes], None]) -> bool:
        """Take what a worker writes to this stream. False: nothing more for now."""
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
        """The same to everybody."""
        for worker in self.members:
            worker.channel.send(message)

    def call_result_handlers(self, jobs: Sequence[str]) -> bool:
        """Have one worker call the result handlers for these jobs, which none of them has ended. From any thread.
        False: there is no worker."""
        worker = next((worker for worker in self.members if worker.is_active and worker.is_online), None)
        if worker is not None:
            worker.channel.send({"do": "ended", "jobs": list(jobs)})
        return worker is not None

    def wake_idle(self) -> None:
        """Jobs wait: have those look that have room, for the storage may have told nobody. Any thread may call it."""
        for worker in self.members:
            if worker.is_online and worker.is_active and worker.report.get("busy", 0) < worker.report.get("slots", 0):
                worker.channel.send({"do": "look"})

    def drain(self, worker: WorkerHandle, why: str, grace: float) -> None:
        """Let it finish what it runs, for so many seconds; then it is told to quit."""
        if worker.quit_at is None:
            worker.ordered(why)
            worker.quit_at = time.monotonic() + grace
            worker.channel.send({"do": "drain", "why": why})

    def end_if_starting(self, worker: WorkerHandle) -> None:
        """A worker that still loads its app hears nobody. SIGTERM ends it; one that is further drains by it."""
        with suppress(ProcessLookupError):
            worker.process.terminate()

    def quit(self, worker: WorkerHandle, why: str) -> None:
        """Have it load back what it holds and end; a moment later it is killed."""
        if worker.kill_at is None:
            worker.ordered(why)
            worker.kill_at = time.monotonic() + QUIT_GRACE
            worker.channel.send({"do": "quit", "why": why})

    def stuck_jobs(self) -> dict[str, dict[str, int]]:
        """Those of our workers that do not watch time limits any more: the jobs of each, and for how many microseconds
        they have run. From any thread."""
        return {worker.id: jobs for worker in self.members if (jobs := worker.stuck_with())}

    def end_overrun(self, overrun: Overrun) -> bool:
        """The time of a job is over. If its worker is one of ours and stuck, the main thread kills it, and what is said
        here is said of the job then; one that watches its limits ends the job itself. From any thread. False: it is
        none of ours."""
        worker = self.get(overrun.token.owner)
        if worker is None:
            return False
        if overrun.token.job_id in worker.stuck_with() and all(overrun.token != each.token for each in worker.overruns):
            worker.overruns = (*worker.overruns, overrun)
        return True

    def dismiss(self, worker: WorkerHandle) -> None:
        """The storage does not know it any more. That is no order of ours: it may have left by itself. If not, others
        run its jobs by now, so it ends soon, and all that it has started."""
        if worker.kill_at is None:
            worker.leaving = worker.leaving or "it was struck off"
            worker.kill_at = time.monotonic() + _STRUCK_OFF_GRACE
            worker.channel.send({"do": "quit"})

    def kill(self, worker: WorkerHandle, why: str) -> None:
        """End it and all that it has started, now. Its jobs are handed back, and their history says why."""
        worker.ordered(why)
        worker.leaving = why  # not why it was asked to end before
        self._kill(worker)

    def kill_frozen(self, worker: WorkerHandle, why: str) -> None:
        """Kill one that does not live any more, and all that it has started, before anybody gets its jobs. What it ran
        counts as lost."""
        log.warning("worker %d %s; it is killed", worker.pid, why)
        worker.leaving = worker.leaving or why
        worker.why_killed = f"worker {worker.pid} {why}"
        self._kill(worker)

    def next_step_in(self, now: float) -> float | None:
        """Seconds until `enforce` will have something to do."""
        moments = [worker.kill_at or worker.quit_at for worker in self.members]
        return min((max(0.0, moment - now) for moment in moments if moment is not None), default=None)

    def enforce(self, now: float) -> None:
        """Go one step further with those that have not done as told in time."""
        for worker in self.members:
            if worker.kill_at is not None and now >= worker.kill_at:
                log.warning("worker %d has not ended in time, and is killed", worker.pid)
                worker.kill_at = now + QUIT_GRACE
                self._kill(worker)
            elif worker.kill_at is None and worker.quit_at is not None and now >= worker.quit_at:
                self.quit(worker, "its time to finish was over")

    def _kill(self, worker: WorkerHandle) -> None:
        worker.was_killed = True
        self._orphans.update(process_tree.kill_session(worker.pid))

    # --- ends -----------------------------------------------------------------------------------------------------

    def collect_exits(self) -> list[WorkerExit]:
        """Take leave of the workers that have ended; answers how each came to its end."""
        ended = [self._bury(worker) for worker in self.members if worker.has_ended()]
        self._orphans = process_tree.reap(self._orphans)
        return ended

    def watch_memory(self, now: float) -> None:
        """About once a second, remember how often the kernel ran out of memory."""
        if now - self._looked_at >= 1.0:
            self._looked_at = now
            self._memory.look()

    def _bury(self, worker: WorkerHandle) -> WorkerExit:
        # Its children first: a job that another worker gets must not go on here.
        self._orphans.update(process_tree.kill_session(worker.pid))
        while self._hear(worker):
            pass
        for stream, write in worker.streams():
            while self._copy(stream, write):
                pass
        ended = self._judge(worker, worker.process.wait())
        self._put_away(worker)
        return ended

    def _judge(self, worker: WorkerHandle, code: int) -> WorkerExit:
        why = why_it_ended(worker.pid, code, self._memory.verdict() if code < 0 else None)
        was_ended = worker.was_killed and (worker.is_ordered or worker.is_unknown)  # by us, who had told it to go
        # A worker that holds jobs does not die of SIGTERM: see `end_if_starting`.
        was_starting = worker.is_ordered and code == -signal.SIGTERM
        in_order = was_ended or was_starting or code == EXIT_STUCK or (code == 0 and worker.leaving is not None)
        if in_order and code == -signal.SIGKILL:
            why = worker.why_killed or f"worker {worker.pid} was killed: {worker.leaving}"
        elif in_order:
            why = worker.leaving or why
        elif worker.why_killed is not None:
            why = worker.why_killed
        elif code == 0:
            why += " although nobody had asked it to"
        # One that made room for another by itself has worked, unless it says that it has not.
        has_worked = worker.has_worked or (in_order and worker.done_when_leaving != 0)
        was_asked_or_done = worker.is_ordered or worker.found_nothing
        is_young = time.monotonic() - worker.started_at < YOUNG and not has_worked and not was_asked_or_done
        return WorkerExit(
            owner=worker.id,
            why=why,
            died=not in_order,
            ran=worker.board.running(),
            is_young=is_young,
            is_missed=not worker.is_newly_needless,
            lines=list(worker.lines),
            done=int(worker.done_when_leaving or worker.report.get("done") or 0),
            failed=int(worker.failed_when_leaving or worker.report.get("failed") or 0),
            overruns=worker.overruns,
            foreman=worker.foreman,
        )

    def _put_away(self, worker: WorkerHandle) -> None:
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
        worker.board.close()
        _hide(worker.board)


def _hide(board: SharedStatus) -> None:
    """Take its name away. Whoever has it open keeps it; nothing is left behind, however foreman and worker end."""
    with suppress(OSError):
        board.path.unlink(missing_ok=True)
        board.path.parent.rmdir()


# --- why a worker ended ----------------------------------------------------------------------------------------------


def why_it_ended(pid: int, code: int, memory: str | None = None) -> str:
    """A sentence for people; `code` is negative for a signal, `memory` is what `MemoryWatch` says.

    >>> why_it_ended(4711, -9, "out of memory")
    'worker 4711 was killed by SIGKILL (out of memory)'
    """
    if code >= 0:
        return f"worker {pid} exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"worker {pid} was killed by {name}" + (f" ({memory})" if memory and -code == signal.SIGKILL else "")


class MemoryWatch:
    """Looks at the kernel's count of processes that it killed for lack of memory, once a second or so.

    The count of our own control group is certain; that of the whole machine only makes it likely.
    """

    def __init__(self, sources: Iterable[tuple[Path, str]] | None = None) -> None:
        usable = [(path, told) for path, told in sources or _sources() if _kills(path) is not None]
        self._path: Path | None
        self._path, self._told = usable[0] if usable else (None, "")
        self._counts: deque[int] = deque(maxlen=3)
        self.look()

    def look(self) -> None:
        """Remember the count. The last few are kept: the kernel counts before the worker is seen to be gone."""
        if self._path is not None:
            self._counts.append(_kills(self._path) or 0)

    def verdict(self) -> str | None:
        """What to say of a worker that was just killed; None: nothing speaks for a lack of memory."""
        if self._path is None or (_kills(self._path) or 0) <= self._counts[0]:
            return None
        self._counts.append(_kills(self._path) or 0)
        return self._told


def _sources() -> Iterator[tuple[Path, str]]:
    """Files that hold the count, the surest first: of our own group (new and old kind), then of the machine."""
    with suppress(OSError):
        for line in (_PROC / "self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers == "":
                yield _CGROUPS / group.lstrip("/") / "memory.events", "out of memory"
            elif "memory" in controllers.split(","):
                yield _CGROUPS / "memory" / group.lstrip("/") / "memory.oom_control", "out of memory"
    yield _CGROUPS / "memory.events", "out of memory"
    yield _PROC / "vmstat", "out of memory?"


def _kills(path: Path) -> int | None:
    with suppress(OSError):
        for line in path.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    return None
