"""A job's log: by level, as JSON, as text to keep, and on its page."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from packhorse.core.clock import MINUTE
from packhorse.core.job import Job
from packhorse.core.outcome import Failed
from packhorse.storage.records import CheckIn, LogKind, LogLine
from packhorse.web.api import logs
from tests.cli.yard import FAILURE, Yard

API = "/api/v1"
LINES = {
    "debug": LogLine("half way", LogKind.PROGRESS),
    "info": LogLine("template ok"),
    "warning": LogLine("warning shop.mail: no answer from https://ann:hunter2@smtp.example"),
    "error": LogLine("ValueError: no", LogKind.ERROR),
}


def written(yard: Yard) -> Job:
    """A running job with a line of each level."""
    job = yard.start(yard.add(queue="mail"))
    yard.storage.append_log(job.token, list(LINES.values()))
    return job


@pytest.mark.parametrize(
    ("message", "level"),
    [
        ("all is well", "info"),
        ("critical shop: fire", "error"),
        ("debug shop.mail: sent", "debug"),
        ("notice shop: of a level that is not ours", "info"),
        ("error", "info"),
        ("", "info"),
    ],
)
def test_the_level_of_a_line_is_the_word_that_logging_put_before_it(message: str, level: str):
    assert LogLine(message).level == level


@pytest.mark.parametrize(("level", "number"), [(None, 4), ("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_a_log_is_read_from_a_level_on(web: TestClient, yard: Yard, level: str | None, number: int):
    job = written(yard)

    page = web.get(f"{API}/jobs/{job.id}/log", params={"level": level} if level else {}).json()

    assert [item["level"] for item in page["items"]] == list(LINES)[-number:]
    last = page["last"]
    assert last == yard.storage.log_lines(job.id)[-1].id


def test_a_page_of_a_log_may_be_empty_and_leads_on(web: TestClient, yard: Yard):
    job = written(yard)

    first = web.get(f"{API}/jobs/{job.id}/log", params={"level": "error", "limit": 2}).json()
    then = web.get(f"{API}/jobs/{job.id}/log", params={"level": "error", "after": first["last"]}).json()
    none = web.get(f"{API}/jobs/{job.id}/log", params={"level": "error", "after": then["last"]}).json()

    assert first["items"] == []
    assert [item["message"] for item in then["items"]] == ["ValueError: no"]
    assert none == {"items": [], "last": then["last"]}


def test_a_log_is_kept_as_text(web: TestClient, yard: Yard, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logs, "_AT_ONCE", 3)
    job = written(yard)
    yard.finish(Failed(job.token, FAILURE, retry_in=MINUTE))
    yard.storage.force_start([job.id])
    again = yard.start(yard.get(job.id))
    yard.storage.append_log(again.token, [LogLine("two\nlines \x1b[2J")])

    answer = web.get(f"{API}/jobs/{job.id}/log.txt")

    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["content-disposition"] == f'attachment; filename="{job.id}.log.txt"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    head, first, _, warning, error, second, two, lines = answer.text.splitlines()
    assert (head, second) == ("--- attempt 1 ---", "--- attempt 2 ---")
    assert first.endswith("Z progress: half way")
    assert warning.endswith("Z warning shop.mail: no answer from https://ann:***@smtp.example")
    assert error.endswith("Z error: ValueError: no")
    assert (two[-4:], lines) == (" two", "    lines \\x1b[2J")


def test_no_message_can_pass_for_another_line_of_the_text(web: TestClient, yard: Yard):
    job = yard.start(yard.add(queue="mail"))
    yard.storage.append_log(job.token, [LogLine("sent\n2026-11-18T17:00:00.000000Z error: lost\n--- attempt 2 ---")])

    text = web.get(f"{API}/jobs/{job.id}/log.txt").text

    head, *lines = text.splitlines()
    assert head == "--- attempt 1 ---"
    assert [line.startswith("    ") for line in lines] == [False, True, True]


def test_a_text_has_the_level_that_is_asked_for(web: TestClient, yard: Yard):
    job = written(yard)

    text = web.get(f"{API}/jobs/{job.id}/log.txt", params={"level": "warning"}).text

    assert [line.partition("Z ")[2].partition(" ")[0] for line in text.splitlines()] == ["", "warning", "error:"]


def test_a_text_of_a_job_without_lines_is_empty_and_of_none_is_not_there(web: TestClient, yard: Yard):
    job = yard.add()

    assert web.get(f"{API}/jobs/{job.id}/log.txt").text == ""
    assert web.get(f"{API}/jobs/nothing/log.txt").status_code == 404
    assert web.get(f"{API}/jobs/{job.id}/log.txt", params={"level": "loud"}).status_code == 400


def test_a_job_that_is_deleted_meanwhile_ends_its_text(web: TestClient, yard: Yard, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logs, "_AT_ONCE", 2)
    job = written(yard)
    yard.finish(Failed(job.token, FAILURE))
    line = logs._line

    def deletes(each: LogLine) -> str:
        yard.storage.delete([job.id])
        return line(each)

    monkeypatch.setattr(logs, "_line", deletes)
    text = web.get(f"{API}/jobs/{job.id}/log.txt").text

    assert "template ok" in text
    assert text.endswith("--- the job was deleted meanwhile, and the rest with it ---\n")


def test_the_page_shows_the_level_that_was_chosen(web: TestClient, yard: Yard):
    job = written(yard)
    yard.storage.check_in([CheckIn(job.token, "at the door")])

    text = web.get(f"/jobs/{job.id}", params={"level": "warning"}).text
    log = text.partition('id="log"')[2].partition("</section>")[0]

    assert log.count('<p class="l-') == 2
    assert "template ok" not in log
    assert f'href="/jobs/{job.id}?level=warning#log" aria-current="true">warning+</a>' in log
    assert f'href="/jobs/{job.id}#log">all</a>' in log
    assert f'href="/api/v1/jobs/{job.id}/log.txt?level=warning" download>' in log
    assert f'data-last="{yard.storage.log_lines(job.id)[-1].id}"' in log
    assert 'data-level="warning"' in log
    assert "2 lines" in log


def test_a_level_that_nothing_reaches_or_that_there_is_not(web: TestClient, yard: Yard):
    job = yard.job("running")

    assert "No log lines of this level." in web.get(f"/jobs/{job.id}", params={"level": "error"}).text
    assert "template ok" in web.get(f"/jobs/{job.id}", params={"level": "loud"}).text
