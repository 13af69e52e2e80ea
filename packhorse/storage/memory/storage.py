"""The memory storage, put together: dictionaries, one lock, and the groups of operations."""

from __future__ import annotations

from packhorse.storage.memory.in_and_out import InAndOut
from packhorse.storage.memory.keeper import atomic
from packhorse.storage.memory.lists import Lists
from packhorse.storage.memory.moving import Moving
from packhorse.storage.memory.records import Records
from packhorse.storage.memory.schedules import Schedules
from packhorse.storage.memory.steering import Steering
from packhorse.storage.memory.upkeep import Upkeep
from packhorse.storage.memory.workers import Workers
from packhorse.storage.memory.working import Working
from packhorse.storage.moving import problems
from packhorse.storage.records import Health


class Memory(Lists, Working, Steering, Upkeep, Schedules, InAndOut, Workers, Records, Moving):
    """Jobs that live in this process alone. See `contract.py` for what each call guarantees."""

    def close(self) -> None:
        """Nothing to let go of."""

    @atomic
    def health(self) -> Health:
        return Health(
            kind="memory",
            url="memory://",
            version="-",
            schema=0,
            latency=0,
            size=len(self._jobs),
            problems=problems(self._move),
        )

    def wait(self, timeout: float) -> bool:
        with self._woken:
            return self._woken.wait_for(lambda: self._wakes != self._looked, timeout)

    def interrupt(self) -> None:
        with self._woken:
            self._wakes += 1
            self._woken.notify_all()
