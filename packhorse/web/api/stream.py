"""The live stream: server-sent events from a sampler, which reads the storage once a second for all viewers.

It reads less often when a read is slow, and not at all without viewers. Every few samples it also measures the latency
of the storage. Viewers subscribe to topics: `overview` for the totals at the top of every page, `job:ID` for one job.
The sampler sends only changes, and encodes each once for all viewers. It keeps the latest events, so that a viewer who
lost the connection can resume.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, NamedTuple

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from packhorse.core.errors import BadValue, PackhorseError, TooBusy
from packhorse.core.job import HELD, Job
from packhorse.core.version import __version__
from packhorse.monitor.serializers import iso
from packhorse.web.api.problem import problem_of
from packhorse.web.api.stats import totals_for
from packhorse.web.context import Call
from packhorse.web.security.operator import Operator, Role

EVERY = 1.0
PING = 15.0  # seconds between keep-alive comments
MOST_VIEWERS = 100
_RING = 1_000
_BACKLOG = 100
_MOST_TOPICS = 50  # of all tabs of one browser; stream_worker.js has the same number
_HEALTH_EVERY = 10  # samples
_REST = 10  # times the duration of a sample: samples take at most a tenth of a core, or of the storage
_LONGEST_REST = 5.0
_SERVER_EVERY = 0.25  # seconds between two checks whether the server is stopping
_STILL_HERE = b": still here\n\n"


class TopicKey(NamedTuple):
    """A topic as operators of these queues see it."""

    topic: str
    queues: frozenset[str]


class Update(NamedTuple):
    """The name and the data of an event. `last_line` is the id of the last line of the job's log."""

    name: str
    data: bytes
    last_line: int = 0


class SentEvent(NamedTuple):
    """One event; `text` is the bytes that each viewer receives."""

    number: int
    key: TopicKey
    found: Update
    text: bytes


class Viewer:
    """One open stream. `queue` holds the encoded events to send; None ends the stream. `is_over` returns whether the
    server of this stream is stopping."""

    def __init__(self, keys: frozenset[TopicKey], is_over: Callable[[], bool]) -> None:
        self.keys = keys
        self.is_over = is_over
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue(_BACKLOG)

    def put(self, text: bytes | None) -> None:
        if self.queue.full():  # a slow viewer misses old events: only the newest numbers matter
            self.queue.get_nowait()
        self.queue.put_nowait(text)

    async def take(self) -> bytes | None:
        """Wait for events and return all that are queued; None once the stream is over."""
        texts = [await self.queue.get()]
        while not self.queue.empty():
            texts.append(self.queue.get_nowait())
        return None if None in texts else b"".join(filter(None, texts))


class Sampler:
    """Samples the storage for all viewers of one server. `call` makes a call for an operator."""

    def __init__(self, call: Callable[[Operator], Call], every: float = EVERY) -> None:
        self._call = call
        self._every = every
        self._epoch = secrets.token_hex(4)  # event numbers of another process do not apply here
        self._number = 0
        self._viewers: set[Viewer] = set()
        self._ring: deque[SentEvent] = deque(maxlen=_RING)
        self._latest: dict[TopicKey, SentEvent] = {}
        self._task: asyncio.Task[None] | None = None
        self.samples = 0

    # --- viewers --------------------------------------------------------------------------------------------------

    def join(
        self,
        operator: Operator,
        topics: list[str],
        last_id: str | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Viewer:
        """Add a viewer. It first receives the current state, or the events that it missed since `last_id`."""
        if len(self._viewers) >= MOST_VIEWERS:
            raise TooBusy(f"{MOST_VIEWERS} viewers watch already", hint="close a tab, or look without watching")
        viewer = Viewer(
            frozenset(TopicKey(_checked(topic), operator.queues) for topic in topics[:_MOST_TOPICS]), is_over
        )
        for sent in self._missed(viewer.keys, last_id):
            viewer.put(sent.text)
        self._viewers.add(viewer)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        return viewer

    @property
    def viewer_count(self) -> int:
        """How many viewers there are now."""
        return len(self._viewers)

    def leave(self, viewer: Viewer) -> None:
        """Remove a viewer."""
        self._viewers.discard(viewer)

    def close(self) -> None:
        """End every stream, because the server stops."""
        for viewer in self._viewers:
            viewer.put(None)
        self._viewers.clear()

    def _missed(self, keys: frozenset[TopicKey], last_id: str | None) -> list[SentEvent]:
        epoch, _, number = (last_id or "").partition("-")
        last = int(number) if re.fullmatch("[0-9]{1,18}", number) else None
        if epoch == self._epoch and last is not None and self._ring and last >= self._ring[0].number - 1:
            return [sent for sent in self._ring if sent.number > last and sent.key in keys]
        return sorted((self._latest[key] for key in keys if key in self._latest), key=lambda sent: sent.number)

    # --- sampling -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        # As separate tasks, because the storage may block a sample for long.
        others = [asyncio.create_task(each) for each in (self._ping(), self._end_with_server())]
        try:
            await self._sample_loop()
        finally:
            for task in others:
                task.cancel()
        self._latest.clear()  # the next viewer must not see old numbers

    async def _sample_loop(self) -> None:
        while self._viewers:
            keys = frozenset().union(*(viewer.keys for viewer in self._viewers))
            began_at = time.monotonic()
            try:
                found = await run_in_threadpool(self._sample, keys)
            except PackhorseError as error:
                found = dict.fromkeys(keys, Update("trouble", msgspec.json.encode(problem_of(error))))
            self.samples += 1
            for key, each in found.items():
                self._publish(key, each)
            await asyncio.sleep(self._rest(time.monotonic() - began_at))

    def _rest(self, took: float) -> float:
        """The pause after a sample that took `took` seconds."""
        return max(self._every, min(_REST * took, _LONGEST_REST))

    def _sample(self, keys: frozenset[TopicKey]) -> dict[TopicKey, Update]:
        if self.samples % _HEALTH_EVERY == 0:
            self._call(Operator("viewer", Role.VIEW)).web.cache.health()
        jobs = self._jobs(key.topic.removeprefix("job:") for key in keys if key.topic != "overview")
        return {
            key: self._overview(key) if key.topic == "overview" else self._job(key, jobs.get(key.topic[4:]))
            for key in keys
        }

    def _jobs(self, ids: Iterable[str]) -> dict[str, Job]:
        """All watched jobs, by one storage call."""
        wanted = sorted({*ids})
        storage = self._call(Operator("viewer", Role.VIEW)).web.storage
        return {job.id: job for job in storage.get_many(wanted)} if wanted else {}

    def _overview(self, key: TopicKey) -> Update:
        reader = self._call(Operator("viewer", Role.VIEW, key.queues)).reader
        return Update("overview", msgspec.json.encode(totals_for(reader)))

    def _job(self, key: TopicKey, job: Job | None) -> Update:
        call, before = self._call(Operator("viewer", Role.VIEW, key.queues)), self._latest.get(key)
        if job is None or not call.operator.sees(job.queue):
            return Update("job", msgspec.json.encode({"id": key.topic.removeprefix("job:"), "state": None}))
        facts, last_line = _facts(call.reader.shown(job)), before.found.last_line if before else 0
        same = Update("job", msgspec.json.encode({**facts, "last_line": last_line}), last_line)
        if before is not None and same == before.found and job.state not in HELD:
            return same  # only a held job writes log lines
        lines = call.web.storage.log_lines(job.id, after=last_line, limit=1_000)
        if not lines:
            return same
        return Update("job", msgspec.json.encode({**facts, "last_line": lines[-1].id}), lines[-1].id)

    def _publish(self, key: TopicKey, found: Update) -> None:
        before = self._latest.get(key)
        if before is not None and before.found == found:
            return
        self._number += 1
        text = f"id: {self._epoch}-{self._number}\nevent: {found.name}\ndata: ".encode() + found.data + b"\n\n"
        sent = self._latest[key] = SentEvent(self._number, key, found, text)
        self._ring.append(sent)
        for viewer in self._viewers:
            if key in viewer.keys:
                viewer.put(sent.text)

    async def _end_with_server(self) -> None:
        """End the streams of a server that is stopping, because it waits for them."""
        while True:
            await asyncio.sleep(_SERVER_EVERY)
            for viewer in [viewer for viewer in self._viewers if viewer.is_over()]:
                viewer.put(None)
                self.leave(viewer)

    async def _ping(self) -> None:
        """Keep all streams alive with a regular comment, by one timer for all."""
        while True:
            await asyncio.sleep(PING)
            for viewer in self._viewers:
                viewer.put(_STILL_HERE)


def _checked(topic: str) -> str:
    is_job = topic.startswith("job:") and 4 < len(topic) < 200 and topic.isprintable()
    if topic != "overview" and not is_job:
        raise BadValue(f"there is no topic {topic[:40]!r}", hint="topics are overview and job:ID")
    return topic


def _facts(job: Job) -> dict[str, Any]:
    return {
        **{name: getattr(job, name) for name in ("id", "state", "progress", "progress_text", "checkin")},
        **{name: getattr(job, name) for name in ("attempts", "failures", "halts")},
        **{name: iso(getattr(job, name)) for name in ("updated_at", "abort_at", "checkin_at")},
    }


_RETRY = 3_000  # milliseconds after which a browser reconnects


async def stream(request: Request, sampler: Sampler) -> Response:
    """Respond to `GET /stream?topics=overview,job:ID`."""
    topics = [topic for topic in request.query_params.get("topics", "overview").split(",") if topic]
    last_id = request.headers.get("last-event-id") or request.query_params.get("last_event_id")
    is_over = request.state.server_state.is_ending
    viewer = sampler.join(request.state.operator, topics or ["overview"], last_id, is_over)
    headers = {"x-accel-buffering": "no"}
    return StreamingResponse(_events(sampler, viewer), media_type="text/event-stream", headers=headers)


async def _events(sampler: Sampler, viewer: Viewer) -> AsyncIterator[bytes]:
    try:
        yield f"retry: {_RETRY}\nevent: hello\ndata: {_hello()}\n\n".encode()
        while (texts := await viewer.take()) is not None:
            yield texts
    finally:
        sampler.leave(viewer)


def _hello() -> str:
    return msgspec.json.encode({"version": __version__}).decode()
