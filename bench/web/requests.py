"""Request every page and every list of the web repeatedly, in random order."""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import quote_plus

from bench.percentile import percentile
from bench.web.cpu_time import milliseconds
from bench.web.history import WORKER

API = "/api/v1"
_STATES = ("scheduled", "queued", "reserved", "running", "retrying", "completed", "dead", "aborted")
_FILTERS = (
    *("task:task_03", "state:completed task:task_03", "state:queued queue:backlog", "state:dead queue:images"),
    *("since:1h", "until:1m", "since:1m", "until:9d", "priority:9", "halted", "schedule:plan-1", "key:x"),
    *("4711.jpg", "found nowhere", "state:queued task:task_03", "error:broke", "args:4711", "state:dead since:1h"),
    *("state:retrying", "state:dead,aborted task:task_00", "unfinished", "waiting", "failed", "worker:nobody"),
    *("queue:mail task:task_03", "queue:mail priority:10 halted", "state:scheduled task:task_19 until:1m"),
    *("attempts:>1", "attempts:>3", "state:dead attempts:<2", "took:>1s", "took:>9h", "waited:>5m"),
    *("state:queued waited:>9d", "priority:=3", "args.user_id:4711", "args.user_id:-1", "args.path:nowhere"),
    *("args.width:800", "state:dead args.user_id:-1", "error:nowhere", "state:dead error:nowhere"),
    *("id:01", "id:0badf00d", "task:task_0*", "task:nowhere*", "queue:mail,images", "queue:b* text:nowhere"),
    *("queue:m*,i* task:task_03,task_04", "state:queued queue:m*", "order:created", "state:dead order:created"),
    *("order:took", "state:dead order:took", "order:took args.user_id:-1", "dead queue:mail worker:nobody"),
    "queue:mail attempts:>9 args.user_id:-1 since:1h",
)
_PAGES = (
    *("/", "/?range=1h", "/?range=7d", "/?range=90d", "/jobs", "/jobs/new", "/jobs/new?task=task_03"),
    *("/failures", "/failures?task=task_00", "/failures?show=silenced"),
    *("/queues", "/queues/mail", "/queues/backlog", "/tasks", "/tasks/task_03", "/tasks/task_00"),
    *("/workers", f"/workers/{WORKER}", "/schedules", "/storage"),
    *("/audit", "/audit?by=anna", "/audit?by=zoe", "/audit?by=nobody"),
)
_LISTS = ("queues", "tasks", "workers", "busy_slots", "clients", "schedules", "series", "storage", "totals", "failures")
COUNTED = (
    *("task=task_03", "task=task_03&state=dead", "text=nowhere", "text=broke&state=dead", "priority=9"),
    *("attempts=%3E1", "took=%3E9h", "q=args.user_id:-1", "error=nowhere", "id=01", "queue=m*", "queue=m*&attempts=9"),
)
_EVENTS = (
    "kind=retried",
    "kind=broken",
    "kind=completed",
    "queue=mail",
    "queue=reports&kind=aborted",
    "after=0",
    "after=1",
)


class Timed(NamedTuple):
    """How long one URL took, and how much CPU time the server used; in milliseconds."""

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
        """CPU time, p95."""
        return percentile(self.worked, 95)


class Visitor:
    """A client on one connection."""

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
    """Every URL of a storage that `history.fill` filled."""
    yield from _PAGES
    yield from (f"/jobs?state={state}" for state in _STATES)
    yield from (f"/jobs?q={quote_plus(words)}" for words in _FILTERS)
    yield from (f"{API}/suggestions?q={words}" for words in ("", "task", "queue:m", "cause:"))
    yield from (f"{API}/{name}" for name in (*_LISTS, "events", "audit"))
    yield from (f"{API}/jobs?{words}&count=true" for words in COUNTED)
    yield from (f"{API}/events?{words}" for words in _EVENTS)
    yield from (f"{API}/series?span={span}" for span in ("48h", "90d"))
    yield from ("/metrics", "/healthz", "/readyz", f"{API}/jobs?text=nowhere", f"{API}/jobs?limit=200")
    yield from (f"{API}/queues/mail", f"{API}/schedules/plan-1/ticks", f"{API}/audit?by=zoe")
    cause = ask_json(f"{API}/failures")["items"][0]["cause"]
    yield from (f"/failures/{cause}", f"/jobs?cause={cause}", f"{API}/jobs?cause={cause}&count=true")
    yield from (f"{API}/failures?task=task_00", "/queues/backlog/purge")
    yield from (f"{API}/series?queue=mail", f"{API}/series?task=task_03&span=90d")
    for words in ("", "&state=completed", "&state=dead", "&state=queued", "&state=scheduled"):
        yield f"/jobs?cursor={ask_json(f'{API}/jobs?limit=50{words}')['next']}{words}"
    for state in ("dead", "completed", "queued"):
        job_id = ask_json(f"{API}/jobs?state={state}&limit=1")["items"][0]["id"]
        yield from (f"/jobs/{job_id}", f"/jobs/{job_id}/copy", f"/jobs/{job_id}/delete", f"{API}/jobs/{job_id}")
        yield from (f"{API}/jobs/{job_id}/{part}" for part in ("log", "events", "subscribers"))
        yield from (f"/find?q={job_id[-8:]}", f"/find?q={job_id[:13]}")
    yield "/find?q=0badf00d"


def ask(visitor: Visitor, servers: list[int], rounds: int) -> list[Timed]:
    """Ask for everything in each round; these processes and their children do the work. What is shared for a second is
    shared by chance, as in life."""
    all_timed = [Timed(path, [], []) for path in paths(visitor.json)]
    dice = random.Random(7)
    for _ in range(rounds):
        for timed in dice.sample(all_timed, len(all_timed)):
            worked, began_at = milliseconds(servers), time.perf_counter()
            visitor.get(timed.path)
            timed.took.append(1_000 * (time.perf_counter() - began_at))
            timed.worked.append(milliseconds(servers) - worked)
    return sorted(all_timed, key=lambda timed: -timed.work)
