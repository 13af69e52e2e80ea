"""The bell: wakes one sleeping worker when work comes in. A hint only; who misses it finds the work by polling.

A sleeper binds a datagram socket in a directory beside the database; the sockets in it *are* the sleepers. Whoever
enqueues sends to one of them and removes its name, so that the next ring wakes the next sleeper.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import select
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

_LONGEST_PATH = 90  # the kernel allows 107 bytes, of which a socket's own name needs some
_POLL = 0.02


class Bell:
    """Rings for one database file. `version` tells when the file has changed."""

    def __init__(self, database: Path, version: Callable[[], int]) -> None:
        self.directory = _directory(database)
        self._version = version
        self._seen_version = -1
        self._sleepers: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._listed: list[str] = []
        self._listed_at = -1  # the directory's time of change when it was listed

    # --- ringing --------------------------------------------------------------------------------------------------

    def ring(self) -> None:
        """Wake one sleeper, in whatever process it is."""
        for name in self._names():
            if self._send(self.directory / name):
                return

    def _names(self) -> list[str]:
        """The sleepers. Listing the directory for every job would cost more than storing it, so its time of change is
        looked at first; a change within the last moments may be hidden by the coarse clock of the file system."""
        try:
            changed_at = self.directory.stat().st_mtime_ns
        except OSError:
            return []
        if changed_at != self._listed_at or time.time_ns() - changed_at < 50_000_000:
            try:
                self._listed = [path.name for path in self.directory.iterdir()]
            except OSError:
                return []
            self._listed_at = changed_at
        return self._listed

    def _send(self, path: Path) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            try:
                sender.sendto(b"!", str(path))
                is_awake = True
            except BlockingIOError:
                is_awake = True  # its box is full: it was rung before
            except OSError:
                is_awake = False  # it has woken up, or its process died and left the name
        with contextlib.suppress(OSError):
            path.unlink()
        return is_awake

    # --- sleeping -------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Remember how the file is now: `wait` returns at once if it changed since."""
        self._seen_version = self._version()

    def wait(self, timeout: float) -> bool:
        """Sleep until rung, interrupted, or `timeout` seconds are over."""
        self._leave_parent()
        try:
            sleeper, path = self._lie_down()
        except OSError:
            return self._poll(timeout)  # no sockets on this file system
        try:
            # Only now that the bell can reach us: was there a change before we lay down?
            if self._version() != self._seen_version:
                return True
            with contextlib.suppress(InterruptedError):
                return bool(select.select([sleeper], [], [], max(0.0, timeout))[0])
            return False
        finally:
            with self._lock:
                self._sleepers.discard(sleeper)
            sleeper.close()
            with contextlib.suppress(OSError):
                path.unlink()

    def interrupt(self) -> None:
        """Wake every sleeper of this process."""
        self._leave_parent()
        with self._lock:
            paths = [Path(sleeper.getsockname()) for sleeper in self._sleepers]
        for path in paths:
            self._send(path)
        self._seen_version = -1

    def _leave_parent(self) -> None:
        """After a fork: the parent's sleepers are not ours, and its lock may be held for ever."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._lock = threading.Lock()
            self._sleepers = set()

    def _lie_down(self) -> tuple[socket.socket, Path]:
        self.directory.mkdir(mode=0o700, exist_ok=True)
        path = self.directory / secrets.token_hex(6)
        sleeper = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            sleeper.bind(str(path))
        except OSError:
            sleeper.close()
            raise
        with self._lock:
            self._sleepers.add(sleeper)
        return sleeper, path

    def _poll(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while self._version() == self._seen_version:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(_POLL, left))
        return True


def _directory(database: Path) -> Path:
    beside = database.with_name(database.name + "-wake")
    if len(os.fsencode(beside)) <= _LONGEST_PATH:
        return beside
    name = hashlib.sha256(os.fsencode(database)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"packhorse-{os.getuid()}-{name}"
