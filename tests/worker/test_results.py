"""Result handlers: told after the end is stored, repeated when they fail, and never the job's trouble."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from packhorse.client.app import Packhorse
from packhorse.client.job import JobHandle
from packhorse.conformance.builders import FAILURE, finish, stored, take
from packhorse.core.errors import BadValue, StorageUnavailable
from packhorse.core.job import COMPLETED, DEAD, Job
from packhorse.core.outcome import Completed, Failed, Halted, Outcome, Released, Snoozed, Stopped
from packhorse.core.task import Worker
from packhorse.storage.memory import Memory
from packhorse.storage.records import LogKind
from packhorse.worker.results import ResultHandlers
from tests.children import PATIENCE


@pytest.fixture
def storage() -> Memory:
    return Memory()


@pytest.fixture
def app(storage: Memory) -> Iterator[Packhorse]:
    """An app with the task `send`."""
    with Packhorse(storage) as app:

        @app.task
        def send(n: int = 0) -> str:
            return "sent"

        yield app


@pytest.fixture
def told(app: Packhorse) -> list[tuple[str, str]]:
    """Which handler was called, and for which end."""
    told: list[tuple[str, str]] = []
    app.on_success(lambda job: told.append(("success", job.state)))
    app.on_failure(lambda job: told.append(("failure", job.state)))
    return told


def attempt(app: Packhorse, task: str = "send", **options: Any) -> Job:
    """A job in a worker's hands."""
    return take(app.storage, stored(app.storage, app.enqueue(task, **options).id))


def end(app: Packhorse, job: Job, outcome: Outcome, handlers: ResultHandlers | None = None) -> None:
    """Store the outcome, put it to the handlers, and make all their calls."""
    finish(app.storage, outcome)
    handlers = handlers or ResultHandlers(app)
    handlers.put(job, outcome)
    assert handlers.close(timeout=PATIENCE) == 0


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (lambda token: Completed(token, '"sent"'), [("success", "completed")]),
        (lambda token: Failed(token, FAILURE), [("failure", "dead")]),
        (lambda token: Stopped(token), [("failure", "aborted")]),
        (lambda token: Failed(token, FAILURE, retry_in=5), []),
        (lambda token: Failed(token, FAILURE, retry_in=0), []),
        (lambda token: Snoozed(token, 5), []),
        (lambda token: Halted(token, "killed"), []),
    ],
)
def test_those_are_told_who_want_to_know_of_this_end(app: Packhorse, told: list[Any], outcome: Any, expected: Any):
    job = attempt(app)

    end(app, job, outcome(job.token))

    assert told == expected


def test_a_job_that_halted_too_often_has_ended(app: Packhorse, told: list[Any]):
    job = attempt(app, max_halts=1)

    end(app, job, Halted(job.token, "killed"))

    assert told == [("failure", "dead")]


def test_the_handler_gets_the_job_as_it_ended(app: Packhorse):
    seen: list[JobHandle[Any]] = []
    app.on_success(seen.append)
    job = attempt(app)

    end(app, job, Completed(job.token, '"sent"'))

    (handle,) = seen
    assert (handle.id, handle.state, handle.result, handle.task) == (job.id, COMPLETED, "sent", "send")


def test_a_task_has_handlers_of_its_own(app: Packhorse):
    told = []
    other = app.task(name="other")(lambda: None)

    @other.on_result
    def note(job: JobHandle[Any]) -> None:
        told.append(job.task)

    for task in ("send", "other"):
        job = attempt(app, task)
        end(app, job, Completed(job.token))

    assert told == ["other"]


def test_a_worker_object_is_told_of_its_own_jobs_first(app: Packhorse):
    told = []

    class Reverse(Worker):
        def run(self, text: str = "") -> str:
            return text[::-1]

        def on_result(self, job: JobHandle[Any]) -> None:
            told.append(f"object {job.state}")

    app.register("reverse", Reverse())
    app.on_failure(lambda job: told.append("app"))
    job = attempt(app, "reverse")

    end(app, job, Failed(job.token, FAILURE))

    assert told == ["object dead", "app"]


def test_a_handler_may_be_async(app: Packhorse):
    told = []

    @app.on_success
    async def note(job: JobHandle[Any]) -> None:
        told.append((await job.arefresh()).state)

    job = attempt(app)
    end(app, job, Completed(job.token))

    assert told == ["completed"]


def test_handlers_are_called_one_after_the_other_in_order(app: Packhorse):
    told = []
    app.on_success(lambda job: told.append(job.args["n"]))
    handlers = ResultHandlers(app)
    jobs = [attempt(app, args={"n": n}) for n in range(250)]

    for job in jobs:
        finish(app.storage, Completed(job.token))
        handlers.put(job, Completed(job.token))
    handlers.close(timeout=PATIENCE)

    assert told == list(range(250))


# --- errors ---------------------------------------------------------------------------------------------------------


def test_a_handler_that_fails_is_called_again_and_its_errors_are_in_the_jobs_log(app: Packhorse):
    calls = []

    @app.on_success
    def falter(job: JobHandle[Any]) -> None:
        calls.append(job.id)
        if len(calls) < 3:
            raise ValueError("not yet")

    job = attempt(app)
    end(app, job, Completed(job.token, '"sent"'), ResultHandlers(app, waits=(0.0, 0.0, 0.0)))

    lines = app.get(job.id).logs()
    assert len(calls) == 3
    assert [line.kind for line in lines] == [LogKind.ERROR] * 2
    assert "falter: ValueError: not yet (3 more tries)" in lines[0].message


def test_after_three_repeated_calls_it_is_given_up(app: Packhorse):
    calls = []

    @app.on_success
    def fail(job: JobHandle[Any]) -> None:
        calls.append(job)
        raise SystemExit(1)

    job = attempt(app)
    end(app, job, Completed(job.token), ResultHandlers(app, waits=(0.0, 0.0, 0.0)))

    assert len(calls) == 4
    assert app.get(job.id).logs()[-1].message.endswith("SystemExit: 1 (no more tries)")


def test_a_failing_handler_changes_neither_the_job_nor_other_handlers(app: Packhorse, told: list[Any]):
    app.hooks.on_success.insert(0, lambda job: 1 / 0)
    job = attempt(app)

    end(app, job, Completed(job.token, '"sent"'))

    assert app.get(job.id).state is COMPLETED
    assert told == [("success", "completed")]


def test_others_do_not_wait_for_one_that_is_to_be_repeated(app: Packhorse):
    called = threading.Event()
    app.on_success(lambda job: called.set() if job.args["n"] else 1 / 0)
    handlers = ResultHandlers(app, waits=(60.0,))

    for n in (0, 1):
        job = attempt(app, args={"n": n})
        finish(app.storage, Completed(job.token))
        handlers.put(job, Completed(job.token))

    assert called.wait(timeout=PATIENCE)
    assert handlers.close(timeout=PATIENCE) == 0


def test_a_repeated_call_comes_after_its_wait(app: Packhorse):
    calls = []
    again = threading.Event()

    @app.on_success
    def falter(job: JobHandle[Any]) -> None:
        calls.append(job)
        if len(calls) == 1:
            raise ValueError
        again.set()

    handlers = ResultHandlers(app, waits=(0.02,))
    job = attempt(app)
    finish(app.storage, Completed(job.token))
    handlers.put(job, Completed(job.token))

    assert again.wait(timeout=PATIENCE)
    handlers.close()


# --- what is still known --------------------------------------------------------------------------------------------


def test_a_job_that_is_gone_by_then_is_told_of_as_it_ended(app: Packhorse):
    seen: list[JobHandle[Any]] = []
    app.on_success(seen.append)
    job = attempt(app)
    finish(app.storage, Completed(job.token, '"sent"'))
    app.storage.delete([job.id])

    handlers = ResultHandlers(app)
    handlers.put(job, Completed(job.token, '"sent"'))
    handlers.close(timeout=PATIENCE)

    assert [(handle.state, handle.result) for handle in seen] == [(COMPLETED, "sent")]


def test_a_job_that_was_retried_by_then_is_told_of_as_it_ended(app: Packhorse, told: list[Any]):
    job = attempt(app)
    finish(app.storage, Failed(job.token, FAILURE))
    app.get(job.id).retry()

    handlers = ResultHandlers(app)
    handlers.put(job, Failed(job.token, FAILURE))
    handlers.close(timeout=PATIENCE)

    assert told == [("failure", "dead")]


def test_an_abort_that_was_asked_meanwhile_is_seen(app: Packhorse, told: list[Any]):
    job = attempt(app)
    app.get(job.id).abort()

    end(app, job, Failed(job.token, FAILURE, retry_in=5))

    assert told == [("failure", "aborted")]


@pytest.mark.parametrize("outcome", [Halted, Released])
def test_a_job_that_was_given_up_while_an_abort_was_asked_has_ended(app: Packhorse, told: list[Any], outcome: Any):
    job = attempt(app)
    app.get(job.id).abort()

    end(app, job, outcome(job.token, "the worker stops"))

    assert told == [("failure", "aborted")]


def test_a_storage_that_is_away_keeps_no_handler_from_being_called(
    app: Packhorse, told: list[Any], monkeypatch: pytest.MonkeyPatch
):
    def away(*args: Any, **kwargs: Any) -> Any:
        raise StorageUnavailable("away")

    app.on_failure(lambda job: 1 / 0)
    job = attempt(app)
    finish(app.storage, Failed(job.token, FAILURE))
    for call in ("get_many", "append_log"):
        monkeypatch.setattr(app.storage, call, away)

    handlers = ResultHandlers(app, waits=())
    handlers.put(job, Failed(job.token, FAILURE))
    handlers.close(timeout=PATIENCE)

    assert told == [("failure", DEAD)]


def test_a_complaint_that_the_storage_refuses_keeps_no_handler_from_being_called_again(
    app: Packhorse, monkeypatch: pytest.MonkeyPatch
):
    calls: list[str] = []

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise BadValue("so much does not get through")

    @app.on_success
    def complain(job: JobHandle[Any]) -> None:
        calls.append(job.id)
        raise ValueError("x" * 5_000)

    job = attempt(app)
    finish(app.storage, Completed(job.token))
    monkeypatch.setattr(app.storage, "append_log", refuse)

    handlers = ResultHandlers(app, waits=(0.0, 0.0))
    handlers.put(job, Completed(job.token))
    handlers.close(timeout=PATIENCE)

    assert calls == [job.id] * 3


# --- limits ---------------------------------------------------------------------------------------------------------


def test_where_nobody_listens_nothing_is_put(app: Packhorse):
    handlers = ResultHandlers(app)
    job = attempt(app)

    assert not handlers.wants("send")
    assert not handlers.put(job, Completed(job.token))


def test_a_full_line_slows_down_and_then_drops(app: Packhorse, caplog: pytest.LogCaptureFixture):
    go_on, called = threading.Event(), threading.Event()

    @app.on_success
    def stand_still(job: JobHandle[Any]) -> None:
        called.set()
        go_on.wait(timeout=PATIENCE)

    handlers = ResultHandlers(app, limit=2, patience=0.01)
    jobs = [attempt(app) for _ in range(6)]
    for job in jobs:
        finish(app.storage, Completed(job.token))
    taken = [handlers.put(jobs[0], Completed(jobs[0].token))]
    assert called.wait(timeout=PATIENCE)

    with caplog.at_level(logging.ERROR, "packhorse.results"):
        taken += [handlers.put(job, Completed(job.token)) for job in jobs[1:]]
    go_on.set()

    assert taken == [True, True, True, False, False, False]
    assert len(caplog.records) == 1
    assert handlers.close(timeout=PATIENCE) == 0


def test_a_line_that_moves_drops_nothing(app: Packhorse, told: list[Any]):
    handlers = ResultHandlers(app, limit=1, patience=PATIENCE)
    jobs = [attempt(app) for _ in range(50)]

    for job in jobs:
        finish(app.storage, Completed(job.token))
        assert handlers.put(job, Completed(job.token))
    handlers.close(timeout=PATIENCE)

    assert len(told) == 50


def test_what_a_hanging_handler_left_undone_is_counted(app: Packhorse, caplog: pytest.LogCaptureFixture):
    go_on, called = threading.Event(), threading.Event()

    @app.on_success
    def hang(job: JobHandle[Any]) -> None:
        called.set()
        go_on.wait(timeout=PATIENCE)

    handlers = ResultHandlers(app)
    jobs = [attempt(app) for _ in range(3)]
    for job in jobs:
        finish(app.storage, Completed(job.token))
    handlers.put(jobs[0], Completed(jobs[0].token))
    assert called.wait(timeout=PATIENCE)
    for job in jobs[1:]:
        handlers.put(job, Completed(job.token))

    left = handlers.close(timeout=0.01)
    go_on.set()

    assert left == 3
    assert "skipped 3 calls of result handlers" in caplog.text


def test_a_closed_one_takes_no_more(app: Packhorse, told: list[Any]):
    handlers = ResultHandlers(app)
    job = attempt(app)
    handlers.close()

    assert not handlers.put(job, Completed(job.token))
    assert handlers.close() == 0


# --- what ended elsewhere -------------------------------------------------------------------------------------------


def test_of_a_job_that_ended_while_it_waited_handlers_are_told(app: Packhorse, told: list[tuple[str, str]]):
    handlers, job, waiting = ResultHandlers(app), app.enqueue("send"), app.enqueue("send")
    job.abort()

    assert handlers.put_ended([job.id, waiting.id, "gone"]) == 3
    assert handlers.close(PATIENCE) == 0

    assert told == [("failure", "aborted")]


def test_an_error_in_a_handler_of_a_job_that_ended_elsewhere_is_repeated_and_changes_nothing(
    app: Packhorse, caplog: pytest.LogCaptureFixture
):
    calls: list[str] = []

    @app.on_failure
    def broken(job: Any) -> None:
        calls.append(job.id)
        raise ValueError("no such mailbox")

    handlers, job = ResultHandlers(app, waits=(0.0, 0.0, 0.0)), app.enqueue("send")
    job.abort()

    handlers.put_ended([job.id])
    handlers.close(PATIENCE)

    assert calls == [job.id] * 4  # once, and three times more
    assert stored(app.storage, job.id).state == "aborted"
    assert "no such mailbox" in caplog.text


def test_without_handlers_nothing_is_taken(storage: Memory):
    with Packhorse(storage) as app:
        assert ResultHandlers(app).put_ended(["any"]) == 0
