"""The shared status: a small file in memory by which a foreman knows what its worker was doing when it died.

The worker writes a job's id into a place just before the job begins, notes there that the job has ended, and clears the
place when the outcome is stored. It also writes when it last checked the time limits of its jobs; the foreman enforces
them if that is too old. The foreman writes the time of its last accepted heartbeat; the worker begins nothing if that
is too old. Both map the file, so a write costs a fraction of a microsecond and survives the writer's death. The foreman
locks the file as long as it lives, so that others see whether a file that was left behind has an owner.
"""

from __future__ import annotations

import fcntl
import mmap
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

SPARE = 2_000
"""Places beyond the slots, for jobs that have ended and whose outcome is not stored yet."""
_HEADER = 64
_PLACE = 256
_TIME = struct.Struct("<Q")
_BEAT, _LOOK = 0, 8  # in the header: the time of the last heartbeat, and of the last look at time limits
_HEAD = struct.Struct("<BB2xId")  # of a place: what its job does, the length of the text, its slot, when it began
_TEXT = _PLACE - _HEAD.size
_FREE, _RUNS, _ENDED = 0, 1, 2


class StatusEntry(NamedTuple):
    """A job that has begun: its slot, and how many microseconds ago. A long task name is cut."""

    job_id: str
    task: str
    slot: int
    ago: int
    has_ended: bool


class SharedStatus:
    """The shared status of one worker, for both sides."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map(path, file)

    def _map(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        self._memory = mmap.mmap(file.fileno(), 0)
        self.places = (len(self._memory) - _HEADER) // _PLACE
        self.slots = self.places - SPARE

    @classmethod
    def create(cls, path: Path, slots: int) -> SharedStatus:
        """A new, empty file, locked by this process."""
        shared_status = cls.__new__(cls)
        with path.open("w+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the memory map keeps the file open, and so the lock
            file.truncate(_HEADER + (slots + SPARE) * _PLACE)
            shared_status._map(path, file)
        shared_status.beat()
        shared_status.note_look()
        return shared_status

    # --- the worker's side ----------------------------------------------------------------------------------------

    def begin(self, place: int, job_id: str, task: str = "", slot: int = 0, at: float = 0.0) -> None:
        """This job is about to begin, at this time of the monotonic clock. One write: every job comes by here."""
        start, text = _HEADER + place * _PLACE, (job_id + "\0" + task).encode()
        if len(text) > _TEXT:
            text = text[:_TEXT]
        self._memory[start : start + _HEAD.size + len(text)] = _HEAD.pack(_RUNS, len(text), slot, at) + text

    def end(self, place: int) -> None:
        """The job has ended; its outcome is not stored yet."""
        self._memory[_HEADER + place * _PLACE] = _ENDED

    def clear(self, place: int) -> None:
        """The outcome of the job is stored."""
        self._memory[_HEADER + place * _PLACE] = _FREE

    def note_look(self) -> None:
        """The worker checks the time limits of its jobs."""
        _TIME.pack_into(self._memory, _LOOK, time.monotonic_ns())

    def beat_age(self) -> float:
        """Seconds since the last heartbeat that the storage accepted, by a clock that counts sleep too."""
        at: int = _TIME.unpack_from(self._memory, _BEAT)[0]
        return max(0.0, (_boot_time() - at) / 1e9)

    # --- the foreman's side ---------------------------------------------------------------------------------------

    def running(self) -> list[str]:
        """The ids of the jobs that have begun and whose outcome is not stored."""
        return [begun.job_id for begun in self.begun()]

    def begun(self) -> list[StatusEntry]:
        """The jobs that have begun and whose outcome is not stored."""
        now, memory = time.monotonic(), self._memory
        starts = [start for start in range(_HEADER, len(memory), _PLACE) if memory[start] != _FREE]
        found: list[StatusEntry] = []
        for start in starts:
            state, length, slot, at = _HEAD.unpack_from(memory, start)
            text = memory[start + _HEAD.size : start + _HEAD.size + length].decode(errors="replace")
            job_id, _, task = text.partition("\0")
            found.append(StatusEntry(job_id, task, slot, max(0, round((now - at) * 1e6)), has_ended=state == _ENDED))
        return found

    def look_age(self) -> float:
        """Seconds since the worker last checked time limits, by a clock that does not count sleep."""
        at: int = _TIME.unpack_from(self._memory, _LOOK)[0]
        return max(0.0, (time.monotonic_ns() - at) / 1e9)

    def beat(self) -> None:
        """The storage has just accepted a heartbeat."""
        with suppress(TypeError, ValueError):  # another thread has just closed it
            _TIME.pack_into(self._memory, _BEAT, _boot_time())

    def close(self) -> None:
        """Close the file."""
        self._memory.close()


def _boot_time() -> int:
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock)
