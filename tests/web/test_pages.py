from __future__ import annotations

import html
import json
import re
from urllib.parse import quote

import pytest
from markupsafe import escape
from starlette.testclient import TestClient

from packhorse import Packhorse
from packhorse.conformance.builders import cases
from packhorse.core.clock import DAY, HOUR, SECOND, to_datetime
from packhorse.core.event import Kind
from packhorse.core.ids import new_id
from packhorse.core.job import NewJob, Reason, State
from packhorse.core.outcome import Failed, Failure
from packhorse.core.settings import mask_url
from packhorse.monitor import health
from packhorse.storage.records import EventFilter, Filter, Health, LogLine, Retention
from packhorse.web.application import Application
from packhorse.web.cache import Cache
from packhorse.web.security.operator import Role
from tests.cli.yard import WORKER, Yard
from tests.unchecked import unchecked
from tests.web.conftest import BASE, SECRETS

HTML = {"accept": "text/html"}
FORM = {"accept": "text/html", "origin": BASE, "content-type": "application/x-www-form-urlencoded"}
LISTS = ["/", "/jobs", "/failures", "/queues", "/tasks", "/workers", "/schedules", "/storage", "/audit"]
HOSTILE = "<img src=x onerror=alert(1)>\"'`{{7*7}}\u202e\x1b[31m"


def test_a_click_on_an_event_shows_the_job_as_it_was(web: TestClient, yard: Yard):
    job = yard.job("dead")
    began = yard.storage.events(EventFilter(job_id=job.id, kind=Kind.STARTED))[0]

    plain = web.get(f"/jobs/{job.id}", headers=HTML).text
    then = html.unescape(web.get(f"/jobs/{job.id}?event={began.id}", headers=HTML).text)
    yard.storage.delete([job.id])
    gone = html.unescape(web.get(f"/jobs/{job.id}?event={began.id}", headers=HTML).text)

    assert f'href="?event={began.id}#e{began.id}"' in plain
    assert '"state": "running"' not in plain
    assert '"state": "running"' in then
    assert '"task": "resize"' in then
    assert '"state": "running"' in gone
    assert re.search(r"no longer known: [^<]*task", gone)


@cases("number", ["0", "x", "-1", "9" * 30, "999999"])
def test_an_event_that_is_not_the_jobs_shows_nothing(web: TestClient, yard: Yard, number: str):
    job = yard.add()

    answer = web.get(f"/jobs/{job.id}?event={number}", headers=HTML)

    assert answer.status_code == 200
    assert "The job as it was after this</p>" not in answer.text


def filled(yard: Yard) -> dict[State, str]:
    """Jobs in every state, a schedule, and somebody who did something."""
    app = Packhorse(storage=yard.storage)

    @app.schedule("30 7 * * *")
    @app.task
    def report() -> None: ...

    app.put_schedules()
    jobs = {state: job.id for state, job in yard.in_every_state().items()}
    yard.storage.pause("for-queued", by="anna", why="tired")
    return jobs


@cases("path", LISTS)
def test_every_page_is_there_on_an_empty_storage(web: TestClient, path: str):
    answer = web.get(path, headers=HTML)

    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("notes", [["this SQLite has a fault"], []])
def test_not_all_is_well_with_a_storage_of_which_there_is_something_to_know(
    web: TestClient, monkeypatch: pytest.MonkeyPatch, notes: list[str]
):
    health = Health("sqlite", "sqlite:///jobs.db", "3", 1, 200, notes=notes)
    monkeypatch.setattr(Cache, "health", lambda cache: health)

    text = web.get("/storage", headers=HTML).text

    assert ("All is well" in text) == (not notes)
    assert text.count("This SQLite has a fault.") == len(notes)


def test_every_page_is_there_on_a_busy_one(web: TestClient, yard: Yard):
    filled(yard)

    for path in [*LISTS, *(f"/?range={name}" for name in ("15m", "2h", "48h", "7d", "90d", "x"))]:
        answer = web.get(path, headers=HTML)
        assert answer.status_code == 200, path
        assert len(answer.content) < 120_000, path


@cases("path", ["/", "/queues/mail", "/tasks", "/tasks/resize"])
def test_a_page_may_be_about_a_stretch_of_the_past(web: TestClient, yard: Yard, path: str):
    yard.job("completed", queue="mail")
    week_ago = to_datetime(yard.storage.now() - 7 * DAY)

    then = web.get(f"{path}?from={week_ago:%Y-%m-%d}T00:00Z&to={week_ago:%Y-%m-%d}T12:00Z", headers=HTML)
    nonsense = web.get(f"{path}?from=dawn&to=dusk", headers=HTML)

    assert then.status_code == 200
    assert f" to {week_ago:%Y-%m-%d} ×" in then.text  # two days are the fewest
    assert nonsense.status_code == 400
    assert "is not a time" in nonsense.text


@cases("state", State)
def test_a_job_has_a_page_in_every_state(web: TestClient, yard: Yard, state: State):
    job = yard.job(state)

    text = web.get(f"/jobs/{job.id}", headers=HTML).text

    assert job.id in text
    assert f"s-{state}" in text
    assert "image_id" in text


def test_there_are_pages_for_a_queue_a_task_and_a_failure(web: TestClient, yard: Yard):
    job = yard.job("dead", queue="mail")

    assert "Next jobs" in web.get("/queues/mail", headers=HTML).text
    assert "How it fails" in web.get("/tasks/resize", headers=HTML).text
    failure = web.get(f"/failures/{job.cause}", headers=HTML).text
    assert "cannot decode image" in failure
    assert "Retry all of this cause" in failure


def test_a_page_has_one_heading_landmarks_and_nothing_inline(web: TestClient, yard: Yard):
    jobs = filled(yard)

    for path in [*LISTS, f"/jobs/{jobs[State.DEAD]}", f"/jobs/{jobs[State.DEAD]}/copy", "/jobs/new"]:
        text = web.get(path, headers=HTML).text
        assert text.count("<h1") == 1
        assert text.count("<main") == 1
        assert not re.search(r"\sstyle=|\son[a-z]+=|javascript:|<style", text)
        assert not re.search(r"<script(?![^>]*\ssrc=)", text)
        assert not re.search(r'(src|href)="(https?:)?//', text)


def test_what_a_static_page_needs_is_served_and_may_be_kept(web: TestClient):
    text = web.get("/", headers=HTML).text

    for path in re.findall(r'(?:src|href)="(/static/[^"]+)"', text):
        answer = web.get(path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["content-type"].split(";")[0] in ("text/css", "text/javascript", "image/svg+xml")


@cases("path", ["/static/x/../main.js", "/static/x/..%2f..%2fapplication.py", "/static/x/nothing.js"])
def test_nothing_but_the_static_files_is_served(web: TestClient, path: str):
    assert web.get(path).status_code in (404, 405)


# --- hostile text -----------------------------------------------------------------------------------------------------


def test_hostile_text_is_only_ever_text(web: TestClient, yard: Yard):
    new = NewJob(new_id(), "resize", "mail", json.dumps({HOSTILE: HOSTILE}), created_by=HOSTILE)
    unchecked(yard.storage, "enqueue")([new])
    job = yard.start(yard.get(new.id))
    yard.storage.check_in([])
    failure = Failure(HOSTILE, HOSTILE, traceback=f'  File "{HOSTILE}", line 1, in f\n{HOSTILE}', place=HOSTILE)
    yard.finish(Failed(job.token, failure))
    unchecked(yard.storage, "pause")("mail", by=HOSTILE, why=HOSTILE)
    unchecked(yard.storage, "retry")([job.id], by=HOSTILE)
    (group,) = yard.storage.failures()

    for path in [
        *LISTS,
        f"/jobs/{job.id}",
        f"/jobs/{job.id}/copy",
        "/queues/mail",
        "/tasks/resize",
        f"/failures/{group.cause}",
        f"/jobs?q={quote(HOSTILE)}",
        f"/find?q={quote(HOSTILE)}",
        "/login?onward=%22><script>",
    ]:
        text = web.get(path, headers=HTML, follow_redirects=True).text
        assert "<img src=x" not in text
        assert "<script>" not in text
        assert ">49<" not in text
        assert "\x1b" not in text
        assert "\u202e" not in re.sub(r"value=\"[^\"]*\"|<textarea[^>]*>[^<]*", "", text)


# --- finding ----------------------------------------------------------------------------------------------------------


def test_the_find_box_leads_to_what_is_meant(web: TestClient, yard: Yard):
    job = yard.add(queue="mail")
    yard.join()

    def leads_to(text: str) -> str:
        return web.get("/find", params={"q": text}, headers=HTML).headers["location"]

    assert leads_to(job.id) == f"/jobs/{job.id}"
    assert leads_to(job.id[-8:]) == f"/jobs/{job.id}"
    assert leads_to("mail") == "/queues/mail"
    assert leads_to("send_notice") == "/tasks/send_notice"
    assert leads_to("state:dead") == "/jobs?q=state%3Adead"


def test_a_wrong_filter_is_explained_on_the_page(web: TestClient):
    answer = web.get("/jobs", params={"q": "qeue:mail"}, headers=HTML)

    assert answer.status_code == 400
    assert "Jobs cannot be found by" in answer.text


def test_a_page_of_jobs_leads_to_the_next(web: TestClient, yard: Yard):
    added = [yard.add().id for _ in range(60)]
    first = web.get("/jobs", headers=HTML).text
    (path,) = re.findall(r'rel="next" href="([^"]+)"', first)

    second = web.get(path.replace("&amp;", "&"), headers=HTML).text

    assert all(job_id in first for job_id in added[-50:])
    assert all(job_id in second for job_id in added[:10])


@cases(
    ("path", "leads_to"),
    [
        ("/worker_pools", "/workers"),
        ("/busy_workers", "/jobs?state=running"),
        ("/dead_jobs", "/jobs?state=dead"),
        ("/retry_jobs", "/jobs?state=retrying"),
        ("/scheduled_jobs", "/jobs?state=scheduled"),
    ],
)
def test_addresses_that_are_easy_to_remember_lead_there(web: TestClient, path: str, leads_to: str):
    assert web.get(path, headers=HTML).headers["location"] == leads_to


# --- doing ------------------------------------------------------------------------------------------------------------


@cases(
    ("state", "step", "after"),
    [("dead", "retry", "queued"), ("queued", "abort", "aborted"), ("scheduled", "force_start", "queued")],
)
def test_a_button_does_what_it_says(web: TestClient, yard: Yard, state: str, step: str, after: str):
    job = yard.job(state)

    answer = web.post(f"/jobs/{job.id}/{step}", headers=FORM)

    assert answer.status_code == 303
    assert yard.get(job.id).state == after
    assert 'role="status"' in web.get(answer.headers["location"], headers=HTML).text


def test_a_job_is_deleted_after_a_question(web: TestClient, yard: Yard):
    job = yard.job("dead")

    assert "Delete this job?" in web.get(f"/jobs/{job.id}/delete", headers=HTML).text
    assert yard.get(job.id).state is State.DEAD
    assert web.post(f"/jobs/{job.id}/delete", headers=FORM).status_code == 303
    gone = web.get(f"/jobs/{job.id}", headers=HTML)
    assert gone.status_code == 404
    assert "deleted" in gone.text


def test_a_copy_is_run_with_other_arguments(web: TestClient, yard: Yard):
    job = yard.job("dead", args={"user": 1, "token": "hunter2"})
    page = web.get(f"/jobs/{job.id}/copy", headers=HTML).text
    assert "hunter2" not in page

    body = {"args": '{"user": 2, "token": "•••"}', "priority": "9", "queue": "mail"}
    answer = web.post(f"/jobs/{job.id}/copy", data=body, headers={"origin": BASE})

    copy = yard.get(re.search(r"/jobs/([^?]+)", answer.headers["location"])[1])
    assert (copy.args, copy.priority, copy.queue) == ('{"user":2,"token":"hunter2"}', 9, "mail")


def test_a_new_job_comes_from_a_form(web: TestClient, yard: Yard):
    yard.join()

    answer = web.post("/jobs/new", data={"task": "resize", "args": '{"image_id": 3}'}, headers={"origin": BASE})

    assert yard.get(re.search(r"/jobs/([^?]+)", answer.headers["location"])[1]).args == '{"image_id":3}'


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"task": "resise"}, "Did you mean &#39;resize&#39;? Tick the box below"),
        ({"args": "{"}, "The arguments are not JSON"),
        ({"priority": "x"}, "&#39;x&#39; is not a priority."),
        ({"queue": "no/../queue"}, "queue"),
    ],
)
def test_a_wrong_form_comes_back_with_all_that_was_typed_and_is_explained(
    web: TestClient, yard: Yard, body: dict[str, str], told: str
):
    yard.join()
    typed = {"task": "resize", "args": '{"image_id": 77}', "queue": "mail", "priority": "9", "delay": "11m", **body}

    answer = web.post("/jobs/new", data={**typed, "unknown": "no"}, headers={"origin": BASE, "accept": "text/html"})

    assert answer.status_code in (400, 404)
    assert told in answer.text
    assert "&#34;known&#34;" not in answer.text
    for value in typed.values():
        assert str(escape(value)) in answer.text.partition("<form class")[2]
    assert yard.storage.count(Filter()).number == 0


def test_a_wrong_copy_comes_back_with_all_that_was_typed(web: TestClient, yard: Yard):
    job = yard.add(args={"user": 1})
    typed = {"args": '{"user": 2', "queue": "mail", "priority": "9", "delay": "11m"}

    answer = web.post(f"/jobs/{job.id}/copy", data=typed, headers={"origin": BASE, "accept": "text/html"})

    assert answer.status_code == 400
    assert "The arguments are not JSON" in answer.text
    for value in typed.values():
        assert str(escape(value)) in answer.text.partition("<form class")[2]


def test_a_filter_that_is_misspelt_does_not_say_that_there_are_no_jobs(web: TestClient, yard: Yard):
    yard.add()

    answer = web.get("/jobs?q=deaad", headers=HTML)

    assert answer.status_code == 400
    assert "did you mean &#39;dead&#39;?</b> To search for" in answer.text
    assert "There are no jobs" not in answer.text


def test_a_cause_whose_jobs_were_aborted_by_their_time_limit_offers_them_for_a_retry(web: TestClient, yard: Yard):
    job = yard.start(yard.add())
    yard.finish(Failed(job.token, Failure("TimeLimit", "it ran for longer than 2s"), reason=Reason.JOB_TIMEOUT))
    assert yard.get(job.id).state is State.ABORTED

    text = web.get(f"/failures/{yard.get(job.id).cause}", headers=HTML).text

    assert ">1 aborted</a>" in text
    assert "Retry all that are aborted" in text
    assert "Retry all of this cause" not in text


def test_failures_and_overview_say_how_many_are_silenced(web: TestClient, yard: Yard):
    job = yard.job("dead")
    other = yard.start(yard.add("report"))
    yard.finish(Failed(other.token, Failure("ValueError", "no")))
    yard.storage.silence_failure(yard.get(job.id).cause or "", DAY)

    text = web.get("/failures", headers=HTML).text
    assert "1 failure in the last 48 hours, 1 kind in all, beside 1 of 1 kind that is silenced." in text
    assert "1 kind, 1 silenced" in web.get("/", headers=HTML).text


def test_the_audit_tells_how_long_a_failure_is_silenced_in_words(web: TestClient, yard: Yard):
    yard.job("dead")
    (group,) = yard.storage.failures()
    yard.storage.silence_failure(group.cause, 3 * DAY, by="anna")

    row = re.search(r"<tr data-row>.*</tr>", web.get("/audit", headers=HTML).text)

    assert re.sub("<[^>]+>", "", row[0]).endswith(f"failure {group.cause}task resize · duration 3 d")


def test_a_queue_is_paused_with_a_reason(web: TestClient, yard: Yard):
    yard.add(queue="mail")

    web.post("/queues/mail/pause", data={"why": "server down"}, headers={"origin": BASE})

    assert "server down" in web.get("/queues", headers=HTML).text
    web.post("/queues/mail/resume", headers=FORM)
    assert "server down" not in web.get("/queues", headers=HTML).text


def test_ticked_jobs_are_shown_before_anything_is_done(web: TestClient, yard: Yard):
    jobs = [yard.job("dead") for _ in range(3)]
    form = {"action": "retry", "scope": "ticked", "id": [job.id for job in jobs[:2]], "back": "/jobs?state=dead"}

    asked = web.post("/bulk", data=form, headers={"origin": BASE, "accept": "text/html"})
    assert asked.status_code == 200
    assert "Retry" in asked.text
    assert " data-posted>" in asked.text  # a browser must not ask for it again by itself
    assert " data-posted>" not in web.get("/jobs", headers=HTML).text
    assert yard.get(jobs[0].id).state is State.DEAD
    answer = web.post("/bulk", data={**form, "sure": "yes"}, headers={"origin": BASE})

    assert answer.headers["location"] == "/jobs?state=dead&said=bulk&did=retry&changed=2&skipped=0"
    assert "<p>2 jobs were retried.</p>" in web.get(answer.headers["location"], headers=HTML).text
    assert [yard.get(job.id).state for job in jobs] == ["queued", "queued", "dead"]


@cases(
    ("did", "changed", "skipped", "said"),
    [
        ("retry", "1", "0", "1 job was retried."),
        ("abort", "1200", "1", "1,200 jobs were aborted or asked to stop, 1 skipped."),
        ("delete", "0", "2", "No job was deleted: 2 were skipped."),
        ("delete", "0", "0", "No job was deleted."),
        ("<b>", "x", "", "No job was changed."),
    ],
)
def test_what_was_done_to_many_is_said_in_a_sentence(web: TestClient, did: str, changed: str, skipped: str, said: str):
    query = {"said": "bulk", "did": did, "changed": changed, "skipped": skipped}

    assert f"<p>{said}</p>" in web.get("/jobs", params=query, headers=HTML).text


def test_more_than_a_hundred_want_their_number_typed(web: TestClient, yard: Yard):
    for _ in range(101):
        yard.add(queue="mail")
    form = {
        "action": "abort",
        "scope": "all",
        "filter": "queue:mail",
        "seen_at": str(yard.storage.now()),
        "sure": "yes",
        "expected": "101",
        "back": "/jobs",
    }
    headers = {"origin": BASE, "accept": "text/html"}

    assert "That was not the number" in web.post("/bulk", data={**form, "typed": "100"}, headers=headers).text
    assert yard.storage.count(Filter(states=frozenset({State.ABORTED}))).number == 0
    answer = web.post("/bulk", data={**form, "typed": "101"}, headers=headers)

    assert "changed=101" in answer.headers["location"]


def test_of_the_ticked_those_that_change_after_the_question_are_left_alone(web: TestClient, yard: Yard):
    jobs = [yard.job("dead", queue=queue) for queue in "ab"]
    form = {"action": "delete", "scope": "ticked", "id": [job.id for job in jobs], "seen_at": "1", "back": "/jobs"}
    headers = {"origin": BASE, "accept": "text/html"}
    question = web.post("/bulk", data=form, headers=headers).text
    found = re.search(r'name="seen_at" value="(\d+)"', question)
    assert found
    yard.storage.retry([jobs[0].id])

    answer = web.post("/bulk", data={**form, "seen_at": found[1], "sure": "yes"}, headers=headers)

    assert "Those that change from now on are skipped." in question
    assert "changed=1&skipped=1" in answer.headers["location"]
    assert (yard.get(jobs[0].id).state, yard.storage.get(jobs[1].id)) == (State.QUEUED, None)


def test_bulk_without_a_filter_is_refused(web: TestClient, yard: Yard):
    yard.job("dead")

    answer = web.post(
        "/bulk", data={"action": "delete", "scope": "all"}, headers={"origin": BASE, "accept": "text/html"}
    )

    assert answer.status_code == 400


def test_going_back_after_bulk_leads_nowhere_else(web: TestClient, yard: Yard):
    job = yard.job("dead")
    form = {"action": "retry", "id": job.id, "back": "https://evil.example/jobs"}

    answer = web.post("/bulk", data=form, headers={"origin": BASE})

    assert answer.headers["location"].startswith("/jobs?")


# --- signing in -------------------------------------------------------------------------------------------------------


def test_who_is_not_signed_in_is_led_to_the_login_page_and_back(guarded_web: TestClient):
    asked = guarded_web.get("/jobs?state=dead", headers=HTML)
    assert asked.headers["location"] == "/login?onward=%2Fjobs%3Fstate%3Ddead"

    form = {"token": SECRETS[Role.VIEW], "onward": "/jobs?state=dead"}
    answer = guarded_web.post("/login", data=form, headers={"origin": BASE})

    assert answer.headers["location"] == "/jobs?state=dead"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert SECRETS[Role.VIEW] not in cookie
    assert guarded_web.get("/jobs", headers=HTML).status_code == 200
    guarded_web.post("/logout", headers=FORM)
    assert guarded_web.get("/jobs", headers=HTML).status_code == 303


def test_a_wrong_token_is_not_let_in_and_has_to_wait(guarded_web: TestClient):
    headers = {"origin": BASE, "accept": "text/html"}
    answers = [guarded_web.post("/login", data={"token": "wrong"}, headers=headers).status_code for _ in range(6)]

    assert answers == [401] * 5 + [429]


def test_a_session_changes_nothing_for_another_site(guarded_web: TestClient, yard: Yard):
    job = yard.job("dead")
    guarded_web.post("/login", data={"token": SECRETS[Role.ADMIN]}, headers={"origin": BASE})

    for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, {}):
        assert guarded_web.post(f"/jobs/{job.id}/retry", headers=headers).status_code == 403
    assert yard.get(job.id).state is State.DEAD


def test_who_only_looks_sees_no_buttons(guarded_web: TestClient, yard: Yard):
    jobs = filled(yard)
    guarded_web.post("/login", data={"token": SECRETS[Role.VIEW]}, headers={"origin": BASE})

    for path in [*LISTS, f"/jobs/{jobs[State.DEAD]}", "/queues/for-dead"]:
        text = guarded_web.get(path, headers=HTML).text
        assert set(re.findall(r'method="post" action="([^"]+)"', text)) <= {"/logout"}


# --- mounted elsewhere ------------------------------------------------------------------------------------------------


def test_it_may_be_mounted_below_a_prefix(application, yard: Yard):
    from starlette.applications import Starlette
    from starlette.routing import Mount

    job = yard.job("dead")
    with TestClient(Starlette(routes=[Mount("/ops", application)]), base_url=BASE, follow_redirects=False) as web:
        text = web.get("/ops/jobs", headers=HTML).text
        assert set(re.findall(r'(?:href|src|action)="(/[^"]*)"', text))
        assert not [
            path for path in re.findall(r'(?:href|src|action)="(/[^"]*)"', text) if not path.startswith("/ops/")
        ]
        answer = web.post(f"/ops/jobs/{job.id}/retry", headers=FORM)
        assert answer.headers["location"] == f"/ops/jobs/{job.id}?said=retried"
        assert web.get("/ops/api/v1/openapi.json").json()["servers"] == [{"url": "/ops/api/v1"}]


def test_what_a_browser_fetches_by_itself_is_shared_and_what_a_person_opens_is_fresh(
    web: TestClient, application: Application, yard: Yard
):
    application.web.cache._now = lambda: 0.0
    live = {"x-packhorse": "live"}
    yard.add(queue="mail")
    assert "images" not in web.get("/jobs", headers=live).text
    yard.add(queue="images")

    assert "images" in web.get("/jobs").text
    assert "images" not in web.get("/jobs", headers=live).text
    assert "images" in web.get("/jobs?queue=images", headers=live).text


def test_what_a_browser_fetches_between_two_looks_at_the_charts_has_none(web: TestClient, yard: Yard):
    yard.job("completed")
    for path in ("/", "/queues/resize"):
        quick, whole = (web.get(path, headers={"x-packhorse": word}).text for word in ("quick", "live"))

        assert "<figure" in whole, path
        assert "<figure" not in quick, path
        assert "resize" in quick


def test_who_heard_of_a_change_gets_no_page_from_before_it(web: TestClient, yard: Yard):
    job, live = yard.job("scheduled"), {"x-packhorse": "live"}
    assert "s-scheduled" in web.get(f"/jobs/{job.id}", headers={**live, "last-event-id": "a-1"}).text
    yard.storage.abort([job.id])

    assert "s-aborted" in web.get(f"/jobs/{job.id}", headers={**live, "last-event-id": "a-2"}).text


def test_a_queue_that_no_worker_serves_is_told_as_that(web: TestClient, yard: Yard, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(health.Facts, "wait", lambda *_: HOUR)
    yard.join()
    yard.add(queue="forgotten")

    shown = web.get("/jobs", headers=HTML).text

    assert "No running worker serves forgotten." in shown
    assert "falling behind" not in shown


def test_many_queues_that_no_worker_serves_are_told_as_one(
    web: TestClient, yard: Yard, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(health.Facts, "wait", lambda *_: HOUR)
    yard.join()
    for number in range(5):
        yard.add(queue=f"tenant-{number}")

    shown = web.get("/jobs", headers=HTML).text

    assert shown.count("No running worker serves") == 1
    assert "No running worker serves 5 queues." in shown
    assert "tenant-0, tenant-1, tenant-2 …" in shown


def test_the_overview_tells_of_one_worker_and_of_rare_jobs_in_words(web: TestClient, yard: Yard):
    yard.job("completed")

    text = web.get("/", headers=HTML).text

    assert ">1 worker</span>" in text
    assert "<span>1/h" in text


def told_of(text: str, title: str) -> str:
    """The words of the section with this heading."""
    section = text.partition(f"<h2>{title}</h2>")[2].partition("</section>")[0]
    return " ".join(re.sub(r"<[^>]+>", " ", section).split())


def test_the_page_of_a_queue_tells_how_much_waits_of_each_priority(web: TestClient, yard: Yard):
    for priority in (1, 9, 9, 4, 9):
        yard.add(queue="mail", priority=priority)
    yard.storage.force_start([yard.add(queue="mail", priority=2).id])
    yard.add(queue="other", priority=5)

    told = told_of(web.get("/queues/mail", headers=HTML).text, "Queued by priority")

    rows = [list(map(int, row)) for row in re.findall(r"(\d+) (\d+) \d+ resize", told)]
    assert rows == [[9, 3], [4, 1], [2, 1], [1, 1]]


def test_in_a_long_line_the_priorities_are_found_and_not_counted(
    web: TestClient, yard: Yard, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("packhorse.web.pages.queues._COUNTED", 2)
    for priority in (9, 9, 4):
        yard.add(queue="mail", priority=priority)

    told = told_of(web.get("/queues/mail", headers=HTML).text, "Queued by priority")

    assert re.findall(r"(\d+) – resize", told) == ["9", "4"]


def test_a_running_job_tells_of_its_process_and_its_time(web: TestClient, yard: Yard):
    job = yard.start(yard.add(timeout=600 * SECOND))
    yard.storage.heartbeat({WORKER: {"rss": 64 << 20, "cpu_percent": 7}})

    told = told_of(web.get(f"/jobs/{job.id}", headers=HTML).text, "Facts")

    assert re.search(r"mule · pid 12 · heartbeat .* · 64 MiB · CPU 7 %", told)
    assert re.search(r"run 10 m \([^)]+ left\)", told)


def test_a_job_can_be_copied_as_python(web: TestClient, yard: Yard):
    job = yard.add(args={"image_id": 7, "draft": True, "of": None})

    text = web.get(f"/jobs/{job.id}", headers=HTML).text

    assert str(escape("app.enqueue('resize', {'image_id': 7, 'draft': True, 'of': None})")) in text


def test_of_a_long_log_the_end_is_shown(web: TestClient, yard: Yard):
    job = yard.job("running")
    lines = [LogLine(f"this is line {number}") for number in range(2_500)]
    yard.storage.append_log(job.token, lines, keep=5_000)

    text = web.get(f"/jobs/{job.id}", headers=HTML).text

    assert "the last 1,000 of 2,50" in text  # and those that it had written before
    assert "this is line 2499" in text
    assert "this is line 1400" not in text


def test_a_job_that_was_pruned_says_how_long_it_was_kept(web: TestClient, yard: Yard):
    job = yard.job("completed", queue="mail")
    yard.storage.prune(
        Retention(completed=0, dead=DAY, aborted=DAY, events=DAY, clients=DAY), at=yard.storage.now() + 1
    )

    gone = web.get(f"/jobs/{job.id}", headers=HTML)

    assert gone.status_code == 404
    words = " ".join(re.sub(r"<[^>]+>", " ", gone.text).split())
    assert f"{job.id} of the queue mail was kept 1d after its end, and removed 20" in words


def test_the_overview_counts_what_failed_in_its_time_the_most_frequent_first(web: TestClient, yard: Yard):
    yard.job("dead")
    for number in (1, 2):
        job = yard.start(yard.add("send", queue=f"q{number}"))
        yard.finish(Failed(job.token, Failure("OSError", f"no route to {number}")))
    yard.finish(Failed(yard.start(yard.add("look", queue="q3")).token, Failure("KeyError", "x")))

    text = web.get("/", headers=HTML).text
    rows = re.findall(r'<b class="bad">(\w+)</b>.*?<td class="right">(\d+)</td>', text, re.DOTALL)
    start, end = (f"{to_datetime(yard.storage.now() - days * DAY):%Y-%m-%dT%H:%M:%SZ}" for days in (30, 10))
    long_ago = web.get(f"/?from={start}&to={end}", headers=HTML).text

    assert rows[0] == ("OSError", "2")
    assert sorted(rows[1:]) == [("KeyError", "1"), ("ValueError", "1")]
    assert "3 kinds" in text
    assert '<b class="bad">' not in long_ago
    assert "No failures in 20" in long_ago


def test_the_first_steps_lead_to_this_very_storage_and_enqueue_once(web: TestClient, yard: Yard):
    text = html.unescape(web.get("/", headers=HTML).text)

    assert f'Packhorse("{mask_url(yard.storage.health().url)}")' in text
    assert 'if __name__ == "__main__":\n    greet.enqueue("world")' in text  # workers import the file, too


def test_the_overview_leads_to_the_first_job_though_workers_are_there(
    web: TestClient, application: Application, yard: Yard
):
    yard.join()
    text = web.get("/", headers=HTML).text
    assert "No jobs yet" in text
    assert "/jobs/new?task=" in text

    yard.add()
    application.web.cache.forget()

    assert "No jobs yet" not in web.get("/", headers=HTML).text
