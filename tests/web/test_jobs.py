from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from packhorse.client.app import Packhorse
from packhorse.conformance.builders import cases
from packhorse.core.job import State
from packhorse.core.outcome import Completed
from packhorse.monitor.serializers import iso, job_fields
from packhorse.storage.records import CheckIn, EventFilter, Filter, Page, Retention
from packhorse.web.reader import Reader
from tests.cli.yard import Yard

API = "/api/v1"


def ids(answer: dict) -> list[str]:
    return [item["id"] for item in answer["items"]]


# --- looking ----------------------------------------------------------------------------------------------------------


def test_jobs_are_listed_by_state(web: TestClient, yard: Yard):
    jobs = yard.in_every_state()

    for state in State:
        answer = web.get(f"{API}/jobs", params={"state": state, "count": "true"}).json()
        assert ids(answer) == [jobs[state].id]
        assert answer["count"] == {"number": 1, "exact": True}


def test_filter_words_and_parameters_narrow_together(web: TestClient, yard: Yard):
    yard.job("dead", queue="images")
    wanted = yard.job("dead", queue="mail", args={"to": "anna b"})
    yard.job("queued", queue="mail")

    assert ids(web.get(f"{API}/jobs", params={"q": "state:dead", "queue": "mail"}).json()) == [wanted.id]
    assert ids(web.get(f"{API}/jobs", params={"text": "anna b"}).json()) == [wanted.id]


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ({"q": "declined charge"}, ["apart", "phrase"]),
        ({"q": "charge declined"}, ["apart", "phrase"]),
        ({"q": '"declined charge"'}, ["phrase"]),
        ({"q": "'declined charge'"}, ["phrase"]),
        ({"q": 'text:"declined charge"'}, ["phrase"]),
        ({"text": "declined charge"}, ["phrase"]),
    ],
)
def test_words_are_found_wherever_they_stand_and_quoted_ones_as_they_stand(
    web: TestClient, yard: Yard, params: dict[str, str], found: list[str]
):
    notes = {"phrase": "a declined charge", "apart": "the charge was declined", "one": "declined"}
    jobs = {yard.add(args={"note": note}).id: name for name, note in notes.items()}

    listed = web.get(f"{API}/jobs", params=params)
    counted = web.get(f"{API}/count", params=params)
    page = web.get("/jobs", params=params, headers={"accept": "text/html"})

    assert sorted(jobs[job_id] for job_id in ids(listed.json())) == found
    assert counted.json()["number"] == len(found)
    assert sorted(name for job_id, name in jobs.items() if f'href="/jobs/{job_id}"' in page.text) == found


def test_a_cursor_goes_through_all_jobs_once(web: TestClient, yard: Yard):
    added = [yard.add().id for _ in range(7)]
    seen, cursor = [], ""
    while True:
        page = web.get(f"{API}/jobs", params={"limit": 3, "cursor": cursor}).json()
        seen += ids(page)
        cursor = page["next"]
        if not cursor:
            break

    assert seen == added[::-1]


def test_long_arguments_and_tracebacks_are_left_out_of_lists(web: TestClient, yard: Yard):
    job = yard.job("dead", args={"blob": "x" * 5_000})

    (item,) = web.get(f"{API}/jobs").json()["items"]

    assert item["args"] is None
    assert item["cut"] == ["args", "error"]
    assert item["error"] == {"type": "ValueError", "message": "cannot decode image 7", "place": "jobs.py:4"}
    assert "5,0" in item["call"]
    assert web.get(f"{API}/jobs/{job.id}").json()["args"] == {"blob": "x" * 5_000}


def test_a_job_has_the_fields_of_the_command_line_and_says_why(web: TestClient, yard: Yard):
    job = yard.job("scheduled")

    answer = web.get(f"{API}/jobs/{job.id}").json()

    assert set(job_fields(job).__struct_fields__) | {"call", "why", "host", "pid"} == set(answer)
    assert answer["due_at"] == iso(job.due_at)
    assert answer["why"].startswith("it is delayed until")


def test_whole_numbers_beyond_two_to_the_53_survive(web: TestClient, yard: Yard):
    number = 2**63 + 1
    job = yard.add(args={"n": number})

    assert str(number) in web.get(f"{API}/jobs/{job.id}").text


def test_an_unknown_job_is_a_problem_with_words(web: TestClient):
    answer = web.get(f"{API}/jobs/nothing")

    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "job_not_found"


@cases(
    "query",
    [
        "limit=0",
        "limit=201",
        "limit=x",
        "state=sleeping",
        "cursor=nonsense",
        "nonsense=1",
        "since=yesterdayish",
        "limit=1&limit=2",
        "priority=null",
        "q=%00",
        "queue=mail%00",
        f"text={'x' * 3_000}",
        f"q=args.x:{'x' * 3_000}",
    ],
)
def test_a_wrong_query_is_explained(web: TestClient, query: str):
    answer = web.get(f"{API}/jobs?{query}")

    assert answer.status_code == 400
    assert answer.json()["title"]


def test_the_log_and_the_events_of_a_job(web: TestClient, yard: Yard):
    job = yard.job("running")

    log = web.get(f"{API}/jobs/{job.id}/log").json()
    events = web.get(f"{API}/jobs/{job.id}/events").json()

    assert [line["message"] for line in log["items"]][-1] == "template ok"
    assert web.get(f"{API}/jobs/{job.id}/log", params={"after": log["last"]}).json()["items"] == []
    assert [event["kind"] for event in events["items"]] == ["added", "reserved", "started"]


def test_a_job_whose_events_are_gone_is_shown(web: TestClient, yard: Yard):
    job = yard.job("scheduled")
    yard.job("scheduled")  # the newest event of all stays
    yard.storage.prune(Retention(events=0))
    assert yard.storage.events(EventFilter(job_id=job.id)) == []

    page = web.get(f"/jobs/{job.id}")
    events = web.get(f"{API}/jobs/{job.id}/events")

    assert (page.status_code, events.status_code) == (200, 200)
    assert job.id in page.text
    assert events.json()["items"] == []


# --- creating ---------------------------------------------------------------------------------------------------------


def test_an_array_of_jobs_is_created_with_a_row_for_each(web: TestClient, yard: Yard):
    body = [{"task": "send", "args": {"n": number}, "queue": "mail", "known": False} for number in range(3)]
    body[1] |= {"unique": "one", "priority": 7}
    body[2] |= {"id": "my-own-id-1"}

    answer = web.post(f"{API}/jobs", json=body)
    again = web.post(f"{API}/jobs", json=body[1:2])

    assert answer.status_code == 201
    assert [(row["args"], row["priority"], row["is_new"]) for row in answer.json()] == [
        ({"n": 0}, 1, True),
        ({"n": 1}, 7, True),
        ({"n": 2}, 1, True),
    ]
    assert answer.json()[2]["id"] == "my-own-id-1"
    assert (again.status_code, again.json()[0]["id"]) == (200, answer.json()[1]["id"])
    assert yard.storage.count(Filter(queue="mail")).number == 3


@pytest.mark.parametrize(
    ("wrong", "status", "words"),
    [
        ({"task": "unheard_of"}, 404, "job 2 of 3: no task is called 'unheard_of'"),
        ({"task": "send", "known": False, "timeout": "soon"}, 400, "job 2 of 3: "),
        ({"task": "send", "known": False, "no_such": 1}, 400, "$[1]"),
        ({"task": "send", "known": False, "args": {"n": "x" * (1 << 20)}}, 413, "job 2 of 3: "),
    ],
)
def test_all_jobs_of_an_array_are_stored_or_none(
    web: TestClient, yard: Yard, wrong: dict[str, Any], status: int, words: str
):
    fine = {"task": "send", "args": {}, "queue": "mail", "known": False}

    answer = web.post(f"{API}/jobs", json=[fine, wrong, fine])

    assert answer.status_code == status, answer.text
    assert words in answer.json()["title"]
    assert yard.storage.count(Filter(queue="mail")).number == 0


def test_an_array_has_a_least_and_a_most(web: TestClient):
    fine = {"task": "send", "known": False}

    assert web.post(f"{API}/jobs", json=[]).status_code == 400
    assert web.post(f"{API}/jobs", json=[fine] * 1_001).status_code == 400
    assert web.post(f"{API}/jobs", json=[fine] * 1_000).status_code == 201


def test_a_job_is_created(web: TestClient, yard: Yard):
    yard.join()
    body = {"task": "resize", "args": {"image_id": 1}, "priority": 7, "timeout": "30s", "delay": 60}

    answer = web.post(f"{API}/jobs", json=body)

    assert answer.status_code == 201
    job = yard.get(answer.json()["id"])
    assert (job.task, job.args, job.priority, job.timeout) == ("resize", '{"image_id":1}', 7, 30_000_000)
    assert job.state is State.SCHEDULED
    assert job.created_by == "local"


def test_asking_twice_under_an_id_of_ones_own_adds_one_job(web: TestClient, yard: Yard):
    body = {"task": "resize", "id": "order-0000-4711", "args": {"width": 800}, "known": False}

    first, second = web.post(f"{API}/jobs", json=body), web.post(f"{API}/jobs", json=body)

    assert (first.status_code, first.json()["is_new"]) == (201, True)
    assert (second.status_code, second.json()["is_new"]) == (200, False)
    assert first.json()["id"] == second.json()["id"] == "order-0000-4711"
    assert yard.storage.count(Filter()).number == 1


def test_another_call_under_the_same_id_is_refused(web: TestClient, yard: Yard):
    body = {"task": "resize", "id": "order-0000-4711", "args": {"width": 800}, "known": False}
    web.post(f"{API}/jobs", json=body)

    other = web.post(f"{API}/jobs", json={**body, "args": {"width": 9}})

    assert other.status_code == 409
    assert "its arguments differ" in other.json()["title"]


def test_a_unique_twin_answers_200(web: TestClient):
    body = {"task": "resize", "args": {"image_id": 1}, "known": False, "unique": True}
    first = web.post(f"{API}/jobs", json=body)

    second = web.post(f"{API}/jobs", json=body)

    assert (first.status_code, second.status_code) == (201, 200)
    assert second.json()["id"] == first.json()["id"]
    assert second.json()["is_new"] is False


def test_arguments_that_workers_would_refuse_are_a_problem_that_names_them(web: TestClient, yard: Yard):
    app = Packhorse(yard.storage)

    @app.task
    def shrink(image_id: int, width: int = 800) -> None: ...

    yard.storage.announce(app.announcements())

    wrong = web.post(f"{API}/jobs", json={"task": "shrink", "args": {"image_id": "seven"}})
    lacking = web.post(f"{API}/jobs", json={"task": "shrink", "args": {"width": 7}})
    right = web.post(f"{API}/jobs", json={"task": "shrink", "args": {"image_id": 7}})
    forced = web.post(f"{API}/jobs", json={"task": "shrink", "args": {"image_id": "seven"}, "known": False})
    copied = web.post(f"{API}/jobs/{right.json()['id']}/copy", json={"args": {"image": 7}})

    assert (wrong.status_code, wrong.json()["code"], wrong.json()["argument"]) == (422, "bad_arguments", "image_id")
    assert wrong.json()["title"] == "shrink(): argument 'image_id': expected int, got str"
    assert (lacking.status_code, lacking.json()["title"]) == (422, "shrink() needs the argument 'image_id'")
    assert (right.status_code, forced.status_code) == (201, 201)
    assert (copied.status_code, copied.json()["argument"]) == (422, "image")


def test_an_unknown_task_names_the_nearest(web: TestClient, yard: Yard):
    yard.join()

    answer = web.post(f"{API}/jobs", json={"task": "resise"})

    assert answer.status_code == 404
    assert "resize" in answer.json()["hint"]


@cases(
    "body",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"task": 7}',
        b'{"task": "resize", "prioritty": 3}',
        b'{"task": "resize", "priority": 11}',
        b'{"task": "resize", "known": false, "delay": "soon"}',
        b'{"task": "../etc", "known": false}',
        b'{"task": "resize", "known": false, "at": "2030-01-01T00:00"}',
        b'{"task": "resize", "known": false, "at": "9999-12-31T23:59:59-14:00"}',
        b'{"task": "resize", "known": false, "at": "5000-01-01T00:00:01Z"}',
        b'{"task": "resize", "known": false, "queue": "."}',
        b'{"task": "..", "known": false}',
        b'{"task": "resize", "args": ' + b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_a_wrong_body_is_explained(web: TestClient, yard: Yard, body: bytes):
    answer = web.post(f"{API}/jobs", content=body, headers={"content-type": "application/json"})

    assert answer.status_code in (400, 404)
    assert answer.json()["title"]
    assert yard.storage.count(Filter()).number == 0


def test_a_filter_that_looks_too_deep_is_refused(web: TestClient, yard: Yard):
    yard.add()
    deep = ".".join(["args", *["a"] * 3_000])

    answer = web.get(f"{API}/jobs", params={"q": f"{deep}:1"})
    asked = web.post(f"{API}/work/find", json={"where": {"args": [{"path": ["a"] * 3_000, "value": "1"}]}})

    assert (answer.status_code, asked.status_code) == (400, 400)
    assert "3,000 levels deep" in answer.json()["title"]
    assert web.get(f"{API}/jobs").status_code == 200


def test_a_copy_may_have_other_arguments_and_keeps_masked_ones(web: TestClient, yard: Yard):
    job = yard.job("dead", args={"user": 1, "password": "hunter2"})
    shown = web.get(f"{API}/jobs/{job.id}").json()["args"]
    assert "hunter2" not in str(shown)

    answer = web.post(f"{API}/jobs/{job.id}/copy", json={"args": {**shown, "user": 2}, "priority": 9})

    assert answer.status_code == 201
    copy = yard.get(answer.json()["id"])
    assert copy.args == '{"user":2,"password":"hunter2"}'
    assert copy.priority == 9
    assert yard.get(job.id).state is State.DEAD


# --- steering ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "step", "after"),
    [
        ("queued", "abort", "aborted"),
        ("running", "abort", "running"),
        ("scheduled", "force_start", "queued"),
        ("retrying", "retry", "queued"),
        ("dead", "retry", "queued"),
        ("aborted", "retry", "queued"),
    ],
)
def test_a_job_is_steered(web: TestClient, yard: Yard, state: str, step: str, after: str):
    job = yard.job(state)

    answer = web.post(f"{API}/jobs/{job.id}/{step}")

    told = {"id": job.id, "changed": True, "state": after, "conflict": None, "stale": False}
    assert answer.json() == {**told, "requested": after == "running"}
    assert yard.get(job.id).state == after


def test_a_priority_is_set(web: TestClient, yard: Yard):
    job = yard.job("queued")

    assert web.post(f"{API}/jobs/{job.id}/priority", json={"priority": 7}).status_code == 200
    assert yard.get(job.id).priority == 7


def test_a_dead_job_is_deleted_once(web: TestClient, yard: Yard):
    job = yard.job("dead")

    assert web.delete(f"{API}/jobs/{job.id}").status_code == 200
    assert web.delete(f"{API}/jobs/{job.id}").status_code == 404
    assert yard.storage.get(job.id) is None


def test_what_the_state_does_not_allow_is_a_conflict(web: TestClient, yard: Yard):
    job = yard.job("running")

    answer = web.delete(f"{API}/jobs/{job.id}")

    assert answer.status_code == 409
    assert answer.json()["code"] == "wrong_state"
    assert yard.get(job.id).state is State.RUNNING


@pytest.mark.parametrize(("state", "requested"), [("queued", False), ("running", True)])
def test_an_abort_says_whether_it_is_certain(web: TestClient, yard: Yard, state: str, requested: bool):
    job = yard.job(state)

    answer = web.post(f"{API}/jobs/{job.id}/abort").json()

    assert (answer["state"], answer["requested"]) == ("running" if requested else "aborted", requested)


@cases("step", ["abort", "retry", "force_start", "priority", "copy"])
def test_nothing_changes_on_get(web: TestClient, yard: Yard, step: str):
    job = yard.job("dead")

    assert web.get(f"{API}/jobs/{job.id}/{step}").status_code == 405
    assert yard.get(job.id) == job


# --- many -------------------------------------------------------------------------------------------------------------


def test_a_preview_counts_and_shows_three(web: TestClient, yard: Yard):
    for _ in range(5):
        yard.job("dead")

    answer = web.post(f"{API}/bulk", json={"action": "retry", "filter": "dead", "preview": True}).json()

    assert answer["count"] == {"number": 5, "exact": True}
    assert len(answer["examples"]) == 3
    assert yard.storage.count(Filter(states=frozenset({State.DEAD}))).number == 5


def test_bulk_leaves_out_what_came_after_the_view(web: TestClient, yard: Yard):
    seen = [yard.job("dead").id for _ in range(3)]
    seen_at = web.get(f"{API}/jobs", params={"state": "dead"}).json()["seen_at"]
    newer = yard.job("dead")

    body = {"action": "delete", "filter": "state:dead", "seen_at": seen_at}
    answer = web.post(f"{API}/bulk", json=body).json()

    assert answer["changed"] == 3
    assert answer["skipped"] == {"changed since it was seen": 1}
    assert answer["next"] is None
    assert [yard.storage.get(job_id) for job_id in seen] == [None] * 3
    assert yard.get(newer.id).state is State.DEAD


def test_bulk_leaves_out_what_changes_before_its_turn(web: TestClient, yard: Yard, monkeypatch: pytest.MonkeyPatch):
    paid, other = yard.add(queue="mail"), yard.add(queue="mail")
    find = Reader.find

    def find_and_run_one(*given: Any) -> Page:
        page = find(*given)
        yard.finish(Completed(yard.start(paid).token, result='"paid"'))
        return page

    monkeypatch.setattr(Reader, "find", find_and_run_one)
    answer = web.post(f"{API}/queues/mail/purge", json={}).json()

    assert (answer["changed"], answer["skipped"]) == (1, {"changed since it was seen": 1})
    assert yard.get(paid.id).result == '"paid"'
    assert yard.storage.get(other.id) is None


def test_bulk_by_ids_leaves_out_what_has_changed_since_it_was_seen(web: TestClient, yard: Yard):
    again, dead = yard.job("dead", queue="a"), yard.job("dead", queue="b")
    seen_at = web.get(f"{API}/jobs", params={"state": "dead"}).json()["seen_at"]
    yard.storage.retry([again.id])
    yard.finish(Completed(yard.start(yard.get(again.id)).token))

    body = {"action": "delete", "ids": [again.id, dead.id], "seen_at": seen_at}
    answer = web.post(f"{API}/bulk", json=body).json()

    assert (answer["changed"], answer["skipped"]) == (1, {"changed since it was seen": 1})
    assert (yard.get(again.id).state, yard.storage.get(dead.id)) == (State.COMPLETED, None)


def test_a_running_job_that_gives_signs_of_life_is_aborted_as_it_was_seen(web: TestClient, yard: Yard):
    job = yard.job("running")
    seen_at = web.get(f"{API}/jobs", params={"state": "running"}).json()["seen_at"]
    yard.storage.check_in([CheckIn(job.token, "half way", 50)])

    answer = web.post(f"{API}/bulk", json={"action": "abort", "filter": "running", "seen_at": seen_at}).json()

    assert (answer["changed"], answer["skipped"]) == (1, {})
    assert yard.get(job.id).abort_at is not None


def test_bulk_goes_on_from_its_cursor(web: TestClient, yard: Yard, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("packhorse.web.operator_actions._BUDGET", -1.0)
    monkeypatch.setattr("packhorse.monitor.actions.BATCH_SIZE", 2)
    for _ in range(5):
        yard.job("queued", queue="mail")
    body, changed, calls = {"action": "abort", "filter": "queue:mail"}, 0, 0
    while True:
        answer = web.post(f"{API}/bulk", json=body).json()
        changed, calls = changed + answer["changed"], calls + 1
        if answer["next"] is None:
            break
        body |= {"cursor": answer["next"], "seen_at": answer["seen_at"]}

    assert (changed, calls) == (5, 3)


def test_bulk_by_ids_tells_what_was_left_alone(web: TestClient, yard: Yard):
    dead, queued = yard.job("dead"), yard.job("queued")

    body = {"action": "retry", "ids": [dead.id, queued.id, "nothing"]}
    answer = web.post(f"{API}/bulk", json=body).json()

    assert answer["changed"] == 1
    assert answer["skipped"] == {"gone": 1, "queued": 1}


@cases(
    "body",
    [
        {"action": "retry"},
        {"action": "retry", "filter": "  "},
        {"action": "reserve", "filter": "dead"},
        {"action": "explode", "filter": "dead"},
        {"action": "set_priority", "filter": "queued"},
        {"action": "set_queue", "filter": "dead"},
        {"action": "retry", "filter": "completed"},
        {"action": "retry", "filter": "dead", "ids": ["x"]},
    ],
)
def test_bulk_refuses_what_it_cannot_mean(web: TestClient, yard: Yard, body: dict):
    job = yard.job("dead")

    assert web.post(f"{API}/bulk", json=body).status_code == 400
    assert yard.get(job.id) == job


def test_jobs_are_moved_to_a_queue_that_is_known(web: TestClient, yard: Yard):
    running, many, one = yard.job("running", queue="mail"), yard.job("dead", queue="mail"), yard.add(queue="mail")
    yard.add(queue="slow")

    unknown = web.post(f"{API}/jobs/{one.id}/queue", json={"queue": "slwo"})
    moved = web.post(f"{API}/jobs/{one.id}/queue", json={"queue": "slow"})
    again = web.post(f"{API}/jobs/{one.id}/queue", json={"queue": "slow"})
    held = web.post(f"{API}/jobs/{running.id}/queue", json={"queue": "slow"})
    answer = web.post(f"{API}/bulk", json={"action": "set_queue", "queue": "slow", "filter": "queue:mail"}).json()

    assert [each.status_code for each in (unknown, moved, again, held)] == [404, 200, 409, 409]
    assert "slow" in unknown.json()["hint"]
    assert answer["changed"] == 1
    assert [yard.get(job.id).queue for job in (one, many, running)] == ["slow", "slow", "mail"]


def test_jobs_are_moved_to_a_queue_that_is_new_if_that_is_meant(web: TestClient, yard: Yard):
    one, two, three = (yard.add(queue="mail") for _ in range(3))
    refused = web.post(f"{API}/bulk", json={"action": "set_queue", "queue": "fresh", "filter": "queue:mail"})

    moved = web.post(f"{API}/jobs/{one.id}/queue", json={"queue": "fresh", "new": True})
    bulk = {"action": "set_queue", "new": True}
    by_id = web.post(f"{API}/bulk", json={**bulk, "queue": "fresher", "ids": [two.id]})
    by_filter = web.post(f"{API}/bulk", json={**bulk, "queue": "freshest", "filter": "queue:mail"})

    assert (refused.status_code, moved.status_code) == (404, 200)
    assert '"new": true' in refused.json()["hint"]
    assert [answer.json()["changed"] for answer in (by_id, by_filter)] == [1, 1]
    assert [yard.get(job.id).queue for job in (one, two, three)] == ["fresh", "fresher", "freshest"]


def test_the_word_null_is_text_like_any_other(web: TestClient, yard: Yard):
    wanted = yard.add(args={"text": "is null here"})
    yard.add(args={"text": "other"})

    assert ids(web.get(f"{API}/jobs", params={"text": "null"}).json()) == [wanted.id]


@pytest.mark.parametrize(
    ("path", "methods"), [("/jobs", {"GET", "HEAD", "POST"}), ("/jobs/x", {"GET", "HEAD", "DELETE"})]
)
def test_a_wrong_method_is_told_the_right_ones(web: TestClient, path: str, methods: set[str]):
    answer = web.put(API + path, json={})

    assert answer.status_code == 405
    assert {method.strip() for method in answer.headers["allow"].split(",")} == methods
