"""Every line of the table of legal changes, and every pair of state and operation that is not in it.

What a change does to a job is said once, in `changes.py`; here every storage is held to it, field by field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from packhorse.conformance.builders import (
    FAILURE,
    LEASE,
    WORKER,
    cases,
    history,
    in_state,
    join,
    last_token,
    new_job,
    recount,
    snapshot,
    stored,
    tallies,
)
from packhorse.core import transitions
from packhorse.core.clock import DAY, HOUR, SECOND, ManualClock
from packhorse.core.event import Event
from packhorse.core.job import (
    ABORTED,
    COMPLETED,
    DEAD,
    FINAL,
    HELD,
    LEGAL_CHANGES,
    QUEUED,
    RESERVED,
    RETRYING,
    RUNNING,
    SCHEDULED,
    WAITING,
    Job,
    Operation,
    Reason,
    State,
    Token,
    is_legal,
)
from packhorse.core.outcome import Completed, Failed, Halted, Outcome, Overrun, Released, Snoozed, Stopped, Verdict
from packhorse.core.transitions import Transition
from packhorse.storage.contract import Storage
from packhorse.storage.records import ActionResult, CheckIn, CheckInAnswer, LogLine, Retention

# --- legal ----------------------------------------------------------------------------------------------------------


class Case(msgspec.Struct, frozen=True):
    """One legal change: how it is made, and what `changes.py` says about it."""

    operation: Operation
    source: State
    target: State | None
    act: Callable[[Storage, Job], Any]
    expected: Callable[[Job, int], Transition]
    options: dict[str, Any] = {}
    abort_asked: bool = False

    def __str__(self) -> str:
        asked = "-asked" if self.abort_asked else ""
        return f"{self.operation}-{self.source}-{self.target or 'gone'}{asked}"


OutcomeOf = Callable[[Token], Outcome]


def _completed(token: Token) -> Outcome:
    return Completed(token, result='{"sent": 1}', ran=2 * SECOND, ago=SECOND)


def _failed(token: Token) -> Outcome:
    return Failed(token, FAILURE, ran=SECOND)


def _failed_to_retry(token: Token) -> Outcome:
    return Failed(token, FAILURE, retry_in=30 * SECOND, ran=SECOND)


def _failed_to_retry_now(token: Token) -> Outcome:
    return Failed(token, FAILURE, retry_in=0)


def _ran_too_long(token: Token) -> Outcome:
    return Failed(token, FAILURE, reason=Reason.JOB_TIMEOUT)


def _overrun(token: Token) -> Outcome:
    return Overrun(token, "it ran for longer than 3 s", retry_in=30 * SECOND)


def _overrun_for_the_last_time(token: Token) -> Outcome:
    return Overrun(token, "it ran for longer than 3 s")


def _snoozed(token: Token) -> Outcome:
    return Snoozed(token, delay=90 * SECOND)


def _stopped(token: Token) -> Outcome:
    return Stopped(token, Reason.JOB_TIMEOUT, FAILURE)


def _finish(operation: Operation, source: State, target: State, outcome: OutcomeOf, asked: bool = False) -> Case:
    def act(storage: Storage, job: Job) -> None:
        assert storage.finish([outcome(job.token)]) == [Verdict.ACCEPTED]

    return Case(
        operation, source, target, act, lambda job, now: transitions.settled(job, outcome(job.token), now), {}, asked
    )


def _finishes(state: State) -> Iterator[Case]:
    yield _finish(Operation.COMPLETE, state, COMPLETED, _completed)
    yield _finish(Operation.COMPLETE, state, COMPLETED, _completed, asked=True)
    yield _finish(Operation.FAIL, state, RETRYING, _failed_to_retry)
    yield _finish(Operation.FAIL, state, QUEUED, _failed_to_retry_now)
    yield _finish(Operation.FAIL, state, DEAD, _failed)
    yield _finish(Operation.FAIL, state, ABORTED, _ran_too_long)
    yield _finish(Operation.FAIL, state, ABORTED, _failed_to_retry, asked=True)
    yield _finish(Operation.FAIL, state, RETRYING, _overrun)
    yield _finish(Operation.FAIL, state, ABORTED, _overrun_for_the_last_time)
    yield _finish(Operation.FAIL, state, ABORTED, _overrun, asked=True)
    yield _finish(Operation.SNOOZE, state, SCHEDULED, _snoozed)
    yield _finish(Operation.SNOOZE, state, ABORTED, _snoozed, asked=True)
    yield _finish(Operation.STOP, state, ABORTED, _stopped)
    yield _finish(Operation.STOP, state, ABORTED, _stopped, asked=True)


def _release(storage: Storage, job: Job) -> None:
    assert storage.release([job.token], "stopping") == [Verdict.ACCEPTED]


def _release_for_later(storage: Storage, job: Job) -> None:
    assert storage.finish([Released(job.token, "unknown task", 5_000_000)]) == [Verdict.ACCEPTED]


def _halt(storage: Storage, job: Job) -> None:
    assert storage.finish([Halted(job.token, "its process was killed by SIGSEGV")]) == [Verdict.ACCEPTED]


def _rescue(storage: Storage, job: Job) -> None:
    (rescued,) = storage.rescue_owner(WORKER, foreman=WORKER, why="killed by signal 9")
    assert (rescued.job_id, rescued.owner) == (job.id, WORKER)


def _rescue_ran(storage: Storage, job: Job) -> None:
    storage.rescue_owner(WORKER, foreman=WORKER, why="killed by signal 9", ran=[job.id])


def _hand_backs(state: State) -> Iterator[Case]:
    def released(job: Job, now: int) -> Transition:
        return transitions.released(job, now, "stopping")

    def rescued(job: Job, now: int) -> Transition:
        return transitions.rescued(job, now, "killed by signal 9")

    def rescued_ran(job: Job, now: int) -> Transition:
        return transitions.rescued(job, now, "killed by signal 9", ran=True)

    def released_for_later(job: Job, now: int) -> Transition:
        return transitions.released(job, now, "unknown task", 5_000_000)

    def halted(job: Job, now: int) -> Transition:
        return transitions.settled(job, Halted(job.token, "its process was killed by SIGSEGV"), now)

    yield Case(Operation.RELEASE, state, SCHEDULED, _release_for_later, released_for_later)
    yield Case(Operation.RESCUE, state, QUEUED, _halt, halted)
    yield Case(Operation.RELEASE, state, QUEUED, _release, released)
    yield Case(Operation.RELEASE, state, ABORTED, _release, released, {}, True)
    yield Case(Operation.RESCUE, state, QUEUED, _rescue, rescued)
    yield Case(Operation.RESCUE, state, QUEUED, _rescue_ran, rescued_ran)
    yield Case(Operation.RESCUE, state, DEAD, _rescue_ran, rescued_ran, {"max_halts": 1})
    yield Case(Operation.RESCUE, state, ABORTED, _rescue, rescued, {}, True)


def _steering(operation: Operation, source: State, target: State, expected: Callable[[Job, int], Transition]) -> Case:
    def act(storage: Storage, job: Job) -> None:
        assert STEERING[operation](storage, job.id) == ActionResult(job.id, True, target)

    return Case(operation, source, target, act, expected)


def _ends(state: State) -> Iterator[Case]:
    """Abort and expire: a waiting job ends, a held one stays as it is and is asked."""
    target = state if state in HELD else ABORTED

    def expire(storage: Storage, job: Job) -> None:
        assert storage.expire() == 1

    yield _steering(Operation.ABORT, state, target, lambda job, now: transitions.aborted(job, now, "olga"))
    yield Case(
        Operation.EXPIRE, state, target, expire, transitions.expired, {"total_timeout": 5 * SECOND, "begun": True}
    )


def _priority_changes(state: State) -> Iterator[Case]:
    yield _steering(
        Operation.SET_PRIORITY, state, state, lambda job, now: transitions.reprioritised(job, 9, now, "olga")
    )


def _queue_changes(state: State) -> Iterator[Case]:
    yield _steering(
        Operation.SET_QUEUE, state, state, lambda job, now: transitions.moved_to_queue(job, "slow", now, "olga")
    )


def _delete(storage: Storage, job: Job) -> None:
    assert storage.delete([job.id], by="olga") == [ActionResult(job.id, True, job.state)]


def _promote(storage: Storage, job: Job) -> None:
    assert storage.promote() == 1


def _reserve(storage: Storage, job: Job) -> None:
    (taken,) = storage.reserve(join(storage), {job.queue: 1}, 1)
    assert taken == stored(storage, job.id)


def _start(storage: Storage, job: Job) -> None:
    assert storage.start([job.token]) == [Verdict.ACCEPTED]


def _cases() -> Iterator[Case]:
    yield Case(Operation.PROMOTE, SCHEDULED, QUEUED, _promote, transitions.promoted)
    yield Case(Operation.PROMOTE, RETRYING, QUEUED, _promote, transitions.promoted)
    yield Case(Operation.RESERVE, QUEUED, RESERVED, _reserve, lambda job, now: transitions.reserved(job, WORKER, now))
    yield Case(Operation.START, RESERVED, RUNNING, _start, transitions.started)
    for state in HELD:
        yield from _finishes(state)
        yield from _hand_backs(state)
    for state in HELD | WAITING:
        yield from _ends(state)
        yield from _priority_changes(state)
    for state in WAITING:
        yield _steering(Operation.FORCE_START, state, QUEUED, lambda job, now: transitions.forced(job, now, "olga"))
    for state in (*sorted(WAITING), DEAD, ABORTED):
        yield from _queue_changes(state)
    for state in (DEAD, ABORTED, RETRYING):
        yield _steering(Operation.RETRY, state, QUEUED, lambda job, now: transitions.retried(job, now, "olga"))
    for state in WAITING | FINAL:
        yield Case(
            Operation.DELETE,
            state,
            None,
            _delete,
            lambda job, now: Transition(job, [transitions.deleted(job, now, "olga")]),
        )


CASES = sorted(_cases(), key=str)


@cases("lived", [False, True])
@cases("case", CASES)
def test_a_legal_change_does_what_the_rules_say(storage: Storage, clock: ManualClock, case: Case, lived: bool) -> None:
    before = in_state(storage, case.source, lived=lived, **case.options)
    if case.abort_asked:
        storage.abort([before.id], by="olga")
        before = stored(storage, before.id)
    told = len(history(storage, before.id))
    clock.turn(_time_to(case.operation, before, clock))

    case.act(storage, before)

    expected = case.expected(before, clock())
    after = storage.get(before.id)
    assert after == (None if case.target is None else expected.job)
    assert after is None or after.state is case.target
    assert _without_ids(history(storage, before.id)[told:]) == _without_ids(expected.events)
    assert tallies(storage) == recount(storage)
    _remove(storage, before.id)


def _remove(storage: Storage, job_id: str) -> None:
    """Make room for the next case: some operations touch every job that they find."""
    storage.rescue_owner(WORKER, foreman=WORKER, why="the case is over")
    storage.abort([job_id])
    storage.delete([job_id])


def _time_to(operation: Operation, job: Job, clock: ManualClock) -> float:
    return (job.due_at - clock()) / SECOND if operation is Operation.PROMOTE and job.due_at else 7


def _without_ids(events: list[Event]) -> list[Event]:
    return [replace(event, id=0) for event in events]


@cases("delay", [0, 1, HOUR])
def test_enqueueing_queues_or_schedules(storage: Storage, clock: ManualClock, delay: int) -> None:
    new = new_job(priority=4, delay=delay, expires=HOUR, total_timeout=DAY, meta='{"a": 1}', backoff='{"type":"none"}')

    storage.enqueue([new])

    job = stored(storage, new.id)
    expected = transitions.added(new, job.seq, clock())
    assert job == expected.job
    assert job.state is (SCHEDULED if delay else QUEUED)
    assert _without_ids(history(storage, new.id)) == expected.events


def test_the_cases_cover_every_line_of_the_table() -> None:
    covered = {(case.operation, case.source, case.target) for case in CASES}

    lines = {
        (line.operation, source, target) for line in LEGAL_CHANGES for source in line.source for target in line.targets
    }

    assert covered == {line for line in lines if _is_possible(*line)}


def _is_possible(operation: Operation, source: State, target: State | None) -> bool:
    """The table gives some operations several targets; which of them is possible depends on the source."""
    if operation in (Operation.SET_PRIORITY, Operation.SET_QUEUE):
        return source is target
    if operation in (Operation.ABORT, Operation.EXPIRE):
        return source is target if source in HELD else target is ABORTED
    return True


# --- illegal: a worker's writes -------------------------------------------------------------------------------------

WORKING: dict[str, Callable[[Storage, Token], Any]] = {
    Operation.START: lambda storage, token: storage.start([token])[0],
    Operation.COMPLETE: lambda storage, token: storage.finish([_completed(token)])[0],
    Operation.FAIL: lambda storage, token: storage.finish([_failed_to_retry(token)])[0],
    Operation.SNOOZE: lambda storage, token: storage.finish([_snoozed(token)])[0],
    Operation.STOP: lambda storage, token: storage.finish([_stopped(token)])[0],
    Operation.RELEASE: lambda storage, token: storage.release([token], "stopping")[0],
    "check_in": lambda storage, token: storage.check_in([CheckIn(token, "still here", 50)])[0],
    "append_log": lambda storage, token: storage.append_log(token, [LogLine("late")]),
}
WRONG_TOKENS: dict[str, Callable[[Token], Token]] = {
    "wrong owner": lambda token: replace(token, owner="bob"),
    "no owner": lambda token: replace(token, owner=""),
    "old fence": lambda token: replace(token, fence=token.fence - 1),
    "future fence": lambda token: replace(token, fence=token.fence + 1),
    "unknown job": lambda token: replace(token, job_id="unknown"),
}


@cases("state", State)
@cases("operation", WORKING)
def test_a_wrong_token_changes_nothing(storage: Storage, operation: str, state: State) -> None:
    job = in_state(storage, state, begun=True)
    join(storage, "bob")
    before = snapshot(storage, job.id)

    answers = {name: WORKING[operation](storage, wrong(last_token(job))) for name, wrong in WRONG_TOKENS.items()}

    stale = CheckInAnswer.STALE if operation == "check_in" else Verdict.STALE
    assert answers == dict.fromkeys(WRONG_TOKENS, stale)
    assert snapshot(storage, job.id) == before


@cases("state", State)
@cases("operation", [one for one in WORKING if isinstance(one, Operation)])
def test_the_right_token_at_the_wrong_time_changes_nothing(
    storage: Storage, operation: Operation, state: State
) -> None:
    if is_legal(operation, state):
        return
    job = in_state(storage, state, begun=True)
    before = snapshot(storage, job.id)

    verdict = WORKING[operation](storage, last_token(job))

    assert verdict is not Verdict.ACCEPTED
    assert snapshot(storage, job.id) == before


@cases("state", [SCHEDULED, QUEUED])
def test_a_job_that_was_never_held_has_no_token(storage: Storage, state: State) -> None:
    job = in_state(storage, state)
    before = snapshot(storage, job.id)

    verdicts = [act(storage, Token(job.id, owner, 0)) for act in WORKING.values() for owner in ("", WORKER)]

    assert set(verdicts) <= {Verdict.STALE, CheckInAnswer.STALE}
    assert snapshot(storage, job.id) == before


# --- illegal: operators and upkeep ----------------------------------------------------------------------------------

STEERING: dict[Operation, Callable[[Storage, str], ActionResult]] = {
    Operation.ABORT: lambda storage, job_id: storage.abort([job_id], by="olga")[0],
    Operation.FORCE_START: lambda storage, job_id: storage.force_start([job_id], by="olga")[0],
    Operation.SET_PRIORITY: lambda storage, job_id: storage.set_priority([job_id], 9, by="olga")[0],
    Operation.SET_QUEUE: lambda storage, job_id: storage.set_queue([job_id], "slow", by="olga")[0],
    Operation.RETRY: lambda storage, job_id: storage.retry([job_id], by="olga")[0],
    Operation.DELETE: lambda storage, job_id: storage.delete([job_id], by="olga")[0],
}


@cases("operation", STEERING)
def test_steering_a_job_in_the_wrong_state_changes_nothing(storage: Storage, operation: Operation) -> None:
    for state in (state for state in State if not is_legal(operation, state)):
        job = in_state(storage, state)
        before = snapshot(storage, job.id)

        answer = STEERING[operation](storage, job.id)

        assert answer == ActionResult(job.id, False, state)
        assert snapshot(storage, job.id) == before


@cases("operation", STEERING)
def test_steering_an_unknown_job_says_so(storage: Storage, operation: Operation) -> None:
    assert STEERING[operation](storage, "unknown") == ActionResult("unknown", False, None)


@pytest.mark.parametrize("operation", STEERING)
def test_steering_many_answers_each_in_its_place(storage: Storage, operation: Operation) -> None:
    jobs = [in_state(storage, state) for state in State]
    wanted = [*(job.id for job in jobs), "unknown"]
    many: dict[Operation, Callable[[], list[ActionResult]]] = {
        Operation.ABORT: lambda: storage.abort(wanted),
        Operation.FORCE_START: lambda: storage.force_start(wanted),
        Operation.SET_PRIORITY: lambda: storage.set_priority(wanted, 9),
        Operation.SET_QUEUE: lambda: storage.set_queue(wanted, "slow"),
        Operation.RETRY: lambda: storage.retry(wanted),
        Operation.DELETE: lambda: storage.delete(wanted),
    }

    answers = many[operation]()

    assert [answer.job_id for answer in answers] == wanted
    assert [answer.changed for answer in answers] == [*(is_legal(operation, job.state) for job in jobs), False]
    assert tallies(storage) == recount(storage)


UPKEEP: dict[Operation, Callable[[Storage, Job], Any]] = {
    Operation.ENQUEUE: lambda storage, job: storage.enqueue([new_job(job.id, queue="other", args='{"new": 1}')]),
    Operation.PROMOTE: lambda storage, job: storage.promote(),
    Operation.RESERVE: lambda storage, job: storage.reserve(join(storage, "bob"), {job.queue: 1}, 10),
    Operation.EXPIRE: lambda storage, job: storage.expire(),
    Operation.RESCUE: lambda storage, job: storage.rescue(lease=LEASE, why="silence"),
    Operation.DELETE: lambda storage, job: storage.prune(Retention(completed=0, dead=0, aborted=0)),
}


@pytest.mark.parametrize("operation", UPKEEP)
def test_upkeep_leaves_jobs_in_other_states_alone(storage: Storage, clock: ManualClock, operation: Operation) -> None:
    # Pruning is the deleting of finished jobs only.
    legal = FINAL if operation is Operation.DELETE else {state for state in State if is_legal(operation, state)}
    jobs = [in_state(storage, state, total_timeout=HOUR) for state in State if state not in legal]
    before = [snapshot(storage, job.id) for job in jobs]
    clock.turn(0 if operation is Operation.RESERVE else "1d")

    for job in jobs:
        UPKEEP[operation](storage, job)

    assert [snapshot(storage, job.id) for job in jobs] == before
