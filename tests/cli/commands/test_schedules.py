"""`packhorse schedules` and `packhorse schedule`."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from packhorse.client.schedule import cron_of
from packhorse.core.clock import DAY, SECOND
from packhorse.core.event import Kind
from packhorse.storage.records import EventFilter, ScheduleInfo
from tests.cli.conftest import Call
from tests.cli.sample_storage import SampleStorage
from tests.cli.test_terminal import on_terminal, plain
from tests.unchecked import unchecked


@pytest.fixture
def planned(sample: SampleStorage) -> SampleStorage:
    """A schedule `nightly` of the task report, and one with a text that is none."""
    now = sample.storage.now()
    nightly = ScheduleInfo("nightly", "report", "0 3 * * *", tz="Europe/Ljubljana")
    odd = ScheduleInfo("odd", "report", "every full moon", next_at=now + 2 * DAY)
    unchecked(sample.storage, "put_schedules")([replace(nightly, next_at=cron_of(nightly).next_after(now)), odd])
    return sample


def test_schedules_are_told_with_their_plan_in_words(planned: SampleStorage, packhorse: Call):
    lines = packhorse("schedules").stdout.splitlines()

    assert lines[1].startswith("nightly   report  0 3 * * *        Europe/Ljubljana  At 03:00 every day")
    assert lines[2].split()[:2] == ["odd", "report"]
    assert "never" in lines[2]


def test_json_has_the_fields_of_the_api(planned: SampleStorage, packhorse: Call):
    told = json.loads(packhorse("schedules", "--json").stdout.splitlines()[0])

    assert (told["name"], told["cron"], told["is_paused"], len(told["coming"])) == ("nightly", "0 3 * * *", False, 3)
    assert told["late_by"] is None
    assert told["says"].startswith("At 03:00 every day")


def test_a_late_one_says_so_instead_of_its_next_slot(planned: SampleStorage, packhorse: Call):
    (nightly,) = (each for each in planned.storage.schedules() if each.name == "nightly")
    planned.storage.remove_schedule("nightly")
    planned.storage.put_schedules([replace(nightly, next_at=planned.storage.now() - 2 * DAY)])

    assert "late by 2d" in packhorse("schedules").stdout.splitlines()[1]
    assert json.loads(packhorse("schedules", "--json").stdout.splitlines()[0])["late_by"] >= 2 * DAY / SECOND
    _, seen = on_terminal(planned, "schedules", width=120)
    assert "packhorse doctor" in plain(seen)


def test_no_schedules_says_how_to_write_one(sample: SampleStorage, packhorse: Call):
    sample.add()

    assert "@app.schedule(" in packhorse("schedules").stderr


def test_the_next_slots_are_listed(planned: SampleStorage, packhorse: Call):
    result = packhorse("schedule", "next", "nightly", "-n", "3")

    assert len(result.stdout.splitlines()) == 3
    assert "At 03:00 every day" in result.stderr
    assert len(packhorse("schedule", "next", "nightly", "--json").stdout.splitlines()) == 5


def test_the_zone_of_the_slots_is_told_once(planned: SampleStorage, packhorse: Call):
    assert packhorse("schedule", "next", "nightly").stderr.count("(Europe/Ljubljana)") == 1


def test_run_enqueues_its_job_now(planned: SampleStorage, packhorse: Call):
    result = packhorse("schedule", "run", "nightly", "--by", "ann")

    job = planned.get(result.stdout.strip())
    assert (job.task, job.schedule) == ("report", "nightly")
    (told,) = planned.storage.events(EventFilter(kind=Kind.RUN_NOW))
    assert (told.queue, told.data) == ("nightly", {"job": job.id, "by": "ann"})


def test_skip_leaves_out_the_next_slot(planned: SampleStorage, packhorse: Call):
    first, second = (
        json.loads(line)["at"]
        for line in packhorse("schedule", "next", "nightly", "-n", "2", "--json").stdout.splitlines()
    )

    skipped = [
        json.loads(packhorse("schedule", "skip", "nightly", "--by", name, "--json").stdout)["skipped_at"]
        for name in ("ann", "bob")  # who asks for what is so already has done nothing
    ]

    assert skipped == [first, first]
    (told,) = planned.storage.events(EventFilter(kind=Kind.SKIPPED))
    assert (told.queue, (told.data or {})["by"]) == ("nightly", "ann")
    assert json.loads(packhorse("schedule", "next", "nightly", "-n", "1", "--json").stdout)["at"] == second


def test_pause_and_resume(planned: SampleStorage, packhorse: Call):
    words = [
        packhorse("schedule", do, "nightly", "--by", "ann").stdout for do in ("pause", "pause", "resume", "resume")
    ]

    assert words == [
        "nightly is paused\n",
        "nightly is paused already\n",
        "nightly is resumed\n",
        "nightly is not paused\n",
    ]


def test_a_paused_one_is_told_with_who_did_it(planned: SampleStorage):
    planned.storage.pause_schedule("nightly", True, by="ann")

    _, seen = on_terminal(planned, "schedules", width=80)

    assert "nightly is paused by ann" in plain(seen)
    assert max(map(len, plain(seen).splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("run", "nightli"), 3, "did you mean 'nightly'?"),
        (("hop", "nightly"), 2, "'hop'"),
        (("run",), 2, "missing argument"),
    ],
)
def test_mistakes_are_told(planned: SampleStorage, packhorse: Call, words: tuple[str, ...], code: int, text: str):
    result = packhorse("schedule", *words)

    assert result.exit_code == code
    assert text in result.stderr


def test_more_slots_than_anybody_reads_are_refused(planned: SampleStorage, packhorse: Call):
    result = packhorse("schedule", "next", "nightly", "-n", "999999999")

    assert (result.exit_code, "10,000 is the maximum" in result.stderr) == (2, True)
