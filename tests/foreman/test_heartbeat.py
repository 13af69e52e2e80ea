"""The heartbeat's word on rescuing; how it beats is seen with real foremen in `test_foreman.py`."""

from __future__ import annotations

import json
from unittest.mock import create_autospec

import pytest

from packhorse.conformance.builders import add, join
from packhorse.core.clock import SECOND, ManualClock
from packhorse.foreman.heartbeat import ForemanRecord, Heartbeat, skew_of
from packhorse.foreman.processes import WorkerGroup
from packhorse.foreman.worker_handle import WorkerHandle
from packhorse.storage.memory import Memory
from packhorse.storage.records import HeartbeatReply, PollResult


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


NOW = 1_000.0
"""Seconds since the machine was started. They stand still: a test that is held up on a busy machine would else look as
if the storage's clock had been set back."""


@pytest.fixture
def heartbeat(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Heartbeat:
    """One whose beats were accepted for longer than a lease."""
    monkeypatch.setattr("packhorse.foreman.heartbeat.boot_time", lambda: NOW)
    heartbeat = Heartbeat(
        Memory(clock),
        create_autospec(WorkerGroup, instance=True),
        create_autospec(ForemanRecord, instance=True),
        heartbeat=60.0,
        lease=180.0,
        report=dict,
        wake=lambda: None,
    )
    for ago in (180.0, 120.0, 60.0, 0.0):
        heartbeat.guard.accepted(NOW - ago, NOW - ago, clock() / SECOND - ago)
    return heartbeat


def test_after_a_lease_of_beats_it_may_rescue_by_the_time_that_it_has_looked_at(
    heartbeat: Heartbeat, clock: ManualClock
) -> None:
    assert heartbeat.trusted_time() == clock()


@pytest.mark.parametrize("step", [3_600.0, -3_600.0])
def test_a_clock_that_was_set_since_the_last_beat_forbids_it(
    heartbeat: Heartbeat, clock: ManualClock, step: float
) -> None:
    clock.turn(step)

    assert heartbeat.trusted_time() is None


def test_the_time_that_the_lookout_has_seen_is_as_good(
    heartbeat: Heartbeat, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = clock()
    heartbeat.on_poll(PollResult(now), NOW, NOW)
    monkeypatch.setattr(heartbeat._storage, "now", lambda: pytest.fail("the clock need not be read"))

    assert heartbeat.trusted_time() == now


def test_by_a_clock_that_was_set_before_the_poll_no_worker_is_silent(heartbeat: Heartbeat, clock: ManualClock) -> None:
    clock.turn(3_600)
    heartbeat.on_poll(PollResult(clock()), NOW, NOW)

    assert heartbeat.trusted_time() is None


def test_what_was_seen_a_while_ago_is_asked_for_again(heartbeat: Heartbeat, clock: ManualClock) -> None:
    heartbeat.on_poll(PollResult(clock() - 10 * SECOND), NOW - 10.0, NOW - 10.0)

    assert heartbeat.trusted_time() == clock()


def test_without_the_right_to_rescue_the_clock_is_not_read(heartbeat: Heartbeat) -> None:
    heartbeat.guard.interrupted()

    assert heartbeat.trusted_time() is None


@pytest.mark.parametrize(
    ("wall", "took", "now", "skew"),
    [(110.0, 0.0, 100.0, 10.0), (100.0, 4.0, 100.0, 0.0), (90.0, 2.0, 100.0, -11.0), (101.0, 2.0, 100.0, 0.0)],
)
def test_what_may_lie_in_the_way_to_the_storage_is_no_skew(wall: float, took: float, now: float, skew: float):
    assert skew_of(wall, took, now) == skew


# --- joining --------------------------------------------------------------------------------------------------------


def test_a_foreman_announces_before_it_can_be_taken_for_dead(clock: ManualClock) -> None:
    storage, known = Memory(clock), []
    workers, record = create_autospec(WorkerGroup, instance=True, members=[]), ForemanRecord(storage, {})

    def announce() -> None:
        clock.turn(600.0)
        known.append([worker.id for worker in storage.workers()])

    heartbeat = Heartbeat(
        storage, workers, record, heartbeat=5.0, lease=15.0, report=dict, wake=lambda: None, announce=announce
    )
    heartbeat.step()

    assert known == [[]]
    assert [worker.id for worker in storage.workers()] == [record.id]


# --- one worker's trouble ---------------------------------------------------------------------------------------------


class Troubled:
    """A heartbeat for two workers, the first of which makes trouble."""

    def __init__(self, clock: ManualClock) -> None:
        self.storage = Memory(clock)
        self.members = [
            create_autospec(WorkerHandle, instance=True, id=name, pid=number, is_online=True)
            for number, name in enumerate(("ann", "bob"))
        ]
        for worker in self.members:
            join(self.storage, worker.id)
            worker.is_stopped.return_value = False
            worker.stored_report.return_value = {}
        workers = create_autospec(WorkerGroup, instance=True, members=self.members)
        workers.get.side_effect = {worker.id: worker for worker in self.members}.get
        record = ForemanRecord(self.storage, {})
        record.join()
        self.heartbeat = Heartbeat(
            self.storage, workers, record, heartbeat=60.0, lease=180.0, report=dict, wake=lambda: None
        )


@pytest.mark.parametrize("trouble", ["stored_report", "beat"])
def test_the_trouble_of_one_worker_costs_no_other_its_beat(clock: ManualClock, trouble: str) -> None:
    troubled = Troubled(clock)
    first, second = troubled.members
    getattr(first, trouble).side_effect = TypeError("a closed map")
    before = clock()
    clock.turn(5.0)

    troubled.heartbeat.step()

    second.beat.assert_called_once()
    assert {worker.id for worker in troubled.storage.workers() if worker.beat_at > before} >= {"ann", "bob"}


def test_a_stop_is_forwarded_though_another_worker_fails(clock: ManualClock) -> None:
    troubled = Troubled(clock)
    first, second = troubled.members
    for worker in troubled.members:
        job = add(troubled.storage)
        taken = troubled.storage.reserve(worker.id, {job.queue: 1}, 1)
        troubled.storage.start([one.token for one in taken])
        troubled.storage.abort([job.id])
    first.stop_job.side_effect = TypeError("odd")

    troubled.heartbeat.step()

    second.stop_job.assert_called_once()


def test_rejected_reports_cost_no_worker_its_heartbeat(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    troubled = Troubled(clock)
    troubled.members[0].stored_report.return_value = {"odd": object()}
    real = troubled.storage.heartbeat

    def beat(reports: dict[str, dict[str, object]]) -> HeartbeatReply:
        json.dumps(reports)  # as every other storage does
        return real(reports)

    monkeypatch.setattr(troubled.storage, "heartbeat", beat)

    troubled.heartbeat.step()

    assert [worker.beat.call_count for worker in troubled.members] == [1, 1]
