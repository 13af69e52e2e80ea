from __future__ import annotations

import pytest
from msgspec.structs import replace

from packhorse.foreman.scaling import EXTRA_IDLE, PATIENCE, TOO_LONG, Demand, ScalingLimits, WorkerLoad, plan

LIMITS = ScalingLimits(least=1, most=4, slots=10, idle_stop=60, most_extra=2)
WAITING = Demand(backlog=25, oldest_wait=PATIENCE)


def busy(name: str = "ann", busy: int = 10) -> WorkerLoad:
    return WorkerLoad(name, slots=10, busy=busy)


def idle(name: str = "ben", seconds: float = 60, done: int = 5) -> WorkerLoad:
    return WorkerLoad(name, slots=10, done=done, idle_for=seconds)


def extra(name: str = "eve", **facts: object) -> WorkerLoad:
    return replace(WorkerLoad(name, slots=1, is_extra=True), **facts)


# --- more -------------------------------------------------------------------------------------------------------------


def test_the_minimum_is_always_wanted() -> None:
    assert plan(Demand(), [], 0, LIMITS).wanted == 1


def test_workers_are_added_for_what_waits_when_no_slot_is_idle() -> None:
    assert plan(WAITING, [busy()], 1, LIMITS).wanted == 4  # 25 jobs, 10 slots each
    assert plan(replace(WAITING, backlog=1), [busy()], 1, LIMITS).wanted == 2


def test_there_are_never_more_than_the_maximum() -> None:
    assert plan(replace(WAITING, backlog=1_000_000), [busy()], 1, LIMITS).wanted == 4


def test_none_is_added_while_a_slot_is_idle() -> None:
    assert plan(WAITING, [busy(busy=9)], 1, LIMITS).wanted == 1


def test_none_is_added_for_jobs_that_have_only_just_come() -> None:
    assert plan(replace(WAITING, oldest_wait=PATIENCE / 2), [busy()], 1, LIMITS).wanted == 1


def test_none_is_added_for_jobs_that_a_starting_worker_will_take() -> None:
    starting = WorkerLoad("new", slots=10, is_online=False)

    assert plan(replace(WAITING, backlog=10), [busy(), starting], 2, LIMITS).wanted == 2
    assert plan(replace(WAITING, backlog=11), [busy(), starting], 2, LIMITS).wanted == 3


def test_without_any_worker_the_first_job_brings_one_at_once() -> None:
    limits = replace(LIMITS, least=0)

    assert plan(Demand(), [], 0, limits).wanted == 0
    assert plan(Demand(backlog=1), [], 0, limits).wanted == 1


def test_slots_that_look_idle_between_short_jobs_do_not_count_when_jobs_wait_too_long() -> None:
    demand = replace(WAITING, oldest_wait=TOO_LONG)

    assert plan(demand, [busy(busy=5)], 1, LIMITS).wanted == 4
    assert plan(demand, [busy(busy=4)], 1, LIMITS).wanted == 1


# --- less -------------------------------------------------------------------------------------------------------------


def test_whoever_was_idle_long_enough_goes_and_the_longest_idle_first() -> None:
    loads = [busy(), idle("ben", 61), idle("cid", 65), idle("dan", 59)]

    result = plan(Demand(), loads, 4, LIMITS)

    assert (result.wanted, result.stop) == (2, ["cid", "ben"])


def test_the_minimum_stays_however_idle() -> None:
    result = plan(Demand(), [idle("ann", 99), idle("ben", 98)], 2, replace(LIMITS, least=2))

    assert (result.wanted, result.stop) == (2, [])


def test_nobody_goes_while_jobs_wait() -> None:
    assert plan(Demand(backlog=1), [busy(), idle()], 2, LIMITS).stop == []


def test_a_worker_that_is_still_starting_is_not_idle() -> None:
    assert plan(Demand(), [busy(), replace(idle(), is_online=False)], 2, LIMITS).stop == []


# --- extra ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("forced", "started"), [(0, 0), (1, 1), (2, 2), (9, 2)])
def test_forced_jobs_get_workers_of_their_own_up_to_a_limit(forced: int, started: int) -> None:
    full = [busy(name) for name in "abcd"]

    result = plan(Demand(9, 1.0, forced), full, 4, LIMITS)

    assert (result.wanted, result.extra) == (4, started)


def test_no_extra_worker_comes_while_a_slot_is_free_or_coming() -> None:
    assert plan(Demand(1, 1.0, forced=1), [busy(busy=9)], 1, LIMITS).extra == 0
    assert plan(Demand(1, 1.0, forced=1), [busy()], 1, LIMITS).extra == 0  # an ordinary one is added


def test_an_extra_worker_on_its_way_is_counted() -> None:
    full = [busy(name) for name in "abcd"]

    assert plan(Demand(1, 1.0, forced=1), [*full, extra(is_online=False)], 4, LIMITS).extra == 0
    assert plan(Demand(2, 1.0, forced=2), [*full, extra(busy=1)], 4, LIMITS).extra == 1


def test_an_extra_worker_goes_after_its_job_or_when_it_finds_none() -> None:
    loads = [busy(), extra("e1", done=1), extra("e2", idle_for=EXTRA_IDLE), extra("e3", busy=1)]

    assert plan(Demand(), loads, 1, LIMITS).stop == ["e1", "e2"]
