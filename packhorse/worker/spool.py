"""The spool: outcomes that could not be delivered, in files of this machine, so that they outlive their worker.

While the storage is away a worker keeps what its jobs came to in memory, and here. Its foreman delivers what is left of
a worker that has ended; so does the next foreman that starts here for the same storage. A living worker holds a lock on
its file. Every outcome carries its token: of a job that somebody else has by then it is refused, and harms nobody.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from msgspec.structs import replace

from packhorse.core.clock import SECOND
from packhorse.core.errors import NotSignedIn, PackhorseError, StorageError, TooBusy
from packhorse.core.outcome import Outcome, Verdict
from packhorse.core.settings import Settings, mask_url
from packhorse.storage.contract import BATCH, Storage

log = logging.getLogger("packhorse")

_SUFFIX = ".outcomes"
_BROKEN = ".broken"
_OF_THE_WAY = frozenset({"patience", "timeout", "connections", "ca"})
"""Options of an address that say how to get there, not where it is."""
_OF_THE_STORAGE = (StorageError, NotSignedIn, TooBusy)
"""What is wrong with the storage or the way to it, and not with an outcome."""
_OTHERS_WRITE = 0o022
_WAIT_FOR_OTHERS = 5.0
"""Seconds to wait for somebody else who delivers the outcomes of a worker that has ended."""
_LOOK_AGAIN = 0.02


class Spooled(msgspec.Struct, frozen=True):
    """A line of a file: outcomes as they were at a time of this machine's clock, in seconds since 1970."""

    at: float
    outcomes: list[Outcome]


class Delivered(NamedTuple):
    """What became of them."""

    taken: int
    late: int  # somebody else has the job, or it is gone


class SpoolFile:
    """The outcomes of one worker, which holds a lock on its file: a file that can be locked has no living owner."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None
        self._has_failed = False

    def put(self, outcomes: Sequence[Outcome]) -> bool:
        """Add these to what is there. When this answers True they are on the disk."""
        packed = msgspec.json.encode(Spooled(time.time(), list(outcomes))) + b"\n"
        try:
            if self._file is None:
                _make(self.path.parent)
                self._file = _create(self.path)
            _append(self._file, packed)
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                log.error("outcomes cannot be kept in %s, and are lost if this worker is killed: %s", self.path, error)
            return False
        return True

    def clear(self) -> None:
        """All have been delivered."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """The worker ends; what is left may be delivered by others."""
        if self._file is not None:
            self._file.close()
            self._file = None


class Spool:
    """The files of all workers of this machine and one storage; `directory` None: none are kept."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory

    @classmethod
    def of(cls, settings: Settings) -> Spool:
        """As the settings say. What is in memory has gone with its process, so nothing of it is kept."""
        if settings.url.startswith("memory:"):
            return cls(None)
        return cls(_state_directory(settings.state_dir) / "outcomes" / _name_of(settings.url))

    def path_of(self, owner: str) -> Path | None:
        """Where the outcomes of this worker lie, if there are any."""
        return None if self.directory is None else self.directory / f"{owner}{_SUFFIX}"

    def deliver(self, storage: Storage, owner: str | None = None) -> Delivered:
        """Hand over what lies here, of one worker that has ended, or of all that have. Raises what the storage raises
        if it cannot be used; the rest stays then. What it refuses is put aside."""
        taken = late = 0
        for path in list(self._files(owner)):
            verdicts = _deliver(storage, path, has_ended=owner is not None)
            late += verdicts.count(Verdict.STALE)
            taken += len(verdicts) - verdicts.count(Verdict.STALE)
        if taken or late:
            log.warning("%d outcomes of former workers were delivered; %d came too late", taken, late)
        return Delivered(taken, late)

    def _files(self, owner: str | None) -> Iterator[Path]:
        if self.directory is None or not self.directory.is_dir():
            return
        try:
            _check(self.directory)
        except OSError as error:
            log.error("what lies in %s is not delivered: %s", self.directory, error)
            return
        if owner is None:
            yield from sorted(self.directory.glob(f"*{_SUFFIX}"))
        elif (path := self.directory / f"{owner}{_SUFFIX}").exists():
            yield path


def _deliver(storage: Storage, path: Path, *, has_ended: bool) -> list[Verdict]:
    """What is in this file, unless its worker lives."""
    try:
        file = FileIO(os.open(path, os.O_RDWR | os.O_NOFOLLOW), "r+")
    except FileNotFoundError:
        return []
    except OSError as error:
        log.error("the outcomes in %s cannot be read, and are put aside: %s", path, error)
        _put_aside(path)
        return []
    with file:
        if not (_is_ours(file) if has_ended else _is_left(file)):
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
    """Without verdicts for those that the storage refuses."""
    try:
        return storage.finish(outcomes)
    except _OF_THE_STORAGE:
        raise
    except PackhorseError as error:  # one of them is not taken, which must not cost the others
        if len(outcomes) > 1:
            return [verdict for outcome in outcomes for verdict in _finish(storage, [outcome])]
        told = "job %s: the storage does not take its outcome, which is put aside: %s"
        log.error(told, outcomes[0].token.job_id, error)
        return []


# --- files ------------------------------------------------------------------------------------------------------------


def _state_directory(told: str | None) -> Path:
    """Where programs of this user keep what must outlive them."""
    if told is not None:
        return Path(told).expanduser().absolute()
    if of_service := os.environ.get("STATE_DIRECTORY", "").partition(":")[0]:  # given by systemd
        return Path(of_service)
    with suppress(RuntimeError):  # nobody has a home
        home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        if os.access(next(each for each in (home, *home.parents) if each.exists()), os.W_OK):
            return home / "packhorse"
    return Path(tempfile.gettempdir()) / f"packhorse-state-{os.getuid()}"


def _name_of(url: str) -> str:
    """One for each storage, however it is reached."""
    parts = urlsplit(mask_url(url))
    path = str(Path(parts.path.removeprefix("/")).absolute()) if parts.scheme == "sqlite" else parts.path
    options = sorted((name, value) for name, value in parse_qsl(parts.query) if name not in _OF_THE_WAY)
    host = parts.netloc.rpartition("@")[2]
    return hashlib.sha256(f"{parts.scheme}://{host}{path}?{urlencode(options)}".encode()).hexdigest()[:24]


def _make(directory: Path) -> None:
    """Make it and what is missing above it, with mode 0700. Raises OSError if it cannot be trusted."""
    for each in reversed((directory, *directory.parents)):
        if not each.exists():
            with suppress(FileExistsError):
                each.mkdir(mode=0o700)
    _check(directory)


def _check(directory: Path) -> None:
    """Raises OSError if another user could have made this directory or the one above it, or can write to it. The state
    directory above both may be an administrator's, unless it lies where others can make one, as in /tmp."""
    ours = [directory, *directory.parents[:1]]
    ours += [each for each in directory.parents[1:2] if each.parent.stat().st_mode & _OTHERS_WRITE]
    for each in ours:
        about = each.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & _OTHERS_WRITE:
            raise PermissionError(f"{each} is not a directory of this user's alone")


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
        file.close()  # a starting foreman was faster: it found nothing in the file and removed it


def _is_left(file: FileIO) -> bool:
    """Lock it. False: its worker lives, or another foreman delivers it or has done so."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(file.fileno()).st_nlink > 0


def _is_ours(file: FileIO) -> bool:
    """The same of a worker that has ended: whoever has the lock delivers the file, and is waited for. False: that is
    done. Who takes too long, or has only inherited the lock from the worker, is not waited for any more: then the
    outcomes may be sent twice, and the storage takes the first."""
    until = time.monotonic() + _WAIT_FOR_OTHERS
    while not _is_left(file):
        if os.fstat(file.fileno()).st_nlink == 0:
            return False
        if time.monotonic() >= until:
            return True
        time.sleep(_LOOK_AGAIN)  # nobody tells when a lock is free, but a call that may not return
    return True


def _append(file: FileIO, packed: bytes) -> None:
    """All of it or nothing, also if the machine loses power."""
    size = os.fstat(file.fileno()).st_size
    try:
        if file.write(packed) != len(packed):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())
    except OSError:
        file.truncate(size)
        raise


def _decoded(path: Path, content: bytes) -> tuple[list[Outcome], bool]:
    """The outcomes as they are now. False: not all of them can be understood."""
    outcomes: list[Outcome] = []
    is_whole = True
    for line in content.splitlines():
        try:
            found = msgspec.json.decode(line, type=Spooled)
        except msgspec.DecodeError as error:
            log.error("outcomes in %s cannot be read, and are put aside: %s", path, error)
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
