"""Enforce limits: whoever runs a job, its time limits hold."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from packhorse.chores.enforce_limits import EnforceLimits
from packhorse.clock import SECOND, TurnedClock
from packhorse.conformance.builders import add, history, in_state, kinds, run, stored
from packhorse.event import Kind, Subject
from packhorse.failure import Failure
from packhorse.job import ABORTED, QUEUED, RESERVED, RETRYING, RUNNING, Reason
from packhorse.outcome import Completed, Overrun, Verdict
from packhorse.settings import Settings
from packhorse.storage.memory import Memory
from packhorse.storage.records import CheckIn, TaskInfo, WorkerInfo

SETTINGS = Settings()
GRACE = 7  # seconds: the worker's own, and what it has to write that down


def enforce(
    storage: Memory, *, is_steady: bool = True, own: set[str] = frozenset()
) -> tuple[float | None, list[Overrun]]:
    """One run of a foreman whose workers are `own`: when it comes again, and for which jobs it ends a worker."""
    ended: list[Overrun] = []

    def end_worker(overrun: Overrun) -> bool:
        if overrun.token.owner in own:
            ended.append(overrun)
        return overrun.token.owner in own

    chore = EnforceLimits(storage, SETTINGS, lambda: storage.now() if is_steady else None, end_worker)
    return chore.run(), ended


def test_a_job_that_its_worker_does_not_end_in_time_is_ended(storage: Memory, clock: TurnedClock):
    job = in_state(storage, RUNNING, timeout=3 * SECOND)
    clock.turn(3 + GRACE - 1)
    assert enforce(storage) == (1.0, [])
    assert stored(storage, job.id) == job
    clock.turn(1)
    storage.beat({job.owner: {}})

    enforce(storage)

    left = stored(storage, job.id)
    assert (left.state, left.reason, left.failures, left.halts) == (RETRYING, Reason.JOB_TIMEOUT, 1, 0)
    failed = history(storage, job.id)[-1]
    assert (failed.kind, failed.data["error"]) == (
        Kind.FAILED, "Timeout: it ran for longer than 3 s, and its worker did not end it",
    )  # fmt: skip
    assert storage.finish([Completed(job.token)]) == [Verdict.STALE]


def test_the_last_attempt_ends_as_aborted(storage: Memory, clock: TurnedClock):
    job = in_state(storage, RUNNING, timeout=3 * SECOND, max_attempts=1)
    clock.turn(3 + GRACE)

    enforce(storage)

    assert (stored(storage, job.id).state, stored(storage, job.id).reason) == (ABORTED, Reason.JOB_TIMEOUT)


def test_what_the_caller_did_not_choose_the_task_says(storage: Memory, clock: TurnedClock):
    storage.announce([TaskInfo("send", "mail", {"timeout": 3 * SECOND})])
    job, patient = in_state(storage, RUNNING), in_state(storage, RUNNING, timeout=60 * SECOND)
    clock.turn(3 + GRACE)

    enforce(storage)

    assert [stored(storage, each.id).state for each in (job, patient)] == [RETRYING, RUNNING]


def test_a_job_that_falls_silent_is_ended(storage: Memory, clock: TurnedClock):
    silent, lively = (in_state(storage, RUNNING, idle_timeout=5 * SECOND) for _ in range(2))
    clock.turn(5 + GRACE - 1)
    storage.check_in([CheckIn(lively.token)])
    clock.turn(1)

    enforce(storage)

    assert [stored(storage, each.id).state for each in (silent, lively)] == [RETRYING, RUNNING]


def test_a_job_that_was_asked_to_stop_and_does_not_is_aborted(storage: Memory, clock: TurnedClock):
    job = in_state(storage, RUNNING)
    storage.abort([job.id], by="eve")
    clock.turn(GRACE)

    enforce(storage)

    assert (stored(storage, job.id).state, stored(storage, job.id).reason) == (ABORTED, Reason.ABORTED)
    assert kinds(storage, job.id)[-2:] == [Kind.ABORT_ASKED, Kind.ABORTED]


def test_jobs_without_limits_and_those_that_have_not_begun_are_left_alone(storage: Memory, clock: TurnedClock):
    jobs = [in_state(storage, RUNNING), in_state(storage, RESERVED, timeout=SECOND), add(storage, timeout=SECOND)]
    clock.turn("1d")

    assert enforce(storage) == (None, [])
    assert [stored(storage, job.id).state for job in jobs] == [RUNNING, RESERVED, QUEUED]


def test_a_foreman_that_is_not_steady_ends_nothing(storage: Memory, clock: TurnedClock):
    """After an outage workers have outcomes to deliver, which say more than any limit."""
    job = in_state(storage, RUNNING, timeout=3 * SECOND)
    clock.turn("1h")

    enforce(storage, is_steady=False)

    assert stored(storage, job.id) == job


def test_a_foreman_ends_its_own_worker_first(storage: Memory, clock: TurnedClock):
    job = in_state(storage, RUNNING, timeout=3 * SECOND)
    clock.turn(3 + GRACE)

    _, ended = enforce(storage, own={job.owner})

    assert [overrun.token for overrun in ended] == [job.token]
    assert stored(storage, job.id) == job


def test_the_worker_of_another_foreman_is_left_to_that_for_a_while(storage: Memory, clock: TurnedClock):
    storage.join(WorkerInfo("boss", Subject.FOREMAN))
    storage.join(WorkerInfo("ann", foreman="boss"))
    job = in_state(storage, RUNNING, timeout=3 * SECOND)
    clock.turn(3 + GRACE)
    storage.beat({"boss": {}})
    assert enforce(storage) == (10.0, [])
    assert stored(storage, job.id) == job
    clock.turn(10)
    storage.beat({"boss": {}})

    enforce(storage)

    assert stored(storage, job.id).state is RETRYING


@pytest.mark.parametrize("backoff", ['{"type":"fixed","delay_ms":5000}', "nonsense"])
def test_the_wait_is_the_jobs_own_and_nothing_in_a_job_harms_the_others(
    storage: Memory, clock: TurnedClock, backoff: str
):
    jobs = [in_state(storage, RUNNING, timeout=SECOND) for _ in range(2)]
    storage._jobs[jobs[0].id] = replace(jobs[0], backoff=backoff)
    clock.turn(60)

    enforce(storage)

    assert [stored(storage, job.id).state for job in jobs] == [RETRYING, RETRYING]
    if backoff.startswith("{"):
        assert stored(storage, jobs[0].id).due_at == clock() + 5 * SECOND


def test_the_failure_is_one_of_its_own_kind(storage: Memory, clock: TurnedClock):
    job = run(storage, add(storage, timeout=SECOND))
    clock.turn(60)

    enforce(storage)

    assert Failure.from_json(stored(storage, job.id).error or "").type == "Timeout"
