from __future__ import annotations

import math

from packhorse.foreman.scaling import BROKEN_AFTER, LONGEST_WAIT, TOLERATED, CrashBackoff


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


def test_the_first_deaths_are_answered_at_once() -> None:
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


def test_there_is_no_storm_of_starts_however_large_the_crew() -> None:
    assert starts_in_the_first_minute(workers=1, lives_for=0.1) < 15
    assert starts_in_the_first_minute(workers=8, lives_for=0.1) < 15
    assert starts_in_the_first_minute(workers=1, lives_for=3.0) < 15


def test_a_change_of_the_code_is_tried_at_once() -> None:
    backoff = CrashBackoff()
    backoff.succeeded()
    for _ in range(9):
        backoff.died_young(at=0.0)

    backoff.start_over()

    assert backoff.may_start(0.0, starting=1)
    assert backoff.wait == 0


def test_one_that_gives_up_waits_for_hope_for_ever() -> None:
    backoff = CrashBackoff(gives_up=True)
    backoff.succeeded()
    for _ in range(BROKEN_AFTER):
        backoff.died_young(at=0.0)

    assert backoff.wait == math.inf
    assert not backoff.may_start(1e9, starting=0)
    backoff.start_over()
    assert backoff.may_start(1.0, starting=0)
