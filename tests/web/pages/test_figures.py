"""The figures of the pages: how many attempts there were, and what came of them."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from packhorse.core.clock import DAY
from packhorse.core.ids import new_id
from packhorse.core.job import NewJob
from packhorse.core.outcome import Completed, Failed
from packhorse.storage.records import ScheduleInfo, Tick
from packhorse.web.pages import tasks
from tests.cli.yard import FAILURE, FOREMAN, WORKER, Yard

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


def test_a_schedule_shows_what_became_of_its_jobs_and_not_only_that_they_were_enqueued(web: TestClient, yard: Yard):
    now = yard.storage.now()
    yard.storage.put_schedules([ScheduleInfo("plan", "resize", "0 3 * * *", next_at=now - 3)])
    for slot, number in enumerate((1, 1, 0), start=now - 3):
        new = [NewJob(id=new_id(), task="resize", queue="resize", max_attempts=1, schedule="plan")] * number
        tick = Tick("plan", slot, "enqueued" if new else "skipped", slot, new[0].id if new else None)
        yard.storage.tick("plan", slot, slot + 1, new, [tick])
    completed, dead = yard.storage.ticks("plan")[:0:-1]
    for tick, outcome in ((completed, Completed), (dead, Failed)):
        job = yard.start(yard.get(tick.job_id or ""))
        yard.finish(outcome(job.token, "1" if outcome is Completed else FAILURE))

    shown = web.get("/schedules", headers=HTML).text
    yard.storage.delete([completed.job_id or ""])
    later = web.get("/schedules", headers=HTML).text

    assert re.findall(r'<(?:a|span) class="(\w+)"[^>]* title="[^"]* UTC: (\w+)', shown) == [
        ("good", "completed"),
        ("bad", "dead"),
        ("wait", "skipped"),
    ]
    assert re.findall(r'class="(\w+)"[^>]* title="[^"]* UTC: its job is no longer kept"', later) == ["delay"]


def test_a_queue_says_how_many_workers_serve_it(web: TestClient, yard: Yard):
    yard.join()
    yard.add(queue="resize")
    yard.add(queue="forgotten")

    served = re.findall(
        r'<td class="right( bad)?" data-label="Workers">(\d+)</td>', web.get("/queues", headers=HTML).text
    )

    assert served == [(" bad", "0"), ("", "1"), ("", "1")]  # forgotten, resize, and mail, in which no job waits


def test_a_worker_shows_its_memory_beside_its_limit_and_its_cpu(web: TestClient, yard: Yard):
    yard.join()
    yard.storage.heartbeat({WORKER: {"rss": 96 << 20, "max_rss": 512 << 20, "cpu_percent": 34}, FOREMAN: {}})

    assert "96 MiB of 512 MiB · CPU 34 %" in text_of(web, "/workers")


def test_of_very_many_tasks_those_are_listed_that_ran_the_longest(
    web: TestClient, yard: Yard, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tasks, "_MOST", 1)
    yard.add(task="brew_tea")
    yard.job("completed", task="resize")

    text = text_of(web, "/tasks")

    assert "resize" in text
    assert "brew_tea" not in text
    assert "The 1 that ran the longest of " in text
