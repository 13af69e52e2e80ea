"""ExitRecorder at the worst moment: most steps are made by the test itself, without a thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterator

import pytest

from packhorse.core.errors import StorageUnavailable
from packhorse.foreman.dead_workers import ExitRecorder
from packhorse.foreman.processes import WorkerExit
from packhorse.storage.memory import Memory
from packhorse.storage.records import WorkerInfo


class Slow(Memory):
    """A storage in which something else happens while it takes leave of somebody."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Iterator[object] = iter(())

    def leave(self, owner: str, *, why: str = "stopped", ran: Collection[str] = ()) -> None:
        next(self.meanwhile, None)
        super().leave(owner, why=why, ran=ran)


class JustFinished(deque[WorkerExit]):
    """A line of workers that the thread has found empty just before one of them comes in."""

    def __init__(self, exits: ExitRecorder) -> None:
        super().__init__()
        self._exits = exits

    def append(self, ended: WorkerExit) -> None:
        self._exits.step()
        super().append(ended)


@pytest.fixture
def storage() -> Slow:
    storage = Slow()
    for owner in ("ann", "bob"):
        storage.join(WorkerInfo(owner))
    return storage


@pytest.fixture
def exits(storage: Slow) -> ExitRecorder:
    return ExitRecorder(storage)


def test_who_comes_in_while_another_is_settled_is_settled_too(exits: ExitRecorder, storage: Slow) -> None:
    storage.meanwhile = (exits.put(ended("bob")) for _ in range(1))

    exits.put(ended("ann"))
    exits.step()

    assert exits.wait(0)
    assert storage.workers() == []


def test_nobody_is_settled_before_the_storage_knows(exits: ExitRecorder, storage: Slow) -> None:
    told = []
    storage.meanwhile = (told.append(exits.wait(0)) for _ in range(2))

    for owner in ("ann", "bob"):
        exits.put(ended(owner))
    told.append(exits.wait(0))
    exits.step()
    told.append(exits.wait(0))

    assert told == [False, False, False, True]


def test_one_that_comes_in_when_the_thread_has_just_finished_is_waited_for(exits: ExitRecorder, storage: Slow) -> None:
    is_under_way, may_end = threading.Event(), threading.Event()
    storage.meanwhile = ((is_under_way.set(), may_end.wait(60)) for _ in range(1))
    exits._ended = JustFinished(exits)

    exits.put(ended("ann"))
    exits.loop.start()
    assert is_under_way.wait(60)
    assert not exits.wait(0)
    may_end.set()

    assert exits.wait(60)
    assert [each.id for each in storage.workers()] == ["bob"]
    exits.loop.stop(60)


def test_one_that_cannot_be_settled_yet_does_not_keep_the_others(exits: ExitRecorder, storage: Slow) -> None:
    def fail() -> Iterator[object]:
        raise StorageUnavailable("away")
        yield

    storage.meanwhile = fail()
    for owner in ("ann", "bob"):
        exits.put(ended(owner))
    with pytest.raises(StorageUnavailable):
        exits.step()

    told: list[list[str]] = []
    storage.meanwhile = (told.append([each.id for each in storage.workers()]) for _ in range(2))
    exits.step()

    assert told == [["ann", "bob"], ["ann"]], "bob first"
    assert exits.wait(0)


def ended(owner: str) -> WorkerExit:
    return WorkerExit(owner, "stopped", died=False)
