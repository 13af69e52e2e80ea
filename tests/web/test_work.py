"""The storage's own calls over HTTP: what any program with an HTTP client can do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from starlette.testclient import TestClient

from packhorse.storage.wire import QUESTIONS
from packhorse.web.api import work
from packhorse.web.security.operator import Role
from tests.cli.yard import Yard
from tests.web.conftest import SECRETS, bearer

WORK = "/api/v1/work"


def ask(web: TestClient, call: str, **arguments: Any) -> Any:
    answer = web.post(f"{WORK}/{call}", json=arguments)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_program_without_our_library_can_be_a_worker(web: TestClient):
    ask(web, "enqueue", jobs=[{"id": "job-1", "task": "add", "queue": "sums", "args": '{"a":1}'}])
    ask(web, "join", worker={"id": "ruby-1", "queues": ["sums"]})

    (job,) = ask(web, "reserve", owner="ruby-1", queues={"sums": 1}, limit=1)
    token = {"job_id": job["id"], "owner": "ruby-1", "fence": job["fence"]}
    assert ask(web, "start", tokens=[token]) == ["accepted"]
    assert ask(web, "finish", outcomes=[{"type": "completed", "token": token, "result": "2"}]) == ["accepted"]

    assert web.get("/api/v1/jobs/job-1").json()["state"] == "completed"


def test_who_is_late_is_told_so(web: TestClient):
    token = {"job_id": "gone", "owner": "ruby-1", "fence": 1}

    assert ask(web, "finish", outcomes=[{"type": "completed", "token": token}]) == ["stale"]


def test_a_greeting_names_every_question(web: TestClient):
    assert web.get(WORK).json()["questions"] == sorted(QUESTIONS)


def test_an_error_of_the_storage_is_a_problem(web: TestClient):
    answer = web.post(f"{WORK}/reserve", json={"owner": "nobody", "queues": {"mail": 1}, "limit": 1})

    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "worker_not_found"
    assert answer.json()["facts"] == ["nobody"]


def test_what_is_not_understood_is_a_problem_and_changes_nothing(web: TestClient):
    for body in (b"{", b'{"owner": 7}', b"[]", b"\xff", b'{"owner":"a","queues":{"mail":"many"},"limit":1}'):
        answer = web.post(f"{WORK}/reserve", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400, body
        assert answer.json()["code"] == "bad_value"
    assert web.post(f"{WORK}/wait", json={}).status_code == 400
    assert web.post(f"{WORK}/steal", json={}).status_code == 404
    assert web.post(f"{WORK}/close", json={}).status_code == 404
    assert web.get(f"{WORK}/queues").status_code == 405


def test_each_role_may_ask_for_as_much_as_it_may_do(guarded_web: TestClient):
    def status(call: str, role: Role) -> int:
        return guarded_web.post(f"{WORK}/{call}", json={"job_ids": []}, headers=bearer(SECRETS[role])).status_code

    assert [status("abort", role) for role in Role] == [403, 403, 200, 200]
    assert [status("delete", role) for role in Role] == [403, 403, 403, 200]
    assert guarded_web.post(f"{WORK}/abort", json={"job_ids": []}).status_code == 401


def test_what_an_operator_does_says_through_whose_token_it_came(guarded_web: TestClient, yard: Yard):
    for by in ("ann@farm", None):
        guarded_web.post(f"{WORK}/pause", json={"queue": f"of-{by}", "by": by}, headers=bearer(SECRETS[Role.WORK]))

    assert {queue.name: queue.paused_by for queue in yard.storage.queues() if queue.is_paused} == {
        "of-ann@farm": "ann@farm through work",
        "of-None": "work",
    }


def test_a_batch_may_be_larger_than_the_request_of_a_person(web: TestClient):
    jobs = [{"id": f"job-{n}", "task": "add", "queue": "sums", "args": f'{{"a":"{"x" * 100_000}"}}'} for n in range(30)]

    assert len(ask(web, "enqueue", jobs=jobs)) == 30


def test_a_question_that_waited_too_long_for_its_turn_is_not_put(web: TestClient, monkeypatch: Any):
    monkeypatch.setattr(work, "_OLD", -1.0)

    answer = web.post(f"{WORK}/enqueue", json={"jobs": [{"id": "late", "task": "add", "queue": "sums"}]})

    assert answer.status_code == 503
    assert web.get("/api/v1/jobs/late").status_code == 404


def test_who_finds_every_bed_taken_looks_for_work_without_a_bell(web: TestClient, yard: Yard, monkeypatch: Any):
    monkeypatch.setattr(work.Work, "_sleepers", SimpleNamespace(available_tokens=0))
    monkeypatch.setattr(yard.storage, "wait", lambda timeout: 1 / 0)

    assert ask(web, "wait", timeout=0.01) is False
