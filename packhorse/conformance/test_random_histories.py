"""Whole lives of jobs, by seeded chance: after every step the events tell the same story as the jobs.

Old tokens are used again and again on the way, as a worker does that was frozen and wakes up.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from packhorse.conformance.builders import FAILURE, history, join, new_job, recount, stored, tallies
from packhorse.core.clock import MINUTE, SECOND, ManualClock
from packhorse.core.event import Event, Kind
from packhorse.core.job import FINAL, HELD, Job, Reason, Token
from packhorse.core.outcome import Completed, Failed, Outcome, Snoozed, Stopped
from packhorse.storage.contract import Storage

RELEASED, RESCUED = "handed back", "worker died"
ATTEMPT_ENDS = {Kind.COMPLETED, Kind.FAILED, Kind.BROKEN, Kind.SNOOZED, Kind.HALTED}


class Life:
    """Some jobs, and what chance does to them."""

    def __init__(self, storage: Storage, clock: ManualClock, seed: int) -> None:
        self.storage, self.clock, self.chance = storage, clock, random.Random(seed)
        self.ids = [f"job-{number}" for number in range(4)]
        self.tokens = [Token("job-0", "unknown", 1)]  # every token ever issued
        self.owners = 0
        storage.enqueue([new_job(job_id, max_halts=2, expires=5 * MINUTE) for job_id in self.ids])

    def step(self) -> None:
        self.chance.choice(self.steps())()

    def steps(self) -> list[Callable[[], object]]:
        storage, some, token = self.storage, self.chance.sample(self.ids, 2), self.chance.choice(self.tokens)
        return [
            self.reserve,
            self.reserve,
            self.reserve,
            lambda: storage.start([token]),
            lambda: storage.finish([self.outcome(token)]),
            lambda: storage.finish([self.outcome(self.tokens[-1])]),
            lambda: storage.release([token], RELEASED),
            self.die,
            lambda: storage.abort(some[:1]),
            lambda: storage.force_start(some),
            lambda: storage.set_queue(some, self.chance.choice(["mail", "slow"])),
            lambda: storage.set_priority(some, self.chance.randint(1, 10)),
            lambda: storage.retry(some),
            lambda: storage.enqueue([new_job(job_id) for job_id in some]),
            lambda: self.clock.turn(self.chance.choice([1, 60])),
            storage.promote,
            storage.expire,
        ]

    def reserve(self) -> None:
        owner = join(self.storage, f"worker-{self.owners}")
        self.tokens += [job.token for job in self.storage.reserve(owner, {"mail": 1}, 2)]

    def outcome(self, token: Token) -> Outcome:
        ran = self.chance.choice([0, 5, SECOND])
        possible: list[Outcome] = [
            Completed(token, result="1", ran=ran),
            Failed(token, FAILURE),
            Failed(token, FAILURE, retry_in=0, ran=ran),
            Failed(token, FAILURE, retry_in=SECOND, ran=ran),
            Snoozed(token, SECOND, ran=ran),
            Stopped(token, Reason.JOB_TIMEOUT),
        ]
        return self.chance.choice(possible)

    def die(self) -> None:
        self.storage.rescue_owner(
            f"worker-{self.owners}", foreman=f"worker-{self.owners}", why=RESCUED, ran=self.ids[:1]
        )
        self.owners += 1


@pytest.mark.parametrize("seed", range(12))
def test_events_and_jobs_tell_the_same_story(storage: Storage, clock: ManualClock, seed: int) -> None:
    life = Life(storage, clock, seed)

    for _ in range(60):
        life.step()

        for job_id in life.ids:
            assert_story_is_true(stored(storage, job_id), history(storage, job_id))
    assert tallies(storage) == recount(storage)


def assert_story_is_true(job: Job, events: list[Event]) -> None:
    assert events[-1].state == job.state
    assert sum(event.kind is Kind.RESERVED for event in events) == sum(map(ends_a_holding, events)) + (
        job.state in HELD
    )
    assert job.attempts == sum(event.kind is Kind.STARTED for event in events)
    assert (job.owner is not None) == (job.state in HELD)
    assert (job.finished_at is not None) == (job.state in FINAL)
    assert job.ran == (latest_measure(events) or None)
    fences = [event.fence for event in events if event.kind is Kind.RESERVED]
    assert fences == sorted(set(fences), key=lambda fence: fence or 0)


def latest_measure(events: list[Event]) -> int | None:
    """How long the latest attempt ran, if it has ended and was measured."""
    measures: list[int | None] = [None]
    for event in events:
        ran = (event.data or {}).get("ran")
        if ran is not None or event.kind is Kind.STARTED:
            measures.append(ran)
    return measures[-1]


def ends_a_holding(event: Event) -> bool:
    if event.kind is Kind.READDED:
        return (event.data or {}).get("why") in (RELEASED, RESCUED)
    return event.kind in ATTEMPT_ENDS or (event.kind is Kind.ABORTED and event.owner is not None)
