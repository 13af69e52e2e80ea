"""ExitRecorder at the worst moment: most steps are made by the test itself, without a thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterator

import pytest

from packhorse.conformance.builders import add, run, stored
from packhorse.core.errors import StorageUnavailable
from packhorse.core.event import Subject
from packhorse.foreman.dead_workers import PROCESS_SPACE, ExitRecorder, find_dead, process_space, rescue_dead_processes
from packhorse.foreman.processes import WorkerExit
from packhorse.storage.memory import Memory
from packhorse.storage.records import WorkerInfo


class Slow(Memory):
    """A storage in which something else happens while a worker leaves."""

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


def test_an_exit_stays_until_the_storage_has_it(exits: ExitRecorder, storage: Slow) -> None:
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


# --- processes that died before this foreman started ------------------------------------------------------------------

ALIVE, GONE = 1, 2


def foreman(pid: int, space: str = "here", host: str = "stable") -> WorkerInfo:
    return WorkerInfo("boss", subject=Subject.FOREMAN, host=host, pid=pid, info={PROCESS_SPACE: space})


def worker(pid: int, host: str = "stable") -> WorkerInfo:
    return WorkerInfo("ann", foreman="boss", host=host, pid=pid)


def dead(*workers: WorkerInfo) -> list[str]:
    found = find_dead(workers, host="stable", space="here", is_alive=lambda pid: pid == ALIVE)
    return [each.id for each in found]


def test_a_process_that_was_here_and_is_gone_is_dead() -> None:
    assert dead(foreman(GONE), worker(GONE)) == ["boss", "ann"]
    assert dead(worker(GONE)) == ["ann"]


def test_a_living_process_is_left_alone() -> None:
    assert dead(foreman(GONE), worker(ALIVE)) == ["boss"]


def test_a_worker_whose_foreman_lives_is_left_to_it() -> None:
    assert dead(foreman(ALIVE), worker(GONE)) == []


def test_another_machine_is_left_alone() -> None:
    assert dead(foreman(GONE, host="meadow"), worker(GONE, host="meadow")) == []


def test_a_container_of_the_same_name_is_left_alone() -> None:
    assert dead(foreman(GONE, space="another container"), worker(GONE)) == []


def test_a_foreign_worker_of_a_container_of_the_same_name_keeps_its_job() -> None:
    storage = Memory()
    storage.join(WorkerInfo("ruby-1", host="stable", pid=2**22 + 1))  # no process here has this number
    job = run(storage, add(storage), "ruby-1")

    assert rescue_dead_processes(storage, "stable") == 0
    assert stored(storage, job.id).owner == "ruby-1"


def test_a_foreign_worker_that_tells_where_it_lives_is_dead_when_it_is_gone() -> None:
    assert dead(WorkerInfo("ruby-1", host="stable", pid=GONE, info={PROCESS_SPACE: "here"})) == ["ruby-1"]
    assert dead(WorkerInfo("ruby-1", host="stable", pid=GONE, info={PROCESS_SPACE: "elsewhere"})) == []


def test_a_record_without_a_process_number_is_left_alone() -> None:
    assert dead(WorkerInfo("remote", host="stable")) == []


def test_a_process_knows_where_it_lives() -> None:
    assert process_space() == process_space()
