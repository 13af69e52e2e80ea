"""Many processes on one storage: every job is done exactly once, and nobody meets an error."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from pathlib import Path

import pytest

from packhorse.conformance.builders import find_all, recount, tallies
from packhorse.core.event import Subject
from packhorse.core.job import COMPLETED
from packhorse.storage import Storage, open_storage
from packhorse.storage.records import EventFilter, Filter
from tests.children import program, running
from tests.storage.conftest import ADDRESSES, chosen_storages

PRODUCERS, WORKERS, JOBS = 5, 5, 5_000


@pytest.mark.parametrize("name", [name for name in chosen_storages() if name != "memory"])
def test_every_job_of_a_crowd_is_done_exactly_once(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = ADDRESSES[name](tmp_path)
    crowd = [
        program("tests.system.competing_processes", "produce", url, f"p{n}", JOBS // PRODUCERS)
        for n in range(PRODUCERS)
    ]
    crowd += [program("tests.system.competing_processes", "work", url, f"w{n}", JOBS) for n in range(WORKERS)]

    with running(*crowd):
        for one in crowd:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        began_at = time.monotonic()
        for one in crowd:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        told = [one.communicate(timeout=240) for one in crowd]
        took = time.monotonic() - began_at

    assert [complaint for _, complaint in told if complaint] == []
    assert [one.returncode for one in crowd] == [0] * (PRODUCERS + WORKERS)
    finished = [int(text) for text, _ in told[PRODUCERS:]]
    assert sum(finished) == JOBS
    storage = open_storage(url)
    check_jobs(storage)
    check_events(storage)
    storage.close()
    if name == "sqlite":
        check_file(tmp_path / "jobs.db")
    with capsys.disabled():
        print(f" [{JOBS:,} jobs through {len(crowd)} processes in {took:.1f} s, {finished} each] ", end="")


def check_jobs(storage: Storage) -> None:
    jobs = find_all(storage, limit=1_000)

    assert len(jobs) == len({job.id for job in jobs}) == len({job.seq for job in jobs}) == JOBS
    assert {(job.state, job.attempts, job.fence, job.failures, job.halts, job.owner) for job in jobs} == {
        (COMPLETED, 1, 1, 0, 0, None)
    }
    assert all(job.result == f'"{job.id}"' for job in jobs)
    assert tallies(storage) == recount(storage)
    assert storage.count(Filter(states=frozenset({COMPLETED}))).number == JOBS
    assert (storage.totals()["added"], storage.totals()["completed"]) == (JOBS, JOBS)
    assert storage.workers() == []


def check_events(storage: Storage) -> None:
    """Each job was added, reserved, started and completed once, in this order, by one worker."""
    stories: dict[str, list[str]] = {}
    owners: dict[str, set[str | None]] = {}
    last = 0
    while events := storage.events(EventFilter(subject=Subject.JOB, after=last), limit=10_000):
        last = events[-1].id
        for event in events:
            assert event.job_id is not None
            stories.setdefault(event.job_id, []).append(event.kind)
            owners.setdefault(event.job_id, set()).add(event.owner)

    assert Counter(map(tuple, stories.values())) == {("added", "reserved", "started", "completed"): JOBS}
    assert {len(held - {None}) for held in owners.values()} == {1}


def check_file(path: Path) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
