"""Copying: what the steps do when something comes between them. The copy itself is tested on every storage, in
packhorse/conformance/test_transfer.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from packhorse.conformance.builders import WORKER, add, new_job, run, stored
from packhorse.core.clock import MINUTE, ManualClock
from packhorse.core.errors import CopyRefused, CopyTimeout
from packhorse.storage import Storage, open_storage
from packhorse.storage.copy_store import End, Progress, cancel, checksum, copy_storage
from packhorse.storage.records import Count, Filter, WorkerInfo
from packhorse.storage.transfer import Move, Section, Stage


class Stumbling:
    """A storage that raises instead of one of its calls, once."""

    def __init__(self, storage: Storage, call: str, number: int = 1) -> None:
        self._storage = storage
        self._call = call
        self._left = itertools.count(number, -1)

    def __getattr__(self, name: str) -> Any:
        if name == self._call and next(self._left) == 1:
            raise KeyboardInterrupt
        return getattr(self._storage, name)


@pytest.fixture
def old() -> Storage:
    storage = open_storage("memory://")
    add(storage, "one"), add(storage, "two")
    return storage


@pytest.fixture
def new() -> Storage:
    return open_storage("memory://")


def copy(old: Any, new: Any, **options: Any) -> dict[str, int]:
    return copy_storage(End(old, "old"), End(new, "new"), **{"patience": 0, **options})


@pytest.mark.parametrize(
    ("side", "call", "number"),
    [
        *(("old", "set_move", number) for number in (1, 2, 3)),
        *(("new", "set_move", number) for number in (1, 2)),
        *(("old", "dump", number) for number in (1, 9)),
        ("new", "load", 13),
        *(("new", "tallies", number) for number in (1, 2, 3)),
    ],
)
def test_between_any_two_steps_it_may_be_broken_off(
    old: Storage, new: Storage, side: str, call: str, number: int
) -> None:
    stumbling = Stumbling(old if side == "old" else new, call, number)

    with pytest.raises(KeyboardInterrupt):
        copy(stumbling, new) if side == "old" else copy(old, stumbling)
    assert not (is_open(old) and new.find(Filter()).jobs)
    copy(old, new)

    assert is_open(new)
    assert [job.id for job in new.find(Filter()).jobs] == ["two", "one"]
    assert stage_of(old) is Stage.MOVED


def is_open(storage: Storage) -> bool:
    return storage.move() is None


def stage_of(storage: Storage) -> Stage | None:
    mark = storage.move()
    return None if mark is None else mark.stage


def test_two_that_copy_at_once_do_not_mix(old: Storage, new: Storage) -> None:
    class Overtaken(Stumbling):
        def __getattr__(self, name: str) -> Any:
            if name == "load" and next(self._left) == 1:
                copy(old, new)
            return getattr(self._storage, name)

    with pytest.raises(CopyRefused, match="another process copies to new"):
        copy(old, Overtaken(new, "load", 3))

    assert is_open(new)
    assert len(new.find(Filter()).jobs) == 2


def test_the_order_of_queues_comes_along(old: Storage, new: Storage) -> None:
    old.announce([], order="created")

    copy(old, new)

    assert new.poll("", []).order == "created"


def test_an_old_storage_that_was_opened_meanwhile_makes_the_copy_void(old: Storage, new: Storage) -> None:
    class Cancelled(Stumbling):
        def __getattr__(self, name: str) -> Any:
            if name == "load" and next(self._left) == 1:
                cancel(End(old, "old"))
                old.enqueue([new_job()])
            return getattr(self._storage, name)

    with pytest.raises(CopyRefused):
        copy(old, Cancelled(new, "load", 12))

    assert is_open(old)
    assert stage_of(new) is Stage.FILLING


def test_the_jobs_of_a_silent_worker_are_taken_back(new: Storage) -> None:
    clock = ManualClock()
    old = open_storage("memory://", now=clock)
    held = run(old, add(old))
    clock.turn(MINUTE)

    copy(old, new, patience=30, lease=1)

    assert (stored(new, held.id).state, stored(new, held.id).halts) == ("queued", 1)


def test_a_worker_whose_own_lease_is_longer_is_not_taken_for_silent(new: Storage) -> None:
    clock = ManualClock()
    old = open_storage("memory://", now=clock)
    old.join(WorkerInfo(WORKER, info={"lease_s": 90.0}))
    held = run(old, add(old))
    clock.turn(MINUTE)

    with pytest.raises(CopyTimeout):
        copy(old, new, patience=0.3, lease=1)

    assert stored(old, held.id) == held


def test_it_tells_how_far_it_is(old: Storage, new: Storage) -> None:
    told: list[Progress] = []

    copy(old, new, report=told.append)

    assert [one.doing for one in told[:1] + told[-1:]] == ["copying tasks", "checking ticks"]
    assert all(one.done <= one.total for one in told)


@pytest.mark.parametrize("stage", Stage)
def test_what_is_in_another_move_is_left_alone(old: Storage, new: Storage, stage: Stage) -> None:
    new.set_move(Move("another", stage, "third", 1), expected=None)

    with pytest.raises(CopyRefused, match=r"new (is being filled from|was moved to|is being moved to) third"):
        copy(old, new)
    with pytest.raises(CopyRefused):
        copy(new, old)

    assert is_open(old)


def test_only_what_is_being_moved_can_be_cancelled(old: Storage) -> None:
    with pytest.raises(CopyRefused, match="old is not being moved"):
        cancel(End(old, "old"))


def test_a_checksum_does_not_mind_the_order_but_minds_every_field(old: Storage) -> None:
    one, two = old.dump(Section.JOBS).rows
    old.set_priority(["one"], 2)

    assert checksum([one, two]) == checksum([two, one])
    assert checksum(old.dump(Section.JOBS).rows) != checksum([one, two])
    assert checksum([one, one]) != checksum([one])


class Meddling:
    """A storage to which something happens just before the first call of a kind."""

    def __init__(self, storage: Storage, call: str, then: Callable[[], object]) -> None:
        self._storage, self._call, self._then = storage, call, then

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._storage, name)
        if name != self._call:
            return found
        self._call = ""

        def call(*args: Any, **kwargs: Any) -> Any:
            self._then()
            return found(*args, **kwargs)

        return call


def test_a_job_that_comes_into_the_empty_storage_at_the_last_moment_is_seen(old: Storage, new: Storage) -> None:
    meddling = Meddling(new, "set_move", lambda: add(new, "three"))

    with pytest.raises(CopyRefused, match="new is not empty: it has 1 job"):
        copy(old, meddling)

    assert is_open(old)
    assert is_open(new)


def test_a_copy_that_was_broken_off_before_that_was_seen_sees_it_when_it_goes_on(old: Storage, new: Storage) -> None:
    add(new, "three")
    new.set_move(Move("copy-1", Stage.FILLING, "old", 1), expected=None)

    with pytest.raises(CopyRefused, match="new is not empty"):
        copy(old, new)

    assert is_open(old)
    assert is_open(new)


def test_a_storage_that_has_got_nothing_of_a_copy_can_be_opened_again(new: Storage) -> None:
    mark = Move("copy-1", Stage.FILLING, "old", 1)
    new.set_move(mark, expected=None)

    assert cancel(End(new, "new")) == mark
    assert is_open(new)


def test_a_storage_that_has_got_a_part_of_a_copy_is_not_opened(new: Storage) -> None:
    new.set_move(Move("copy-1", Stage.FILLING, "old", 1, "jobs"), expected=None)

    with pytest.raises(CopyRefused, match="has a part of what is in old"):
        cancel(End(new, "new"))


def test_a_held_job_is_seen_even_if_it_was_not_counted(old: Storage, new: Storage) -> None:
    class Miscounting(Stumbling):
        def count(self, *_: object, **__: object) -> Count:
            return Count(0)

    run(old, stored(old, "one"))

    with pytest.raises(CopyRefused, match="1 job did not end in time"):
        copy(Miscounting(old, ""), new)
