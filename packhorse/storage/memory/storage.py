"""The memory storage, put together: dictionaries, one lock, and the groups of operations."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.storage.memory.in_and_out import InAndOut
from packhorse.storage.memory.keeper import atomic
from packhorse.storage.memory.lists import Lists
from packhorse.storage.memory.records import Records
from packhorse.storage.memory.schedules import Schedules
from packhorse.storage.memory.steering import Steering
from packhorse.storage.memory.transfer import Transfers
from packhorse.storage.memory.upkeep import Upkeep
from packhorse.storage.memory.workers import Workers
from packhorse.storage.memory.working import Working
from packhorse.storage.records import Health
from packhorse.storage.transfer import problems


class Memory(Lists, Working, Steering, Upkeep, Schedules, InAndOut, Workers, Records, Transfers):
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

    def wait(self, timeout: float, queues: Sequence[str] = ()) -> bool:
        with self._lock:
            if self._unheard.intersection(queues):
                return True
            return self._beds.sleep(timeout, queues, lambda: self._is_called)

    def interrupt(self) -> None:
        with self._lock:
            self._is_called = True
            self._beds.call_all()
