"""The stacks that workers report."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.monitor.stacks import Stack, limit_stacks, stacks_of
from packhorse.storage.records import WorkerInfo


def answer_to(order: int) -> dict[str, Any]:
    return {"stacks": {"order": order, "age_s": 0.5, "items": [{"title": "slot 0", "text": "here", "job_id": "j1"}]}}


def test_a_stack_is_found_by_job():
    stacks = stacks_of(WorkerInfo("ann", report=answer_to(7)))

    assert stacks is not None
    assert stacks.of_job("j1") == Stack("slot 0", "here", "j1")
    assert stacks.of_job("j2") is None


@pytest.mark.parametrize("report", [{}, {"stacks": None}, {"stacks": {"order": 7}}, {"stacks": "of hay"}])
def test_a_report_of_another_shape_has_no_stacks(report: dict[str, Any]):
    assert stacks_of(WorkerInfo("ann", report=report)) is None


def test_stacks_beyond_the_limit_are_left_out_and_counted():
    items = [Stack(f"thread {number}", "x" * 100) for number in range(5)]

    assert limit_stacks(items) == items
    assert limit_stacks(items, most=330) == [*items[:3], Stack("2 more were left out", "")]
