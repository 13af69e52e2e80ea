"""The audit: which deeds read as one line, and how far back there is something to see."""

from __future__ import annotations

import math

import pytest
from starlette.testclient import TestClient

from packhorse.core.clock import SECOND
from packhorse.core.event import Event, Kind
from packhorse.storage.records import EventFilter, Retention
from packhorse.web import history
from packhorse.web.pages.audit import _entries
from tests.cli.yard import Yard

HTML = {"accept": "text/html"}


def aborted(at: int, queue: str, job_id: str) -> Event:
    return Event(Kind.ABORTED, at, job_id=job_id, queue=queue, data={"by": "ann"})


def test_separate_commands_and_separate_queues_are_separate_lines():
    now = 1_800_000_000 * SECOND
    deeds = [
        aborted(now, "mail", "d"),
        aborted(now - SECOND // 2, "mail", "c"),  # a command of its own
        aborted(now - SECOND, "images", "b"),
        aborted(now - SECOND, "mail", "a"),
    ]

    assert [[event.job_id for event in each.events] for each in _entries(deeds)] == [["d"], ["c"], ["b"], ["a"]]


def test_many_jobs_at_once_are_a_line_for_each_queue_however_they_lie():
    deeds = [aborted(7, queue, f"{queue}-{place}") for place in range(3) for queue in ("mail", "images")]

    assert [(each.first.queue, each.number) for each in _entries(deeds)] == [("mail", 3), ("images", 3)]


def test_a_line_of_many_jobs_leads_to_each_of_them(web: TestClient, yard: Yard):
    jobs = [yard.job("queued", queue="mail").id for _ in range(3)]
    yard.storage.abort(jobs, by="ann")

    text = web.get("/audit", headers=HTML).text

    assert text.count("<tr data-row>") == 1
    assert "<b>3 jobs</b> of <bdi>mail</bdi>" in text
    assert all(f'href="/jobs/{job}"' in text for job in jobs)


def test_what_was_done_long_ago_is_on_the_first_page_and_nothing_is_further_back(
    web: TestClient, yard: Yard, monkeypatch: pytest.MonkeyPatch
):
    old = yard.job("queued")
    yard.storage.abort([old.id], by="ann")
    yard.job("completed")  # four events
    monkeypatch.setattr(history, "WINDOW", 3)
    monkeypatch.setattr(history, "_PATIENCE", math.inf)

    text = web.get("/audit", headers=HTML).text

    assert old.id in text
    assert "Further back" not in text


def test_where_all_older_events_are_gone_nothing_is_further_back(
    web: TestClient, yard: Yard, monkeypatch: pytest.MonkeyPatch
):
    for _ in range(5):
        yard.job("completed")
    monkeypatch.setattr(history, "WINDOW", 3)
    monkeypatch.setattr(history, "LOOKS", 1)
    assert "Further back" in web.get("/audit", headers=HTML).text

    while yard.storage.prune(Retention(completed=0, events=0)).events:
        pass

    assert len(yard.storage.events(EventFilter())) == 1
    assert "Further back" not in web.get("/audit", headers=HTML).text
