"""The timeouts: asks once, waits for the grace, and then makes sure."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from packhorse.core.clock import SECOND
from packhorse.core.job import Reason
from packhorse.core.outcome import Failed, Failure, Outcome, Stopped
from packhorse.worker.config import WorkerLimits
from packhorse.worker.held_job import HeldJob
from packhorse.worker.timeouts import Timeouts, limits_of
from tests.worker.factories import a_held_job, a_job, task_of

GRACE = 2.0
LIMITS = WorkerLimits(abort_grace=GRACE, other_jobs=10.0)


class FakePool:
    """An executor pool, its only executor and its queue of outcomes in one; it records the calls."""

    def __init__(self, *, can_kill: bool = True) -> None:
        self.can_kill = can_kill
        self.stops: list[bool] = []
        self.handed_back: list[str] = []
        self.written: list[Outcome] = []
        self.stuck: list[str] = []
        self.outcomes = self

    def executor_of(self, held: HeldJob) -> FakePool:
        return self

    def begin(self, held: HeldJob, slot: int) -> None: ...

    def stop(self, held: HeldJob, *, hard: bool) -> bool:
        self.stops.append(hard)
        return self.can_kill or not hard

    def close(self) -> None: ...

    def hand_back(self, held: HeldJob, why: str) -> bool:
        if held.claim():
            self.handed_back.append(why)
            return True
        return False

    def put(self, held: HeldJob, outcome: Outcome) -> None:
        if held.settle():
            self.written.append(outcome)

    def report_stuck(self, why: str) -> None:
        self.stuck.append(why)

    def timeouts(self) -> Timeouts:
        return Timeouts(self, LIMITS)


def running(began_at: float = 100.0, **options: float) -> HeldJob:
    held = a_held_job(a_job(), task_of(lambda: None, "send", **options))
    held.claim()
    held.begin(0)
    held.began_at = held.checked_in_at = began_at
    return held


def look(timeouts: Timeouts, held: HeldJob, now: float) -> float | None:
    return timeouts.enforce({held.job.id: held}, now)


def asked(pool: FakePool, held: HeldJob, at: float, reason: Reason = Reason.ABORTED) -> Timeouts:
    """A timeouts that has asked this held job to end."""
    timeouts = pool.timeouts()
    timeouts.stop_job(held.job.id, held.job.fence, reason)
    look(timeouts, held, at)
    held.stopped_at = at
    return timeouts


def test_nobody_is_bothered_without_a_reason():
    pool = FakePool()

    assert look(pool.timeouts(), running(), 1e9) is None
    assert pool.stops == []


def test_a_job_is_asked_once_however_often_it_is_said():
    pool, held = FakePool(), running()
    timeouts = asked(pool, held, 100)

    for _ in range(3):
        timeouts.stop_job(held.job.id, held.job.fence, Reason.ABORTED)
        look(timeouts, held, 100.5)

    assert pool.stops == [False]
    assert held.stop_reason is Reason.ABORTED


def test_a_job_that_has_not_begun_is_handed_back():
    pool, held = FakePool(), a_held_job()

    asked(pool, held, 100)

    assert pool.handed_back == ["it was aborted"]
    assert pool.stops == []


@pytest.mark.parametrize(("job_id", "fence"), [("job-1", 2), ("another", 1)])
def test_a_stop_for_somebody_else_is_ignored(job_id: str, fence: int):
    pool, held = FakePool(), running()
    timeouts = pool.timeouts()

    timeouts.stop_job(job_id, fence, Reason.ABORTED)
    look(timeouts, held, 100)

    assert held.stop_reason is None


def test_a_child_that_does_not_end_is_killed_after_the_grace():
    pool, held = FakePool(can_kill=True), running()
    timeouts = asked(pool, held, 100)

    early = look(timeouts, held, 101.5)
    late = look(timeouts, held, 102)

    assert early == pytest.approx(0.5)
    assert late is None
    assert pool.stops == [False, True]
    assert (pool.written, pool.stuck) == ([], [])


def test_a_thread_that_does_not_end_is_given_up_and_makes_its_worker_stuck():
    pool, held = FakePool(can_kill=False), running()
    timeouts = asked(pool, held, 100)

    look(timeouts, held, 102)
    look(timeouts, held, 103)

    (outcome,) = pool.written
    assert isinstance(outcome, Stopped)
    assert outcome.failure is not None
    told = "it did not end when asked: it may run until its worker is replaced, at most 15 s later"
    assert outcome.failure.summary() == f"Aborted: {told}"
    assert [line.message for line in held.buffer.take_lines()] == [told]
    assert pool.stuck == ["job job-1 (send) did not end within 2 s of being asked to"]


def test_a_job_whose_time_is_over_is_asked_and_then_given_up():
    pool, held = FakePool(can_kill=False), running(timeout=5, backoff=3)
    timeouts = pool.timeouts()

    left = look(timeouts, held, 104)
    over = look(timeouts, held, 105)
    held.stopped_at = 105
    look(timeouts, held, 107)

    assert left == pytest.approx(1)
    assert over == GRACE
    (outcome,) = pool.written
    assert isinstance(outcome, Failed)
    assert outcome.reason is Reason.JOB_TIMEOUT
    assert outcome.failure.summary() == (
        "Timeout: it ran for longer than 5 s, and did not end when asked: "
        "it may run until its worker is replaced, at most 15 s later"
    )


@pytest.mark.parametrize(
    ("fields", "backoff", "wait"),
    [
        ({"max_attempts": 2}, 0, 15 * SECOND),
        ({"max_attempts": 2}, 3, 15 * SECOND),
        ({"max_attempts": 2}, 60, 60 * SECOND),
        ({"max_attempts": 1}, 0, None),
    ],
)
def test_the_next_attempt_of_a_given_up_run_waits_until_its_worker_is_gone(
    fields: dict[str, int], backoff: int, wait: int | None
):
    pool, held = FakePool(can_kill=False), running(timeout=5, backoff=backoff)
    held.job = a_job(**fields)
    timeouts = pool.timeouts()

    look(timeouts, held, 105)
    held.stopped_at = 105
    look(timeouts, held, 107)

    (outcome,) = pool.written
    assert isinstance(outcome, Failed)
    assert (outcome.retry_in, outcome.failure.goes_on) == (wait, 15 * SECOND)


def test_a_job_that_has_ended_is_left_alone():
    pool, held = FakePool(), running(timeout=5)
    held.settle()

    assert look(pool.timeouts(), held, 1_000) is None
    assert pool.stops == []


def test_the_nearest_limit_of_all_is_told():
    one, two = running(timeout=50), running(timeout=5)

    assert FakePool().timeouts().enforce({"a": one, "b": two}, 101) == pytest.approx(4)


@pytest.mark.parametrize(
    ("total", "reason", "why"),
    [
        (None, Reason.ABORTED, "it was aborted"),
        (60 * SECOND, Reason.JOB_TIMEOUT, "it was not done within 60 s"),
        (60 * SECOND, Reason.ABORTED, "it was aborted"),
    ],
)
def test_why_a_job_was_stopped_is_told(total: int | None, reason: Reason, why: str):
    pool, held = FakePool(), a_held_job(a_job(total_timeout=total))
    held.claim()
    held.begin(0)

    asked(pool, held, 100, reason)

    assert held.stop_why == why


def test_in_a_program_a_run_that_was_given_up_goes_on_until_it_returns():
    pool, held = FakePool(can_kill=False), running(timeout=5, backoff=3)
    held.job = a_job(max_attempts=2)
    timeouts = Timeouts(pool, LIMITS, in_program=True)
    look(timeouts, held, 105)
    held.stopped_at = 105
    look(timeouts, held, 107)

    (outcome,) = pool.written
    assert isinstance(outcome, Failed)
    assert outcome.failure.message.endswith("did not end when asked: it runs in its program until it returns")
    assert (outcome.retry_in, Failure.goes_on_in(outcome.failure.to_json())) == (3 * SECOND, "ann")
    assert timeouts.given_up == [held]
    held.has_returned = True
    assert timeouts.given_up == []


# --- limits ---------------------------------------------------------------------------------------------------------


def time_left(held: HeldJob, now: float) -> float:
    return min(left for left, _ in limits_of(held, now))


def test_a_job_without_limits_may_run_forever():
    assert limits_of(running(), 1e9) == []


def test_a_job_that_has_not_begun_has_no_limits():
    held = a_held_job(a_job(timeout=1))

    assert limits_of(held, 1e9) == []


@pytest.mark.parametrize(
    ("options", "now", "left", "why"),
    [
        ({"timeout": 10}, 104, 6, None),
        ({"timeout": 10}, 110, 0, "it ran for longer than 10 s"),
        ({"timeout": 0.5}, 110, -9.5, "it ran for longer than 0.5 s"),
        ({"idle_timeout": 5}, 104, 1, None),
        ({"idle_timeout": 5}, 106, -1, "it did not check in for 5 s"),
        ({"timeout": 10, "idle_timeout": 5}, 104, 1, None),
        ({"timeout": 10, "idle_timeout": 5}, 106, -1, "it did not check in for 5 s"),
        ({"timeout": 10, "idle_timeout": 5}, 111, -6, "it ran for longer than 10 s"),
    ],
)
def test_the_nearest_limit_counts(options: dict[str, float], now: float, left: float, why: str | None):
    held = running(**options)

    assert time_left(held, now) == pytest.approx(left)
    assert next((reason for left, reason in limits_of(held, now) if left <= 0), None) == why


def test_a_check_in_moves_the_idle_limit_only():
    held = running(timeout=10, idle_timeout=5)
    held.checked_in_at = 104.0

    assert time_left(held, 106) == pytest.approx(3)
    assert time_left(held, 108.5) == pytest.approx(0.5)


def test_a_jobs_own_limit_goes_before_its_tasks():
    held = running(timeout=10)
    held.job = replace(held.job, timeout=2 * SECOND)

    assert time_left(held, 101) == pytest.approx(1)
