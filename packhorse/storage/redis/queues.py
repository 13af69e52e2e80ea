"""The names of queues and tasks, what is counted of them, and pausing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from packhorse.event import Kind, Subject
from packhorse.job import State
from packhorse.storage.records import PAUSE_IS_OVER, QueueInfo, Tally, TaskInfo
from packhorse.storage.redis.keeper import Keeper
from packhorse.storage.redis.keys import STATES, names_of
from packhorse.storage.redis.rows import from_json, to_json
from packhorse.storage.redis.transaction import Transaction

PAUSED: Final = 1 << 13
"""The bit of a queue's entry in `open` that says so."""


class Queues(Keeper):
    def tallies(self) -> list[Tally]:
        (told,) = self._server.ask("tallies", ("HGETALL", self._keys.tally))
        return _tallies_in(told)

    def queues(self) -> list[QueueInfo]:
        names, told, waits = self._server.run("queues")
        counts: dict[str, dict[State, int]] = {}
        for tally in _tallies_in(told):
            numbers = counts.setdefault(tally.queue, {})
            numbers[tally.state] = numbers.get(tally.state, 0) + tally.number
        oldest = {queue: int(since) for queue, since in pairs(waits)}
        found = []
        for name, packed in sorted(pairs(names)):
            pause, of_states = pause_in(packed), counts.get(name.decode(), {})
            found.append(QueueInfo(name.decode(), of_states, *pause, oldest.get(name)))
        return found

    def tasks(self) -> list[TaskInfo]:
        (told,) = self._server.ask("tasks", ("HGETALL", self._keys.tasks))
        return [TaskInfo(name.decode(), *from_json(packed)) for name, packed in sorted(pairs(told))]

    def announce(self, tasks: Sequence[TaskInfo]) -> None:
        def work(tx: Transaction) -> None:
            for task in tasks:
                tx.do("HSET", self._keys.tasks, task.name, to_json([task.queue, task.options, tx.now]))
                tx.do("HSETNX", self._keys.queues, task.queue, "")

        self._change("announce", work)

    def pause(self, queue: str, *, by: str | None = None, why: str | None = None, duration: int | None = None) -> bool:
        def work(tx: Transaction) -> bool:
            if tx.field(self._keys.queues, queue):
                return False
            until = None if duration is None else tx.now + duration
            tx.do("HSET", self._keys.queues, queue, packed_pause(tx.now, by, why, until))
            tx.do("HINCRBY", self._keys.open, queue, PAUSED)
            if until is not None:
                tx.do("ZADD", self._keys.pauses, until, queue)
            tx.record_about(Subject.QUEUE, Kind.PAUSED, queue=queue, by=by, why=why, until=until)
            return True

        return self._change("pause", work)

    def resume(self, queue: str, *, by: str | None = None, over: bool = False) -> bool:
        def work(tx: Transaction) -> bool:
            info = QueueInfo(queue, {}, *pause_in(tx.field(self._keys.queues, queue)))
            if not info.is_paused or (over and not info.is_over(tx.now)):
                return False
            tx.do("HSET", self._keys.queues, queue, "")
            tx.do("HINCRBY", self._keys.open, queue, -PAUSED)
            if info.paused_until is not None:
                tx.do("ZREM", self._keys.pauses, queue)
            why = PAUSE_IS_OVER if over else None
            tx.record_about(Subject.QUEUE, Kind.RESUMED, queue=queue, by=by, why=why)
            tx.wake()
            return True

        return self._change("resume", work)


def packed_pause(at: int | None, by: str | None, why: str | None, until: int | None) -> bytes | str:
    """A pause as it is stored. One without an end is stored as programs know it that know of no ends."""
    return to_json([at, by, why] if until is None else [at, by, why, until])


def pause_in(packed: bytes | None) -> tuple[int | None, str | None, str | None, int | None]:
    """A pause as it was stored: since when, by whom, why, until when."""
    at, by, why, *until = from_json(packed) if packed else (None, None, None)
    return at, by, why, until[0] if until else None


def pairs(told: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """The fields and values of a hash as it was told."""
    return zip(told[::2], told[1::2], strict=True)


def _tallies_in(told: Sequence[bytes]) -> list[Tally]:
    found = []
    for field, number in pairs(told):
        if int(number):
            queue, task = names_of(field[1:])
            found.append(Tally(queue, task, STATES[chr(field[0])], int(number)))
    return sorted(found, key=lambda tally: (tally.queue, tally.task, tally.state))
