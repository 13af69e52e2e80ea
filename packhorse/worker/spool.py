"""The spool: outcomes that could not be delivered, in files of this machine, so that they outlive their worker.

While the storage is away, a worker keeps the outcomes of its jobs in memory and here. Its foreman delivers the file of
a worker that has ended; so does the next foreman that starts on this machine for the same storage. A living worker
holds a lock on its file. Every outcome carries its token: if the job has another owner by then, the storage rejects it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from msgspec.structs import replace

from packhorse.core.clock import SECOND
from packhorse.core.errors import NotSignedIn, PackhorseError, StorageError, TooBusy
from packhorse.core.job import Token
from packhorse.core.outcome import Outcome, Verdict
from packhorse.core.settings import Settings, mask_url
from packhorse.storage.contract import BATCH, Storage

log = logging.getLogger("packhorse")

SLOW_CALL = 1.0
"""Seconds. Outcomes that wait longer for a call of the storage go to the disk."""
_CHECK_EVERY = 0.5
"""Seconds between two checks of how long the current call takes."""
_SUFFIX = ".outcomes"
_BROKEN = ".broken"
_CONNECTION_OPTIONS = frozenset({"patience", "timeout", "connections", "ca"})
"""Options of a URL that say how to connect, not which storage it is."""
_STORAGE_ERRORS = (StorageError, NotSignedIn, TooBusy)
"""Errors of the storage or the connection, not of an outcome."""
_OTHERS_WRITE = 0o022
_LOCK_TIMEOUT = 5.0
"""Seconds to wait for another process that delivers the same file."""
_LOCK_POLL = 0.02


class SpoolEntry(msgspec.Struct, frozen=True):
    """A line of a file: outcomes as they were at this time of the machine's clock, in seconds since 1970."""

    at: float
    outcomes: list[Outcome]


class Delivery(NamedTuple):
    """How many outcomes the storage has taken."""

    taken: int
    late: int  # the job has another owner, or is gone


class SpoolFile:
    """The outcomes of one worker. It holds a lock on its file: a file that can be locked has no living owner."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None
        self._has_failed = False

    def put(self, outcomes: Sequence[Outcome]) -> bool:
        """Add these outcomes. True: they are on the disk."""
        packed = msgspec.json.encode(SpoolEntry(time.time(), list(outcomes))) + b"\n"
        try:
            if self._file is None:
                _make(self.path.parent)
                self._file = _create(self.path)
            _append(self._file, packed)
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                log.error("cannot keep outcomes in %s; they are lost if this worker is killed: %s", self.path, error)
            return False
        return True

    def clear(self) -> None:
        """Remove the file: all outcomes are delivered."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Unlock the file: the worker ends, and others may deliver what is left."""
        if self._file is not None:
            self._file.close()
            self._file = None


class Spool:
    """The files of all workers of this machine for one storage. Without a `directory` there are none."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory

    @classmethod
    def of(cls, settings: Settings) -> Spool:
        """The spool that the settings name. A storage in memory ends with its process and needs none."""
        if settings.url.startswith("memory:"):
            return cls(None)
        return cls(_state_directory(settings.state_dir) / "outcomes" / _name_of(settings.url))

    def path_of(self, owner: str) -> Path | None:
        """The file of this worker."""
        return None if self.directory is None else self.directory / f"{owner}{_SUFFIX}"

    def deliver(self, storage: Storage, owner: str | None = None) -> Delivery:
        """Deliver the outcomes of this worker, which has ended, or of all workers that have. Raises if the storage
        cannot be used; the rest stays in its files. What the storage refuses is put aside."""
        taken = late = 0
        for path in list(self._files(owner)):
            verdicts = _deliver(storage, path, has_ended=owner is not None)
            late += verdicts.count(Verdict.STALE)
            taken += len(verdicts) - verdicts.count(Verdict.STALE)
        if taken or late:
            log.warning("delivered %d outcomes of former workers; %d came too late", taken, late)
        return Delivery(taken, late)

    def _files(self, owner: str | None) -> Iterator[Path]:
        if self.directory is None or not self.directory.is_dir():
            return
        try:
            _check(self.directory)
        except OSError as error:
            log.error("the outcomes in %s are not delivered: %s", self.directory, error)
            return
        if owner is None:
            yield from sorted(self.directory.glob(f"*{_SUFFIX}"))
        elif (path := self.directory / f"{owner}{_SUFFIX}").exists():
            yield path


def _deliver(storage: Storage, path: Path, *, has_ended: bool) -> list[Verdict]:
    """Deliver this file, unless its worker lives."""
    try:
        file = FileIO(os.open(path, os.O_RDWR | os.O_NOFOLLOW), "r+")
    except FileNotFoundError:
        return []
    except OSError as error:
        log.error("cannot read the outcomes in %s; the file is put aside: %s", path, error)
        _put_aside(path)
        return []
    with file:
        if not (_lock_patiently(file) if has_ended else _lock(file)):
            return []
        outcomes, is_whole = _decoded(path, file.readall())
        verdicts: list[Verdict] = []
        for start in range(0, len(outcomes), BATCH):
            verdicts += _finish(storage, outcomes[start : start + BATCH])
        if is_whole and len(verdicts) == len(outcomes):
            with suppress(OSError):
                path.unlink(missing_ok=True)
        else:
            _put_aside(path)
    return verdicts


def _finish(storage: Storage, outcomes: Sequence[Outcome]) -> list[Verdict]:
    """Return the verdicts, without those of outcomes that the storage refuses."""
    try:
        return storage.finish(outcomes)
    except _STORAGE_ERRORS:
        raise
    except PackhorseError as error:  # one refused outcome must not cost the others
        if len(outcomes) > 1:
            return [verdict for outcome in outcomes for verdict in _finish(storage, [outcome])]
        log.error("job %s: the storage refuses its outcome, which is put aside: %s", outcomes[0].token.job_id, error)
        return []


class OutcomeSpooler:
    """Keeps the outcomes that one worker could not deliver on disk. Without a spool file it keeps none.

    The worker calls `keep` while the storage is away. During a call of the storage the worker's loop cannot do that,
    and a call may last longer than a stopping worker may live: so a thread watches how long the call takes. `unwritten`
    returns the outcomes that the storage does not have, `waiting_for` for how many seconds they have waited for it.
    """

    def __init__(
        self, spool: SpoolFile | None, unwritten: Callable[[], list[Outcome]], waiting_for: Callable[[], float]
    ) -> None:
        self._spool = spool
        self._unwritten = unwritten
        self._waiting_for = waiting_for
        self._kept: set[Token] = set()  # whose outcomes are in the file
        self._lock = threading.Lock()  # the loop and the thread both write the file
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch for slow calls until `close`."""
        if self._spool is not None and self._thread is None:
            self._thread = threading.Thread(target=self._watch_calls, name="packhorse-spool", daemon=True)
            self._thread.start()

    def keep(self) -> bool:
        """Write the outcomes that the storage does not have to the disk. False: there are none, or it fails."""
        if self._spool is None:
            return False
        with self._lock:
            unwritten = {outcome.token: outcome for outcome in self._unwritten()}
            new = [outcome for token, outcome in unwritten.items() if token not in self._kept]
            if new and not self._spool.put(new):
                return False
            self._kept.update(outcome.token for outcome in new)
            self._drop_delivered()  # the storage may have answered meanwhile
            return bool(unwritten)

    def delivered(self) -> None:
        """The storage has taken outcomes. Remove the file once none of those in it is left."""
        if self._kept:
            with self._lock:
                self._drop_delivered()

    def close(self) -> None:
        """The worker ends; others may deliver what is left in the file."""
        self._is_closed.set()
        if self._thread is not None:
            self._thread.join()
        if self._spool is not None:
            self._spool.close()

    def _drop_delivered(self) -> None:
        if self._spool is None or not self._kept:
            return
        self._kept.intersection_update([outcome.token for outcome in self._unwritten()])
        if not self._kept:
            self._spool.clear()

    def _watch_calls(self) -> None:
        while not self._is_closed.wait(_CHECK_EVERY):
            if self._waiting_for() >= SLOW_CALL:
                self.keep()


# --- files ------------------------------------------------------------------------------------------------------------


def _state_directory(configured: str | None) -> Path:
    """Where programs of this user keep what must outlive them."""
    if configured is not None:
        return Path(configured).expanduser().absolute()
    if by_systemd := os.environ.get("STATE_DIRECTORY", "").partition(":")[0]:
        return Path(by_systemd)
    with suppress(RuntimeError):  # the user has no home
        home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        if os.access(next(each for each in (home, *home.parents) if each.exists()), os.W_OK):
            return home / "packhorse"
    return Path(tempfile.gettempdir()) / f"packhorse-state-{os.getuid()}"


def _name_of(url: str) -> str:
    """One name for each storage, however the URL reaches it."""
    parts = urlsplit(mask_url(url))
    path = str(Path(parts.path.removeprefix("/")).absolute()) if parts.scheme == "sqlite" else parts.path
    options = sorted((name, value) for name, value in parse_qsl(parts.query) if name not in _CONNECTION_OPTIONS)
    host = parts.netloc.rpartition("@")[2]
    return hashlib.sha256(f"{parts.scheme}://{host}{path}?{urlencode(options)}".encode()).hexdigest()[:24]


def _make(directory: Path) -> None:
    """Make the directory and its missing parents, with mode 0700. Raises OSError if it cannot be trusted."""
    for each in reversed((directory, *directory.parents)):
        if not each.exists():
            with suppress(FileExistsError):
                each.mkdir(mode=0o700)
    _check(directory)


def _check(directory: Path) -> None:
    """Raise OSError if another user owns this directory or its parent, or can write to one of them. The state directory
    above may belong to an administrator, unless anyone could have made it, as in /tmp."""
    ours = [directory, *directory.parents[:1]]
    ours += [each for each in directory.parents[1:2] if each.parent.stat().st_mode & _OTHERS_WRITE]
    for each in ours:
        about = each.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & _OTHERS_WRITE:
            raise PermissionError(f"{each} must be a directory that only this user can write to")


def _create(path: Path) -> FileIO:
    """A new file, locked by this process."""
    while True:
        file = FileIO(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600), "a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink:
                _sync_directory(path.parent)
                return file
        except OSError:
            file.close()
            raise
        file.close()  # a starting foreman found the file empty and removed it


def _lock(file: FileIO) -> bool:
    """Lock the file. False: its worker lives, or another foreman delivers it or has delivered it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(file.fileno()).st_nlink > 0


def _lock_patiently(file: FileIO) -> bool:
    """Lock the file of a worker that has ended. False: another process has delivered it.

    Wait a while for the process that holds the lock. If it takes too long, or has only inherited the lock from the
    worker, deliver without it: outcomes may then be sent twice, and the storage takes the first.
    """
    until = time.monotonic() + _LOCK_TIMEOUT
    while not _lock(file):
        if os.fstat(file.fileno()).st_nlink == 0:
            return False
        if time.monotonic() >= until:
            return True
        time.sleep(_LOCK_POLL)  # a blocking lock has no time limit
    return True


def _append(file: FileIO, packed: bytes) -> None:
    """Write all of it or nothing, also if the machine loses power."""
    size = os.fstat(file.fileno()).st_size
    try:
        if file.write(packed) != len(packed):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())
    except OSError:
        file.truncate(size)
        raise


def _decoded(path: Path, content: bytes) -> tuple[list[Outcome], bool]:
    """The outcomes with their present age. False: some lines could not be read."""
    outcomes: list[Outcome] = []
    is_whole = True
    for line in content.splitlines():
        try:
            found = msgspec.json.decode(line, type=SpoolEntry)
        except msgspec.DecodeError as error:
            log.error("cannot read some outcomes in %s; the file is put aside: %s", path, error)
            is_whole = False
        else:
            ago = max(0, round((time.time() - found.at) * SECOND))
            outcomes += [replace(outcome, ago=outcome.ago + ago) for outcome in found.outcomes]
    return outcomes, is_whole


def _put_aside(path: Path) -> None:
    with suppress(OSError):
        path.rename(path.with_suffix(_BROKEN))


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
