"""What is attached to an app: middleware around enqueueing, and who wants to know of ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from packhorse.client.app import Packhorse
from packhorse.client.hooks import EnqueueCall
from packhorse.core.errors import BadValue, PackhorseError
from packhorse.core.job import COMPLETED, DEAD, NewJob
from packhorse.core.task import Worker
from packhorse.storage.memory import Memory


@pytest.fixture
def app() -> Iterator[Packhorse]:
    with Packhorse(Memory()) as app:
        yield app


class Refused(Exception): ...


def refuse_zero(new: NewJob, call: EnqueueCall) -> NewJob:
    if new.args == '{"n":0}':
        raise Refused
    return call(new)


# --- middleware around attempts: only kept here ---------------------------------------------------------------------


def test_middleware_is_kept_in_order(app: Packhorse):
    @app.middleware
    def outer(job: Any, call: Any) -> Any:
        return call()

    @app.middleware
    async def inner(job: Any, call: Any) -> Any:
        return await call()

    assert app.middlewares == [outer, inner]


def test_middleware_may_be_chained(app: Packhorse):
    def one(job: Any, call: Any) -> Any: ...
    def two(job: Any, call: Any) -> Any: ...

    assert app.add_middleware(one).add_middleware(two) is app
    assert app.middlewares == [one, two]


@pytest.mark.parametrize("attach", ["middleware", "add_middleware", "enqueue_middleware", "on_success", "on_failure"])
def test_only_functions_can_be_attached(app: Packhorse, attach: str):
    with pytest.raises(BadValue, match="must be a function, not 7"):
        getattr(app, attach)(7)


# --- middleware around enqueueing -----------------------------------------------------------------------------------


def test_what_it_hands_on_is_stored(app: Packhorse):
    @app.enqueue_middleware
    def urgent(new: NewJob, call: EnqueueCall) -> NewJob:
        return call(replace(new, priority=9))

    job = app.enqueue("send", {"n": 1})

    assert (job.priority, job.refresh().priority, job.is_new) == (9, 9, True)


def test_the_first_is_the_outermost(app: Packhorse):
    order = []

    def middleware(name: str) -> None:
        @app.enqueue_middleware
        def around(new: NewJob, call: EnqueueCall) -> NewJob:
            order.append(f"{name} in")
            new = call(replace(new, meta=f'{{"last":"{name}"}}'))
            order.append(f"{name} out")
            return new

    for name in ("one", "two"):
        middleware(name)
    job = app.enqueue("send")

    assert order == ["one in", "two in", "two out", "one out"]
    assert job.meta == {"last": "two"}


def test_it_may_refuse_a_job(app: Packhorse):
    app.enqueue_middleware(refuse_zero)

    with pytest.raises(Refused):
        app.enqueue("send", {"n": 0})
    app.enqueue("send", {"n": 1})

    assert app.count() == 1


def test_it_refuses_a_whole_batch(app: Packhorse):
    app.enqueue_middleware(refuse_zero)

    with pytest.raises(Refused):
        app.enqueue_many([app.call("send", {"n": n}) for n in (2, 1, 0)])

    assert app.count() == 0


def test_every_job_of_a_batch_passes_it(app: Packhorse):
    @app.enqueue_middleware
    def first_come(new: NewJob, call: EnqueueCall) -> NewJob:
        return call(replace(new, queue=f"{new.queue}.{new.args[-2]}"))

    jobs = app.enqueue_many([app.call("send", {"n": n}) for n in range(3)])

    assert [job.queue for job in jobs] == ["send.0", "send.1", "send.2"]
    assert [job.refresh().queue for job in jobs] == ["send.0", "send.1", "send.2"]


def test_every_form_of_enqueueing_passes_it(app: Packhorse):
    seen = []

    @app.enqueue_middleware
    def note(new: NewJob, call: EnqueueCall) -> NewJob:
        seen.append(new.task)
        return call(new)

    @app.task
    def send(n: int = 0) -> None: ...

    send.enqueue()
    send.enqueue_in(5)
    send.enqueue_unique(1)
    app.enqueue("send").copy()
    app.enqueue_many([send.call()])
    asyncio.run(_later(app))

    assert seen == ["send"] * 8


async def _later(app: Packhorse) -> None:
    await app.aenqueue("send")
    await app.aenqueue_many([app.call("send")])


def test_for_coroutines_it_runs_in_a_thread_and_once(app: Packhorse):
    threads = []

    @app.enqueue_middleware
    def note(new: NewJob, call: EnqueueCall) -> NewJob:
        threads.append(threading.current_thread())
        return refuse_zero(new, call)

    async def enqueue() -> list[Any]:
        return await asyncio.gather(*(app.aenqueue("send", {"n": n}) for n in range(5)), return_exceptions=True)

    answers = asyncio.run(enqueue())

    assert [isinstance(answer, Refused) for answer in answers] == [True, False, False, False, False]
    assert (len(threads), app.count()) == (5, 4)
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("wrong", [lambda new, call: new, lambda new, call: call(new) and None])
def test_middleware_must_pass_the_job_on(app: Packhorse, wrong: Any):
    app.enqueue_middleware(wrong)

    with pytest.raises(PackhorseError, match="did not pass the job on - end it with `return call\\(new\\)`"):
        app.enqueue("send")


def test_it_must_be_a_plain_function(app: Packhorse):
    async def slow(new: NewJob, call: EnqueueCall) -> NewJob:
        return call(new)

    with pytest.raises(BadValue, match=r"enqueue middleware .*slow must be a plain function"):
        app.enqueue_middleware(slow)  # type: ignore[arg-type]


# --- who wants to know of ends --------------------------------------------------------------------------------------


def test_handlers_are_found_by_task_and_end(app: Packhorse):
    @app.task
    def send() -> None: ...

    success, failure, result = (lambda job: None for _ in range(3))
    app.on_success(success)
    app.on_failure(failure)
    send.on_result(result)

    assert app.hooks.handlers_of("send", COMPLETED) == [result, success]
    assert app.hooks.handlers_of("send", DEAD) == [result, failure]
    assert app.hooks.handlers_of("other", DEAD) == [failure]


def test_an_app_knows_whether_anybody_listens(app: Packhorse):
    class Silent(Worker):
        def run(self) -> None: ...

    class Telling(Silent):
        def on_result(self, job: Any) -> None: ...

    app.register("silent", Silent())
    before = app.has_result_handlers
    app.register("telling", Telling())

    assert (before, app.has_result_handlers) == (False, True)


@pytest.mark.parametrize("attach", ["on_success", "on_failure"])
def test_an_app_with_a_handler_has_result_handlers(app: Packhorse, attach: str):
    getattr(app, attach)(print)

    assert app.has_result_handlers
