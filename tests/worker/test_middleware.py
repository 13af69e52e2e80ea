"""Middleware around attempts: every mixture of plain and async, in order, with one context for each attempt."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from types import SimpleNamespace
from typing import Any

import pytest

from packhorse.core.context import CURRENT, JobContext, current_job
from packhorse.core.errors import PackhorseError
from packhorse.core.job import QUEUED, Job
from packhorse.core.outcome import Abort, Retry, Snooze
from packhorse.core.task import RegisteredTask, Registry
from packhorse.worker.middleware import Chain, compose, is_async
from tests.children import PATIENCE


class NoLink:
    """Where nothing is heard."""

    def log(self, message: str, kind: str = "log") -> None: ...
    def check_in(self, message: str | None, progress: int | None, progress_text: str | None) -> None: ...
    def is_stopping(self) -> bool:
        return False

    def should_stop(self) -> bool:
        return False


def context(**args: Any) -> JobContext:
    job = Job("j", 1, "add", "add", "{}", QUEUED, 1, 12, 0, 0)
    return JobContext(job, args, NoLink())


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A worker's event loop, in its own thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="the loop")
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=PATIENCE)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def task_of(function: Any) -> RegisteredTask:
    return Registry().add(function, "add")


def run(chain: Chain, is_async: bool, job: JobContext, loop: asyncio.AbstractEventLoop) -> Any:
    """As an executor does: a plain chain here, an async one on the loop."""
    if is_async:
        return asyncio.run_coroutine_threadsafe(chain(job), loop).result(timeout=PATIENCE)
    return chain(job)


def plain_task(n: int) -> int:
    return n + 1


async def async_task(n: int) -> int:
    await asyncio.sleep(0)
    return n + 1


def plain_middleware(name: str) -> Any:
    def around(job: JobContext, call: Any) -> Any:
        job.local.order.append(f"{name} in")
        result = call()
        job.local.order.append(f"{name} out")
        return result * 10

    return around


def async_middleware(name: str) -> Any:
    async def around(job: JobContext, call: Any) -> Any:
        job.local.order.append(f"{name} in")
        result = await call()
        job.local.order.append(f"{name} out")
        return result * 10

    return around


MIXTURES = [kinds for length in range(4) for kinds in itertools.product(["plain", "async"], repeat=length)]


@pytest.mark.parametrize("task", [plain_task, async_task], ids=["plain task", "async task"])
@pytest.mark.parametrize("kinds", MIXTURES, ids=" ".join)
def test_every_mixture_runs_in_order(kinds: tuple[str, ...], task: Any, loop: asyncio.AbstractEventLoop):
    make = {"plain": plain_middleware, "async": async_middleware}
    middleware = [make[kind](str(number)) for number, kind in enumerate(kinds)]
    chain, is_async = compose(task_of(task), middleware, lambda: loop)
    job = context(n=4)
    job.local.order = []

    result = run(chain, is_async, job, loop)

    numbers = [str(number) for number in range(len(kinds))]
    assert result == 5 * 10 ** len(kinds)
    assert job.local.order == [f"{n} in" for n in numbers] + [f"{n} out" for n in reversed(numbers)]
    assert is_async == ((kinds[0] == "async") if kinds else (task is async_task))


@pytest.mark.parametrize("task_kind", ["plain", "async"])
@pytest.mark.parametrize("kinds", MIXTURES, ids=" ".join)
def test_what_the_task_raises_passes_through_every_mixture(
    kinds: tuple[str, ...], task_kind: str, loop: asyncio.AbstractEventLoop
):
    def fail() -> None:
        raise KeyError("lost")

    async def afail() -> None:
        raise KeyError("lost")

    make = {"plain": plain_middleware, "async": async_middleware}
    task = task_of(fail if task_kind == "plain" else afail)
    chain, is_async = compose(task, [make[kind]("m") for kind in kinds], lambda: loop)
    job = context()
    job.local.order = []

    with pytest.raises(KeyError, match="lost"):
        run(chain, is_async, job, loop)


def test_a_plain_part_below_an_async_one_leaves_the_loop_free(loop: asyncio.AbstractEventLoop):
    threads = []

    def where() -> int:
        threads.append(threading.current_thread().name)
        return 0

    async def around(job: JobContext, call: Any) -> Any:
        threads.append(threading.current_thread().name)
        return await call()

    run(*compose(task_of(where), [around], lambda: loop), context(), loop)

    assert threads[0] == "the loop"
    assert threads[1] != "the loop"


def test_an_async_part_below_a_plain_one_runs_on_the_loop(loop: asyncio.AbstractEventLoop):
    threads = []

    async def where() -> int:
        threads.append(threading.current_thread().name)
        return 0

    run(*compose(task_of(where), [plain_middleware("m")], lambda: loop), _with_order(context()), loop)

    assert threads == ["the loop"]


def _with_order(job: JobContext) -> JobContext:
    job.local.order = []
    return job


def test_middleware_may_change_the_arguments(loop: asyncio.AbstractEventLoop):
    def double(job: JobContext, call: Any) -> Any:
        job.args["n"] *= 2
        return call()

    assert run(*compose(task_of(plain_task), [double], lambda: loop), context(n=4), loop) == 9


def test_middleware_may_put_an_error_right(loop: asyncio.AbstractEventLoop):
    def fail() -> None:
        raise KeyError("lost")

    def forgive(job: JobContext, call: Any) -> Any:
        try:
            return call()
        except KeyError:
            return "found"

    assert run(*compose(task_of(fail), [forgive], lambda: loop), context(), loop) == "found"


def test_middleware_may_refuse_the_attempt(loop: asyncio.AbstractEventLoop):
    def refuse(job: JobContext, call: Any) -> Any:
        raise PermissionError("not at night")

    with pytest.raises(PermissionError, match="not at night"):
        run(*compose(task_of(plain_task), [refuse], lambda: loop), context(n=1), loop)


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_middleware_that_forgets_the_job_is_told_so(kind: str, loop: asyncio.AbstractEventLoop):
    def forget(job: JobContext, call: Any) -> Any:
        return None

    async def aforget(job: JobContext, call: Any) -> Any:
        return None

    middleware = forget if kind == "plain" else aforget

    with pytest.raises(
        PackhorseError, match=r"the middleware .*forget did not call the job - end it with `return call"
    ):
        run(*compose(task_of(plain_task), [middleware], lambda: loop), context(n=1), loop)


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("answer", [Snooze(60), Retry("later"), Abort("never")])
def test_middleware_may_answer_instead_of_the_task(
    kind: str, answer: Snooze | Retry | Abort, loop: asyncio.AbstractEventLoop
):
    def refuse(job: JobContext, call: Any) -> Any:
        return answer

    async def arefuse(job: JobContext, call: Any) -> Any:
        return answer

    def task() -> None:
        raise AssertionError("it ran")

    middleware = refuse if kind == "plain" else arefuse

    assert run(*compose(task_of(task), [middleware], lambda: loop), context(), loop) is answer


class StopLink(NoLink):
    """Says stop as soon as the task has begun."""

    def __init__(self) -> None:
        self.begun = threading.Event()

    def is_stopping(self) -> bool:
        return self.begun.is_set()


@pytest.mark.parametrize("is_outer_async", [False, True])
def test_an_async_task_below_plain_middleware_is_cancelled_when_it_shall_stop(
    loop: asyncio.AbstractEventLoop, is_outer_async: bool
):
    line, ended = StopLink(), list[str]()
    job = JobContext(Job("j", 1, "add", "add", "{}", QUEUED, 1, 12, 0, 0), {}, line)

    async def task() -> None:
        line.begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append("cleaned up")

    async def outer(job: JobContext, call: Any) -> Any:
        return await call()

    middleware = [outer, lambda job, call: call()] if is_outer_async else [lambda job, call: call()]
    chain, is_async = compose(task_of(task), middleware, lambda: loop)

    with pytest.raises((asyncio.CancelledError, CancelledError)):
        run(chain, is_async, job, loop)

    assert ended == ["cleaned up"], "the job has not ended before its task has"


def test_middleware_may_be_an_object(loop: asyncio.AbstractEventLoop):
    class Tenfold:
        def __call__(self, job: JobContext, call: Any) -> Any:
            return call() * 10

    class AsyncTenfold:
        async def __call__(self, job: JobContext, call: Any) -> Any:
            return await call() * 10

    partial = functools.partial(lambda factor, job, call: call() * factor, 10)

    chain, is_async = compose(task_of(plain_task), [AsyncTenfold(), Tenfold(), partial], lambda: loop)

    assert (run(chain, is_async, context(n=1), loop), is_async) == (2_000, True)


def test_each_attempt_has_a_namespace_of_its_own(loop: asyncio.AbstractEventLoop):
    seen = []

    def note(job: JobContext, call: Any) -> Any:
        seen.append(dict(vars(job.local)))
        job.local.mark = True
        return call()

    chain, is_async = compose(task_of(plain_task), [note], lambda: loop)
    for _ in range(2):
        run(chain, is_async, context(n=1), loop)

    assert seen == [{}, {}]
    assert isinstance(context().local, SimpleNamespace)


def test_without_middleware_nothing_is_between(loop: asyncio.AbstractEventLoop):
    def places(a: int, /, *rest: int, **named: int) -> Any:
        return a, rest, named

    chain, is_async = compose(task_of(places), [], lambda: loop)

    assert not is_async
    assert run(chain, is_async, context(a=1, rest=[2, 3], b=4), loop) == (1, (2, 3), {"b": 4})


# --- in a worker, and in a child without a loop of its own ----------------------------------------------------------


@pytest.mark.parametrize("task", [plain_task, async_task], ids=["plain task", "async task"])
@pytest.mark.parametrize("kinds", MIXTURES, ids=" ".join)
def test_without_a_loop_every_mixture_runs_too(kinds: tuple[str, ...], task: Any):
    make = {"plain": plain_middleware, "async": async_middleware}
    chain, must_await = compose(task_of(task), [make[kind]("m") for kind in kinds], loop=None)
    job = _with_order(context(n=4))

    result = asyncio.run(chain(job)) if must_await else chain(job)

    assert result == 5 * 10 ** len(kinds)


@pytest.mark.parametrize("kinds", MIXTURES, ids=" ".join)
@pytest.mark.parametrize("task_kind", ["plain", "async"])
def test_the_current_job_is_known_all_the_way_in(
    kinds: tuple[str, ...], task_kind: str, loop: asyncio.AbstractEventLoop
):
    async def aask() -> str:
        return current_job().id

    make = {"plain": plain_middleware, "async": async_middleware}
    task = task_of(aask if task_kind == "async" else lambda: current_job().id)
    job = _with_order(context())
    mark = CURRENT.set(job)

    try:
        result = run(*compose(task, [make[kind]("m") for kind in kinds], lambda: loop), job, loop)
    finally:
        CURRENT.reset(mark)

    assert result == "j" * 10 ** len(kinds)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_a_task_that_wants_to_end_the_program_does_not_end_the_loop(
    error: BaseException, loop: asyncio.AbstractEventLoop
):
    async def leave() -> None:
        raise error

    with pytest.raises(type(error)):
        run(*compose(task_of(leave), [plain_middleware("m")], lambda: loop), _with_order(context()), loop)

    assert run(*compose(task_of(async_task), [], lambda: loop), context(n=1), loop) == 2


def test_a_stray_stop_iteration_comes_out_of_a_thread(loop: asyncio.AbstractEventLoop):
    def exhausted() -> None:
        next(iter(()))

    with pytest.raises(RuntimeError, match="the task raised StopIteration"):
        run(*compose(task_of(exhausted), [async_middleware("m")], lambda: loop), _with_order(context()), loop)


def test_a_cancelled_plain_task_below_an_async_part_has_not_ended_before_it_ends(loop: asyncio.AbstractEventLoop):
    began, asked, may_end = threading.Event(), threading.Event(), threading.Event()

    def task() -> None:
        began.set()
        may_end.wait(PATIENCE)
        raise ValueError("nobody wants to know any more")

    def cancel() -> None:
        for one in asyncio.all_tasks(loop):
            one.cancel()
        loop.call_soon(asked.set)

    chain, _ = compose(task_of(task), [async_middleware("m")], lambda: loop)
    running = asyncio.run_coroutine_threadsafe(chain(_with_order(context())), loop)
    assert began.wait(PATIENCE)
    loop.call_soon_threadsafe(cancel)
    assert asked.wait(PATIENCE)
    had_ended = running.done()
    may_end.set()

    assert not had_ended
    with pytest.raises(CancelledError):
        running.result(timeout=PATIENCE)


def test_what_must_be_awaited_is_known_of_functions_and_of_objects():
    class Plain:
        def __call__(self) -> None: ...

    class Async:
        async def __call__(self) -> None: ...

    assert [is_async(one) for one in (plain_task, Plain(), async_task, Async())] == [False, False, True, True]
    assert compose(task_of(Async()), (), loop=None)[1]
