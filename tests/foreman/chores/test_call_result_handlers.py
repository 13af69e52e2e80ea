"""Result handlers for jobs that ended in no worker of ours are called at least once, and once if no foreman dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from packhorse.conformance.builders import FAILURE, add, in_state, run
from packhorse.core.clock import SECOND, ManualClock
from packhorse.core.errors import StorageUnavailable
from packhorse.core.event import Event, Subject
from packhorse.core.job import RUNNING
from packhorse.core.outcome import Completed, Failed, Overrun
from packhorse.core.settings import Settings
from packhorse.foreman.chores.call_result_handlers import CallResultHandlers
from packhorse.storage import Storage, open_storage
from packhorse.storage.memory import Memory
from packhorse.storage.records import HAS_RESULT_HANDLERS, EventFilter, WorkerInfo
from tests.storage.conftest import ADDRESSES

LEASE = Settings().lease // SECOND


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Storage]:
    storage = open_storage(ADDRESSES[request.param](tmp_path), now=clock)
    yield storage
    storage.close()


class Foreman:
    """A chore that follows the ends, and what it has passed to its workers."""

    def __init__(self, storage: Storage, name: str = "boss", target: str = "shop:app", **info: object) -> None:
        self.storage = storage
        self.id = name
        self.told: list[str] = []
        self.has_workers = True
        self.info = {"target": target, HAS_RESULT_HANDLERS: True, **info}
        self.join()
        self.chore = CallResultHandlers(storage, Settings(), lambda: self.id, self._tell, now=storage.now)
        self.chore.run()  # ends before the first foreman of its app are skipped

    def join(self) -> None:
        self.storage.join(WorkerInfo(self.id, Subject.FOREMAN, info=self.info))

    def _tell(self, jobs: Sequence[str]) -> bool:
        if self.has_workers:
            self.told += jobs
        return self.has_workers


def pass_time(clock: ManualClock, seconds: int, *foremen: Foreman) -> None:
    """Let time pass, in which only these live and run their chore."""
    for _ in range(seconds):
        clock.turn(1)
        for foreman in foremen:
            foreman.storage.heartbeat({foreman.id: {}})
            foreman.chore.run()


def abort_some(storage: Storage, number: int = 20) -> list[str]:
    jobs = [add(storage).id for _ in range(number)]
    storage.abort(jobs)
    return jobs


class Counted:
    """A storage that counts the calls of its operations."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> object:
        self.calls[name] += 1
        return getattr(self.storage, name)


def join_ours(storage: Storage, owner: str = "ann") -> None:
    storage.join(WorkerInfo(owner, foreman="boss", info={"python": "3.12"}))


def test_handlers_are_called_for_jobs_that_end_while_they_wait(storage: Storage, clock: ManualClock):
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
def test_handlers_are_called_for_jobs_of_foreign_workers(storage: Storage, clock: ManualClock, has_left: bool):
    foreman = Foreman(storage)
    storage.join(WorkerInfo("ruby-1"))
    done, dead = run(storage, add(storage), "ruby-1"), run(storage, add(storage), "ruby-1")
    storage.finish([Completed(done.token), Failed(dead.token, FAILURE)])
    if has_left:
        storage.leave("ruby-1")

    pass_time(clock, 11, foreman)

    assert sorted(foreman.told) == sorted([done.id, dead.id])


def test_what_our_own_workers_end_they_tell_themselves(storage: Storage, clock: ManualClock):
    foreman = Foreman(storage)
    join_ours(storage)
    storage.join(WorkerInfo("ruby-1"))
    jobs = [run(storage, add(storage)) for _ in range(2)]
    storage.finish([Completed(jobs[0].token), Failed(jobs[1].token, FAILURE)])

    pass_time(clock, 11, foreman)
    storage.leave("ann")
    pass_time(clock, 30, foreman)

    assert foreman.told == []


def test_a_foreign_worker_that_comes_after_another_has_left_is_not_missed(storage: Storage, clock: ManualClock):
    foreman = Foreman(storage)
    done = []
    for name in ("ruby-1", "ruby-2"):
        storage.join(WorkerInfo(name))
        pass_time(clock, 12, foreman)
        done.append(run(storage, add(storage), name))
        storage.finish([Completed(done[-1].token)])
        storage.leave(name)
        pass_time(clock, 40, foreman)

    assert foreman.told == [job.id for job in done]


def test_handlers_are_called_for_a_job_that_dies_with_its_worker(storage: Storage):
    foreman = Foreman(storage)
    join_ours(storage)
    job = in_state(storage, RUNNING, max_halts=1)
    storage.rescue_owner("ann", foreman="ann", why="killed")

    foreman.chore.run()

    assert foreman.told == [job.id]


def test_handlers_are_called_for_a_job_whose_worker_was_killed(storage: Storage):
    foreman = Foreman(storage)
    join_ours(storage)
    job = in_state(storage, RUNNING)
    storage.finish([Overrun(job.token, "it ran for longer than 3 s, and its worker did not end it")])
    storage.leave("ann", why="it did not end a job whose time was over")

    foreman.chore.run()

    assert foreman.told == [job.id]


def test_while_there_is_no_worker_it_is_kept(storage: Storage):
    foreman = Foreman(storage)
    foreman.has_workers = False
    job = add(storage)
    storage.abort([job.id])
    foreman.chore.run()
    foreman.has_workers = True

    foreman.chore.run()

    assert foreman.told == [job.id]


def test_of_several_foremen_the_one_that_joined_first_tells(storage: Storage, clock: ManualClock):
    foremen = []
    for name in ("chief", "boss", "head"):
        foremen.append(Foreman(storage, name))
        clock.turn(1)
    jobs = abort_some(storage)

    pass_time(clock, 20, *foremen)

    assert [foreman.told for foreman in foremen] == [jobs, [], []]


def test_a_foreman_that_joins_loses_nothing(storage: Storage, clock: ManualClock):
    first = Foreman(storage)
    jobs = abort_some(storage)
    second = Foreman(storage, "another")
    jobs += abort_some(storage)

    pass_time(clock, 20, second, first)

    assert first.told + second.told == jobs


def test_when_the_caller_dies_the_next_continues_from_its_position(storage: Storage, clock: ManualClock):
    caller = Foreman(storage)
    clock.turn(1)
    next_one = Foreman(storage, "next")
    told = abort_some(storage)
    pass_time(clock, 1, caller, next_one)
    late = abort_some(storage)
    pass_time(clock, LEASE, next_one)
    late += abort_some(storage)

    pass_time(clock, 12, next_one)

    assert (caller.told, next_one.told) == (told, late)


def test_calls_after_the_last_recorded_position_are_repeated(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    caller = Foreman(storage)
    with monkeypatch.context() as patched:
        patched.setattr(storage, "record_stat", lambda *_: None)  # it dies just before
        jobs = abort_some(storage)
        caller.chore.run()
    storage.leave("boss")

    next_one = Foreman(storage, "next")

    assert caller.told == next_one.told == jobs


def test_a_teller_that_leaves_is_followed_by_the_next(storage: Storage, clock: ManualClock):
    Foreman(storage)
    next_one = Foreman(storage, "next")
    storage.leave("boss")
    jobs = abort_some(storage)

    pass_time(clock, 11, next_one)

    assert next_one.told == jobs


def test_a_frozen_caller_continues_where_its_successor_is(storage: Storage, clock: ManualClock):
    frozen = Foreman(storage)
    clock.turn(1)
    other = Foreman(storage, "other")
    pass_time(clock, LEASE + 1, other)
    jobs = abort_some(storage)
    pass_time(clock, 12, other)
    more = abort_some(storage)

    pass_time(clock, 20, frozen, other)

    assert (other.told, frozen.told) == (jobs, more)


def test_a_caller_without_the_storage_continues_where_its_successor_is(
    storage: Storage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    cut_off = Foreman(storage)
    clock.turn(1)
    other = Foreman(storage, "other")
    jobs: list[str] = []
    for _ in range(LEASE + 12):
        with monkeypatch.context() as patched:
            patched.setattr(storage, "events", unreachable)
            patched.setattr(storage, "workers", unreachable)
            with pytest.raises(StorageUnavailable):
                cut_off.chore.run()
        jobs += abort_some(storage, 1)
        pass_time(clock, 1, other)
    pass_time(clock, 12, other)

    pass_time(clock, 20, cut_off, other)

    assert (other.told, cut_off.told) == (jobs, [])


def unreachable(*_: object, **__: object) -> None:
    raise StorageUnavailable("the storage is away")


def test_a_forgotten_foreman_that_joins_again_loses_nothing(storage: Storage):
    foreman = Foreman(storage)
    storage.leave("boss")
    jobs = abort_some(storage)
    foreman.chore.run()
    assert foreman.told == []

    foreman.id = "boss again"
    foreman.join()
    foreman.chore.run()

    assert foreman.told == jobs


def test_foremen_without_handlers_or_workers_tell_nothing_while_another_can(storage: Storage, clock: ManualClock):
    Foreman(storage, "no handlers", tells_results=False)
    storage.join(WorkerInfo("no workers", Subject.FOREMAN, info={"target": "shop:app"}))
    storage.heartbeat({"no workers": {"online": 0}})
    clock.turn(1)
    able = Foreman(storage, "able", tells_results=True)
    jobs = abort_some(storage)

    able.chore.run()

    assert able.told == jobs


def test_one_that_was_there_before_the_first_mark_begins_when_it_joined(storage: Storage, clock: ManualClock):
    storage.join(WorkerInfo("dies immediately", Subject.FOREMAN, info={"target": "shop:app"}))
    clock.turn(1)
    next_one = Foreman(storage, "next")
    jobs = abort_some(storage)

    pass_time(clock, LEASE + 11, next_one)

    assert next_one.told == jobs


def test_apps_do_not_disturb_each_other(storage: Storage, clock: ManualClock):
    shop, mill = Foreman(storage), Foreman(storage, "miller", target="mill:app")
    told = abort_some(storage)
    pass_time(clock, 3, shop, mill)
    storage.leave("boss")
    late = abort_some(storage)
    pass_time(clock, LEASE + 20, mill)

    again = Foreman(storage, "next")

    assert mill.told == told + late
    assert (shop.told, again.told) == (told, late)


def test_while_nothing_ends_who_does_not_tell_reads_nothing_but_who_is_there(clock: ManualClock):
    storage = Counted(Memory(clock))
    first = Foreman(cast(Storage, storage))
    clock.turn(1)
    second = Foreman(cast(Storage, storage), "second")
    pass_time(clock, 1, first)
    storage.calls.clear()

    pause = second.chore.run()

    assert pause == 10.0
    assert storage.calls.keys() == {"now", "workers"}

    storage.calls.clear()
    first.chore.run()

    assert storage.calls == {"events": 1}


def test_what_has_happened_is_not_read_again_and_again(storage: Storage, clock: ManualClock):
    foreman = Foreman(storage)
    for _ in range(50):
        add(storage)
    pass_time(clock, 25, foreman)
    asked: list[int | None] = []
    events = storage.events

    def noting(where: EventFilter, **options: Any) -> list[Event]:
        asked.append(where.after)
        return events(where, **options)

    storage.events = noting  # type: ignore[method-assign]
    foreman.chore.run()

    assert asked == [events(EventFilter(), limit=1, newest_first=True)[0].id]


def test_very_many_are_handled_in_batches(storage: Storage):
    foreman = Foreman(storage)
    jobs = [add(storage).id for _ in range(501)]
    storage.abort(jobs)

    assert foreman.chore.run() == 0.05
    assert foreman.chore.run() is None
    assert len(foreman.told) == 501


def test_jobs_that_end_while_no_foreman_runs_are_handled_once_by_the_next(storage: Storage):
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


def test_a_foreman_of_another_app_goes_its_own_way(storage: Storage):
    Foreman(storage)
    storage.leave("boss")
    job = add(storage)
    storage.abort([job.id])

    other = Foreman(storage, "other", target="mill:app")

    assert other.told == []


def test_a_foreman_of_an_older_version_that_tells_of_its_part_only_is_not_relied_on(
    storage: Storage, clock: ManualClock
):
    storage.join(WorkerInfo("old", Subject.FOREMAN, info={"target": "shop:app"}))
    clock.turn(1)
    new = Foreman(storage, "new")

    jobs = abort_some(storage)
    pass_time(clock, 15, new)

    assert new.told == jobs


def test_a_foreman_whose_workers_all_end_leaves_telling_to_the_next(storage: Storage, clock: ManualClock):
    first = Foreman(storage, "first")
    clock.turn(1)
    second = Foreman(storage, "second")
    pass_time(clock, 1, first, second)

    first.has_workers = False
    jobs = abort_some(storage)
    for _ in range(15):
        clock.turn(1)
        storage.heartbeat({"first": {"online": 1, "crew": 0}, "second": {"online": 1, "crew": 1}})
        first.chore.run()
        second.chore.run()

    assert (first.told, second.told) == ([], jobs)
