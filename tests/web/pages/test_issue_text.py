"""A failed job can be told to others in one piece."""

from __future__ import annotations

from starlette.testclient import TestClient

from packhorse import __version__
from packhorse.core.job import Job, State
from packhorse.core.outcome import Failed, Failure
from packhorse.storage.records import WorkerInfo
from packhorse.web.pages.error_text import issue_text
from tests.cli.yard import FOREMAN, WORKER, Yard

HTML = {"accept": "text/html"}


def test_a_failed_job_offers_its_text_for_an_issue(web: TestClient, yard: Yard):
    job = yard.start(yard.add(args={"image_id": 7, "password": "hunter2"}))
    failure = Failure(
        "ValueError", "bad ``` image", traceback="one\n````\nValueError: bad ``` image\n", place="jobs.py:4"
    )
    yard.finish(Failed(job.token, failure))

    shown = web.get(f"/jobs/{job.id}", headers=HTML).text
    text = shown.partition('id="issue-text"')[2].partition("</pre>")[0]

    assert "### ````ValueError: bad ``` image````" in text
    assert "At `jobs.py:4`." in text
    assert job.id in text
    assert "dead, attempt 1/4" in text  # as many as its task says
    assert "`````text\none\n````\nValueError: bad ``` image\n`````" in text  # nothing in it ends the block
    assert "sqlite" in text
    assert "hunter2" not in text


def test_what_others_wrote_is_code_in_it():
    evil = "x` ![p](https://evil.example/p.png)\n\n@team `"
    job = Job("id1", 1, "send", "q`", "{}", State.DEAD, 1, 12, 0, 0, max_attempts=4)
    failure = Failure("ValueError", f"`{evil}", place="a`.py:1")

    lines = issue_text(job, evil, failure, args="{}", why=evil, same=1, versions=["A `1`"]).splitlines()

    code = "`` x` ![p](https://evil.example/p.png) @team ` ``"
    assert lines[0] == "### ``ValueError: `x` ![p](https://evil.example/p.png)``"
    assert lines[2] == "At ``a`.py:1``."
    assert f"- call: {code}" in lines
    assert "- job: `id1`, queue `` q` ``, dead, attempt 1/4" in lines
    assert f"- why: {code}" in lines
    assert "- versions: `` A `1` ``" in lines


def test_values_that_follow_the_name_of_a_secret_are_not_in_it():
    job = Job("id1", 1, "send", "q", "{}", State.DEAD, 1, 12, 0, 0)
    told = 'password=hunter2, api_key="hunter2"'
    failure = Failure("AuthError", told, traceback=f"  connect({told})\nAuthError: {told}")

    text = issue_text(job, f"send(dsn='{told}')", failure, args=f"{{'dsn': '{told}'}}", why=told, same=1, versions=[])

    assert "hunter2" not in text
    assert '  connect(password=•••, api_key="•••")\nAuthError: password=•••' in text


def test_it_is_to_be_read_before_it_is_posted(web: TestClient, yard: Yard):
    assert "Read it before you post it" in web.get(f"/jobs/{yard.job('dead').id}", headers=HTML).text


def test_the_versions_are_those_of_the_worker_that_had_the_job(web: TestClient, yard: Yard):
    yard.storage.join(WorkerInfo(WORKER, foreman=FOREMAN, info={"python": "3.9.9", "version": "0.0.7"}))
    job = yard.start(yard.add())
    yard.finish(Failed(job.token, Failure("ValueError", "bad")))

    shown = web.get(f"/jobs/{job.id}", headers=HTML).text
    assert "- versions: `Packhorse 0.0.7`, `Python 3.9.9`, `sqlite " in shown


def test_without_its_worker_only_the_version_of_the_web_is_known(web: TestClient, yard: Yard):
    job = yard.start(yard.add())
    yard.finish(Failed(job.token, Failure("ValueError", "bad")))
    yard.storage.leave(WORKER)

    shown = web.get(f"/jobs/{job.id}", headers=HTML).text
    assert f"- versions: `Packhorse {__version__} (of the web)`, `sqlite " in shown


def test_a_job_that_has_not_failed_offers_none(web: TestClient, yard: Yard):
    assert "issue-text" not in web.get(f"/jobs/{yard.job('queued').id}", headers=HTML).text
