"""The access log: who asked for what, and on the level debug what was sent and answered, without secrets."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from starlette.testclient import TestClient

from packhorse.storage.records import TaskInfo
from packhorse.web.access_log import AccessLog
from packhorse.web.application import Application, make_application
from packhorse.web.security.access import decide_access
from packhorse.web.security.operator import Role
from packhorse.web.security.redaction import Redaction
from packhorse.web.security.tokens import Tokens
from tests.cli.yard import Yard
from tests.web.conftest import BASE, SECRETS, bearer, patient_app

ACCESS = "packhorse.web.access"


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Any:
    """The lines of the access log from a level on."""

    def lines(level: int = logging.INFO) -> list[str]:
        return [one.getMessage() for one in caplog.records if one.name == ACCESS and one.levelno >= level]

    return lines


def at(caplog: pytest.LogCaptureFixture, level: int) -> None:
    caplog.set_level(level, ACCESS)


def test_each_request_is_a_line_with_who_asked_and_what_came_of_it(
    guarded_web: TestClient, caplog: pytest.LogCaptureFixture, told: Any
):
    at(caplog, logging.INFO)

    guarded_web.get("/api/v1/jobs?state=dead", headers=bearer(SECRETS[Role.VIEW]))
    guarded_web.get("/api/v1/queues")
    guarded_web.get("/readyz", headers={"host": "evil.example"})

    found, refused, foreign = told(logging.DEBUG)
    assert found.startswith('testclient view "GET /api/v1/jobs?state=dead" 200 ')
    assert found.endswith(" ms")
    assert refused.startswith('testclient - "GET /api/v1/queues" 401 ')
    assert foreign.startswith('testclient - "GET /readyz" 403 ')
    assert [one.__dict__["status"] for one in caplog.records if one.name == ACCESS] == [200, 401, 403]


def test_nothing_is_told_below_its_level(web: TestClient, caplog: pytest.LogCaptureFixture, told: Any):
    at(caplog, logging.WARNING)

    web.get("/readyz")

    assert told(logging.DEBUG) == []


def test_debug_shows_what_was_sent_and_answered(web: TestClient, caplog: pytest.LogCaptureFixture, told: Any):
    at(caplog, logging.DEBUG)
    body = {"task": "send", "args": {"user": 7, "nested": [{"api_key": "k-123"}]}, "known": False}

    web.post("/api/v1/jobs?q=args.password:hunter2", json=body)

    line, request, answer = told(logging.DEBUG)
    assert '"POST /api/v1/jobs?q=args.password:•••" 201' in line
    assert request.startswith("request: host=")
    assert '"user": 7' in request
    assert '"task": "send"' in request
    assert answer.startswith("answer: ")
    assert '"is_new": true' in answer
    assert not any(secret in text for text in (line, request, answer) for secret in ("k-123", "hunter2"))


SAID = "said-in-secret-0123456789"


@pytest.mark.parametrize("hides_args", [False, True])
def test_no_secret_is_written_down(
    yard: Yard, caplog: pytest.LogCaptureFixture, told: Any, hides_args: bool, guarded: Application
):
    at(caplog, logging.DEBUG)
    yard.storage.announce([TaskInfo("send", "mail", {"redact": ["iban"]})])
    guarded._log = AccessLog(guarded._middleware, guarded.web.redaction)
    guarded.web.redaction.hide_args = hides_args
    web = TestClient(guarded, base_url=BASE, follow_redirects=False)
    origin = {"origin": BASE}

    web.post("/login", data={"token": SECRETS[Role.ADMIN]}, headers=origin)
    web.post("/login", json={"token": SAID}, headers=origin)
    cookie = web.cookies["packhorse_session"]
    web.post("/logout", headers=origin)
    web.cookies.clear()
    call = {"task": "send", "args": {"iban": SAID, "password": SAID}, "known": False}
    created = web.post("/api/v1/jobs", json=call, headers=bearer(SECRETS[Role.ADMIN]))
    new = {"id": "a" * 12, "task": "send", "queue": "mail", "args": json.dumps({"password": SAID, "iban": SAID})}
    for name, given in (("enqueue", {"jobs": [new]}), ("get", {"job_id": created.json()["id"]})):
        assert web.post(f"/api/v1/work/{name}", json=given, headers=bearer(SECRETS[Role.WORK])).status_code == 200

    text = "\n".join(told(logging.DEBUG))
    assert "work/get" in text
    for secret in (SAID, cookie, SECRETS[Role.ADMIN], SECRETS[Role.WORK]):
        assert secret not in text


def test_no_request_makes_a_line_of_its_own(web: TestClient, caplog: pytest.LogCaptureFixture, told: Any):
    at(caplog, logging.DEBUG)

    web.get("/jobs/%0A2026-01-01 INFO forged%1b[31m", headers={"x-note": "a"})

    assert all("\n" not in line and "\x1b" not in line for line in told(logging.DEBUG))


def test_a_storage_that_is_away_costs_the_bodies_and_no_answer(yard: Yard, caplog: pytest.LogCaptureFixture, told: Any):
    at(caplog, logging.DEBUG)
    redaction = Redaction()
    web = make_application(
        patient_app(yard), decide_access("127.0.0.1", Tokens(), open_mount=True), redaction=redaction
    )
    with TestClient(web, base_url=BASE) as client:
        yard.close()
        client.post("/api/v1/jobs", json={"task": "send", "args": {"password": SAID}})

    assert SAID not in "\n".join(told(logging.DEBUG))
