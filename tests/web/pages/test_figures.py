"""The figures of the pages: how many attempts there were, and what came of them."""

from __future__ import annotations

import re

from starlette.testclient import TestClient

from packhorse.clock import DAY
from packhorse.storage.records import ScheduleInfo
from tests.cli.yard import Yard

HTML = {"accept": "text/html"}


def text_of(web: TestClient, path: str) -> str:
    """A page as somebody reads it."""
    return " ".join(re.sub(r"<[^>]*>", " ", web.get(path, headers=HTML).text).split())


def test_a_dead_worker_counts_a_halt_and_not_a_failure(web: TestClient, yard: Yard):
    yard.halt(yard.add(queue="mail"))
    yard.job("completed", queue="done")
    yard.join()

    overview, task = text_of(web, "/"), text_of(web, "/tasks/resize")

    assert "Failed attempts 0 0 % · 1 halted · 1 kind" in overview
    assert "In all 2 attempts processed, 0 failed, 1 halted · today" in overview
    assert "Runs 1 Completed 1 Failed 0 Halted 1" in task
    assert "resize resize 1 1 0 1 halted" in text_of(web, "/tasks")


def test_nothing_is_said_of_halts_where_there_are_none(web: TestClient, yard: Yard):
    yard.job("completed")

    assert "halted" not in text_of(web, "/").lower()
    assert "Halted" not in text_of(web, "/tasks/resize")


def test_a_schedule_that_is_late_says_so_in_the_list_and_above_it(web: TestClient, yard: Yard):
    now = yard.storage.now()
    yard.storage.put_schedules(
        [
            ScheduleInfo("overdue", "report", "0 3 * * *", next_at=now - 2 * DAY),
            ScheduleInfo("punctual", "report", "0 3 * * *", next_at=now + DAY),
        ]
    )

    text = text_of(web, "/schedules")

    assert text.count("late by 2 d") == 1
    assert "The schedule overdue is late." in text
    assert "The schedule punctual is late." not in text
