"""Jobs of many queues in one call: their events share batches, and nobody is passed over."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from packhorse.conformance.builders import join, new_job
from packhorse.core.outcome import Completed, Verdict
from packhorse.storage.records import EventFilter
from packhorse.storage.sqlite import SQLite, hot_path

_QUEUES = {f"q{number}": 1 for number in range(100)}


def _fill(storage: SQLite, each: int) -> None:
    for turn in range(each):
        storage.enqueue([new_job(f"{turn:02}-{queue}", queue=queue) for queue in _QUEUES])


def test_jobs_of_many_queues_share_the_packs_of_their_events(storage: SQLite, path: Path) -> None:
    _fill(storage, 1)
    owner = join(storage)
    jobs = storage.reserve(owner, _QUEUES, 100)
    storage.finish([Completed(job.token) for job in jobs])

    connection = sqlite3.connect(path)
    batches = connection.execute("SELECT kind, queue, span FROM packhorse_event WHERE jobs IS NOT NULL").fetchall()
    connection.close()
    numbers: Counter[str] = Counter()
    for kind, queue, span in batches:
        assert queue is None
        numbers[kind] += span + 1
    assert numbers == {"added": 100, "reserved": 100, "started": 100, "completed": 100}


def test_events_in_a_pack_of_many_queues_have_their_own(storage: SQLite) -> None:
    _fill(storage, 1)
    jobs = storage.reserve(join(storage), _QUEUES, 100)
    storage.finish([Completed(job.token) for job in jobs])

    for queue in ("q0", "q7", "q99"):
        of_queue = storage.events(EventFilter(queue=queue))
        assert [event.kind.value for event in of_queue] == ["added", "reserved", "started", "completed"]
        assert {(event.queue, event.job_id) for event in of_queue} == {(queue, f"00-{queue}")}
        assert storage.events(EventFilter(job_id=f"00-{queue}")) == of_queue
    assert storage.events(EventFilter(queue="q100")) == []
    assert all(event.job_id == f"00-{event.queue}" for event in storage.events(EventFilter(kind="added"), limit=200))


def test_jobs_of_few_queues_have_their_events_without_a_pack(storage: SQLite) -> None:
    storage.enqueue([new_job("left", queue="q1"), new_job("right", queue="q2")])

    added = storage.events(EventFilter(kind="added"))

    assert [(event.job_id, event.queue) for event in added] == [("left", "q1"), ("right", "q2")]


@pytest.mark.parametrize("limit", [33, 64, 250])
def test_every_queue_among_very_many_is_served_in_turn(storage: SQLite, limit: int) -> None:
    _fill(storage, 5)
    owner = join(storage)
    taken: list[str] = []

    while jobs := storage.reserve(owner, _QUEUES, limit):
        assert len(jobs) == min(limit, 500 - len(taken))
        taken += [job.id for job in jobs]
        served = Counter(job_id.partition("-")[2] for job_id in taken)
        most = max(served.values())
        # Those that were served in this round are ahead of the others by what one round gives, and by no more.
        behind = [queue for queue in _QUEUES if most - served[queue] > 5]
        assert behind == []
        storage.finish([Completed(job.token) for job in jobs])

    assert sorted(taken) == sorted(f"{turn:02}-{queue}" for turn in range(5) for queue in _QUEUES)
    for queue in _QUEUES:
        of_queue = [job_id for job_id in taken if job_id.endswith(f"-{queue}")]
        assert of_queue == [f"{turn:02}-{queue}" for turn in range(5)]


def test_after_a_round_in_which_all_lines_became_short_the_rest_is_found(storage: SQLite) -> None:
    _fill(storage, 1)
    storage.enqueue([new_job(f"long-{number:03}", queue="q50") for number in range(200)])
    owner = join(storage)

    assert len(storage.reserve(owner, _QUEUES, 40)) == 40  # by now it is known that the lines are many
    assert hot_path._QUEUES_AT_A_TIME < 40
    assert len(storage.reserve(owner, _QUEUES, 200)) == 200
    assert len(storage.reserve(owner, _QUEUES, 200)) == 60


def test_jobs_in_other_hands_leave_those_beside_them_completed(storage: SQLite) -> None:
    _fill(storage, 1)
    kept = storage.reserve(join(storage, "ann"), _QUEUES, 50)
    lost = storage.reserve(join(storage, "ben"), _QUEUES, 50)
    storage.rescue_owner("ben", foreman="ben", why="signal 9")

    verdicts = storage.finish([Completed(job.token) for job in [*kept, *lost]])

    assert verdicts == [Verdict.ACCEPTED] * 50 + [Verdict.STALE] * 50
    completed = storage.events(EventFilter(kind="completed"))
    assert sorted(str(event.job_id) for event in completed) == sorted(job.id for job in kept)
    assert sum(tally.number for tally in storage.tallies() if tally.state == "completed") == 50
