"""The sampler: one look at the storage each second for all who watch, and none when nobody does. Now and then it also
looks how quickly the storage answers.

Viewers name topics: `overview` for the numbers that lead every page, `job:ID` for one job. What has not changed is not
sent again. The latest events are kept for a while, so that a viewer who was cut off can go on where it was.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from starlette.concurrency import run_in_threadpool

from packhorse.errors import BadValue, PackhorseError, TooBusy
from packhorse.fields import iso
from packhorse.job import Job
from packhorse.web.api.problem import problem_of
from packhorse.web.api.totals import totals_for
from packhorse.web.security.operator import Operator, Role
from packhorse.web.site import Call

EVERY = 1.0
MOST_VIEWERS = 100
_RING = 1_000
_BACKLOG = 100
_MOST_TOPICS = 10
_FEEL_EVERY = 10  # looks


class Key(NamedTuple):
    """What is looked at: a topic, as those see it whom only these queues concern."""

    topic: str
    queues: frozenset[str]


class Sent(NamedTuple):
    """One event, as it is sent."""

    number: int
    key: Key
    name: str
    data: bytes


class Viewer:
    """Somebody who watches; takes events from its queue. None means the end."""

    def __init__(self, keys: frozenset[Key]) -> None:
        self.keys = keys
        self.queue: asyncio.Queue[Sent | None] = asyncio.Queue(_BACKLOG)

    def put(self, sent: Sent | None) -> None:
        if self.queue.full():  # a slow one misses what is old: the newest numbers are what matters
            self.queue.get_nowait()
        self.queue.put_nowait(sent)


class Sampler:
    """Looks for all viewers of one server. `call` makes a call in the name of an operator."""

    def __init__(self, call: Callable[[Operator], Call], every: float = EVERY) -> None:
        self._call = call
        self._every = every
        self._epoch = secrets.token_hex(4)  # numbers of another process mean nothing here
        self._number = 0
        self._viewers: set[Viewer] = set()
        self._ring: deque[Sent] = deque(maxlen=_RING)
        self._latest: dict[Key, Sent] = {}
        self._task: asyncio.Task[None] | None = None
        self.samples = 0

    # --- viewers --------------------------------------------------------------------------------------------------

    def join(self, operator: Operator, topics: list[str], last_id: str | None = None) -> Viewer:
        """Begin to watch. The present state comes first, or what was missed since the event `last_id`."""
        if len(self._viewers) >= MOST_VIEWERS:
            raise TooBusy(f"{MOST_VIEWERS} viewers watch already", hint="close a tab, or look without watching")
        viewer = Viewer(frozenset(Key(_checked(topic), operator.queues) for topic in topics[:_MOST_TOPICS]))
        for sent in self._missed(viewer.keys, last_id):
            viewer.put(sent)
        self._viewers.add(viewer)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Watch no more."""
        self._viewers.discard(viewer)

    def close(self) -> None:
        """The server ends: so does every stream."""
        for viewer in self._viewers:
            viewer.put(None)
        self._viewers.clear()

    def event_id(self, sent: Sent) -> str:
        return f"{self._epoch}-{sent.number}"

    def _missed(self, keys: frozenset[Key], last_id: str | None) -> list[Sent]:
        epoch, _, number = (last_id or "").partition("-")
        if epoch == self._epoch and number.isdigit() and self._ring and int(number) >= self._ring[0].number - 1:
            return [sent for sent in self._ring if sent.number > int(number) and sent.key in keys]
        return sorted((self._latest[key] for key in keys if key in self._latest), key=lambda sent: sent.number)

    # --- looking --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while self._viewers:
            keys = frozenset().union(*(viewer.keys for viewer in self._viewers))
            try:
                found = await run_in_threadpool(self._look, keys)
            except PackhorseError as error:
                found = dict.fromkeys(keys, ("trouble", msgspec.json.encode(problem_of(error))))
            self.samples += 1
            for key, (name, data) in found.items():
                self._publish(key, name, data)
            await asyncio.sleep(self._every)
        self._latest.clear()  # old numbers are not shown to the next one who comes

    def _look(self, keys: frozenset[Key]) -> dict[Key, tuple[str, bytes]]:
        if self.samples % _FEEL_EVERY == 0:
            self._call(Operator("viewer", Role.VIEW)).site.glance.health()
        return {key: (name, msgspec.json.encode(data)) for key in keys for name, data in [self._sample(key)]}

    def _sample(self, key: Key) -> tuple[str, Any]:
        call = self._call(Operator("viewer", Role.VIEW, key.queues))
        if key.topic == "overview":
            return "overview", totals_for(call.reader)
        job_id = key.topic.removeprefix("job:")
        try:
            job = call.reader.get(job_id)
        except PackhorseError:
            return "job", {"id": job_id, "state": None}
        lines = call.site.storage.log_lines(job_id, after=self._last_line(key), limit=1_000)
        return "job", {**_job(job), "last_line": lines[-1].id if lines else self._last_line(key)}

    def _last_line(self, key: Key) -> int:
        before = self._latest.get(key)
        return int(msgspec.json.decode(before.data).get("last_line", 0)) if before and before.name == "job" else 0

    def _publish(self, key: Key, name: str, data: bytes) -> None:
        before = self._latest.get(key)
        if before is not None and (before.name, before.data) == (name, data):
            return
        self._number += 1
        sent = self._latest[key] = Sent(self._number, key, name, data)
        self._ring.append(sent)
        for viewer in self._viewers:
            if key in viewer.keys:
                viewer.put(sent)


def _checked(topic: str) -> str:
    if topic != "overview" and not (topic.startswith("job:") and 4 < len(topic) < 200):
        raise BadValue(f"there is no topic {topic[:40]!r}", hint="topics are overview and job:ID")
    return topic


def _job(job: Job) -> dict[str, Any]:
    return {
        **{name: getattr(job, name) for name in ("id", "state", "progress", "progress_text", "checkin")},
        **{name: getattr(job, name) for name in ("attempts", "failures", "halts")},
        **{name: iso(getattr(job, name)) for name in ("updated_at", "abort_at", "checkin_at")},
    }
