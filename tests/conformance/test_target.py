from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from packhorse.conformance.builders import add, new_jobs
from packhorse.conformance.sample_data import assert_same, read_everything
from packhorse.conformance.target import Target, target_of
from packhorse.core.clock import ManualClock, Now
from packhorse.core.errors import BadURL, BadValue
from packhorse.storage import Storage, open_storage
from packhorse.storage.memory import Memory
from packhorse.storage.records import ClientInfo, Filter, ScheduleInfo, TaskInfo, WorkerInfo


def test_a_class_is_its_own_neighbour_and_new_for_everyone():
    target = target_of("packhorse.storage.memory:Memory")

    with target.fresh(ManualClock()) as opener, target.fresh(ManualClock()) as other:
        assert isinstance(opener(), Memory)
        assert opener() is opener()
        assert opener() is not other()


@pytest.mark.parametrize("is_managed", [False, True])
def test_an_address_is_opened_by_everyone_who_asks(tmp_path: Path, is_managed: bool):
    address = f"sqlite:///{tmp_path / 'jobs.db'}"
    cleared = []

    def plain(now: Now) -> str:
        return address

    @contextmanager
    def managed(now: Now) -> Iterator[str]:
        yield address
        cleared.append(address)

    with Target("mine", managed if is_managed else plain).fresh(ManualClock()) as opener:
        here, there = opener(), opener()
        job = add(here)

        assert here is not there
        assert there.get(job.id) == job
        here.close()
        there.close()

    assert cleared == [address] * is_managed


def test_an_address_has_something_new_each_time(tmp_path: Path):
    target = target_of(f"sqlite:///{tmp_path}/{{}}.db")

    for _ in range(2):
        with target.fresh(ManualClock()) as opener:
            storage = opener()
            assert not storage.tallies()
            add(storage)
            storage.close()

    assert len(list(tmp_path.glob("check_*.db"))) == 2


def test_memory_needs_nothing_new_in_its_address():
    with target_of("memory://").fresh(ManualClock()) as opener:
        assert opener() is opener()


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("sqlite:///jobs.db", "is one storage, and every check wants an empty one"),
        ("packhorse.storage", "names no storage"),
        ("packhorse.nowhere:Storage", "there is no module 'packhorse.nowhere'"),
        ("packhorse.storage:Nothing", "there is no Nothing in packhorse.storage"),
        ("packhorse.storage:Storage", r"lacks \d+ of the operations \(abort"),
        ("packhorse.storage:BATCH", "BATCH is int"),
    ],
)
def test_what_cannot_be_checked_is_refused(target: str, complaint: str):
    with pytest.raises(BadValue, match=complaint):
        target_of(target)


def test_a_storage_that_cannot_be_had_is_told_of_before_the_checks():
    def broken(now: Now) -> Storage:
        raise ConnectionError("nobody listens")

    with pytest.raises(BadValue, match=r"mine gives no storage \(ConnectionError: nobody listens"):
        Target("mine", broken).try_out(ManualClock())
    with pytest.raises(BadValue, match="mine returned int"):
        Target("mine", lambda now: 7).try_out(ManualClock())
    with pytest.raises(BadURL):
        target_of("pigeon://{}").try_out(ManualClock())


# --- what is not to be touched --------------------------------------------------------------------------------------


def test_two_new_and_empty_ones_may_be_checked(tmp_path: Path):
    target_of("packhorse.storage.memory:Memory").try_out(ManualClock())
    target_of(f"sqlite:///{tmp_path}/{{}}.db").try_out(ManualClock())

    assert len(list(tmp_path.glob("check_*.db"))) == 2


@pytest.mark.parametrize(
    ("put", "found"),
    [
        (lambda storage: storage.enqueue(new_jobs(3)), "3 jobs, 1 queue, 1 task and events"),
        (lambda storage: storage.delete([add(storage).id]), "events"),
        (lambda storage: storage.pause("mail"), "1 queue"),
        (lambda storage: storage.join(WorkerInfo("ann")), "1 worker and events"),
        (lambda storage: storage.put_schedules([ScheduleInfo("s", "send", "* * * * *", next_at=1)]), "1 schedule"),
        (lambda storage: storage.announce([TaskInfo("send", "mail")]), "1 task"),
        (lambda storage: storage.join_client(ClientInfo("carl", "shop")), "1 client"),
    ],
    ids=["jobs", "events", "queues", "workers", "schedules", "tasks", "clients"],
)
def test_a_storage_that_is_not_empty_is_left_alone(tmp_path: Path, put: Callable[[Storage], object], found: str):
    clock = ManualClock()
    storage = open_storage(f"sqlite:///{tmp_path}/jobs.db", now=clock)
    put(storage)
    before = read_everything(storage)

    with pytest.raises(BadValue, match=rf"^mine is not empty: it has .*{found}.*; nothing was changed"):
        Target("mine", lambda now: f"sqlite:///{tmp_path}/jobs.db").try_out(clock)

    assert_same(read_everything(storage), before)
    storage.close()


def test_the_same_storage_twice_is_found_out_and_given_up(tmp_path: Path):
    clock = ManualClock()

    with pytest.raises(BadValue, match="mine gives the same storage again"):
        Target("mine", lambda now: f"sqlite:///{tmp_path}/jobs.db").try_out(clock)

    storage = open_storage(f"sqlite:///{tmp_path}/jobs.db", now=clock)
    assert storage.count(Filter()).number == 0
    storage.close()


def test_a_storage_that_is_cleared_in_between_is_new(tmp_path: Path):
    @contextmanager
    def cleared(now: Now) -> Iterator[str]:
        with TemporaryDirectory(dir=tmp_path) as place:
            (tmp_path / "here").symlink_to(place)
            yield f"sqlite:///{tmp_path}/here/jobs.db"
            (tmp_path / "here").unlink()

    Target("mine", cleared).try_out(ManualClock())

    assert list(tmp_path.iterdir()) == []


def test_who_cannot_say_whether_it_is_empty_is_not_checked():
    class Mute(Memory):
        def schedules(self) -> list[ScheduleInfo]:
            raise NotImplementedError("later")

    with pytest.raises(BadValue, match=r"mine gives no storage \(NotImplementedError: later"):
        Target("mine", Mute).try_out(ManualClock())
