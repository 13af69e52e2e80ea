"""The fork server: a process that does nothing but fork children for isolated jobs.

It is forked from the worker when the app has been imported and before any thread runs, so that its children start in
milliseconds, share the imported code, and inherit no lock that another thread held. It tells the worker when a child
has ended, and how. When the worker is gone, so are the fork server, its children, and what those had started.

ForkServer and children adopt orphans. So all that a job has started stays below its child, in whatever group or
session,
and comes to the fork server when the child has ended: whoever is there and is not a child is killed. A child that
stays for
another job ends what the last one left behind by itself, see `child.py`.

A fork that fails, as at a limit of processes, costs nobody anything: the worker is told, and asks again later.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import msgspec

from packhorse.worker.processes import adopt_orphans, die_with_parent, own_children

ChildMain = Callable[[socket.socket], None]
"""What a child does with its end of the channel, until that ends."""

_MESSAGE = 4_096
_LAST_RITES = 2.0
"""Seconds that the fork server waits at its end for what it has killed to be gone."""


class Exit(msgspec.Struct, frozen=True):
    """A child has ended."""

    pid: int
    status: int

    @property
    def why(self) -> str:
        """How, in words."""
        if os.WIFSIGNALED(self.status):
            number = os.WTERMSIG(self.status)
            name = signal.Signals(number).name if number in signal.Signals._value2member_map_ else str(number)
            return f"was killed by {name}" + (" (out of memory?)" if number == signal.SIGKILL else "")
        return f"ended with exit code {os.waitstatus_to_exitcode(self.status)}"


class ForkServer:
    """The worker's side."""

    def __init__(self, control: socket.socket, pid: int) -> None:
        self.control = control
        self.pid = pid

    @classmethod
    def start(cls, child_main: ChildMain, *, not_for_children: Sequence[int] = ()) -> ForkServer:
        """Fork it. Call this from the main thread, before there are others. The named files are closed in it."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        worker = os.getpid()
        pid = os.fork()
        if pid == 0:
            ours.close()
            for fd in not_for_children:
                os.close(fd)
            _run(its, child_main, worker)
        its.close()
        return cls(ours, pid)

    def spawn(self, end: socket.socket) -> None:
        """Fork a child that has this end of a channel; its pid comes back as a message, or that it cannot be now."""
        with suppress(OSError):  # the fork server is gone: `receive` will say so
            socket.send_fds(self.control, [b'{"do":"spawn"}'], [end.fileno()])

    def kill(self, pid: int, number: int) -> None:
        """Send a signal to a child and all that it started. Only the fork server may: it knows who still lives."""
        with suppress(OSError):
            self.control.send(msgspec.json.encode({"do": "kill", "pid": pid, "signal": number}))

    def receive(self) -> dict[str, Any] | None:
        """The next message: {"born": pid}, {"unborn": why} or {"exit": pid, "status": …}; None: the fork server is
        gone."""
        try:
            data = self.control.recv(_MESSAGE)
        except OSError:
            return None
        return msgspec.json.decode(data, type=dict[str, Any]) if data else None

    def close(self) -> None:
        """The fork server ends with its children."""
        self.control.close()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def signal_group(leader: int, number: int) -> None:
    """Send a signal to a child and what it has started, if any of them lives."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


# --- in the fork server's own process ---------------------------------------------------------------------------------


def _run(control: socket.socket, child_main: ChildMain, worker: int) -> NoReturn:
    children: set[int] = set()
    try:
        _serve(control, child_main, worker, children)
    except BaseException:  # noqa: BLE001 - it never returns into the worker's own code
        sys.excepthook(*sys.exc_info())
    finally:
        # Not left to the kernel: it would kill our children with us, but not what they have started.
        for pid in children:
            signal_group(pid, signal.SIGKILL)
        _end_all()
        os._exit(0)


def _end_all() -> None:
    """Kill children and orphans until there are none: who ends leaves us the next generation."""
    deadline = time.monotonic() + _LAST_RITES
    while (left := own_children()) and time.monotonic() < deadline:
        _kill(left)
        with suppress(ChildProcessError):
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.001)  # a signal is on its way


def _serve(control: socket.socket, child_main: ChildMain, worker: int, children: set[int]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the foreman to decide about
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)  # only the wake-up matters
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    die_with_parent(worker, signal.SIGTERM)
    adopt_orphans()
    while os.getppid() == worker:
        ready, _, _ = select.select([control.fileno(), wake_read], [], [])
        if wake_read in ready:
            os.read(wake_read, _MESSAGE)
            _reap(control, children)
        if control.fileno() in ready and not _obey(control, children, child_main):
            return


def _obey(control: socket.socket, children: set[int], child_main: ChildMain) -> bool:
    """Do what the worker says. False: it is gone."""
    try:
        data, fds, _, _ = socket.recv_fds(control, _MESSAGE, 1)
    except OSError:
        return False
    if not data:
        return False
    order = msgspec.json.decode(data, type=dict[str, Any])
    if order["do"] == "kill":
        if order["pid"] in children:
            signal_group(order["pid"], order["signal"])
        return True
    control.send(msgspec.json.encode(_spawn(control, fds, children, child_main)))
    return True


def _spawn(control: socket.socket, fds: list[int], children: set[int], child_main: ChildMain) -> dict[str, Any]:
    """What the worker is told of it."""
    if not fds:
        return {"unborn": "its channel did not arrive: too many files are open"}
    try:
        pid = _fork(control, fds[0], child_main)
    except OSError as error:  # too many processes, or too little memory: for now
        return {"unborn": str(error)}
    finally:
        os.close(fds[0])
    children.add(pid)
    return {"born": pid}


def _fork(control: socket.socket, fd: int, child_main: ChildMain) -> int:
    fork_server = os.getpid()
    pid = os.fork()
    if pid:
        with suppress(OSError):  # both sides do it, so that neither can come too late
            os.setpgid(pid, pid)
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing to end yet
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)  # not a session: by that, the foreman finds all that a worker has started
        die_with_parent(fork_server)
        adopt_orphans()
        control.close()
        child_main(socket.socket(fileno=fd))
        code = 0
    except BaseException:  # noqa: BLE001 - a child never returns into the fork server's loop
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _reap(control: socket.socket, children: set[int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in children:
            children.discard(pid)
            signal_group(pid, signal.SIGKILL)  # whatever the job started and left behind
            with suppress(OSError):
                control.send(msgspec.json.encode({"exit": pid, "status": status}))
        # Its orphans came to us before we heard of its end; theirs will, when they have ended.
        _kill(own_children() - children)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
