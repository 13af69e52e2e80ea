from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from packhorse.core.errors import TooBusy
from packhorse.web.api.stream import MOST_VIEWERS, Sampler, TopicKey, Update, Viewer
from packhorse.web.application import Application, make_application
from packhorse.web.pages import PAGES
from packhorse.web.pages.layout import render
from packhorse.web.pages.page import PageRequest, PageResponse
from packhorse.web.security.access import decide_access
from packhorse.web.security.operator import Operator, Role
from packhorse.web.security.tokens import Tokens
from tests.children import PATIENCE
from tests.cli.yard import Yard
from tests.web.conftest import BASE, patient_app

ANNA = Operator("anna", Role.VIEW)
OVERVIEW = TopicKey("overview", frozenset())
NEVER = 3_600.0  # seconds between two looks of a sampler that shall look but once


def application_of(yard: Yard) -> Application:
    """One that nobody has asked anything yet, and for which time stands still: what was read stays fresh."""
    application = make_application(patient_app(yard), decide_access("127.0.0.1", Tokens(), open_mount=True))
    application.web.cache._now = lambda: 0.0
    return application


def calls_of(yard: Yard) -> Counter[str]:
    """How often each operation of the storage was called by now, but for this one."""
    return Counter({each.name: each.calls for each in yard.storage.health().operations if each.name != "health"})


def run(work: Awaitable[Any]) -> Any:
    async def in_time() -> Any:
        return await asyncio.wait_for(work, PATIENCE)

    return asyncio.run(in_time())


def calls_for(yard: Yard, viewers: int, topics: list[str]) -> Counter[str]:
    """What it costs the storage that so many begin to watch."""
    before = calls_of(yard)

    async def watch() -> None:
        sampler = Sampler(application_of(yard).web.call, every=NEVER)
        present = [sampler.join(ANNA, topics) for _ in range(viewers)]
        for viewer in present:
            text = b""
            while text.count(b"event: ") < len(topics):
                text += await viewer.take() or b""
        assert sampler._task is not None
        sampler._task.cancel()

    run(watch())
    return calls_of(yard) - before


def test_twenty_viewers_cost_the_storage_what_one_does(yard: Yard):
    topics = ["overview", f"job:{yard.job('running').id}", f"job:{yard.job('completed').id}"]

    one, twenty = (calls_for(yard, viewers, topics) for viewers in (1, 20))

    assert twenty == one
    assert one["queues"] == one["get"] == 1  # all jobs by one call


def test_a_page_is_drawn_once_for_all_who_ask_for_it_after_the_same_event(yard: Yard):
    job = yard.job("running")

    def cost(viewers: int, path: str) -> Counter[str]:
        before = calls_of(yard)

        async def ask() -> None:
            transport = httpx.ASGITransport(application_of(yard))
            headers = {"x-packhorse": "quick", "last-event-id": "a-1"}
            async with httpx.AsyncClient(transport=transport, base_url=BASE, timeout=PATIENCE) as web:
                answers = await asyncio.gather(*(web.get(path, headers=headers) for _ in range(viewers)))
                answers.append(await web.get(path, headers=headers))
            assert {answer.status_code for answer in answers} == {200}
            assert len({answer.text for answer in answers}) == 1

        run(ask())
        return calls_of(yard) - before

    for path in ("/", "/jobs", f"/jobs?state=running&shown={job.id}", f"/jobs/{job.id}", "/queues", "/workers"):
        assert cost(20, path) == cost(1, path), path


def test_a_page_that_cannot_be_drawn_is_refused_to_all_who_wait_for_it(yard: Yard):
    async def ask() -> None:
        application = application_of(yard)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url=BASE) as web:
            wanted = [web.get("/queues/none", headers={"x-packhorse": "live"}) for _ in range(5)]
            assert {answer.status_code for answer in await asyncio.gather(*wanted)} == {404}
        assert not application.web.rendering

    run(ask())


def test_when_the_last_viewer_has_left_nothing_looks_any_more(yard: Yard):
    async def watch() -> None:
        sampler, before = Sampler(application_of(yard).web.call, every=0.001), asyncio.all_tasks()
        viewers = [sampler.join(ANNA, ["overview"]) for _ in range(3)]
        await viewers[0].take()
        for viewer in viewers:
            sampler.leave(viewer)
        await asyncio.wait(asyncio.all_tasks() - before)
        assert sampler._latest == {}

    run(watch())


def test_who_comes_back_after_all_had_left_is_looked_for_again(yard: Yard):
    async def watch() -> None:
        sampler = Sampler(application_of(yard).web.call, every=0.001)
        for _ in range(2):
            viewer = sampler.join(ANNA, ["overview"])
            assert b"event: overview" in (await viewer.take() or b"")
            sampler.leave(viewer)
            assert sampler._task is not None
            await sampler._task

    run(watch())


def in_a_loop(test: Callable[[Sampler], None]) -> None:
    """Viewers need a loop to wait in; here nothing looks for them."""

    async def inside() -> None:
        sampler = Sampler(lambda _: pytest.fail("it looks"))
        sampler._run = lambda: asyncio.sleep(0)  # type: ignore[method-assign]
        test(sampler)

    run(inside())


def waiting(viewer: Viewer) -> list[bytes]:
    return [text for text in (viewer.queue.get_nowait() for _ in range(viewer.queue.qsize())) if text]


def test_a_slow_reader_keeps_nobody_waiting_and_misses_what_is_old():
    def check(sampler: Sampler) -> None:
        slow, quick, heard = sampler.join(ANNA, ["overview"]), sampler.join(ANNA, ["overview"]), 0
        for number in range(5_000):
            sampler._publish(OVERVIEW, Update("overview", b"%d" % number))
            heard += len(waiting(quick))

        assert heard == 5_000
        texts = waiting(slow)
        assert [text.splitlines()[-2] for text in texts] == [b"data: %d" % number for number in range(4_900, 5_000)]
        assert len(sampler._ring) == 1_000

    in_a_loop(check)


def test_who_was_cut_off_hears_what_was_missed_or_else_the_present():
    def check(sampler: Sampler) -> None:
        for number in range(1, 1_501):
            sampler._publish(OVERVIEW, Update("overview", b"%d" % number))

        def heard(last_id: str | None) -> list[bytes]:
            viewer = sampler.join(ANNA, ["overview"], last_id)
            sampler.leave(viewer)
            return [text.splitlines()[-2].removeprefix(b"data: ") for text in waiting(viewer)]

        epoch = sampler._epoch
        assert heard(f"{epoch}-1497") == [b"1498", b"1499", b"1500"]
        assert heard(f"{epoch}-1500") == []
        no_numbers = (f"{epoch}-x", f"{epoch}-²", f"{epoch}-{'9' * 5_000}")
        for unknown in (None, f"{epoch}-7", "another-1497", *no_numbers):  # too long ago, or of another server
            assert heard(unknown) == [b"1500"]

    in_a_loop(check)


def test_a_hundred_may_watch_and_one_more_when_one_has_left():
    def check(sampler: Sampler) -> None:
        viewers = [sampler.join(ANNA, ["overview"]) for _ in range(MOST_VIEWERS)]
        with pytest.raises(TooBusy, match="100 viewers"):
            sampler.join(ANNA, ["overview"])
        sampler.leave(viewers[0])
        sampler.join(ANNA, ["overview"])

    in_a_loop(check)


def test_where_a_look_takes_long_the_next_one_is_later():
    sampler = Sampler(lambda _: pytest.fail("it looks"))

    assert [sampler._rest(took) for took in (0.0, 0.01, 0.1, 0.3, 60)] == [1, 1, 1, 3, 5]


def test_nobody_asks_for_new_lines_of_a_job_that_no_worker_has(yard: Yard):
    job = yard.job("running")
    sampler, key = Sampler(application_of(yard).web.call), TopicKey(f"job:{job.id}", frozenset())

    def lines_asked_for() -> int:
        before = calls_of(yard)["log_lines"]
        for each, found in sampler._sample(frozenset({key})).items():
            sampler._publish(each, found)
        return calls_of(yard)["log_lines"] - before

    assert [lines_asked_for() for _ in range(2)] == [1, 1]
    yard.storage.release([job.token], "for a test")
    assert [lines_asked_for() for _ in range(2)] == [1, 0]  # what it wrote at last is told


def test_a_page_asks_what_time_it_is_but_once(yard: Yard, monkeypatch: pytest.MonkeyPatch):
    asked, now = [], yard.storage.now
    monkeypatch.setattr(yard.storage, "now", lambda: asked.append(1) or now())
    for path in ("/", "/jobs", "/queues", "/workers"):
        site, page = application_of(yard).web, next(page for page in PAGES if page.path == path)
        for _ in range(2):  # the first also reads what is shared, and a storage may ask its own clock for that
            asked.clear()
            call = site.call(ANNA)
            made = page.make(call, PageRequest(path))
            assert isinstance(made, PageResponse)
            render(call, PageRequest(path), made, page.place)

        assert len(asked) == 1, path
