"""Named filters on the web: offered to everybody, and meant by their name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from packhorse import Packhorse
from packhorse.web.application import make_application
from packhorse.web.security.access import decide_access
from packhorse.web.security.tokens import Tokens
from tests.cli.yard import Yard
from tests.web.conftest import BASE, PageClient

API = "/api/v1"
HTML = {"accept": "text/html"}


@pytest.fixture
def named(yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """A web whose settings name a filter."""
    (tmp_path / "pyproject.toml").write_text('[tool.packhorse.filters]\nlost = "state:dead queue:for-dead"\n')
    monkeypatch.chdir(tmp_path)
    application = make_application(
        Packhorse(storage=yard.storage), decide_access("127.0.0.1", Tokens(), open_mount=True)
    )
    with PageClient(application, base_url=BASE) as web:
        yield web


def test_the_list_of_jobs_offers_them(named: TestClient):
    text = named.get("/jobs", headers=HTML).text

    assert '<a href="/jobs?q=state%3Adead+queue%3Afor-dead">@lost</a>' in text
    parts = ["In this browser</h2>", '<input id="save-name"', "<h2>Shared</h2>", "@lost</a>"]
    assert sorted(parts, key=text.index) == parts
    assert named.get(f"{API}/filters").json()["items"] == [{"name": "lost", "filter": "state:dead queue:for-dead"}]
    assert {"text": "@lost", "about": "state:dead queue:for-dead"} in named.get(f"{API}/suggestions?q=@l").json()[
        "items"
    ]


def test_a_name_means_its_words(named: TestClient, yard: Yard):
    jobs = yard.in_every_state()
    listed = named.get(f"{API}/jobs?q=@lost").json()["items"]
    asked = named.get("/find?q=@lost since:1h", headers=HTML)

    assert [job["id"] for job in listed] == [jobs["dead"].id]
    assert named.get(f"{API}/count?q=@lost since:1h").json()["number"] == 1
    assert dict(asked.url.params) == {"q": "state:dead queue:for-dead since:1h"}  # each word is a chip there


def test_a_name_means_its_words_where_jobs_are_counted(named: TestClient, yard: Yard):
    yard.in_every_state()

    text = named.get("/count?q=@lost since:1h", headers=HTML).text

    assert "<b>1</b> job matches <code>state:dead queue:for-dead since:1h</code>. These are all." in text
    assert 'href="/jobs?q=state%3Adead+queue%3Afor-dead+since%3A1h">Back to the list' in text


def test_a_name_that_there_is_not_is_a_problem(named: TestClient):
    assert named.get(f"{API}/jobs?q=@last").status_code == 400
    assert "filter is called @last" in named.get("/jobs?q=@last", headers=HTML).text
    counted = named.get("/count?q=@last", headers=HTML)
    assert counted.status_code == 400
    assert "filter is called @last" in counted.text


def test_a_web_leaves_a_filter_out_that_nobody_can_use_and_says_so(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "pyproject.toml").write_text('[tool.packhorse.filters]\nlost = "state:ded"\nbig = 7\ngood = "dead"\n')
    monkeypatch.chdir(tmp_path)
    application = make_application(
        Packhorse(storage=yard.storage), decide_access("127.0.0.1", Tokens(), open_mount=True)
    )

    with PageClient(application, base_url=BASE) as web:
        page = web.get("/jobs", headers=HTML).text
        offered = web.get(f"{API}/filters").json()["items"]
        asked = web.get(f"{API}/jobs?q=@lost")

    assert [message for message in caplog.messages if message.startswith("pyproject.toml line 2: the filter lost")]
    assert "<li>pyproject.toml line 2: the filter lost" in page
    assert "<li>pyproject.toml line 3: the filter big must be text" in page
    assert [each["name"] for each in offered] == ["good"]
    assert asked.status_code == 400
    assert "@lost cannot be used: pyproject.toml line 2" in asked.text
