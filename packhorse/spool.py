"""The spool: outcomes that could not be delivered, in files of this machine, so that they outlive their worker.

While the storage is away a worker keeps what its jobs came to in memory, and here. Its foreman delivers what is left of
a worker that has ended; so does the next foreman that starts here for the same storage. Every outcome carries its
token: of a job that somebody else has by then it is refused, and harms nobody.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from msgspec.structs import replace

from packhorse.clock import SECOND
from packhorse.errors import BadValue
from packhorse.outcome import Outcome, Verdict
from packhorse.settings import Settings, mask_url
from packhorse.storage.contract import Storage

log = logging.getLogger("packhorse")

_SUFFIX = ".outcomes"
_BROKEN = ".broken"
_OF_THE_WAY = frozenset({"patience", "timeout", "connections", "ca"})
"""Options of an address that say how to get there, not where it is."""


class Spooled(msgspec.Struct, frozen=True):
    """What is in a file: outcomes as they were at a time of this machine's clock, in seconds since 1970."""

    at: float
    outcomes: list[Outcome]


class Delivered(NamedTuple):
    """What became of them."""

    taken: int
    late: int  # somebody else has the job, or it is gone


class SpoolFile:
    """The outcomes of one worker."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._has_failed = False

    def put(self, outcomes: Sequence[Outcome]) -> bool:
        """Write these in the place of what is there. When this answers True they are on the disk."""
        packed = msgspec.json.encode(Spooled(time.time(), list(outcomes)))
        try:
            _check(_made(self.path.parent))
            _write(self.path, packed)
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
        """Hand over what lies here, of one worker or of all. Raises what the storage raises; the rest stays then."""
        taken = late = 0
        for path in list(self._files(owner)):
            verdicts = [] if (found := _read(path)) is None else _finish(storage, found)
            SpoolFile(path).clear()
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


def _finish(storage: Storage, found: Spooled) -> list[Verdict]:
    ago = max(0, round((time.time() - found.at) * SECOND))
    outcomes = [replace(outcome, ago=outcome.ago + ago) for outcome in found.outcomes]
    try:
        return storage.finish(outcomes)
    except BadValue:  # one of them is not taken, which must not cost the others
        return [verdict for outcome in outcomes for verdict in _finish_one(storage, outcome)]


def _finish_one(storage: Storage, outcome: Outcome) -> list[Verdict]:
    try:
        return storage.finish([outcome])
    except BadValue as error:
        log.error("job %s: the storage does not take what it came to: %s", outcome.token.job_id, error)
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


def _made(directory: Path) -> Path:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def _check(directory: Path) -> None:
    """Raises OSError for a directory that another user could have made, or can write to."""
    about = directory.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o022:
        raise PermissionError(f"{directory} is not a directory of this user's alone")


def _write(path: Path, packed: bytes) -> None:
    """All of it or nothing, also if the machine loses power."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        part.unlink()
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(packed)
            opened.flush()
            os.fsync(opened.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _read(path: Path) -> Spooled | None:
    """None: it is gone, or cannot be understood; then it is put aside."""
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        with os.fdopen(file, "rb") as opened:
            return msgspec.json.decode(opened.read(), type=Spooled)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        log.error("the outcomes in %s cannot be read, and are put aside: %s", path, error)
        with suppress(OSError):
            path.rename(path.with_suffix(_BROKEN))
        return None
