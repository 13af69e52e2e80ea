"""Wakes one waiting worker when work is enqueued. Only a hint: a worker that misses it finds the work by polling.

A waiter binds a datagram socket in a directory beside the database; the sockets in it are the waiters. A process that
enqueues sends to one of them and removes its name, so the next notification wakes the next waiter.
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

from packhorse.storage.fork_hook import reset_after_fork

if TYPE_CHECKING:  # a process that only reads does not import sockets
    import socket

_LONGEST_PATH = 90  # the kernel allows 107 bytes, of which a socket's own name needs some
_POLL = 0.02
MAX_HOPS = 16
_ANY: frozenset[str] = frozenset()
_MOST_CHOICES = 1_000
"""How many choices of queues are remembered."""


class Notifier:
    """Notifies the waiters of one database file. `version` changes with every commit to the file."""

    def __init__(self, database: Path, version: Callable[[], int]) -> None:
        self._database = database
        self._version = version
        self._seen_version = -1  # when a worker of this process last looked for jobs
        self._seen: dict[frozenset[str], int] = {}  # the same by choice of queues: workers may share a storage
        self._waiters: set[socket.socket] = set()
        self._lock = threading.RLock()  # reentrant: a signal handler may interrupt the thread that holds it
        self._hops: dict[frozenset[str], int] = {}  # left of the notification that woke the latest, by its queues
        self._has_warned = False
        self._listed: list[str] = []
        self._listed_at = -1  # modification time of the directory when it was listed
        reset_after_fork(self)

    @functools.cached_property
    def directory(self) -> Path:
        """The directory of the sockets."""
        return _socket_directory(self._database)

    # --- notifying ------------------------------------------------------------------------------------------------

    def notify(self, hops: int = MAX_HOPS) -> None:
        """Wake one waiter, in any process. If it finds no work for itself it passes the notification on, at most `hops`
        times: sockets do not say which queues their waiters serve."""
        for name in self._names():
            if self._send(self.directory / name, hops):
                return

    def pass_on(self, queues: Iterable[str] = ()) -> None:
        """The waiter for these queues was woken and found nothing: notify the next."""
        hops = self._hops.pop(frozenset(queues), 0) or self._hops.pop(_ANY, 0) if self._hops else 0
        if hops > 1:
            self.notify(hops - 1)

    def _names(self) -> list[str]:
        """The waiters. Listing the directory for every job would cost more than storing it, so its modification time is
        read first. The clock of the file system is coarse: a change in the last moments may not show in it."""
        try:
            about = self.directory.lstat()
            if not _is_private(about):
                return []  # another user could make us send to, or remove, other files
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
                is_alive = _send_datagram(sender, path, hops)
        except OSError:
            return False  # it has woken up by itself
        with contextlib.suppress(OSError):  # the waiter may have removed it first
            path.unlink()
        return is_alive

    # --- waiting --------------------------------------------------------------------------------------------------

    def note_version(self, queues: Iterable[str] = ()) -> None:
        """Called before a worker looks for jobs in these queues: `wait` returns immediately if the file has changed
        since."""
        seen = self._seen
        self._seen_version = version = self._version()
        if len(seen) >= _MOST_CHOICES:
            seen.clear()
        seen[frozenset(queues)] = version  # not in a new dict: an interrupt in the meantime must stay visible

    def _has_changed(self, served: frozenset[str]) -> bool:
        return self._version() != (self._seen.get(served, -1) if served else self._seen_version)

    def wait(self, timeout: float, queues: Sequence[str] = ()) -> bool:
        """Wait until notified, interrupted, or `timeout` seconds are over."""
        served = frozenset(queues)
        try:
            waiter, path = self._open_socket()
        except OSError:
            return self._poll(timeout, served)  # no sockets on this file system
        try:
            # Only now that a notification can reach us: was there a change before?
            if self._has_changed(served):
                return True
            poll = select.poll()  # unlike select, it takes any file descriptor
            poll.register(waiter, select.POLLIN)
            if not poll.poll(max(0.0, timeout) * 1000):
                return False
            self._note_hops(served, int.from_bytes(waiter.recv(1), "big"))
            return True
        finally:
            with self._lock:
                self._waiters.discard(waiter)
            waiter.close()
            with contextlib.suppress(OSError):
                path.unlink()

    def _note_hops(self, served: frozenset[str], hops: int) -> None:
        if len(self._hops) >= _MOST_CHOICES:
            self._hops.clear()
        self._hops[served] = hops

    def interrupt(self) -> None:
        """Wake all waiters of this process, and any thread that is about to wait."""
        self._seen = {}
        self._seen_version = -1  # before the waiters are counted: a thread that comes later reads this
        with self._lock:
            paths = [Path(waiter.getsockname()) for waiter in self._waiters]
        for path in paths:
            self._send(path, 0)

    def after_fork(self) -> None:
        """The parent's waiters are not ours, and its lock may never be released."""
        self._lock = threading.RLock()
        self._waiters = set()

    def _open_socket(self) -> tuple[socket.socket, Path]:
        import socket

        self._make_directory()
        path = self.directory / os.urandom(6).hex()
        waiter = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            waiter.bind(str(path))
        except OSError:
            waiter.close()
            raise
        with self._lock:
            self._waiters.add(waiter)
        return waiter, path

    def _make_directory(self) -> None:
        """Raises PermissionError for a directory that other users made or may write to: they could notify at will, and
        remove waiters. The waiter polls then."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        if not _is_private(self.directory.lstat()):
            if not self._has_warned:
                import logging  # a process that only reads does not import it

                self._has_warned = True
                logging.getLogger("packhorse.storage").warning(
                    "%s is not a directory of this user alone, so waiting workers look at the file every %d ms instead"
                    " of being woken; remove it",
                    *(self.directory, _POLL * 1_000),
                )
            raise PermissionError(f"{self.directory} belongs to others too")

    def _poll(self, timeout: float, served: frozenset[str]) -> bool:
        deadline = time.monotonic() + timeout
        while not self._has_changed(served):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(_POLL, left))
        return True


def _is_private(about: os.stat_result) -> bool:
    """Whether this is a directory, not a link to one, that belongs to this user and that no other may write to."""
    others = stat.S_IWGRP | stat.S_IWOTH
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & others


def _send_datagram(sender: socket.socket, path: Path, hops: int) -> bool:
    try:
        sender.sendto(bytes([hops]), str(path))
    except BlockingIOError:
        return True  # its buffer is full: it was notified before
    except OSError:
        return False  # its process died and left the name
    return True


def _socket_directory(database: Path) -> Path:
    beside = database.with_name(database.name + "-wake")
    if len(os.fsencode(beside)) <= _LONGEST_PATH:
        return beside
    import hashlib
    import tempfile

    name = hashlib.sha256(os.fsencode(database)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"packhorse-{os.getuid()}-{name}"
