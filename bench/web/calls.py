"""Every page and every list that the web offers, asked again and again, in ever other order."""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from bench.percentile import percentile
from bench.web.processor import milliseconds

API = "/api/v1"
_STATES = ("scheduled", "queued", "reserved", "running", "retrying", "completed", "dead", "aborted")
_FILTERS = (
    *("task:task_03", "state:completed task:task_03", "state:queued queue:backlog", "state:dead queue:images"),
    *("since:1h", "until:1m", "priority:9", "halted", "schedule:plan-1", "key:x"),
    *("4711.jpg", "found nowhere", "state:queued task:task_03"),
)
_PAGES = ("/", "/?range=90d", "/jobs", "/failures", "/queues", "/queues/mail", "/queues/backlog", "/tasks")
_MORE_PAGES = ("/tasks/task_03", "/workers", "/schedules", "/storage", "/audit", "/audit?by=anna", "/jobs/new")
_LISTS = ("queues", "tasks", "workers", "busy_slots", "clients", "schedules", "series", "storage", "totals", "failures")


class Timed(NamedTuple):
    """How long one address took, and how much of that the server was on a processor; in milliseconds."""

    path: str
    took: list[float]
    worked: list[float]

    @property
    def p50(self) -> float:
        return percentile(self.took, 50)

    @property
    def p95(self) -> float:
        return percentile(self.took, 95)

    @property
    def work(self) -> float:
        """95 of 100 cost the server at most this."""
        return percentile(self.worked, 95)


class Visitor:
    """One who asks, on one connection."""

    def __init__(self, host: str, port: int) -> None:
        self._connection = http.client.HTTPConnection(host, port, timeout=60)

    def get(self, path: str) -> bytes:
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status >= 400 and path != "/healthz":
            raise ValueError(f"{path} answered {answer.status}: {body[:200]!r}")
        return body

    def json(self, path: str) -> Any:
        return json.loads(self.get(path))


def paths(ask_json: Callable[[str], Any]) -> Iterator[str]:
    """All that there is to ask for, on a storage that `history.fill` has filled."""
    yield from (*_PAGES, *_MORE_PAGES)
    yield from (f"/jobs?state={state}" for state in _STATES)
    yield from (f"/jobs?q={words.replace(' ', '+')}" for words in _FILTERS)
    yield from (f"{API}/{name}" for name in (*_LISTS, "events", "audit"))
    yield from ("/metrics", "/healthz", "/readyz", f"{API}/events?kind=retried", f"{API}/jobs?text=nowhere")
    cause = ask_json(f"{API}/failures")["items"][0]["cause"]
    yield from (f"/failures/{cause}", f"/jobs?cause={cause}", f"{API}/jobs?cause={cause}&count=true")
    yield f"/jobs?cursor={ask_json(f'{API}/jobs')['next']}"
    for state in ("dead", "completed", "queued"):
        job_id = ask_json(f"{API}/jobs?state={state}&limit=1")["items"][0]["id"]
        yield from (f"/jobs/{job_id}", f"/jobs/{job_id}/copy", f"{API}/jobs/{job_id}")
        yield from (f"/find?q={job_id[-8:]}", f"/find?q={job_id[:13]}")
    yield "/find?q=0badf00d"


def ask(visitor: Visitor, server: int, rounds: int) -> list[Timed]:
    """Ask for everything in each round. What is shared for a second is shared by chance, as in life."""
    all_timed = [Timed(path, [], []) for path in paths(visitor.json)]
    dice = random.Random(7)
    for _ in range(rounds):
        for timed in dice.sample(all_timed, len(all_timed)):
            worked, began_at = milliseconds([server]), time.perf_counter()
            visitor.get(timed.path)
            timed.took.append(1_000 * (time.perf_counter() - began_at))
            timed.worked.append(milliseconds([server]) - worked)
    return sorted(all_timed, key=lambda timed: -timed.work)
