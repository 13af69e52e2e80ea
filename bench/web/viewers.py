"""Viewers: people with pages open, each of whom does what the scripts of a page do. The bench of watching has them come
and go. They read answers and throw them away, so that they themselves cost next to nothing."""

from __future__ import annotations

import http.client
import re
import threading
import time
from typing import NamedTuple
from urllib.parse import urlencode

SOON, SLOW = 3.0, 15.0  # seconds, as in live.js: after which a page asks for its tables again, and for its charts too
_ROW = re.compile(rb'data-row="([^"]+)"')
_TOPICS = re.compile(rb'data-topics="([^"]+)"')
_LAST_LINE = re.compile(rb'"last_line":(\d+)')  # it stands at the end
_SETTLED = 10.0  # seconds within which each has its page

# What twenty people look at: eight the overview, the others a list, a queue, a job that runs. `{job}` is its id.
PATHS = (
    *("/", "/jobs", "/", "/jobs?state=dead", "/", "/queues", "/", "/workers", "/", "/jobs/{job}"),
    *("/", "/failures", "/", "/jobs?q=queue%3Amail+task%3Atask_03", "/", "/jobs/{job}", "/tasks", "/jobs?state=queued"),
    *("/queues/mail", "/jobs"),
)


class Heard(NamedTuple):
    """One event of the stream."""

    name: bytes
    number: str
    data: bytes


class Viewers:
    """So many people who watch at the same time. A context manager; all have their page when it is entered."""

    def __init__(self, host: str, port: int, number: int, job_id: str) -> None:
        paths = [PATHS[place % len(PATHS)].format(job=job_id) for place in range(number)]
        self._leave = threading.Event()
        self._viewers = [Viewer(host, port, path, self._leave) for path in paths]

    def __enter__(self) -> Viewers:
        for viewer in self._viewers:
            viewer.start()
        until = time.monotonic() + _SETTLED
        for viewer in self._viewers:
            viewer.has_come.wait(max(0.0, until - time.monotonic()))
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        for viewer in self._viewers:
            viewer.join(30)

    @property
    def asked(self) -> int:
        """How many pages and logs they have asked for by now."""
        return sum(viewer.asked for viewer in self._viewers)


class Viewer(threading.Thread):
    """One page in one browser."""

    def __init__(self, host: str, port: int, path: str, leave: threading.Event) -> None:
        super().__init__(daemon=True)
        self._stream = http.client.HTTPConnection(host, port, timeout=30)
        self._pages = http.client.HTTPConnection(host, port, timeout=30)
        self._path = path
        self._leave = leave
        self._last_line = b"0"
        self.has_come = threading.Event()
        self.asked = 0

    def run(self) -> None:
        page = self._ask(self._path)
        path, topics = self._path, _TOPICS.search(page)
        if b"data-list" in page:  # the very rows that are before the reader
            rows = ",".join(row.decode() for row in _ROW.findall(page))
            path += f"{'&' if '?' in path else '?'}{urlencode({'shown': rows})}"
        self._stream.request("GET", f"/api/v1/stream?{urlencode({'topics': topics[1].decode() if topics else ''})}")
        answer = self._stream.getresponse()
        self.has_come.set()
        try:
            self._watch(answer, path)
        finally:
            self._stream.close()
            self._pages.close()

    def _watch(self, answer: http.client.HTTPResponse, path: str) -> None:
        next_at, slow_at, latest = _after(SOON), _after(SLOW), b""
        while not self._leave.is_set():
            heard = _next(answer)
            if heard.name == b"job":
                self._follow(heard)
                known, latest = latest, _LAST_LINE.sub(b"", heard.data)
                if latest == known:
                    continue  # its page has nothing new but lines of the log
                next_at = 0.0
            now = time.time()
            if now < next_at or heard.name not in (b"job", b"overview"):
                continue
            slow_too = now >= slow_at
            next_at, slow_at = _after(SOON), _after(SLOW) if slow_too else slow_at
            self._ask(path, **{"X-Packhorse": "live" if slow_too else "quick", "Last-Event-ID": heard.number})

    def _follow(self, heard: Heard) -> None:
        """Fetch the new lines of a job's log."""
        found = _LAST_LINE.search(heard.data)
        if found and int(found[1]) > int(self._last_line):
            self._ask(f"/api/v1{self._path}/log?after={self._last_line.decode()}")
            self._last_line = found[1]

    def _ask(self, path: str, **headers: str) -> bytes:
        self.asked += 1
        try:
            self._pages.request("GET", path, headers=headers)
            return self._pages.getresponse().read()
        except http.client.RemoteDisconnected:  # it was not used for a while: a browser connects again
            self._pages.close()
            self._pages.request("GET", path, headers=headers)
            return self._pages.getresponse().read()


def _after(seconds: float) -> float:
    """When a page that asks so often does so next: at the same moments as all others."""
    return (time.time() // seconds + 1) * seconds


def _next(answer: http.client.HTTPResponse) -> Heard:
    """The next event; a comment has no name."""
    fields = {b"event": b"", b"id": b"", b"data": b""}
    while (line := answer.readline().rstrip(b"\n")) != b"":
        name, _, value = line.partition(b": ")
        fields[name] = value
    return Heard(fields[b"event"], fields[b"id"].decode(), fields[b"data"])
