"""What operators do: jobs are selected first, and changed as they were seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from packhorse.core.errors import BadValue
from packhorse.core.event import IN_PROGRAM, ForemanAction, ForemanOrder, Kind, Subject
from packhorse.core.ids import new_id
from packhorse.core.job import NewJob, Operation, State
from packhorse.core.settings import Settings
from packhorse.monitor import actions
from packhorse.monitor.actions import ForcedDelete, JobAction, JobSelection
from packhorse.storage import Storage, open_storage
from packhorse.storage.records import ActionResult, EventFilter, Filter, WorkerInfo

FOREMAN = WorkerInfo("boss", Subject.FOREMAN)
ANN = WorkerInfo("ann", foreman="boss")
BOB = WorkerInfo("bob", foreman="another")


@pytest.fixture
def storage() -> Iterator[Storage]:
    opened = open_storage("memory://")
    yield opened
    opened.close()


def enqueue(storage: Storage, number: int = 1, queue: str = "mail") -> list[str]:
    ids = [new_id() for _ in range(number)]
    storage.enqueue([NewJob(job_id, "send", queue) for job_id in ids])
    return ids


def apply(storage: Storage, action: JobAction, selection: JobSelection) -> list[str]:
    results = [each for batch in actions.apply_in_batches(storage, action, selection, by="ann") for each in batch]
    return [actions.outcome_of(action, result) for result in results]


# --- jobs -------------------------------------------------------------------------------------------------------------


def test_an_action_without_its_value_is_refused():
    for action in (JobAction(Operation.SET_PRIORITY), JobAction(Operation.SET_QUEUE), JobAction(Operation.COMPLETE)):
        with pytest.raises(BadValue):
            action.check()
    with pytest.raises(BadValue, match="priority"):
        JobAction(Operation.SET_PRIORITY, priority=11).check()


def test_a_filter_is_narrowed_to_the_states_that_allow_the_action():
    assert JobAction(Operation.RETRY).legal(Filter()).states == {State.RETRYING, State.DEAD, State.ABORTED}
    with pytest.raises(BadValue, match="cannot retry jobs that are queued"):
        JobAction(Operation.RETRY).legal(Filter(states=frozenset({State.QUEUED})))


def test_every_operation_is_applied_to_what_matches(storage: Storage):
    enqueue(storage, 3)
    selection = actions.select_matching(storage, Filter(queue="mail"))

    assert apply(storage, JobAction(Operation.SET_PRIORITY, priority=7), selection) == ["changed"] * 3
    moved = actions.select_matching(storage, Filter(queue="mail"))
    assert apply(storage, JobAction(Operation.SET_QUEUE, queue="slow"), moved) == ["changed"] * 3
    stopped = actions.select_matching(storage, Filter(queue="slow"))
    assert apply(storage, JobAction(Operation.ABORT), stopped) == ["changed"] * 3
    assert {job.state for job in storage.get_many(selection.ids)} == {State.ABORTED}


def test_jobs_that_changed_since_they_were_selected_are_skipped(storage: Storage):
    first, second = enqueue(storage, 2)
    selection = actions.select_ids(storage, [first, second])
    storage.set_priority([first], 9)

    assert apply(storage, JobAction(Operation.ABORT), selection) == ["stale", "changed"]


def test_missing_ids_are_counted(storage: Storage):
    (job_id,) = enqueue(storage)

    selection = actions.select_ids(storage, [job_id, "not-there"])

    assert (selection.ids, selection.missing) == ([job_id], 1)


def test_selections_are_joined(storage: Storage):
    first, second = enqueue(storage), enqueue(storage, queue="slow")
    parts = [actions.select_ids(storage, ids) for ids in (first, second)]

    assert JobSelection.union(parts).ids == [*first, *second]


def test_outcomes_have_words():
    move = JobAction(Operation.SET_QUEUE, queue="slow")
    results = {
        "changed": ActionResult("j", True, State.QUEUED),
        "already": ActionResult("j", False, State.QUEUED),
        "stale": ActionResult("j", False, State.QUEUED, stale=True),
        "twin": ActionResult("j", False, State.DEAD, conflict="other"),
        "completed": ActionResult("j", False, State.COMPLETED),
        "gone": ActionResult("j", False),
    }

    assert {actions.outcome_of(move, result): outcome for outcome, result in results.items()} == {
        outcome: outcome for outcome in results
    }
    held = ActionResult("j", True, State.RUNNING)
    assert actions.outcome_of(JobAction(Operation.ABORT), held) == "requested"
    assert all(actions.outcome_text(move, outcome) for outcome in results)
    assert [outcome for outcome in results if actions.is_success(outcome)] == ["changed", "already"]


def test_a_forced_delete_aborts_first(storage: Storage):
    enqueue(storage, 2)
    selection = actions.select_matching(storage, Filter())

    assert apply(storage, ForcedDelete(timeout=0), selection) == ["changed", "changed"]
    assert storage.get_many(selection.ids) == []


def test_a_request_continues_from_its_cursor(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(actions, "BATCH_SIZE", 2)
    enqueue(storage, 3)
    action, now = JobAction(Operation.ABORT), storage.now()

    def step(cursor: str | None) -> actions.Progress:
        return actions.apply_to_matching(
            storage,
            action,
            action.legal(Filter()),
            find=lambda where, cursor, limit: storage.find(where, cursor=cursor, limit=limit),
            seen_at=now,
            cursor=cursor,
            budget=-1.0,
            by="ann",
        )

    first = step(None)
    second = step(first.next)

    assert first.next is not None
    assert (first.changed, second.changed, second.next) == (2, 1, None)


def test_jobs_that_changed_after_they_were_seen_are_counted_apart(storage: Storage):
    (job_id,) = enqueue(storage)
    jobs = storage.get_many([job_id])

    progress = actions.apply_to_jobs(
        storage, JobAction(Operation.ABORT), jobs, missing=2, seen_at=jobs[0].updated_at - 1, by=None
    )

    assert progress == actions.Progress(0, {"gone": 2, "changed since it was seen": 1})


# --- workers ----------------------------------------------------------------------------------------------------------


def stacks_report(order: int) -> dict[str, Any]:
    return {"stacks": {"order": order, "age_s": 0.5, "items": []}}


def test_an_order_to_a_worker_goes_to_its_foreman(storage: Storage):
    storage.join(FOREMAN)
    storage.join(ANN)

    sent = actions.ask_for_stacks(storage, ANN, by="olga")

    (event,) = storage.events(EventFilter(kind=Kind.ORDERED, owner="boss"))
    assert (sent.foreman, sent.number) == ("boss", event.id)
    assert event.data == {"do": "stacks", "worker": "ann", "by": "olga"}


def test_an_order_that_nobody_can_follow_is_refused(storage: Storage):
    storage.join(FOREMAN)
    pool = WorkerInfo("pool", Subject.FOREMAN, info={IN_PROGRAM: True})
    storage.join(pool)

    for worker, order in [
        (BOB, ForemanOrder(ForemanAction.QUIET)),
        (ANN, ForemanOrder(ForemanAction.SCALE, least=1, most=1)),
        (pool, ForemanOrder(ForemanAction.RESTART)),
    ]:
        with pytest.raises(BadValue):
            actions.send_order(storage, worker, order, by=None)


def test_the_number_is_that_of_our_own_order(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    storage.join(FOREMAN)
    order = storage.order

    def order_and_another(*args: Any, **kwargs: Any) -> bool:
        return order(*args, **kwargs) and order("boss", ForemanOrder(ForemanAction.QUIET), by="another")

    monkeypatch.setattr(storage, "order", order_and_another)
    sent = actions.ask_for_stacks(storage, FOREMAN, by="olga")

    mine, _ = storage.events(EventFilter(kind=Kind.ORDERED, owner="boss"))
    assert sent.number == mine.id


def test_an_order_is_open_until_its_foreman_reports_it_or_exits(storage: Storage):
    storage.join(FOREMAN)
    sent = [actions.send_order(storage, FOREMAN, ForemanOrder(ForemanAction.QUIET), by=None)]

    assert actions.open_orders([FOREMAN], sent) == sent
    assert actions.open_orders([WorkerInfo("boss", report={"order": sent[0].number})], sent) == []
    assert actions.open_orders([], sent) == []


def test_stacks_answer_the_order_of_their_number():
    assert actions.have_answered([WorkerInfo("ann", report=stacks_report(7))], 7)
    assert not actions.have_answered([WorkerInfo("ann", report=stacks_report(7))], 8)
    assert not actions.have_answered([WorkerInfo("ann", report=stacks_report(7)), BOB], 7)


def test_a_foreman_stands_for_all_of_its_workers():
    assert actions.workers_of(FOREMAN, [FOREMAN, ANN, BOB]) == [ANN]
    assert actions.workers_of(BOB, [FOREMAN, ANN, BOB]) == [BOB]


def test_a_scale_order_has_sensible_numbers():
    assert actions.scale_order(1, 4) == ForemanOrder(ForemanAction.SCALE, least=1, most=4)
    assert actions.scale_order(None, None, 8) == ForemanOrder(ForemanAction.SCALE, slots=8)
    for least, most, slots in [(None, None, None), (1, None, 2), (4, 1, None), (0, 2_000, None), (1, 1, 0)]:
        with pytest.raises(BadValue):
            actions.scale_order(least, most, slots)


# --- retention --------------------------------------------------------------------------------------------------------


def test_pruning_yields_the_sums_so_far(storage: Storage):
    storage.abort(enqueue(storage, 3))

    *_, last = actions.prune(storage, actions.retention(Settings(keep_aborted=0)))

    assert (last.jobs, last.more) == (3, False)
