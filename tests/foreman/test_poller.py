"""The poller: which threads get its result, and which are left alone. `test_foreman.py` and `test_orders.py` test that
a real foreman reacts."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from unittest.mock import Mock, create_autospec

import pytest

from packhorse.conformance.builders import WORKER, add, finish, in_state, join
from packhorse.core.clock import SECOND, ManualClock
from packhorse.core.errors import StorageUnavailable
from packhorse.core.event import ForemanAction, ForemanOrder
from packhorse.core.job import RUNNING
from packhorse.core.outcome import Completed
from packhorse.foreman.background import BackgroundLoop
from packhorse.foreman.chores.runner import ChoreRunner
from packhorse.foreman.heartbeat import ForemanRecord, Heartbeat
from packhorse.foreman.poller import Backlog, Orders, Poller
from packhorse.foreman.processes import WorkerGroup
from packhorse.foreman.scaling import Demand
from packhorse.storage.memory import Memory
from packhorse.storage.transfer import Move, Stage


def is_woken(loop: BackgroundLoop) -> bool:
    """Since one asked last."""
    woken = loop._woken.is_set()
    loop._woken.clear()
    return woken


class Watched:
    """A poller, its receivers, and the messages to the one worker."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.storage = Memory(self.clock)
        join(self.storage)
        self.told = Mock()
        worker = SimpleNamespace(id=WORKER, is_online=True, stop_job=self.told, report={})
        self.worker = worker
        workers = create_autospec(WorkerGroup, instance=True, members=[worker], serving=None)
        self.workers = workers
        workers.get.side_effect = {WORKER: worker}.get
        self.rings = Mock()
        self.record = ForemanRecord(self.storage, {})
        self.record.join()
        self.heartbeat = Heartbeat(
            self.storage, workers, self.record, heartbeat=60.0, lease=180.0, report=dict, wake=self.rings
        )
        self.heartbeat._beat_at = float("inf")  # between two beats
        self.backlog = Backlog(self.storage, workers, wake=self.rings)
        self.orders = Orders(self.storage, self.record, wake=self.rings)
        self.orders.step()
        self.backlog.step()
        self.chore_runner = create_autospec(ChoreRunner, instance=True)
        self.poller = Poller(
            self.storage, workers, self.record, self.heartbeat, self.backlog, self.orders, self.chore_runner
        )

    def woken(self) -> set[str]:
        """Who has been woken by one look."""
        self.poller.step()
        everybody = {"heartbeat": self.heartbeat, "backlog": self.backlog, "orders": self.orders}
        return {name for name, each in everybody.items() if is_woken(each.loop)}


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_it_polls_once_a_second_and_wakes_nothing_without_need(watched: Watched) -> None:
    watched.rings.reset_mock()

    assert watched.poller.step() == 1.0
    assert watched.woken() == set()
    watched.rings.assert_not_called()


def test_it_polls_less_often_while_idle_and_immediately_when_a_job_starts(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [watched.poller._busy_at]
    monkeypatch.setattr("packhorse.foreman.poller.boot_time", lambda: seconds[0])

    def pause_after(passed: float) -> float:
        seconds[0] += passed
        return watched.poller.step()

    assert [pause_after(1.0), pause_after(15.0)] == [1.0, 2.5]
    watched.worker.report = {"busy": 1}
    watched.poller.poll_often()
    assert is_woken(watched.poller.loop)
    assert pause_after(0.0) == 1.0
    watched.worker.report = {"busy": 0}
    assert [pause_after(16.0), pause_after(1.0)] == [2.5, 2.5]
    add(watched.storage)
    assert pause_after(1.0) == 1.0


def test_without_any_worker_it_looks_every_second(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse.foreman.poller.boot_time", lambda: watched.poller._busy_at + 60.0)
    watched.poller._workers.members = ()

    assert watched.poller.step() == 1.0


def test_jobs_in_line_wake_the_workers_that_have_room(watched: Watched) -> None:
    add(watched.storage)

    watched.backlog.step()

    watched.workers.wake_idle.assert_called_once()


def test_a_stop_is_handed_on_with_every_look_until_the_job_has_ended(watched: Watched) -> None:
    job = in_state(watched.storage, RUNNING)
    watched.storage.abort([job.id])

    for number in (1, 2):
        assert watched.woken() == {"heartbeat"}
        watched.heartbeat.step()
        assert watched.told.call_count == number
    assert watched.told.call_args.args[0].token.job_id == job.id

    finish(watched.storage, Completed(job.token))
    assert watched.woken() == set()
    watched.heartbeat.step()
    assert watched.told.call_count == 2


def test_the_backlog_is_read_while_jobs_are_in_line_and_nothing_waits_when_none_is(watched: Watched) -> None:
    job = add(watched.storage)
    assert watched.woken() == {"backlog"}
    watched.backlog.step()
    assert watched.backlog.demand == Demand(backlog=1)
    assert watched.woken() == {"backlog"}

    watched.storage.abort([job.id])
    watched.rings.reset_mock()

    assert watched.woken() == set()
    assert watched.backlog.demand == Demand()
    watched.rings.assert_called_once()  # there may be fewer workers now


def test_while_the_storage_is_away_the_demand_is_unknown(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as away:
        away.setattr(watched.storage, "poll", Mock(side_effect=StorageUnavailable("gone")))
        with pytest.raises(StorageUnavailable):
            watched.poller.step()
    assert watched.backlog.demand is None

    watched.poller.step()

    assert watched.backlog.demand == Demand()


def test_an_order_is_read_when_it_is_there(watched: Watched) -> None:
    watched.storage.order("another", ForemanOrder(ForemanAction.QUIET))
    assert watched.woken() == set()

    watched.storage.order(watched.record.id, ForemanOrder(ForemanAction.QUIET))

    assert watched.woken() == {"orders"}
    watched.orders.step()
    assert list(watched.orders.take()) == [ForemanOrder(ForemanAction.QUIET)]


def test_orders_are_looked_for_until_none_can_come_late(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.storage.order(watched.record.id, ForemanOrder(ForemanAction.QUIET))
    watched.orders.step()
    assert watched.woken() == {"orders"}  # another one may have been written before it and not be seen yet

    monkeypatch.setattr("packhorse.foreman.poller._LONGEST_WRITE", 0.0)
    for _ in range(2):
        watched.orders.step()

    assert watched.woken() == set()
    assert watched.orders.read_to > 0


def test_a_foreman_that_joins_again_has_its_orders_looked_for_by_the_new_id(watched: Watched) -> None:
    watched.record.change_id()
    watched.record.join()
    watched.storage.order(watched.record.id, ForemanOrder(ForemanAction.QUIET))

    assert watched.woken() == {"orders"}
    watched.orders.step()
    assert list(watched.orders.take()) == [ForemanOrder(ForemanAction.QUIET)]


def test_the_chores_hear_of_it(watched: Watched) -> None:
    add(watched.storage, delay=SECOND)

    watched.poller.step()

    assert watched.chore_runner.on_poll.call_args.args[0].due_in == SECOND


def test_a_moved_storage_is_logged_every_ten_minutes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seconds = [1_000.0]
    monkeypatch.setattr("packhorse.foreman.poller.boot_time", lambda: seconds[0])
    caplog.set_level(logging.WARNING, "packhorse")
    watched = Watched()

    def logged_within(minutes: float) -> list[str]:
        caplog.clear()
        for _ in range(round(minutes * 60)):
            seconds[0] += 1.0
            watched.poller.step()
        return caplog.messages

    assert logged_within(2) == []
    closing = Move("copy", Stage.CLOSING, "redis://elsewhere", 1)
    watched.storage.set_move(closing, expected=None)
    assert logged_within(2) == ["this storage is being moved to redis://elsewhere; no job starts meanwhile"]
    watched.storage.set_move(Move("copy", Stage.MOVED, "redis://elsewhere", 1), expected=closing)
    left = "no more jobs come from it: start workers on the new one"
    assert logged_within(9) == [f"this storage was moved to redis://elsewhere; {left}"]
    assert len(logged_within(10)) == 1


def test_workers_get_the_order_of_queues_when_it_changes(watched: Watched) -> None:
    told = watched.workers.broadcast

    watched.poller.step()
    watched.poller.step()
    watched.storage.announce([], order="created")
    watched.poller.step()
    watched.poller.step()

    assert [call.args[0] for call in told.mock_calls if call.args[0]["do"] == "order"] == [
        {"do": "order", "order": "turns"},
        {"do": "order", "order": "created"},
    ]
