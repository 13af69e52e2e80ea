"""The async bridge: groups calls, keeps their errors apart, and leaves no thread behind."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from packhorse.client.async_bridge import AsyncBridge
from packhorse.core.errors import StorageUnavailable
from tests.children import PATIENCE


@pytest.fixture
def bridge() -> Iterator[AsyncBridge]:
    bridge = AsyncBridge(limit=10)
    yield bridge
    bridge.close()


def bridge_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "packhorse-async-bridge"]


class Doubling:
    """A shared call that notes how many items came together; the first waits until all others are there."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.sizes: list[int] = []
        self.fault = fault
        self.all_there = threading.Event()

    def __call__(self, items: list[int]) -> list[int]:
        self.all_there.wait()
        self.sizes.append(len(items))
        if self.fault and 13 in items:
            raise self.fault
        return [2 * item for item in items]


async def share(bridge: AsyncBridge, call: Doubling, number: int) -> list[int | BaseException]:
    futures = [bridge.share(call, n) for n in range(number)]
    call.all_there.set()
    return await asyncio.gather(*futures, return_exceptions=True)


def test_there_is_no_thread_before_the_first_call():
    before = bridge_threads()

    AsyncBridge(limit=10)

    assert set(bridge_threads()) <= set(before)  # those of others may end meanwhile


def test_a_call_is_made_in_the_bridges_thread(bridge: AsyncBridge):
    async def ask() -> str:
        return await bridge.call(lambda: threading.current_thread().name)

    assert asyncio.run(ask()) == "packhorse-async-bridge"


def test_a_call_takes_arguments_and_gives_its_answer(bridge: AsyncBridge):
    async def ask() -> int:
        return await bridge.call(int, "ff", base=16)

    assert asyncio.run(ask()) == 255


def test_the_error_of_a_call_is_the_callers(bridge: AsyncBridge):
    async def ask() -> int:
        return await bridge.call(int, "no number")

    with pytest.raises(ValueError, match="invalid literal"):
        asyncio.run(ask())


def test_items_that_wait_together_share_a_call_up_to_the_limit(bridge: AsyncBridge):
    call = Doubling()

    answers = asyncio.run(share(bridge, call, 36))

    assert answers == [2 * n for n in range(36)]
    assert sum(call.sizes) == 36
    assert len(call.sizes) <= 5  # what was there at first, and the rest in tens
    assert max(call.sizes) <= 10


def test_an_error_reaches_only_the_caller_whose_item_it_was(bridge: AsyncBridge):
    answers = asyncio.run(share(bridge, Doubling(ValueError("unlucky")), 30))

    assert [n for n, answer in enumerate(answers) if isinstance(answer, ValueError)] == [13]
    assert [answer for n, answer in enumerate(answers) if n != 13] == [2 * n for n in range(30) if n != 13]


def test_a_storage_that_does_not_answer_is_not_asked_for_each(bridge: AsyncBridge):
    call = Doubling(StorageUnavailable("the disk is away"))

    answers = asyncio.run(share(bridge, call, 30))

    assert isinstance(answers[13], StorageUnavailable)
    assert len(call.sizes) <= 4


def test_calls_of_different_kinds_do_not_mix(bridge: AsyncBridge):
    first, second = Doubling(), Doubling()

    async def ask() -> list[int | BaseException]:
        both = asyncio.gather(share(bridge, first, 5), share(bridge, second, 5))
        return [answer for answers in await both for answer in answers]

    assert asyncio.run(ask()) == [0, 2, 4, 6, 8] * 2
    assert sum(first.sizes) == sum(second.sizes) == 5


def test_a_cancelled_caller_does_not_affect_others(bridge: AsyncBridge):
    call = Doubling()

    async def ask() -> int:
        given_up, other = bridge.share(call, 1), bridge.share(call, 2)
        given_up.cancel()
        call.all_there.set()
        return await other

    assert asyncio.run(ask()) == 4


def test_a_closed_loop_does_not_affect_others(bridge: AsyncBridge):
    gate = threading.Event()

    async def leave() -> None:
        bridge.call(gate.wait)  # type: ignore[unused-awaitable]

    async def ask() -> int:
        return await bridge.call(int, "7")

    asyncio.run(leave())
    gate.set()

    assert asyncio.run(ask()) == 7


def test_two_loops_each_get_their_answers(bridge: AsyncBridge):
    call = Doubling()
    call.all_there.set()
    answers: dict[int, list[int | BaseException]] = {}

    def ask(name: int) -> None:
        answers[name] = asyncio.run(share(bridge, call, 50))

    threads = [threading.Thread(target=ask, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert answers == {name: [2 * n for n in range(50)] for name in range(3)}


def test_close_finishes_what_was_handed_in_and_ends_the_thread(bridge: AsyncBridge):
    before = bridge_threads()

    async def ask() -> list[int]:
        futures = [bridge.call(int, str(n)) for n in range(5)]
        bridge.close()
        return await asyncio.gather(*futures)

    assert asyncio.run(ask()) == [0, 1, 2, 3, 4]
    assert set(bridge_threads()) <= set(before)


def test_a_closed_bridge_starts_again(bridge: AsyncBridge):
    async def ask() -> int:
        return await bridge.call(int, "7")

    bridge.close()
    asyncio.run(ask())
    bridge.close()

    assert asyncio.run(ask()) == 7


def test_a_forgotten_bridge_ends_its_thread():
    bridge = AsyncBridge(limit=10)
    before = bridge_threads()

    async def ask(bridge: AsyncBridge) -> int:
        return await bridge.call(int, "7")

    asyncio.run(ask(bridge))
    (thread,) = set(bridge_threads()) - set(before)
    del bridge
    gc.collect()
    thread.join(timeout=PATIENCE)

    assert not thread.is_alive()


def test_only_coroutines_may_call(bridge: AsyncBridge):
    with pytest.raises(RuntimeError, match="no running event loop"):
        bridge.call(int, "7")  # type: ignore[unused-awaitable]


FORKED = """
import asyncio, os, sys
from packhorse import Packhorse

app = Packhorse("memory://")

async def enqueue():
    return (await app.aenqueue("send")).is_new

print(asyncio.run(enqueue()), flush=True)
if os.fork() == 0:
    print(asyncio.run(enqueue()), flush=True)
    os._exit(0)
os.wait()
print(asyncio.run(enqueue()), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_starts_a_thread_of_its_own():
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, check=True, timeout=60
    )

    assert ran.stdout.split() == ["True", "True", "True"]
