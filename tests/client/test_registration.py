"""The registration of a task is the authority: its jobs have what it says when it matters, unless who enqueued them
chose otherwise. On every storage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse.client.announcements import announce
from packhorse.client.app import Packhorse
from packhorse.client.earlier_jobs import update_earlier_jobs
from packhorse.client.job import JobHandle
from packhorse.conformance.builders import FAILURE
from packhorse.core.clock import SECOND
from packhorse.core.context import current_job
from packhorse.core.errors import StorageUnavailable
from packhorse.core.event import Kind
from packhorse.core.job import NO_LIMIT, OF_TASK, State
from packhorse.core.outcome import Failed
from packhorse.monitor.serializers import job_fields
from packhorse.storage import Storage, open_storage
from packhorse.storage.records import Filter, WorkerInfo
from packhorse.worker.config import WorkerConfig
from packhorse.worker.process import WorkerProcess
from tests.children import until
from tests.storage.conftest import ADDRESSES, chosen_storages, give_back


@pytest.fixture(params=chosen_storages())
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    url = ADDRESSES[request.param](tmp_path)
    storage = open_storage(url)
    yield storage
    storage.close()
    give_back(url)


def fail() -> None:
    raise ValueError("no")


def app_with(storage: Storage, **options: Any) -> Packhorse:
    return Packhorse(storage).register("charge", fail, **options)


def work(app: Packhorse) -> None:
    """Run what is there."""
    WorkerProcess(app, app.storage, WorkerConfig("ann", concurrency=1, burst=True)).run()


def count_calls(storage: Storage, name: str, monkeypatch: pytest.MonkeyPatch, most: int | None = None) -> list[str]:
    """One word for each call of this operation; after so many the storage is away once."""
    calls: list[str] = []
    operation, left = getattr(storage, name), [most]

    def counted(*args: Any, **options: Any) -> Any:
        if left[0] is not None and len(calls) == left[0]:
            left[0] = None
            raise StorageUnavailable("the storage is away")
        calls.append(name)
        return operation(*args, **options)

    monkeypatch.setattr(storage, name, counted)
    return calls


def test_a_job_that_was_enqueued_by_name_before_any_worker_is_tried_as_its_task_says(storage: Storage) -> None:
    job = Packhorse(storage).enqueue("charge")

    work(app_with(storage, retries=0))

    assert (job.refresh().state, job.attempts) == (State.DEAD, 1)


def test_it_comes_into_the_queue_of_its_task_and_gets_its_priority_but_for_what_was_chosen(storage: Storage) -> None:
    stranger = Packhorse(storage)
    plain, chosen = stranger.enqueue("charge"), stranger.enqueue("charge", queue="mine", priority=3)
    later = stranger.enqueue("charge", delay=3600)

    announce(storage, app_with(storage, priority=5, queue="money").announcements())

    told = [(job.refresh().queue, job.priority) for job in (plain, chosen, later)]
    assert told == [("money", 5), ("mine", 3), ("money", 5)]
    assert plain.record.rank == 8
    assert [event.data["by"] for event in plain.events() if event.kind is Kind.QUEUE_CHANGED] == ["its task"]


def test_other_options_that_were_not_chosen_come_from_the_task_too(storage: Storage) -> None:
    options: dict[str, Any] = {"expires": "1h", "total_timeout": "2h", "max_halts": 1, "persistent": True}
    stranger = Packhorse(storage)
    plain, later = stranger.enqueue("charge"), stranger.enqueue("charge", delay=60)
    some = stranger.enqueue("charge", max_halts=3, expires=None)
    every = stranger.enqueue("charge", max_halts=3, expires=None, total_timeout=None, persistent=False)

    announce(storage, app_with(storage, **options).announcements())

    settled = [job.refresh().record for job in (plain, later, some, every)]
    told = [(job.max_halts, job.expires, job.total_timeout, job.persistent) for job in settled]
    hour = 3600 * SECOND
    assert told == [(1, hour, 2 * hour, True)] * 2 + [(3, None, 2 * hour, True), (3, None, None, False)]
    assert settled[0].expire_at == settled[0].queued_at + hour  # type: ignore[operator]
    assert [job.expire_at for job in (settled[1], settled[3])] == [None, None]
    assert [event.object["max_halts"] for event in plain.events(object=True) if event.object] == [3, 1]


def test_the_lowest_priority_and_the_queue_of_its_name_can_be_chosen(storage: Storage) -> None:
    stranger = Packhorse(storage)
    queue, priority = stranger.enqueue("charge", queue="charge"), stranger.enqueue("charge", priority=1)

    announce(storage, app_with(storage, priority=5, queue="money").announcements())

    assert [(job.refresh().queue, job.priority) for job in (queue, priority)] == [("charge", 5), ("money", 1)]


def test_a_job_that_expires_as_its_task_says_is_aborted_although_it_came_first(storage: Storage) -> None:
    job = Packhorse(storage).enqueue("charge")

    announce(storage, app_with(storage, expires=0.000_001).announcements())
    storage.expire()

    assert job.refresh().state is State.ABORTED


def test_many_jobs_that_came_first_are_settled_wherever_they_are(storage: Storage) -> None:
    stranger = Packhorse(storage)
    calls = [stranger.call("charge") for _ in range(1_100)] + [stranger.call("charge", priority=1) for _ in range(3)]
    jobs = stranger.enqueue_many(calls)
    jobs[0].set_queue("elsewhere")

    announce(storage, app_with(storage, priority=5, queue="money").announcements())

    told = [(job.queue, job.priority) for job in storage.get_many([job.id for job in jobs])]
    assert told == [("elsewhere", 5)] + [("money", 5)] * 1_099 + [("money", 1)] * 3


def test_the_choices_of_many_jobs_are_read_many_at_a_time(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = Packhorse(storage)
    chosen: list[dict[str, Any]] = [{}, {"priority": 1}, {}]
    for options in chosen:
        stranger.enqueue_many([stranger.call("charge", **options) for _ in range(900)])
    reads = count_calls(storage, "events", monkeypatch)

    announce(storage, app_with(storage, priority=5, queue="money").announcements())

    assert len(reads) < 100
    assert storage.count(Filter(queue="money", min_priority=5)).number == 1_800
    assert storage.count(Filter(queue="money", max_priority=1)).number == 900


def test_what_was_chosen_is_found_among_the_events_of_others(storage: Storage) -> None:
    stranger = Packhorse(storage)
    chosen: list[dict[str, Any]] = [{}, {"priority": 1}, {"queue": "mine"}, {"max_halts": 3}]
    jobs: list[JobHandle[Any]] = []
    for number in range(24):
        jobs.append(stranger.enqueue("charge", **chosen[number % 4]))
        stranger.enqueue_many([stranger.call("other") for _ in range(30 * (number % 3))])

    announce(storage, app_with(storage, priority=5, queue="money", max_halts=1).announcements())

    told = [(job.queue, job.priority, job.max_halts) for job in storage.get_many([job.id for job in jobs])]
    assert told == [("money", 5, 1), ("money", 1, 1), ("mine", 5, 1), ("money", 5, 3)] * 6


def test_of_a_job_that_was_replaced_the_later_choice_counts(storage: Storage) -> None:
    stranger = Packhorse(storage)
    unique = {"by": ["order"], "on_conflict": "replace"}
    jobs = [stranger.enqueue("charge", {"order": number}, unique=unique) for number in range(6)]
    stranger.enqueue_many([stranger.call("charge") for _ in range(1_000)])
    for number in (2, 3, 4):
        stranger.enqueue("charge", {"order": number}, unique=unique, priority=1)

    announce(storage, app_with(storage, priority=5, queue="money").announcements())

    assert [job.refresh().priority for job in jobs] == [5, 5, 1, 1, 1, 5]


def test_what_an_operator_orders_meanwhile_stays(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = Packhorse(storage)
    moved, raised, plain = (stranger.enqueue("charge") for _ in range(3))
    set_queue = storage.set_queue

    def after_the_operator(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(storage, "set_queue", set_queue)
        moved.set_queue("elsewhere")
        raised.set_priority(9)
        return set_queue(*args, **options)

    monkeypatch.setattr(storage, "set_queue", after_the_operator)
    announce(storage, app_with(storage, priority=5, queue="money").announcements())

    told = [(job.refresh().queue, job.priority) for job in (moved, raised, plain)]
    assert told == [("elsewhere", 5), ("money", 9), ("money", 5)]


def test_who_is_cut_off_on_the_way_leaves_the_rest_to_the_next(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = Packhorse(storage)
    stranger.enqueue_many([stranger.call("charge") for _ in range(1_000)])
    stranger.enqueue_many([stranger.call("charge") for _ in range(10)])
    told = app_with(storage, priority=5, queue="money").announcements()
    writes = count_calls(storage, "set_queue", monkeypatch, most=1)

    with pytest.raises(StorageUnavailable):
        announce(storage, told)
    half = storage.count(Filter(queue="money")).number
    writes.clear()
    announce(storage, told)
    announce(storage, told)

    assert half == 1_000
    assert len(writes) == 1
    assert storage.count(Filter(queue="money", min_priority=5)).number == 1_010


def test_who_comes_second_writes_nothing_for_what_is_settled(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = Packhorse(storage)
    stranger.enqueue_many([stranger.call("charge"), stranger.call("charge", queue="mine"), stranger.call("charge")])
    told = app_with(storage, priority=5, queue="money").announcements()
    update_earlier_jobs(storage, told)
    writes = count_calls(storage, "set_queue", monkeypatch)

    announce(storage, told)

    assert not writes


def test_a_task_that_was_known_before_moves_no_job(storage: Storage) -> None:
    app = app_with(storage)
    announce(storage, app.announcements())
    job = app.enqueue("charge", priority=1)

    announce(storage, app_with(storage, priority=5).announcements())

    assert job.refresh().priority == 1


def test_a_deploy_that_changes_retries_reaches_jobs_that_wait(storage: Storage) -> None:
    before = app_with(storage, retries=8, backoff=0)
    job, own = before.enqueue("charge"), before.enqueue("charge", retries=2)

    work(app_with(storage, retries=1, backoff=0))

    assert [(each.refresh().state, each.attempts) for each in (job, own)] == [(State.DEAD, 2), (State.DEAD, 3)]


def test_a_deploy_that_changes_the_timeout_reaches_jobs_that_wait(storage: Storage) -> None:
    left: dict[str, float | None] = {}

    def note(name: str) -> None:
        left[name] = current_job().seconds_left

    before = Packhorse(storage).register("note", note, timeout="10h")
    before.enqueue("note", {"name": "plain"})
    before.enqueue("note", {"name": "chosen"}, timeout="5h")
    before.enqueue("note", {"name": "none"}, timeout=None)

    work(Packhorse(storage).register("note", note, timeout="1h"))

    plain, chosen = left["plain"], left["chosen"]
    assert plain is not None
    assert chosen is not None
    assert plain <= 3_600 < chosen <= 5 * 3_600
    assert left["none"] is None


def test_only_what_was_chosen_is_stored(storage: Storage) -> None:
    app = app_with(storage, retries=8, timeout="1m", idle_timeout="5s")

    plain = app.enqueue("charge").refresh()
    chosen = app.enqueue("charge", retries=2, timeout="2m", idle_timeout=None).refresh()

    assert [plain.record.max_attempts, plain.record.timeout, plain.record.idle_timeout] == [OF_TASK, None, None]
    assert [chosen.record.max_attempts, chosen.record.timeout, chosen.record.idle_timeout] == [
        3,
        120 * SECOND,
        NO_LIMIT,
    ]


def test_what_a_job_leaves_to_its_task_is_shown_and_marked_as_that(storage: Storage) -> None:
    app = app_with(storage, retries=8, timeout="1m")
    announce(storage, app.announcements())
    plain, chosen = app.enqueue("charge"), app.enqueue("charge", retries=2, timeout=None)
    elsewhere = Packhorse(storage)

    fields = job_fields(elsewhere.get(plain.id).effective)
    others = job_fields(elsewhere.get(chosen.id).effective)

    assert (fields.max_attempts, fields.timeout, fields.idle_timeout) == (9, 60, None)
    assert fields.from_task == ["max_attempts", "timeout", "idle_timeout"]
    assert (others.max_attempts, others.timeout) == (3, None)
    assert others.from_task == ["idle_timeout"]
    assert (plain.max_attempts, plain.attempts_left, chosen.attempts_left) == (9, 9, 3)


def test_a_worker_that_does_not_say_how_often_leaves_it_at_the_usual_number(storage: Storage) -> None:
    job = Packhorse(storage).enqueue("charge")
    storage.join(WorkerInfo("ruby"))

    for _ in range(4):
        until(lambda: storage.promote() or job.refresh().state is State.QUEUED, "it is queued")
        (held,) = storage.reserve("ruby", {"charge": 1}, 1)
        storage.finish([Failed(held.token, FAILURE, retry_in=1)])
        time.sleep(0.001)

    assert (job.refresh().state, job.attempts) == (State.DEAD, 4)
