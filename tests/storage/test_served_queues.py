"""A worker serves every queue that holds jobs of its tasks, on every storage; it is woken for one that is new."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.client.app import Packhorse
from packhorse.core.job import COMPLETED, SCHEDULED, NewJob, State
from packhorse.storage import Storage, open_storage
from packhorse.storage.records import WorkerInfo
from packhorse.worker.config import WorkerConfig
from packhorse.worker.process import WorkerProcess
from tests.children import PATIENCE, until
from tests.storage.conftest import ADDRESSES, give_back, storages


class Crew:
    """Workers in threads, each with tasks of its own."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.ran: list[str] = []
        self._running: list[tuple[WorkerProcess, threading.Thread]] = []

    def app(self, *tasks: str, **options: object) -> Packhorse:
        app = Packhorse(self.storage)
        for name in tasks:
            app.register(name, lambda name=name: self.ran.append(name), **options)
        return app

    def start(self, app: Packhorse, owner: str = "ann", **options: object) -> threading.Thread:
        worker = WorkerProcess(app, self.storage, WorkerConfig(owner, concurrency=2, **options))
        thread = threading.Thread(target=worker.run, daemon=True)
        self._running.append((worker, thread))
        thread.start()
        if not options.get("burst"):
            until(lambda: any(each.id == owner for each in self.storage.workers()), f"{owner} has joined")
        return thread

    def state(self, job_id: str) -> State:
        job = self.storage.get(job_id)
        assert job is not None
        return job.state

    def close(self) -> None:
        for worker, _ in self._running:
            worker.quit()
        for _, thread in self._running:
            thread.join(PATIENCE)


@pytest.fixture(params=storages("sqlite", "redis"))
def crew(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Crew]:
    url = ADDRESSES[request.param](tmp_path)
    storage = open_storage(url)
    crew = Crew(storage)
    yield crew
    crew.close()
    storage.close()
    give_back(url)


def test_a_worker_is_woken_for_a_queue_that_no_task_names(crew: Crew) -> None:
    app = crew.app("send")
    crew.start(app)
    for queue in ("bulk", "bulk.de", "bulk.fr"):
        job = app.enqueue("send", queue=queue)
        until(lambda job=job: crew.state(job.id) is COMPLETED, f"the job in {queue} is done")


def test_a_worker_serves_the_queues_in_which_it_finds_jobs_of_its_tasks(crew: Crew) -> None:
    crew.storage.enqueue([NewJob("a" * 16, "send", "old"), NewJob("b" * 16, "send", "older", delay=1_000_000)])
    crew.start(crew.app("send", queue="new"))

    until(lambda: [crew.state("a" * 16), crew.state("b" * 16)] == [COMPLETED, COMPLETED], "both are done")


def test_a_job_that_is_moved_to_a_new_queue_runs(crew: Crew) -> None:
    app = crew.app("send")
    job = app.enqueue("send", delay=3600)
    crew.start(app)

    crew.storage.set_queue([job.id], "bulk")
    crew.storage.force_start([job.id])

    until(lambda: crew.state(job.id) is COMPLETED, "it is done")


def test_a_burst_ends_when_every_queue_is_empty(crew: Crew) -> None:
    crew.storage.enqueue([NewJob("a" * 16, "send", "bulk"), NewJob("b" * 16, "strange", "bulk")])

    crew.start(crew.app("send"), burst=True).join(PATIENCE)

    assert crew.state("a" * 16) is COMPLETED


def test_names_and_patterns_narrow_what_is_served(crew: Crew) -> None:
    queues = ("mail", "bulk.de", "bulk.fr", "other")
    crew.storage.enqueue([NewJob(name.ljust(16, "x"), "send", name) for name in queues])

    crew.start(crew.app("send"), queues=["mail", "bulk.*"], burst=True).join(PATIENCE)

    states = {name: crew.state(name.ljust(16, "x")) for name in queues}
    assert states.pop("other") is State.QUEUED
    assert set(states.values()) == {COMPLETED}


def test_a_queue_that_is_named_is_served_though_no_task_has_it(crew: Crew) -> None:
    crew.storage.enqueue([NewJob("a" * 16, "send", "bulk"), NewJob("b" * 16, "send", "send")])

    crew.start(crew.app("send"), queues=["bulk"], burst=True).join(PATIENCE)

    assert (crew.state("a" * 16), crew.state("b" * 16)) == (COMPLETED, State.QUEUED)


def test_workers_of_other_tasks_leave_a_new_queue_alone(crew: Crew) -> None:
    ann, bob = crew.app("send"), crew.app("print")
    crew.start(ann, "ann")
    crew.start(bob, "bob")

    job = ann.enqueue("send", queue="bulk")
    until(lambda: crew.state(job.id) is COMPLETED, "it is done")

    assert "bulk" not in crew._running[1][0].executors.served_queues.queues
    assert [event.kind.value for event in job.events()] == ["added", "reserved", "started", "completed"]


def test_an_unknown_task_in_a_shared_queue_waits_and_blocks_nobody(crew: Crew) -> None:
    strangers = [NewJob(f"{number:016}", "strange", "bulk") for number in range(20)]
    crew.storage.enqueue([*strangers, NewJob("f" * 16, "send", "bulk")])

    crew.start(crew.app("send", queue="bulk"))

    until(lambda: crew.state("f" * 16) is COMPLETED, "the known one is done")
    until(lambda: {crew.state(job.id) for job in strangers} == {SCHEDULED}, "the others wait")


def test_jobs_that_nobody_knows_keep_no_known_one_waiting_in_a_queue_that_no_task_names(crew: Crew) -> None:
    strangers = [NewJob(f"{number:016}", "strange", "bulk") for number in range(60)]
    crew.storage.enqueue([*strangers, NewJob("f" * 16, "send", "bulk")])

    crew.start(crew.app("send"))

    until(lambda: crew.state("f" * 16) is COMPLETED, "the known one is done")


def test_a_queue_in_which_others_take_what_is_unknown_here_is_left_to_them_for_a_while(crew: Crew) -> None:
    crew.storage.join(WorkerInfo("bob", queues=["bulk"]))
    crew.storage.enqueue([NewJob("a" * 16, "strange", "bulk"), NewJob("b" * 16, "send", "bulk", delay=3_600_000_000)])

    crew.start(crew.app("send"))

    until(lambda: crew.state("a" * 16) is SCHEDULED, "it is handed back")
    served = crew._running[0][0].executors.served_queues
    assert served.is_of_others("bulk")
    assert "bulk" not in served.queues


def test_a_queue_in_which_nothing_waits_that_is_known_here_is_left_for_a_while(crew: Crew) -> None:
    strangers = [NewJob(f"{number:016}", "strange", "bulk") for number in range(5)]
    crew.storage.enqueue([*strangers, NewJob("b" * 16, "send", "bulk", delay=3_600_000_000)])

    crew.start(crew.app("send"))

    until(lambda: any(crew.state(job.id) is SCHEDULED for job in strangers), "one is handed back")
    until(lambda: "bulk" not in crew._running[0][0].executors.served_queues.queues, "the queue is left")


def test_by_age_the_oldest_goes_first_whatever_its_queue(crew: Crew) -> None:
    queues = ("a", "b", "a", "a", "c", "b", "a", "b")
    app = Packhorse(crew.storage)
    crew.storage.announce([], order="created")
    app.register("note", lambda number: crew.ran.append(number))
    for number, queue in enumerate(queues):
        app.enqueue("note", {"number": number}, queue=queue, priority=2 if number == 6 else 1)
    app.enqueue("note", {"number": 99}, queue="paused")
    crew.storage.pause("paused")

    worker = WorkerProcess(app, crew.storage, WorkerConfig("ann", concurrency=1, burst=True))
    worker.run()
    assert crew.ran == [6, 0, 1, 2, 3, 4, 5, 7]

    crew.storage.resume("paused")  # after a restart, and with others that came in meanwhile
    app.enqueue("note", {"number": 100}, queue="a")
    WorkerProcess(app, crew.storage, WorkerConfig("bob", concurrency=1, burst=True)).run()
    assert crew.ran[-2:] == [99, 100]


def test_the_order_that_one_program_sets_is_that_of_all_workers(crew: Crew) -> None:
    setting, plain = Packhorse(crew.storage, order="created"), Packhorse(crew.storage)
    for app in (setting, plain):
        app.register("note", lambda number: crew.ran.append(number))

    WorkerProcess(setting, crew.storage, WorkerConfig("ann", concurrency=1, burst=True)).run()
    for number, queue in enumerate("aaab"):
        plain.enqueue("note", {"number": number}, queue=queue)
    WorkerProcess(plain, crew.storage, WorkerConfig("bob", concurrency=1, burst=True)).run()

    assert crew.ran == [0, 1, 2, 3]
    assert crew.storage.poll("", []).order == "created"


def test_a_worker_follows_the_order_that_its_foreman_tells(crew: Crew) -> None:
    app = Packhorse(crew.storage)
    app.register("note", lambda number: crew.ran.append(number))
    worker = WorkerProcess(app, crew.storage, WorkerConfig("ann", concurrency=1))
    for number, queue in enumerate("aaab"):
        app.enqueue("note", {"number": number}, queue=queue)

    def take() -> list[str]:
        jobs = worker.loop.fetcher.reserve(3)
        crew.storage.release([job.token for job in jobs], "for another look")
        return sorted(job.queue for job in jobs)

    crew.storage.join(WorkerInfo("ann"))
    worker.executors.served_queues.add({"a": ["note"], "b": ["note"]})
    by_turns = take()
    worker.handle({"do": "order", "order": "created"})

    assert (by_turns, take()) == (["a", "a", "b"], ["a", "a", "a"])
