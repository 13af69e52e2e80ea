"""A list of jobs does not move under its reader: what is new is counted, and shown when it is wanted."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from packhorse.core.job import Job
from packhorse.storage.records import Page
from packhorse.web.pages.jobs import PAGE_SIZE, _newer
from tests.cli.yard import Yard
from tests.web.conftest import MAIL_SECRET, bearer

LIVE = {"x-packhorse": "live"}


def rows(text: str) -> list[str]:
    return re.findall(r'data-row="([^"]+)"', text)


def newer(text: str) -> list[str]:
    return re.findall(r">(\S+) newer</a>", text)


def test_the_rows_stay_and_those_that_came_since_are_counted(web: TestClient, yard: Yard):
    before = [yard.add(queue="mail").id for _ in range(3)][::-1]
    assert rows(web.get("/jobs?queue=mail").text) == before

    for _ in range(2):
        yard.add(queue="mail")
    shown = web.get("/jobs", params={"queue": "mail", "shown": ",".join(before)}, headers=LIVE).text

    assert rows(shown) == before
    assert newer(shown) == ["2"]
    assert 'href="/jobs?queue=mail">2 newer' in shown


def test_a_row_shows_what_has_become_of_its_job_and_goes_only_with_it(web: TestClient, yard: Yard):
    first, second = yard.add(), yard.add()
    yard.storage.abort([first.id], by="anna")
    yard.storage.delete([second.id], by="anna")

    shown = web.get("/jobs", params={"state": "queued", "shown": f"{second.id},{first.id}"}).text

    assert rows(shown) == [first.id]
    assert "s-aborted" in shown
    assert newer(shown) == []


def test_nothing_is_new_behind_a_page(web: TestClient, yard: Yard):
    jobs = [yard.add().id for _ in range(PAGE_SIZE + 2)][::-1]
    first = web.get("/jobs").text
    further = re.search(r'rel="next" href="([^"]+)"', first)
    assert further is not None
    yard.add()

    shown = web.get(f"{further[1].replace('&amp;', '&')}&shown={','.join(jobs[PAGE_SIZE:])}").text

    assert rows(shown) == jobs[PAGE_SIZE:]
    assert newer(shown) == []


def test_of_other_queues_nothing_is_shown(guarded_web: TestClient, yard: Yard):
    other, mine = yard.add(queue="images").id, yard.add(queue="mail").id

    shown = guarded_web.get("/jobs", params={"shown": f"{other},{mine}"}, headers=bearer(MAIL_SECRET)).text

    assert rows(shown) == [mine]


@pytest.mark.parametrize(
    ("listed", "more", "kept", "told"),
    [
        ("abc", False, "abc", ""),
        ("xyabc", True, "abc", "2"),
        ("bcde", True, "abc", ""),  # some have left, and others moved up from behind
        ("xbcde", True, "abc", "1"),
        ("xyz", True, "abc", "3+"),
        ("xyz", False, "abc", "3"),
        ("", False, "abc", ""),
    ],
)
def test_only_what_stands_before_what_was_there_is_new(listed: str, more: bool, kept: str, told: str):
    page = Page([a_job(name) for name in listed], "further" if more else None)

    assert _newer(page, list(kept)) == told


def a_job(name: str) -> Job:
    fixed = {"seq": 1, "task": "t", "queue": "q", "args": "{}", "priority": 1, "rank": 12, "created_at": 1}
    return Job(id=name, state="queued", updated_at=1, **fixed)  # type: ignore[arg-type]
