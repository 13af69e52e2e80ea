"""The courier: one thread that carries the calls of coroutines to the storage and their answers back.

The storage is synchronous; `aenqueue` and its kin hand their call in here and await a future. Calls that can share a
write do: whatever has gathered while the thread was away goes in one, so a thousand concurrent `aenqueue` cost a few
commits. A failure reaches only the caller whose call it was. There is no thread until the first call, and a forked
child starts its own.
"""

from __future__ import annotations

import contextvars
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from packhorse.core.errors import StorageUnavailable

if TYPE_CHECKING:  # asyncio would make importing Packhorse slower; who calls from a coroutine has it already
    import asyncio

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")

Batched = Callable[[list[Item]], Sequence[T]]
"""A call that takes many callers' items at once and answers each, in order."""


class _Request(NamedTuple):
    """One caller's call, of its own or with its `item` of a shared one."""

    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    function: Callable[..., Any]
    item: Any
    is_shared: bool


class _Answer(NamedTuple):
    request: _Request
    value: Any = None
    error: Exception | None = None


_Requests = SimpleQueue[_Request | None]  # None: no more will come


class Courier:
    """Carries calls; `limit` is the most items that may share one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._part_ways()
        _couriers.add(self)

    def _part_ways(self) -> None:
        """Begin without a thread; also in a forked child, where the parent's is not."""
        self._lock = threading.Lock()
        self._requests: _Requests = SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """The answer to `function(*args, **kwargs)`, called in the courier's thread with the caller's context
        variables: there may be code of the user's in it, such as enqueue middleware."""
        here = contextvars.copy_context()
        return self._hand_in(functools.partial(here.run, function, *args, **kwargs), None, is_shared=False)

    def share(self, function: Batched[Item, T], item: Item) -> asyncio.Future[T]:
        """The answer for `item` among those of `function([item, …])`, which other callers' items share."""
        return self._hand_in(function, item, is_shared=True)

    def close(self) -> None:
        """Finish what was handed in, and end the thread. A later call starts another."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._requests.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    def _hand_in(self, function: Callable[..., Any], item: Any, *, is_shared: bool) -> asyncio.Future[Any]:
        from asyncio import get_running_loop

        loop = get_running_loop()
        request = _Request(loop.create_future(), loop, function, item, is_shared)
        with self._lock:
            if self._thread is None:
                self._thread = self._started()
            self._requests.put(request)
        return request.future

    def _started(self) -> threading.Thread:
        self._requests = SimpleQueue()
        # The thread knows the line, not the courier: an app that is forgotten without `close` ends it too.
        weakref.finalize(self, self._requests.put, None)
        args = (self._requests, self._limit)
        thread = threading.Thread(target=_carry, args=args, name="packhorse-courier", daemon=True)
        thread.start()
        return thread


_couriers: weakref.WeakSet[Courier] = weakref.WeakSet()


def _part_ways() -> None:
    for courier in list(_couriers):
        courier._part_ways()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_part_ways)


def _carry(requests: _Requests, limit: int) -> None:
    while _carry_once(requests, limit):
        pass


def _carry_once(requests: _Requests, limit: int) -> bool:
    """One way to the storage and back. A function of its own, so that nothing of it is held while the thread waits."""
    gathered = _gather(requests)
    for group in _groups([request for request in gathered if request is not None], limit):
        _deliver(_answers(group))
    return None not in gathered


def _gather(requests: _Requests) -> list[_Request | None]:
    """Wait for a request, then take all that are there."""
    gathered = [requests.get()]
    with suppress(Empty):
        while True:
            gathered.append(requests.get_nowait())
    return gathered


def _groups(requests: list[_Request], limit: int) -> Iterator[list[_Request]]:
    """Requests that may share a call, together; the others alone. In the order in which the first of each came."""
    shared: dict[Any, list[_Request]] = {}
    for request in requests:
        shared.setdefault(request.function if request.is_shared else id(request), []).append(request)
    for group in shared.values():
        for start in range(0, len(group), limit):
            yield group[start : start + limit]


def _answers(group: list[_Request]) -> list[_Answer]:
    first = group[0]
    try:
        if not first.is_shared:
            return [_Answer(first, first.function())]
        values = first.function([request.item for request in group])
        return [_Answer(request, value) for request, value in zip(group, values, strict=True)]
    except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the caller
        if len(group) == 1 or isinstance(error, StorageUnavailable):  # then each alone would fail, after a long wait
            return [_Answer(request, error=error) for request in group]
    return [answer for request in group for answer in _answers([request])]


def _deliver(answers: list[_Answer]) -> None:
    loops = {answer.request.loop for answer in answers}
    for loop in loops:
        with suppress(RuntimeError):  # the loop was closed: nobody waits for the answer any more
            loop.call_soon_threadsafe(_settle, [answer for answer in answers if answer.request.loop is loop])


def _settle(answers: list[_Answer]) -> None:
    for (future, *_), value, error in answers:
        if future.done():
            continue  # its caller was cancelled
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
