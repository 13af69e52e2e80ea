"""The async bridge: one thread that calls the synchronous storage for coroutines.

`aenqueue` and the other async methods submit a call and await a future. Calls that can share a write do: the thread
takes all that have gathered since its last trip, so a thousand concurrent `aenqueue` cost a few commits. An error
reaches only the caller whose call it was. There is no thread before the first call, and a forked child starts its own.
"""

from __future__ import annotations

import contextvars
import functools
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from packhorse.core.errors import StorageUnavailable

if TYPE_CHECKING:  # importing asyncio is slow; callers in coroutines have it already
    import asyncio

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")

Batched = Callable[[list[Item]], Sequence[T]]
"""A call that takes the items of many callers and returns a value for each, in order."""


class _Request(NamedTuple):
    """One caller's call: its own, or its `item` in a shared one."""

    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    function: Callable[..., Any]
    item: Any
    is_shared: bool


class _Reply(NamedTuple):
    request: _Request
    value: Any = None
    error: Exception | None = None


_Requests = SimpleQueue[_Request | None]  # None ends the thread


class AsyncBridge:
    """Carries calls to its thread; at most `limit` items share one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reset()
        _bridges.add(self)

    def _reset(self) -> None:
        """Start without a thread; in a forked child the parent's does not exist."""
        self._lock = threading.Lock()
        self._requests: _Requests = SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Call `function(*args, **kwargs)` in the thread, with the caller's context variables: it may run code of the
        user, such as enqueue middleware."""
        context = contextvars.copy_context()
        return self._submit(functools.partial(context.run, function, *args, **kwargs), None, is_shared=False)

    def share(self, function: Batched[Item, T], item: Item) -> asyncio.Future[T]:
        """The value for `item` from `function([item, …])`, one call for several callers."""
        return self._submit(function, item, is_shared=True)

    def close(self) -> None:
        """Finish the submitted calls and end the thread. A later call starts another."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._requests.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    def _submit(self, function: Callable[..., Any], item: Any, *, is_shared: bool) -> asyncio.Future[Any]:
        from asyncio import get_running_loop

        loop = get_running_loop()
        request = _Request(loop.create_future(), loop, function, item, is_shared)
        with self._lock:
            if self._thread is None:
                self._thread = self._start_thread()
            self._requests.put(request)
        return request.future

    def _start_thread(self) -> threading.Thread:
        self._requests = SimpleQueue()
        # The thread refers to the queue, not to the bridge: an app that is dropped without `close` ends it too.
        weakref.finalize(self, self._requests.put, None)
        args = (self._requests, self._limit)
        thread = threading.Thread(target=_run, args=args, name="packhorse-async-bridge", daemon=True)
        thread.start()
        return thread


_bridges: weakref.WeakSet[AsyncBridge] = weakref.WeakSet()


def _reset_after_fork() -> None:
    for bridge in list(_bridges):
        bridge._reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


# --- the thread -------------------------------------------------------------------------------------------------------


def _run(requests: _Requests, limit: int) -> None:
    while _run_once(requests, limit):
        pass


def _run_once(requests: _Requests, limit: int) -> bool:
    """One trip to the storage. A function of its own, so that the waiting thread keeps no reference to its calls."""
    gathered = _gather(requests)
    for group in _groups([request for request in gathered if request is not None], limit):
        _deliver(_replies(group))
    return None not in gathered


def _gather(requests: _Requests) -> list[_Request | None]:
    """Wait for a request, then take all that are there."""
    gathered = [requests.get()]
    with suppress(Empty):
        while True:
            gathered.append(requests.get_nowait())
    return gathered


def _groups(requests: list[_Request], limit: int) -> Iterator[list[_Request]]:
    """Requests that share a call, together; the others alone. In the order of the first request of each group."""
    shared: dict[Any, list[_Request]] = {}
    for request in requests:
        shared.setdefault(request.function if request.is_shared else id(request), []).append(request)
    for group in shared.values():
        for start in range(0, len(group), limit):
            yield group[start : start + limit]


def _replies(group: list[_Request]) -> list[_Reply]:
    first = group[0]
    try:
        if not first.is_shared:
            return [_Reply(first, first.function())]
        values = first.function([request.item for request in group])
        return [_Reply(request, value) for request, value in zip(group, values, strict=True)]
    except Exception as error:  # noqa: BLE001 - every error belongs to the caller
        if len(group) == 1 or isinstance(error, StorageUnavailable):  # one by one they would fail too, after long waits
            return [_Reply(request, error=error) for request in group]
    return [reply for request in group for reply in _replies([request])]


def _deliver(replies: list[_Reply]) -> None:
    loops = {reply.request.loop for reply in replies}
    for loop in loops:
        with suppress(RuntimeError):  # the loop is closed: no coroutine waits for the reply
            loop.call_soon_threadsafe(_settle, [reply for reply in replies if reply.request.loop is loop])


def _settle(replies: list[_Reply]) -> None:
    for (future, *_), value, error in replies:
        if future.done():
            continue  # its caller was cancelled
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


# --- async twins ------------------------------------------------------------------------------------------------------


class _HasBridge(Protocol):
    @property
    def _bridge(self) -> AsyncBridge: ...


Owner = TypeVar("Owner", bound=_HasBridge)


def async_twin(method: Callable[Concatenate[Owner, P], T]) -> Callable[Concatenate[Owner, P], Coroutine[Any, Any, T]]:
    """The async form of a method, which runs the method in the bridge's thread: `apause = async_twin(pause)`."""
    name = method.__name__

    @functools.wraps(method)
    async def twin(self: Owner, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await self._bridge.call(getattr(self, name), *args, **kwargs)
        return result

    twin.__name__, twin.__doc__ = f"a{name}", f"`{name}`, for coroutines."
    return twin
