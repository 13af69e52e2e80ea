"""A failed job can be told to others in one piece."""

from __future__ import annotations

from starlette.testclient import TestClient

from packhorse.failure import Failure
from packhorse.outcome import Failed
from tests.cli.yard import Yard

HTML = {"accept": "text/html"}


def test_a_failed_job_offers_its_text_for_an_issue(web: TestClient, yard: Yard):
    job = yard.start(yard.add(args={"image_id": 7, "password": "hunter2"}))
    failure = Failure(
        "ValueError", "bad ``` image", traceback="one\n````\nValueError: bad ``` image\n", place="jobs.py:4"
    )
    yard.finish(Failed(job.token, failure))

    shown = web.get(f"/jobs/{job.id}", headers=HTML).text
    text = shown.partition('id="issue-text"')[2].partition("</pre>")[0]

    assert "### ValueError: bad ``` image" in text
    assert "At `jobs.py:4`." in text
    assert job.id in text
    assert "`````text\none\n````\nValueError: bad ``` image\n`````" in text  # nothing in it ends the block
    assert "sqlite" in text
    assert "hunter2" not in text


def test_a_job_that_has_not_failed_offers_none(web: TestClient, yard: Yard):
    assert "issue-text" not in web.get(f"/jobs/{yard.job('queued').id}", headers=HTML).text
