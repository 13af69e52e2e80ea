"""Handles: they read when needed, wait, explain, and operate on jobs; they explain what the storage rejects."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest

from packhorse.client.app import Packhorse
from packhorse.client.job import JobHandle, Progress
from packhorse.client.task import Task
from packhorse.conformance.builders import FAILURE, finish, in_state, run, take
from packhorse.core.clock import HOUR, MINUTE, SECOND, ManualClock, to_datetime
from packhorse.core.errors import (
    BadArguments,
    BadValue,
    JobFailed,
    JobNotFound,
    NotUnique,
    PackhorseError,
    WaitTimeout,
    WrongState,
)
from packhorse.core.event import Kind
from packhorse.core.job import ABORTED, COMPLETED, DEAD, QUEUED, RETRYING, RUNNING, SCHEDULED, Reason, State
from packhorse.core.outcome import Completed, Failed, Failure, Stopped
from packhorse.storage import Storage, open_storage
from packhorse.storage.memory import Memory
from packhorse.storage.records import CheckIn, LogLine, Page, TaskInfo, WorkerInfo


class Watched:
    """A storage that notes which of its calls were made."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._storage, name)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[Packhorse]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"
    with Packhorse(open_storage(url, now=clock)) as app:
        yield app


@pytest.fixture
def send(app: Packhorse) -> Task[..., Any]:
    @app.task
    def send_notice(user_id: int, email: str = "") -> tuple[int, str]:
        return user_id, email

    return send_notice


def completed(job: JobHandle[Any], result: str | None = '[7,"sent"]') -> JobHandle[Any]:
    finish(job._app.storage, Completed(run(job._app.storage, job.record).token, result=result))
    return job


def dead(job: JobHandle[Any]) -> JobHandle[Any]:
    finish(job._app.storage, Failed(run(job._app.storage, job.record).token, FAILURE))
    return job


def in_the_background(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


# --- looking --------------------------------------------------------------------------------------------------------


def test_a_fresh_handle_reads_nothing_until_it_is_asked_for_something_it_does_not_know(clock: ManualClock):
    watched = Watched(open_storage("memory://", now=clock))
    app = Packhorse(storage=watched)  # type: ignore[arg-type]

    job = app.enqueue("send", {"user_id": 7}, priority=3, meta={"a": 1})
    known = (job.id, job.task, job.queue, job.args, job.priority, job.max_attempts, job.meta, job.is_new, repr(job))
    calls_before = list(watched.calls)
    state = job.state

    assert known[1:8] == ("send", "send", {"user_id": 7}, 3, 4, {"a": 1}, True)
    assert calls_before == ["tasks", "enqueue"]  # what workers say about the task, and the job
    assert state is QUEUED
    assert watched.calls == ["tasks", "enqueue", "get"]


def test_a_handle_shows_what_it_saw_until_it_looks_again(app: Packhorse, send: Task[..., Any]):
    job = send.enqueue(7)
    assert job.state is QUEUED

    completed(app.get(job.id))

    assert job.state is QUEUED
    assert job.refresh().state is COMPLETED


def test_a_handle_tells_everything_about_a_new_job(app: Packhorse, send: Task[..., Any], clock: ManualClock):
    job = app.get(send.enqueue(7).id)

    assert (job.state, job.status, job.is_finished) == ("queued", "queued", False)
    assert (job.attempt, job.attempts, job.attempts_left, job.failures, job.halts) == (1, 0, 4, 0, 0)
    assert (job.progress, job.reason, job.error, job.worker) == (None, None, None, None)
    assert job.created_at == job.updated_at == job.queued_at == to_datetime(clock())
    assert (job.due_at, job.started_at, job.finished_at) == (None, None, None)
    assert job.created_at.tzinfo is UTC


def test_a_handle_tells_everything_about_a_failed_job(app: Packhorse, send: Task[..., Any], clock: ManualClock):
    job = send.using(retries=3).enqueue(7)
    running = run(app.storage, job.record, "ann")
    clock.turn("5s")
    finish(app.storage, Failed(running.token, FAILURE, retry_in=HOUR))
    job.refresh()

    assert (job.state, job.status) == (RETRYING, "queued")
    assert (job.attempt, job.attempts, job.attempts_left, job.failures) == (2, 1, 3, 1)
    assert (job.reason, job.error, job.worker) == (Reason.FAILED, FAILURE, "ann")
    assert job.started_at == to_datetime(clock() - 5 * SECOND)
    assert job.due_at == to_datetime(clock() + HOUR)


def test_a_running_job_tells_its_progress(app: Packhorse, send: Task[..., Any]):
    job = send.enqueue(7)
    token = run(app.storage, job.record).token
    app.storage.check_in([CheckIn(token, progress=40, progress_text="rendering")])

    assert job.refresh().progress == Progress(40, "rendering")
    assert job.status == "started"


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("scheduled", "queued"),
        ("queued", "queued"),
        ("retrying", "queued"),
        ("reserved", "started"),
        ("running", "started"),
        ("completed", "completed"),
        ("dead", "failed"),
        ("aborted", "failed"),
    ],
)
def test_the_status_has_four_words(app: Packhorse, state: str, status: str):
    assert app.get(in_state(app.storage, State(state)).id).status == status


def test_the_arguments_are_a_new_dict_each_time(send: Task[..., Any]):
    job = send.enqueue(7)
    job.args["user_id"] = 8

    assert job.args == {"user_id": 7}


def test_two_handles_of_a_job_are_equal(app: Packhorse, send: Task[..., Any]):
    job = send.enqueue(7)

    assert app.get(job.id) == job
    assert len({job, app.get(job.id)}) == 1
    assert job != send.enqueue(7)
    assert job != job.id


def test_a_handle_shows_itself(app: Packhorse, send: Task[..., Any]):
    job = send.enqueue(7)

    assert repr(job) == f"<Job {job.id} send_notice>"
    assert repr(app.get(job.id)) == f"<Job {job.id} send_notice queued>"
    assert repr(JobHandle(app._state, "x")) == "<Job x>"


def test_a_job_that_is_gone_is_not_found(send: Task[..., Any]):
    job = send.enqueue(7)
    job.delete()

    with pytest.raises(JobNotFound, match=f"there is no job {job.id}"):
        job.refresh()
    with pytest.raises(JobNotFound):
        _ = job.state


# --- the result -----------------------------------------------------------------------------------------------------


def test_the_result_has_the_type_that_the_function_says(send: Task[..., Any]):
    assert completed(send.enqueue(7)).result == (7, "sent")


def test_the_result_of_an_unknown_task_is_plain_json(app: Packhorse):
    assert completed(app.enqueue("elsewhere")).result == [7, "sent"]


@pytest.mark.parametrize("stored", [None, "null"])
def test_a_result_may_be_nothing(app: Packhorse, stored: str | None):
    assert completed(app.enqueue("elsewhere"), stored).result is None


def test_the_result_reads_again_while_the_job_runs(app: Packhorse, send: Task[..., Any]):
    job = send.enqueue(7)
    assert job.state is QUEUED

    completed(app.get(job.id))

    assert job.result == (7, "sent")


def test_an_unfinished_job_has_no_result(send: Task[..., Any]):
    job = send.enqueue(7)

    with pytest.raises(WrongState, match=f"cannot read the result of job {job.id}: it is queued - wait for it"):
        _ = job.result


def test_the_result_of_a_dead_job_is_its_failure(send: Task[..., Any]):
    job = dead(send.enqueue(7))

    with pytest.raises(JobFailed, match=rf"{job.id} \(send_notice\) is dead \(ValueError: no such address\)") as caught:
        _ = job.result
    assert (caught.value.state, caught.value.reason, caught.value.job_id) == (DEAD, Reason.FAILED, job.id)


def test_an_aborted_job_does_not_blame_an_earlier_error(app: Packhorse, send: Task[..., Any]):
    job = send.enqueue(7)
    finish(app.storage, Failed(run(app.storage, job.record).token, FAILURE, retry_in=HOUR))

    with pytest.raises(JobFailed, match=r"is aborted \(an operator wanted it\)"):
        _ = job.abort().result


@pytest.mark.parametrize("state", [QUEUED, RUNNING])
def test_an_aborted_job_tells_by_whom(app: Packhorse, state: State):
    job = app.get(in_state(app.storage, state).id)
    job.abort(by="anna")
    if state is RUNNING:
        finish(app.storage, Stopped(job.refresh().record.token))

    assert job.why() == "it was aborted 0ms ago, by anna"


def test_the_author_of_an_earlier_abort_is_not_named(app: Packhorse):
    job = app.get(in_state(app.storage, QUEUED).id)
    job.abort(by="anna")
    job.retry()
    failure = Failure("Abort", "nothing to do")
    finish(app.storage, Stopped(run(app.storage, job.refresh().record).token, failure=failure))

    assert job.why() == "it was aborted 0ms ago, because its task said: nothing to do"


def test_a_job_that_waited_too_long_says_so(app: Packhorse, clock: ManualClock, send: Task[..., Any]):
    job = send.using(expires="10s").enqueue(7)
    clock.turn(11)
    app.storage.expire()

    with pytest.raises(JobFailed, match="it waited longer than its expires of 10s"):
        job.wait(timeout=0)
    assert job.why() == "it was aborted 0ms ago, because it waited longer than its expires of 10s"


@pytest.mark.parametrize("state", [RETRYING, DEAD])
def test_it_tells_of_as_many_tries_as_its_task_allows(app: Packhorse, state: State):
    @app.task(retries=1, backoff="1h")
    def fetch() -> None: ...

    job = fetch.enqueue()
    failed = Failed(run(app.storage, job.record).token, FAILURE, HOUR if state is RETRYING else None, max_attempts=2)
    finish(app.storage, failed)

    assert "attempt 1 of 2" in job.why()
    assert "attempt 1 of 2" in asyncio.run(job.awhy())


def test_wait_returns_the_result_when_the_job_has_ended(app: Packhorse, send: Task[..., Any]):
    job = send.enqueue(7)
    worker = in_the_background(lambda: completed(app.get(job.id)))

    assert job.wait(timeout=30) == (7, "sent")
    worker.join()


def test_wait_raises_what_the_job_came_to(app: Packhorse, send: Task[..., Any]):
    job = send.enqueue(7)
    worker = in_the_background(lambda: dead(app.get(job.id)))

    with pytest.raises(JobFailed, match="is dead"):
        job.wait(timeout="30s")
    worker.join()


def test_wait_gives_up_after_its_timeout_and_says_why_the_job_waits(send: Task[..., Any]):
    job = send.enqueue(7)

    with pytest.raises(WaitTimeout) as caught:
        job.wait(timeout=timedelta(milliseconds=20))

    assert str(caught.value) == (
        f"job {job.id} (send_notice) did not end within 20ms: it is queued (no worker is running)"
    )
    assert isinstance(caught.value, TimeoutError)
    assert job.refresh().state is QUEUED


def test_a_wait_of_no_time_looks_once(send: Task[..., Any]):
    assert completed(send.enqueue(7)).wait(timeout=0) == (7, "sent")
    with pytest.raises(WaitTimeout):
        send.enqueue(7).wait(timeout=0)


def test_wait_ends_when_the_job_is_deleted(app: Packhorse, send: Task[..., Any]):
    job = send.enqueue(7)
    operator = in_the_background(lambda: app.get(job.id).delete())

    with pytest.raises(JobNotFound):
        job.wait(timeout=30)
    operator.join()


def test_a_wait_cannot_be_negative(send: Task[..., Any]):
    with pytest.raises(BadValue, match="timeout cannot be negative"):
        send.enqueue(7).wait(timeout=-1)


# --- history and reasons --------------------------------------------------------------------------------------------


def test_a_job_tells_its_history_even_when_it_is_deleted(send: Task[..., Any]):
    job = completed(send.enqueue(7))
    job.delete(by="anna")

    assert [event.kind for event in job.events()] == [
        Kind.ADDED,
        Kind.RESERVED,
        Kind.STARTED,
        Kind.COMPLETED,
        Kind.DELETED,
    ]
    assert job.events()[-1].data == {"by": "anna"}


def test_a_job_tells_all_its_log_lines(app: Packhorse, send: Task[..., Any]):
    job = send.enqueue(7)
    token = run(app.storage, job.record).token
    for start in (0, 1_000):
        app.storage.append_log(token, [LogLine(f"line {start + n}") for n in range(1_000)], keep=5_000)

    assert [line.message for line in job.logs()] == [f"line {n}" for n in range(2_000)]


def test_a_job_tells_why_it_waits(app: Packhorse, send: Task[..., Any]):
    first, second = send.enqueue(1), send.enqueue(2)
    without_worker = second.why()
    app.storage.join(WorkerInfo("ann", queues=["send_notice"]))
    without_task = second.why()
    app.storage.announce([TaskInfo("send_notice", "send_notice")])
    in_line, next_in_line = second.why(), first.why()
    app.pause("send_notice", by="anna", why="maintenance")
    paused = second.why()

    assert without_worker == "no worker is running"
    assert without_task == "no worker knows the task send_notice"
    assert in_line == "it waits in line; 1 job of its queue goes first"
    assert next_in_line.startswith("it is next in its queue")
    assert paused == "its queue send_notice is paused by anna since 2027-01-15 08:00:00 UTC: maintenance"


def test_a_job_far_behind_is_not_counted_out(app: Packhorse, send: Task[..., Any]):
    app.storage.join(WorkerInfo("ann", queues=["send_notice"]))
    app.storage.announce([TaskInfo("send_notice", "send_notice")])
    jobs = app.enqueue_many(send.call(n) for n in range(600))

    assert jobs[499].why() == "it waits in line; 499 jobs of its queue go first"
    assert jobs[599].why() == "it waits in line; very many of the 600 jobs of its queue go first"


class Hasty(Memory):
    """Another worker takes the next job whenever the queue is read."""

    def find(self, *args: Any, **options: Any) -> Page:
        self.reserve("ann", {"send_notice": 1}, 1)
        return super().find(*args, **options)


def test_a_job_that_is_taken_while_it_is_looked_at_is_not_said_to_wait():
    storage = Hasty(ManualClock())
    with Packhorse(storage) as app:
        storage.join(WorkerInfo("ann", queues=["send_notice"], concurrency=1))
        job = app.enqueue("send_notice")

        assert job.why() == "worker ann has taken it"


def test_a_job_is_not_said_to_wait_for_a_slot_while_workers_idle(app: Packhorse, send: Task[..., Any]):
    app.storage.join(WorkerInfo("ann", queues=["send_notice"], concurrency=1))
    app.storage.announce([TaskInfo("send_notice", "send_notice")])
    first, second = send.enqueue(1), send.enqueue(2)

    idle = first.why()
    app.storage.reserve("ann", {"send_notice": 1}, 1)
    busy = second.why()

    assert idle == "it is next in its queue, and a worker is about to take it"
    assert busy == "it is next in its queue, and waits for a free slot"


@pytest.mark.parametrize("serves", ["bulk.*", "*"])
def test_a_slot_is_busy_also_with_a_job_of_another_queue_that_a_pattern_fits(
    app: Packhorse, send: Task[..., Any], serves: str
):
    app.storage.join(WorkerInfo("ann", concurrency=1, info={"serves": [serves], "tasks": ["send_notice"]}))
    app.storage.announce([TaskInfo("send_notice", "send_notice")])
    send.using(queue="bulk.y").enqueue(1)
    app.storage.reserve("ann", {"bulk.y": 1}, 1)

    job = send.using(queue="bulk.x").enqueue(2)

    assert job.why() == "it is next in its queue, and waits for a free slot"


def test_why_looks_again(app: Packhorse, send: Task[..., Any]):
    job = send.enqueue_in("1m", 7)
    before = job.why()
    job.force_start()
    run(app.storage, job.record, "ann")

    assert before == "it is delayed until 2027-01-15 08:01:00 UTC (in 1m)"
    assert job.why() == "it runs on worker ann for 0ms"


# --- steering -------------------------------------------------------------------------------------------------------


def test_a_waiting_job_is_aborted_immediately(app: Packhorse, send: Task[..., Any]):
    job = send.enqueue(7).abort(by="anna")

    assert (job.state, job.reason) == (ABORTED, Reason.ABORTED)
    assert job.events()[-1].data == {"reason": "ABORTED", "by": "anna"}


def test_a_running_job_is_asked_to_stop(app: Packhorse, send: Task[..., Any]):
    job = send.enqueue(7)
    run(app.storage, job.record)

    assert job.abort().state is RUNNING
    assert job.record.abort_at is not None


def test_a_delayed_job_may_be_forced_to_start(send: Task[..., Any]):
    job = send.enqueue_in("1h", 7)
    assert job.state is SCHEDULED

    assert job.force_start().state is QUEUED
    assert job.record.is_forced


def test_a_waiting_job_may_move_in_line(send: Task[..., Any]):
    job = send.enqueue(7)

    assert job.set_priority(9).priority == 9
    assert job.set_queue("slow").refresh().queue == "slow"
    assert job.refresh().priority == 9


def test_a_dead_job_may_be_retried(send: Task[..., Any]):
    job = dead(send.enqueue(7)).retry()

    assert (job.state, job.failures) == (QUEUED, 0)


def test_a_finished_job_may_be_deleted(app: Packhorse, send: Task[..., Any]):
    completed(send.enqueue(7)).delete()

    assert app.count() == 0


def test_deleting_by_force_aborts_first_and_waits_for_the_end(app: Packhorse, send: Task[..., Any]):
    job = send.enqueue(7)
    token = run(app.storage, job.record).token

    def obey() -> None:
        while app.storage.check_in([CheckIn(token)]) == ["go_on"]:
            pass
        app.storage.finish([Failed(token, FAILURE)])

    worker = in_the_background(obey)
    job.delete(force=True, timeout=30)
    worker.join()

    assert app.get_or_none(job.id) is None


def test_deleting_by_force_deletes_a_waiting_job_too(app: Packhorse, send: Task[..., Any]):
    send.enqueue(7).delete(force=True)

    assert app.count() == 0


def test_deleting_by_force_does_not_wait_indefinitely(app: Packhorse, send: Task[..., Any]):
    job = send.enqueue(7)
    run(app.storage, job.record)

    with pytest.raises(WaitTimeout, match="it was asked to stop"):
        job.delete(force=True, timeout=0)
    assert job.refresh().state is RUNNING


REFUSED: list[tuple[str, Callable[[JobHandle[Any]], object], str]] = [
    ("completed", lambda job: job.abort(), "cannot abort job X: it is completed - it has ended already"),
    ("running", lambda job: job.force_start(), "cannot force start job X: it is running - a worker has it already"),
    (
        "dead",
        lambda job: job.force_start(),
        "cannot force start job X: it is dead - retry it first",
    ),
    (
        "completed",
        lambda job: job.force_start(),
        "cannot force start job X: it is completed - it has done its work; to run it again, copy it",
    ),
    (
        "completed",
        lambda job: job.set_priority(2),
        "cannot set the priority of job X: it is completed - it has ended and no longer waits",
    ),
    (
        "completed",
        lambda job: job.retry(),
        "cannot retry job X: it is completed - it has done its work; to run it again, copy it",
    ),
    (
        "queued",
        lambda job: job.retry(),
        "cannot retry job X: it is queued - it is queued already; force start runs it next",
    ),
    ("reserved", lambda job: job.retry(), "cannot retry job X: it is reserved - a worker has it already"),
    (
        "running",
        lambda job: job.delete(),
        "cannot delete job X: it is running - abort it first, or delete it with force, which does both",
    ),
]


@pytest.mark.parametrize(("state", "step", "sentence"), REFUSED)
def test_a_refused_step_says_why_and_what_to_do(
    app: Packhorse, state: str, step: Callable[[JobHandle[Any]], object], sentence: str
):
    job = app.get(in_state(app.storage, State(state)).id)

    with pytest.raises(WrongState) as caught:
        step(job)

    assert str(caught.value) == sentence.replace("X", job.id)
    assert job.state == state


@pytest.mark.parametrize(
    "step",
    [
        lambda job: job.abort(),
        lambda job: job.force_start(),
        lambda job: job.set_priority(2),
        lambda job: job.retry(),
        lambda job: job.delete(),
        lambda job: job.delete(force=True),
        lambda job: job.copy(),
        lambda job: job.why(),
    ],
)
def test_a_job_that_is_gone_cannot_be_steered(app: Packhorse, step: Callable[[JobHandle[Any]], object]):
    with pytest.raises(JobNotFound, match="there is no job nowhere"):
        step(JobHandle(app._state, "nowhere"))


@pytest.mark.parametrize("priority", [0, 11, 2.5, "high", True])
def test_a_wrong_priority_is_refused(send: Task[..., Any], priority: Any):
    job = send.enqueue(7)

    with pytest.raises(BadValue, match="priority must be a whole number from 1 to 10"):
        job.set_priority(priority)


def test_a_job_whose_unique_key_is_taken_by_now_cannot_be_retried(send: Task[..., Any]):
    first = send.enqueue_unique(7).abort()
    second = send.enqueue_unique(7)

    with pytest.raises(NotUnique, match=f"job {second.id} already holds the unique key 'send_notice."):
        first.retry()


# --- copies ---------------------------------------------------------------------------------------------------------


def test_a_copy_is_a_new_job_with_the_same_arguments_and_options(app: Packhorse, send: Task[..., Any]):
    job = send.using(priority=4, timeout="1m", meta={"a": 1}, queue="mail", backoff="5s", delay="1h").enqueue(
        7, "a@b.c"
    )

    copy = app.get(job.id).copy()

    assert copy.is_new
    assert copy != job
    assert (copy.task, copy.queue, copy.args, copy.meta) == ("send_notice", "mail", job.args, {"a": 1})
    assert (copy.priority, copy.record.timeout, copy.record.backoff) == (4, MINUTE, job.record.backoff)
    assert copy.state is QUEUED
    assert copy.events()[0].data == {"copied_from": job.id}


def test_a_copy_may_be_edited(send: Task[..., Any]):
    job = send.enqueue(7, "a@b.c")

    copy = job.copy(args=job.args | {"user_id": 8}, priority=9, delay="1m")

    assert copy.args == {"user_id": 8, "email": "a@b.c"}
    assert (copy.priority, copy.state) == (9, SCHEDULED)
    assert (job.refresh().priority, job.state) == (1, QUEUED)


def test_a_copy_is_unique_only_if_asked(send: Task[..., Any]):
    job = send.enqueue_unique(7)

    assert job.copy().is_new
    assert job.copy(unique={"until": "start"}) == job


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ({}, "needs the argument 'user_id'"),
        ({"user_id": "seven"}, "argument 'user_id': expected int, got str"),
        ({"user_id": 7, "emial": ""}, "has no argument 'emial'"),
        ({"user_id": object()}, "argument 'user_id': <object object> cannot become JSON"),
    ],
)
def test_the_arguments_of_a_copy_must_fit_the_task(send: Task[..., Any], args: dict[str, Any], sentence: str):
    job = send.enqueue(7)

    with pytest.raises(BadArguments, match=sentence):
        job.copy(args=args)


def test_arguments_that_have_only_a_place_are_copied_too(app: Packhorse):
    @app.task
    def add(first: int, /, *more: int) -> int:
        return first + sum(more)

    job = add.enqueue(1, 2, 3)

    assert job.copy().args == job.args == {"first": 1, "more": [2, 3]}
    assert job.copy(args={"first": 5}).args == {"first": 5}


def test_a_job_of_an_unknown_task_is_copied_as_it_is(app: Packhorse):
    job = app.enqueue("elsewhere", {"anything": [1, 2]})

    assert job.copy(args={"other": 1}).args == {"other": 1}


# --- async ----------------------------------------------------------------------------------------------------------


def test_a_coroutine_waits_for_the_result(app: Packhorse, send: Task[..., Any]):
    job = send.enqueue(7)
    worker = in_the_background(lambda: completed(app.get(job.id)))

    assert asyncio.run(job.aresult(timeout=30)) == (7, "sent")
    worker.join()


def test_a_coroutine_gives_up_waiting(send: Task[..., Any]):
    job = send.enqueue(7)

    with pytest.raises(WaitTimeout, match=r"did not end within 10ms: it is queued \(no worker is running\)"):
        asyncio.run(job.aresult(timeout=0.01))


def test_every_step_has_an_async_twin(app: Packhorse, send: Task[..., Any]):
    async def steer() -> None:
        job = await send.aenqueue_in("1h", 7)
        assert (await job.arefresh()).state is SCHEDULED
        assert await job.awhy() == "it is delayed until 2027-01-15 09:00:00 UTC (in 1h)"
        assert (await (await job.aset_priority(9)).arefresh()).priority == 9
        assert (await (await job.aforce_start()).arefresh()).state is QUEUED
        assert (await (await job.aabort(by="anna")).arefresh()).state is ABORTED
        assert (await (await job.aretry()).arefresh()).state is QUEUED
        assert (await job.acopy(args={"user_id": 8})).args == {"user_id": 8}
        assert [event.kind for event in await job.aevents()][-1] == Kind.READDED
        assert await job.alogs() == []
        await job.adelete()
        with pytest.raises(JobNotFound):
            await job.arefresh()

    asyncio.run(steer())

    assert app.count() == 1


def test_a_coroutine_deletes_by_force(app: Packhorse, send: Task[..., Any]):
    job = send.enqueue(7)
    taken = take(app.storage, job.record)

    async def delete() -> None:
        deleting = asyncio.create_task(job.adelete(force=True, timeout=30))
        while app.storage.check_in([CheckIn(taken.token)]) == ["go_on"]:  # noqa: ASYNC110 - the storage has no event
            await asyncio.sleep(0)
        app.storage.finish([Completed(taken.token)])
        await deleting

    asyncio.run(delete())

    assert app.get_or_none(job.id) is None


def test_an_async_step_that_is_refused_says_why(send: Task[..., Any]):
    job = completed(send.enqueue(7))

    with pytest.raises(PackhorseError, match=r"cannot abort job .*: it is completed"):
        asyncio.run(job.aabort())
