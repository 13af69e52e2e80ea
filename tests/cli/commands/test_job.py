from __future__ import annotations

import json

import pytest

from packhorse.core.clock import SECOND
from packhorse.core.job import Job, State
from packhorse.core.outcome import Completed, Outcome
from packhorse.storage import Storage
from packhorse.storage.records import CheckIn, LogLine, TaskInfo
from tests.cli.conftest import Call
from tests.cli.manual_worker import worker
from tests.cli.sample_storage import SampleStorage


@pytest.mark.parametrize("state", State)
def test_a_job_in_every_state_has_a_page(sample: SampleStorage, packhorse: Call, state: State):
    job = sample.in_every_state()[state]

    result = packhorse("job", job.id)

    assert result.exit_code == 0
    assert result.stdout.startswith(f"{state}  resize(image_id=7)")
    assert job.id in result.stdout
    assert "history" in result.stdout


def test_the_page_tells_the_failure_and_where(sample: SampleStorage, packhorse: Call):
    page = packhorse("job", sample.job("dead").id).stdout

    assert "it died" in page
    assert "ValueError: cannot decode image 7\n           jobs.py:4" in page


def test_the_failure_of_an_earlier_attempt_is_not_told_as_if_it_were_the_present_one(
    sample: SampleStorage, packhorse: Call
):
    job = sample.job("dead")
    assert "\nerror      ValueError" in packhorse("job", job.id).stdout
    sample.storage.retry([job.id])

    assert "\nlast error ValueError" in packhorse("job", job.id).stdout
    sample.start(job)
    assert "\nlast error ValueError" in packhorse("job", job.id).stdout


def test_the_page_shows_the_last_lines_of_a_long_log(sample: SampleStorage, packhorse: Call):
    job = sample.start(sample.add())
    sample.storage.append_log(job.token, [LogLine(f"line {number}") for number in range(30)])

    page = packhorse("job", job.id).stdout
    log = packhorse("job", job.id, "--log").stdout

    assert "log, the last 10 of 30; --log shows all" in page
    assert "line 29" in page
    assert "line 19" not in page
    assert len(log.splitlines()) == 30


def test_the_limits_of_a_job_are_told_with_the_memory_that_its_task_may_hold(sample: SampleStorage, packhorse: Call):
    job = sample.add("report", timeout=30 * SECOND)
    sample.storage.announce([TaskInfo("report", "report", {"memory_limit": 512 << 20})])

    assert "run 30s, memory 512 MiB" in packhorse("job", job.id).stdout


def test_options_of_a_task_that_is_not_known_yet_are_the_defaults(sample: SampleStorage, packhorse: Call):
    job = sample.add()

    assert "1 of 4 (default; its task is not known yet)" in packhorse("job", job.id).stdout
    sample.join()
    assert "1 of 4 (from its task)" in packhorse("job", job.id).stdout


def test_progress_does_not_crowd_out_what_a_job_says(sample: SampleStorage, packhorse: Call):
    job = sample.start(sample.add())
    sample.storage.append_log(job.token, [LogLine("template ok")])
    for percent in range(21):
        sample.storage.check_in([CheckIn(job.token, None, percent)])

    page = packhorse("job", job.id).stdout

    assert "log, without 20 earlier lines of progress; --log shows all" in page
    assert "template ok" in page
    assert "progress: 20 %" in page
    assert "progress: 19 %" not in page
    assert len(packhorse("job", job.id, "--log").stdout.splitlines()) == 22


def test_how_long_it_ran_is_not_cut_to_whole_seconds(sample: SampleStorage, packhorse: Call):
    job = sample.start(sample.add())
    sample.finish(Completed(job.token, "1", ran=1_630_000))

    assert ", ran 1.63 s" in packhorse("job", job.id).stdout


def test_sections_come_alone_so_that_they_can_be_piped(sample: SampleStorage, packhorse: Call):
    job = sample.job("dead")

    assert json.loads(packhorse("job", job.id, "--args").stdout) == {"image_id": 7}
    assert packhorse("job", job.id, "--trace").stdout.startswith("Traceback (most recent call last):\n")
    assert [line.split()[1] for line in packhorse("job", job.id, "--events").stdout.splitlines()] == [
        *("added", "reserved", "started", "broken")
    ]


def test_json_has_the_fields_and_the_sections_that_were_asked_for(sample: SampleStorage, packhorse: Call):
    job = sample.job("running")

    plain = json.loads(packhorse("job", job.id, "--json").stdout)
    more = json.loads(packhorse("job", job.id, "--json", "--log", "--events").stdout)

    assert plain["state"] == "running"
    assert plain["why"].startswith("it runs on worker")
    assert "log" not in plain
    assert [line["message"] for line in more["log"]][-1] == "template ok"
    assert [event["kind"] for event in more["events"]] == ["added", "reserved", "started"]


def test_follow_goes_on_until_the_end(sample: SampleStorage, packhorse: Call):
    def work(storage: Storage, job: Job) -> Outcome:
        storage.append_log(job.token, [LogLine("one"), LogLine("two")])
        return Completed(job.token, "3")

    job = sample.add()
    with worker(sample.url, work, "resize"):
        result = packhorse("job", job.id, "--follow")

    assert result.exit_code == 0
    assert result.stdout == "one\ntwo\n"
    assert "completed: it was completed" in result.stderr


def test_follow_in_json_gives_events_and_log_lines(sample: SampleStorage, packhorse: Call):
    job = sample.job("dead")

    result = packhorse("job", job.id, "-f", "--json")

    assert result.exit_code == 1
    kinds = [json.loads(line)["event"]["kind"] for line in result.stdout.splitlines()]
    assert kinds == ["added", "reserved", "started", "broken"]


@pytest.mark.parametrize("section", ["--log", "--trace"])
def test_an_empty_section_is_told_on_stderr(sample: SampleStorage, packhorse: Call, section: str):
    result = packhorse("job", sample.add().id, section)

    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr


def test_a_job_that_is_not_there_ends_with_3(sample: SampleStorage, packhorse: Call):
    sample.add()

    for part in ("deadbeef", "01", "019a8f3c-5b1e-7c42-9d07-3f6a1be2c845", "%", "'; drop table"):
        assert packhorse("job", part).exit_code == 3
