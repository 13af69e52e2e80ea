from __future__ import annotations

from packhorse.conformance.builders import add, run, stored
from packhorse.core.event import Subject
from packhorse.foreman.dead_workers import PROCESS_SPACE, find_dead, process_space, rescue_dead_processes
from packhorse.storage.memory import Memory
from packhorse.storage.records import WorkerInfo

ALIVE, GONE = 1, 2


def foreman(pid: int, space: str = "here", host: str = "stable") -> WorkerInfo:
    return WorkerInfo("boss", subject=Subject.FOREMAN, host=host, pid=pid, info={PROCESS_SPACE: space})


def worker(pid: int, host: str = "stable") -> WorkerInfo:
    return WorkerInfo("ann", foreman="boss", host=host, pid=pid)


def dead(*workers: WorkerInfo) -> list[str]:
    found = find_dead(workers, host="stable", space="here", is_alive=lambda pid: pid == ALIVE)
    return [each.id for each in found]


def test_whoever_was_here_and_is_gone_is_dead() -> None:
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
