"""The producer of a contender, run in its environment: `python -m bench.producer MODULE WHAT NUMBERS…` prints JSON.

Called by `bench.contender`. It imports only the standard library and the contender's module, so that the same loops
enqueue for everyone. It awaits coroutine functions one after the other, as it calls plain functions.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Any, cast

from bench.peers import Peer

_BULK = 1_000
_TICK_SECONDS = 0.01

Call = Callable[[Any], Awaitable[object]]


class Producer:
    """Enqueues jobs of one peer. Each method returns what the harness measures."""

    def __init__(self, peer: Peer) -> None:
        many = getattr(peer, "enqueue_many", None)
        self._enqueue = _awaitable(peer.enqueue)
        self._enqueue_nap = _awaitable(peer.enqueue_nap)
        self._enqueue_many = _awaitable(many) if many else None

    async def single(self, number: float) -> dict[str, float]:
        """Enqueue one by one; return jobs per second. The first call opens connections and is not timed."""
        await self._enqueue(0.0)
        began = time.perf_counter()
        for n in range(1, int(number)):
            await self._enqueue(float(n))
        return {"rate": (number - 1) / (time.perf_counter() - began)}

    async def many(self, number: float) -> dict[str, float]:
        """The same, a thousand per call if the peer has such a call."""
        if self._enqueue_many is None:
            return await self.single(number)
        await self._enqueue(0.0)
        began = time.perf_counter()
        for first in range(1, int(number), _BULK):
            await self._enqueue_many([float(n) for n in range(first, min(first + _BULK, int(number)))])
        return {"rate": (number - 1) / (time.perf_counter() - began)}

    async def naps(self, number: float) -> dict[str, float]:
        """Enqueue the sleeping job."""
        for n in range(int(number)):
            await self._enqueue_nap(float(n))
        return {}

    async def paced(self, rate: float, seconds: float) -> dict[str, float]:
        """Enqueue at a steady rate, each job with the current time as its argument; return the rate achieved.

        Gaps vary, so that jobs do not fall into step with a poller. Above a hundred per second, all jobs that are due
        go out together every ten milliseconds, in one call if the peer has one.
        """
        gap = max(1 / rate, _TICK_SECONDS)
        began, sent = time.monotonic(), 0
        while (elapsed := time.monotonic() - began) < seconds:
            due = 1 if gap > _TICK_SECONDS else int(rate * elapsed) - sent
            if due > 0:
                await self._send_now(due)
            sent += due
            await asyncio.sleep(gap * random.uniform(0.5, 1.5))
        return {"sent": sent, "rate": sent / (time.monotonic() - began)}

    async def _send_now(self, number: int) -> None:
        if number > 1 and self._enqueue_many is not None:
            await self._enqueue_many([time.monotonic()] * number)
        else:
            for _ in range(number):
                await self._enqueue(time.monotonic())


def _awaitable(call: Callable[[Any], object]) -> Call:
    """The call as a coroutine function. Awaiting one that never blocks costs a tenth of a microsecond."""
    if inspect.iscoroutinefunction(call):
        return call

    async def calling(argument: Any) -> object:
        return call(argument)

    return calling


async def feed(peer: Peer, what: str, numbers: Sequence[float]) -> object:
    if what == "work":
        return peer.work(int(numbers[0]))
    if what == "prepare":
        return await cast(Any, peer).prepare()
    async with getattr(peer, "opened", nullcontext)():
        return await getattr(Producer(peer), what)(*numbers)


def main() -> None:
    module, what, *numbers = sys.argv[1:]
    peer = cast(Peer, importlib.import_module(module))
    print(json.dumps(asyncio.run(feed(peer, what, [float(number) for number in numbers]))))


if __name__ == "__main__":
    main()
