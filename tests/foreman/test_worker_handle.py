"""What a worker says, as its foreman keeps it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import pytest

from packhorse.core.clock import SECOND
from packhorse.core.job import Token
from packhorse.core.outcome import Overrun
from packhorse.foreman.processes import WorkerGroup
from packhorse.foreman.worker_handle import STUCK, WorkerHandle
from packhorse.monitor.stacks import MOST_TEXT
from packhorse.worker.shared_status import SharedStatus


@pytest.fixture
def worker(tmp_path: Path) -> WorkerHandle:
    unused = cast(Any, None)  # nothing here speaks to the process
    return WorkerHandle("ann", unused, unused, SharedStatus.create(tmp_path / "board", 2), is_extra=False)


def says(order: int, more: int) -> dict[str, Any]:
    return {"say": "stacks", "order": order, "items": [{"title": "slot 0", "text": "here"}], "more": more}


def test_stacks_are_part_of_the_report_for_a_while_and_wake_the_heartbeat_once(worker: WorkerHandle):
    worker.receive_message({"say": "report", "busy": 1}, 99.0)

    worker.receive_message(says(7, more=0), 100.0)

    assert [worker.has_new_stacks(100.0), worker.has_new_stacks(101.0)] == [True, False]
    assert worker.stored_report(102.0) == {
        "busy": 0,
        "running": [],
        "stacks": {"order": 7, "age_s": 2.0, "items": [{"title": "slot 0", "text": "here", "job_id": None}]},
    }
    assert worker.stored_report(1_000.0) == {"busy": 0, "running": []}


def test_children_are_waited_for_and_listed_first(worker: WorkerHandle):
    worker.receive_message(says(7, more=1), 100.0)
    assert not worker.has_new_stacks(100.1)
    assert "stacks" not in worker.stored_report(100.1)

    worker.receive_message({"say": "stack", "order": 7, "stack": {"title": "slot 1", "text": "there"}}, 100.2)

    assert worker.has_new_stacks(100.2)
    assert [item["title"] for item in worker.stored_report(100.2)["stacks"]["items"]] == ["slot 1", "slot 0"]


def test_a_child_that_says_nothing_is_not_waited_for_long(worker: WorkerHandle):
    worker.receive_message(says(7, more=1), 100.0)

    assert worker.has_new_stacks(101.5)


def test_an_answer_to_an_older_question_is_passed_over(worker: WorkerHandle):
    worker.receive_message(says(7, more=0), 100.0)

    worker.receive_message({"say": "stack", "order": 6, "stack": {"title": "slot 1", "text": "there"}}, 100.1)

    assert len(worker.stored_report(100.2)["stacks"]["items"]) == 1


def test_what_children_tell_is_cut_to_what_one_worker_may_tell(worker: WorkerHandle):
    worker.receive_message(says(7, more=100), 100.0)

    for number in range(100):
        stack = {"title": f"slot {number}", "text": "x" * 6_000, "job_id": f"j{number}"}
        worker.receive_message({"say": "stack", "order": 7, "stack": stack}, 100.1)

    items = worker.stored_report(100.2)["stacks"]["items"]
    assert sum(len(item["title"]) + len(item["text"]) for item in items) <= MOST_TEXT + 100
    assert items[-1]["title"].endswith("more were left out")


def test_the_slots_are_sampled_with_the_heartbeat(worker: WorkerHandle):
    worker.receive_message({"say": "report", "busy": 0, "running": [], "done": 4}, 99.0)
    worker.status.begin(0, "short", "send", slot=1)
    worker.status.begin(1, "ended", "send", slot=0)
    worker.status.end(1)

    told = worker.stored_report(100.0)

    assert (told["busy"], told["done"]) == (1, 4)
    assert [(each["job_id"], each["task"], each["slot"]) for each in told["running"]] == [("short", "send", 1)]


def begin(worker: WorkerHandle, job_id: str, seconds_ago: float, place: int = 0) -> None:
    worker.status.begin(place, job_id, at=time.monotonic() - seconds_ago)


def looked(worker: WorkerHandle, monkeypatch: pytest.MonkeyPatch, seconds_ago: float) -> None:
    monkeypatch.setattr(worker.status, "look_age", lambda: seconds_ago)


def test_a_worker_that_runs_jobs_and_does_not_watch_their_limits_is_stuck(
    worker: WorkerHandle, monkeypatch: pytest.MonkeyPatch
):
    begin(worker, "long", STUCK + 5)
    begin(worker, "ended", STUCK + 5, place=1)
    begin(worker, "young", 1, place=2)
    worker.status.end(1)
    looked(worker, monkeypatch, STUCK)

    runs = worker.running_if_stuck()

    assert list(runs) == ["long", "young"]
    assert runs["long"] >= STUCK * SECOND


def test_a_worker_is_not_stuck_while_it_watches_limits_however_long_its_jobs_run(
    worker: WorkerHandle, monkeypatch: pytest.MonkeyPatch
):
    begin(worker, "long", 3_600)
    looked(worker, monkeypatch, STUCK - 1)

    assert worker.running_if_stuck() == {}


def test_a_worker_that_was_idle_and_has_just_begun_a_job_is_not_stuck(
    worker: WorkerHandle, monkeypatch: pytest.MonkeyPatch
):
    begin(worker, "young", 1)
    looked(worker, monkeypatch, 3_600)

    assert worker.running_if_stuck() == {}


def test_a_worker_whose_board_was_closed_this_moment_is_not_stuck(worker: WorkerHandle):
    worker.status.close()

    assert worker.running_if_stuck() == {}


@pytest.mark.parametrize("is_stuck", [True, False])
def test_only_a_stuck_worker_is_ended_for_a_job_whose_time_is_over(
    worker: WorkerHandle, monkeypatch: pytest.MonkeyPatch, is_stuck: bool
):
    workers = WorkerGroup(cast(Any, None), cast(Any, None), lambda: None)
    workers.members = (worker,)
    begin(worker, "long", STUCK + 5)
    looked(worker, monkeypatch, STUCK if is_stuck else 0)
    overrun = Overrun(Token("long", "ann", 1), "it ran for longer than 3 s")

    for _ in range(2):
        assert workers.end_overrun(overrun), "it is ours"

    assert worker.overruns == ((overrun,) if is_stuck else ())
    assert list(workers.stuck_jobs()) == (["ann"] if is_stuck else [])
    assert not workers.end_overrun(Overrun(Token("long", "bob", 1), "it ran for longer than 3 s"))
