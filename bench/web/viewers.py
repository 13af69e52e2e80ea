"""Viewers: threads that request what the scripts of an open page request. They discard the answers, so that they cost
little themselves."""

from __future__ import annotations

import http.client
import re
import threading
import time
from typing import NamedTuple
from urllib.parse import urlencode

SOON, SLOW = 3.0, 15.0  # seconds, as in live.js: a page fetches its tables after the first, its charts after the second
_ROW = re.compile(rb'data-row="([^"]+)"')
_TOPICS = re.compile(rb'data-topics="([^"]+)"')
_LAST_LINE = re.compile(rb'"last_line":(\d+)')  # the last field
_SETTLED = 10.0  # seconds until each viewer has its page

# The pages of twenty viewers. `{job}` is the id of a running job.
PATHS = (
    *("/", "/jobs", "/", "/jobs?state=dead", "/", "/queues", "/", "/workers", "/", "/jobs/{job}"),
    *("/", "/failures", "/", "/jobs?q=queue%3Amail+task%3Atask_03", "/", "/jobs/{job}", "/tasks", "/jobs?state=queued"),
    *("/queues/mail", "/jobs"),
)


class StreamEvent(NamedTuple):
    """One event of the stream."""

    name: bytes
    number: str
    data: bytes


class Viewers:
    """A number of concurrent viewers. Entering the context waits until all have their page."""

    def __init__(self, host: str, port: int, number: int, job_id: str) -> None:
        paths = [PATHS[place % len(PATHS)].format(job=job_id) for place in range(number)]
        self._leave = threading.Event()
        self._viewers = [Viewer(host, port, path, self._leave) for path in paths]

    def __enter__(self) -> Viewers:
        for viewer in self._viewers:
            viewer.start()
        until = time.monotonic() + _SETTLED
        for viewer in self._viewers:
            viewer.has_page.wait(max(0.0, until - time.monotonic()))
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        for viewer in self._viewers:
            viewer.join(30)

    @property
    def requests(self) -> int:
        """Requests for pages and logs so far."""
        return sum(viewer.requests for viewer in self._viewers)


class Viewer(threading.Thread):
    """One page in one browser."""

    def __init__(self, host: str, port: int, path: str, leave: threading.Event) -> None:
        super().__init__(daemon=True)
        self._stream = http.client.HTTPConnection(host, port, timeout=30)
        self._pages = http.client.HTTPConnection(host, port, timeout=30)
        self._path = path
        self._leave = leave
        self._last_line = b"0"
        self.has_page = threading.Event()
        self.requests = 0

    def run(self) -> None:
        page = self._ask(self._path)
        path, topics = self._path, _TOPICS.search(page)
        if b"data-list" in page:  # the rows that the page shows
            rows = ",".join(row.decode() for row in _ROW.findall(page))
            path += f"{'&' if '?' in path else '?'}{urlencode({'shown': rows})}"
        self._stream.request("GET", f"/api/v1/stream?{urlencode({'topics': topics[1].decode() if topics else ''})}")
        answer = self._stream.getresponse()
        self.has_page.set()
        try:
            self._watch(answer, path)
        finally:
            self._stream.close()
            self._pages.close()

    def _watch(self, answer: http.client.HTTPResponse, path: str) -> None:
        next_at, slow_at, latest = _after(SOON), _after(SLOW), b""
        while not self._leave.is_set():
            event = _next(answer)
            if event.name == b"job":
                self._follow(event)
                known, latest = latest, _LAST_LINE.sub(b"", event.data)
                if latest == known:
                    continue  # only lines of the log are new
                next_at = 0.0
            now = time.time()
            if now < next_at or event.name not in (b"job", b"overview"):
                continue
            slow_too = now >= slow_at
            next_at, slow_at = _after(SOON), _after(SLOW) if slow_too else slow_at
            self._ask(path, **{"X-Packhorse": "live" if slow_too else "quick", "Last-Event-ID": event.number})

    def _follow(self, event: StreamEvent) -> None:
        """Fetch the new lines of a job's log."""
        found = _LAST_LINE.search(event.data)
        if found and int(found[1]) > int(self._last_line):
            self._ask(f"/api/v1{self._path}/log?after={self._last_line.decode()}")
            self._last_line = found[1]

    def _ask(self, path: str, **headers: str) -> bytes:
        self.requests += 1
        try:
            self._pages.request("GET", path, headers=headers)
            return self._pages.getresponse().read()
        except http.client.RemoteDisconnected:  # the server closed an idle connection: connect again, as a browser does
            self._pages.close()
            self._pages.request("GET", path, headers=headers)
            return self._pages.getresponse().read()


def _after(seconds: float) -> float:
    """The next time at which all pages with this interval fetch."""
    return (time.time() // seconds + 1) * seconds


def _next(answer: http.client.HTTPResponse) -> StreamEvent:
    """The next event; a comment has no name."""
    fields = {b"event": b"", b"id": b"", b"data": b""}
    while (line := answer.readline().rstrip(b"\n")) != b"":
        name, _, value = line.partition(b": ")
        fields[name] = value
    return StreamEvent(fields[b"event"], fields[b"id"].decode(), fields[b"data"])
