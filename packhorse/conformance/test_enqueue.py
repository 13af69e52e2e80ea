"""Jobs come in: batches, ids that are stored already, unique keys, and what stays undone when a batch is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from packhorse.conformance.builders import (
    FAILURE,
    WORKER,
    add,
    at_once,
    find_all,
    finish,
    ids,
    in_state,
    join,
    kinds,
    new_job,
    new_jobs,
    recount,
    reserve_ids,
    run,
    snapshot,
    stored,
    take,
    tallies,
    unique,
)
from packhorse.core.clock import HOUR, MINUTE, SECOND, ManualClock
from packhorse.core.errors import NotUnique
from packhorse.core.event import Kind
from packhorse.core.job import (
    ABORTED,
    COMPLETED,
    DEAD,
    FINAL,
    QUEUED,
    RESERVED,
    RETRYING,
    RUNNING,
    SCHEDULED,
    Job,
    NewJob,
    State,
)
from packhorse.core.outcome import Completed, Failed, Stopped
from packhorse.storage import open_storage
from packhorse.storage.contract import BATCH, Storage
from packhorse.storage.records import (
    ActionResult,
    Enqueued,
    EventFilter,
    Placement,
    Retention,
)
from packhorse.storage.sql.rows import to_json


@pytest.mark.parametrize("number", [0, 1, 100, BATCH])
def test_a_batch_is_stored_in_its_order(storage: Storage, number: int) -> None:
    jobs = new_jobs(number)

    answers = storage.enqueue(jobs)

    assert [(answer.job_id, answer.placement) for answer in answers] == [(job.id, Placement.ADDED) for job in jobs]
    assert ids(storage.get_many([job.id for job in jobs])) == [job.id for job in jobs]
    assert reserve_ids(storage, limit=BATCH) == [job.id for job in jobs]


def test_what_a_client_says_is_kept_word_for_word(storage: Storage, clock: ManualClock) -> None:
    text = '{"name": "Žan \\u0000 🐴", "quote": "\'; --", "n": 1.5}'

    job = add(storage, args=text, meta=text, created_by="Žan 🐴", schedule="nightly", timeout=1, idle_timeout=2)

    assert (job.args, job.meta, job.created_by, job.schedule) == (text, text, "Žan 🐴", "nightly")
    assert (job.timeout, job.idle_timeout, job.created_at, job.persistent) == (1, 2, clock(), False)


def test_large_arguments_come_back_whole(storage: Storage) -> None:
    large, larger = f'"{"x" * 300_000}"', f'"{"y" * 400_000}"'
    job = add(storage, args=large, unique=unique())
    assert find_all(storage)[0].args == job.args == large

    storage.enqueue([new_job(args=larger, unique=unique(on_conflict="replace"))])
    storage.set_priority([job.id], 5)
    assert take(storage, job).args == stored(storage, job.id).args == larger
    finish(storage, Failed(stored(storage, job.id).token, FAILURE, retry_in=HOUR))
    storage.enqueue([new_job(args="{}", unique=unique(on_conflict="replace"))])

    assert stored(storage, job.id).args == take(storage, job).args == "{}"


def test_a_job_may_name_the_moment_at_which_it_is_due(storage: Storage, clock: ManualClock) -> None:
    later, past = add(storage, due_at=clock() + 1), add(storage, due_at=clock() - HOUR)

    assert (later.state, later.due_at, later.queued_at) == (SCHEDULED, clock() + 1, None)
    assert (past.state, past.due_at, past.queued_at) == (QUEUED, None, clock())


def test_the_same_id_is_added_once_whatever_became_of_the_job(storage: Storage) -> None:
    for state in State:
        job = in_state(storage, state)
        before = snapshot(storage, job.id)

        (answer,) = storage.enqueue([new_job(job.id, args='{"other": 1}')])

        assert (answer.job_id, answer.placement, answer.is_new) == (job.id, Placement.KEPT, False)
        assert snapshot(storage, job.id) == before


def test_a_batch_whose_answer_was_lost_can_be_sent_again(storage: Storage) -> None:
    jobs = new_jobs(3)
    storage.enqueue(jobs[:2])

    answers = storage.enqueue(jobs)

    assert [answer.placement for answer in answers] == [Placement.KEPT, Placement.KEPT, Placement.ADDED]
    assert len(storage.events(EventFilter(kind=Kind.ADDED))) == 3
    assert storage.totals()["added"] == 3


def test_an_id_twice_in_one_batch_is_one_job(storage: Storage) -> None:
    answers = storage.enqueue([new_job("twin", args="1"), new_job("twin", args="2")])

    assert [answer.placement for answer in answers] == [Placement.ADDED, Placement.KEPT]
    assert stored(storage, "twin").args == "1"


def test_unknown_ids_are_left_out(storage: Storage) -> None:
    first, second = add(storage), add(storage)

    assert storage.get("unknown") is None
    assert ids(storage.get_many([second.id, "unknown", first.id])) == [second.id, first.id]
    assert storage.get_many([]) == []


# --- unique keys ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [state for state in State if state not in FINAL])
def test_keep_leaves_the_unfinished_holder_as_it_is(storage: Storage, state: State) -> None:
    holder = in_state(storage, state, unique=unique())
    before = snapshot(storage, holder.id)

    (answer,) = storage.enqueue([new_job("twin", unique=unique(), args='{"new": 1}')])

    assert (answer.job_id, answer.placement) == (holder.id, Placement.KEPT)
    assert storage.get("twin") is None
    assert snapshot(storage, holder.id) == before


def _expire(storage: Storage, job: Job, clock: ManualClock) -> None:
    clock.turn("1h")
    assert storage.expire() == 1


def _die(storage: Storage, job: Job, clock: ManualClock) -> None:
    run(storage, job)
    storage.rescue_owner(WORKER, foreman=WORKER, why="signal 9")


ENDS: dict[str, Callable[[Storage, Job, ManualClock], object]] = {
    "completed": lambda storage, job, clock: finish(storage, Completed(take(storage, job).token)),
    "dead": lambda storage, job, clock: finish(storage, Failed(run(storage, job).token, FAILURE)),
    "stopped": lambda storage, job, clock: finish(storage, Stopped(run(storage, job).token)),
    "aborted": lambda storage, job, clock: storage.abort([job.id]),
    "deleted": lambda storage, job, clock: storage.delete([job.id]),
    "expired": _expire,
    "halted to death": _die,
}


@pytest.mark.parametrize("end", ENDS)
def test_a_job_frees_its_key_however_it_ends(storage: Storage, clock: ManualClock, end: str) -> None:
    job = add(storage, unique=unique(), expires=HOUR, max_halts=1)

    ENDS[end](storage, job, clock)

    assert storage.enqueue([new_job("twin", unique=unique(on_conflict="reject"))])[0].is_new


def test_deleting_an_earlier_holder_leaves_the_key_with_the_present_one(storage: Storage) -> None:
    earlier = in_state(storage, State.DEAD, unique=unique())
    present = add(storage, unique=unique())

    storage.delete([earlier.id])

    assert storage.enqueue([new_job(unique=unique())])[0].job_id == present.id


def test_other_keys_are_free(storage: Storage) -> None:
    add(storage, unique=unique("k"))

    assert storage.enqueue([new_job(unique=unique("K")), new_job(unique=unique("k "))])[0].is_new


@pytest.mark.parametrize("state", [SCHEDULED, QUEUED, RETRYING])
def test_replace_gives_a_waiting_holder_the_new_call(storage: Storage, clock: ManualClock, state: State) -> None:
    holder = in_state(storage, state, unique=unique())
    clock.turn(5)

    (answer,) = storage.enqueue([new_job("twin", unique=unique(on_conflict="replace"), args='{"new": 1}', priority=7)])

    job = stored(storage, holder.id)
    assert (answer.job_id, answer.placement) == (holder.id, Placement.REPLACED)
    assert storage.get("twin") is None
    assert (job.state, job.args, job.priority) == (QUEUED, '{"new": 1}', 7)
    assert (job.seq, job.created_at, job.queued_at) == (holder.seq, holder.created_at, clock())
    assert kinds(storage, holder.id)[-1] is Kind.REPLACED
    assert tallies(storage) == recount(storage)


@pytest.mark.parametrize("state", [QUEUED, RESERVED, COMPLETED])
def test_repeating_a_replace_whose_answer_was_lost_adds_nothing(storage: Storage, state: State) -> None:
    holder = add(storage, unique=unique())
    call = new_job("twin", unique=unique(on_conflict="replace"), args='{"new": 1}')
    storage.enqueue([call])
    if state is not QUEUED:
        token = take(storage, holder).token
        if state is COMPLETED:
            finish(storage, Completed(token))
    before = snapshot(storage, holder.id)

    (answer,) = storage.enqueue([call])

    assert (answer.job_id, answer.placement) == (holder.id, Placement.REPLACED)
    assert snapshot(storage, holder.id) == before
    assert ids(find_all(storage)) == [holder.id]


def test_repeating_an_older_replace_does_not_undo_a_newer_one(storage: Storage) -> None:
    holder = add(storage, unique=unique())
    older, newer = (new_job(unique=unique(on_conflict="replace"), args=f'{{"n": {n}}}') for n in (1, 2))
    storage.enqueue([older])
    storage.enqueue([newer])

    storage.enqueue([older])

    assert stored(storage, holder.id).args == '{"n": 2}'


@pytest.mark.parametrize("is_deleted", [False, True], ids=["run", "deleted"])
def test_repeating_a_replace_does_not_touch_who_holds_the_key_since(storage: Storage, is_deleted: bool) -> None:
    holder = add(storage, unique=unique())
    call = new_job("twin", unique=unique(on_conflict="replace"), args='{"old": 1}')
    first = storage.enqueue([call])
    finish(storage, Completed(take(storage, holder).token))
    if is_deleted:
        storage.delete([holder.id])
    newer = add(storage, unique=unique(), args='{"newer": 1}')
    before, found = snapshot(storage, newer.id), ids(find_all(storage))

    again = storage.enqueue([call])

    assert again == first == [Enqueued(holder.id, Placement.REPLACED)]
    assert snapshot(storage, newer.id) == before
    assert ids(find_all(storage)) == found


def test_a_replace_is_remembered_as_long_as_events_are(storage: Storage, clock: ManualClock) -> None:
    holder = add(storage, unique=unique())
    older, newer = (new_job(name, unique=unique(on_conflict="replace")) for name in ("older", "newer"))
    storage.enqueue([older])
    clock.turn("1h")
    storage.enqueue([newer])
    finish(storage, Completed(take(storage, holder).token))

    storage.prune(Retention(events=HOUR))

    assert storage.enqueue([newer]) == [Enqueued(holder.id, Placement.REPLACED)]
    assert storage.enqueue([older]) == [Enqueued("older")]


def test_a_replace_that_was_refused_with_its_batch_is_not_remembered(storage: Storage) -> None:
    holder, _ = add(storage, unique=unique()), add(storage, unique=unique("other"))
    call = new_job("twin", unique=unique(on_conflict="replace"), args='{"new": 1}')
    with pytest.raises(NotUnique):
        storage.enqueue([call, new_job(unique=unique("other", on_conflict="reject"))])

    storage.enqueue([call])

    assert stored(storage, holder.id).args == '{"new": 1}'


def test_replace_may_move_the_holder_to_a_queue_that_is_new(storage: Storage) -> None:
    holder = add(storage, queue="old", unique=unique())

    storage.enqueue([new_job(queue="new", task="other", unique=unique(on_conflict="replace"))])

    assert {"old", "new"} <= {queue.name for queue in storage.queues()}
    assert "other" in {task.name for task in storage.tasks()}
    assert reserve_ids(storage, "old", "new") == [holder.id]


def test_replace_adds_a_job_that_takes_over_the_key_when_the_holder_is_held(storage: Storage) -> None:
    holder = in_state(storage, RESERVED, unique=unique())

    (answer,) = storage.enqueue([new_job("heir", unique=unique(on_conflict="replace"), args='{"new": 1}')])
    finish(storage, Completed(holder.token))

    assert (answer.job_id, answer.placement) == ("heir", Placement.ADDED)
    assert storage.enqueue([new_job("twin", unique=unique())])[0].job_id == "heir"


def test_reject_raises_and_stores_nothing_of_the_batch(storage: Storage) -> None:
    holder = add(storage, unique=unique())
    batch = [new_job("one", queue="new-queue", task="new-task"), new_job("two", unique=unique(on_conflict="reject"))]

    with pytest.raises(NotUnique) as caught:
        storage.enqueue(batch)

    assert (caught.value.job_id, caught.value.key) == (holder.id, "k")
    assert ids(find_all(storage)) == [holder.id]
    assert kinds(storage, "one") == []
    assert storage.totals()["added"] == 1
    assert "new-queue" not in {queue.name for queue in storage.queues()}
    assert "new-task" not in {task.name for task in storage.tasks()}
    assert storage.enqueue([new_job("one")])[0].is_new


def test_names_that_were_refused_with_their_batch_become_known_later(storage: Storage) -> None:
    add(storage, unique=unique())
    with pytest.raises(NotUnique):
        storage.enqueue([new_job(queue="late", task="late"), new_job(unique=unique(on_conflict="reject"))])

    add(storage, queue="late", task="late")

    assert "late" in {queue.name for queue in storage.queues()}
    assert "late" in {task.name for task in storage.tasks()}


def test_a_refused_batch_harms_no_other_that_comes_at_the_same_time(storage: Storage) -> None:
    add(storage, unique=unique())

    def refused() -> None:
        with pytest.raises(NotUnique):
            storage.enqueue([*new_jobs(3), new_job(unique=unique(on_conflict="reject"))])

    at_once([refused, lambda: storage.enqueue(new_jobs(3))] * 8)

    assert storage.totals()["added"] == len(find_all(storage)) == 25
    assert len(storage.events(EventFilter(kind=Kind.ADDED))) == 25
    assert tallies(storage) == recount(storage)


@pytest.mark.parametrize(("on_conflict", "args", "placement"), [("keep", "1", "kept"), ("replace", "2", "replaced")])
def test_twins_in_one_batch_are_one_job(storage: Storage, on_conflict: str, args: str, placement: str) -> None:
    lock = unique(on_conflict=on_conflict)

    answers = storage.enqueue([new_job("one", unique=lock, args="1"), new_job("two", unique=lock, args="2")])

    assert [(answer.job_id, answer.placement) for answer in answers] == [("one", "added"), ("one", placement)]
    assert stored(storage, "one").args == args
    assert storage.get("two") is None


def test_of_twins_that_come_at_once_one_is_added(storage: Storage, neighbour: Storage) -> None:
    calls = [partial(each.enqueue, [new_job(unique=unique())]) for each in (storage, neighbour) * 4]

    answers = [answer for (answer,) in at_once(calls)]

    assert sorted(answer.placement for answer in answers) == [Placement.ADDED] + [Placement.KEPT] * 7
    assert {answer.job_id for answer in answers} == set(ids(find_all(storage)))


def test_twins_in_one_batch_that_reject_each_other_are_both_refused(storage: Storage) -> None:
    lock = unique(on_conflict="reject")

    with pytest.raises(NotUnique):
        storage.enqueue([new_job("one", unique=lock), new_job("two", unique=lock)])

    assert find_all(storage) == []


def test_a_rejecting_batch_whose_answer_was_lost_can_be_sent_again(storage: Storage) -> None:
    jobs = [new_job("one", unique=unique(on_conflict="reject"))]
    storage.enqueue(jobs)

    assert storage.enqueue(jobs)[0].placement is Placement.KEPT


def test_until_start_frees_the_key_when_the_job_begins(storage: Storage) -> None:
    lock = unique(until="start", on_conflict="reject")
    job = add(storage, unique=lock)
    with pytest.raises(NotUnique):
        storage.enqueue([new_job("early", unique=lock)])
    storage.start([take(storage, job).token])

    assert storage.enqueue([new_job("twin", unique=lock)])[0].is_new
    finish(storage, Completed(stored(storage, job.id).token))
    with pytest.raises(NotUnique):
        storage.enqueue([new_job("late", unique=lock)])


def test_a_period_outlives_the_job(storage: Storage, clock: ManualClock) -> None:
    lock = unique(period=MINUTE)
    job = add(storage, unique=lock)
    finish(storage, Completed(take(storage, job).token))

    clock.turn((MINUTE - 1) / SECOND)
    within = storage.enqueue([new_job("within", unique=lock)])[0]
    clock.turn(1 / SECOND)
    after = storage.enqueue([new_job("after", unique=lock)])[0]

    assert (within.job_id, within.placement) == (job.id, Placement.KEPT)
    assert (after.job_id, after.placement) == ("after", Placement.ADDED)


def test_a_period_ends_although_the_job_is_unfinished(storage: Storage, clock: ManualClock) -> None:
    lock = unique(period=MINUTE)
    add(storage, unique=lock, delay=HOUR)

    clock.turn("1m")

    assert storage.enqueue([new_job(unique=lock)])[0].is_new


@pytest.mark.parametrize("ended", ["dead", "aborted"])
def test_a_job_whose_key_another_holds_cannot_be_retried(storage: Storage, ended: str) -> None:
    job = in_state(storage, State(ended), unique=unique())
    twin = add(storage, unique=unique())
    before = snapshot(storage, job.id)

    (answer,) = storage.retry([job.id])

    assert answer == ActionResult(job.id, False, State(ended), conflict=twin.id)
    assert snapshot(storage, job.id) == before


@pytest.mark.parametrize("between", [False, True], ids=["immediately", "after another held it"])
def test_a_retried_job_holds_its_key_again(storage: Storage, between: bool) -> None:
    job = in_state(storage, State.DEAD, unique=unique())
    if between:
        in_state(storage, State.COMPLETED, unique=unique())

    (retried,) = storage.retry([job.id])
    (answer,) = storage.enqueue([new_job("twin", unique=unique())])

    assert retried == ActionResult(job.id, True, QUEUED)
    assert (answer.job_id, answer.placement) == (job.id, Placement.KEPT)


def test_two_retried_jobs_of_one_key_are_not_both_queued(storage: Storage) -> None:
    first = in_state(storage, State.DEAD, unique=unique())
    second = in_state(storage, State.DEAD, unique=unique())

    answers = storage.retry([first.id, second.id])

    assert answers == [
        ActionResult(first.id, True, QUEUED),
        ActionResult(second.id, False, State.DEAD, conflict=first.id),
    ]


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"delay": HOUR}])
def test_names_of_queues_and_tasks_become_known(storage: Storage, options: dict[str, Any]) -> None:
    add(storage, queue="letters", task="print", **options)

    assert [queue.name for queue in storage.queues()] == ["letters"]
    assert [(task.name, task.queue, task.announced_at) for task in storage.tasks()] == [("print", "letters", None)]


@pytest.mark.parametrize("seed", range(4))
def test_a_batch_of_unique_jobs_is_answered_as_one_by_one(storage: Storage, clock: ManualClock, seed: int) -> None:
    """Whatever storages do to store many in one go: rivals before them and among them, and ids that come twice."""
    choose = random.Random(seed)
    reference = open_storage("memory://", now=clock)
    for each in (storage, reference):
        join(each)
    names = [f"job-{seed}-{number:03}" for number in range(90)]
    for _ in range(4):
        batch = [_some_job(choose, names) for _ in range(30)]
        expected = [reference.enqueue([new])[0] for new in batch]

        assert storage.enqueue(batch) == expected
        number = choose.randrange(4)
        held = [each.reserve("ann", {"mail": 1}, number) for each in (storage, reference)]
        assert ids(held[0]) == ids(held[1])
        for each, jobs in zip((storage, reference), held, strict=True):
            each.finish([Completed(job.token) for job in jobs[1:]])
        clock.turn(1.0)
    found = [each.get_many(names) for each in (storage, reference)]
    assert [(job.id, job.state, job.args, job.unique_key) for job in found[0]] == [
        (job.id, job.state, job.args, job.unique_key) for job in found[1]
    ]


def _some_job(choose: random.Random, names: list[str]) -> NewJob:
    lock = unique(
        f"key-{choose.randrange(12)}",
        period=choose.choice([None, None, 0, 2 * SECOND]),
        until=choose.choice(["finish", "start"]),
        on_conflict=choose.choice(["keep", "keep", "replace"]),
    )
    args = to_json({"n": choose.randrange(1_000)})
    return new_job(choose.choice(names), args=args, unique=choose.choice([lock, lock, lock, None]))


def test_a_batch_with_one_rejected_job_stores_none(storage: Storage) -> None:
    first, second = new_job(unique=unique("k")), new_job(unique=unique("k", on_conflict="reject"))

    with pytest.raises(NotUnique) as caught:
        storage.enqueue([new_job(), first, second])

    assert caught.value.job_id == first.id
    assert storage.get(first.id) is None


def test_a_task_is_known_whose_first_call_had_the_id_of_another_job(storage: Storage) -> None:
    add(storage, "a", task="send", queue="mail")
    add(storage, "a", task="draw", queue="pictures")
    add(storage, "b", task="draw", queue="pictures")

    assert [task.name for task in storage.tasks()] == ["draw", "send"]
    assert [queue.name for queue in storage.queues()] == ["mail", "pictures"]


@pytest.mark.parametrize("state", [DEAD, ABORTED])
def test_a_job_that_came_to_nothing_does_not_hold_its_key_for_the_period(storage: Storage, state: State) -> None:
    in_state(storage, state, unique=unique(period=HOUR))

    (answer,) = storage.enqueue([new_job("next", unique=unique(period=HOUR))])

    assert answer.job_id == "next"


def test_new_arguments_do_not_hide_how_often_a_job_has_killed_its_worker(storage: Storage) -> None:
    job = in_state(storage, RUNNING, unique=unique(), max_halts=2)
    storage.rescue_owner(WORKER, foreman=WORKER, why="killed")
    storage.enqueue([new_job(queue=job.queue, unique=unique(on_conflict="replace"), max_halts=2, args='{"new": 1}')])

    run(storage, stored(storage, job.id))
    storage.rescue_owner(WORKER, foreman=WORKER, why="killed")

    assert (stored(storage, job.id).state, stored(storage, job.id).halts) == (DEAD, 2)
