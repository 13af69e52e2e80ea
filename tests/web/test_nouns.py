"""Everything of the API that is not about one job."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from typing import get_args

import msgspec
import pytest
from starlette.testclient import TestClient

from packhorse import Packhorse
from packhorse.conformance.builders import cases
from packhorse.core.event import ForemanAction, ForemanOrder, Kind, Subject
from packhorse.core.job import State
from packhorse.core.metrics import STEPS
from packhorse.core.outcome import Completed
from packhorse.storage.records import ClientInfo, EventFilter, WorkerInfo
from packhorse.web import history
from packhorse.web.api import ENDPOINTS
from packhorse.web.application import make_application
from packhorse.web.security.access import decide_access
from packhorse.web.security.tokens import Tokens
from tests.children import until
from tests.cli.yard import FOREMAN, WORKER, Yard
from tests.web.conftest import BASE, MAIL_SECRET, bearer

API = "/api/v1"


def test_queues_tell_what_waits_what_runs_and_how_long(web: TestClient, yard: Yard):
    yard.job("queued", queue="mail")
    yard.job("running", queue="images")

    found = {queue["name"]: queue for queue in web.get(f"{API}/queues").json()["items"]}

    assert (found["mail"]["count"], found["mail"]["running"]) == (1, 0)
    assert found["mail"]["latency"] >= 0
    assert (found["images"]["count"], found["images"]["running"], found["images"]["latency"]) == (0, 1, None)
    assert found["mail"]["counts"] == {"queued": 1}


def test_a_queue_is_paused_and_resumed_by_name(web: TestClient, yard: Yard):
    yard.job("queued", queue="mail")

    assert web.post(f"{API}/queues/mail/pause", json={"why": "server down"}).json()["changed"] is True
    assert web.post(f"{API}/queues/mail/pause").json()["changed"] is False
    shown = web.get(f"{API}/queues/mail").json()
    assert (shown["is_paused"], shown["paused_by"], shown["paused_why"]) == (True, "local", "server down")
    assert web.post(f"{API}/queues/mail/resume").json()["changed"] is True
    assert web.get(f"{API}/queues/mail").json()["is_paused"] is False


def test_a_queue_is_paused_for_a_while(web: TestClient, yard: Yard):
    yard.job("queued", queue="mail")

    assert web.post(f"{API}/queues/mail/pause", json={"duration": "2h"}).json()["changed"] is True

    shown = web.get(f"{API}/queues/mail").json()
    begin, end = (datetime.fromisoformat(shown[name]) for name in ("paused_at", "paused_until"))
    assert end - begin == timedelta(hours=2)
    for wrong in ("soon", 0, -1):
        assert web.post(f"{API}/queues/mail/pause", json={"duration": wrong}).status_code == 400


def test_what_waits_in_a_queue_is_purged(web: TestClient, yard: Yard):
    stays = [yard.job("dead", queue="mail"), yard.job("queued", queue="other")]
    gone = [yard.job("queued", queue="mail"), yard.job("scheduled", queue="mail")]

    answer = web.post(f"{API}/queues/mail/purge").json()

    assert (answer["changed"], answer["skipped"], answer["next"]) == (2, {}, None)
    assert yard.storage.get_many([job.id for job in [*gone, *stays]]) == stays


def test_an_unknown_queue_is_not_paused(web: TestClient, yard: Yard):
    yard.job("queued", queue="mail")

    answer = web.post(f"{API}/queues/mial/pause")

    assert answer.status_code == 404
    assert "mail" in answer.json()["hint"]
    assert [queue.name for queue in yard.storage.queues()] == ["mail"]


def test_tasks_tell_how_their_jobs_went(web: TestClient, yard: Yard):
    yard.job("completed")
    yard.job("dead")

    found = {task["name"]: task for task in web.get(f"{API}/tasks").json()["items"]}

    measured = found["resize"]["measured"]
    assert (measured["runs"], measured["completed"], measured["failed"], measured["dead"]) == (2, 1, 1, 1)
    assert (measured["run_p50"], measured["run_p95"]) == (0.001, 0.89)
    assert measured["wait_p50"] <= measured["wait_p95"] <= measured["wait_p99"]


def test_workers_and_their_busy_slots_come_in_one_answer_each(web: TestClient, yard: Yard):
    job = yard.job("running")

    workers = web.get(f"{API}/workers").json()["items"]
    slots = web.get(f"{API}/busy_slots").json()["items"]

    assert [(worker["subject"], worker["host"], worker["is_alive"], worker["holds"]) for worker in workers] == [
        ("foreman", "mule", True, 0),
        ("worker", "mule", True, 1),
    ]
    assert [(slot["worker"], slot["job_id"], slot["args"], slot["progress"]) for slot in slots] == [
        (WORKER, job.id, {"image_id": 7}, 40)
    ]


def test_who_is_silent_for_longer_than_a_lease_is_gone(yard: Yard):
    app = Packhorse(storage=yard.storage, lease=0.2, heartbeat=0.1)
    yard.join()

    with TestClient(make_application(app, decide_access("127.0.0.1", Tokens(), open_mount=True)), base_url=BASE) as web:
        until(lambda: web.get(f"{API}/workers").json()["items"] == [], "they are listed no more")
        found = web.get(f"{API}/workers").json()

    assert [(each["id"], each["is_alive"]) for each in found["gone"]] == [(FOREMAN, False), (WORKER, False)]


def test_clients_and_subscribers_are_listed(web: TestClient, yard: Yard):
    yard.storage.join_client(ClientInfo("billing", "billing"))
    job = yard.job("queued")
    yard.storage.subscribe("billing", [job.id])

    assert [client["id"] for client in web.get(f"{API}/clients").json()["items"]] == ["billing"]
    assert web.get(f"{API}/jobs/{job.id}/subscribers").json()["items"] == ["billing"]


@pytest.fixture
def scheduled(yard: Yard) -> str:
    app = Packhorse(storage=yard.storage)

    @app.schedule("30 7 * * *", tz="Europe/Ljubljana", args={"kind": "daily"})
    @app.task
    def report(kind: str) -> None: ...

    app.put_schedules()
    return "report"


def test_a_schedule_says_its_plan_in_words(web: TestClient, scheduled: str):
    (schedule,) = web.get(f"{API}/schedules").json()["items"]

    assert schedule["says"] == "At 07:30 every day (Europe/Ljubljana)"
    assert len(schedule["coming"]) == 3
    assert schedule["args"] == {"kind": "daily"}


def test_the_latest_slots_of_a_schedule_are_told_and_of_no_other(web: TestClient, yard: Yard, scheduled: str):
    unknown = web.get(f"{API}/schedules/nope/ticks")

    assert web.get(f"{API}/schedules/{scheduled}/ticks").json() == {"items": []}
    assert (unknown.status_code, unknown.json()["code"]) == (404, "schedule_not_found")


def test_a_schedule_is_run_paused_skipped_and_removed(web: TestClient, yard: Yard, scheduled: str):
    path = f"{API}/schedules/{scheduled}"

    run = web.post(f"{path}/run")
    assert run.status_code == 201
    assert yard.get(run.json()["job_id"]).created_by == "local"
    first = web.get(f"{API}/schedules").json()["items"][0]["coming"][0]
    assert web.post(f"{path}/skip").json() == {"skipped_at": first}
    assert first not in web.get(f"{API}/schedules").json()["items"][0]["coming"]
    assert web.post(f"{path}/pause").json()["changed"] is True
    assert web.get(f"{API}/schedules").json()["items"][0]["paused_by"] == "local"
    assert web.post(f"{path}/resume").json()["changed"] is True
    deeds = [
        (form_action["kind"], form_action["queue"], form_action["data"]["by"])
        for form_action in web.get(f"{API}/audit").json()["items"]
    ]
    assert deeds == [(kind, scheduled, "local") for kind in ("resumed", "paused", "skipped", "run_now")]
    assert f'href="/jobs/{run.json()["job_id"]}"' in web.get("/audit").text
    assert web.delete(path).json()["changed"] is True
    assert yard.storage.schedules() == []
    assert web.post(f"{path}/run").status_code == 404


def test_failures_come_by_cause(web: TestClient, yard: Yard):
    jobs = [yard.job("dead") for _ in range(3)]

    (group,) = web.get(f"{API}/failures").json()["items"]

    assert (group["number"], group["task"], group["pattern"]) == (3, "resize", "ValueError: cannot decode image <…>")
    found = web.get(f"{API}/jobs", params={"cause": group["cause"]}).json()["items"]
    assert {job["id"] for job in found} == {job.id for job in jobs}


def test_series_are_in_seconds(web: TestClient, yard: Yard):
    yard.job("completed")

    series = web.get(f"{API}/series", params={"span": "2h"}).json()

    assert series["width"] == 60
    # Where a minute ends just now, the point of its beginning is another one.
    (point,) = [each for each in series["items"] if each["values"].get("completed")]
    assert (point["values"]["completed"], point["values"]["ran"]) == (1, 1.0)
    assert web.get(f"{API}/series", params={"task": "other"}).json()["items"] == []


def test_series_tell_how_long_all_together_waited_and_ran(web: TestClient, yard: Yard):
    for queue in ("mail", "images"):
        yard.job("completed", queue=queue)

    series = web.get(f"{API}/series", params={"span": "90d"}).json()

    found = [each["measured"] for each in series["intervals"] if each["measured"]["runs"]]
    assert sum(each["runs"] for each in found) == 2
    assert {(each["run_mean"], each["run_p50"], each["run_p99"]) for each in found} == {(1.0, 1.0, 1.0)}
    assert all(each["wait_p50"] <= each["wait_p95"] for each in found)
    assert series["intervals"][-1]["at"] == series["items"][-1]["at"]


def test_the_storage_tells_how_it_is(web: TestClient, yard: Yard, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("packhorse.storage.redis.health._SLOW", math.inf)  # this machine may be busy
    health = web.get(f"{API}/storage").json()

    told = yard.storage.health()
    assert health["kind"] == told.kind
    assert 0 <= health["latency"] < 60
    assert health["problems"] == told.problems


def test_totals_count_processed_and_failed_since_ever_and_today(web: TestClient, yard: Yard):
    yard.in_every_state()

    totals = web.get(f"{API}/totals").json()

    assert totals["states"] == dict.fromkeys(State, 1)
    assert (totals["processed"], totals["failed"]) == (3, 2)
    assert totals["today"]["completed"] == 1
    assert (totals["workers"], totals["foremen"], totals["slots"]) == (1, 1, 4)


def test_the_audit_tells_who_did_what(web: TestClient, yard: Yard):
    dead, queued = yard.job("dead", queue="mail"), yard.job("queued", queue="mail")
    web.post(f"{API}/jobs/{dead.id}/retry")
    web.post(f"{API}/jobs/{queued.id}/abort")
    web.post(f"{API}/queues/mail/pause", json={"why": "tired"})
    (group,) = yard.storage.failures()
    web.post(f"{API}/failures/{group.cause}/silence", json={"duration": "3d"})
    yard.storage.order(FOREMAN, ForemanOrder(ForemanAction.QUIET), by="ann")

    deeds = web.get(f"{API}/audit").json()

    assert [(form_action["kind"], form_action["data"]["by"]) for form_action in deeds["items"]] == [
        ("ordered", "ann"),
        ("silenced", "local"),
        ("paused", "local"),
        ("aborted", "local"),
        ("retried", "local"),
    ]
    assert deeds["next"] is None
    assert f'failure <a href="/failures/{group.cause}">' in web.get("/audit").text


def test_the_audit_of_one_operator_leaves_out_the_others(web: TestClient, yard: Yard):
    jobs = [yard.job("queued") for _ in range(6)]
    for place, job in enumerate(jobs):
        yard.storage.set_priority([job.id], 7, by="anna" if place % 3 else "boris")

    mine = web.get(f"{API}/audit", params={"by": "boris"}).json()
    page = web.get("/audit?by=boris").text

    assert [form_action["job_id"] for form_action in mine["items"]] == [jobs[3].id, jobs[0].id]
    assert "boris" in page
    assert "anna" not in page


def test_the_audit_goes_back_page_by_page(web: TestClient, yard: Yard):
    for job in [yard.job("dead") for _ in range(5)]:
        web.post(f"{API}/jobs/{job.id}/retry")
    seen, before = [], None
    while True:
        page = web.get(f"{API}/audit", params={"limit": 2, **({"before": before} if before else {})}).json()
        seen += [form_action["id"] for form_action in page["items"]]
        before = page["next"]
        if before is None:
            break

    assert len(seen) == len(set(seen)) == 5
    assert seen == sorted(seen, reverse=True)


@pytest.mark.parametrize("window", [2, 3, 50_000])
def test_events_of_a_kind_are_found_look_by_look_in_both_directions(
    web: TestClient, yard: Yard, window: int, monkeypatch: pytest.MonkeyPatch
):
    dead = [yard.job("dead").id for _ in range(3)]
    [yard.job("completed") for _ in range(2)]
    monkeypatch.setattr(history, "WINDOW", window)

    def walk(word: str, start: int | None, onward: str) -> list[str]:
        found: list[str] = []
        for _ in range(100):
            query = {"kind": "broken", "limit": 2} | ({word: start} if start is not None else {})
            page = web.get(f"{API}/events", params=query).json()
            found += [event["job_id"] for event in page["items"]]
            if page[onward] in (None, start):
                return found
            start = page[onward]
        raise AssertionError("it never ends")

    assert walk("after", 0, "last") == dead
    assert walk("before", None, "next") == dead[::-1]


def test_events_have_their_object_if_it_is_asked_for(web: TestClient, yard: Yard):
    job = yard.job("completed", args={"password": "hunter2", "n": 1})

    told = web.get(f"{API}/events", params={"object": 1}).json()["items"][::-1]
    of_job = web.get(f"{API}/jobs/{job.id}/events?object=1").json()["items"]
    plain = web.get(f"{API}/events").json()["items"]

    assert of_job == [event for event in told if event["job_id"] == job.id]
    assert [event["object"]["state"] for event in of_job] == ["queued", "reserved", "running", "completed"]
    assert of_job[0]["object"]["args"] == {"password": "•••", "n": 1}
    of_task = ["max_attempts", "attempts_left"]
    assert of_job[2]["object"]["unknown"] == [
        *of_task, "progress", "progress_text", "checkin", "updated_at", "checkin_at",
    ]  # fmt: skip
    assert of_job[3]["object"].pop("unknown") == of_task
    now = web.get(f"{API}/jobs/{job.id}").json()
    assert of_job[3]["object"].items() <= now.items()
    worker = next(event for event in told if event["subject"] == "worker")
    assert (worker["queue"], worker["object"]["id"], worker["data"].get("object")) == ("resize,mail", WORKER, None)
    assert all("object" not in event for event in plain)


def test_of_a_job_that_is_gone_the_object_says_what_is_not_known(web: TestClient, yard: Yard):
    job = yard.job("completed")
    yard.storage.delete([job.id])

    *_, last = web.get(f"{API}/jobs/{job.id}/events?object=1").json()["items"]

    assert (last["object"]["state"], last["object"]["attempts"]) == ("completed", 1)
    assert {"task", "args", "result"} <= set(last["object"]["unknown"])


def test_events_are_found_by_kind(web: TestClient, yard: Yard):
    yard.job("dead")

    found = web.get(f"{API}/events", params={"kind": "broken"}).json()["items"]

    assert [event["data"]["error"] for event in found] == ["ValueError: cannot decode image 7"]


# --- probes and metrics -----------------------------------------------------------------------------------------------


def test_health_needs_a_foreman_and_readiness_does_not(web: TestClient, yard: Yard):
    assert web.get("/healthz").status_code == 503
    assert web.get("/readyz").json()["status"] == "ok"

    yard.join()

    assert web.get("/healthz").json()["status"] == "ok"


def test_no_two_metrics_are_one_family_to_openmetrics(web: TestClient, yard: Yard):
    yard.job("dead", queue="mail")
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", web.get("/metrics").text, re.MULTILINE))

    families = [name.removesuffix("_total") if kind == "counter" else name for name, kind in kinds.items()]
    samples = [
        f"{name}{end}" for name in families for end in ("", "_total", "_created", "_bucket", "_count", "_sum", "_info")
    ]

    assert len(set(families)) == len(families) == len(kinds)
    assert len(set(samples)) == len(samples)
    assert all(name.endswith("_total") for name, kind in kinds.items() if kind == "counter")


def test_metrics_are_text_that_prometheus_reads(web: TestClient, yard: Yard):
    yard.job("queued", queue="odd.queue")
    yard.job("dead", queue="mail")

    answer = web.get("/metrics")

    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    assert 'packhorse_jobs{queue="odd.queue",state="queued"} 1' in lines
    assert 'packhorse_job_outcomes_total{what="dead"} 1' in lines
    assert "packhorse_workers 1" in lines
    pattern = re.compile(r'(# (HELP|TYPE) .+|[a-z_]+(\{([a-z]+="[^"]*",?)+\})? -?[0-9.e+-]+)')
    assert [line for line in lines if not pattern.fullmatch(line)] == []


@pytest.mark.parametrize("what", ["run", "wait"])
def test_how_long_attempts_waited_and_ran_is_a_histogram(web: TestClient, yard: Yard, what: str):
    yard.job("completed")
    yard.finish(Completed(yard.start(yard.add()).token, ran=20_000))

    lines = web.get("/metrics").text.splitlines()

    metric = f"packhorse_{what}_seconds"
    found = dict(line.rsplit(" ", 1) for line in lines if line.startswith(f"{metric}_"))
    below = [int(number) for name, number in found.items() if name.startswith(f"{metric}_bucket")]
    assert f"# TYPE {metric} histogram" in lines
    assert (below, len(below)) == (sorted(below), len(STEPS))
    assert found[f'{metric}_bucket{{le="+Inf"}}'] == found[f"{metric}_count"] == "2"
    assert list(found)[-2:] == [f"{metric}_sum", f"{metric}_count"]
    if what == "run":
        assert [found[f'{metric}_bucket{{le="{limit}"}}'] for limit in ("0.015", "0.02", "0.8", "1")] == list("0112")
        assert found[f"{metric}_sum"] == "1.02"


# --- the document -----------------------------------------------------------------------------------------------------


def test_the_document_knows_every_endpoint(web: TestClient):
    document = web.get(f"{API}/openapi.json").json()

    told = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert told == {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS} | {("GET", "/stream")}
    assert document["openapi"] == "3.1.0"
    assert document["servers"] == [{"url": API}]


def test_every_reference_in_the_document_leads_somewhere(web: TestClient):
    text = web.get(f"{API}/openapi.json").text
    schemas = msgspec.json.decode(text)["components"]["schemas"]

    names = set(re.findall(r'"#/components/schemas/([^"]+)"', text))

    assert names <= set(schemas)
    assert {"JobPage", "ListedJob", "Problem", "NewJobBody"} <= names


@cases("endpoint", ENDPOINTS)
def test_every_endpoint_says_what_it_does_and_names_no_key_with_a_capital(endpoint):
    assert endpoint.summary
    told = [kind for kind in (endpoint.query, endpoint.body, endpoint.answer) if kind is not None]
    kinds = [each for kind in told for each in get_args(kind) or (kind,) if isinstance(each, type)]
    for kind in [kind for kind in kinds if issubclass(kind, msgspec.Struct)]:  # a text has no keys
        assert all(field.name == field.name.lower() for field in msgspec.structs.fields(kind))


# --- orders to workers ------------------------------------------------------------------------------------------------


def orders(yard: Yard) -> list[dict[str, object]]:
    found = yard.storage.events(EventFilter(subject=Subject.FOREMAN, kind=Kind.ORDERED))
    return [{**(event.data or {}), "foreman": event.owner} for event in found]


def test_a_pool_in_a_program_is_not_restarted_nor_scaled(web: TestClient, yard: Yard):
    yard.storage.join(WorkerInfo("01a0-pool", Subject.FOREMAN, host="mule", pid=13, info={"in_program": True}))
    yard.storage.join(WorkerInfo("01a0-its-own", foreman="01a0-pool", host="mule", pid=13))

    refused = [
        web.post(f"{API}/workers/01a0-pool/restart"),
        web.post(f"{API}/workers/01a0-its-own/restart"),
        web.post(f"{API}/workers/01a0-pool/scale", json={"slots": 3}),
    ]

    assert [answer.status_code for answer in refused] == [400, 400, 400]
    assert all("is a pool in a program" in answer.json()["title"] for answer in refused)
    assert web.post(f"{API}/workers/01a0-pool/quiet").status_code == 200
    assert [each["do"] for each in orders(yard)] == ["quiet"]


def test_foremen_and_workers_are_ordered_about(web: TestClient, yard: Yard):
    yard.join()

    assert web.post(f"{API}/workers/{FOREMAN}/quiet").json() == {"id": FOREMAN}
    assert web.post(f"{API}/workers/{WORKER}/restart").status_code == 200
    assert web.post(f"{API}/workers/{FOREMAN}/scale", json={"least": 2, "most": 8, "slots": 3}).status_code == 200
    assert web.post(f"{API}/workers/{WORKER}/stop", json={"now": True}).status_code == 200

    assert orders(yard) == [
        {"do": "quiet", "by": "local", "foreman": FOREMAN},
        {"do": "restart", "worker": WORKER, "by": "local", "foreman": FOREMAN},
        {"do": "scale", "least": 2, "most": 8, "slots": 3, "by": "local", "foreman": FOREMAN},
        {"do": "stop", "worker": WORKER, "now": True, "by": "local", "foreman": FOREMAN},
    ]


def test_slots_are_changed_alone(web: TestClient, yard: Yard):
    yard.join()

    assert web.post(f"{API}/workers/{FOREMAN}/scale", json={"slots": 3}).status_code == 200
    assert orders(yard) == [{"do": "scale", "slots": 3, "by": "local", "foreman": FOREMAN}]


def test_orders_that_nobody_can_follow_are_refused(web: TestClient, yard: Yard):
    yard.join()

    assert web.post(f"{API}/workers/nobody/quiet").status_code == 404
    assert web.post(f"{API}/workers/{WORKER}/scale", json={"least": 1, "most": 1}).status_code == 400
    assert web.post(f"{API}/workers/{FOREMAN}/scale", json={"least": 3, "most": 1}).status_code == 400
    assert web.post(f"{API}/workers/{FOREMAN}/scale", json={"least": 3}).status_code == 400
    assert web.post(f"{API}/workers/{FOREMAN}/scale", json={}).status_code == 400
    assert orders(yard) == []


def test_a_token_of_some_queues_does_not_order_workers_about(guarded_web: TestClient, yard: Yard):
    yard.join()

    assert guarded_web.post(f"{API}/workers/{FOREMAN}/quiet", headers=bearer(MAIL_SECRET)).status_code == 403
    assert "Quiet" not in guarded_web.get("/workers", headers=bearer(MAIL_SECRET)).text
    assert orders(yard) == []
