"""One of many processes that share a storage: a producer, or a worker.

Run by `test_many_processes.py`: `produce URL NAME NUMBER` enqueues so many jobs, some alone, some in batches;
`work URL NAME TOTAL` reserves and finishes until so many jobs in all are completed. Both wait for a line on stdin
before they begin. A worker prints how many jobs it has finished.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator, Sequence

from packhorse.core.job import COMPLETED, Job, NewJob
from packhorse.core.outcome import Completed, Outcome, Verdict
from packhorse.storage import Storage, open_storage
from packhorse.storage.records import Filter, WorkerInfo

QUEUES = {"mail": 1, "print": 2, "images": 3}
BATCH = 20
"""Small, so that there are many calls to come between: each is a chance for two to take the same job."""


def produce(storage: Storage, name: str, number: int) -> None:
    dice = random.Random(name)
    for batch in batches(name, number, dice):
        answers = storage.enqueue(batch)
        assert [answer.job_id for answer in answers if answer.is_new] == [new.id for new in batch]


def batches(name: str, number: int, dice: random.Random) -> Iterator[list[NewJob]]:
    """So many jobs: one time in three alone, else up to forty together."""
    numbers = iter(range(number))
    while True:
        size = 1 if dice.random() < 1 / 3 else dice.randint(2, 40)
        batch = [new_job(f"{name}-{one:05}", dice) for one in itertools.islice(numbers, size)]
        if not batch:
            return
        yield batch


def new_job(job_id: str, dice: random.Random) -> NewJob:
    queue = dice.choice(list(QUEUES))
    return NewJob(job_id, f"do_{queue}", queue, priority=dice.choice([1, 1, 1, 5, 10]))


def work(storage: Storage, name: str, total: int) -> int:
    storage.join(WorkerInfo(id=name))
    finished = 0
    jobs = storage.reserve(name, QUEUES, BATCH)
    while jobs or storage.count(Filter(states=frozenset({COMPLETED}))).number < total:
        if not jobs:
            storage.wait(0.1)
        finished += len(jobs)
        jobs = finish_and_reserve(storage, name, jobs)
    storage.leave(name)
    return finished


def finish_and_reserve(storage: Storage, name: str, jobs: Sequence[Job]) -> list[Job]:
    """Half of the workers do it in one call, half in three."""
    outcomes: list[Outcome] = [Completed(job.token, f'"{job.id}"', ran=10) for job in jobs]
    if name.endswith(("0", "2", "4", "6", "8")):
        verdicts, more = storage.finish_and_reserve(outcomes, name, QUEUES, BATCH)
    else:
        storage.start([job.token for job in jobs])
        verdicts = storage.finish(outcomes)
        more = storage.reserve(name, QUEUES, BATCH)
    assert set(verdicts) <= {Verdict.ACCEPTED}
    return more


def main(role: str, url: str, name: str, number: str) -> None:
    storage = open_storage(url)
    print("ready", flush=True)
    sys.stdin.readline()
    if role == "produce":
        produce(storage, name, int(number))
    else:
        print(work(storage, name, int(number)), flush=True)
    storage.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
