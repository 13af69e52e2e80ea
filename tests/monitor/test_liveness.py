"""Presence: who is there, who is gone without a word, and who they were."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.core.clock import SECOND
from packhorse.core.event import Subject
from packhorse.monitor.liveness import busy_slots, group_processes, group_text, is_alive, presence_of
from packhorse.storage.records import WorkerInfo

NOW = 1_000 * SECOND
LEASE = 15 * SECOND


def a_foreman(name: str = "boss", silent: int = 0) -> WorkerInfo:
    return WorkerInfo(name, Subject.FOREMAN, host="mule", pid=11, beat_at=NOW - silent)


def a_worker(name: str, foreman: str | None = "boss", silent: int = 0) -> WorkerInfo:
    return WorkerInfo(name, foreman=foreman, host="mule", pid=12, beat_at=NOW - silent)


@pytest.mark.parametrize(
    ("silent", "alive", "here"),
    [(0, True, True), (15, True, True), (16, False, True), (18, False, True), (19, False, False), (-5, True, True)],
)
def test_who_is_silent_for_a_lease_and_a_fifth_of_it_is_gone(silent: int, alive: bool, here: bool):
    worker = a_worker("ann", silent=silent * SECOND)

    assert is_alive(worker, NOW, LEASE) == alive
    assert presence_of([worker], NOW, LEASE) == (([worker], []) if here else ([], [worker]))


@pytest.mark.parametrize(
    ("silent", "alive", "here"), [(20, True, True), (90, True, True), (91, False, True), (109, False, False)]
)
def test_who_says_that_its_lease_is_longer_has_it(silent: int, alive: bool, here: bool):
    worker = WorkerInfo("ann", info={"lease_s": 90.0}, beat_at=NOW - silent * SECOND)

    assert is_alive(worker, NOW, LEASE) == alive
    assert presence_of([worker], NOW, LEASE) == (([worker], []) if here else ([], [worker]))


def test_whoever_looks_with_a_longer_lease_goes_by_that():
    worker = WorkerInfo("ann", info={"lease_s": 2.0}, beat_at=NOW - LEASE)

    assert is_alive(worker, NOW, LEASE)


def test_a_killed_foreman_is_listed_for_less_than_twenty_seconds():
    assert presence_of([a_foreman(silent=20 * SECOND)], NOW, LEASE).here == []


def test_who_was_only_frozen_is_back_with_the_next_beat():
    frozen = a_worker("ann", silent=60 * SECOND)
    assert presence_of([frozen], NOW, LEASE).gone == [frozen]

    thawed = a_worker("ann")

    assert presence_of([thawed], NOW, LEASE).here == [thawed]


def test_a_foreman_is_told_with_its_workers_and_who_fell_silent_last_first():
    boss, ann, bob = a_foreman(silent=60), a_worker("ann", silent=50), a_worker("bob", silent=55)
    alone, orphan = a_worker("zoe", None, silent=10), a_worker("kim", "another boss", silent=70)

    lost = group_processes([ann, alone, boss, orphan, bob])

    assert [(each.chief.id, [one.id for one in each.crew]) for each in lost] == [
        ("zoe", []),
        ("boss", ["ann", "bob"]),
        ("kim", []),
    ]
    assert lost[1].silent_since == NOW - 50
    assert lost[1].held({"ann": 2, "bob": 1, "zoe": 7, None: 9}) == 3
    assert [group_text(each) for each in lost] == [
        "the worker mule:12",
        "the foreman mule:11 and its 2 workers",
        "the worker mule:12",
    ]
    assert group_text(group_processes([boss, ann])[0]) == "the foreman mule:11 and its worker"


@pytest.mark.parametrize(
    ("told", "running", "held", "busy"),
    [
        ([2, 2], 0, 40, 4),  # short jobs, and many reserved ahead
        ([0, 0], 3, 3, 3),  # they began after the last heartbeats
        ([2, 2], 0, 1, 1),  # they have ended since
        ([9, 0], 0, 40, 2),  # of an older version, which counted what was not written down
        ([None, None], 1, 3, 3),  # of others, which do not say
    ],
)
def test_busy_slots_are_what_workers_say_as_far_as_the_storage_bears_it_out(
    told: list[int | None], running: int, held: int, busy: int
):
    reports: list[dict[str, Any]] = [{} if number is None else {"busy": number} for number in told]
    workers = [WorkerInfo(f"worker-{n}", concurrency=2, report=report) for n, report in enumerate(reports)]

    assert busy_slots(workers, running=running, held=held) == busy
