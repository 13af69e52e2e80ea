from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from packhorse.clock import Now, TurnedClock
from packhorse.conformance.builders import add
from packhorse.conformance.subject import Subject, subject_of
from packhorse.errors import BadURL, BadValue
from packhorse.storage import Storage
from packhorse.storage.memory import Memory


def test_a_class_is_its_own_neighbour_and_new_for_everyone():
    subject = subject_of("packhorse.storage.memory:Memory")

    with subject.fresh(TurnedClock()) as door, subject.fresh(TurnedClock()) as other:
        assert isinstance(door(), Memory)
        assert door() is door()
        assert door() is not other()


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

    with Subject("mine", managed if is_managed else plain).fresh(TurnedClock()) as door:
        here, there = door(), door()
        job = add(here)

        assert here is not there
        assert there.get(job.id) == job
        here.close()
        there.close()

    assert cleared == [address] * is_managed


def test_an_address_has_something_new_each_time(tmp_path: Path):
    subject = subject_of(f"sqlite:///{tmp_path}/{{}}.db")

    for _ in range(2):
        with subject.fresh(TurnedClock()) as door:
            storage = door()
            assert not storage.tallies()
            add(storage)
            storage.close()

    assert len(list(tmp_path.glob("check_*.db"))) == 2


def test_memory_needs_nothing_new_in_its_address():
    with subject_of("memory://").fresh(TurnedClock()) as door:
        assert door() is door()


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("sqlite:///jobs.db", "is one storage, and every check wants an empty one"),
        ("packhorse.storage", "names no storage"),
        ("packhorse.nowhere:Storage", "there is no module 'packhorse.nowhere'"),
        ("packhorse.storage:Nothing", "there is no Nothing in packhorse.storage"),
        ("packhorse.storage:Storage", r"lacks \d+ of the operations \(abort, acknowledge"),
        ("packhorse.storage:BATCH", "BATCH is int"),
    ],
)
def test_what_cannot_be_checked_is_refused(target: str, complaint: str):
    with pytest.raises(BadValue, match=complaint):
        subject_of(target)


def test_a_storage_that_cannot_be_had_is_told_of_before_the_checks():
    def broken(now: Now) -> Storage:
        raise ConnectionError("nobody listens")

    with pytest.raises(BadValue, match=r"mine gives no storage \(ConnectionError: nobody listens"):
        Subject("mine", broken).try_out(TurnedClock())
    with pytest.raises(BadValue, match="mine has answered int"):
        Subject("mine", lambda now: 7).try_out(TurnedClock())
    with pytest.raises(BadURL):
        subject_of("pigeon://{}").try_out(TurnedClock())
