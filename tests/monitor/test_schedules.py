"""The next jobs in line."""

from __future__ import annotations

from packhorse.core.job import QUEUED, RANK_FORCED, Job, rank_of
from packhorse.monitor.schedules import order_next_jobs, queue_weights
from packhorse.storage.records import TaskInfo


def line(*places: tuple[str, int]) -> list[Job]:
    """Jobs of these queues and ranks, as a storage lists them."""
    jobs = [
        Job(f"{queue}{seq}", seq, "task", queue, "{}", QUEUED, 1, rank, 0, 0)
        for seq, (queue, rank) in enumerate(places)
    ]
    return sorted(jobs, key=lambda job: (job.rank, job.seq))


LOW, HIGH = rank_of(1), rank_of(5)


def test_queues_take_turns_by_weight() -> None:
    jobs = line(*[("a", LOW)] * 4, *[("b", LOW)] * 2, ("c", HIGH))

    found = order_next_jobs(jobs, "turns", {"a": 3})

    assert found[0].job.queue == "c"
    assert sorted(one.job.queue for one in found[1:5]) == ["a", "a", "a", "b"]
    assert [one.place_in_queue for one in found if one.job.queue == "a"] == [1, 2, 3, 4]


def test_by_age_queues_do_not_matter() -> None:
    jobs = line(("a", LOW), ("a", LOW), ("b", LOW), ("a", HIGH), ("b", RANK_FORCED))

    found = order_next_jobs(jobs, "created", {})

    assert [one.job.id for one in found] == ["b4", "a3", "a0", "a1", "b2"]
    assert [one.place for one in found] == [1, 2, 3, 4, 5]
    assert [one.tier for one in found[:2]] == ["forced", "priority 1"]


def test_a_queue_has_the_weight_of_its_heaviest_task() -> None:
    tasks = [
        TaskInfo("a", "mail", {"weight": 2}),
        TaskInfo("b", "mail", {"weight": 5}),
        TaskInfo("c", "c", {"weight": "x"}),
    ]

    assert queue_weights(tasks) == {"mail": 5, "c": 1}
