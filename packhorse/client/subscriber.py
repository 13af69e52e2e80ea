"""Subscribers: clients that receive the outcomes of jobs.

`app.client(name)` makes one. It sends a heartbeat every few seconds. The storage forgets a client that is silent for
`client_timeout`, a day by default, together with its subscriptions; a client that comes back renews them. Outcomes are
kept and delivered at least once: an outcome comes again, to this process or the next one with the client's name, until
it is acknowledged.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from packhorse.client.app_state import AppState
from packhorse.client.async_bridge import AsyncBridge, async_twin
from packhorse.client.job import JobHandle
from packhorse.core.clock import SECOND, Duration, microseconds
from packhorse.core.context import refuse_to_wait
from packhorse.core.errors import BadValue, ClientNotFound, StorageError
from packhorse.core.event import Kind, Subject
from packhorse.core.ids import new_id
from packhorse.core.job import Job
from packhorse.core.task import check_name
from packhorse.storage import BATCH
from packhorse.storage.records import ClientInfo, EventFilter

Jobs = JobHandle[Any] | str | Iterable[JobHandle[Any] | str]
"""A job, its id, or several of them."""

_End = tuple[str, int, int | None]
"""One end of a job. A job that is retried ends again, which is another outcome."""

_PAGE = 100
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.5  # seconds between two reads of what has ended


class Client:
    """One subscriber. Processes that use the same name are one client, and share its outcomes."""

    def __init__(self, app: AppState, name: str | None = None) -> None:
        from socket import gethostname  # few programs need it

        self._app = app
        self._is_named = name is not None
        self.id = new_id() if name is None else check_name(name, "client name")
        info = {"host": gethostname(), "pid": os.getpid()}
        self._info = ClientInfo(self.id, name or "", info)
        self._pending: set[str] = set()  # jobs subscribed to here and not acknowledged
        self._timeout = app.settings.client_timeout / SECOND
        self._closed = threading.Event()
        is_known = not self._is_named or any(client.id == self.id for client in app.storage.clients())
        self._join()
        if not is_known:
            self._resubscribe_if_forgotten()
        threading.Thread(target=self._send_heartbeats, name=f"packhorse-client-{self.id}", daemon=True).start()

    def __repr__(self) -> str:
        return f"<Client {self.id}>"

    @property
    def _bridge(self) -> AsyncBridge:
        return self._app.bridge

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    def close(self) -> None:
        """Stop the heartbeats, and end the waiting for outcomes. A client with a name may come back within
        `client_timeout` and finds all that ended meanwhile; one without a name is removed immediately."""
        self._stop()
        if not self._is_named:
            with suppress(StorageError):  # it is forgotten after `client_timeout`
                self._app.storage.leave_client(self.id)

    def leave(self) -> None:
        """Close it for good: its subscriptions end, and the storage no longer keeps jobs for it."""
        self._stop()
        self._app.storage.leave_client(self.id)

    def _stop(self) -> None:
        self._closed.set()
        if self in self._app.closables:
            self._app.closables.remove(self)

    # --- subscribing ----------------------------------------------------------------------------------------------

    def subscribe(self, *jobs: Jobs) -> int:
        """Subscribe to these jobs, which are kept until their outcomes are acknowledged. Return how many of the jobs
        exist.

        A job may end and be removed before this call; `task.using(subscriber=client.id)` subscribes from the start.
        """
        found = 0
        for ids in _batches(_ids_of(jobs)):
            self._pending.update(ids)
            try:
                found += self._app.storage.subscribe(self.id, ids)
            except ClientNotFound:
                self._join()
                found += self._app.storage.subscribe(self.id, ids)
        return found

    def acknowledge(self, *jobs: Jobs) -> int:
        """Do not deliver these outcomes again. Return how many of them were kept for this client."""
        ids = _ids_of(jobs)
        handled = sum(self._app.storage.acknowledge(self.id, batch) for batch in _batches(ids))
        self._pending.difference_update(ids)
        return handled

    def outcomes(self, timeout: Duration | None = None, *, in_task: bool = False) -> Iterator[JobHandle[Any]]:
        """The jobs that have ended, the oldest first, each once; wait for more until the client is closed, or until
        none has come for `timeout`. Jobs that are not acknowledged come again with the next call. Inside a task it
        raises WaitRefused, as `job.wait` does, unless the timeout is 0.

        >>> for job in client.outcomes(timeout=0): client.acknowledge(job)
        """
        _refuse_to_wait(timeout, in_task)
        shown: set[_End] = set()
        pauses = _Pauses(timeout)
        while not self._closed.is_set():
            fresh = self._fresh(shown)
            yield from (JobHandle.of(self._app, job) for job in fresh)
            pause = pauses.after(bool(fresh))
            if pause is None:
                return
            self._closed.wait(pause)

    def handle(
        self, function: Callable[[JobHandle[Any]], Any], timeout: Duration | None = None, *, in_task: bool = False
    ) -> int:
        """Call `function` with each job that has ended, and acknowledge the job after the call; wait for more as
        `outcomes` does. An error ends it, and its job comes again. Return how many jobs were handled."""
        _check_callable(function)
        handled = 0
        for job in self.outcomes(timeout, in_task=in_task):
            function(job)
            self.acknowledge(job)
            handled += 1
        return handled

    def _fresh(self, shown: set[_End]) -> list[Job]:
        """The jobs that have ended and were not returned yet; updates `shown`."""
        # Jobs that are not acknowledged yet come first, so read beyond them.
        found = self._app.storage.outcomes_for(self.id, limit=min(len(shown) + _PAGE, BATCH))
        fresh = [job for job in found if _end_of(job) not in shown]
        shown.intersection_update(map(_end_of, found))
        shown.update(map(_end_of, fresh))
        return fresh

    # --- the same for coroutines ----------------------------------------------------------------------------------

    asubscribe = async_twin(subscribe)
    aacknowledge = async_twin(acknowledge)

    async def aoutcomes(
        self, timeout: Duration | None = None, *, in_task: bool = False
    ) -> AsyncIterator[JobHandle[Any]]:
        """`outcomes`, for coroutines: `async for job in client.aoutcomes()`."""
        from asyncio import sleep

        _refuse_to_wait(timeout, in_task)
        shown: set[_End] = set()
        pauses = _Pauses(timeout)
        while not self._closed.is_set():
            fresh = await self._bridge.call(self._fresh, shown)
            for job in fresh:
                yield JobHandle.of(self._app, job, for_coroutine=True)
            pause = pauses.after(bool(fresh))
            if pause is None:
                return
            await sleep(pause)

    async def ahandle(
        self,
        function: Callable[[JobHandle[Any]], Awaitable[Any]],
        timeout: Duration | None = None,
        *,
        in_task: bool = False,
    ) -> int:
        """`handle`, for coroutines; `function` is an `async def`."""
        _check_callable(function)
        handled = 0
        async for job in self.aoutcomes(timeout, in_task=in_task):
            await function(job)
            await self.aacknowledge(job)
            handled += 1
        return handled

    aclose = async_twin(close)
    aleave = async_twin(leave)

    # --- the heartbeat --------------------------------------------------------------------------------------------

    def _send_heartbeats(self) -> None:
        pause = min(self._app.settings.heartbeat / SECOND, self._timeout / 3)
        while not self._closed.wait(pause):
            try:
                self._beat()
            except StorageError as error:
                _warn("client %s cannot write its heartbeat: %s", self.id, error)

    def _beat(self) -> None:
        silent_for = _seconds() - self._seen_at
        self._join()
        if silent_for > self._timeout:
            self._resubscribe(list(self._pending))

    def _resubscribe_if_forgotten(self) -> None:
        """Renew the subscriptions of a client that timed out before, and log it."""
        about = EventFilter(subject=Subject.CLIENT, owner=self.id)
        latest = self._app.storage.events(about, limit=2, newest_first=True)
        if [event.kind for event in latest] == [Kind.JOINED, Kind.TIMED_OUT]:
            self._resubscribe((latest[1].data or {}).get("jobs", []))

    def _resubscribe(self, jobs: list[str]) -> None:
        found = self.subscribe(*jobs) if jobs else 0
        outcome = f"it subscribed again to {found} jobs, {len(jobs) - found} jobs are gone"
        _warn("client %s was silent for so long that the storage forgot it: %s", self.id, outcome)

    def _join(self) -> None:
        self._app.storage.join_client(self._info)
        self._seen_at = _seconds()


class _Pauses:
    """The seconds to sleep after each read: short at first, then longer, until none has come for `timeout`."""

    def __init__(self, timeout: Duration | None) -> None:
        self._timeout = None if timeout is None else microseconds(timeout, "timeout") / SECOND
        self._restart()

    def _restart(self) -> None:
        self._pause = _FIRST_PAUSE
        self._deadline = None if self._timeout is None else time.monotonic() + self._timeout

    def after(self, some_came: bool) -> float | None:
        """The seconds to sleep now, or None at the end."""
        if some_came:
            self._restart()
            return 0.0
        left = self._pause if self._deadline is None else self._deadline - time.monotonic()
        pause, self._pause = self._pause, min(self._pause * 1.5, _LONGEST_PAUSE)
        return min(pause, left) if left > 0 else None


def _refuse_to_wait(timeout: Duration | None, in_task: bool) -> None:
    if timeout is None or microseconds(timeout, "timeout") > 0:
        refuse_to_wait("the outcomes of other jobs", in_task)


def _end_of(job: Job) -> _End:
    return job.id, job.fence, job.finished_at


def _ids_of(jobs: Iterable[Jobs]) -> list[str]:
    ids: list[str] = []
    for job in jobs:
        if isinstance(job, JobHandle):
            ids.append(job.id)
        elif isinstance(job, str):
            ids.append(job)
        elif isinstance(job, Iterable):
            ids += _ids_of(job)
        else:
            raise BadValue(f"expected a job or its id, not {job!r}")
    return ids


def _check_callable(function: Any) -> None:
    """Check now: the first outcome may come tomorrow."""
    if not callable(function):
        raise BadValue(f"handle takes a function that is called with each job, not {function!r}")


def _batches(ids: list[str]) -> Iterator[list[str]]:
    return (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))


def _seconds() -> float:
    """Seconds by a clock that runs while the machine sleeps, where there is one."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def _warn(text: str, *facts: object) -> None:
    import logging  # slow to import, and programs that only enqueue do not need it

    logging.getLogger("packhorse.subscriber").warning(text, *facts)
