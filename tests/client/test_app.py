"""The app: opens late, registers tasks, enqueues by name and in bulk, finds jobs, and steers queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from packhorse.client.app import Packhorse
from packhorse.client.job_builder import NewCall
from packhorse.conformance.builders import FAILURE, add, in_every_state, in_state, run, take
from packhorse.core.clock import HOUR, MINUTE, SECOND, ManualClock, to_datetime
from packhorse.core.errors import (
    BadArguments,
    BadURL,
    BadValue,
    JobNotFound,
    NotUnique,
    SettingsError,
    StorageUnavailable,
    TaskExists,
    TaskNotFound,
)
from packhorse.core.event import Kind
from packhorse.core.job import DEAD, QUEUED, RUNNING, SCHEDULED, NewJob
from packhorse.core.task import Worker
from packhorse.storage import open_storage
from packhorse.storage.memory import Memory
from packhorse.storage.records import Enqueued, Filter, Page, WorkerInfo


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def app(clock: ManualClock) -> Iterator[Packhorse]:
    """An app without tasks: it takes any name."""
    with Packhorse(open_storage("memory://", now=clock)) as app:
        yield app


@pytest.fixture
def strict(clock: ManualClock) -> Iterator[Packhorse]:
    """An app with a task."""
    with Packhorse(open_storage("memory://", now=clock)) as app:

        @app.task(priority=3)
        def send_notice(user_id: int, email: str = "") -> str:
            return f"{user_id} {email}"

        yield app


# --- opening --------------------------------------------------------------------------------------------------------


def test_making_an_app_touches_no_disk(tmp_path: Path):
    app = Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}")
    app.task(lambda: None, name="nothing")  # type: ignore[call-overload]
    app.close()

    assert list(tmp_path.iterdir()) == []


def test_the_first_use_opens_the_storage(tmp_path: Path):
    with Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        app.enqueue("anything")

    assert (tmp_path / "jobs.db").exists()


def test_the_storage_is_opened_once():
    app = Packhorse("memory://")

    assert app.storage is app.storage


def test_a_closed_app_may_be_used_again(tmp_path: Path):
    app = Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}")
    app.enqueue("anything")
    app.close()
    app.close()
    app.enqueue("anything")

    assert app.count() == 2
    app.close()


def test_a_storage_may_stand_in_place_of_the_url():
    storage = Memory()

    assert Packhorse(storage).storage is storage
    assert Packhorse(storage=storage).storage is storage


def test_a_url_and_a_storage_are_one_too_many():
    with pytest.raises(BadValue, match="give a url or a storage, not both"):
        Packhorse("memory://", storage=Memory())
    with pytest.raises(BadValue, match="give a url or a storage, not both"):
        Packhorse(Memory(), storage=Memory())


def test_a_url_that_means_nothing_is_refused_when_it_is_used():
    app = Packhorse("jobs.db")

    with pytest.raises(BadURL, match=r"'jobs\.db' is not a storage address"):
        app.count()


def test_the_environment_says_where_the_jobs_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PACKHORSE_URL", "memory://")

    assert isinstance(Packhorse().storage, Memory)


def test_settings_are_keywords():
    app = Packhorse("memory://", max_attempts=7, max_halts=2, lease="30s")
    job = app.enqueue("anything")

    assert (job.max_attempts, job.record.max_halts) == (7, 2)
    assert app.settings.lease == 30 * SECOND


def test_a_task_keeps_its_own_word_over_the_settings():
    app = Packhorse("memory://", max_attempts=7)

    @app.task(retries=1)
    def careful() -> None: ...

    @app.task
    def usual() -> None: ...

    assert (careful.enqueue().max_attempts, usual.enqueue().max_attempts) == (2, 7)


def test_a_wrong_setting_raises_immediately():
    with pytest.raises(SettingsError, match="there is no setting 'leese' - did you mean 'lease'"):
        Packhorse("memory://", leese=3)


def test_an_app_shows_where_its_jobs_are_without_the_password():
    assert repr(Packhorse("redis://me:secret@host/0")) == "<Packhorse redis://me:***@host/0>"
    assert repr(Packhorse(Memory())) == "<Packhorse Memory>"


# --- registering ----------------------------------------------------------------------------------------------------


class Fibonacci(Worker):
    def run(self, n: int) -> int:
        return n if n < 2 else self.run(n - 1) + self.run(n - 2)


def test_worker_objects_are_registered_one_after_the_other(app: Packhorse):
    def reverse(text: str) -> str:
        return text[::-1]

    assert app.register("fibonacci", Fibonacci(), weight=5).register("reverse", reverse) is app
    assert app.registry.names() == ["fibonacci", "reverse"]
    assert app.registry.get("fibonacci").options.weight == 5
    assert app.enqueue("fibonacci", {"n": 10}).args == {"n": 10}


def test_a_task_may_have_another_name(app: Packhorse):
    @app.task(name="mail.send")
    def send() -> None: ...

    assert send.enqueue().task == "mail.send"


def test_a_name_belongs_to_one_task(strict: Packhorse):
    def other() -> None: ...

    with pytest.raises(TaskExists, match="'send_notice'"):
        strict.register("send_notice", other)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"weight": 0}, "weight must be a whole number from 1 to 100,000, not 0"),
        ({"retires": 3}, "there is no option 'retires'; did you mean 'retries'?"),
        ({"delay": 3}, "there is no option 'delay'"),
        ({"timeout": "soon"}, "timeout cannot be understood: 'soon'"),
        ({"retry_on": "OSError"}, "retry_on takes classes of errors, such as ConnectionError, not 'OSError'"),
        ({"name": "a b"}, "task name 'a b' contains ' '"),
    ],
)
def test_a_wrong_option_of_a_task_is_refused_where_it_is_written(app: Packhorse, options: Any, sentence: str):
    with pytest.raises(BadValue, match=sentence):
        app.task(**options)(lambda: None)

    assert app.registry.names() == []


def test_what_is_no_function_is_no_task(app: Packhorse):
    with pytest.raises(BadValue, match="str is not a task - register a function, or an object with a method run"):
        app.task("send_notice")  # type: ignore[call-overload]


# --- by name --------------------------------------------------------------------------------------------------------


def test_a_known_task_is_enqueued_with_its_options(strict: Packhorse):
    job = strict.enqueue("send_notice", {"user_id": 7}, max_attempts=9)

    assert (job.args, job.priority, job.max_attempts) == ({"user_id": 7}, 3, 9)


def test_the_arguments_of_a_known_task_may_be_in_order(strict: Packhorse):
    assert strict.enqueue("send_notice", [7, "a@b.c"]).args == {"user_id": 7, "email": "a@b.c"}
    assert strict.enqueue("send_notice", (7,)).args == {"user_id": 7}


def test_a_name_that_is_not_registered_is_refused(strict: Packhorse):
    with pytest.raises(TaskNotFound) as caught:
        strict.enqueue("send_notise")

    assert str(caught.value) == (
        "there is no task 'send_notise'; did you mean 'send_notice'? - known=False enqueues it for workers elsewhere"
    )


def test_a_name_far_from_all_tells_which_there_are(strict: Packhorse):
    with pytest.raises(TaskNotFound, match="there are send_notice; known=False"):
        strict.enqueue("xyz")


def test_an_unknown_name_may_be_meant(strict: Packhorse, clock: ManualClock):
    loose = Packhorse(strict.storage, accept_unknown=True)
    loose.register("other", Fibonacci())

    assert strict.enqueue("elsewhere", known=False).state is QUEUED
    assert strict.call("elsewhere", known=False).job.task == "elsewhere"
    assert loose.enqueue("elsewhere").state is QUEUED


def test_an_app_without_tasks_takes_any_name(app: Packhorse):
    job = app.enqueue("send_notice", {"user_id": 1}, priority=5)

    assert (job.task, job.queue, job.args, job.priority) == ("send_notice", "send_notice", {"user_id": 1}, 5)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("send notice", "task name 'send notice' contains ' '"),
        ("", "task name must be text, not ''"),
        (None, "task name must be text, not None"),
        (["send"], r"task name must be text, not \['send'\]"),
        ("x" * 200, "has 200 characters; the limit is 128"),
    ],
)
def test_a_wrong_name_is_refused(app: Packhorse, strict: Packhorse, name: Any, sentence: str):
    for one in (app, strict):
        with pytest.raises(BadValue, match=sentence):
            one.enqueue(name)


@pytest.mark.parametrize("args", ["user_id=7", b"x", 7, {1, 2}])
def test_arguments_are_a_dict_or_a_list(app: Packhorse, strict: Packhorse, args: Any):
    for one in (app, strict):
        with pytest.raises(BadArguments, match="the arguments of send_notice must be a dict or a list, not"):
            one.enqueue("send_notice", args)


def test_the_arguments_of_an_unknown_task_need_names(app: Packhorse):
    with pytest.raises(BadArguments, match="the arguments of elsewhere need names: its function is unknown here"):
        app.enqueue("elsewhere", [7])
    with pytest.raises(BadArguments, match="the names of arguments must be text, not 7"):
        app.enqueue("elsewhere", {7: "seven"})  # type: ignore[dict-item]


def test_the_arguments_of_a_known_task_must_fit(strict: Packhorse):
    with pytest.raises(BadArguments, match="has no argument 'usr_id'; did you mean 'user_id'"):
        strict.enqueue("send_notice", {"usr_id": 7})


def test_a_job_may_be_enqueued_for_later_by_name(app: Packhorse, clock: ManualClock):
    at = to_datetime(clock() + HOUR)

    assert app.enqueue_in("1m", "send", {"n": 1}, priority=4).record.due_at == clock() + MINUTE
    assert app.enqueue_at(at, "send", {"n": 1}).due_at == at
    assert app.enqueue("send", delay=timedelta(hours=1)).due_at == at
    assert app.enqueue("send", at=at).due_at == at
    assert app.enqueue_at(datetime(1999, 1, 1, tzinfo=UTC), "send").state is QUEUED


def test_a_job_has_one_time(app: Packhorse):
    with pytest.raises(BadValue, match="give delay or at, not both"):
        app.enqueue_in(5, "send", at=datetime.now(UTC))  # type: ignore[call-arg]
    with pytest.raises(BadValue, match="delay cannot be negative: -5"):
        app.enqueue_in(-5, "send")
    with pytest.raises(BadValue, match="at has no time zone"):
        app.enqueue_at(datetime(2030, 1, 1), "send")  # noqa: DTZ001 - that is what is wrong with it


def test_a_job_may_be_unique_by_name(app: Packhorse):
    first = app.enqueue_unique("send", {"a": 1, "b": 2})
    twin = app.enqueue_unique("send", {"b": 2, "a": 1})

    assert (first.is_new, twin.is_new, twin) == (True, False, first)
    assert twin.task == "send"
    assert app.enqueue_unique("send", {"a": 1}).is_new
    assert app.enqueue("send", {"a": 1, "b": 2}).is_new
    assert app.enqueue("send", {"a": 5}, unique=["a"]) == app.enqueue("send", {"a": 5, "b": 6}, unique=["a"])


# --- many -----------------------------------------------------------------------------------------------------------


class Counted(Memory):
    """A storage that notes how many jobs came in each write, and may fail at one of them."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.fails_at = fails_at

    def enqueue(self, jobs: Any) -> list[Enqueued]:
        self.sizes.append(len(jobs))
        if len(self.sizes) == self.fails_at:
            raise StorageUnavailable("the disk is away")
        return super().enqueue(jobs)


def test_many_jobs_go_in_writes_of_a_thousand():
    storage = Counted()
    app = Packhorse(storage)

    jobs = app.enqueue_many(app.call("send", {"n": n}) for n in range(2_500))

    assert storage.sizes == [1_000, 1_000, 500]
    assert [job.args["n"] for job in jobs] == list(range(2_500))
    assert [job.id for job in jobs] == sorted(job.id for job in jobs)
    assert all(job.is_new for job in jobs)


def test_no_calls_are_no_write():
    storage = Counted()

    assert Packhorse(storage).enqueue_many([]) == []
    assert storage.sizes == []


def test_calls_that_failed_half_way_are_handed_in_again_without_doubles():
    app = Packhorse(Counted(fails_at=2))
    calls = [app.call("send", {"n": n}) for n in range(1_500)]

    with pytest.raises(StorageUnavailable):
        app.enqueue_many(calls)
    jobs = app.enqueue_many(calls)

    assert app.count() == 1_500
    assert all(job.is_new for job in jobs)


def test_unique_twins_among_many_are_one_job(app: Packhorse):
    first, twin = app.enqueue_many([app.call("send", unique=True), app.call("send", unique=True)])

    assert (first.is_new, twin.is_new, twin) == (True, False, first)


def test_what_is_no_call_is_refused(app: Packhorse):
    with pytest.raises(BadValue, match=r"enqueue_many takes calls, not 'send' - make them with task.call"):
        app.enqueue_many(["send"])  # type: ignore[arg-type]


# --- finding --------------------------------------------------------------------------------------------------------


def test_a_job_is_found_by_its_id(app: Packhorse):
    job = app.enqueue("send")

    assert app.get(job.id) == job
    assert not app.get(job.id).is_new
    assert app.get_or_none(job.id) == job


def test_an_unknown_id_is_not_found(app: Packhorse):
    with pytest.raises(JobNotFound, match="there is no job nowhere - it may have been deleted or pruned"):
        app.get("nowhere")
    assert app.get_or_none("nowhere") is None


def test_jobs_come_from_all_pages(app: Packhorse):
    made = app.enqueue_many(app.call("send", {"n": n}) for n in range(250))

    assert list(app.jobs(state="queued")) == made
    assert list(app.jobs()) == made[::-1]
    assert list(app.jobs(state="queued", limit=120)) == made[:120]
    assert list(app.jobs(limit=0)) == []


def test_jobs_bring_what_was_read(app: Packhorse):
    app.enqueue("send")
    (job,) = app.jobs()
    job.abort()

    assert [found.state for found in app.jobs()] == ["aborted"]


def test_jobs_go_on_behind_an_empty_page(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    job = add(app.storage)
    pages = {None: Page([], "1"), "1": Page([], "2"), "2": Page([job])}
    monkeypatch.setattr(app.storage, "find", lambda where, *, cursor, limit: pages[cursor])

    assert [found.id for found in app.jobs(text="x")] == [job.id]


def test_jobs_are_found_by_what_users_call_their_states(app: Packhorse):
    jobs = in_every_state(app.storage)

    assert {job.state for job in app.jobs(state="failed")} == {"dead", "aborted"}
    assert {job.state for job in app.jobs(state=["success", "pending"])} == {"completed", "scheduled"}
    assert [job.id for job in app.jobs(state=RUNNING)] == [jobs[RUNNING].id]
    assert app.count(state="waiting") == 3
    assert app.count(state="finished") == 3
    assert app.count() == 8


def test_jobs_are_found_by_queue_task_worker_and_text(app: Packhorse):
    job = app.enqueue("send", {"email": "anna@example.org"}, queue="mail", priority=7)
    other = app.enqueue("resize", queue="video")
    take(app.storage, other.record, "bob")

    assert list(app.jobs(queue="mail")) == [job]
    assert list(app.jobs(task="resize")) == [other]
    assert list(app.jobs(worker="bob")) == [other]
    assert list(app.jobs(text="ANNA@")) == [job]
    assert list(app.jobs(min_priority=5)) == [job]
    assert (app.count(queue="mail"), app.count(task="send", state="queued"), app.count(text="anna")) == (1, 1, 1)


def test_halted_jobs_are_found(app: Packhorse):
    app.enqueue("send")
    job = app.enqueue("resize")
    run(app.storage, job.record, "bob")
    app.storage.rescue_owner("bob", foreman="bob", why="killed")

    assert list(app.jobs(state="halted")) == [job]
    assert app.count(state="halt") == 1


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ({"state": "sleeping"}, "there is no state 'sleeping'"),
        ({"state": ["queued", "sleeping"]}, "there is no state 'sleeping'"),
        ({"state": ["halted", "queued"]}, "halted cannot be asked for together with other states"),
        ({"que": "mail"}, "jobs cannot be found by 'que'; did you mean 'queue'?"),
    ],
)
def test_a_filter_without_meaning_raises_immediately(app: Packhorse, where: Any, sentence: str):
    with pytest.raises(BadValue, match=sentence):
        app.jobs(**where)
    with pytest.raises(BadValue, match=sentence):
        app.count(**where)
    with pytest.raises(BadValue, match=sentence):
        app.ajobs(**where)


@pytest.mark.parametrize("limit", [-1, 2.5, "10", True])
def test_a_wrong_limit_is_refused(app: Packhorse, limit: Any):
    with pytest.raises(BadValue, match="limit must be a whole number from 0 up"):
        app.jobs(limit=limit)


def test_counting_by_text_has_no_cap(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    caps: list[int] = []
    count = app.storage.count

    def noted(where: Filter, *, cap: int) -> Any:
        caps.append(cap)
        return count(where, cap=cap)

    monkeypatch.setattr(app.storage, "count", noted)
    app.count(text="x")

    assert caps[0] > 10**15


# --- looking around and steering ------------------------------------------------------------------------------------


def test_a_queue_may_be_paused_and_resumed(app: Packhorse):
    app.enqueue("send")

    assert app.pause("send", by="anna", why="maintenance")
    assert not app.pause("send")
    (queue,) = app.queues()
    assert (queue.is_paused, queue.paused_by, queue.paused_why) == (True, "anna", "maintenance")
    assert app.resume("send", by="bob")
    assert not app.resume("send")
    assert [event.kind for event in app.events(queue="send")][1:] == [Kind.PAUSED, Kind.RESUMED]


@pytest.mark.parametrize("step", [lambda app: app.pause("a b"), lambda app: app.resume("a b")])
def test_a_queue_has_a_proper_name(app: Packhorse, step: Callable[[Packhorse], object]):
    with pytest.raises(BadValue, match="queue name 'a b' contains ' '"):
        step(app)


def test_the_app_tells_what_there_is(app: Packhorse):
    app.enqueue("send", queue="mail")
    app.storage.join(WorkerInfo("ann"))
    job = in_state(app.storage, DEAD)

    assert [queue.name for queue in app.queues()] == sorted(["mail", job.queue])
    assert [task.name for task in app.tasks()] == ["send"]
    assert [worker.id for worker in app.workers()] == ["ann"]
    assert [(group.number, group.place) for group in app.failures()] == [(1, FAILURE.place)]
    assert app.health().kind == app.storage.health().kind


def test_events_are_found(app: Packhorse):
    first, second = app.enqueue("send"), app.enqueue("resize")
    first.abort()

    assert [event.kind for event in app.events(job=first.id)] == ["added", "aborted"]
    assert [event.job_id for event in app.events(kind="added")] == [first.id, second.id]
    assert [event.queue for event in app.events(limit=1, newest_first=True)] == ["send"]
    assert [event.kind for event in app.events(after=app.events(kind="added")[-1].id)] == ["aborted"]
    with pytest.raises(BadValue, match="there is no kind of event 'abortd'; did you mean 'aborted'"):
        app.events(kind="abortd")


# --- async ----------------------------------------------------------------------------------------------------------


def test_everything_has_an_async_twin(app: Packhorse, clock: ManualClock):
    at = to_datetime(clock() + HOUR)

    async def use() -> None:
        job = await app.aenqueue("send", {"n": 1}, priority=2)
        assert (await app.aget(job.id)).priority == 2
        with pytest.raises(JobNotFound):
            await app.aget("nowhere")
        assert (await app.aenqueue_in("1m", "send")).state is SCHEDULED
        assert (await app.aenqueue_at(at, "send")).due_at == at
        unique, twin = await app.aenqueue_unique("send"), await app.aenqueue_unique("send")
        assert (unique.is_new, twin.is_new) == (True, False)
        many = await app.aenqueue_many(app.call("bulk", {"n": n}) for n in range(150))
        assert [found async for found in app.ajobs(queue="bulk", state="queued")] == many
        assert [found async for found in app.ajobs(queue="bulk", state="queued", limit=120)] == many[:120]
        assert await app.acount(queue="bulk") == 150
        assert await app.apause("bulk", by="anna")
        assert await app.aresume("bulk")

    asyncio.run(use())


def test_concurrent_async_callers_share_a_write():
    storage = Counted()
    app = Packhorse(storage)

    async def enqueue() -> list[Any]:
        return await asyncio.gather(*[app.aenqueue("send", {"n": n}) for n in range(3_000)])

    jobs = asyncio.run(enqueue())

    assert [job.args["n"] for job in jobs] == list(range(3_000))
    assert sum(storage.sizes) == 3_000
    assert len(storage.sizes) < 300
    assert max(storage.sizes) <= 1_000


def test_an_async_caller_whose_twin_is_rejected_harms_no_other(app: Packhorse):
    only_one = {"key": "k", "on_conflict": "reject"}
    holder = app.enqueue("send", unique=only_one)

    async def enqueue() -> list[Any]:
        rejected = app.aenqueue("send", unique=only_one)
        others = [app.aenqueue("send", {"n": n}) for n in range(20)]
        return await asyncio.gather(*others[:10], rejected, *others[10:], return_exceptions=True)

    answers = asyncio.run(enqueue())

    assert isinstance(answers.pop(10), NotUnique)
    assert [job.args["n"] for job in answers] == list(range(20))
    assert all(job.is_new for job in answers)
    assert app.count() == 21
    assert app.get(holder.id).state is QUEUED


def test_an_unavailable_storage_fails_every_async_caller_immediately():
    storage = Counted(fails_at=1)
    app = Packhorse(storage)

    async def enqueue() -> list[Any]:
        return await asyncio.gather(*[app.aenqueue("send") for _ in range(20)], return_exceptions=True)

    answers = asyncio.run(enqueue())

    assert any(isinstance(answer, StorageUnavailable) for answer in answers)
    assert app.count() == sum(not isinstance(answer, StorageUnavailable) for answer in answers)


def test_all_enqueueing_is_one_operation_of_the_storage(strict: Packhorse, monkeypatch: pytest.MonkeyPatch):
    seen: list[NewJob] = []
    enqueue_batch = strict.storage.enqueue

    def noted(new_jobs: list[NewJob]) -> list[Enqueued]:
        seen.extend(new_jobs)
        return enqueue_batch(new_jobs)

    monkeypatch.setattr(strict.storage, "enqueue", noted)
    call: NewCall[Any] = strict.call("send_notice", [1])

    async def enqueue() -> None:
        await strict.aenqueue("send_notice", [2])
        await strict.aenqueue_many([strict.call("send_notice", [3])])

    job = strict.enqueue("send_notice", [4])
    strict.enqueue_many([call])
    asyncio.run(enqueue())
    job.copy()

    assert [new.args for new in seen] == [f'{{"user_id":{n}}}' for n in (4, 1, 2, 3, 4)]


@pytest.mark.parametrize("id", [None, 5, b"x", ["a"]])
def test_an_invalid_id_is_rejected_before_the_storage_sees_it(app: Packhorse, id: Any):
    for get in (app.get, app.get_or_none):
        with pytest.raises(BadValue, match="the id of a job must be text"):
            get(id)
    for aget in (app.aget, app.aget_or_none):
        with pytest.raises(BadValue, match="the id of a job must be text"):
            asyncio.run(aget(id))


@pytest.mark.parametrize("calls", [None, 5])
def test_what_is_no_list_of_calls_is_refused(app: Packhorse, calls: Any):
    with pytest.raises(BadValue, match="enqueue_many takes calls"):
        app.enqueue_many(calls)
    with pytest.raises(BadValue, match="enqueue_many takes calls"):
        asyncio.run(app.aenqueue_many(calls))
