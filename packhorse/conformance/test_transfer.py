"""Moving: what another storage gets is what was there, and a storage that bears a mark changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import random
from typing import Any

import pytest

from packhorse.conformance.builders import (
    FAILURE,
    add,
    ids,
    in_state,
    join,
    kinds,
    new_job,
    reserve_ids,
    run,
    stored,
    take,
    unique,
)
from packhorse.conformance.sample_data import as_closed, assert_same, fill, read_everything
from packhorse.core.clock import SECOND, ManualClock
from packhorse.core.errors import CopyRefused, NotUnique, StorageClosed
from packhorse.core.event import Kind
from packhorse.core.job import HELD, QUEUED, RUNNING, Token
from packhorse.core.outcome import Completed, Failed, Verdict
from packhorse.storage import open_storage
from packhorse.storage.contract import Storage
from packhorse.storage.copy_store import End, cancel, copy_storage
from packhorse.storage.records import (
    ClientInfo,
    EventFilter,
    Filter,
    LogLine,
    Placement,
    Pruned,
    Retention,
    ScheduleInfo,
    TaskInfo,
    Tick,
    WorkerInfo,
)
from packhorse.storage.transfer import Move, Section, Stage

NOTHING_KEPT = Retention(completed=0, dead=0, aborted=0, events=0, clients=0)
MARK = Move("copy-1", Stage.CLOSING, "redis://elsewhere", 1)


def move_to(source: Storage, target: Storage, name: str = "there") -> dict[str, int]:
    return copy_storage(End(source, "here"), End(target, name), patience=0)


def marked(storage: Storage, stage: Stage) -> Move:
    mark = Move("copy-1", stage, "redis://elsewhere", 1)
    assert storage.set_move(mark, expected=storage.move())
    return mark


# --- what another storage gets ----------------------------------------------------------------------------------------


def test_a_storage_in_memory_has_all_that_was_here(storage: Storage, clock: ManualClock) -> None:
    fill(storage, clock)
    before = read_everything(storage)
    there = open_storage("memory://", now=clock)

    move_to(storage, there)

    assert_same(read_everything(there), before)
    assert_same(read_everything(storage), as_closed(before))


@pytest.fixture
def heir(storage: Storage, clock: ManualClock) -> Storage:
    """A storage that was filled from one in memory, and has it all now."""
    source = open_storage("memory://", now=clock)
    fill(source, clock)
    move_to(source, storage)
    return storage


def test_jobs_are_reserved_in_their_order_after_a_move(heir: Storage) -> None:
    line = heir.find(Filter(states=frozenset({QUEUED}), queue="line")).jobs

    assert [job.rank for job in line[:4]] == [1, 4, 4, 12]
    assert reserve_ids(heir, "line") == ids(line)
    assert reserve_ids(heir, "mail") == []  # it is paused


def test_new_jobs_events_and_lines_come_behind_those_that_were_moved(heir: Storage) -> None:
    newest = heir.events(EventFilter(), limit=1, newest_first=True)[0].id
    last = max(job.seq for job in read_everything(heir)["jobs"])
    lines = max(line.id for log in read_everything(heir)["logs"].values() for line in log)

    job = run(heir, add(heir, queue="new"))
    heir.append_log(job.token, [LogLine("new")])

    assert job.seq > last
    assert all(event.id > newest for event in heir.events(EventFilter(job_id=job.id)))
    assert [line.id > lines for line in heir.log_lines(job.id)] == [True]


def test_what_was_moved_can_be_worked_on(heir: Storage) -> None:
    (job,) = heir.find(Filter(queue="halting")).jobs
    before = kinds(heir, job.id)

    token = take(heir, job, "bob").token
    assert heir.finish([Completed(token, '"done"')]) == [Verdict.ACCEPTED]

    assert kinds(heir, job.id) == [*before, "reserved", "started", "completed"]
    assert stored(heir, job.id).fence == job.fence + 1
    assert heir.finish([Completed(Token(job.id, "ann", job.fence))]) == [Verdict.STALE]
    assert [line.message for line in heir.log_lines(job.id)][-1] == "λ another\n🐴"


def test_unique_keys_are_held_after_a_move(heir: Storage) -> None:
    (holder,) = heir.find(Filter(queue="locked")).jobs

    again = heir.enqueue([new_job("twin", queue="locked", unique=unique("k", on_conflict="replace"))])
    kept = heir.enqueue([new_job(queue="locked", unique=unique("k"))])

    assert [(one.job_id, one.placement) for one in (*again, *kept)] == [
        (holder.id, Placement.REPLACED),
        (holder.id, Placement.KEPT),
    ]
    with pytest.raises(NotUnique):
        heir.enqueue([new_job(unique=unique("kept", on_conflict="reject"))])


def test_what_was_moved_can_be_pruned_to_the_end(heir: Storage, clock: ManualClock) -> None:
    clock.turn(1)
    for client in heir.clients():
        heir.leave_client(client.id)
    while heir.prune(NOTHING_KEPT).more:
        pass
    heir.prune(NOTHING_KEPT)

    assert len(heir.events(EventFilter(), limit=9_999)) <= 1
    assert not heir.failures()
    assert not heir.ticks("nightly")


def test_schedules_tick_on_after_a_move(heir: Storage, clock: ManualClock) -> None:
    (nightly,) = (one for one in heir.schedules() if one.name == "nightly")
    clock.turn(60)

    new = new_job(queue="mail", schedule="nightly")
    told = heir.tick("nightly", nightly.next_at, clock() + SECOND, [new], [Tick("nightly", clock(), "enqueued", 0)])

    assert told is not None
    assert len(heir.ticks("nightly")) == 3
    assert heir.tick("paused", 0, 1, [], []) is None


# --- marks ------------------------------------------------------------------------------------------------------------


def test_a_mark_is_put_only_in_the_place_of_the_expected_one(storage: Storage, neighbour: Storage) -> None:
    later = Move("copy-1", Stage.FROZEN, "redis://elsewhere", 1, "jobs", "[1]", {"jobs": 2}, {"jobs": 3})

    answers = [
        storage.set_move(later, expected=MARK),
        storage.set_move(MARK, expected=None),
        storage.set_move(MARK, expected=None),
        neighbour.set_move(later, expected=MARK),
    ]

    assert answers == [False, True, False, True]
    assert storage.move() == neighbour.move() == later
    assert storage.set_move(None, expected=later)
    assert neighbour.move() is None


def test_a_closing_storage_takes_no_jobs_and_hands_none_out(storage: Storage, neighbour: Storage) -> None:
    running, waiting = run(storage, add(storage)), add(neighbour)
    marked(storage, Stage.CLOSING)

    for one in (storage, neighbour):
        with pytest.raises(StorageClosed, match="is being moved to redis://elsewhere"):
            one.enqueue([new_job()])
        with pytest.raises(StorageClosed):
            one.enqueue([new_job(), new_job()])
        with pytest.raises(StorageClosed):
            one.enqueue([new_job(unique=unique())])
        assert one.reserve("ann", {"mail": 1}, 5) == []
    assert neighbour.finish_and_reserve([Completed(running.token)], "ann", {"mail": 1}, 5) == ([Verdict.ACCEPTED], [])
    assert storage.abort([waiting.id])[0].changed
    assert len(storage.find(Filter()).jobs) == 2


def test_a_storage_that_was_closed_goes_on_when_it_is_opened(storage: Storage, neighbour: Storage) -> None:
    job = add(neighbour)
    mark = marked(storage, Stage.CLOSING)
    with pytest.raises(StorageClosed):
        neighbour.enqueue([new_job()])

    storage.set_move(None, expected=mark)

    assert neighbour.enqueue([new_job("second")])[0].is_new
    assert reserve_ids(neighbour) == [job.id, "second"]


def test_nobody_is_woken_for_what_is_not_handed_out(storage: Storage, clock: ManualClock) -> None:
    join(storage)
    add(storage), add(storage, delay=SECOND)
    marked(storage, Stage.MOVED)
    clock.turn(10)

    woken = 0
    for _ in range(5):
        assert storage.reserve("ann", {"mail": 1}, 5) == []
        woken += storage.wait(0.03, ["mail"])

    assert woken <= 1  # for what came in before the mark


def test_when_the_mark_is_there_no_call_is_still_under_way(storage: Storage, neighbour: Storage) -> None:
    stop, many, stored_ids = threading.Event(), threading.Event(), set[str]()

    def enqueue() -> None:
        while not stop.is_set():
            new = new_job(unique=unique(f"key-{random()}")) if random() < 0.5 else new_job()
            try:
                neighbour.enqueue([new])
            except StorageClosed:
                return
            stored_ids.add(new.id)
            if len(stored_ids) >= 20:
                many.set()

    def reserve() -> None:
        while not stop.is_set():
            neighbour.reserve("ann", {"mail": 1}, 3)

    join(storage)
    threads = [threading.Thread(target=work) for work in (enqueue, enqueue, enqueue, reserve)]
    for thread in threads:
        thread.start()
    assert many.wait(60), "no jobs come in"
    marked(storage, Stage.CLOSING)
    before = storage.tallies()
    for thread in threads[:3]:
        thread.join()
    stop.set()
    threads[3].join()

    assert storage.tallies() == before
    assert sum(tally.number for tally in before) == len(stored_ids)


def operations(job_id: str, token: Token) -> dict[str, Callable[[Storage], Any]]:
    return {
        "enqueue": lambda storage: storage.enqueue([new_job()]),
        "abort": lambda storage: storage.abort([job_id]),
        "force_start": lambda storage: storage.force_start([job_id]),
        "set_priority": lambda storage: storage.set_priority([job_id], 7),
        "set_queue": lambda storage: storage.set_queue([job_id], "slow"),
        "retry": lambda storage: storage.retry([job_id]),
        "delete": lambda storage: storage.delete([job_id]),
        "pause": lambda storage: storage.pause("mail"),
        "resume": lambda storage: storage.resume("stopped"),
        "put_schedules": lambda storage: storage.put_schedules([ScheduleInfo("n", "t", "* * * * *")]),
        "pause_schedule": lambda storage: storage.pause_schedule("nightly", True),
        "record_operator_event": lambda storage: storage.record_operator_event("nightly", Kind.SKIPPED, slot=1),
        "remove_schedule": lambda storage: storage.remove_schedule("nightly"),
        "announce": lambda storage: storage.announce([TaskInfo("t", "q")]),
        "join": lambda storage: storage.join(WorkerInfo("bob")),
        "join_client": lambda storage: storage.join_client(ClientInfo("dora")),
        "leave_client": lambda storage: storage.leave_client("carl"),
        "subscribe": lambda storage: storage.subscribe("carl", [job_id]),
        "acknowledge": lambda storage: storage.acknowledge("carl", [job_id]),
        "silence_failure": lambda storage: storage.silence_failure(storage.failures()[0].cause, 60 * SECOND),
    }


QUIET: dict[str, tuple[Callable[[Storage], Any], Any]] = {
    "reserve": (lambda storage: storage.reserve("ann", {"mail": 1}, 5), []),
    "tick": (lambda storage: storage.tick("nightly", 1, 2, [new_job()], []), None),
    "promote": (lambda storage: storage.promote(), 0),
    "expire": (lambda storage: storage.expire(), 0),
    "rescue": (lambda storage: storage.rescue(lease=1, why="silent"), []),
    "prune": (lambda storage: storage.prune(NOTHING_KEPT), Pruned()),
    "roll_up": (lambda storage: storage.roll_up(), None),
}


@pytest.mark.parametrize("stage", [Stage.FROZEN, Stage.MOVED, Stage.FILLING])
def test_nothing_changes_in_a_storage_that_is_copied(storage: Storage, stage: Stage, clock: ManualClock) -> None:
    storage.join_client(ClientInfo("carl"))
    job = in_state(storage, QUEUED, queue="mail", expires=5 * SECOND, subscriber="carl")
    add(storage, delay=SECOND, queue="mail")
    done = run(storage, add(storage, queue="done"))
    storage.finish([Completed(done.token)])
    storage.finish([Failed(run(storage, add(storage, queue="failed")).token, FAILURE)])
    storage.pause("stopped")
    storage.put_schedules([ScheduleInfo("nightly", "send", "* * * * *", next_at=1)])
    clock.turn(5 * 3600)
    before = as_closed(read_everything(storage))
    marked(storage, stage)

    for call in operations(job.id, done.token).values():
        with pytest.raises(StorageClosed):
            call(storage)
    told = {name: call(storage) for name, (call, _) in QUIET.items()}
    assert storage.append_log(done.token, [LogLine("late")]) is Verdict.STALE
    assert storage.finish([Completed(Token(job.id, "ann", 1))]) == [Verdict.STALE]

    assert told == {name: answer for name, (_, answer) in QUIET.items()}
    assert storage.next_due() is None
    assert_same(read_everything(storage), before)


# --- loading ----------------------------------------------------------------------------------------------------------


def test_a_page_is_loaded_once(storage: Storage, neighbour: Storage, clock: ManualClock) -> None:
    source = open_storage("memory://", now=clock)
    add(source, "one"), add(source, "two")
    rows = source.dump(Section.JOBS).rows
    mark = marked(storage, Stage.FILLING)
    after = Move("copy-1", Stage.FILLING, "redis://elsewhere", 1, "locks")

    answers = [one.load(Section.JOBS, rows, after, expected=mark) for one in (storage, neighbour, storage)]

    assert answers == [True, False, False]
    assert ids(storage.get_many(["one", "two"])) == ["one", "two"]
    assert [tally.number for tally in storage.tallies()] == [2]
    assert storage.move() == after


def test_every_section_is_dumped_in_pages_of_any_size(storage: Storage, clock: ManualClock) -> None:
    fill(storage, clock)

    for section in Section:
        whole = dumped(storage, section, limit=1_000)
        assert whole, section
        assert sorted(map(repr, dumped(storage, section, limit=2))) == sorted(map(repr, whole)), section


def dumped(storage: Storage, section: Section, limit: int) -> list[Any]:
    rows, cursor = [], None
    while True:
        page = storage.dump(section, cursor=cursor, limit=limit)
        rows += page.rows
        if (cursor := page.next) is None:
            return rows


# --- the whole copy ---------------------------------------------------------------------------------------------------


def test_a_held_job_is_waited_for_and_then_all_goes_on_as_before(storage: Storage) -> None:
    running = run(storage, add(storage))
    target = open_storage("memory://")

    with pytest.raises(CopyRefused, match="1 job did not end in time"):
        move_to(storage, target)

    assert storage.move() is None
    assert target.move() is None
    assert storage.enqueue([new_job()])[0].is_new
    assert stored(storage, running.id).state is RUNNING


def test_a_storage_is_not_copied_to_one_that_has_something(storage: Storage) -> None:
    target = open_storage("memory://")
    add(target)
    add(storage)

    with pytest.raises(CopyRefused, match="there is not empty: it has 1 job"):
        move_to(storage, target)

    assert storage.move() is None


@pytest.mark.parametrize("kind", ["tasks", "queues", "clients"])
def test_a_storage_is_not_copied_to_one_that_knows_names(storage: Storage, kind: str) -> None:
    source = open_storage("memory://")
    add(source, task="send", queue="mail")
    if kind == "tasks":
        storage.announce([TaskInfo("send", "mail")])
    elif kind == "queues":
        storage.pause("mail")
    else:
        storage.join_client(ClientInfo("carl"))

    with pytest.raises(CopyRefused, match="there is not empty: it has"):
        move_to(source, storage)

    assert source.move() is None
    assert storage.move() is None


def test_a_storage_is_not_copied_to_itself_under_another_name(storage: Storage, neighbour: Storage) -> None:
    add(storage)

    with pytest.raises(CopyRefused, match="here and there seem to be the same storage") as caught:
        move_to(storage, neighbour)

    assert "drop" not in (caught.value.hint or "")
    assert storage.move() is None


def test_a_storage_is_not_copied_to_itself(storage: Storage, neighbour: Storage) -> None:
    with pytest.raises(CopyRefused, match="here and there are the same storage"):
        move_to(storage, neighbour)

    assert storage.move() is None


class Broken(Exception):
    """The copying process ends here."""


class Breaking:
    """A storage whose every `load` after the first few does its work and then loses the answer, and the caller."""

    def __init__(self, storage: Storage, loads: int) -> None:
        self._storage = storage
        self._loads = loads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def load(self, *args: Any, **kwargs: Any) -> bool:
        self._storage.load(*args, **kwargs)
        self._loads -= 1
        if self._loads <= 0:
            raise Broken
        return True


def test_a_copy_that_is_broken_off_after_any_page_goes_on(
    storage: Storage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.storage.copy_store.BATCH", 20)
    source = open_storage("memory://", now=clock)
    fill(source, clock)
    before, tries, counts = read_everything(source), 0, dict[str, int]()

    while not counts:
        breaking: Any = Breaking(storage, loads=3)
        try:
            counts = move_to(source, breaking)
        except Broken:
            tries += 1
            with pytest.raises(StorageClosed):
                storage.enqueue([new_job()])

    assert tries > 5
    assert counts["jobs"] == len(before["jobs"])
    assert_same(read_everything(storage), before)
    assert storage.move() is None
    assert source.move().stage is Stage.MOVED  # type: ignore[union-attr]


def test_a_copy_is_cancelled_and_its_storage_goes_on(storage: Storage, clock: ManualClock) -> None:
    fill(storage, clock)
    target = open_storage("memory://", now=clock)
    with pytest.raises(Broken):
        move_to(storage, Breaking(target, loads=2))  # type: ignore[arg-type]

    cancel(End(storage, "here"))

    assert storage.enqueue([new_job()])[0].is_new
    with pytest.raises(CopyRefused, match="has a part of a copy that was cancelled"):
        move_to(storage, target)
    with pytest.raises(StorageClosed, match="is being filled from here"):
        target.enqueue([new_job()])


def test_a_storage_that_was_moved_says_where_to(storage: Storage) -> None:
    add(storage)
    move_to(storage, open_storage("memory://"))

    for call in (lambda: storage.enqueue([new_job()]), lambda: join(storage, "bob")):
        with pytest.raises(StorageClosed, match="this storage was moved to there"):
            call()
    with pytest.raises(CopyRefused, match="here was moved to there"):
        move_to(storage, open_storage("memory://"))
    with pytest.raises(CopyRefused, match="was moved"):
        cancel(End(storage, "here"))
    assert "this storage was moved to there" in storage.health().problems
    assert not storage.find(Filter(states=HELD)).jobs
