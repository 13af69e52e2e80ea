"""Named filters on the web: offered to everybody, and meant by their name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from packhorse import Packhorse
from packhorse.errors import SettingsError
from packhorse.web.application import make_application
from packhorse.web.security.access import decide_access
from packhorse.web.security.tokens import Tokens
from tests.cli.yard import Yard
from tests.web.conftest import BASE

API = "/api/v1"
HTML = {"accept": "text/html"}


@pytest.fixture
def named(yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """A web whose settings name a filter."""
    (tmp_path / "pyproject.toml").write_text('[tool.packhorse.filters]\nlost = "state:dead queue:for-dead"\n')
    monkeypatch.chdir(tmp_path)
    application = make_application(Packhorse(storage=yard.storage), decide_access("127.0.0.1", Tokens()))
    with TestClient(application, base_url=BASE) as web:
        yield web


def test_the_list_of_jobs_offers_them(named: TestClient):
    text = named.get("/jobs", headers=HTML).text

    assert '<a href="/jobs?q=state%3Adead+queue%3Afor-dead">@lost</a>' in text
    parts = ["In this browser</h2>", '<input id="save-name"', "<h2>For everybody</h2>", "@lost</a>"]
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


def test_a_name_that_there_is_not_is_a_problem(named: TestClient):
    assert named.get(f"{API}/jobs?q=@last").status_code == 400
    assert "filter is called @last" in named.get("/jobs?q=@last", headers=HTML).text


def test_a_web_with_a_filter_that_nobody_can_use_does_not_start(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "pyproject.toml").write_text('[tool.packhorse.filters]\nlost = "state:ded"\n')
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SettingsError, match=r"pyproject\.toml line 2: the filter lost"):
        make_application(Packhorse(storage=yard.storage), decide_access("127.0.0.1", Tokens()))
