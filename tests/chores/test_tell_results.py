"""Tell results: what ended in no worker of ours is told to one, once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from packhorse.chores.tell_results import TellResults
from packhorse.clock import SECOND, TurnedClock
from packhorse.conformance.builders import FAILURE, add, in_state, run
from packhorse.event import Subject
from packhorse.job import RUNNING
from packhorse.outcome import Completed, Failed, Overrun
from packhorse.settings import Settings
from packhorse.storage.memory import Memory
from packhorse.storage.records import WorkerInfo


class Foreman:
    """One that looks for ends, and what it has told its workers."""

    def __init__(self, storage: Memory, name: str = "boss", target: str = "shop:app") -> None:
        storage.join(WorkerInfo(name, Subject.FOREMAN, info={"target": target}))
        self.told: list[str] = []
        self.has_workers = True
        self.chore = TellResults(storage, Settings(), lambda: name, self._tell)
        self.chore.run()  # what was there before the first of its app is not told

    def _tell(self, jobs: Sequence[str]) -> bool:
        if self.has_workers:
            self.told += jobs
        return self.has_workers


def join_ours(storage: Memory, owner: str = "ann") -> None:
    storage.join(WorkerInfo(owner, foreman="boss", info={"python": "3.12"}))


def test_jobs_that_end_while_they_wait_are_told(storage: Memory, clock: TurnedClock):
    foreman = Foreman(storage)
    aborted, expired = add(storage), add(storage, expires=SECOND)
    add(storage)
    storage.abort([aborted.id])
    clock.turn(2)
    storage.expire()

    foreman.chore.run()
    foreman.chore.run()

    assert foreman.told == [aborted.id, expired.id]


@pytest.mark.parametrize("has_left", [True, False])
def test_jobs_that_a_foreign_worker_ends_are_told(storage: Memory, has_left: bool):
    foreman = Foreman(storage)
    storage.join(WorkerInfo("ruby-1"))
    foreman.chore.run()
    done, dead = run(storage, add(storage), "ruby-1"), run(storage, add(storage), "ruby-1")
    storage.finish([Completed(done.token), Failed(dead.token, FAILURE)])
    if has_left:
        storage.leave("ruby-1")

    foreman.chore.run()

    assert sorted(foreman.told) == sorted([done.id, dead.id])


def test_what_our_own_workers_end_they_tell_themselves(storage: Memory):
    foreman = Foreman(storage)
    join_ours(storage)
    storage.join(WorkerInfo("ruby-1"))
    jobs = [run(storage, add(storage)) for _ in range(2)]
    storage.finish([Completed(jobs[0].token), Failed(jobs[1].token, FAILURE)])

    foreman.chore.run()
    storage.leave("ann")
    foreman.chore.run()

    assert foreman.told == []


def test_a_job_that_dies_with_its_worker_is_told(storage: Memory):
    foreman = Foreman(storage)
    join_ours(storage)
    job = in_state(storage, RUNNING, max_halts=1)
    storage.rescue_owner("ann", foreman="ann", why="killed")

    foreman.chore.run()

    assert foreman.told == [job.id]


def test_a_job_for_which_its_worker_was_killed_is_told(storage: Memory):
    foreman = Foreman(storage)
    join_ours(storage)
    job = in_state(storage, RUNNING)
    storage.finish([Overrun(job.token, "it ran for longer than 3 s, and its worker did not end it")])
    storage.leave("ann", why="it did not end a job whose time was over")

    foreman.chore.run()

    assert foreman.told == [job.id]


def test_while_there_is_no_worker_it_is_kept(storage: Memory):
    foreman = Foreman(storage)
    foreman.has_workers = False
    job = add(storage)
    storage.abort([job.id])
    foreman.chore.run()
    foreman.has_workers = True

    foreman.chore.run()

    assert foreman.told == [job.id]


def test_of_several_foremen_one_tells_of_each(storage: Memory):
    foremen = [Foreman(storage, name) for name in ("boss", "chief", "head")]
    jobs = [add(storage).id for _ in range(60)]
    storage.abort(jobs)

    for foreman in foremen:
        foreman.chore.run()

    assert sorted(job for foreman in foremen for job in foreman.told) == sorted(jobs)
    assert all(foreman.told for foreman in foremen)


def test_very_many_are_told_in_parts(storage: Memory):
    foreman = Foreman(storage)
    jobs = [add(storage).id for _ in range(501)]
    storage.abort(jobs)

    assert foreman.chore.run() == 0.05
    assert foreman.chore.run() is None
    assert len(foreman.told) == 501


def test_jobs_that_end_while_no_foreman_runs_are_told_by_the_next_one_and_once(storage: Memory):
    first, told_by_first = Foreman(storage), add(storage)
    storage.abort([told_by_first.id])
    first.chore.run()
    storage.leave("boss")
    storage.join(WorkerInfo("ruby-1"))
    done, aborted = run(storage, add(storage), "ruby-1"), add(storage)
    storage.abort([aborted.id])
    storage.finish([Completed(done.token)])

    second = Foreman(storage, "next")
    second.chore.run()
    storage.leave("next")
    third = Foreman(storage, "last")

    assert first.told == [told_by_first.id]
    assert sorted(second.told) == sorted([aborted.id, done.id])
    assert third.told == []


def test_a_foreman_of_another_app_goes_its_own_way(storage: Memory):
    Foreman(storage)
    storage.leave("boss")
    job = add(storage)
    storage.abort([job.id])

    other = Foreman(storage, "other", target="mill:app")

    assert other.told == []
