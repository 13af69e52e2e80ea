"""Other processes for tests: forked ones that share this one's objects, and fresh ones that run a script.

Nothing here sleeps for luck: `until` polls for a condition with a deadline, and every child is ended by its own id.
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
"""Seconds that anything may take which takes a moment: the machine may have much else to do."""
NOBODY = 65_534


def until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Come back when the condition holds; fail when it does not within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.001)


class Parent:
    """How a forked child speaks with its parent."""

    def __init__(self, mouth: int, ear: int) -> None:
        self._mouth = mouth
        self._ear = ear

    def say(self, value: object, kind: str = "said") -> None:
        """Tell the parent something that can be JSON."""
        os.write(self._mouth, json.dumps([kind, value]).encode() + b"\n")

    def wait_for_nod(self) -> None:
        """Go on when the parent nods."""
        assert os.read(self._ear, 1), "the parent is gone"


class Forked:
    """A forked child that runs `work(parent)`. What it says is heard here, one JSON value at a time."""

    def __init__(self, work: Callable[[Parent], object], *, as_nobody: bool = False) -> None:
        self._ear, childs_mouth = os.pipe()
        childs_ear, self._mouth = os.pipe()
        self._rest = b""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads is what is being tested
            self.pid = os.fork()
        if self.pid == 0:
            os.close(self._ear)
            os.close(self._mouth)
            _run(work, Parent(childs_mouth, childs_ear), as_nobody)
        os.close(childs_mouth)
        os.close(childs_ear)

    def hear(self, seconds: float = PATIENCE) -> Any:
        """The next thing that the child says; its error, if it had one, is raised here as text."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._ear], [], [], left)[0]:
                raise AssertionError(f"the child has said nothing for {seconds} s")
            part = os.read(self._ear, 65_536)
            assert part, "the child ended without a word"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        kind, value = json.loads(line)
        assert kind == "said", f"in the child: {value}"
        return value

    def nod(self) -> None:
        """Let the child go on."""
        os.write(self._mouth, b"!")

    def end(self) -> None:
        """Take leave of the child, alive or not."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._ear)
        os.close(self._mouth)


def _run(work: Callable[[Parent], object], parent: Parent, as_nobody: bool) -> None:
    try:
        if as_nobody and os.getuid() == 0:  # file permissions mean nothing to root
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        work(parent)
    except BaseException:
        parent.say(traceback.format_exc(), "raised")
    finally:
        os._exit(0)  # no clean-up: everything else in this process belongs to the parent


@contextlib.contextmanager
def forked(work: Callable[[Parent], object], *, as_nobody: bool = False) -> Iterator[Forked]:
    """A forked child for the length of the block."""
    child = Forked(work, as_nobody=as_nobody)
    try:
        yield child
    finally:
        child.end()


def in_child(work: Callable[[], object], *, as_nobody: bool = False, seconds: float = PATIENCE) -> Any:
    """What `work` answers in a forked child."""
    with forked(lambda parent: parent.say(work()), as_nobody=as_nobody) as child:
        return child.hear(seconds)


def program(module: str, *arguments: object) -> subprocess.Popen[str]:
    """A fresh interpreter that runs `python -m module arguments`; stdin and stdout are pipes."""
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
    """The programs for the length of the block; those still alive at its end are killed."""
    try:
        yield
    finally:
        for one in programs:
            if one.poll() is None:
                one.kill()
            one.communicate()
