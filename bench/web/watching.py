"""What watching costs the workers: how many jobs end in a stretch of time with viewers, and in one without, in turn."""

from __future__ import annotations

import http.client
import statistics
import threading
import time

from packhorse.storage import Storage

_STREAM = "/api/v1/stream?topics=overview"
_AGAIN = 2.5  # seconds after which a page fetches its tables again


class Viewers:
    """People with the overview open: each listens to the stream and, as the page does, fetches it again when something
    has changed. A context manager."""

    def __init__(self, host: str, port: int, number: int) -> None:
        self._address = (host, port)
        self._number = number
        self._leave = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Viewers:
        self._threads = [threading.Thread(target=self._watch, daemon=True) for _ in range(self._number)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        for thread in self._threads:
            thread.join(10)

    def _watch(self) -> None:
        stream = http.client.HTTPConnection(*self._address, timeout=30)
        pages = http.client.HTTPConnection(*self._address, timeout=30)
        stream.request("GET", _STREAM)
        answer = stream.getresponse()
        fetched_at = time.monotonic()
        while not self._leave.is_set():
            if not answer.readline().startswith(b"event: overview") or time.monotonic() - fetched_at < _AGAIN:
                continue
            pages.request("GET", "/")
            pages.getresponse().read()
            fetched_at = time.monotonic()
        stream.close()
        pages.close()


def share_left(storage: Storage, host: str, port: int, viewers: int, seconds: float, turns: int) -> float:
    """Of the jobs that end with nobody watching, the share that ends with so many. Medians of several turns."""
    alone: list[float] = []
    watched: list[float] = []
    for _ in range(turns):
        alone.append(_rate(storage, seconds))
        with Viewers(host, port, viewers):
            time.sleep(1)
            watched.append(_rate(storage, seconds))
    print("  alone:   " + "  ".join(f"{rate:,.0f}" for rate in alone) + " jobs/s")
    print("  watched: " + "  ".join(f"{rate:,.0f}" for rate in watched) + " jobs/s")
    return statistics.median(watched) / statistics.median(alone)


def _rate(storage: Storage, seconds: float) -> float:
    before, began_at = storage.totals().get("completed", 0), time.monotonic()
    time.sleep(seconds)
    return (storage.totals().get("completed", 0) - before) / (time.monotonic() - began_at)
