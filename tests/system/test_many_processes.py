"""Many processes on one SQLite file: every job is done exactly once, and nobody meets an error."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from pathlib import Path

import pytest

from packhorse.event import Subject
from packhorse.job import COMPLETED
from packhorse.storage.records import EventFilter, Filter
from packhorse.storage.sqlite import SQLite
from tests.children import program, running
from tests.storage.builders import find_all, recount, tallies

PRODUCERS, WORKERS, JOBS = 8, 8, 20_000


@pytest.mark.timeout(150)
def test_every_job_of_a_crowd_is_done_exactly_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "jobs.db"
    crowd = [program("tests.system.crowd", "produce", path, f"p{n}", JOBS // PRODUCERS) for n in range(PRODUCERS)]
    crowd += [program("tests.system.crowd", "work", path, f"w{n}", JOBS) for n in range(WORKERS)]

    with running(*crowd):
        for one in crowd:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        began_at = time.monotonic()
        for one in crowd:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        told = [one.communicate(timeout=120) for one in crowd]
        took = time.monotonic() - began_at

    assert [complaint for _, complaint in told if complaint] == []
    assert [one.returncode for one in crowd] == [0] * (PRODUCERS + WORKERS)
    finished = [int(text) for text, _ in told[PRODUCERS:]]
    assert sum(finished) == JOBS
    check_jobs(path)
    check_events(path)
    with capsys.disabled():
        print(f" [{JOBS:,} jobs through {len(crowd)} processes in {took:.1f} s, {finished} each] ", end="")
    assert took < 60


def check_jobs(path: Path) -> None:
    storage = SQLite(path)
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
    storage.close()


def check_events(path: Path) -> None:
    """Each job was added, reserved, started and completed once, in this order, by one worker."""
    stories: dict[str, list[str]] = {}
    owners: dict[str, set[str | None]] = {}
    storage = SQLite(path)
    last = 0
    while events := storage.events(EventFilter(subject=Subject.JOB, after=last), limit=10_000):
        last = events[-1].id
        for event in events:
            assert event.job_id is not None
            stories.setdefault(event.job_id, []).append(event.kind)
            owners.setdefault(event.job_id, set()).add(event.owner)
    storage.close()
    connection = sqlite3.connect(path)

    assert Counter(map(tuple, stories.values())) == {("added", "reserved", "started", "completed"): JOBS}
    assert {len(held - {None}) for held in owners.values()} == {1}
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
