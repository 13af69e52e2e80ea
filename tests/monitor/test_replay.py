"""The events of a job add up to it. For random histories on every storage: the law `check_replay` of the model test."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from packhorse.conformance.builders import FAILURE, add, finish, history, new_job, run, take, unique
from packhorse.core.clock import HOUR, SECOND, ManualClock
from packhorse.core.event import Event, Kind, kind_of
from packhorse.core.job import OF_TASK, RESERVED, Job, Reason
from packhorse.core.outcome import Completed, Failed, Failure, Halted, Outcome, Released, Snoozed, Stopped
from packhorse.monitor.event_objects import with_objects
from packhorse.monitor.replay import replay, unknown_in
from packhorse.monitor.serializers import JobFields, object_fields
from packhorse.storage.memory import Memory
from packhorse.storage.records import CheckIn


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def storage(clock: ManualClock) -> Memory:
    return Memory(clock)


def told(storage: Memory, job_id: str) -> list[dict]:
    return replay(history(storage, job_id), storage.get(job_id))


def assert_is(job: Job, storage: Memory) -> None:
    """What the events add up to is the job as it is stored, in every field that is known."""
    last = told(storage, job.id)[-1]
    now = storage.get(job.id)
    assert {name: getattr(now, name) for name in last} == last
    assert unknown_in(last) == []


def test_each_event_has_the_job_as_it_was_stored_after_it(storage: Memory, clock: ManualClock) -> None:
    job = add(storage, delay=SECOND, priority=3, total_timeout=HOUR)
    stored = [storage.get(job.id)]
    clock.turn(2)
    storage.promote()
    stored.append(storage.get(job.id))
    held = take(storage, job)
    stored.append(storage.get(job.id))
    clock.turn(1)
    storage.start([held.token])
    stored.append(storage.get(job.id))
    storage.finish([Failed(held.token, FAILURE, retry_in=SECOND, ran=9)])
    stored.append(storage.get(job.id))

    objects = told(storage, job.id)

    assert [event.kind for event in history(storage, job.id)] == ["added", "queued", "reserved", "started", "failed"]
    for each, then in zip(objects, stored, strict=True):
        assert {name: getattr(then, name) for name in each} == each
    assert [each["state"] for each in objects] == ["scheduled", "queued", "reserved", "running", "retrying"]


def outcomes(job: Job) -> list[Outcome]:
    token = job.token
    return [
        Completed(token, '"done"', ran=5),
        Failed(token, FAILURE, retry_in=None, ran=5),
        Failed(token, FAILURE, retry_in=0, ran=5),
        Failed(token, FAILURE, retry_in=None, reason=Reason.JOB_TIMEOUT, ran=5),
        Snoozed(token, HOUR, ran=5),
        Stopped(token, ran=5),
        Stopped(token, failure=FAILURE, ran=5),
        Halted(token, "signal 9", ran=5),
        Released(token, "told to stop", ran=5),
        Released(token, "cannot run here", delay=HOUR, ran=5),
    ]


@pytest.mark.parametrize("place", range(10))
@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("halted", [False, True])
def test_every_outcome_adds_up_to_the_stored_job(
    storage: Memory, place: int, abort: bool, begun: bool, halted: bool
) -> None:
    job = add(storage, max_halts=2)
    if halted:
        run(storage, job, "bob")
        storage.rescue_owner("bob", foreman="bob", why="it was killed")
    job = run(storage, job) if begun else take(storage, job)
    if abort:
        storage.abort([job.id], by="ann")

    finish(storage, outcomes(job)[place])

    assert_is(job, storage)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize("recovered", [False, True])
def test_what_is_taken_back_adds_up(storage: Memory, begun: bool, abort: bool, recovered: bool) -> None:
    job = add(storage)
    for owner in ("bob", "eve"):
        run(storage, job, owner) if begun else take(storage, job, owner)
        if abort:
            storage.abort([job.id])
        storage.rescue_owner(owner, foreman=owner, why="it was killed", recovered=recovered)
        assert_is(job, storage)
        if abort:
            break


def test_what_operators_do_adds_up(storage: Memory) -> None:
    job = add(storage, delay=HOUR)
    steps = [
        lambda: storage.set_priority([job.id], 7, by="ann"),
        lambda: storage.force_start([job.id]),
        lambda: storage.set_priority([job.id], 2),
        lambda: storage.set_queue([job.id], "slow"),
        lambda: storage.abort([job.id]),
        lambda: storage.retry([job.id]),
    ]

    for step in steps:
        step()
        assert_is(job, storage)
    assert [each["priority"] for each in told(storage, job.id)] == [1, 7, 7, 2, 2, 2, 2, 2]


def test_a_job_that_a_twin_replaced_has_its_old_choices_before_that(storage: Memory) -> None:
    old = new_job(args='{"n":1}', priority=2, timeout=SECOND, max_attempts=2, unique=unique("k"))
    storage.enqueue([old])
    twin = new_job(args='{"n":2}', priority=5, delay=HOUR, unique=unique("k", on_conflict="replace"))

    storage.enqueue([twin])

    before, after = told(storage, old.id)
    names = ("args", "priority", "rank", "timeout", "max_attempts", "state")
    assert [before[name] for name in names] == ['{"n":1}', 2, 11, SECOND, 2, "queued"]
    assert [after[name] for name in names] == ['{"n":2}', 5, 8, None, OF_TASK, "scheduled"]
    assert unknown_in(before) == ["meta"]  # which no event tells
    assert_is(storage.get(old.id), storage)


def test_an_earlier_error_is_told_in_short_and_the_latest_in_full(storage: Memory, clock: ManualClock) -> None:
    job = run(storage, add(storage))
    finish(storage, Failed(job.token, replace(FAILURE, version="v1"), retry_in=0, ran=1))
    job = run(storage, storage.get(job.id))
    finish(storage, Failed(job.token, replace(FAILURE, message="again"), retry_in=HOUR, ran=1))

    first, last = [each for each in told(storage, job.id) if each["state"] == "retrying"]

    assert Failure.from_json(first["error"]) == Failure("ValueError", "no such address", version="v1")
    assert "cause" not in first
    assert (last["error"], last["cause"]) == (storage.get(job.id).error, storage.get(job.id).cause)


def test_what_a_job_said_is_known_only_where_it_is_certain(storage: Memory) -> None:
    job = run(storage, add(storage))
    storage.check_in([CheckIn(job.token, progress=40)])
    running = told(storage, job.id)
    finish(storage, Completed(job.token, ran=1))
    done = told(storage, job.id)

    assert [each.get("progress", "?") for each in running] == [None, None, "?"]
    assert [each.get("progress", "?") for each in done] == [None, None, "?", 40]


def test_what_pruned_events_told_is_not_known(storage: Memory) -> None:
    job = finish(storage, Failed(run(storage, add(storage)).token, FAILURE, retry_in=0, ran=1))
    job = run(storage, job)
    events = [event for event in history(storage, job.id) if event.kind is not Kind.ADDED]

    first, *_, last = replay(events, job)

    assert (first["state"], first["owner"], first["fence"], first["task"]) == (RESERVED, job.last_owner, 1, "send")
    assert {"attempts", "failures", "created_at", "queued_at"} <= set(unknown_in(first))
    assert "attempts" in unknown_in(last)


def test_of_a_job_that_is_gone_only_the_events_tell(storage: Memory) -> None:
    job = finish(storage, Completed(run(storage, add(storage)).token, '"done"', ran=7))
    storage.delete([job.id])

    last = replay(history(storage, job.id), None)[-1]

    assert (last["state"], last["attempts"], last["finished_at"], last["ran_until"]) == (
        "completed", 1, job.finished_at, job.ran_until,
    )  # fmt: skip
    assert {"task", "args", "result", "priority", "rank"} <= set(unknown_in(last))


def test_an_id_that_was_deleted_and_used_again_has_two_lives(storage: Memory) -> None:
    add(storage, "twice", args='{"n":1}')
    storage.delete(["twice"])
    add(storage, "twice", args='{"n":2}')

    first, gone, second = told(storage, "twice")

    assert ["args" in each for each in (first, gone)] == [False, False]
    assert second["args"] == '{"n":2}'


def test_after_an_event_of_a_newer_program_nothing_is_taken_for_granted(storage: Memory) -> None:
    job = add(storage)
    strange = Event(kind_of("blessed"), at=job.created_at + 1, job_id=job.id, queue="mail", state="blocked", id=99)

    _, after = replay([*history(storage, job.id), strange], job)

    assert (after["state"], after["queue"], after["created_at"]) == ("blocked", "mail", job.created_at)
    assert {"attempts", "priority", "due_at", "args"} <= set(unknown_in(after))


def test_no_events_no_objects() -> None:
    assert replay([], None) == []


@pytest.mark.parametrize("of_task", [True, False])
def test_in_json_whatever_is_missing_is_named_as_unknown(storage: Memory, of_task: bool) -> None:
    job = add(storage, max_attempts=OF_TASK if of_task else 3)
    (event,) = with_objects(storage, history(storage, job.id))

    told = object_fields(event)

    assert told is not None
    assert told.pop("unknown", []) == (["max_attempts", "attempts_left"] if of_task else [])
    assert set(JobFields.__struct_fields__) - set(told) == {
        *(["max_attempts", "attempts_left"] if of_task else []),
        *("took", "from_task"),
    }


def test_what_is_made_of_something_unknown_is_unknown_in_json(storage: Memory) -> None:
    job = add(storage)
    take(storage, job)
    (latest,) = replay(history(storage, job.id)[-1:], None)

    told = object_fields(replace(history(storage, job.id)[-1], object=latest))

    assert told is not None
    assert {"failures", "attempt", "rank", "is_forced"} <= set(told["unknown"])
    assert not set(told["unknown"]) & set(told)
