"""The bell: wakes one sleeping worker when work comes in. A hint only; who misses it finds the work by polling.

A sleeper binds a datagram socket in a directory beside the database; the sockets in it *are* the sleepers. Whoever
enqueues sends to one of them and removes its name, so that the next ring wakes the next sleeper.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import stat
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # who only reads needs no sockets, and pays for loading them
    import socket

_LONGEST_PATH = 90  # the kernel allows 107 bytes, of which a socket's own name needs some
_POLL = 0.02
MOST_HOPS = 16
_ANY: frozenset[str] = frozenset()
_MOST_CHOICES = 1_000
"""Of queues, for which something is remembered."""


class Bell:
    """Rings for one database file. `version` tells when the file has changed."""

    def __init__(self, database: Path, version: Callable[[], int]) -> None:
        self._database = database
        self._version = version
        self._seen_version = -1  # by whoever looked last
        self._seen: dict[frozenset[str], int] = {}  # the same for each choice of queues: workers may share a storage
        self._sleepers: set[socket.socket] = set()
        self._lock = threading.RLock()  # a signal handler may interrupt the very thread that lies down
        self._pid = os.getpid()
        self._hops: dict[frozenset[str], int] = {}  # of the ring that woke the latest who serves these queues
        self._has_warned = False
        self._listed: list[str] = []
        self._listed_at = -1  # the directory's time of change when it was listed

    @functools.cached_property
    def directory(self) -> Path:
        """Where the sleepers are."""
        return _directory(self._database)

    # --- ringing --------------------------------------------------------------------------------------------------

    def ring(self, hops: int = MOST_HOPS) -> None:
        """Wake one sleeper, in whatever process it is. If it finds nothing for itself, it passes the ring on, at most
        `hops` times: sleepers do not say which queues they serve."""
        for name in self._names():
            if self._send(self.directory / name, hops):
                return

    def pass_on(self, queues: Iterable[str] = ()) -> None:
        """Who serves these queues was woken for nothing: let the next have a look."""
        hops = self._hops.pop(frozenset(queues), 0) or self._hops.pop(_ANY, 0) if self._hops else 0
        if hops > 1:
            self.ring(hops - 1)

    def _names(self) -> list[str]:
        """The sleepers. Listing the directory for every job would cost more than storing it, so its time of change is
        looked at first; a change within the last moments may be hidden by the coarse clock of the file system."""
        try:
            about = self.directory.lstat()
            if not _is_ours(about):
                return []  # nobody shall make us send, or remove, in another place
            if about.st_mtime_ns != self._listed_at or time.time_ns() - about.st_mtime_ns < 50_000_000:
                self._listed = [path.name for path in self.directory.iterdir()]
                self._listed_at = about.st_mtime_ns
        except OSError:
            return []
        return self._listed

    def _send(self, path: Path, hops: int) -> bool:
        import socket

        try:
            if not stat.S_ISSOCK(path.lstat().st_mode):
                return False
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                is_awake = _deliver(sender, path, hops)
        except OSError:
            return False  # it has woken up by itself
        with contextlib.suppress(OSError):  # the sleeper may have been quicker
            path.unlink()
        return is_awake

    # --- sleeping -------------------------------------------------------------------------------------------------

    def look(self, queues: Iterable[str] = ()) -> None:
        """Remember how the file is now, when somebody looks for jobs in these queues: `wait` returns at once if it
        changed since."""
        seen = self._seen
        self._seen_version = version = self._version()
        if len(seen) >= _MOST_CHOICES:
            seen.clear()
        seen[frozenset(queues)] = version  # not in a new one: an interrupt meanwhile stays heard

    def _has_changed(self, served: frozenset[str]) -> bool:
        return self._version() != (self._seen.get(served, -1) if served else self._seen_version)

    def wait(self, timeout: float, queues: Sequence[str] = ()) -> bool:
        """Sleep until rung, interrupted, or `timeout` seconds are over."""
        self._leave_parent()
        served = frozenset(queues)
        try:
            sleeper, path = self._lie_down()
        except OSError:
            return self._poll(timeout, served)  # no sockets on this file system
        try:
            # Only now that the bell can reach us: was there a change before we lay down?
            if self._has_changed(served):
                return True
            poll = select.poll()  # unlike select, it takes any file descriptor
            poll.register(sleeper, select.POLLIN)
            if not poll.poll(max(0.0, timeout) * 1000):
                return False
            self._heard(served, int.from_bytes(sleeper.recv(1), "big"))
            return True
        finally:
            with self._lock:
                self._sleepers.discard(sleeper)
            sleeper.close()
            with contextlib.suppress(OSError):
                path.unlink()

    def _heard(self, served: frozenset[str], hops: int) -> None:
        if len(self._hops) >= _MOST_CHOICES:
            self._hops.clear()
        self._hops[served] = hops

    def interrupt(self) -> None:
        """Wake every sleeper of this process, and whoever is about to lie down."""
        self._leave_parent()
        self._seen = {}
        self._seen_version = -1  # before the sleepers are counted: who comes too late to be among them looks at it
        with self._lock:
            paths = [Path(sleeper.getsockname()) for sleeper in self._sleepers]
        for path in paths:
            self._send(path, 0)

    def _leave_parent(self) -> None:
        """After a fork: the parent's sleepers are not ours, and its lock may be held for ever."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._lock = threading.RLock()
            self._sleepers = set()

    def _lie_down(self) -> tuple[socket.socket, Path]:
        import socket

        self._make_directory()
        path = self.directory / os.urandom(6).hex()
        sleeper = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            sleeper.bind(str(path))
        except OSError:
            sleeper.close()
            raise
        with self._lock:
            self._sleepers.add(sleeper)
        return sleeper, path

    def _make_directory(self) -> None:
        """Raises PermissionError for one that others have made, or may write to: they could ring at will, and remove
        sleepers. Who sleeps then polls."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        if not _is_ours(self.directory.lstat()):
            if not self._has_warned:
                import logging  # who only reads pays for nothing that it does not need

                self._has_warned = True
                logging.getLogger("packhorse.storage").warning(
                    "%s is not a directory of this user alone, so sleeping workers look at the file every %d ms instead"
                    " of being woken; remove it",
                    *(self.directory, _POLL * 1_000),
                )
            raise PermissionError(f"{self.directory} is not ours alone")

    def _poll(self, timeout: float, served: frozenset[str]) -> bool:
        deadline = time.monotonic() + timeout
        while not self._has_changed(served):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(_POLL, left))
        return True


def _is_ours(about: os.stat_result) -> bool:
    """Is this a directory, and no link to one, that belongs to this user, and in which nobody else may write?"""
    others = stat.S_IWGRP | stat.S_IWOTH
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & others


def _deliver(sender: socket.socket, path: Path, hops: int) -> bool:
    try:
        sender.sendto(bytes([hops]), str(path))
    except BlockingIOError:
        return True  # its box is full: it was rung before
    except OSError:
        return False  # its process died and left the name
    return True


def _directory(database: Path) -> Path:
    beside = database.with_name(database.name + "-wake")
    if len(os.fsencode(beside)) <= _LONGEST_PATH:
        return beside
    import hashlib
    import tempfile

    name = hashlib.sha256(os.fsencode(database)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"packhorse-{os.getuid()}-{name}"
