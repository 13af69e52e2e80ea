"""What workers told of where they stand, as those read it who asked."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.core.event import ForemanAction, ForemanOrder, Kind, Subject
from packhorse.monitor.stacks import Stack, ask_for_stacks, have_answered, limit_stacks, stacks_of, workers_of
from packhorse.storage import open_storage
from packhorse.storage.records import EventFilter, WorkerInfo

BOSS = WorkerInfo("boss", Subject.FOREMAN)
ANN = WorkerInfo("ann", foreman="boss")
BOB = WorkerInfo("bob", foreman="another")


def told(order: int) -> dict[str, Any]:
    return {"stacks": {"order": order, "age_s": 0.5, "items": [{"title": "slot 0", "text": "here", "job_id": "j1"}]}}


def test_what_a_worker_told_is_found_by_job():
    stacks = stacks_of(WorkerInfo("ann", report=told(7)))

    assert stacks is not None
    assert stacks.of_job("j1") == Stack("slot 0", "here", "j1")
    assert stacks.of_job("j2") is None


@pytest.mark.parametrize("report", [{}, {"stacks": None}, {"stacks": {"order": 7}}, {"stacks": "of hay"}])
def test_what_cannot_be_understood_is_nothing(report: dict[str, Any]):
    assert stacks_of(WorkerInfo("ann", report=report)) is None


def test_an_answer_counts_if_it_is_one_to_this_order():
    assert have_answered([WorkerInfo("ann", report=told(7))], 7)
    assert not have_answered([WorkerInfo("ann", report=told(7))], 8)
    assert not have_answered([WorkerInfo("ann", report=told(7)), BOB], 7)


def test_a_foreman_is_asked_for_all_of_its_workers():
    assert workers_of(BOSS, [BOSS, ANN, BOB]) == [ANN]
    assert workers_of(BOB, [BOSS, ANN, BOB]) == [BOB]


def test_asking_leaves_an_order_with_the_foreman():
    storage = open_storage("memory://")
    storage.join(BOSS)
    storage.join(ANN)

    number = ask_for_stacks(storage, ANN, by="olga")

    (event,) = storage.events(EventFilter(kind=Kind.ORDERED, owner="boss"))
    assert (event.id, event.data) == (number, {"do": "stacks", "worker": "ann", "by": "olga"})
    assert ask_for_stacks(storage, BOB, by="olga") is None


def test_the_number_is_that_of_ones_own_order_though_another_comes_right_behind(monkeypatch: pytest.MonkeyPatch):
    storage = open_storage("memory://")
    storage.join(BOSS)
    order = storage.order

    def order_and_be_followed(*args: Any, **kwargs: Any) -> bool:
        return order(*args, **kwargs) and order("boss", ForemanOrder(ForemanAction.QUIET), by="another")

    monkeypatch.setattr(storage, "order", order_and_be_followed)
    number = ask_for_stacks(storage, BOSS, by="olga")

    mine, _ = storage.events(EventFilter(kind=Kind.ORDERED, owner="boss"))
    assert number == mine.id


def test_what_is_too_much_is_left_out_and_told():
    items = [Stack(f"thread {number}", "x" * 100) for number in range(5)]

    assert limit_stacks(items) == items
    assert limit_stacks(items, most=330) == [*items[:3], Stack("2 more were left out", "")]
