from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from packhorse.cli.commands import fakedata
from packhorse.cli.commands.fakedata import Shop
from packhorse.cli.errors import ExitCode
from packhorse.core.clock import HOUR, ManualClock, now
from packhorse.core.event import Kind, Subject
from packhorse.core.job import State
from packhorse.core.outcome import Failed
from packhorse.storage import open_storage
from packhorse.storage.records import EventFilter, Filter, Span
from tests.cli.conftest import Call
from tests.cli.sample_storage import SampleStorage


def test_the_shop_leaves_a_believable_history_behind(swift_path: Path):
    clock = ManualClock(now() - HOUR)
    storage = open_storage(f"sqlite:///{swift_path / 'shop.db'}", now=clock)
    shop = Shop(storage, clock, random.Random(7))
    until = clock() + HOUR
    shop.open()
    shop.play(until - HOUR // 2, 15_000_000)
    shop.deploy()
    shop.play(until, 15_000_000)
    shop.act_as_operator()
    shop.beat()

    queues = {queue.name: queue for queue in storage.queues()}
    totals = storage.totals()
    assert totals["completed"] > 1_000
    assert 0 < totals["failed"] < totals["completed"] / 5
    assert queues["foobar"].counts[State.QUEUED] > 20  # it piles up
    assert queues["sync"].paused_by == "anna"
    assert {group.task for group in storage.failures()} >= {"resize", "foobar", "sync_crm"}
    assert {point.task for point in storage.series(Span.TWO_HOURS)} >= {"send_notice", "resize"}
    assert len([worker for worker in storage.workers() if worker.beat_at == until]) == 6
    assert storage.ticks("sweep")
    deploys = storage.events(EventFilter(subject=Subject.FOREMAN, kind=Kind.DEPLOYED))
    old, new = [(event.data or {})["version"] for event in deploys]
    failed = {(group.task, group.first_version, group.last_version) for group in storage.failures()}
    assert {("foobar", old, new), ("resize", old, new), ("resize", new, new)} <= failed
    assert [group.task for group in storage.failures() if group.silenced_version] == ["sync_crm"]
    storage.close()


def test_what_fails_is_mostly_tried_until_its_last_try(sample: SampleStorage):
    shop = Shop(sample.storage, ManualClock(now()), random.Random(7))
    job = sample.add("foobar", queue="foobar")
    outcomes = [shop._outcome(replace(job, failures=failures), 1_000) for failures in range(4) for _ in range(500)]
    failed = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
    last = [outcome for outcome in outcomes[-500:] if isinstance(outcome, Failed)]

    assert 500 < len(failed) < 1_500
    assert len(last) > 250
    assert all(outcome.retry_in is None for outcome in last)
    assert sum(outcome.retry_in is None for outcome in failed) < len(last) + len(failed) / 20


def test_a_storage_with_jobs_is_left_alone(packhorse: Call, sample: SampleStorage):
    sample.add()

    result = packhorse("fakedata")

    assert result.exit_code == ExitCode.REFUSED
    assert "has jobs" in result.stderr
    assert "--url sqlite:///fake.db" in result.stderr
    assert sample.storage.count(Filter()).number == 1


def test_another_file_is_offered_than_those_that_are_there(
    packhorse: Call, here: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fakedata, "_EARLIER_STEP", HOUR)  # two days before the first of these hours, in a few steps

    assert packhorse("fakedata", "--hours", "0", "--url", "sqlite:///fake.db").exit_code == 0

    result = packhorse("fakedata", "--url", "sqlite:///fake.db")

    assert result.exit_code == ExitCode.REFUSED
    assert "--url sqlite:///fake-2.db" in result.stderr


@pytest.mark.parametrize("hours", ["-1", "100"])
def test_the_hours_are_checked(packhorse: Call, hours: str):
    assert packhorse("fakedata", "--hours", hours).exit_code == ExitCode.USAGE
