"""Tasks as users hold them: called as the function, enqueued in every form, refused with a sentence that helps."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from packhorse.client.app import Packhorse
from packhorse.client.job import JobHandle
from packhorse.client.task import CoroutineTask, PlainTask, Task
from packhorse.conformance.builders import run, stored
from packhorse.core.clock import HOUR, MINUTE, SECOND, ManualClock, to_datetime
from packhorse.core.errors import BadArguments, BadValue, NotUnique, PayloadTooLarge
from packhorse.core.job import OF_TASK, QUEUED, SCHEDULED, Job, left_to_task
from packhorse.core.outcome import Completed
from packhorse.core.retry import Backoff
from packhorse.storage import open_storage
from packhorse.storage.records import ClientInfo


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def app(clock: ManualClock) -> Iterator[Packhorse]:
    with Packhorse(open_storage("memory://", now=clock)) as app:
        yield app


@pytest.fixture
def send(app: Packhorse) -> Task[..., Any]:
    @app.task
    def send_notice(user_id: int, email: str = "") -> str:
        """Tell a user."""
        return f"{user_id} {email}"

    return send_notice


def in_storage(job: JobHandle[Any]) -> Job:
    return stored(job._app.storage, job.id)


# --- the function itself --------------------------------------------------------------------------------------------


def test_a_task_is_still_the_function(app: Packhorse, send: Task[..., Any]):
    assert send(7, email="a@b.c") == "7 a@b.c"
    assert app.count() == 0


def test_a_task_looks_like_its_function(send: Task[..., Any]):
    assert (send.__name__, send.__doc__) == ("send_notice", "Tell a user.")
    assert list(inspect.signature(send).parameters) == ["user_id", "email"]
    assert repr(send) == "<Task send_notice>"
    assert (send.name, send.queue) == ("send_notice", "send_notice")


def test_an_async_task_is_still_a_coroutine_function(app: Packhorse):
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    assert isinstance(double, CoroutineTask)
    assert asyncio.run(double(4)) == 8


def test_a_plain_function_is_a_plain_task(send: Task[..., Any]):
    assert isinstance(send, PlainTask)


def test_arguments_may_have_the_names_that_python_gives_to_methods(app: Packhorse):
    @app.task
    def odd(self: int, delay: int, args: int) -> None: ...

    job = odd.enqueue_in(5, self=1, delay=2, args=3)

    assert job.args == {"self": 1, "delay": 2, "args": 3}


# --- enqueueing -----------------------------------------------------------------------------------------------------


def test_positional_arguments_are_stored_by_name(send: Task[..., Any]):
    job = send.enqueue(7, "a@b.c")

    assert in_storage(job).args == '{"user_id":7,"email":"a@b.c"}'
    assert in_storage(job).state is QUEUED


def test_defaults_are_left_to_the_worker(send: Task[..., Any]):
    assert send.enqueue(user_id=7).args == {"user_id": 7}


def test_the_options_of_the_task_are_the_jobs(app: Packhorse):
    @app.task(
        queue="mail",
        priority=5,
        retries=2,
        timeout="30s",
        idle_timeout=timedelta(seconds=10),
        expires="1h",
        total_timeout="2h",
        max_halts=7,
        persistent=True,
    )
    def report() -> None: ...

    job = in_storage(report.enqueue())

    assert (job.queue, job.priority, job.max_halts) == ("mail", 5, 7)
    shown = app.effective_job(job)
    assert (shown.max_attempts, shown.timeout, shown.idle_timeout) == (3, 30 * SECOND, 10 * SECOND)
    assert left_to_task(job) == shown.from_task == ("max_attempts", "timeout", "idle_timeout")
    assert (job.expires, job.total_timeout) == (HOUR, 2 * HOUR)
    assert job.persistent
    assert job.backoff is None  # the worker knows the task's own


@pytest.mark.parametrize("delay", [60, 60.0, timedelta(minutes=1), "1m"])
def test_a_delay_is_counted_on_the_storages_clock(send: Task[..., Any], clock: ManualClock, delay: Any):
    job = in_storage(send.enqueue_in(delay, 7))

    assert (job.state, job.due_at) == (SCHEDULED, clock() + MINUTE)


def test_no_delay_is_now(send: Task[..., Any]):
    assert send.enqueue_in(0, 7).state is QUEUED


def test_a_job_may_be_enqueued_for_a_moment(send: Task[..., Any], clock: ManualClock):
    at = to_datetime(clock() + HOUR)

    assert send.enqueue_at(at, 7).due_at == at


def test_a_past_moment_is_now(send: Task[..., Any]):
    assert send.enqueue_at(datetime(1999, 1, 1, tzinfo=UTC), 7).state is QUEUED


def test_a_call_keeps_its_job(app: Packhorse, send: Task[..., Any]):
    call = send.call(7)

    first, second = app.enqueue_many([call]), app.enqueue_many([call])

    assert first == second
    assert app.count() == 1


# --- unique ---------------------------------------------------------------------------------------------------------


def test_a_unique_twin_is_the_job_that_waits(app: Packhorse, send: Task[..., Any]):
    first = send.enqueue_unique(7)
    second = send.enqueue_unique(user_id=7)

    assert (first.is_new, second.is_new) == (True, False)
    assert second.id == first.id
    assert app.count() == 1


def test_other_arguments_are_another_job(app: Packhorse, send: Task[..., Any]):
    assert send.enqueue_unique(7) != send.enqueue_unique(8)


def test_enqueue_unique_is_free_again_once_the_job_has_ended(app: Packhorse, send: Task[..., Any]):
    first = send.enqueue_unique(7)
    running = run(app.storage, first.record)
    assert not send.enqueue_unique(7).is_new

    app.storage.finish([Completed(running.token)])

    assert send.enqueue_unique(7).is_new


def test_a_task_that_is_unique_itself_goes_by_its_own_rule(app: Packhorse):
    @app.task(unique={"by": ["user_id"]})
    def report(user_id: int, day: str) -> None: ...

    first = report.enqueue(7, "monday")
    run(app.storage, first.record)

    assert report.enqueue(7, "tuesday") == first
    assert report.enqueue_unique(7, "wednesday") == first
    assert report.enqueue(8, "monday").is_new
    assert report.using(unique=None).enqueue(7, "friday").is_new


def test_a_unique_key_may_be_chosen(send: Task[..., Any]):
    tied = send.using(unique="the only one")

    assert tied.enqueue(1) == tied.enqueue(2)
    assert in_storage(tied.enqueue(3)).unique_key == "send_notice|the only one"


def test_a_twin_may_replace_the_arguments(send: Task[..., Any]):
    tied = send.using(unique={"key": "k", "on_conflict": "replace"})
    first = tied.enqueue(1)

    second = tied.enqueue(2)

    assert not second.is_new
    assert second == first
    assert second.args == {"user_id": 2}


def test_a_twin_may_be_rejected(send: Task[..., Any]):
    tied = send.using(unique={"key": "k", "on_conflict": "reject"})
    first = tied.enqueue(1)

    with pytest.raises(NotUnique, match=f"job {first.id} already holds the unique key 'send_notice.k'"):
        tied.enqueue(2)


def test_a_task_cannot_be_unique_by_an_argument_that_it_has_not(send: Task[..., Any]):
    with pytest.raises(BadValue, match=r"cannot be unique by 'usr_id'.*did you mean 'user_id'"):
        send.using(unique=["usr_id"]).enqueue(7)


# --- using ----------------------------------------------------------------------------------------------------------


def test_using_changes_the_copy_and_not_the_task(send: Task[..., Any]):
    urgent = send.using(priority=9, queue="fast", retries=0, timeout="5s")

    job, plain = in_storage(urgent.enqueue(7)), in_storage(send.enqueue(7))

    assert (job.priority, job.queue, job.max_attempts, job.timeout) == (9, "fast", 1, 5 * SECOND)
    assert (plain.priority, plain.queue, plain.max_attempts, plain.timeout) == (1, "send_notice", OF_TASK, None)
    assert (urgent.queue, send.queue) == ("fast", "send_notice")
    assert urgent(7) == "7 "


def test_using_adds_up(send: Task[..., Any]):
    job = in_storage(send.using(priority=9).using(delay="1m").using(queue="fast").using(queue=None).enqueue(7))

    assert (job.priority, job.state, job.queue) == (9, SCHEDULED, "send_notice")


def test_the_later_time_counts(send: Task[..., Any], clock: ManualClock):
    at = to_datetime(clock() + HOUR)

    assert send.using(delay=60).using(at=at).enqueue(7).due_at == at
    assert in_storage(send.using(at=at).using(delay=60).enqueue(7)).due_at == clock() + MINUTE
    assert in_storage(send.using(at=at).enqueue_in(60, 7)).due_at == clock() + MINUTE
    assert send.using(delay=60).enqueue_at(at, 7).due_at == at


def test_a_job_carries_its_own_backoff_notes_and_subscriber(app: Packhorse, send: Task[..., Any]):
    app.storage.join_client(ClientInfo("c1"))
    job = send.using(
        backoff="10s", meta={"tenant": "acme"}, created_by="anna", subscriber="c1", persistent=True, max_halts=1
    ).enqueue(7)
    found = app.get(job.id)

    assert Backoff.from_json(found.record.backoff or "") == Backoff(type="fixed", delay_ms=10_000)
    assert found.meta == {"tenant": "acme"}
    assert (found.record.created_by, found.record.persistent, found.record.max_halts) == ("anna", True, 1)
    assert app.storage.subscribers(job.id) == ["c1"]


# --- bad input ------------------------------------------------------------------------------------------------------


def at_noon() -> datetime:
    return datetime(2030, 1, 1, 12)  # noqa: DTZ001 - that is what is wrong with it


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"priority": 0}, "priority must be a whole number from 1 to 10, not 0"),
        ({"priority": 11}, "priority must be a whole number from 1 to 10, not 11"),
        ({"priority": "high"}, "priority must be a whole number from 1 to 10, not 'high'"),
        ({"delay": -1}, "delay cannot be negative: -1"),
        ({"delay": "soon"}, "delay cannot be understood: 'soon'"),
        ({"delay": None}, "delay must be seconds, a timedelta or text such as '10m', not None"),
        ({"at": at_noon()}, "at has no time zone: 2030-01-01T12:00:00"),
        ({"at": "noon"}, "at must be a datetime with a time zone, not 'noon'"),
        ({"at": datetime.now(UTC), "delay": 1}, "give delay or at, not both"),
        ({"retries": -1}, "retries must be a whole number from 0"),
        ({"retries": 1, "max_attempts": 2}, "give retries or max_attempts, not both"),
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1"),
        ({"max_halts": 0}, "max_halts must be a whole number from 1"),
        ({"timeout": 0}, "timeout must be longer than zero, not 0"),
        ({"queue": "a b"}, "queue name 'a b' contains ' '"),
        ({"persistent": "yes"}, "persistent must be True or False, not 'yes'"),
        ({"backoff": lambda failures: 1}, "backoff function .* cannot be stored with a job"),
        ({"unique": 5}, "unique must be True, a key, names of arguments or a dict, not 5"),
        ({"meta": "acme"}, "meta must be a dict, not 'acme'"),
        ({"meta": {"when": object()}}, "meta cannot be stored: argument 'when': <object object> cannot become JSON"),
        ({"subscriber": ""}, "subscriber must be printable text, not ''"),
        ({"created_by": 5}, "created_by must be printable text, not 5"),
        ({"weight": 3}, r"weight belongs to the task, not to one of its jobs - pass it to @app.task\(weight=…\)"),
        ({"isolate": True}, "isolate belongs to the task"),
        ({"retry_on": OSError}, "retry_on belongs to the task"),
        ({"prioritty": 3}, "there is no option 'prioritty'; did you mean 'priority'?"),
        ({"dely": 3}, "there is no option 'dely'; did you mean 'delay'?"),
    ],
)
def test_a_wrong_option_raises_immediately(app: Packhorse, send: Task[..., Any], options: Any, sentence: str):
    with pytest.raises(BadValue, match=sentence):
        send.using(**options)
    with pytest.raises(BadValue, match=sentence):
        app.enqueue("send_notice", {"user_id": 7}, **options)

    assert app.count() == 0


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda send: send.enqueue(), r"send_notice\(\) needs the argument 'user_id'"),
        (lambda send: send.enqueue(1, "a", 3), r"send_notice\(\) .* by position"),
        (lambda send: send.enqueue(1, user_id=2), "got two values for the argument 'user_id'"),
        (lambda send: send.enqueue(1, emial="a"), "has no argument 'emial'; did you mean 'email'?"),
        (lambda send: send.enqueue(object()), "argument 'user_id': <object object> cannot become JSON"),
        (lambda send: send.enqueue(float("nan")), "argument 'user_id': nan cannot become JSON"),
        (lambda send: send.call(), "needs the argument 'user_id'"),
    ],
)
def test_wrong_arguments_are_refused_where_they_are_written(
    app: Packhorse, send: Task[..., Any], call: Callable[[Any], object], sentence: str
):
    with pytest.raises(BadArguments, match=sentence):
        call(send)

    assert app.count() == 0


def test_a_wrong_time_is_refused(send: Task[..., Any]):
    with pytest.raises(BadValue, match="delay cannot be negative"):
        send.enqueue_in(-5, 7)
    with pytest.raises(BadValue, match="at has no time zone"):
        send.enqueue_at(at_noon(), 7)
    with pytest.raises(BadValue, match="at must be a datetime with a time zone, not 60"):
        send.enqueue_at(60, 7)  # type: ignore[arg-type]


def test_a_job_is_no_argument_and_its_id_is(send: Task[..., Any]):
    job = send.enqueue(7)

    with pytest.raises(BadArguments, match="argument 'email': <JobHandle object> cannot become JSON - pass its id"):
        send.enqueue(7, job)


def test_the_payload_has_a_limit():
    app = Packhorse("memory://", payload_limit="1KiB")

    @app.task
    def store(text: str) -> None: ...

    with pytest.raises(
        PayloadTooLarge, match=r"the arguments of store\(\) are 1,\d+ bytes as JSON; the limit is 1,024"
    ):
        store.enqueue("x" * 1_024)


# --- async ----------------------------------------------------------------------------------------------------------


def test_every_form_has_an_async_twin(app: Packhorse, send: Task[..., Any], clock: ManualClock):
    at = to_datetime(clock() + HOUR)

    async def enqueue() -> list[JobHandle[Any]]:
        return [
            await send.aenqueue(1),
            await send.aenqueue_in("1m", 2),
            await send.aenqueue_at(at, 3),
            await send.aenqueue_unique(4),
            await send.aenqueue_unique(4),
        ]

    now, soon, later, first, twin = asyncio.run(enqueue())

    assert (now.state, in_storage(soon).due_at, later.due_at) == (QUEUED, clock() + MINUTE, at)
    assert (first.is_new, twin.is_new, twin) == (True, False, first)


def test_an_async_caller_hears_of_its_mistakes(send: Task[..., Any]):
    with pytest.raises(BadArguments, match="needs the argument 'user_id'"):
        asyncio.run(send.aenqueue())


def test_dataclasses_and_structs_may_be_arguments(app: Packhorse):
    class User(msgspec.Struct):
        id: int

    @app.task
    def greet(user: User) -> None: ...

    assert greet.enqueue(User(7)).args == {"user": {"id": 7}}
