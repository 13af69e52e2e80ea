"""Announcements: what workers say of their tasks, and what others make of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from packhorse.client.announcements import AnnouncedTasks, announced_task
from packhorse.client.app import Packhorse
from packhorse.core.clock import MINUTE, SECOND
from packhorse.core.task import TaskOptions, Unique
from packhorse.storage.memory import Memory
from packhorse.storage.records import TaskInfo


@pytest.fixture
def storage() -> Memory:
    return Memory()


def worker_of(storage: Memory, **options: Any) -> Packhorse:
    """An app that knows `report`, and has said so."""
    app = Packhorse(storage)

    @app.task(**options)
    def report(kind: str, year: int = 2034) -> None: ...

    storage.announce(app.announcements())
    return app


def test_the_most_attempts_that_an_error_may_have_are_announced() -> None:
    app = Packhorse("memory://")
    app.task(name="plain", retries=2)(_nothing)
    app.task(name="patient", retries=0, per_error={ConnectionError: {"retries": 8}})(_nothing)
    app.task(name="strict", retries=3, per_error={ValueError: {"retries": 0}})(_nothing)

    told = {task.name: task.options.get("most_attempts") for task in app.announcements()}

    assert told == {"plain": None, "patient": 9, "strict": None}


def _nothing() -> None: ...


def test_a_worker_announces_each_task_with_its_queue_and_options(storage: Memory):
    app = worker_of(storage, queue="reports", weight=5, retries=1, timeout="1m", unique={"by": ["kind"], "period": 60})

    (told,) = app.announcements()

    assert (told.name, told.queue) == ("report", "reports")
    assert told.options["weight"] == 5
    assert (told.options["max_attempts"], told.options["timeout"]) == (2, MINUTE)
    assert "redact" not in told.options
    assert json.loads(json.dumps(told.options)) == told.options


def test_a_worker_announces_what_is_not_shown_of_a_task(storage: Memory):
    (told,) = worker_of(storage, redact=["year", "kind"]).announcements()

    assert told.options["redact"] == ["kind", "year"]


def test_what_was_announced_is_read_back_as_it_was(storage: Memory):
    unique = Unique(by=("kind",), period=60 * SECOND, on_conflict="replace")
    limits = {"expires": "1h", "memory_limit": "512MiB", "redact": ["kind"]}
    app = worker_of(storage, queue="reports", priority=3, isolate=True, persistent=True, unique=unique, **limits)

    (task,) = storage.tasks()
    known = announced_task(task, TaskOptions())

    assert known is not None
    assert known.options == app.registry.get("report").options
    assert known.defaults == {"year": 2034}


@pytest.mark.parametrize("unique", [True, "the-only-one", ["kind", "year"], None])
def test_every_kind_of_uniqueness_is_read_back(storage: Memory, unique: Any):
    app = worker_of(storage, unique=unique)
    (task,) = storage.tasks()

    known = announced_task(task, TaskOptions())

    assert known is not None
    assert known.options.unique == app.registry.get("report").options.unique


@pytest.mark.parametrize("options", [{}, {"priority": "high"}, {"priority": 1, "max_attempts": 1}, {"unique": []}])
def test_an_announcement_that_cannot_be_read_counts_for_nothing(options: dict[str, Any]):
    assert announced_task(TaskInfo("report", "report", options, announced_at=1), TaskOptions()) is None


def test_a_job_by_name_takes_the_options_that_workers_announced(storage: Memory):
    worker_of(storage, queue="reports", priority=7, retries=1, timeout="1m", max_halts=9, expires="1h")
    client = Packhorse(storage)

    job = client.enqueue("report", {"kind": "daily"}).effective

    assert (job.queue, job.priority, job.max_attempts, job.max_halts) == ("reports", 7, 2, 9)
    assert (job.timeout, job.expires) == (MINUTE, 60 * MINUTE)


def test_what_the_call_says_goes_before_what_was_announced(storage: Memory):
    worker_of(storage, queue="reports", priority=7)

    job = Packhorse(storage).enqueue("report", {"kind": "daily"}, priority=2, queue="urgent").record

    assert (job.queue, job.priority) == ("urgent", 2)


def test_an_unannounced_name_takes_the_defaults(storage: Memory):
    client = Packhorse(storage, max_attempts=9)
    client.enqueue("elsewhere", queue="odd")  # from here on the storage knows the name, and no more

    job = client.enqueue("elsewhere")

    assert (job.queue, job.max_attempts) == ("elsewhere", 9)


@pytest.mark.parametrize("args", [{"kind": "daily"}, {"kind": "daily", "year": 2035}, {"year": 2035, "kind": "x"}])
@pytest.mark.parametrize("unique", [True, ["kind"], ["kind", "year"], ["year"], "the-only-one"])
def test_a_job_by_name_is_a_twin_of_the_same_job_by_its_function(storage: Memory, unique: Any, args: dict[str, Any]):
    worker = worker_of(storage, unique=unique)
    by_function = worker.enqueue("report", args)

    by_name = Packhorse(storage).enqueue("report", args)

    assert by_name == by_function
    assert not by_name.is_new


def test_coroutines_enqueue_with_what_was_announced(storage: Memory):
    worker_of(storage, queue="reports")
    client = Packhorse(storage)

    async def enqueue() -> set[str]:
        jobs = await asyncio.gather(*(client.aenqueue("report", {"kind": str(n)}) for n in range(5)))
        jobs.append(await client.aenqueue_in(5, "report", {"kind": "x"}))
        return {job.queue for job in jobs}

    assert asyncio.run(enqueue()) == {"reports"}


class Asked:
    """A storage's list of tasks, and how often it was asked for."""

    def __init__(self, *tasks: TaskInfo) -> None:
        self.tasks = list(tasks)
        self.times = 0

    def __call__(self) -> list[TaskInfo]:
        self.times += 1
        return self.tasks


def announced(name: str, **options: Any) -> TaskInfo:
    told = {"priority": 1, "max_attempts": 4, "max_halts": 3, **options}
    return TaskInfo(name, name, told, announced_at=1)


def test_an_announcement_is_believed_for_five_minutes():
    now = 0.0
    asked = Asked(announced("report", priority=2))
    known = AnnouncedTasks(asked, TaskOptions(), lambda: now)

    answers = []
    for now in (0.0, 1.0, 299.0, 300.0):  # noqa: B007
        asked.tasks = [announced("report", priority=2 + asked.times)]
        task = known.get("report")
        answers.append(task.options.priority if task else None)

    assert (answers, asked.times) == ([2, 2, 2, 3], 2)


def test_an_unknown_name_is_asked_for_again_after_five_seconds():
    now = 0.0
    asked = Asked()
    known = AnnouncedTasks(asked, TaskOptions(), lambda: now)
    first = known.get("report")
    asked.tasks = [announced("report")]

    now = 4.9
    second = known.get("report")
    now = 5.0
    third = known.get("report")

    assert (first, second, third is None, asked.times) == (None, None, False, 2)
