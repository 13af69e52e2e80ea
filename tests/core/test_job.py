"""Words for states, ranks, and what a job says of itself."""

from __future__ import annotations

import pytest

from packhorse.core.errors import BadValue
from packhorse.core.job import (
    FINAL,
    HELD,
    LEGAL_CHANGES,
    WAITING,
    Job,
    Operation,
    Reason,
    State,
    is_legal,
    parse_states,
    rank_of,
)


def job(**fields: object) -> Job:
    plain: dict[str, object] = {"id": "1", "seq": 1, "task": "t", "queue": "t", "args": "{}", "state": State.QUEUED}
    times: dict[str, object] = {"priority": 1, "rank": 12, "created_at": 0, "updated_at": 0}
    return Job(**{**plain, **times, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("word", "states"),
    [
        ("queued", {State.QUEUED}),
        ("QUEUED", {State.QUEUED}),
        ("create", {State.QUEUED}),
        ("pending", {State.SCHEDULED}),
        ("STARTED", {State.RUNNING}),
        ("success", {State.COMPLETED}),
        ("COMPLETE", {State.COMPLETED}),
        ("broken", {State.DEAD}),
        ("failed", {State.DEAD, State.ABORTED}),
        ("retry", {State.RETRYING}),
        ("waiting", WAITING),
        ("finished", FINAL),
    ],
)
def test_words_of_other_systems_mean_our_states(word: str, states: set[State]) -> None:
    assert parse_states(word) == states


def test_an_unknown_state_is_refused_with_the_list_of_states() -> None:
    with pytest.raises(BadValue, match=r"no state 'flying'.*scheduled, queued, reserved"):
        parse_states("flying")


@pytest.mark.parametrize(
    ("state", "started_at", "ran_until", "ran", "took"),
    [
        (State.COMPLETED, 10, 12, 2, 2),
        (State.RETRYING, 10, 10, 0, 0),
        (State.DEAD, 10, None, None, 20),  # not measured
        (State.DEAD, 10, 9, None, 20),  # that was the attempt before
        (State.RUNNING, 10, 9, None, 90),
        (State.RUNNING, 10, None, None, 90),
        (State.QUEUED, 10, 12, 2, None),
        (State.ABORTED, None, None, None, None),
    ],
)
def test_a_job_took_as_long_as_its_worker_measured_or_until_its_end_was_written_down(
    state: State, started_at: int | None, ran_until: int | None, ran: int | None, took: int | None
) -> None:
    ended = job(state=state, started_at=started_at, ran_until=ran_until, updated_at=30)

    assert (ended.ran, ended.took(100)) == (ran, took)


def test_every_state_is_waiting_held_or_final() -> None:
    assert set(State) == WAITING | HELD | FINAL
    assert len(WAITING) + len(HELD) + len(FINAL) == len(State)


def test_priorities_ten_to_one_are_ranks_three_to_twelve() -> None:
    assert [rank_of(priority) for priority in range(10, 0, -1)] == list(range(3, 13))


def test_every_operation_has_one_line_in_the_table() -> None:
    assert [change.operation for change in LEGAL_CHANGES] == list(Operation)


def test_only_waiting_jobs_can_be_moved_to_another_queue() -> None:
    assert is_legal(Operation.SET_QUEUE, State.RETRYING)
    assert not is_legal(Operation.SET_QUEUE, State.RUNNING)


def test_the_priority_of_a_job_that_has_not_ended_can_be_changed() -> None:
    assert is_legal(Operation.SET_PRIORITY, State.RUNNING)
    assert not is_legal(Operation.SET_PRIORITY, State.COMPLETED)


def test_attempt_and_attempts_left_add_up() -> None:
    failed_twice = job(failures=2, max_attempts=5)

    assert (failed_twice.attempt, failed_twice.attempts_left) == (3, 3)


@pytest.mark.parametrize(
    ("state", "failures", "max_attempts", "attempt"),
    [
        (State.DEAD, 2, 2, 2),
        (State.DEAD, 1, 4, 1),
        (State.DEAD, 0, 4, 1),
        (State.DEAD, 2, 0, 2),
        (State.ABORTED, 2, 2, 2),
    ],
)
def test_the_attempt_of_a_job_that_has_ended_is_its_last(
    state: State, failures: int, max_attempts: int, attempt: int
) -> None:
    assert job(state=state, failures=failures, max_attempts=max_attempts).attempt == attempt


def test_a_queued_job_whose_worker_died_shows_as_halted() -> None:
    assert job(halts=1, reason=Reason.RUNNER_TIMEOUT).is_halted
    assert not job(halts=1, reason=Reason.FAILED).is_halted
    assert not job(halts=1, reason=Reason.RUNNER_TIMEOUT, state=State.RUNNING).is_halted
