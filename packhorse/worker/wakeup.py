"""The loop's nap: where it sleeps while there is nothing to do, and how others wake it.

It sleeps in the storage, which wakes it when there may be jobs, or here, where only this process does. Whoever has
something for it rings, from any thread; that is cheap while the loop is awake, which it is under load.
"""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Literal

from packhorse.storage.contract import Storage


class Wakeup:
    """`place` is where the loop sleeps. It says so first, and then looks whether there is something to do after all:
    so whatever comes later finds it asleep, and wakes it."""

    def __init__(self, storage: Storage) -> None:
        self.place: Literal["storage", "here"] | None = None
        self._storage = storage
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """There is something to do."""
        if self.place == "storage":
            self._storage.interrupt()
        elif self.place == "here":
            self._rings.put(None)

    def sleep_here(self, seconds: float) -> None:
        """Until somebody rings, or so many seconds are over."""
        with suppress(Empty):
            self._rings.get(timeout=seconds)
