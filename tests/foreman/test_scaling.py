from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from packhorse.foreman.scaling import (
    BROKEN_AFTER,
    EXTRA_IDLE,
    LONGEST_WAIT,
    PATIENCE,
    TOLERATED,
    TOO_LONG,
    CrashBackoff,
    Demand,
    ScalingLimits,
    WorkerLoad,
    plan,
)

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


def test_without_any_worker_the_first_job_starts_one_immediately() -> None:
    limits = replace(LIMITS, least=0)

    assert plan(Demand(), [], 0, limits).wanted == 0
    assert plan(Demand(backlog=1), [], 0, limits).wanted == 1


def test_slots_that_look_idle_between_short_jobs_do_not_count_when_jobs_wait_too_long() -> None:
    demand = replace(WAITING, oldest_wait=TOO_LONG)

    assert plan(demand, [busy(busy=5)], 1, LIMITS).wanted == 4
    assert plan(demand, [busy(busy=4)], 1, LIMITS).wanted == 1


# --- less -------------------------------------------------------------------------------------------------------------


def test_idle_workers_stop_the_longest_idle_first() -> None:
    loads = [busy(), idle("ben", 61), idle("cid", 65), idle("dan", 59)]

    result = plan(Demand(), loads, 4, LIMITS)

    assert (result.wanted, result.stop) == (2, ["cid", "ben"])


def test_the_minimum_stays_however_idle() -> None:
    result = plan(Demand(), [idle("ann", 99), idle("ben", 98)], 2, replace(LIMITS, least=2))

    assert (result.wanted, result.stop) == (2, [])


def test_no_worker_stops_while_jobs_wait() -> None:
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


# --- workers that die young -------------------------------------------------------------------------------------------


def starts_in_the_first_minute(workers: int, lives_for: float) -> int:
    """How many workers are started when each dies after so many seconds, and the loop looks four times a second."""
    backoff, dies_at, starts = CrashBackoff(), list[float](), 0
    for tick in range(240):
        now = tick / 4
        for _ in [at for at in dies_at if at <= now]:
            backoff.died_young(now)
        dies_at = [at for at in dies_at if at > now]
        while len(dies_at) < workers and backoff.may_start(now, len(dies_at)):
            dies_at.append(now + lives_for)
            starts += 1
    return starts


def test_the_first_deaths_are_followed_by_an_immediate_restart() -> None:
    backoff = CrashBackoff()

    for at in range(TOLERATED - 1):
        backoff.died_young(at)

    assert backoff.may_start(at=1.0, starting=5)
    assert backoff.wait == 0


def test_then_the_waits_double_up_to_a_minute() -> None:
    backoff = CrashBackoff()
    backoff.succeeded()

    waits = []
    for _ in range(12):
        backoff.died_young(0.0)
        waits.append(backoff.wait)

    assert waits == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]


def test_nothing_is_started_before_the_wait_is_over() -> None:
    backoff = CrashBackoff()

    for _ in range(4):
        backoff.died_young(at=100.0)

    assert backoff.seconds_left(100.5) == 1.5
    assert not backoff.may_start(101.9, starting=0)
    assert backoff.may_start(102.0, starting=0)


def test_while_in_doubt_one_worker_at_a_time_is_tried() -> None:
    backoff = CrashBackoff()

    for _ in range(TOLERATED):
        backoff.died_young(at=0.0)

    assert backoff.may_start(10.0, starting=0)
    assert not backoff.may_start(10.0, starting=1)


def test_a_success_forgets_the_deaths() -> None:
    backoff = CrashBackoff()
    for _ in range(9):
        backoff.died_young(at=0.0)

    backoff.succeeded()

    assert backoff.may_start(0.0, starting=3)
    assert not backoff.is_broken


def test_an_app_that_never_worked_is_hopeless_after_five_deaths() -> None:
    backoff = CrashBackoff()

    for _ in range(BROKEN_AFTER):
        backoff.died_young(at=0.0)

    assert backoff.is_broken
    assert backoff.wait == LONGEST_WAIT


def test_there_is_no_storm_of_starts_with_many_workers() -> None:
    assert starts_in_the_first_minute(workers=1, lives_for=0.1) < 15
    assert starts_in_the_first_minute(workers=8, lives_for=0.1) < 15
    assert starts_in_the_first_minute(workers=1, lives_for=3.0) < 15


def test_a_change_of_the_code_is_tried_immediately() -> None:
    backoff = CrashBackoff()
    backoff.succeeded()
    for _ in range(9):
        backoff.died_young(at=0.0)

    backoff.start_over()

    assert backoff.may_start(0.0, starting=1)
    assert backoff.wait == 0


def test_one_that_gives_up_waits_until_it_starts_over() -> None:
    backoff = CrashBackoff(gives_up=True)
    backoff.succeeded()
    for _ in range(BROKEN_AFTER):
        backoff.died_young(at=0.0)

    assert backoff.wait == math.inf
    assert not backoff.may_start(1e9, starting=0)
    backoff.start_over()
    assert backoff.may_start(1.0, starting=0)
