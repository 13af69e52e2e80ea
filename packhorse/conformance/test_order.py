"""Who is reserved first: rank, then turns by weight, then first in, first out."""

from __future__ import annotations

import pytest

from packhorse.conformance.builders import (
    FAILURE,
    WORKER,
    add,
    finish,
    ids,
    join,
    new_job,
    new_jobs,
    reserve_ids,
    run,
    stored,
    take,
)
from packhorse.core.clock import HOUR, SECOND, ManualClock
from packhorse.core.errors import BadValue
from packhorse.core.job import (
    RANK_FORCED,
    RANK_HALTED,
    RANK_RECOVERED,
)
from packhorse.core.outcome import Completed, Failed
from packhorse.storage.contract import BATCH, Storage
from packhorse.storage.records import TaskInfo

# --- ranks ----------------------------------------------------------------------------------------------------------


def of_every_rank(storage: Storage, *queues: str) -> list[str]:
    """One job of each rank, the first to run first; stored the other way round, over these queues in turn."""
    lines = [queues[number % len(queues)] for number in range(13)]
    recovered, halted = (add(storage, name, queue=lines[0]) for name in ("recovered", "halted"))
    run(storage, recovered, "dead-1")
    run(storage, halted, "dead-2")
    storage.rescue_owner("dead-2", foreman="dead-2", why="signal 9")
    storage.rescue_owner("dead-1", foreman="dead-1", why="restart", recovered=True)
    storage.enqueue(
        [
            new_job(f"priority-{10 - number:02}", queue=lines[number], priority=10 - number)
            for number in range(9, -1, -1)
        ]
    )
    add(storage, "forced", queue=lines[0], delay=HOUR)
    storage.force_start(["forced"])
    return ["recovered", "forced", "halted", *(f"priority-{priority:02}" for priority in range(10, 0, -1))]


@pytest.mark.parametrize("queues", [("mail",), ("mail", "print", "scan")])
@pytest.mark.parametrize("limit", [1, 4, 100])
def test_the_lowest_rank_goes_first_whatever_its_queue(storage: Storage, queues: tuple[str, ...], limit: int) -> None:
    expected = of_every_rank(storage, *queues)

    taken: list[str] = []
    while batch := reserve_ids(storage, *queues, limit=limit):
        taken += batch

    assert taken == expected
    ranks = [stored(storage, job_id).rank for job_id in taken]
    assert ranks == [RANK_RECOVERED, RANK_FORCED, RANK_HALTED, *range(3, 13)]


def test_a_job_halted_twice_has_lost_its_better_rank(storage: Storage) -> None:
    job = add(storage, priority=3)
    for owner in ("dead-1", "dead-2"):
        run(storage, job, owner)
        storage.rescue_owner(owner, foreman=owner, why="signal 9")
    more_important = add(storage, priority=4)

    assert reserve_ids(storage) == [more_important.id, job.id]


def test_a_priority_moves_a_job_at_once(storage: Storage) -> None:
    first, second, third = (add(storage) for _ in range(3))

    storage.set_priority([third.id], 5)
    storage.set_priority([first.id], 3)

    assert reserve_ids(storage) == [third.id, first.id, second.id]


def test_a_scheduled_job_takes_its_new_priority_into_the_line(storage: Storage, clock: ManualClock) -> None:
    later, now = add(storage, delay=SECOND), add(storage, priority=2)
    storage.set_priority([later.id], 3)

    clock.turn(1)

    assert reserve_ids(storage) == [later.id, now.id]


def test_a_forced_job_keeps_its_rank_when_its_priority_changes(storage: Storage) -> None:
    important, forced = add(storage, priority=10), add(storage, priority=5)
    storage.force_start([forced.id])

    storage.set_priority([forced.id], 1)

    assert reserve_ids(storage) == [forced.id, important.id]


# --- first in, first out --------------------------------------------------------------------------------------------


def test_jobs_of_the_same_moment_keep_their_order_whatever_their_ids(storage: Storage) -> None:
    wanted = [f"job-{letter}" for letter in "zyxabcmnoq"]
    storage.enqueue([new_job(job_id) for job_id in wanted[:4]])
    for job_id in wanted[4:]:
        storage.enqueue([new_job(job_id)])

    assert reserve_ids(storage, limit=7) + reserve_ids(storage, limit=7) == wanted


def test_a_released_job_keeps_its_place(storage: Storage, clock: ManualClock) -> None:
    first, second = add(storage), add(storage)
    token = take(storage, first).token
    clock.turn(1)

    storage.release([token], "stopping")

    assert reserve_ids(storage) == [first.id, second.id]


def test_a_released_job_keeps_its_rank(storage: Storage) -> None:
    add(storage, "important", priority=10)
    forced = add(storage)
    storage.force_start([forced.id])

    storage.release([take(storage, forced).token], "stopping")

    assert reserve_ids(storage) == [forced.id, "important"]


def test_a_job_rescued_before_it_began_keeps_its_place_and_rank(storage: Storage) -> None:
    first, second = add(storage), add(storage)
    take(storage, first, "dead")

    storage.rescue_owner("dead", foreman="dead", why="signal 9")

    assert reserve_ids(storage) == [first.id, second.id]
    assert stored(storage, first.id).rank == first.rank


def test_a_failed_forced_job_waits_in_line_like_any_other(storage: Storage) -> None:
    forced, important = add(storage), add(storage, priority=10)
    storage.force_start([forced.id])

    finish(storage, Failed(take(storage, forced).token, FAILURE, retry_in=0))

    assert reserve_ids(storage) == [important.id, forced.id]


# --- turns by weight ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 10, 100])
def test_weights_share_the_turns(storage: Storage, limit: int) -> None:
    storage.enqueue(new_jobs(400, queue="light"))
    storage.enqueue(new_jobs(400, queue="heavy"))
    join(storage)

    first = [storage.reserve("ann", {"heavy": 3, "light": 1}, limit) for _ in range(100 // limit)]

    queues = [job.queue for batch in first for job in batch]
    assert len(queues) == 100
    assert 72 <= queues.count("heavy") <= 78


@pytest.mark.parametrize("first", ["heavy", "light"])
def test_jobs_that_are_reserved_together_are_in_turns(storage: Storage, first: str) -> None:
    for queue in sorted(["heavy", "light"], reverse=first == "light"):
        storage.enqueue(new_jobs(200, queue=queue))
    join(storage)

    taken = storage.reserve("ann", {"heavy": 3, "light": 1}, BATCH)

    queues = [job.queue for job in taken]
    assert 72 <= queues[:100].count("heavy") <= 78
    assert 72 <= queues[100:200].count("heavy") <= 78
    for queue in ("heavy", "light"):
        seqs = [job.seq for job in taken if job.queue == queue]
        assert (len(seqs), seqs) == (200, sorted(seqs))


@pytest.mark.parametrize("limit", [1, 10])
def test_a_backlog_in_one_queue_starves_no_other(storage: Storage, limit: int) -> None:
    storage.enqueue(new_jobs(BATCH, queue="big"))
    assert len(reserve_ids(storage, "big", "small", limit=200)) == 200
    late = storage.enqueue(new_jobs(5, queue="small"))

    taken = [job_id for _ in range(20 // limit) for job_id in reserve_ids(storage, "big", "small", limit=limit)]

    assert {answer.job_id for answer in late} <= set(taken)


def test_turns_are_shared_within_a_rank_only(storage: Storage) -> None:
    storage.enqueue(new_jobs(10, queue="light", priority=2))
    storage.enqueue(new_jobs(10, queue="heavy", priority=1))
    join(storage)

    taken = storage.reserve("ann", {"heavy": 100, "light": 1}, 10)

    assert {job.queue for job in taken} == {"light"}


def test_a_share_that_one_queue_cannot_fill_goes_to_the_others(storage: Storage) -> None:
    storage.enqueue(new_jobs(2, queue="heavy"))
    storage.enqueue(new_jobs(20, queue="light"))
    join(storage)

    taken = storage.reserve("ann", {"heavy": 100, "light": 1}, 10)

    assert sorted(job.queue for job in taken) == ["heavy"] * 2 + ["light"] * 8


# --- which queues ---------------------------------------------------------------------------------------------------


def test_only_the_queues_asked_for_are_reserved(storage: Storage) -> None:
    storage.enqueue([new_job("a", queue="a", priority=10), new_job("b", queue="b"), new_job("c", queue="c")])

    assert reserve_ids(storage, "b", "unheard-of") == ["b"]
    assert storage.reserve("ann", {}, 10) == []
    assert reserve_ids(storage, "c") == ["c"]


def test_a_worker_finds_its_queue_among_very_many(storage: Storage) -> None:
    storage.enqueue([new_job(queue=f"other-{number:03}", priority=5) for number in range(300)])
    storage.enqueue([new_job("second", queue="zebra", priority=1), new_job("first", queue="zebra", priority=5)])

    assert reserve_ids(storage, "zebra", limit=1) == ["first"]
    assert reserve_ids(storage, "zebra", limit=1) == ["second"]


def test_a_paused_queue_is_skipped_until_it_is_resumed(storage: Storage) -> None:
    paused, other = add(storage, queue="paused", priority=10), add(storage, queue="open")
    storage.pause("paused")

    assert reserve_ids(storage, "paused", "open") == [other.id]
    storage.resume("paused")
    assert reserve_ids(storage, "paused", "open") == [paused.id]


def test_a_forced_job_passes_a_pause(storage: Storage) -> None:
    storage.pause("mail")
    forced, scheduled, ordinary = add(storage), add(storage, delay=HOUR), add(storage, priority=10)

    storage.force_start([scheduled.id, forced.id])

    assert sorted(reserve_ids(storage)) == sorted([forced.id, scheduled.id])
    assert stored(storage, ordinary.id) == ordinary


def test_a_halted_job_does_not_pass_a_pause(storage: Storage) -> None:
    run(storage, add(storage), "dead")
    storage.rescue_owner("dead", foreman="dead", why="signal 9")
    storage.pause("mail")

    assert reserve_ids(storage) == []


def test_a_paused_queue_takes_no_turns_from_the_others(storage: Storage) -> None:
    storage.enqueue(new_jobs(10, queue="paused"))
    storage.enqueue(new_jobs(10, queue="open"))
    storage.pause("paused")
    join(storage)

    taken = storage.reserve("ann", {"paused": 100, "open": 1}, 5)

    assert [job.queue for job in taken] == ["open"] * 5
    storage.finish([Completed(job.token) for job in taken])


def test_long_lines_among_very_many_queues_are_emptied_before_a_lower_rank(storage: Storage) -> None:
    urgent = [new_job(f"urgent-{number:03}", queue=f"q{number % 2}", priority=9) for number in range(90)]
    later = [new_job(f"later-{number:03}", queue="q2", priority=3) for number in range(40)]
    storage.enqueue([*later, *urgent])

    taken = [job.id for job in storage.reserve(join(storage), {f"q{number}": 1 for number in range(120)}, 100)]

    assert sorted(taken[:90]) == [job.id for job in urgent]
    assert taken[90:] == [job.id for job in later[:10]]


def test_the_order_of_queues_is_one_for_the_whole_storage(storage: Storage) -> None:
    seen = [storage.poll("fm", []).order]
    storage.announce([TaskInfo("send", "mail")], order="created")
    seen.append(storage.poll("fm", []).order)
    storage.announce([TaskInfo("send", "mail")])
    seen.append(storage.poll("another", []).order)
    storage.announce([], order="turns")
    seen.append(storage.poll("fm", []).order)

    assert seen == ["turns", "created", "created", "turns"]
    with pytest.raises(BadValue):
        storage.announce([], order="by chance")


def test_all_queues_of_a_rank_come_before_the_next_rank_also_with_very_many(storage: Storage) -> None:
    queues = {f"q{number:03}": 1 for number in range(150)}
    storage.enqueue([new_job(queue=queue, priority=10) for queue in queues])
    storage.enqueue([new_job("low", queue="q000", priority=1)])
    join(storage)

    taken = storage.reserve(WORKER, queues, 120)

    assert len(taken) == 120
    assert "low" not in ids(taken)
