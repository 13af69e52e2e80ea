"""Child processes for tests: forked ones that share this process's objects, and fresh ones that run a script.

`until` polls for a condition with a deadline. Every child is killed by its own process id.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PATIENCE = 60.0
"""Seconds that a short operation may take on a busy machine."""
UNPRIVILEGED = 65_534


def until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Return when the condition holds; fail if it does not within this time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.001)


class Parent:
    """The end of a forked child: it sends values to its parent."""

    def __init__(self, write_end: int, read_end: int) -> None:
        self._write_end = write_end
        self._read_end = read_end

    def send(self, value: object, kind: str = "value") -> None:
        """Send a JSON value to the parent."""
        os.write(self._write_end, json.dumps([kind, value]).encode() + b"\n")

    def wait(self) -> None:
        """Wait until the parent calls `proceed`."""
        assert os.read(self._read_end, 1), "the parent is gone"


class Forked:
    """A forked child that runs `work(parent)`. `receive` returns the values it sends, one at a time."""

    def __init__(self, work: Callable[[Parent], object], *, as_nobody: bool = False) -> None:
        self._read_end, childs_write_end = os.pipe()
        childs_read_end, self._write_end = os.pipe()
        self._rest = b""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # these tests fork beside threads
            self.pid = os.fork()
        if self.pid == 0:
            os.close(self._read_end)
            os.close(self._write_end)
            _run(work, Parent(childs_write_end, childs_read_end), as_nobody)
        os.close(childs_write_end)
        os.close(childs_read_end)

    def receive(self, seconds: float = PATIENCE) -> Any:
        """Return the next value from the child; raise its error, if it failed, as text."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._read_end], [], [], left)[0]:
                raise AssertionError(f"the child sent nothing for {seconds} s")
            part = os.read(self._read_end, 65_536)
            assert part, "the child ended without a value"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        kind, value = json.loads(line)
        assert kind == "value", f"in the child: {value}"
        return value

    def proceed(self) -> None:
        """Let the child continue after `wait`."""
        os.write(self._write_end, b"!")

    def end(self) -> None:
        """Kill the child if it lives, and reap it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._read_end)
        os.close(self._write_end)


def _run(work: Callable[[Parent], object], parent: Parent, as_nobody: bool) -> None:
    try:
        if as_nobody and os.getuid() == 0:  # root ignores file permissions
            os.setgroups([])
            os.setgid(UNPRIVILEGED)
            os.setuid(UNPRIVILEGED)
        work(parent)
    except BaseException:
        parent.send(traceback.format_exc(), "raised")
    finally:
        os._exit(0)  # no clean-up: the rest of this process belongs to the parent


@contextlib.contextmanager
def forked(work: Callable[[Parent], object], *, as_nobody: bool = False) -> Iterator[Forked]:
    """Run a forked child during the block."""
    child = Forked(work, as_nobody=as_nobody)
    try:
        yield child
    finally:
        child.end()


def in_child(work: Callable[[], object], *, as_nobody: bool = False, seconds: float = PATIENCE) -> Any:
    """Run `work` in a forked child and return its result."""
    with forked(lambda parent: parent.send(work()), as_nobody=as_nobody) as child:
        return child.receive(seconds)


def program(module: str, *arguments: object) -> subprocess.Popen[str]:
    """Start `python -m module arguments`; stdin, stdout and stderr are pipes."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@contextlib.contextmanager
def running(*programs: subprocess.Popen[str]) -> Iterator[None]:
    """Keep the programs during the block; kill those that still run at its end."""
    try:
        yield
    finally:
        for one in programs:
            if one.poll() is None:
                one.kill()
            one.communicate()
