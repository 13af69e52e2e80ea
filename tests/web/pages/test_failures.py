"""Failures by cause: over time, with versions of the code, silenced for one of them; and the same of a job."""

from __future__ import annotations

import re
from typing import Any

from starlette.testclient import TestClient

from packhorse.core.event import Event, Kind, Subject
from packhorse.core.outcome import Failed, Failure
from packhorse.storage.records import FailureGroup, WorkerInfo
from packhorse.web import reader
from packhorse.web.pages import failures as page
from packhorse.web.pages.annotations import annotated
from packhorse.web.pages.chart import Intervals, failed
from packhorse.web.pages.time_range import RANGES
from tests.cli.yard import Yard
from tests.web.conftest import BASE

API = "/api/v1"
HTML = {"accept": "text/html"}
SENT = {"origin": BASE, **HTML}


def fail(yard: Yard, version: str | None = "9d01", **options: Any) -> FailureGroup:
    job = yard.start(yard.add())
    job = yard.finish(Failed(job.token, Failure("ValueError", "no", "Traceback", version=version), **options))
    (group,) = [group for group in yard.storage.failures() if group.cause == job.cause]
    return group


def text_of(web: TestClient, path: str) -> str:
    """What a page says, without its marks."""
    found = web.get(path, headers=HTML)
    assert found.status_code == 200
    return " ".join(re.sub("<[^>]+>", " ", found.text.partition("<main")[2]).split())


def test_the_list_tells_versions_counts_and_what_is_left(web: TestClient, yard: Yard):
    fail(yard)
    group = fail(yard, "4f2c", retry_in=60_000_000)

    found = web.get("/failures", headers=HTML).text

    assert 'aria-label="Failures in the last 48 hours"' in found
    assert f'href="/jobs?state=dead&amp;cause={group.cause}">1 dead</a>' in found
    assert f'href="/jobs?state=retrying&amp;cause={group.cause}">1 retrying</a>' in found
    assert re.search(r"9d01</bdi>.*4f2c</bdi>", found)
    assert "2 failures in the last 48 hours, 1 kind in all." in text_of(web, "/failures")


def test_a_range_is_kept_from_the_list_to_the_cause(web: TestClient, yard: Yard):
    group = fail(yard)

    found = web.get("/failures?range=2h&task=resize", headers=HTML).text

    assert f'href="/failures/{group.cause}?range=2h"' in found
    assert 'href="/failures?range=7d&amp;task=resize"' in found
    assert "1 failure in the last 2 hours" in text_of(web, "/failures?range=2h")


def test_many_causes_come_on_several_pages(web: TestClient, yard: Yard, monkeypatch: Any):
    monkeypatch.setattr(page, "_ROWS", 2)
    for word in ("one", "two", "three"):
        job = yard.start(yard.add())
        yard.finish(Failed(job.token, Failure("ValueError", word)))

    first, second = (web.get(path, headers=HTML).text for path in ("/failures", "/failures?first=2"))

    assert [text.count("<tr data-row>") for text in (first, second)] == [2, 1]
    assert 'href="/failures?first=2">Older</a>' in first
    assert 'href="/failures">Newer</a>' in second
    assert web.get("/failures?first=99", headers=HTML).text.count("<tr data-row>") == 2
    assert web.get("/failures?first=nonsense", headers=HTML).status_code == 200


def test_the_page_of_a_cause_has_its_versions_a_chart_and_text_for_an_issue(web: TestClient, yard: Yard):
    fail(yard)
    group = fail(yard, "4f2c")

    text = text_of(web, f"/failures/{group.cause}")

    assert re.search(r"first .* with 9d01 , last .* with 4f2c \.", text)
    assert "Failures an hour" in text
    assert "own code 4f2c" in text


def test_a_cause_is_silenced_until_the_next_version(web: TestClient, yard: Yard):
    group = fail(yard)

    web.post(f"/failures/{group.cause}/silence", data={"duration": "version"}, headers=SENT)

    assert yard.storage.failures()[0].silenced_version == "9d01"
    assert "until it fails with another version than 9d01" in text_of(web, f"/failures/{group.cause}")
    fail(yard, "4f2c")
    assert not yard.storage.failures()[0].is_silenced(yard.storage.now())


def test_only_a_cause_with_a_version_offers_the_next_one(web: TestClient, yard: Yard):
    group = fail(yard, None)

    assert "until the next version" not in text_of(web, f"/failures/{group.cause}")
    refused = web.post(f"/failures/{group.cause}/silence", data={"duration": "version"}, headers=SENT)
    assert refused.status_code == 400
    assert "PACKHORSE_CODE_VERSION" in refused.text


def test_a_job_tells_since_which_deploy_it_fails_so_and_with_what_each_attempt_ran(web: TestClient, yard: Yard):
    fail(yard)
    group = fail(yard, "4f2c")

    text = text_of(web, f"/jobs/{group.last_job_id}")

    assert "One of 2 failures of this kind since deploy 9d01" in text
    assert "Code version 4f2c" in text
    assert re.search(r"Worker Version .* 4f2c", text)


def test_a_job_without_versions_has_no_column_for_them(web: TestClient, yard: Yard):
    group = fail(yard, None)
    fail(yard, None)

    text = text_of(web, f"/jobs/{group.last_job_id}")

    assert "One of 2 failures of this kind ." in text
    assert "Version" not in text.partition("Attempts")[2].partition("Traceback")[0]


def test_workers_tell_their_version(web: TestClient, yard: Yard):
    yard.join()
    yard.storage.join(WorkerInfo("w2", host="mule", pid=3, info={"code_version": "4f2c"}))

    assert "4f2c" in text_of(web, "/workers")
    told = {each["id"]: each["code_version"] for each in web.get(f"{API}/workers").json()["items"]}
    assert sorted(told.values(), key=str) == ["4f2c", None, None]


def test_what_cannot_be_counted_at_once_is_there_when_somebody_looks_again(
    web: TestClient, yard: Yard, monkeypatch: Any
):
    monkeypatch.setattr(reader, "_COUNTING", -1.0)
    monkeypatch.setattr(reader, "_FEW_LEFT", 1)
    for word in ("one", "two"):
        job = yard.start(yard.add())
        yard.finish(Failed(job.token, Failure("ValueError", word)))

    assert (counted(web), counted(web)) == ([True, False], [True, False])
    monkeypatch.setattr(reader, "_COUNTING", 60.0)
    assert counted(web) == [True, True]
    monkeypatch.setattr(reader, "_COUNTING", -1.0)
    assert counted(web) == [True, True]


def test_where_few_have_failed_all_causes_are_counted_at_once(web: TestClient, yard: Yard, monkeypatch: Any):
    monkeypatch.setattr(reader, "_COUNTING", -1.0)
    for word in ("one", "two", "three"):
        job = yard.start(yard.add())
        yard.finish(Failed(job.token, Failure("ValueError", word)))

    assert counted(web) == [True] * 3


def test_a_state_in_which_there_are_few_is_counted_apart_from_one_with_many(
    web: TestClient, yard: Yard, monkeypatch: Any
):
    monkeypatch.setattr(reader, "_FEW_LEFT", 1)
    for number in (None, 60_000_000, None):
        fail(yard, retry_in=number)

    text = text_of(web, "/failures")

    assert "1 retrying 2 dead" in text


def counted(web: TestClient) -> list[bool]:
    """Of each cause in the list, whether it tells how many of its jobs are left."""
    rows = web.get("/failures", headers=HTML).text.split("<tr data-row>")[1:]
    return ["1 dead</a>" in row for row in rows]


# --- the API ----------------------------------------------------------------------------------------------------------


def test_the_api_tells_versions_and_counts(web: TestClient, yard: Yard):
    fail(yard)
    group = fail(yard, "4f2c")

    (listed,) = web.get(f"{API}/failures", params={"span": "48h"}).json()["items"]
    one = web.get(f"{API}/failures/{group.cause}").json()

    assert (listed["first_version"], listed["last_version"]) == ("9d01", "4f2c")
    assert sum(listed["counts"].values()) == sum(one["counts"].values()) == 2
    assert (one["dead"], one["retrying"], one["aborted"]) == (2, 0, 0)
    assert one["example"]["version"] == "4f2c"
    assert web.get(f"{API}/failures").json()["items"][0]["counts"] == {}
    assert web.get(f"{API}/failures/nonsense").status_code == 404


def test_the_api_silences_until_the_next_version(web: TestClient, yard: Yard):
    group = fail(yard)
    path = f"{API}/failures/{group.cause}/silence"

    assert web.post(path, json={"until_next_version": True}).json()["changed"] is True
    (told,) = web.get(f"{API}/failures").json()["items"]
    assert (told["silenced_version"], told["silenced_until"]) == ("9d01", None)

    web.post(path, json={"until_next_version": True, "duration": "2h"})
    (told,) = web.get(f"{API}/failures").json()["items"]
    assert told["silenced_version"] == "9d01"
    assert told["silenced_until"] is not None

    web.post(path, json={})
    (told,) = web.get(f"{API}/failures").json()["items"]
    assert told["silenced_version"] is None
    assert told["silenced_until"] is not None


# --- deploys across the charts --------------------------------------------------------------------------------------


def test_a_deploy_is_a_flag_unless_that_version_was_there_already():
    now = 1_800_000_000_000_000
    events = [
        Event(Kind.DEPLOYED, now - back * 60_000_000, Subject.FOREMAN, data={"version": version}, id=100 - back)
        for back, version in ((1, "v1"), (5, "v2"), (6, "v2"), (9, "v1"))
    ]
    (fresh_page,) = annotated([failed(Intervals([], RANGES["1h"], now))], events)

    assert [flag.text for flag in fresh_page.flags] == ["deploy v1", "deploy v2", "deploy v1"]
    assert [(now - flag.at) // 60_000_000 for flag in fresh_page.flags] == [1, 6, 9]
