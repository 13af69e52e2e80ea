"""The crew: a foreman's workers as processes. Starts them, hears them, tells them to stop, sees why they ended.

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
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

import msgspec
from msgspec.structs import replace

from packhorse.core.outcome import Overrun
from packhorse.core.settings import Settings, mask_url
from packhorse.foreman import death
from packhorse.foreman.backoff import YOUNG
from packhorse.foreman.leftovers import BOARD, make_directory
from packhorse.foreman.member import Member, Serving
from packhorse.foreman.scaling import Hand
from packhorse.worker.ipc import CONDEMNED, Channel, Message
from packhorse.worker.shared_status import SharedStatus
from packhorse.worker.spool import Spool

log = logging.getLogger("packhorse")

QUIT_GRACE = 3.0
"""Seconds between being told to quit and being killed."""
_STRUCK_OFF_GRACE = 0.5
"""The same for one whose jobs others have by now; one that has left the storage by itself ends within that time."""


class Launch(msgspec.Struct, frozen=True):
    """How a worker is started. The crew adds to the command what is each worker's own, then `arguments`, and for the
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


class Ended(msgspec.Struct, frozen=True):
    """A worker's end. `died` tells whether anybody had ordered it."""

    owner: str
    why: str
    died: bool
    ran: list[str] = []  # the jobs that had begun and not ended
    is_young: bool = False
    is_missed: bool = True  # False: nobody need take its place, which the foreman has not heard before
    lines: list[str] = []  # the last that it wrote to stderr
    done: int = 0  # the attempts that had ended, as far as it has told
    failed: int = 0  # those among them that had failed
    overruns: tuple[Overrun, ...] = ()  # what is to be said of jobs for which it was killed
    foreman: str | None = None  # under which id its foreman started it


class Crew:
    """All workers of one foreman. `members` is replaced, never changed, so any thread may go through it."""

    def __init__(self, launch: Launch, selector: selectors.BaseSelector, on_online: Callable[[], None]) -> None:
        self.members: tuple[Member, ...] = ()
        self.serving: Serving | None = None  # None: none of its workers has told yet
        self.starts = 0
        self._launch = launch
        self._selector = selector
        self._on_online = on_online
        self._memory = death.MemoryWatch()
        self._looked_at = time.monotonic()
        self._orphans: set[int] = set()
        self._pidfds: dict[str, int] = {}

    # --- who is there ---------------------------------------------------------------------------------------------

    @property
    def active(self) -> list[Member]:
        """The ordinary workers that take jobs, or are about to."""
        return [member for member in self.members if member.is_active and not member.is_extra]

    @property
    def extra(self) -> list[Member]:
        return [member for member in self.members if member.is_active and member.is_extra]

    @property
    def leaving(self) -> list[Member]:
        return [member for member in self.members if not member.is_active]

    @property
    def starting(self) -> int:
        return sum(not member.is_online for member in self.members if member.is_active)

    def get(self, id: str) -> Member | None:
        return next((member for member in self.members if member.id == id), None)

    def hands(self, now: float) -> list[Hand]:
        """What scaling needs to know."""
        slots = self._launch.concurrency
        return [member.hand(slots, now) for member in self.members if member.is_active]

    def set_launch(self, launch: Launch) -> None:
        """How each worker is started from now on."""
        self._launch = launch

    def set_slots(self, slots: int) -> None:
        """How many each ordinary worker has that is started from now on."""
        self._launch = replace(self._launch, concurrency=slots)

    # --- starting -------------------------------------------------------------------------------------------------

    def start(self, foreman: str, *, is_extra: bool = False) -> Member:
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
        member = Member(owner, process, ours, board, is_extra)
        member.foreman = foreman
        self.members = (*self.members, member)
        self.starts += 1
        self._watch(member)
        return member

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

    def _watch(self, member: Member) -> None:
        member.channel.socket.setblocking(False)
        self._selector.register(member.channel, selectors.EVENT_READ, lambda: self._hear(member))
        for stream, write in member.streams():
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, functools.partial(self._copy, stream, write))
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):  # the kernel is older than Python: SIGCHLD wakes us
                self._pidfds[member.id] = pidfd = os.pidfd_open(member.pid)
                self._selector.register(pidfd, selectors.EVENT_READ, lambda: None)  # waking up is enough

    # --- hearing --------------------------------------------------------------------------------------------------

    def _hear(self, member: Member) -> bool:
        """Take what it says. False: nothing more for now."""
        messages, is_open = member.channel.read()
        now = time.monotonic()
        was_online = member.is_online
        for message in messages:
            member.hear(message, now)
        if member.is_online and not was_online:
            self.serving = member.serving
            _hide(member.board)
            self._on_online()
        if not is_open:
            self._unwatch(member.channel)
            # It cannot be told anything any more; it should be about to end.
            member.kill_at = member.kill_at or now + QUIT_GRACE
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

    def tell(self, message: Message) -> None:
        """The same to everybody."""
        for member in self.members:
            member.channel.send(message)

    def tell_of_ended(self, jobs: Sequence[str]) -> bool:
        """Have one worker call the result handlers for these jobs, which none of them has ended. From any thread.
        False: there is no worker."""
        member = next((member for member in self.members if member.is_active and member.is_online), None)
        if member is not None:
            member.channel.send({"do": "ended", "jobs": list(jobs)})
        return member is not None

    def wake_idle(self) -> None:
        """Jobs wait: have those look that have room, for the storage may have told nobody. Any thread may call it."""
        for member in self.members:
            if member.is_online and member.is_active and member.report.get("busy", 0) < member.report.get("slots", 0):
                member.channel.send({"do": "look"})

    def drain(self, member: Member, why: str, grace: float) -> None:
        """Let it finish what it runs, for so many seconds; then it is told to quit."""
        if member.quit_at is None:
            member.ordered(why)
            member.quit_at = time.monotonic() + grace
            member.channel.send({"do": "drain", "why": why})

    def end_if_starting(self, member: Member) -> None:
        """A worker that still loads its app hears nobody. SIGTERM ends it; one that is further drains by it."""
        with suppress(ProcessLookupError):
            member.process.terminate()

    def quit(self, member: Member, why: str) -> None:
        """Have it hand back what it holds and end; a moment later it is killed."""
        if member.kill_at is None:
            member.ordered(why)
            member.kill_at = time.monotonic() + QUIT_GRACE
            member.channel.send({"do": "quit", "why": why})

    def stuck_jobs(self) -> dict[str, dict[str, int]]:
        """Those of our workers that do not watch time limits any more: the jobs of each, and for how many microseconds
        they have run. From any thread."""
        return {member.id: jobs for member in self.members if (jobs := member.stuck_with())}

    def end_overrun(self, overrun: Overrun) -> bool:
        """The time of a job is over. If its worker is one of ours and stuck, the main thread kills it, and what is said
        here is said of the job then; one that watches its limits ends the job itself. From any thread. False: it is
        none of ours."""
        member = self.get(overrun.token.owner)
        if member is None:
            return False
        if overrun.token.job_id in member.stuck_with() and all(overrun.token != each.token for each in member.overruns):
            member.overruns = (*member.overruns, overrun)
        return True

    def dismiss(self, member: Member) -> None:
        """The storage does not know it any more. That is no order of ours: it may have left by itself. If not, others
        run its jobs by now, so it ends soon, and all that it has started."""
        if member.kill_at is None:
            member.leaving = member.leaving or "it was struck off"
            member.kill_at = time.monotonic() + _STRUCK_OFF_GRACE
            member.channel.send({"do": "quit"})

    def kill(self, member: Member, why: str) -> None:
        """End it and all that it has started, now. Its jobs are handed back, and their history says why."""
        member.ordered(why)
        member.leaving = why  # not why it was asked to end before
        self._kill(member)

    def kill_frozen(self, member: Member, why: str) -> None:
        """Kill one that does not live any more, and all that it has started, before anybody gets its jobs. What it ran
        counts as lost."""
        log.warning("worker %d %s; it is killed", member.pid, why)
        member.leaving = member.leaving or why
        member.why_killed = f"worker {member.pid} {why}"
        self._kill(member)

    def next_step_in(self, now: float) -> float | None:
        """Seconds until `enforce` will have something to do."""
        moments = [member.kill_at or member.quit_at for member in self.members]
        return min((max(0.0, moment - now) for moment in moments if moment is not None), default=None)

    def enforce(self, now: float) -> None:
        """Go one step further with those that have not done as told in time."""
        for member in self.members:
            if member.kill_at is not None and now >= member.kill_at:
                log.warning("worker %d has not ended in time, and is killed", member.pid)
                member.kill_at = now + QUIT_GRACE
                self._kill(member)
            elif member.kill_at is None and member.quit_at is not None and now >= member.quit_at:
                self.quit(member, "its time to finish was over")

    def _kill(self, member: Member) -> None:
        member.was_killed = True
        self._orphans.update(death.kill_session(member.pid))

    # --- ends -----------------------------------------------------------------------------------------------------

    def bury(self) -> list[Ended]:
        """Take leave of the workers that have ended; answers how each came to its end."""
        ended = [self._bury(member) for member in self.members if member.has_ended()]
        self._orphans = death.reap(self._orphans)
        return ended

    def look_at_memory(self, now: float) -> None:
        """About once a second, remember how often the kernel ran out of memory."""
        if now - self._looked_at >= 1.0:
            self._looked_at = now
            self._memory.look()

    def _bury(self, member: Member) -> Ended:
        # Its children first: a job that another worker gets must not go on here.
        self._orphans.update(death.kill_session(member.pid))
        while self._hear(member):
            pass
        for stream, write in member.streams():
            while self._copy(stream, write):
                pass
        ended = self._judge(member, member.process.wait())
        self._put_away(member)
        return ended

    def _judge(self, member: Member, code: int) -> Ended:
        why = death.why_it_ended(member.pid, code, self._memory.verdict() if code < 0 else None)
        was_ended = member.was_killed and (member.is_ordered or member.is_unknown)  # by us, who had told it to go
        # A worker that holds jobs does not die of SIGTERM: see `end_if_starting`.
        was_starting = member.is_ordered and code == -signal.SIGTERM
        in_order = was_ended or was_starting or code == CONDEMNED or (code == 0 and member.leaving is not None)
        if in_order and code == -signal.SIGKILL:
            why = member.why_killed or f"worker {member.pid} was killed: {member.leaving}"
        elif in_order:
            why = member.leaving or why
        elif member.why_killed is not None:
            why = member.why_killed
        elif code == 0:
            why += " although nobody had asked it to"
        # One that made room for another by itself has worked, unless it says that it has not.
        has_worked = member.has_worked or (in_order and member.done_when_leaving != 0)
        was_asked_or_done = member.is_ordered or member.found_nothing
        is_young = time.monotonic() - member.started_at < YOUNG and not has_worked and not was_asked_or_done
        return Ended(
            owner=member.id,
            why=why,
            died=not in_order,
            ran=member.board.running(),
            is_young=is_young,
            is_missed=not member.is_newly_needless,
            lines=list(member.lines),
            done=int(member.done_when_leaving or member.report.get("done") or 0),
            failed=int(member.failed_when_leaving or member.report.get("failed") or 0),
            overruns=member.overruns,
            foreman=member.foreman,
        )

    def _put_away(self, member: Member) -> None:
        self.members = tuple(other for other in self.members if other is not member)
        self._unwatch(member.channel)
        member.channel.close()
        for stream, _ in member.streams():
            self._unwatch(stream)
            stream.close()
        pidfd = self._pidfds.pop(member.id, None)
        if pidfd is not None:
            self._unwatch(pidfd)
            os.close(pidfd)
        member.board.close()
        _hide(member.board)


def _hide(board: SharedStatus) -> None:
    """Take its name away. Whoever has it open keeps it; nothing is left behind, however foreman and worker end."""
    with suppress(OSError):
        board.path.unlink(missing_ok=True)
        board.path.parent.rmdir()
