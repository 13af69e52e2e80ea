"""The shared status: what a worker was doing is still readable when it has died."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from packhorse.core.ids import new_id
from packhorse.worker import shared_status as shared_status_module
from packhorse.worker.shared_status import SharedStatus
from tests.children import PATIENCE, in_child


@pytest.fixture
def shared_status(tmp_path: Path) -> SharedStatus:
    return SharedStatus.create(tmp_path / "shared status", 4)


def test_a_new_board_is_empty_and_was_just_beaten(shared_status: SharedStatus):
    assert shared_status.slots == 4
    assert shared_status.running() == []
    assert 0 <= shared_status.beat_age() < PATIENCE


def test_a_job_is_on_the_board_from_its_beginning_to_its_end(shared_status: SharedStatus):
    ids = [new_id() for _ in range(4)]

    for slot, job_id in enumerate(ids):
        shared_status.begin(slot, job_id)
    everybody = shared_status.running()
    shared_status.clear(1)

    assert everybody == ids
    assert shared_status.running() == [ids[0], ids[2], ids[3]]


def test_the_next_job_of_a_slot_takes_the_place_of_the_last(shared_status: SharedStatus):
    shared_status.begin(2, "a-very-long-id-of-a-job")
    shared_status.begin(2, "short")

    assert shared_status.running() == ["short"]


@pytest.mark.parametrize("job_id", ["x" * 64, "x" * 300, "č" * 50])
def test_an_id_that_is_too_long_is_cut_and_harms_no_neighbour(shared_status: SharedStatus, job_id: str):
    shared_status.begin(0, "before")
    shared_status.begin(2, "after")
    shared_status.begin(1, job_id)

    first, cut, last = shared_status.running()
    assert (first, last) == ("before", "after")
    assert job_id.startswith(cut.rstrip("\ufffd"))


def test_what_a_slot_does_is_known_until_its_job_has_ended(shared_status: SharedStatus):
    shared_status.begin(0, "job-1", "send", slot=3)
    shared_status.begin(1, "job-2", "send", slot=1, at=time.monotonic())
    shared_status.end(0)

    ended, running = shared_status.begun()

    assert (ended.job_id, ended.has_ended) == ("job-1", True)
    assert (running.job_id, running.task, running.slot, running.has_ended) == ("job-2", "send", 1, False)
    assert 0 <= running.ago < PATIENCE * 1e6


def test_both_sides_see_the_same_entries(shared_status: SharedStatus):
    other = SharedStatus(shared_status.path)

    shared_status.begin(0, "job-1")

    assert other.running() == ["job-1"]


def test_what_stands_on_it_survives_the_death_of_the_writer(shared_status: SharedStatus):
    def work_and_die() -> None:
        mine = SharedStatus(shared_status.path)
        mine.begin(1, "job-1")
        os._exit(9)

    with pytest.raises(AssertionError, match="ended without a value"):
        in_child(work_and_die)

    assert shared_status.running() == ["job-1"]


def test_a_beat_grows_old_and_a_new_one_is_young(shared_status: SharedStatus, monkeypatch: pytest.MonkeyPatch):
    now = 1_000 * 10**9
    monkeypatch.setattr(shared_status_module, "_boot_time", lambda: now)
    shared_status.beat()

    now += 7 * 10**9
    age = shared_status.beat_age()
    shared_status.beat()

    assert age == 7.0
    assert shared_status.beat_age() == 0.0


def test_a_beat_of_the_future_has_no_age(shared_status: SharedStatus, monkeypatch: pytest.MonkeyPatch):
    shared_status.beat()
    monkeypatch.setattr(shared_status_module, "_boot_time", lambda: 0)

    assert shared_status.beat_age() == 0.0


def test_a_look_at_time_limits_grows_old_and_the_other_side_sees_it(
    shared_status: SharedStatus, monkeypatch: pytest.MonkeyPatch
):
    now = 1_000 * 10**9
    monkeypatch.setattr("time.monotonic_ns", lambda: now)
    worker, beaten = SharedStatus(shared_status.path), shared_status.beat_age()
    worker.note_look()

    now += 7 * 10**9
    age = shared_status.look_age()
    worker.note_look()

    assert (age, shared_status.look_age()) == (7.0, 0.0)
    assert shared_status.beat_age() >= beaten, "that is no heartbeat"


def test_a_closed_board_lets_go_of_its_file(shared_status: SharedStatus):
    shared_status.close()
    shared_status.path.unlink()

    with pytest.raises(ValueError, match="closed"):
        shared_status.running()


def test_to_beat_for_a_board_that_another_thread_has_just_closed_does_nothing(shared_status: SharedStatus):
    shared_status.close()

    shared_status.beat()
