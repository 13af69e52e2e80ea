"""A real terminal with the program on it, for tests that press keys and look at what is left behind."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from tests.children import PATIENCE, ROOT
from tests.cli.sample_storage import SampleStorage

PROGRAM = (sys.executable, "-m", "packhorse")


def _sit_down() -> None:
    """In the child: take the terminal; and hear Ctrl-C, which a shell turns off for what runs in its background."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """For the length of a `with` block; `attributes` are those from before the program began."""

    def __init__(
        self, sample: SampleStorage, *words: str, width: int = 100, height: int = 24, program: Sequence[str] = PROGRAM
    ) -> None:
        self._ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.attributes = self.now()
        self.seen = ""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode  # a character may come in two parts
        self.child = subprocess.Popen(
            [*program, *words],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            cwd=sample.directory,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""},
            start_new_session=True,
            preexec_fn=_sit_down,
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        os.close(self._theirs)
        os.close(self._ours)

    def now(self) -> list[Any]:
        """How the terminal is set just now."""
        return termios.tcgetattr(self._theirs)

    def resize(self, width: int, height: int) -> None:
        """Another size; the program is told by a signal."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def write(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def read_until(self, text: str, times: int = 1, keys: bytes = b"") -> None:
        """Take what it writes until this text has been seen so often; press these keys again and again until then."""
        deadline = time.monotonic() + PATIENCE
        while self.seen.count(text) < times:
            assert time.monotonic() < deadline, f"{text!r} did not come: {self.seen!r}"
            if not self._take(0.2):
                self.write(keys)

    def wait(self) -> int:
        """The exit code; what is written until then is taken."""
        deadline = time.monotonic() + PATIENCE
        while self.child.poll() is None:
            assert time.monotonic() < deadline, f"it has not ended: {self.seen!r}"
            self._take(0.05)
        while self._take(0.05):
            pass
        return self.child.returncode

    def _take(self, seconds: float) -> bool:
        if not select.select([self._ours], [], [], seconds)[0]:
            return False
        self.seen += self._decode(os.read(self._ours, 65_536))
        return True
