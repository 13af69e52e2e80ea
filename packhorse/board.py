"""The board: a small shared file by which a foreman knows what its worker was doing when it died.

The worker writes a job's id into a place when the job begins and clears it when the outcome is stored. The foreman
writes the time of its last accepted heartbeat; a worker begins nothing while that is too old. Both map the file into
memory, so a write costs a fraction of a microsecond and survives the writer's death.
"""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

SPARE = 2_000
"""Places beyond the slots, for jobs that have ended and whose outcome is not stored yet."""
_HEADER = 64
_PLACE = 64
_TIME = struct.Struct("<Q")
_EMPTY = bytes(_PLACE)


class Board:
    """One worker's board, seen from either side."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self.places = (len(self._memory) - _HEADER) // _PLACE
        self.slots = self.places - SPARE

    @classmethod
    def create(cls, path: Path, slots: int) -> Board:
        """A new board with nothing on it."""
        with path.open("wb") as file:
            file.truncate(_HEADER + (slots + SPARE) * _PLACE)
        board = cls(path)
        board.beat()
        return board

    # --- the worker's side ----------------------------------------------------------------------------------------

    def begin(self, place: int, job_id: str) -> None:
        """This job has begun."""
        start = _HEADER + place * _PLACE
        self._memory[start : start + _PLACE] = job_id.encode()[:_PLACE].ljust(_PLACE, b"\0")

    def clear(self, place: int) -> None:
        """The job of this place has ended, and its outcome is stored."""
        start = _HEADER + place * _PLACE
        self._memory[start : start + _PLACE] = _EMPTY

    def beat_age(self) -> float:
        """Seconds since the last heartbeat that the storage accepted, by a clock that counts sleep too."""
        at: int = _TIME.unpack_from(self._memory, 0)[0]
        return max(0.0, (_boot_time() - at) / 1e9)

    # --- the foreman's side ---------------------------------------------------------------------------------------

    def running(self) -> list[str]:
        """The jobs that have begun and whose outcome is not stored."""
        places = (self._memory[start : start + _PLACE] for start in range(_HEADER, len(self._memory), _PLACE))
        return [place.rstrip(b"\0").decode(errors="replace") for place in places if place != _EMPTY]

    def beat(self) -> None:
        """The storage has just accepted a heartbeat."""
        _TIME.pack_into(self._memory, 0, _boot_time())

    def close(self) -> None:
        """Let go of the file."""
        self._memory.close()


def _boot_time() -> int:
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock)
