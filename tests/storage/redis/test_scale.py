"""Lists, counts and names stay quick however many jobs there are.

`make test` tries it with 40,000 jobs; `PACKHORSE_SCALE=1000000` with a million, which takes a minute and a gigabyte.
What grows with the number of jobs would be seen with either: the limits are the same. Measured is the time that the
processors worked, here and in the server: how busy the machine is otherwise does not matter.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from packhorse.conformance.builders import new_job
from packhorse.core.event import Subject
from packhorse.core.job import COMPLETED, DEAD, FINAL, HELD, QUEUED, RETRYING, SCHEDULED, NewJob
from packhorse.core.outcome import Completed
from packhorse.storage.contract import BATCH
from packhorse.storage.queries import NEWEST, encode_cursor
from packhorse.storage.records import EventFilter, Filter, Span, WorkerInfo
from packhorse.storage.redis import Redis
from tests.redis_server import RedisServer, redis_server

NUMBER = int(os.environ.get("PACKHORSE_SCALE", "40000"))
QUEUES = 20
LIMIT = 40
"""How much more work a call may be than getting 500 jobs by their ids. A bounded walk is 10 times that, one over all
40,000 jobs would be 80 times; and both are more on a slow machine."""


class Crowd(NamedTuple):
    storage: Redis
    server: RedisServer
    measure: float = 0.0  # seconds of work to get 500 jobs

    def seconds(self, call: Callable[[Redis], object]) -> float:
        """How long the storage and its server work for this call."""
        before = self._worked()
        call(self.storage)
        return self._worked() - before

    def _worked(self) -> float:
        told = self.server.command("INFO", "cpu").decode()
        facts = dict(line.split(":") for line in told.splitlines() if ":" in line)
        return float(facts["used_cpu_user"]) + float(facts["used_cpu_sys"]) + time.process_time()


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    """A storage with very many jobs: of every ten, five wait in line, three are completed, two are scheduled."""
    directory: Path = tmp_path_factory.mktemp("crowd")
    with redis_server(directory) as server:
        storage = Redis.from_url(server.url)
        storage.join(WorkerInfo("ann"))
        for start in range(0, NUMBER, BATCH):
            storage.enqueue([_job(number) for number in range(start, start + BATCH)])
        queues = {f"queue-{number}": 1 for number in range(QUEUES)}
        for _ in range(0, NUMBER * 3 // 10, BATCH):
            jobs = storage.reserve("ann", queues, BATCH)
            storage.finish([Completed(job.token, ran=1_000) for job in jobs])
        crowd = Crowd(storage, server)
        known = [f"job-{number}" for number in range(500)]
        yield crowd._replace(measure=min(crowd.seconds(lambda storage: storage.get_many(known)) for _ in range(10)))
        storage.close()


def _job(number: int) -> NewJob:
    delay = 10**12 + number if number % 5 == 4 else 0
    return new_job(f"job-{number}", queue=f"queue-{number % QUEUES}", task=f"task-{number % 3}", delay=delay)


CALLS: dict[str, Callable[[Redis], object]] = {
    "find the newest": lambda storage: storage.find(Filter()),
    "find in line": lambda storage: storage.find(Filter(frozenset({QUEUED}))),
    "find in one line": lambda storage: storage.find(Filter(frozenset({QUEUED}), queue="queue-3")),
    "find what is due": lambda storage: storage.find(Filter(frozenset({SCHEDULED, RETRYING}))),
    "find the latest finished": lambda storage: storage.find(Filter(FINAL)),
    "find what is held": lambda storage: storage.find(Filter(HELD)),
    "find in a queue": lambda storage: storage.find(Filter(queue="queue-3")),
    "find a rare state": lambda storage: storage.find(Filter(frozenset({DEAD, COMPLETED, QUEUED}), task="nobody's")),
    "find a task that is not there": lambda storage: storage.find(Filter(task="nobody's")),
    "find a text that is not there": lambda storage: storage.find(Filter(text="nowhere")),
    "find a schedule that is not there": lambda storage: storage.find(Filter(frozenset({QUEUED}), schedule="never")),
    "find the oldest": lambda storage: storage.find(Filter(), cursor=encode_cursor(NEWEST, (-30,))),
    "find behind many of one moment": lambda storage: storage.find(Filter(FINAL), cursor=_middle(storage)),
    "count all": lambda storage: storage.count(Filter()),
    "count a state": lambda storage: storage.count(Filter(frozenset({COMPLETED}), queue="queue-3")),
    "count up to the cap": lambda storage: storage.count(Filter(min_priority=1)),
    "count what is not there": lambda storage: storage.count(Filter(FINAL, cause="nobody's")),
    "tallies": lambda storage: storage.tallies(),
    "queues": lambda storage: storage.queues(),
    "tasks": lambda storage: storage.tasks(),
    "next due": lambda storage: storage.next_due(),
    "the latest events": lambda storage: storage.events(EventFilter(), newest_first=True),
    "the events of a job": lambda storage: storage.events(EventFilter(job_id="job-7")),
    "the events of workers": lambda storage: storage.events(EventFilter(subject=Subject.WORKER)),
    "a chart": lambda storage: storage.series(Span.TWO_DAYS),
    "totals": lambda storage: storage.totals(),
    "stops": lambda storage: storage.abort_requests(["ann"]),
    "outlook": lambda storage: storage.poll("foreman", ["ann"]),
}


def _middle(storage: Redis) -> str | None:
    return storage.find(Filter(FINAL), limit=BATCH // 2).next


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_as_quick_with_very_many_jobs(crowd: Crowd, name: str) -> None:
    # What else happens in the same moment, such as a collection of garbage, is not the call's.
    best = min(crowd.seconds(CALLS[name]) for _ in range(5))

    assert best < LIMIT * crowd.measure


def test_the_numbers_are_right(crowd: Crowd) -> None:
    storage = crowd.storage
    counted = {state: storage.count(Filter(frozenset({state}))).number for state in (QUEUED, SCHEDULED, COMPLETED)}

    assert counted == {QUEUED: NUMBER // 2, SCHEDULED: NUMBER // 5, COMPLETED: NUMBER * 3 // 10}
    assert sum(sum(queue.counts.values()) for queue in storage.queues()) == NUMBER
