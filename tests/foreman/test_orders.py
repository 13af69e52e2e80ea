"""What operators want of a foreman, wherever it runs: left in the storage, followed within a second or two."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from packhorse.core.clock import SECOND
from packhorse.core.event import ForemanAction, ForemanOrder, Kind
from packhorse.core.settings import Settings
from packhorse.foreman import Foreman, process_tree
from packhorse.foreman.heartbeat import ForemanRecord
from packhorse.foreman.poller import Orders
from packhorse.foreman.processes import Launch
from packhorse.monitor.actions import have_answered
from packhorse.monitor.stacks import stacks_of
from packhorse.storage.contract import Storage
from packhorse.storage.records import EventFilter
from tests.children import until
from tests.foreman.watching import RunningForeman, Start, add, state_of
from tests.unchecked import unchecked


def give(foreman: RunningForeman, order: ForemanOrder) -> int:
    """Leave the order; its number."""
    record = foreman.record()
    assert record is not None
    assert foreman.storage.order(record.id, order, by="olga")
    return foreman.storage.events(EventFilter(kind=Kind.ORDERED), limit=1, newest_first=True)[0].id


def is_followed(foreman: RunningForeman, number: int) -> None:
    until(lambda: (foreman.report().get("order") or 0) >= number, "the order was followed")


def test_workers_are_scaled_up_and_down_again(start: Start) -> None:
    foreman = start(max_workers=1)

    is_followed(foreman, give(foreman, ForemanOrder(ForemanAction.SCALE, least=3, most=3)))
    until(lambda: len(foreman.workers()) == 3, "three workers are there")
    assert (foreman.report()["min"], foreman.report()["max"]) == (3, 3)

    is_followed(foreman, give(foreman, ForemanOrder(ForemanAction.SCALE, least=1, most=1)))
    until(lambda: len(foreman.workers()) == 1, "two have gone")
    assert foreman.report()["deaths"] == 0


def test_workers_give_way_to_fresh_ones_with_other_slots(start: Start) -> None:
    foreman = start()
    until(lambda: slots(foreman) == [2], "the first worker has said how many it has")

    is_followed(foreman, give(foreman, ForemanOrder(ForemanAction.SCALE, least=1, most=1, slots=5)))

    until(lambda: slots(foreman) == [5], "a fresh one has taken its place")
    assert (foreman.report()["slots"], foreman.report()["deaths"]) == (5, 0)


def slots(foreman: RunningForeman) -> list[int | None]:
    """How many each worker says that it has."""
    return [worker.report.get("slots") for worker in foreman.workers()]


def test_quiet_workers_take_no_more_jobs_and_new_ones_do(start: Start, storage: Storage) -> None:
    foreman = start()

    is_followed(foreman, give(foreman, ForemanOrder(ForemanAction.QUIET)))
    assert foreman.report()["state"] == "quiet"
    until(lambda: not foreman.takes_jobs(), "the worker has heard it")
    add(storage, 1)
    until(lambda: foreman.report().get("backlog") == 1, "the job is seen to wait")
    before = foreman.pids()

    is_followed(foreman, give(foreman, ForemanOrder(ForemanAction.RESTART)))

    until(lambda: state_of(storage, 1) == "completed", "a fresh worker has run it")
    until(lambda: before.isdisjoint(foreman.pids()), "the old one has gone")


def test_a_foreman_that_is_ordered_to_stop_lets_its_jobs_finish(start: Start, storage: Storage) -> None:
    foreman = start()
    add(storage, 1, "hold")
    until(lambda: state_of(storage, 1) == "running", "it runs")

    give(foreman, ForemanOrder(ForemanAction.STOP))
    until(lambda: foreman.report().get("state") == "stopping", "it stops")
    assert state_of(storage, 1) == "running"

    give(foreman, ForemanOrder(ForemanAction.STOP, now=True))
    until(foreman.is_over, "it has ended")
    assert state_of(storage, 1) == "queued"


def test_one_worker_is_stopped_and_not_replaced(start: Start) -> None:
    foreman = start(2, min_workers=2, max_workers=2)
    first, second = foreman.workers()

    is_followed(foreman, give(foreman, ForemanOrder(ForemanAction.STOP, worker=first.id)))

    until(lambda: not process_tree.is_alive(first.pid), "it has ended")
    until(lambda: foreman.pids() == {second.pid}, "the other continues")
    assert foreman.report()["wanted"] == 1


def test_one_worker_is_restarted(start: Start) -> None:
    foreman = start(2, min_workers=2, max_workers=2)
    first, second = foreman.workers()

    is_followed(foreman, give(foreman, ForemanOrder(ForemanAction.RESTART, worker=first.id)))

    until(lambda: first.pid not in foreman.pids() and len(foreman.pids()) == 2, "another has taken its place")
    assert second.pid in foreman.pids()


def test_one_quiet_worker_keeps_its_job_and_another_takes_its_place(start: Start, storage: Storage) -> None:
    foreman = start(idle_stop=60 * SECOND)
    add(storage, 1, "hold")
    until(lambda: state_of(storage, 1) == "running", "it runs")
    (worker,) = foreman.workers()

    is_followed(foreman, give(foreman, ForemanOrder(ForemanAction.QUIET, worker=worker.id)))
    until(lambda: len(foreman.workers()) == 2, "another has come")
    add(storage, 2)

    until(lambda: state_of(storage, 2) == "completed", "the other has run it")
    assert state_of(storage, 1) == "running"


@pytest.mark.parametrize("of_one", [True, False], ids=["one worker", "the crew"])
def test_a_worker_that_is_asked_where_it_stands_is_heard(start: Start, storage: Storage, of_one: bool) -> None:
    foreman = start()
    add(storage, 1, "hold")
    until(lambda: state_of(storage, 1) == "running", "it runs")
    (worker,) = foreman.workers()

    number = give(foreman, ForemanOrder(ForemanAction.STACKS, worker=worker.id if of_one else None))
    until(lambda: have_answered(foreman.workers(), number), "the answer is in the storage")

    (asked,) = foreman.workers()
    told = stacks_of(asked)
    assert told is not None
    assert [(stack.title, stack.text) for stack in told.items] == [("slot 0: hold", "here")]
    assert state_of(storage, 1) == "running"


def test_an_unknown_order_is_skipped(start: Start, storage: Storage) -> None:
    foreman = start()
    record = foreman.record()
    assert record is not None

    unchecked(storage, "order")(record.id, ForemanOrder("dance"), by="olga")  # type: ignore[arg-type]
    is_followed(foreman, give(foreman, ForemanOrder(ForemanAction.SCALE, least=1, most=2)))

    assert foreman.report()["max"] == 2


def test_an_order_counts_as_followed_when_it_was_and_not_before(storage: Storage) -> None:
    record = ForemanRecord(storage, {})
    record.join()
    orders = Orders(storage, record, wake=lambda: None)
    storage.order(record.id, ForemanOrder(ForemanAction.SCALE, least=1, most=2))
    storage.order(record.id, ForemanOrder(ForemanAction.QUIET))
    first, second = (event.id for event in storage.events(EventFilter(kind=Kind.ORDERED)))
    orders.step()

    seen = [(order.do, orders.taken, orders.followed) for order in orders.take()]

    assert seen == [(ForemanAction.SCALE, first, None), (ForemanAction.QUIET, second, first)]
    assert orders.followed == second


def test_a_report_that_tells_of_an_order_tells_of_what_it_has_changed(
    storage: Storage, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(url=url, max_workers=1)
    foreman = Foreman(Launch.of("app:app", settings), settings, storage)
    may_rescue = foreman.threads.heartbeat.may_rescue

    def overtaken() -> bool:  # the main loop follows an order while another thread makes a report
        foreman.scaler.limits = replace(foreman.scaler.limits, most=4)
        foreman.threads.orders.followed = 7
        return may_rescue()

    monkeypatch.setattr(foreman.threads.heartbeat, "may_rescue", overtaken)
    with foreman._signals:
        first, second = foreman.report(), foreman.report()
    foreman._selector.close()

    assert [(report["order"], report["max"]) for report in (first, second)] == [(None, 1), (7, 4)]


def test_an_order_that_comes_to_be_seen_late_is_followed_and_none_twice(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = ForemanRecord(storage, {})
    record.join()
    orders = Orders(storage, record, wake=lambda: None)
    for most in range(250):
        storage.order(record.id, ForemanOrder(ForemanAction.SCALE, least=1, most=most))
    late = storage.events(EventFilter(kind=Kind.ORDERED), limit=3)[2].id
    real = storage.events

    with monkeypatch.context() as while_it_is_written:
        while_it_is_written.setattr(
            storage, "events", lambda *where, **how: [event for event in real(*where, **how) if event.id != late]
        )
        orders.step()
    assert [order.most for order in orders.take()] == [0, 1, *range(3, 250)]
    newest = orders.followed
    orders.step()

    assert [order.most for order in orders.take()] == [2]
    assert orders.followed == newest
    monkeypatch.setattr("packhorse.foreman.poller._LONGEST_WRITE", 0.0)
    orders.step()
    orders.step()
    assert list(orders.take()) == []
