"""Time limits hold for every worker."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import pytest
from msgspec.structs import replace

from packhorse.conformance.builders import add, history, in_state, kinds, run, stored
from packhorse.core.clock import SECOND, ManualClock
from packhorse.core.event import Kind, Subject
from packhorse.core.job import ABORTED, QUEUED, RESERVED, RETRYING, RUNNING, Job, Reason, State
from packhorse.core.outcome import Completed, Failure, Overrun, Verdict
from packhorse.core.settings import Settings
from packhorse.foreman.chores.enforce_limits import EnforceLimits
from packhorse.storage.memory import Memory
from packhorse.storage.records import CheckIn, TaskInfo, WorkerInfo

SETTINGS = Settings()
GRACE = 7  # seconds: the worker's own, and what it has to write that down


def enforce_deadlines(
    storage: Memory,
    *,
    may_rescue: bool = True,
    own: Collection[str] = (),
    stuck: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
) -> tuple[float | None, list[Overrun]]:
    """One run of a foreman whose workers are `own`: when it comes again, and for which jobs it ends a worker."""
    ended: list[Overrun] = []

    def end_worker(overrun: Overrun) -> bool:
        if overrun.token.owner in own:
            ended.append(overrun)
        return overrun.token.owner in own

    chore = EnforceLimits(storage, SETTINGS, lambda: storage.now() if may_rescue else None, end_worker, lambda: stuck)
    return chore.run(), ended


def test_a_job_that_its_worker_does_not_end_in_time_is_ended(storage: Memory, clock: ManualClock):
    job = in_state(storage, RUNNING, timeout=3 * SECOND)
    clock.turn(3 + GRACE - 1)
    assert enforce_deadlines(storage) == (1.0, [])
    assert stored(storage, job.id) == job
    clock.turn(1)
    storage.heartbeat({job.owner: {}})

    enforce_deadlines(storage)

    left = stored(storage, job.id)
    assert (left.state, left.reason, left.failures, left.halts) == (RETRYING, Reason.JOB_TIMEOUT, 1, 0)
    failed = history(storage, job.id)[-1]
    assert (failed.kind, failed.data["error"]) == (
        Kind.FAILED, "Timeout: it ran for longer than 3 s, and its worker did not end it",
    )  # fmt: skip
    assert storage.finish([Completed(job.token)]) == [Verdict.STALE]


def test_the_last_attempt_ends_as_aborted(storage: Memory, clock: ManualClock):
    job = in_state(storage, RUNNING, timeout=3 * SECOND, max_attempts=1)
    clock.turn(3 + GRACE)

    enforce_deadlines(storage)

    assert (stored(storage, job.id).state, stored(storage, job.id).reason) == (ABORTED, Reason.JOB_TIMEOUT)


def test_what_the_caller_did_not_choose_the_task_says(storage: Memory, clock: ManualClock):
    storage.announce([TaskInfo("send", "mail", {"timeout": 3 * SECOND})])
    job, patient = in_state(storage, RUNNING), in_state(storage, RUNNING, timeout=60 * SECOND)
    clock.turn(3 + GRACE)

    enforce_deadlines(storage)

    assert [stored(storage, each.id).state for each in (job, patient)] == [RETRYING, RUNNING]


def test_a_job_that_falls_silent_is_ended(storage: Memory, clock: ManualClock):
    silent, with_heartbeats = (in_state(storage, RUNNING, idle_timeout=5 * SECOND) for _ in range(2))
    clock.turn(5 + GRACE - 1)
    storage.check_in([CheckIn(with_heartbeats.token)])
    clock.turn(1)

    enforce_deadlines(storage)

    assert [stored(storage, each.id).state for each in (silent, with_heartbeats)] == [RETRYING, RUNNING]


def test_a_job_that_was_asked_to_stop_and_does_not_is_aborted(storage: Memory, clock: ManualClock):
    job = in_state(storage, RUNNING)
    storage.abort([job.id], by="eve")
    clock.turn(GRACE)

    enforce_deadlines(storage)

    assert (stored(storage, job.id).state, stored(storage, job.id).reason) == (ABORTED, Reason.ABORTED)
    assert kinds(storage, job.id)[-2:] == [Kind.ABORT_ASKED, Kind.ABORTED]


def test_jobs_without_limits_and_those_that_have_not_begun_are_left_alone(storage: Memory, clock: ManualClock):
    jobs = [in_state(storage, RUNNING), in_state(storage, RESERVED, timeout=SECOND), add(storage, timeout=SECOND)]
    clock.turn("1d")

    assert enforce_deadlines(storage) == (None, [])
    assert [stored(storage, job.id).state for job in jobs] == [RUNNING, RESERVED, QUEUED]


def test_without_a_trusted_time_nothing_is_ended(storage: Memory, clock: ManualClock):
    """After an outage workers have outcomes to deliver, which say more than any limit."""
    job = in_state(storage, RUNNING, timeout=3 * SECOND)
    clock.turn("1h")

    enforce_deadlines(storage, may_rescue=False)

    assert stored(storage, job.id) == job


def test_a_foreman_ends_its_own_worker_first(storage: Memory, clock: ManualClock):
    job = in_state(storage, RUNNING, timeout=3 * SECOND)
    clock.turn(3 + GRACE)

    _, ended = enforce_deadlines(storage, own={job.owner})

    assert [overrun.token for overrun in ended] == [job.token]
    assert stored(storage, job.id) == job


def in_worker_of_ours(storage: Memory, state: State = RUNNING, **options: Any) -> Job:
    """A job in a worker that has our code, of whatever version."""
    if all(worker.id != "eve" for worker in storage.workers()):
        storage.join(WorkerInfo("boss", Subject.FOREMAN))
        storage.join(WorkerInfo("eve", foreman="boss", info={"python": "3.12.1"}))
    return in_state(storage, state, owner="eve", **options)


@pytest.mark.parametrize("own", [(), ("eve",)], ids=["of another foreman", "of this foreman"])
def test_what_a_newer_version_announces_ends_no_job_of_a_healthy_worker(
    storage: Memory, clock: ManualClock, own: Collection[str]
):
    job, neighbour = in_worker_of_ours(storage), in_worker_of_ours(storage, timeout=SECOND)
    storage.announce([TaskInfo("send", "mail", {"timeout": 3 * SECOND})])
    clock.turn("1h")
    storage.heartbeat({"boss": {}, "eve": {}})

    assert enforce_deadlines(storage, own=own) == (None, [])

    assert [stored(storage, each.id) for each in (job, neighbour)] == [job, neighbour]


def test_no_jobs_are_read_while_no_worker_is_foreign_or_stuck(
    storage: Memory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    in_worker_of_ours(storage, timeout=SECOND)
    clock.turn("1h")
    for call in ("find", "get", "tasks"):
        monkeypatch.setattr(storage, call, None)  # calling it fails

    assert enforce_deadlines(storage, own={"eve"}) == (None, [])


@pytest.mark.parametrize("option", ["timeout", "announced", "abort"])
@pytest.mark.parametrize("state", [RUNNING, RESERVED])
def test_a_stuck_worker_is_ended_for_a_job_whose_time_is_over(
    storage: Memory, clock: ManualClock, state: State, option: str
):
    """It may be stuck since before it could say that the job runs."""
    job = in_worker_of_ours(storage, state, lived=True, **({"timeout": 3 * SECOND} if option == "timeout" else {}))
    if option == "announced":
        storage.announce([TaskInfo("send", "mail", {"timeout": 3 * SECOND})])
    if option == "abort":
        storage.abort([job.id], by="eve")
    clock.turn(3 + GRACE - 1)
    runs = {job.id: (3 + GRACE - 1) * SECOND}
    _, too_soon = enforce_deadlines(storage, own={"eve"}, stuck={"eve": runs})
    clock.turn(1)
    runs = {job.id: (3 + GRACE) * SECOND}

    _, ended = enforce_deadlines(storage, own={"eve"}, stuck={"eve": runs})

    assert bool(too_soon) is (option == "abort")
    assert [overrun.token for overrun in ended] == [job.token]
    assert ended[0].ran == (0 if state is RUNNING else (3 + GRACE) * SECOND)
    assert stored(storage, job.id).state is state, "nothing is said of it before its worker is dead"


def test_what_has_ended_or_not_begun_in_a_stuck_worker_is_not_over(storage: Memory, clock: ManualClock):
    guilty = in_worker_of_ours(storage)
    in_worker_of_ours(storage, timeout=SECOND)
    in_worker_of_ours(storage, RESERVED, timeout=SECOND)
    clock.turn("1h")

    assert enforce_deadlines(storage, own={"eve"}, stuck={"eve": {guilty.id: 3600 * SECOND}}) == (None, [])


@pytest.mark.parametrize("number", [3, 30])
def test_the_jobs_of_however_many_foreign_workers_are_ended(storage: Memory, clock: ManualClock, number: int):
    ours = in_worker_of_ours(storage, timeout=SECOND)
    jobs = [in_state(storage, RUNNING, owner=f"ruby-{each}", timeout=SECOND) for each in range(number)]
    clock.turn(60)

    enforce_deadlines(storage)

    assert {stored(storage, job.id).state for job in jobs} == {RETRYING}
    assert stored(storage, ours.id) == ours


def test_the_foreign_worker_of_another_foreman_is_left_to_that_for_a_while(storage: Memory, clock: ManualClock):
    storage.join(WorkerInfo("boss", Subject.FOREMAN))
    storage.join(WorkerInfo("ann", foreman="boss"))
    job = in_state(storage, RUNNING, timeout=3 * SECOND)
    clock.turn(3 + GRACE)
    storage.heartbeat({"boss": {}})
    assert enforce_deadlines(storage) == (10.0, [])
    assert stored(storage, job.id) == job
    clock.turn(10)
    storage.heartbeat({"boss": {}})

    enforce_deadlines(storage)

    assert stored(storage, job.id).state is RETRYING


@pytest.mark.parametrize("backoff", ['{"type":"fixed","delay_ms":5000}', "nonsense"])
def test_the_wait_is_the_jobs_own_and_nothing_in_a_job_harms_the_others(
    storage: Memory, clock: ManualClock, backoff: str
):
    jobs = [in_state(storage, RUNNING, timeout=SECOND) for _ in range(2)]
    storage._tables.jobs[jobs[0].id] = replace(jobs[0], backoff=backoff)
    clock.turn(60)

    enforce_deadlines(storage)

    assert [stored(storage, job.id).state for job in jobs] == [RETRYING, RETRYING]
    if backoff.startswith("{"):
        assert stored(storage, jobs[0].id).due_at == clock() + 5 * SECOND


def test_the_failure_is_one_of_its_own_kind(storage: Memory, clock: ManualClock):
    job = run(storage, add(storage, timeout=SECOND))
    clock.turn(60)

    enforce_deadlines(storage)

    assert Failure.from_json(stored(storage, job.id).error or "").type == "Timeout"
