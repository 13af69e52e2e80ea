"""The names of queues and tasks, what is counted of them, and pausing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from packhorse.core.event import Kind, Subject
from packhorse.core.job import State
from packhorse.storage.broken_records import facts_in
from packhorse.storage.records import PAUSE_IS_OVER, QueueInfo, Tally, TaskInfo
from packhorse.storage.redis.keeper import Keeper
from packhorse.storage.redis.keys import STATES, names_of
from packhorse.storage.redis.rows import to_json
from packhorse.storage.redis.transaction import Transaction

PAUSED: Final = 1 << 13
"""The bit of a queue's entry in `open` that says so."""


class Queues(Keeper):
    def tallies(self) -> list[Tally]:
        (told,) = self._server.send("tallies", ("HGETALL", self._keys.tally))
        return tallies_in(told)

    def queues(self) -> list[QueueInfo]:
        names, told, waits, ends = self._server.run("queues")
        counts: dict[str, dict[State, int]] = {}
        for tally in tallies_in(told):
            numbers = counts.setdefault(tally.queue, {})
            numbers[tally.state] = numbers.get(tally.state, 0) + tally.number
        oldest = {queue: int(since) for queue, since in pairs(waits)}
        end_of = dict(pairs(ends))
        found = []
        for name, packed in sorted(pairs(names)):
            pause, of_states = pause_in(packed, end_of.get(name)), counts.get(name.decode(), {})
            found.append(QueueInfo(name.decode(), of_states, *pause, oldest.get(name)))
        return found

    def tasks(self) -> list[TaskInfo]:
        (told,) = self._server.send("tasks", ("HGETALL", self._keys.tasks))
        return [_task_in(name.decode(), packed) for name, packed in sorted(pairs(told))]

    def announce(self, tasks: Sequence[TaskInfo], *, order: str | None = None) -> None:
        def work(tx: Transaction) -> None:
            if order is not None:
                tx.do("SET", self._keys.order, order)
            for task in tasks:
                tx.do("HSET", self._keys.tasks, task.name, to_json([task.queue, task.options, tx.now]))
                tx.do("HSETNX", self._keys.queues, task.queue, "")

        self._change("announce", work)

    def pause(self, queue: str, *, by: str | None = None, why: str | None = None, duration: int | None = None) -> bool:
        def work(tx: Transaction) -> bool:
            before = self._pause_of(tx, queue)
            if before.stays(duration, tx.now):
                return False
            until = None if duration is None else tx.now + duration
            tx.do("HSET", self._keys.queues, queue, to_json([tx.now, by, why]))
            if not before.is_paused:
                tx.do("HINCRBY", self._keys.open, queue, PAUSED)
            self._put_end(tx, queue, tx.now, until)
            tx.record_about(Subject.QUEUE, Kind.PAUSED, queue=queue, by=by, why=why, until=until)
            return True

        return self._change("pause", work)

    def resume(self, queue: str, *, by: str | None = None, over: bool = False) -> bool:
        def work(tx: Transaction) -> bool:
            info = self._pause_of(tx, queue)
            if not info.is_paused or (over and not info.is_over(tx.now)):
                return False
            tx.do("HSET", self._keys.queues, queue, "")
            tx.do("HINCRBY", self._keys.open, queue, -PAUSED)
            self._put_end(tx, queue, None, None)
            why = PAUSE_IS_OVER if over else None
            tx.record_about(Subject.QUEUE, Kind.RESUMED, queue=queue, by=by, why=why)
            tx.wake()
            return True

        return self._change("resume", work)

    def _pause_of(self, tx: Transaction, queue: str) -> QueueInfo:
        packed, end = tx.field(self._keys.queues, queue), tx.field(self._keys.pause_ends, queue)
        return QueueInfo(queue, {}, *pause_in(packed, end))

    def _put_end(self, tx: Transaction, queue: str, at: int | None, until: int | None) -> None:
        """When the pause ends that began at `at`. Not a part of it: programs that know of no ends must be able to read
        it, and do not take the end away with it."""
        if until is None:
            tx.do("HDEL", self._keys.pause_ends, queue)
        else:
            tx.do("HSET", self._keys.pause_ends, queue, f"{at} {until}")


def _task_in(name: str, packed: bytes) -> TaskInfo:
    try:
        return TaskInfo(name, *msgspec.json.decode(packed, type=tuple[str, dict[str, Any], int | None]))
    except msgspec.MsgspecError:  # somebody has garbled it
        return TaskInfo(name, name, facts_in(packed))


def pause_in(packed: bytes | None, end: bytes | None) -> tuple[int | None, str | None, str | None, int | None]:
    """A pause as it was stored: since when, by whom, why, until when. An end may be that of an earlier one."""
    if not packed:
        return None, None, None, None
    try:
        at, by, why = msgspec.json.decode(packed, type=tuple[int, str | None, str | None])
        began, until = map(int, end.split()) if end else (None, None)
    except (msgspec.MsgspecError, ValueError):  # somebody has garbled it: paused it is, and can be resumed
        return 0, None, None, None
    return at, by, why, until if began == at else None


def pairs(told: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """The fields and values of a hash as it was told."""
    return zip(told[::2], told[1::2], strict=True)


def tallies_in(told: Sequence[bytes], ending: bytes = b"") -> list[Tally]:
    """The tallies as they were told, or only those of tasks that end so."""
    found = []
    for field, number in pairs(told):
        if field.endswith(ending) and int(number):
            try:
                queue, task = names_of(field[1:])
                found.append(Tally(queue, task, STATES[chr(field[0])], int(number)))
            except (ValueError, LookupError):  # of a job whose record cannot be read
                continue
    return sorted(found, key=lambda tally: (tally.queue, tally.task, tally.state))
