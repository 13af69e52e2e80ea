"""Nothing is left behind: every key agrees with the jobs, after every kind of call, in any order, also concurrent."""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from packhorse.conformance.builders import at_once, find_all, history, new_job, recount, tallies
from packhorse.core.clock import MINUTE
from packhorse.core.errors import ClientNotFound, NotUnique, WorkerExists, WorkerNotFound
from packhorse.core.job import UniqueLock
from packhorse.core.outcome import Completed, Failed, Failure, Released, Snoozed
from packhorse.storage.records import CheckIn, ClientInfo, Filter, LogLine, Retention, WorkerInfo
from packhorse.storage.redis import Redis
from tests.storage import invariants
from tests.storage.machine import Machine
from tests.storage.redis.audit import audit
from tests.storage.redis.tour import take_tour
from tests.storage.test_model import IS_LONG

BUDGET = settings(
    max_examples=40 if IS_LONG else 10, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
THREADS, STEPS = 6, 120


def test_a_tour_leaves_nothing_behind(storage: Redis) -> None:
    take_tour(storage)

    audit(storage)


def test_no_random_story_leaves_anything_behind() -> None:
    class Audited(Machine):
        storage_name = "redis"

        def teardown(self) -> None:
            if sys.exc_info()[0] is None:
                assert isinstance(self.storage, Redis)
                audit(self.storage)
            super().teardown()

    run_state_machine_as_test(Audited, settings=BUDGET)


# --- concurrent -----------------------------------------------------------------------------------------------------


class Hand:
    """One of many concurrent workers that do everything to the same few jobs."""

    def __init__(self, url: str, number: int) -> None:
        self.storage = Redis.from_url(url)
        self.name = f"worker {number}"
        self.chance = Random(number)
        self.storage.join(WorkerInfo(self.name))
        self.storage.join_client(ClientInfo(self.name))

    def work(self) -> None:
        for _ in range(STEPS):
            with contextlib.suppress(NotUnique, WorkerNotFound, ClientNotFound):
                self.chance.choice(self.moves)(self)
        self.storage.close()

    def ids(self, number: int = 3) -> list[str]:
        return [f"job-{self.chance.randrange(40)}" for _ in range(number)]

    def enqueue(self) -> None:
        jobs = []
        for job_id in self.ids():
            lock = UniqueLock(self.chance.choice("ab"), on_conflict=self.chance.choice(["keep", "replace", "reject"]))
            jobs.append(
                new_job(
                    job_id,
                    queue=self.chance.choice(["mail", "pics"]),
                    priority=self.chance.choice([1, 5]),
                    delay=self.chance.choice([0, 0, 1_000]),
                    expires=self.chance.choice([None, 5_000]),
                    unique=self.chance.choice([None, None, lock]),
                    subscriber=self.chance.choice([None, None, self.name]),
                    persistent=self.chance.random() < 0.2,
                    max_halts=9,
                )
            )
        self.storage.enqueue(jobs if self.chance.random() < 0.5 else jobs[:1])

    def run(self) -> None:
        jobs = self.storage.reserve(self.name, {"mail": 1, "pics": 2}, 4)
        tokens = [job.token for job in jobs]
        self.storage.start(tokens[:2])
        if tokens:
            self.storage.check_in([CheckIn(tokens[0], "half way", 50)])
            self.storage.append_log(tokens[-1], [LogLine("a line")])
        endings = [
            lambda token: Completed(token, result="1"),
            lambda token: Failed(token, Failure("KeyError", "'name'"), retry_in=self.chance.choice([0, 1_000, None])),
            lambda token: Snoozed(token, 1_000),
            lambda token: Released(token, "later"),
        ]
        outcomes = [self.chance.choice(endings)(token) for token in tokens]
        if self.chance.random() < 0.5:
            self.storage.finish(outcomes)
        else:
            self.storage.finish_and_reserve(outcomes, self.name, {"mail": 1}, 2)

    def steer(self) -> None:
        how = self.chance.choice(["abort", "force_start", "retry", "delete", "set_priority"])
        getattr(self.storage, how)(self.ids(), *([7] if how == "set_priority" else []))

    def wait_for_outcomes(self) -> None:
        self.storage.subscribe(self.name, self.ids())
        self.storage.acknowledge(self.name, [job.id for job in self.storage.outcomes_for(self.name)][:2])

    def leave(self) -> None:
        self.storage.leave_client(self.name)
        self.storage.leave(self.name)
        self.storage.join_client(ClientInfo(self.name))
        self.storage.join(WorkerInfo(self.name))

    def keep_up(self) -> None:
        self.storage.promote()
        self.storage.expire()
        self.storage.prune(Retention(completed=1_000, dead=1_000, aborted=1_000, events=MINUTE), limit=5)
        owner = f"worker {self.chance.randrange(THREADS)}"
        self.storage.rescue_owner(owner, foreman=owner, why="a story", limit=2)
        with contextlib.suppress(WorkerExists):  # its foreman has not given it up
            self.storage.join(WorkerInfo(self.name))

    def pause(self) -> None:
        if not self.storage.pause("mail"):
            self.storage.resume("mail")

    moves = (enqueue, enqueue, enqueue, run, run, run, steer, steer, wait_for_outcomes, leave, keep_up, pause)


def test_many_concurrent_workers_leave_nothing_behind(storage: Redis, url: str) -> None:
    hands = [Hand(url, number) for number in range(THREADS)]

    at_once([partial(Hand.work, hand) for hand in hands])

    audit(storage)
    assert tallies(storage) == recount(storage)
    jobs = {job.id: job for job in find_all(storage, Filter(), limit=1_000)}
    for number in range(40):
        job_id = f"job-{number}"
        if job_id in jobs:
            invariants.check_job(jobs[job_id])
        invariants.check_history(jobs.get(job_id), history(storage, job_id))
