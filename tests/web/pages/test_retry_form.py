"""A form that cannot be done comes back with what was typed, and says how to put it right."""

from __future__ import annotations

from typing import Any

from starlette.testclient import TestClient

from packhorse.core.job import Job
from packhorse.storage.records import Filter, NewJob
from tests.cli.yard import Yard
from tests.web.conftest import BASE

SENT = {"origin": BASE, "accept": "text/html"}


def ticked(jobs: list[Job], **fields: Any) -> dict[str, Any]:
    return {"action": "set_queue", "scope": "ticked", "id": [job.id for job in jobs], "back": "/jobs", **fields}


def test_a_pause_for_a_time_that_is_none_shows_the_queue_with_all_that_was_typed(web: TestClient, yard: Yard):
    yard.add(queue="mail")

    answer = web.post("/queues/mail/pause", data={"why": "server down", "duration": "2 fortnights"}, headers=SENT)

    assert answer.status_code == 400
    assert 'role="alert"' in answer.text
    assert 'value="server down"' in answer.text
    assert 'value="2 fortnights" aria-invalid="true"' in answer.text
    assert "/queues/mail?range=" in answer.text
    assert '<a href="/queues" aria-current="page">' in answer.text
    assert not yard.storage.queues()[0].is_paused


def test_a_job_goes_to_a_queue_that_does_not_exist_only_if_that_is_said(web: TestClient, yard: Yard):
    job = yard.add(queue="mail")

    refused = web.post(f"/jobs/{job.id}/set_queue", data={"queue": "mial"}, headers=SENT)

    assert refused.status_code == 404
    assert "There is no queue &#39;mial&#39;" in refused.text
    assert "ick “create queue” to make it" in refused.text
    assert 'value="mial"' in refused.text
    assert yard.get(job.id).queue == "mail"
    web.post(f"/jobs/{job.id}/set_queue", data={"queue": "slow", "new": "yes"}, headers=SENT)
    assert yard.get(job.id).queue == "slow"


def test_a_priority_that_is_none_comes_back_on_the_page_of_the_job(web: TestClient, yard: Yard):
    job = yard.add(priority=4)

    answer = web.post(f"/jobs/{job.id}/set_priority", data={"priority": "99"}, headers=SENT)

    assert answer.status_code == 400
    assert 'max="10" value="99"' in answer.text
    assert yard.get(job.id).priority == 4


def test_moving_many_to_a_queue_that_does_not_exist_is_refused_before_the_question(web: TestClient, yard: Yard):
    jobs = [yard.add(queue="mail") for _ in range(2)]

    answer = web.post("/bulk", data=ticked(jobs, queue="mial"), headers=SENT)

    assert answer.status_code == 404
    assert "&#39;mial&#39;" in answer.text
    assert 'name="queue" value="mial"' in answer.text
    assert all(f'value="{job.id}"' in answer.text for job in jobs)
    assert "<b>To which queue?" in web.post("/bulk", data=ticked(jobs, queue=""), headers=SENT).text
    assert 'name="sure" value="yes"' not in answer.text  # put right, it is asked for
    question = web.post("/bulk", data=ticked(jobs, queue="slow", new="yes"), headers=SENT)
    assert question.status_code == 200
    assert 'name="new" value="yes"' in question.text
    web.post("/bulk", data=ticked(jobs, queue="slow", new="yes", sure="yes"), headers=SENT)
    assert {yard.get(job.id).queue for job in jobs} == {"slow"}


def test_moving_all_that_fit_is_checked_and_done_alike(web: TestClient, yard: Yard):
    yard.add(queue="mail")
    form = {"action": "set_queue", "scope": "all", "filter": "queue:mail", "back": "/jobs"}
    form |= {"seen_at": str(yard.storage.now()), "expected": "1", "sure": "yes", "queue": "slow"}

    assert web.post("/bulk", data=form, headers=SENT).status_code == 404
    assert web.post("/bulk", data={**form, "new": "yes"}, headers=SENT).status_code == 303
    assert yard.storage.count(Filter(queue="slow")).number == 1


def test_a_page_of_an_error_leads_back_to_the_form_and_nowhere_else(web: TestClient, yard: Yard):
    job = yard.job("completed")

    def refused(came_from: str) -> str:
        return web.post(f"/jobs/{job.id}/abort", headers={**SENT, "referer": came_from}).text

    assert 'href="/jobs?state=completed">Back</a>' in refused(f"{BASE}/jobs?state=completed")
    assert ">Back</a>" not in refused("http://elsewhere.example/jobs")
    assert ">Back</a>" not in refused("")


def test_an_overview_on_which_all_is_silenced_does_not_say_that_nothing_failed(web: TestClient, yard: Yard):
    job = yard.job("dead")
    yard.storage.silence_failure(yard.get(job.id).cause or "", 60_000_000_000)

    text = web.get("/", headers=SENT).text

    assert 'No failures but those that are <a href="/failures?show=silenced">silenced</a>.' in text
    assert '<p class="empty good">' not in text
    assert "<span>Dead now</span>" in text
    assert "<span>1 died in 1 h</span>" in text


def test_the_audit_tells_until_when_a_queue_is_paused_as_a_time(web: TestClient, yard: Yard):
    yard.add(queue="mail")
    yard.storage.pause("mail", by="anna", duration=3_600_000_000)
    until = yard.storage.queues()[0].paused_until

    row = web.get("/audit", headers=SENT).text.partition("<tr data-row>")[2].partition("</tr>")[0]

    assert '<span class="quiet">until</span> <time' in row
    assert f">{until}<" not in row


def test_commands_on_the_page_of_a_job_name_it_alone(web: TestClient, yard: Yard):
    yard.storage.enqueue([NewJob(id=f"sum-0000{n}", task="add", args="{}", queue="sums") for n in (3, 4)])
    plain = yard.add("resize")

    text = web.get("/jobs/sum-00004").text
    assert "packhorse job sum-00004" in text
    assert "packhorse abort sum-00004" in text
    assert f"packhorse job {plain.id[-8:]}" in web.get(f"/jobs/{plain.id}").text
