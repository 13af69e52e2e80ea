"""The fork server: a process that does nothing but fork children for isolated jobs.

It is forked from the worker when the app is imported and before any thread runs. So its children start in
milliseconds, share the imported code, and inherit no lock that another thread holds. It reports to the worker when and
how a child exits. When the worker is gone, so are the fork server, its children, and the processes of their jobs.

The fork server and its children adopt orphans. So every process that a job has started stays below its child, in
whatever group or session, and becomes the fork server's own when the child exits: it kills whatever is not one of its
children. A child that stays for another job kills what the last one left behind, see `child.py`.

If a fork fails, as at a limit of processes, the worker asks again later; no job is lost.
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
"""What a child does with its end of the channel until it exits."""

_MESSAGE = 4_096
_EXIT_TIMEOUT = 2.0
"""Seconds that the fork server waits at its own exit for killed processes to be gone."""


class Exit(msgspec.Struct, frozen=True):
    """A child has exited."""

    pid: int
    status: int

    @property
    def why(self) -> str:
        """How it exited, in words."""
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
        """Fork it. Call this from the main thread before there are others. It closes the named file descriptors."""
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
        """Fork a child that gets this end of a channel. `receive` returns its pid, or why the fork has failed."""
        with suppress(OSError):  # the fork server is gone: `receive` returns None
            socket.send_fds(self.control, [b'{"do":"spawn"}'], [end.fileno()])

    def kill(self, pid: int, number: int) -> None:
        """Send a signal to a child and all that it started. Only the fork server does so: it knows which pids still
        live."""
        with suppress(OSError):
            self.control.send(msgspec.json.encode({"do": "kill", "pid": pid, "signal": number}))

    def receive(self) -> dict[str, Any] | None:
        """The next message: {"forked": pid}, {"failed": why} or {"exit": pid, "status": …}; None: the fork server is
        gone."""
        try:
            data = self.control.recv(_MESSAGE)
        except OSError:
            return None
        return msgspec.json.decode(data, type=dict[str, Any]) if data else None

    def close(self) -> None:
        """End the fork server and its children."""
        self.control.close()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def signal_group(leader: int, number: int) -> None:
    """Send a signal to a child and the processes in its group, if any of them lives."""
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
        # The kernel would kill the children with this process, but not what they have started.
        for pid in children:
            signal_group(pid, signal.SIGKILL)
        _kill_all()
        os._exit(0)


def _kill_all() -> None:
    """Kill children and orphans until there are none: the children of a killed process become ours."""
    deadline = time.monotonic() + _EXIT_TIMEOUT
    while (left := own_children()) and time.monotonic() < deadline:
        _kill(left)
        with suppress(ChildProcessError):
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.001)  # a signal is on its way


def _serve(control: socket.socket, child_main: ChildMain, worker: int, children: set[int]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the foreman decides about Ctrl-C
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
        if control.fileno() in ready and not _run_order(control, children, child_main):
            return


def _run_order(control: socket.socket, children: set[int], child_main: ChildMain) -> bool:
    """Run one order of the worker. False: it is gone."""
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
    """Fork a child. Return the answer for the worker."""
    if not fds:
        return {"failed": "its channel did not arrive: too many files are open"}
    try:
        pid = _fork(control, fds[0], child_main)
    except OSError as error:  # too many processes or too little memory, for now
        return {"failed": str(error)}
    finally:
        os.close(fds[0])
    children.add(pid)
    return {"forked": pid}


def _fork(control: socket.socket, fd: int, child_main: ChildMain) -> int:
    fork_server = os.getpid()
    pid = os.fork()
    if pid:
        with suppress(OSError):  # both sides do it, so that it is done in time for each
            os.setpgid(pid, pid)
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing to end yet
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)  # no new session: the foreman finds what a worker has started by its session
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
            signal_group(pid, signal.SIGKILL)  # what the job has left behind
            with suppress(OSError):
                control.send(msgspec.json.encode({"exit": pid, "status": status}))
        # The orphans of the child are ours by now; theirs will be, when they have exited.
        _kill(own_children() - children)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
