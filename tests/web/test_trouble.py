"""When the storage does not answer, when something is broken, when somebody is slow."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from starlette.testclient import TestClient

from packhorse.core.errors import StorageUnavailable
from packhorse.web.application import Application
from tests.children import PATIENCE
from tests.cli.yard import Yard
from tests.web.conftest import MAIL_SECRET, bearer, served
from tests.web.test_stream import Watched, watching

HTML = {"accept": "text/html"}


def is_away(*args: Any, **kwargs: Any) -> Any:
    raise StorageUnavailable("cannot reach redis://u:hunter2@cache/0", why="connection refused")


@pytest.fixture
def without_storage(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("queues", "workers", "find", "get", "totals", "now", "heartbeat"):
        monkeypatch.setattr(yard.storage, name, is_away)


@pytest.mark.usefixtures("without_storage")
@pytest.mark.parametrize("path", ["/", "/jobs", "/jobs/x", "/queues"])
def test_a_page_says_that_the_storage_is_away(web: TestClient, path: str):
    answer = web.get(path, headers=HTML)

    assert answer.status_code == 503
    assert "cannot reach redis://" in answer.text.lower()
    assert "connection refused" in answer.text.lower()
    assert "hunter2" not in answer.text
    assert answer.headers["refresh"] == "10"  # it asks again by itself
    assert "packhorse doctor" in answer.text


def test_a_page_says_what_was_last_known_when_the_storage_is_away(
    web: TestClient, guarded_web: TestClient, yard: Yard, monkeypatch: pytest.MonkeyPatch
):
    yard.add(queue="mail")
    yard.add(queue="other")
    for client in (web, guarded_web):
        assert client.get("/queues", headers={**HTML, **bearer(MAIL_SECRET)}).status_code == 200
    for name in ("queues", "now"):
        monkeypatch.setattr(yard.storage, name, is_away)

    everything = web.get("/queues", headers=HTML)
    mail = guarded_web.get("/queues", headers={**HTML, **bearer(MAIL_SECRET)})

    assert everything.status_code == mail.status_code == 503
    assert "<dt>Queued</dt><dd>2</dd>" in everything.text
    assert "<dt>Queued</dt><dd>1</dd>" in mail.text
    assert "What was last known" in mail.text
    assert "last known" not in guarded_web.get("/queues", headers=HTML).text


@pytest.mark.usefixtures("without_storage")
@pytest.mark.parametrize("path", ["/api/v1/jobs", "/api/v1/totals", "/metrics", "/healthz", "/readyz"])
def test_a_program_is_told_to_come_back(web: TestClient, path: str):
    answer = web.get(path)

    assert answer.status_code == 503
    assert "hunter2" not in answer.text
    assert answer.headers.get("retry-after", "5") == "5"


def test_a_stream_tells_of_trouble_and_goes_on(application: Application, yard: Yard, monkeypatch: pytest.MonkeyPatch):
    with served(application) as base, watching(base) as response:
        watched = Watched(response)
        watched.next("overview")
        with monkeypatch.context() as broken:
            broken.setattr(yard.storage, "queues", is_away)
            assert watched.next("trouble")["why"] == "connection refused"

        assert watched.next("overview")["states"]


def test_what_nobody_expected_is_logged_under_an_id_and_not_told(
    web: TestClient, yard: Yard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def breaks(*args: Any) -> Any:
        raise RuntimeError("a secret of the house")

    monkeypatch.setattr(yard.storage, "tasks", breaks)
    with caplog.at_level(logging.ERROR):
        answer = web.get("/api/v1/tasks")

    assert answer.status_code == 500
    assert answer.json()["code"] == "bug"
    assert "a secret of the house" not in answer.text
    assert answer.json()["id"] in caplog.text


def test_what_takes_too_long_is_given_up(web: TestClient, yard: Yard, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("packhorse.web.api.endpoint.TIME_LIMIT", 0.05)
    has_answered = threading.Event()
    monkeypatch.setattr(yard.storage, "tasks", lambda: has_answered.wait(PATIENCE))

    answer = web.get("/api/v1/tasks")
    has_answered.set()

    assert answer.status_code == 429
    assert "took longer" in answer.json()["title"]


def test_a_page_that_is_not_there_does_not_ask_again(web: TestClient):
    answer = web.get("/nothing", headers=HTML)

    assert answer.status_code == 404
    assert "refresh" not in answer.headers
    assert "The address may be misspelt" in answer.text
