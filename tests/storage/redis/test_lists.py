"""Lists: the script that walks and filters agrees with `listing`, which says for all storages who fits and who comes
next."""

from __future__ import annotations

from random import Random

import pytest

from packhorse.conformance.builders import find_all, ids, new_job, new_jobs
from packhorse.core.job import DEAD, FINAL, HELD, QUEUED, RETRYING, RUNNING, SCHEDULED, WAITING, Job, State, rank_of
from packhorse.core.transitions import Transition
from packhorse.storage import queries
from packhorse.storage.contract import BATCH
from packhorse.storage.records import Count, Filter
from packhorse.storage.redis import Redis, lists
from packhorse.storage.redis.transaction import Transaction

NOON = 1_800_000_000_000_000
STATES = (
    frozenset(), frozenset({QUEUED}), frozenset({SCHEDULED}), frozenset({SCHEDULED, RETRYING}), frozenset({DEAD}),
    frozenset({RUNNING}), frozenset({QUEUED, DEAD}), FINAL, WAITING, HELD,
)  # fmt: skip


def some_jobs(chance: Random, number: int) -> list[Job]:
    """Jobs that differ in everything that a filter may ask for; many share the very same moment."""
    queues, spread = chance.choice([1, 3, 40]), chance.choice([1, 3, 10**9])
    return [_some_job(chance, seq, queues, spread) for seq in range(1, number + 1)]


def _some_job(chance: Random, seq: int, queues: int, spread: int) -> Job:
    state = chance.choice(list(State))
    priority = chance.randint(1, 10)
    updated_at = NOON + chance.randrange(spread)
    is_held = state in HELD
    return Job(
        id=f"{chance.choice(['job', 'Zed', 'čas'])}-{seq}",
        seq=seq,
        task=chance.choice(["send", "draw", "needle"]),
        queue=f"line {chance.randrange(queues)}",
        args=chance.choice(['{"a":"Hay"}', '{"b":"NEEDLE"}', "{}", f'"{"x" * 3_000}"']),
        state=state,
        priority=priority,
        rank=chance.choice([0, 1, 2, rank_of(priority), rank_of(priority)]),
        created_at=NOON + chance.randrange(spread),
        updated_at=updated_at,
        due_at=NOON + chance.randrange(spread) if state in (SCHEDULED, RETRYING) else None,
        queued_at=NOON + chance.randrange(spread),
        finished_at=updated_at if state in FINAL else None,
        owner=chance.choice(["ann", "bob"]) if is_held else None,
        last_owner=None if is_held else chance.choice([None, "ann"]),
        fence=1,
        halts=chance.choice([0, 0, 1]),
        error=chance.choice([None, '{"type":"X","message":"a needle in an error"}']),
        cause=chance.choice([None, "cause 1", "cause 2"]),
        unique_key=chance.choice([None, "k", "kk"]),
        schedule=chance.choice([None, "nightly"]),
        persistent=chance.random() < 0.2,
    )


def some_filter(chance: Random) -> Filter:
    def perhaps(value: object) -> object:
        return value if chance.random() < 0.25 else None

    conditions = {
        "queue": perhaps("line 0"),
        "task": perhaps(chance.choice(["needle", "need"])),
        "owner": perhaps("ann"),
        "schedule": perhaps(chance.choice(["nightly", "night"])),
        "unique_key": perhaps("k"),
        "cause": perhaps("cause 1"),
        "halted": perhaps(chance.random() < 0.5),
        "min_priority": perhaps(4),
        "created_from": perhaps(NOON + 2),
        "created_to": perhaps(NOON + 50_000_000),
        "text": perhaps(chance.choice(["NEEDLE", "hay", "job-1", "ERR", "č", "message"])),
    }
    return Filter(chance.choice(STATES), **conditions)  # type: ignore[arg-type]


def keep_all(storage: Redis, jobs: list[Job]) -> None:
    """Store these jobs as they are."""

    def work(tx: Transaction) -> None:
        assert not tx.jobs(ids(jobs))
        for job in jobs:
            tx.do("HSET", storage._keys.queues, job.queue, "")
            tx.do("SADD", storage._keys.holders, job.owner or "nobody")
            tx.keep(None, Transition(job, []))

    storage._write("keep_all", work)


@pytest.mark.parametrize("seed", range(8))
def test_the_script_and_the_model_agree_which_jobs_fit_and_in_which_order(storage: Redis, seed: int) -> None:
    chance = Random(seed)
    jobs = some_jobs(chance, chance.choice([1, 10, 300]))
    keep_all(storage, jobs)

    for _ in range(60):
        where = some_filter(chance)
        order = queries.order_of(where.states)
        expected = sorted((job for job in jobs if queries.fits(job, where)), key=order.place)
        assert find_all(storage, where, limit=chance.choice([2, 50, BATCH])) == expected
        if not queries.is_tallied(where):
            assert storage.count(where) == Count(len(expected))
            capped = Count(len(expected)) if len(expected) <= 5 else Count(5, exact=False)
            assert storage.count(where, cap=5) == capped


def test_a_call_stops_after_a_bounded_number_and_the_next_continues(
    storage: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "_AT_ONCE", 10)
    monkeypatch.setattr(lists, "_AT_MOST", 30)
    storage.enqueue(new_jobs(100))
    storage.enqueue([new_job("wanted", task="print")])
    storage.enqueue(new_jobs(45))

    first = storage.find(Filter(task="print"), limit=5)
    second = storage.find(Filter(task="print"), cursor=first.next, limit=5)

    assert (first.jobs, ids(second.jobs)) == ([], ["wanted"])
    assert first.next is not None
    assert second.next is not None
    assert ids(find_all(storage, Filter(task="print"), limit=5)) == ["wanted"]
    assert storage.count(Filter(text="nowhere"), cap=20) == Count(0, exact=False)


def test_a_cursor_may_name_any_number(storage: Redis) -> None:
    storage.enqueue(new_jobs(3))
    everything = ids(find_all(storage))

    for place in (-(10**30), -(2**63), 0, 2**63, 10**30):
        cursor = queries.encode_cursor(queries.NEWEST, (place,))
        assert ids(storage.find(Filter(), cursor=cursor).jobs) == (everything if place < 0 else [])


def test_large_arguments_are_read_a_part_at_a_time(storage: Redis) -> None:
    storage.enqueue([new_job(args=f'"{"x" * 500_000}"') for _ in range(30)])

    page = storage.find(Filter(text="nowhere"))

    assert (page.jobs, page.next) == ([], None)
    (found,) = (one for one in storage._server.meter.report() if one.name == "find")
    assert found.calls > 1
