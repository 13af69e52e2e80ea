"""The storage's own calls over HTTP: what any program with an HTTP client can do."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from packhorse.core import clock
from packhorse.core.job import COMPLETED, QUEUED, RUNNING
from packhorse.storage.rpc import CALLS, RPC_VERSION
from packhorse.web.api import storage_rpc
from packhorse.web.application import Application
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


def fail(web: TestClient, outcome: dict[str, Any], job: dict[str, Any], tasks: list[dict[str, Any]]) -> str:
    """Have a foreign worker run a job, and say of its first attempt what `outcome` says. Answers the job's state."""
    ask(web, "announce", tasks=tasks)
    ask(web, "enqueue", jobs=[{"id": "job-1", "task": "add", "queue": "sums", "args": "{}", **job}])
    ask(web, "join", worker={"id": "ruby-1", "queues": ["sums"]})
    (taken,) = ask(web, "reserve", owner="ruby-1", queues={"sums": 1}, limit=1)
    token = {"job_id": "job-1", "owner": "ruby-1", "fence": taken["fence"]}
    ask(web, "start", tokens=[token])
    assert ask(web, "finish", outcomes=[{"token": token, "retry_in": 0, **outcome}]) == ["accepted"]
    return web.get("/api/v1/jobs/job-1").json()["state"]


FAILED = {"type": "failed", "failure": {"type": "TypeError", "message": "x is no number"}}
OVERRUN = {"type": "overrun", "why": "it took too long"}


@pytest.mark.parametrize("outcome", [FAILED, OVERRUN], ids=["failed", "overrun"])
def test_no_worker_gets_more_attempts_by_asking_for_them(web: TestClient, outcome: dict[str, Any]):
    state = fail(web, {**outcome, "max_attempts": 99}, {"max_attempts": 1}, [])

    assert state == ("dead" if outcome is FAILED else "aborted")


def test_no_worker_gets_more_attempts_than_the_task_has_announced(web: TestClient):
    announced = [{"name": "add", "queue": "sums", "options": {"max_attempts": 1}}]

    assert fail(web, {**FAILED, "max_attempts": 99}, {"max_attempts": 0}, announced) == "dead"


def test_a_worker_may_ask_for_what_the_task_has_announced_for_some_errors(web: TestClient):
    announced = [{"name": "add", "queue": "sums", "options": {"max_attempts": 1, "most_attempts": 3}}]

    assert fail(web, {**FAILED, "max_attempts": 99}, {"max_attempts": 1}, announced) == "queued"


def _shape(schema: Any, types: dict[str, Any], inside: tuple[str, ...] = ()) -> Any:
    """The schema without names and descriptions of types: renaming a class does not change what is sent."""
    if isinstance(schema, list | tuple):
        return [_shape(part, types, inside) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" not in schema:
        return {
            name: _shape(part, types, inside) for name, part in schema.items() if name not in ("description", "title")
        }
    name = schema["$ref"].rpartition("/")[2]
    return {"again": inside[::-1].index(name)} if name in inside else _shape(types[name], types, (*inside, name))


def test_a_renamed_operation_keeps_its_name_on_the_wire():
    renamed = {call.operation: name for name, call in CALLS.items() if call.operation != name}

    assert renamed == {
        "heartbeat": "beat",
        "abort_requests": "stops",
        "poll": "outlook",
        "record_operator_event": "record_deed",
    }


def test_a_change_of_what_is_sent_raises_the_number_of_the_wire():
    kinds = [kind for call in CALLS.values() for kind in (call.arguments, call.answer)]
    schemas, types = msgspec.json.schema_components(kinds)
    shapes = [_shape(schema, types) for schema in schemas]
    sent = msgspec.json.encode([*CALLS, shapes], order="sorted")

    assert (RPC_VERSION, hashlib.sha256(sent).hexdigest()[:12]) == (7, "1180e0909cf2"), (
        "a manager of the version before does not know this: raise RPC_VERSION, and write the new fingerprint here"
    )


def test_a_greeting_says_which_questions_are_understood(web: TestClient):
    assert web.get(WORK).json()["wire"] == RPC_VERSION


def test_an_error_of_the_storage_is_a_problem(web: TestClient):
    answer = web.post(f"{WORK}/reserve", json={"owner": "nobody", "queues": {"mail": 1}, "limit": 1})

    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "worker_not_found"
    assert answer.json()["facts"] == ["nobody"]


def test_a_kind_of_event_that_there_is_not_is_a_problem(web: TestClient):
    answer = web.get("/api/v1/events", params={"kind": "aborrted"})

    assert (answer.status_code, answer.json()["code"]) == (400, "bad_value")
    assert "there is no kind of event 'aborrted'" in answer.text
    assert web.get("/api/v1/events", params={"kind": "aborted"}).status_code == 200


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


BAD_JOBS: dict[str, dict[str, Any]] = {
    "no object": {"args": "[1]"},
    "no JSON": {"args": "nonsense"},
    "meta": {"meta": "7"},
    "priority": {"priority": 99},
    "attempts": {"max_attempts": -3},
    "queue": {"queue": ""},
    "nul": {"queue": "a\u0000b"},
    "task": {"task": "a b"},
    "id": {"id": "../x y?"},
    "delay": {"delay": -1},
    "time": {"due_at": 253402344000000000},
    "folder": {"queue": ".."},
    "backoff": {"backoff": "soon"},
    "unique": {"unique": {"key": "k", "on_conflict": "fight"}},
    "large": {"args": '{"a":"%s"}' % ("x" * (1 << 20))},
    "unknown word": {"jobs": []},
}


@pytest.mark.parametrize("what", BAD_JOBS)
def test_a_job_that_no_app_would_have_made_is_refused(web: TestClient, yard: Yard, what: str):
    good = {"id": "good", "task": "add", "queue": "sums"}
    body = {"jobs": [good, {**good, "id": "bad", **BAD_JOBS[what]}]} if what != "unknown word" else {"job": []}

    answer = web.post(f"{WORK}/enqueue", json=body)

    assert 400 <= answer.status_code < 500, answer.text
    assert yard.storage.get("good") is None


BAD_PLANS: dict[str, dict[str, Any]] = {
    "time": {"next_at": 253402344000000000},
    "last time": {"last_at": 1 << 62},
    "skipped time": {"options": {"skip": "soon"}},
    "cron": {"cron": "now and then"},
    "zone": {"tz": "Mars/Olympus"},
    "word": {"missed": "some"},
    "no JSON": {"args": "{"},
    "folder": {"queue": ".."},
    "nul": {"name": "a\u0000b"},
}


@pytest.mark.parametrize("what", BAD_PLANS)
def test_a_schedule_that_nobody_could_follow_is_refused(web: TestClient, yard: Yard, what: str):
    good = {"name": "nightly", "task": "add", "cron": "0 7 * * *", "next_at": 1}

    answer = web.post(f"{WORK}/put_schedules", json={"schedules": [good, {**good, **BAD_PLANS[what]}]})

    assert answer.status_code == 400, answer.text
    assert yard.storage.schedules() == []
    assert web.get("/api/v1/schedules").status_code == 200


def test_a_worker_prunes_no_more_than_the_manager_would(guarded_web: TestClient, yard: Yard):
    job = yard.job(COMPLETED)
    body = {"keep": {"completed": 0, "dead": 0, "aborted": 0, "events": 0, "clients": 0}}

    answer = guarded_web.post(f"{WORK}/prune", json=body, headers=bearer(SECRETS[Role.WORK]))

    assert answer.json()["jobs"] == 0
    assert yard.storage.get(job.id) is not None
    answer = guarded_web.post(f"{WORK}/prune", json=body, headers=bearer(SECRETS[Role.ADMIN]))
    assert answer.json()["jobs"] == 1


@pytest.mark.parametrize("call", ["rescue_owner", "leave"])
def test_a_worker_that_lives_is_given_up_by_nobody_who_joined_through_another_token(
    guarded_web: TestClient, yard: Yard, call: str
):
    job = yard.job(RUNNING)
    itself = {"foreman": job.owner} if call == "rescue_owner" else {}
    body = {"owner": job.owner, "why": "impatience", **itself}

    refused = guarded_web.post(f"{WORK}/{call}", json=body, headers=bearer(SECRETS[Role.WORK]))

    assert refused.status_code == 403
    assert "did not join with the token" in refused.json()["title"]
    assert yard.get(job.id) == job
    taken = guarded_web.post(f"{WORK}/{call}", json=body, headers=bearer(SECRETS[Role.ADMIN]))
    assert taken.status_code == 200
    assert yard.get(job.id).state is QUEUED


def test_the_id_of_a_living_worker_is_taken_over_by_nobody_through_another_token(guarded_web: TestClient, yard: Yard):
    job = yard.job(RUNNING)
    assert job.owner is not None
    (record,) = [worker for worker in yard.storage.workers() if worker.id == job.owner]
    yard.storage.leave(job.owner)
    yard.storage.join(msgspec.structs.replace(record, info={**record.info, "start": "known to all"}))
    body = {"worker": {"id": job.owner, "info": {"start": "known to all"}}}

    refused = guarded_web.post(f"{WORK}/join", json=body, headers=bearer(SECRETS[Role.WORK]))

    assert (refused.status_code, refused.json()["kind"]) == (409, "WorkerExists")
    assert [worker.info["start"] for worker in yard.storage.workers() if worker.id == job.owner] == ["known to all"]
    assert all("through" not in worker.info for worker in yard.storage.workers())


def test_a_worker_that_joins_again_through_its_own_token_is_the_same(guarded_web: TestClient, yard: Yard):
    work, body = bearer(SECRETS[Role.WORK]), {"worker": {"id": "remote-1", "info": {"start": "x"}}}

    assert guarded_web.post(f"{WORK}/join", json=body, headers=work).status_code == 200
    assert guarded_web.post(f"{WORK}/join", json=body, headers=work).status_code == 200


def test_what_a_living_worker_holds_is_handed_back_by_nobody_through_another_token(guarded_web: TestClient, yard: Yard):
    job = yard.job(RUNNING)
    body = {"tokens": [{"job_id": job.id, "owner": job.owner, "fence": job.fence}], "why": "impatience"}

    refused = guarded_web.post(f"{WORK}/release", json=body, headers=bearer(SECRETS[Role.WORK]))

    assert refused.status_code == 403
    assert yard.get(job.id) == job
    assert guarded_web.post(f"{WORK}/release", json=body, headers=bearer(SECRETS[Role.ADMIN])).json() == ["accepted"]


@pytest.mark.parametrize("call", ["rescue_owner", "leave"])
def test_a_foreman_elsewhere_gives_up_the_worker_that_it_saw_die(guarded_web: TestClient, yard: Yard, call: str):
    joined = {"worker": {"id": "remote-1", "foreman": "fm", "info": {"through": "admin"}}}
    seen_by = {"foreman": "fm"} if call == "rescue_owner" else {}
    assert guarded_web.post(f"{WORK}/join", json=joined, headers=bearer(SECRETS[Role.WORK])).status_code == 200

    answer = guarded_web.post(
        f"{WORK}/{call}", json={"owner": "remote-1", "why": "died", **seen_by}, headers=bearer(SECRETS[Role.WORK])
    )

    assert answer.status_code == 200
    assert "remote-1" not in {worker.id for worker in yard.storage.workers()}


def test_a_living_worker_is_not_given_up_by_another_of_the_same_token(guarded_web: TestClient, yard: Yard):
    work = bearer(SECRETS[Role.WORK])
    assert guarded_web.post(f"{WORK}/join", json={"worker": {"id": "remote-1"}}, headers=work).status_code == 200

    body = {"owner": "remote-1", "foreman": "remote-2", "why": "impatience"}
    answer = guarded_web.post(f"{WORK}/rescue_owner", json=body, headers=work)

    assert answer.status_code == 409
    assert "remote-1" in {worker.id for worker in yard.storage.workers()}


def test_a_worker_rescues_nobody_whom_the_manager_believes_alive(guarded_web: TestClient, yard: Yard):
    job = yard.job(RUNNING)
    body = {"lease": 0, "why": "impatience", "at": clock.now() + 1}

    answer = guarded_web.post(f"{WORK}/rescue", json=body, headers=bearer(SECRETS[Role.WORK]))

    assert answer.json() == []
    assert yard.get(job.id) == job


def test_stopping_a_foreman_takes_an_admin_here_too(guarded_web: TestClient, yard: Yard):
    def status(role: Role, do: str, **options: int) -> int:
        body = {"owner": "fm", "order": {"do": do, **options}}
        return guarded_web.post(f"{WORK}/order", json=body, headers=bearer(SECRETS[role])).status_code

    assert [status(Role.WORK, do) for do in ("quiet", "stop")] == [200, 403]
    assert status(Role.WORK, "scale", least=0, most=0) == 200  # another order takes it back
    assert status(Role.ADMIN, "stop") == 200


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
    monkeypatch.setattr(storage_rpc, "_OLD", -1.0)

    answer = web.post(f"{WORK}/enqueue", json={"jobs": [{"id": "late", "task": "add", "queue": "sums"}]})

    assert answer.status_code == 503
    assert web.get("/api/v1/jobs/late").status_code == 404


def test_who_finds_every_bed_taken_looks_for_work_without_a_bell(web: TestClient, yard: Yard, monkeypatch: Any):
    monkeypatch.setattr(storage_rpc.StorageRpc, "_sleepers", SimpleNamespace(available_tokens=0))
    monkeypatch.setattr(yard.storage, "wait", lambda timeout, queues: 1 / 0)

    assert ask(web, "wait", timeout=0.01) is False


def test_a_sleeper_says_for_which_queues_it_sleeps(application: Application, web: TestClient, monkeypatch: Any):
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(application.web.working_storage, "wait", lambda timeout, queues: not asked.append((*queues,)))

    assert ask(web, "wait", timeout=0.01, queues=["mail", "print"]) is True
    assert ask(web, "wait", timeout=0.01) is True  # as programs of an older version ask

    assert asked == [("mail", "print"), ()]
