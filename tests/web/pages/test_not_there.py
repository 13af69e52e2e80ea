"""What an address, a filter or a row says of what is not there, has not come yet, or may still be done."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from packhorse.web.application import Application
from tests.cli.yard import Yard
from tests.web.conftest import BASE

HTML = {"accept": "text/html"}


@pytest.mark.parametrize("path", ["jobs?q=took:abc", "nope", "jobs/nope"])
def test_the_api_answers_a_browser_as_it_does_a_program(web: TestClient, application: Application, path: str):
    with TestClient(Starlette(routes=[Mount("/ops", application)]), base_url=BASE) as mounted:
        answers = web.get(f"/api/v1/{path}", headers=HTML), mounted.get(f"/ops/api/v1/{path}", headers=HTML)

    for answer in answers:
        assert answer.status_code in (400, 404)
        assert answer.headers["content-type"] == "application/problem+json"


def test_what_is_not_there_is_told_in_words_for_people(web: TestClient):
    for path, words in (
        ("/workers/zz", "It may have ended"),
        ("/failures/zz", "the page Failures has"),
        ("/tasks/zz", "The page Tasks has them all"),
    ):
        answer = web.get(path, headers=HTML)
        assert answer.status_code == 404, path
        assert words in answer.text, path
        assert "/api/" not in answer.text
        assert "join under" not in answer.text


def test_a_part_of_an_id_leads_to_its_job(web: TestClient, yard: Yard):
    job = yard.add()

    for part in (job.id[:13], job.id[-8:]):
        answer = web.get(f"/jobs/{part}", headers=HTML, follow_redirects=False)
        assert answer.headers["location"] == f"/jobs/{job.id}", part


def test_a_stretch_of_the_future_is_refused(web: TestClient):
    answer = web.get("/?from=2999-01-01T00:00Z&to=2999-01-02T00:00Z", headers=HTML)

    assert answer.status_code == 400
    assert "has not come yet" in answer.text


def test_a_filter_for_a_queue_that_there_is_not_says_so(web: TestClient, yard: Yard):
    yard.add(queue="mail")

    assert "There is no queue &#39;mial&#39;" in web.get("/jobs?q=queue:mial", headers=HTML).text
    assert "There is no queue" not in web.get("/jobs?q=queue:mail+state:dead", headers=HTML).text


def test_a_row_has_what_can_be_done_to_a_job_that_runs_and_to_one_that_has_ended(web: TestClient, yard: Yard):
    running, ended = yard.start(yard.add()), yard.job("completed")

    text = web.get("/jobs", headers=HTML).text
    assert f'<button form="held" formaction="/jobs/{running.id}/abort">' in text
    assert f'href="/jobs/{ended.id}/delete"' in text
    assert f'href="/jobs/{running.id}/delete"' not in text


def test_an_old_failure_of_a_job_that_runs_again_is_told_as_one_of_before(web: TestClient, yard: Yard):
    job = yard.job("dead")
    yard.storage.retry([job.id], by="anna")
    yard.start(yard.get(job.id))

    assert "the attempt before: " in web.get("/jobs?state=running", headers=HTML).text
