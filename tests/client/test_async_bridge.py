"""The courier: groups what can be grouped, keeps failures apart, and leaves no thread behind."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from packhorse.client.async_bridge import Courier
from packhorse.core.errors import StorageUnavailable
from tests.children import PATIENCE


@pytest.fixture
def courier() -> Iterator[Courier]:
    courier = Courier(limit=10)
    yield courier
    courier.close()


def courier_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "packhorse-courier"]


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


async def share(courier: Courier, call: Doubling, number: int) -> list[int | BaseException]:
    futures = [courier.share(call, n) for n in range(number)]
    call.all_there.set()
    return await asyncio.gather(*futures, return_exceptions=True)


def test_there_is_no_thread_before_the_first_call():
    before = courier_threads()

    Courier(limit=10)

    assert set(courier_threads()) <= set(before)  # those of others may end meanwhile


def test_a_call_is_made_in_the_couriers_thread(courier: Courier):
    async def ask() -> str:
        return await courier.call(lambda: threading.current_thread().name)

    assert asyncio.run(ask()) == "packhorse-courier"


def test_a_call_takes_arguments_and_gives_its_answer(courier: Courier):
    async def ask() -> int:
        return await courier.call(int, "ff", base=16)

    assert asyncio.run(ask()) == 255


def test_the_error_of_a_call_is_the_callers(courier: Courier):
    async def ask() -> int:
        return await courier.call(int, "no number")

    with pytest.raises(ValueError, match="invalid literal"):
        asyncio.run(ask())


def test_items_that_wait_together_share_a_call_up_to_the_limit(courier: Courier):
    call = Doubling()

    answers = asyncio.run(share(courier, call, 36))

    assert answers == [2 * n for n in range(36)]
    assert sum(call.sizes) == 36
    assert len(call.sizes) <= 5  # what was there at first, and the rest in tens
    assert max(call.sizes) <= 10


def test_an_error_reaches_only_the_caller_whose_item_it_was(courier: Courier):
    answers = asyncio.run(share(courier, Doubling(ValueError("unlucky")), 30))

    assert [n for n, answer in enumerate(answers) if isinstance(answer, ValueError)] == [13]
    assert [answer for n, answer in enumerate(answers) if n != 13] == [2 * n for n in range(30) if n != 13]


def test_a_storage_that_does_not_answer_is_not_asked_for_each(courier: Courier):
    call = Doubling(StorageUnavailable("the disk is away"))

    answers = asyncio.run(share(courier, call, 30))

    assert isinstance(answers[13], StorageUnavailable)
    assert len(call.sizes) <= 4


def test_calls_of_different_kinds_do_not_mix(courier: Courier):
    first, second = Doubling(), Doubling()

    async def ask() -> list[int | BaseException]:
        both = asyncio.gather(share(courier, first, 5), share(courier, second, 5))
        return [answer for answers in await both for answer in answers]

    assert asyncio.run(ask()) == [0, 2, 4, 6, 8] * 2
    assert sum(first.sizes) == sum(second.sizes) == 5


def test_a_cancelled_caller_disturbs_nobody(courier: Courier):
    call = Doubling()

    async def ask() -> int:
        given_up, other = courier.share(call, 1), courier.share(call, 2)
        given_up.cancel()
        call.all_there.set()
        return await other

    assert asyncio.run(ask()) == 4


def test_a_loop_that_is_gone_disturbs_nobody(courier: Courier):
    gate = threading.Event()

    async def leave() -> None:
        courier.call(gate.wait)  # type: ignore[unused-awaitable]

    async def ask() -> int:
        return await courier.call(int, "7")

    asyncio.run(leave())
    gate.set()

    assert asyncio.run(ask()) == 7


def test_two_loops_each_get_their_answers(courier: Courier):
    call = Doubling()
    call.all_there.set()
    answers: dict[int, list[int | BaseException]] = {}

    def ask(name: int) -> None:
        answers[name] = asyncio.run(share(courier, call, 50))

    threads = [threading.Thread(target=ask, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert answers == {name: [2 * n for n in range(50)] for name in range(3)}


def test_close_finishes_what_was_handed_in_and_ends_the_thread(courier: Courier):
    before = courier_threads()

    async def ask() -> list[int]:
        futures = [courier.call(int, str(n)) for n in range(5)]
        courier.close()
        return await asyncio.gather(*futures)

    assert asyncio.run(ask()) == [0, 1, 2, 3, 4]
    assert set(courier_threads()) <= set(before)


def test_a_closed_courier_starts_again(courier: Courier):
    async def ask() -> int:
        return await courier.call(int, "7")

    courier.close()
    asyncio.run(ask())
    courier.close()

    assert asyncio.run(ask()) == 7


def test_a_forgotten_courier_ends_its_thread():
    courier = Courier(limit=10)
    before = courier_threads()

    async def ask(courier: Courier) -> int:
        return await courier.call(int, "7")

    asyncio.run(ask(courier))
    (thread,) = set(courier_threads()) - set(before)
    del courier
    gc.collect()
    thread.join(timeout=PATIENCE)

    assert not thread.is_alive()


def test_only_coroutines_may_call(courier: Courier):
    with pytest.raises(RuntimeError, match="no running event loop"):
        courier.call(int, "7")  # type: ignore[unused-awaitable]


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
