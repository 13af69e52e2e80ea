"""The fork server's words about ends, and that a child never returns into it."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.worker.executors.fork_server import Exit, ForkServer
from tests.children import PATIENCE, until
from tests.worker.worker_subprocess import is_alive

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (0, "ended with exit code 0"),
        (3 << 8, "ended with exit code 3"),
        (signal.SIGSEGV, "was killed by SIGSEGV"),
        (signal.SIGKILL, "was killed by SIGKILL (out of memory?)"),
        (63, "was killed by 63"),
    ],
)
def test_an_end_is_told_in_words(status: int, why: str):
    assert Exit(1, status).why == why


def echo(end: socket.socket) -> None:
    """Sends its pid, then echoes what comes in, and ends when nothing more comes."""
    end.sendall(str(os.getpid()).encode())
    while data := end.recv(100):
        if data == b"raise":
            raise ValueError("as you wish")
        if data == b"start":
            data = f"{_start_daemon()} {_start_orphan()}".encode()
        end.sendall(data)


def _start_daemon() -> int:
    return subprocess.Popen(["sleep", "600"], start_new_session=True).pid


def _start_orphan() -> int:
    """A daemon whose parent has ended."""
    script = "setsid sh -c 'echo $$; exec sleep 600 >/dev/null' &"
    return int(subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, check=True).stdout)


@pytest.fixture
def fork_server() -> Iterator[ForkServer]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the test runner may have threads; a worker has none yet
        fork_server = ForkServer.start(echo)
    yield fork_server
    fork_server.close()


def spawn(fork_server: ForkServer) -> tuple[socket.socket, int]:
    ours, its = socket.socketpair()
    ours.settimeout(PATIENCE)
    fork_server.spawn(its)
    its.close()
    born = fork_server.receive()
    assert born is not None
    assert int(ours.recv(100)) == born["forked"]
    return ours, born["forked"]


def test_a_child_is_forked_and_its_end_is_told(fork_server: ForkServer):
    end, pid = spawn(fork_server)
    end.sendall(b"hello")
    heard = end.recv(100)
    end.close()

    assert heard == b"hello"
    assert fork_server.receive() == {"exit": pid, "status": 0}


def test_an_error_ends_the_child_alone(fork_server: ForkServer):
    end, pid = spawn(fork_server)
    end.sendall(b"raise")
    told = fork_server.receive()
    end.close()
    other, _ = spawn(fork_server)
    other.close()

    assert told == {"exit": pid, "status": 1 << 8}


def test_a_child_leads_a_group_in_the_session_of_its_worker(fork_server: ForkServer):
    end, pid = spawn(fork_server)

    assert os.getpgid(pid) == pid
    assert os.getsid(pid) == os.getsid(0)
    end.close()


def test_a_signal_goes_through_the_fork_server_and_only_to_its_own(fork_server: ForkServer):
    end, pid = spawn(fork_server)
    fork_server.kill(os.getpid(), signal.SIGKILL)
    fork_server.kill(pid, signal.SIGKILL)

    assert fork_server.receive() == {"exit": pid, "status": signal.SIGKILL}
    end.close()


def test_children_end_with_the_fork_server(fork_server: ForkServer):
    (one, first), (two, second) = spawn(fork_server), spawn(fork_server)

    fork_server.close()

    until(lambda: not (is_alive(first) or is_alive(second)), "they end")
    one.close()
    two.close()


def test_a_fork_server_that_was_killed_is_gone_and_takes_no_orders(fork_server: ForkServer):
    end, pid = spawn(fork_server)
    os.kill(fork_server.pid, signal.SIGKILL)

    assert fork_server.receive() is None
    fork_server.kill(pid, signal.SIGTERM)
    fork_server.spawn(end)
    until(lambda: not is_alive(pid), "its child ends too")
    end.close()


def test_only_its_worker_ends_a_fork_server_with_a_polite_signal(fork_server: ForkServer):
    first, _ = spawn(fork_server)  # it is ready from here on
    os.kill(fork_server.pid, signal.SIGTERM)
    os.kill(fork_server.pid, signal.SIGINT)

    second, _ = spawn(fork_server)
    first.close()
    second.close()


def test_a_fork_that_fails_is_told_and_costs_nobody_anything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    fork, full = os.fork, tmp_path / "full"

    def limited() -> int:
        if full.exists():
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(os, "fork", limited)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        fork_server = ForkServer.start(echo)
    one, _ = spawn(fork_server)
    full.touch()
    ours, its = socket.socketpair()
    ours.settimeout(PATIENCE)
    fork_server.spawn(its)
    its.close()

    told, other_end = fork_server.receive(), ours.recv(100)
    full.unlink()
    two, _ = spawn(fork_server)
    one.sendall(b"still here")

    assert told == {"failed": "[Errno 11] Resource temporarily unavailable"}
    assert other_end == b""  # the fork server does not keep it
    assert one.recv(100) == b"still here"
    for end in (one, two, ours):
        end.close()
    fork_server.close()


@pytest.mark.parametrize("ending", ["hang up", "kill", "end the fork server"])
def test_what_a_child_has_started_ends_with_it_in_whatever_session_it_is(fork_server: ForkServer, ending: str):
    end, pid = spawn(fork_server)
    end.sendall(b"start")
    started = [int(word) for word in end.recv(100).split()]
    alive = [is_alive(one) for one in started]

    if ending == "hang up":
        end.close()
    elif ending == "kill":
        fork_server.kill(pid, signal.SIGKILL)
    else:
        fork_server.close()

    assert alive == [True, True]
    until(lambda: not any(is_alive(one) for one in started), "they are gone")
    end.close()


def test_what_one_child_has_started_outlives_the_end_of_another(fork_server: ForkServer):
    (one, _), (two, other) = spawn(fork_server), spawn(fork_server)
    one.sendall(b"start")
    started = [int(word) for word in one.recv(100).split()]

    two.close()
    told = fork_server.receive()
    third, _ = spawn(fork_server)  # it has done its duty for the second by now

    assert told is not None
    assert told["exit"] == other
    assert [is_alive(each) for each in started] == [True, True]
    one.close()
    third.close()
