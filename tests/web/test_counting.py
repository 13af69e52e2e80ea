"""Counting exactly: step by step, never for longer than a step may take."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from packhorse.monitor import filters
from packhorse.web import reader
from tests.cli.yard import Yard
from tests.web.conftest import MAIL_SECRET, bearer

API = "/api/v1"
HTML = {"accept": "text/html"}


@pytest.fixture
def many(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven jobs that fit, and a step has time for two of them."""
    for number in range(7):
        yard.add(args={"user_id": 42, "number": number})
    yard.add(args={"user_id": 7})
    monkeypatch.setattr(reader, "_COUNTING_ON", -1.0)
    monkeypatch.setattr(filters, "_FIRST_PAGE", 2)


@pytest.mark.usefixtures("many")
def test_a_program_counts_on_until_there_is_no_next(web: TestClient):
    counted, query = [], {"q": "args.user_id:42"}
    while True:
        part = web.get(f"{API}/count", params=query).json()
        counted.append(part["number"])
        if part["next"] is None:
            break
        query["cursor"] = part["next"]

    assert sum(counted) == 7
    assert max(counted) == 2


@pytest.mark.usefixtures("many")
def test_a_page_goes_on_by_itself_and_can_be_stopped(web: TestClient):
    page = web.get("/count", params={"q": "args.user_id:42", "state": "queued"}, headers=HTML).text

    for number in (2, 4, 6):
        assert f"<b>{number}</b> jobs match" in page
        assert "so far" in page
        assert re.search(r'href="/jobs\?q=args[^"]*">Stop here', page)
        form = page.partition("data-goes-on")[2].partition("</form>")[0]
        page = web.get("/count", params=dict(re.findall(r'name="(\w+)" value="([^"]*)"', form)), headers=HTML).text

    assert "<b>7</b> jobs match" in page
    assert "These are all" in page
    assert "data-goes-on" not in page


def test_what_is_tallied_is_known_at_once(web: TestClient, yard: Yard):
    yard.add()

    assert web.get(f"{API}/count?state=queued").json() == {"number": 1, "next": None}


def test_jobs_of_other_queues_do_not_count(guarded_web: TestClient, yard: Yard):
    for queue in ("mail", "other", "mail"):
        yard.add(queue=queue)

    found = guarded_web.get(f"{API}/count?q=args.image_id:7", headers=bearer(MAIL_SECRET)).json()

    assert found == {"number": 2, "next": None}


def test_a_list_that_is_not_counted_offers_it(web: TestClient, yard: Yard, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reader, "_COUNTED_DEARLY", 0)
    for _ in range(51):
        yard.add()

    text = web.get("/jobs?q=args.image_id:7", headers=HTML).text

    assert 'href="/count?q=args.image_id%3A7">Count exactly</a>' in text
    assert "Count exactly" not in web.get("/jobs?state=queued", headers=HTML).text


def test_a_number_that_is_none_is_refused(web: TestClient):
    assert web.get("/count?q=args.a:1&counted=x", headers=HTML).status_code == 400
