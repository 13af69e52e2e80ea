"""Settling at the worst moment: most steps are made by the test itself, without a thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterator

import pytest

from packhorse.core.errors import StorageUnavailable
from packhorse.foreman.crew import Ended
from packhorse.foreman.settling import Settling
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


class JustFinished(deque[Ended]):
    """A line of workers that the thread has found empty just before one of them comes in."""

    def __init__(self, settling: Settling) -> None:
        super().__init__()
        self._settling = settling

    def append(self, ended: Ended) -> None:
        self._settling.step()
        super().append(ended)


@pytest.fixture
def storage() -> Slow:
    storage = Slow()
    for owner in ("ann", "bob"):
        storage.join(WorkerInfo(owner))
    return storage


@pytest.fixture
def settling(storage: Slow) -> Settling:
    return Settling(storage)


def test_who_comes_in_while_another_is_settled_is_settled_too(settling: Settling, storage: Slow) -> None:
    storage.meanwhile = (settling.put(ended("bob")) for _ in range(1))

    settling.put(ended("ann"))
    settling.step()

    assert settling.wait(0)
    assert storage.workers() == []


def test_nobody_is_settled_before_the_storage_knows(settling: Settling, storage: Slow) -> None:
    told = []
    storage.meanwhile = (told.append(settling.wait(0)) for _ in range(2))

    for owner in ("ann", "bob"):
        settling.put(ended(owner))
    told.append(settling.wait(0))
    settling.step()
    told.append(settling.wait(0))

    assert told == [False, False, False, True]


def test_one_that_comes_in_when_the_thread_has_just_finished_is_waited_for(settling: Settling, storage: Slow) -> None:
    is_under_way, may_end = threading.Event(), threading.Event()
    storage.meanwhile = ((is_under_way.set(), may_end.wait(60)) for _ in range(1))
    settling._ended = JustFinished(settling)

    settling.put(ended("ann"))
    settling.duty.start()
    assert is_under_way.wait(60)
    assert not settling.wait(0)
    may_end.set()

    assert settling.wait(60)
    assert [each.id for each in storage.workers()] == ["bob"]
    settling.duty.stop(60)


def test_one_that_cannot_be_settled_yet_does_not_keep_the_others(settling: Settling, storage: Slow) -> None:
    def fail() -> Iterator[object]:
        raise StorageUnavailable("away")
        yield

    storage.meanwhile = fail()
    for owner in ("ann", "bob"):
        settling.put(ended(owner))
    with pytest.raises(StorageUnavailable):
        settling.step()

    told: list[list[str]] = []
    storage.meanwhile = (told.append([each.id for each in storage.workers()]) for _ in range(2))
    settling.step()

    assert told == [["ann", "bob"], ["ann"]], "bob first"
    assert settling.wait(0)


def ended(owner: str) -> Ended:
    return Ended(owner, "stopped", died=False)
