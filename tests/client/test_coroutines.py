"""In a coroutine: no method asks the storage on the event loop, and context variables reach the user's own code."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from packhorse import Client, JobHandle, JobNotFound, NewJob, Packhorse, Storage, Task, WrongState
from packhorse.core.clock import SECOND, ManualClock
from packhorse.core.errors import PackhorseError
from packhorse.storage import open_storage
from tests.test_public_surface import public_members

TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")
ASKED = {name for name, value in vars(Storage).items() if callable(value) and not name.startswith("_")}


def off_the_loop(storage: Storage) -> Storage:
    """Make the storage fail every call on an event loop from now on."""

    class OffTheLoop(type(storage)):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            if name in ASKED - {"approximate_now"}:
                try:
                    asyncio.get_running_loop()
                except RuntimeError:
                    pass
                else:
                    raise AssertionError(f"storage.{name} was called on the event loop")
            return super().__getattribute__(name)

    storage.__class__ = OffTheLoop
    return storage


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_800_000_000 * SECOND)


@pytest.fixture
def app(clock: ManualClock) -> Iterator[Packhorse]:
    with Packhorse(off_the_loop(open_storage("memory://", now=clock))) as app:
        yield app


@pytest.fixture
def send(app: Packhorse) -> Task[[str], str]:
    @app.schedule("@hourly", name="hourly", args={"to": "all"})
    @app.task(retries=2)
    def send(to: str) -> str:
        return to

    return send


# --- context variables ------------------------------------------------------------------------------------------------


@pytest.fixture
def by_tenant(app: Packhorse) -> Packhorse:
    @app.enqueue_middleware
    def for_tenant(new: NewJob, call: Any) -> NewJob:
        return call(replace(new, queue=TENANT.get()))

    return app


@pytest.mark.parametrize("way", ["aenqueue", "aenqueue_in", "aenqueue_at", "aenqueue_unique", "aenqueue_many", "acopy"])
def test_enqueue_middleware_sees_the_context_variables_of_the_coroutine(
    by_tenant: Packhorse, send: Task[[str], str], way: str
):
    app = by_tenant

    async def enqueue(tenant: str) -> JobHandle[Any]:
        TENANT.set(tenant)
        match way:
            case "aenqueue_in":
                return await send.aenqueue_in(1, to=tenant)
            case "aenqueue_at":
                return await app.aenqueue_at(datetime.now(UTC), "send", {"to": tenant})
            case "aenqueue_many":
                return (await app.aenqueue_many([send.call(tenant)]))[0]
            case "acopy":
                return await (await send.aenqueue("copied")).acopy(args={"to": tenant})
            case _:
                return await getattr(send, way)(to=tenant)

    async def many() -> list[JobHandle[Any]]:
        return await asyncio.gather(*(asyncio.create_task(enqueue(name)) for name in ("ann", "bob", "cid")))

    jobs = asyncio.run(many())

    assert [(job.queue, job.args["to"]) for job in jobs] == [("ann", "ann"), ("bob", "bob"), ("cid", "cid")]


# --- fresh handles ----------------------------------------------------------------------------------------------------


def test_a_fresh_handle_shows_the_job_as_it_was_written_without_asking(
    app: Packhorse, send: Task[[str], str], clock: ManualClock
):
    now = datetime.fromtimestamp(clock() // SECOND, UTC)

    async def look() -> None:
        job = await send.aenqueue("ann")
        assert (job.state, job.status, job.is_finished, job.is_new) == ("queued", "queued", False, True)
        assert (job.attempt, job.attempts, job.attempts_left, job.failures, job.halts) == (1, 0, 3, 0, 0)
        assert (job.progress, job.reason, job.error, job.worker, job.started_at, job.finished_at) == (None,) * 6
        assert (job.created_at, job.updated_at, job.queued_at, job.due_at) == (now, now, now, None)
        later = await send.aenqueue_in("1h", "bob")
        assert (later.state, later.due_at) == ("scheduled", now + timedelta(hours=1))
        past = await send.aenqueue_at(now - timedelta(hours=1), "cid")
        assert past.state == "queued"
        many = await app.aenqueue_many([send.call(f"m{n}") for n in range(3)])
        assert {each.state for each in many} == {"queued"}

    asyncio.run(look())


def test_what_a_job_leaves_to_a_task_elsewhere_is_known_without_asking(app: Packhorse):
    elsewhere = Packhorse("memory://")
    elsewhere.task(name="far", retries=7)(len)
    app.storage.announce(elsewhere.announcements())

    async def look() -> list[int]:
        named = await app.aenqueue("far", {"obj": "x"})
        left = [(await app.aget(named.id)).attempts_left, named.max_attempts]
        return [*left, *[job.attempts_left async for job in app.ajobs()]]

    assert asyncio.run(look()) == [8, 8, 8]


def test_a_twin_that_was_there_shows_what_it_is(app: Packhorse, send: Task[[str], str]):

    async def look() -> None:
        first = await send.aenqueue_unique("ann")
        await first.aset_priority(7)
        twin = await send.aenqueue_unique("ann")
        assert (twin.id, twin.is_new, twin.state, twin.priority) == (first.id, False, "queued", 7)
        (again,) = await app.aenqueue_many([send.using(unique=True).call("ann")])
        assert (again.id, again.state, again.priority) == (first.id, "queued", 7)

    asyncio.run(look())


def test_a_fresh_handle_that_looks_again_shows_what_became_of_the_job(app: Packhorse, send: Task[[str], str]):

    async def look() -> None:
        job = await send.aenqueue("ann")
        await (await app.aget(job.id)).aabort()
        assert job.state == "queued"  # as it was written
        assert (await job.arefresh()).state == "aborted"
        await job.adelete()
        with pytest.raises(JobNotFound):
            await job.arefresh()

    asyncio.run(look())
    assert send.enqueue("bob").state == "queued"


def test_a_job_that_was_steered_shows_what_became_of_it(send: Task[[str], str]):

    async def steer() -> None:
        job = await send.aenqueue_in("1h", "ann")
        assert (await job.aset_priority(5)).priority == 5
        assert (await job.aset_queue("slow")).queue == "slow"
        assert (await job.aforce_start()).state == "queued"
        assert (await job.aabort()).state == "aborted"
        assert (await job.aretry()).state == "queued"
        await job.adelete()

    asyncio.run(steer())


def properties_of(job: JobHandle[Any]) -> dict[str, Any]:
    """All that can be asked of a job without a call."""
    names = [name for name in public_members(JobHandle) if isinstance(getattr(JobHandle, name), property)]
    return {name: getattr(job, name) for name in names if name != "result"}


WAYS = ["aenqueue", "by name", "own id", "repeated id", "twin", "many", "copy", "aget", "aget_or_none", "ajobs"]


@pytest.mark.parametrize("way", WAYS)
def test_no_property_of_a_job_from_an_async_method_asks_the_storage(app: Packhorse, send: Task[[str], str], way: str):

    async def job_by(way: str) -> JobHandle[Any]:
        first = await send.using(id="chosen-id", unique=True).aenqueue("ann")
        match way:
            case "aenqueue":
                return await send.aenqueue("bob")
            case "by name":
                return await app.aenqueue("send", {"to": "bob"})
            case "own id":
                return first
            case "repeated id":
                return await send.using(id="chosen-id").aenqueue("ann")
            case "twin":
                return await send.aenqueue_unique("ann")
            case "many":
                return (await app.aenqueue_many([send.call("bob")]))[0]
            case "copy":
                return await (await send.aenqueue("bob")).acopy()
            case "aget":
                return await app.aget(first.id)
            case "aget_or_none":
                found = await app.aget_or_none(first.id)
                assert found is not None
                return found
            case _:
                (found,) = [job async for job in app.ajobs()]
                return found

    async def look() -> None:
        job = await job_by(way)
        assert properties_of(job)["state"] == "queued"
        with pytest.raises(WrongState, match=r"it is queued - wait for it with await job\.aresult\(\)"):
            job.result  # noqa: B018 - it is a property that raises

    asyncio.run(look())


def test_a_job_from_an_async_method_looks_for_its_result_where_no_event_loop_runs(send: Task[[str], str]):
    job = asyncio.run(send.aenqueue("ann"))
    job._app.storage.delete([job.id])

    with pytest.raises(JobNotFound):
        job.result  # noqa: B018 - it is a property that raises


def test_a_job_whose_steering_was_refused_shows_what_it_is_without_asking(app: Packhorse, send: Task[[str], str]):

    async def steer() -> None:
        job = await send.aenqueue("ann")
        await (await app.aget(job.id)).aabort()
        with pytest.raises(WrongState):
            await job.aabort()
        assert job.state == "aborted"

    asyncio.run(steer())


def test_a_job_that_an_async_method_found_gone_is_not_asked_for_again(send: Task[[str], str]):

    async def look() -> None:
        job = await send.aenqueue("ann")
        await job.adelete()
        with pytest.raises(JobNotFound):
            job.state  # noqa: B018 - it is a property that raises

    asyncio.run(look())


def test_a_job_from_an_async_method_can_be_steered_without_await():
    app = Packhorse("memory://")
    app.register("send", lambda: None)

    async def steer() -> None:
        job = await app.aenqueue("send", delay="1h")
        job.abort()
        assert job.state == "aborted"
        assert job.retry().state == "queued"

    asyncio.run(steer())


# --- every method -----------------------------------------------------------------------------------------------------

NEED_NO_STORAGE = {
    Packhorse: {
        *("task", "register", "announcements", "middleware", "add_middleware", "enqueue_middleware", "on_success"),
        *("on_failure", "enqueue_after_commit", "call", "schedule", "use", "run", "pool"),
        *("options_of", "effective_job"),
    },
    Task: {"on_result", "using", "call"},
    JobHandle: {"of", "wait"},  # which is `aresult`
    Client: set(),
}


@pytest.mark.parametrize("owner", NEED_NO_STORAGE)
def test_every_method_that_asks_the_storage_has_its_async_form(owner: type):
    names = set(public_members(owner))
    methods = {name for name in names if not isinstance(inspect.getattr_static(owner, name), property)}
    waits = {f"a{name}" for name in methods} & methods

    assert {name for name in methods - waits if f"a{name}" not in waits} - {"aresult"} == NEED_NO_STORAGE[owner]


def test_no_async_method_asks_the_storage_on_the_event_loop(app: Packhorse, send: Task[[str], str]):
    job = send.enqueue("ann")
    app.put_schedules()

    async def all_of_them() -> None:
        asked = {name for name in public_members(Packhorse) if name[0] == "a" and name[1:] in public_members(Packhorse)}
        given: dict[str, tuple[Any, ...]] = {
            "aclient": ("billing",),
            "aenqueue": ("send", {"to": "b"}),
            "aenqueue_at": (datetime.now(UTC), "send", {"to": "b"}),
            "aenqueue_in": (1, "send", {"to": "b"}),
            "aenqueue_many": ([send.call("c")],),
            "aenqueue_unique": ("send", {"to": "b"}),
            "aget": (job.id,),
            "aget_or_none": ("nobody",),
            "apause": ("send",),
            "aresume": ("send",),
        }
        for name in [*sorted(asked - {"aclose", "ajobs", "aremove_schedule"}), "aremove_schedule"]:
            schedule = ("hourly",) if name.endswith(("_schedule", "_schedule_now")) else ()
            answer = await getattr(app, name)(*given.get(name, schedule))
            if isinstance(answer, JobHandle):
                assert answer.state in ("queued", "scheduled"), name
        assert [found.id async for found in app.ajobs(since="1h", limit=1)]
        assert await app.aget_or_none("nobody") is None
        await app.aclose()

    asyncio.run(all_of_them())


def test_apps_and_clients_are_closed_by_async_with(app: Packhorse, send: Task[[str], str]):
    @asynccontextmanager
    async def opened() -> AsyncIterator[Client]:
        async with app, await app.aclient() as client:
            yield client

    async def use() -> list[str]:
        async with opened() as client:
            await client.asubscribe(await send.aenqueue("ann"))
            return [client.id]

    (left,) = asyncio.run(use())

    with pytest.raises(PackhorseError):
        app.storage.subscribe(left, ["x"])
