"""Tasks of every shape that take the running job as a parameter, and shapes that cannot be meant."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from packhorse import BadArguments, BadValue, Job, JobContext, JobHandle, Packhorse, Worker
from packhorse.client.announcements import parameters_of
from packhorse.testing import testing
from tests.children import PATIENCE, ROOT


@pytest.fixture
def app() -> Packhorse:
    return Packhorse("memory://")


# --- every shape ------------------------------------------------------------------------------------------------------


def alone(job: JobContext) -> str:
    return job.id


def first(job: JobContext, user_id: int, email: str = "a@b.c") -> str:
    return f"{job.id} {user_id} {email}"


def last(user_id: int, ctx: JobContext, email: str = "a@b.c") -> str:
    return f"{ctx.id} {user_id} {email}"


def by_keyword(user_id: int, *, job: JobContext) -> str:
    return f"{job.id} {user_id}"


def by_place(job: JobContext, user_id: int, /) -> str:
    return f"{job.id} {user_id}"


def between(user_id: int, job: JobContext, *more: int) -> str:
    return f"{job.id} {user_id} {more}"


def with_keywords(job: JobContext, **named: int) -> str:
    return f"{job.id} {named}"


def perhaps(user_id: int, job: JobContext | None = None) -> str:
    return f"{job.id if job else None} {user_id}"


MODULE: dict[str, Any] = {"__name__": "shop"}  # where it is imported `if TYPE_CHECKING` alone
exec("def for_checkers(job: 'JobContext', user_id: int) -> str:\n    return f'{job.id} {user_id}'", MODULE)


async def coroutine(job: JobContext, user_id: int) -> str:
    return f"{job.id} {user_id}"


class Sender(Worker):
    def run(self, job: JobContext, user_id: int) -> str:
        return f"{job.id} {user_id}"


@pytest.mark.parametrize(
    ("task", "args", "kwargs", "told"),
    [
        (alone, (), {}, ""),
        (first, (7,), {}, " 7 a@b.c"),
        (first, (7, "x@y.z"), {}, " 7 x@y.z"),
        (first, (), {"email": "x@y.z", "user_id": 7}, " 7 x@y.z"),
        (last, (7, "x@y.z"), {}, " 7 x@y.z"),
        (by_keyword, (7,), {}, " 7"),
        (by_place, (7,), {}, " 7"),
        (between, (7, 8, 9), {}, " 7 (8, 9)"),
        (between, (7,), {}, " 7 ()"),
        (with_keywords, (), {"a": 1}, " {'a': 1}"),
        (perhaps, (7,), {}, " 7"),
        (MODULE["for_checkers"], (7,), {}, " 7"),
        (coroutine, (7,), {}, " 7"),
        (Sender(), (7,), {}, " 7"),
        (functools.partial(first, email="p@q.r"), (7,), {}, " 7 p@q.r"),
    ],
)
def test_the_running_job_is_handed_in_and_is_no_argument(
    app: Packhorse, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any], told: str
):
    app.register("send", task)
    registered = app.registry.get("send")

    with testing(app) as t:
        template = app._templates["send"]
        job = app.enqueue_many([_call(template, args, kwargs)])[0]
        t.drain(raises=True)

        assert job.result == f"{job.id}{told}"
        assert not {"job", "ctx"} & {*job.args, *registered.signature.names}
        assert not {"job", "ctx"} & {one.name for one in parameters_of(registered.signature).each}


def _call(template: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    from packhorse import NewCall

    return NewCall(template.fill(args, kwargs))


def test_a_function_is_still_called_as_it_is(app: Packhorse):
    task = app.task(perhaps)

    assert task(7) == "None 7"


def test_each_attempt_gets_a_fresh_context(app: Packhorse):
    seen: list[tuple[int, dict[str, Any]]] = []

    @app.task(retries=1, backoff=0)
    def twice(job: JobContext) -> None:
        seen.append((job.attempt, dict(vars(job.local))))
        job.local.mark = job.attempt
        if job.attempt == 1:
            raise ConnectionError

    with testing(app) as t:
        twice.enqueue()
        twice.enqueue()
        t.drain(with_retries=True)

    assert sorted(seen, key=str) == [(1, {}), (1, {}), (2, {}), (2, {})]


def test_unique_jobs_are_alike_whatever_runs_them(app: Packhorse):
    task: Any = app.task(first)

    with testing(app):
        one = task.enqueue_unique(7)

        assert task.enqueue_unique(user_id=7, email="a@b.c") == one
        assert app.enqueue_unique("first", {"user_id": 7}) == one


PROGRAM = """
from __future__ import annotations
import os
from packhorse import JobContext, Packhorse, Worker

app = Packhorse("sqlite:///jobs.db")
there = os.getpid()

@app.task
def plain(job: JobContext, n: int) -> list:
    return [job.id, n]

@app.task
async def coroutine(n: int, job: JobContext) -> list:
    return [job.id, n]

@app.task(isolate=True)
def isolated(job: JobContext, n: int) -> list:
    job.log("from a process of its own")
    return [job.id, n]

@app.task(isolate=True)
async def isolated_coroutine(job: JobContext, n: int) -> list:
    return [job.id, n]

class Sender(Worker):
    def run(self, n: int, *, job: JobContext) -> list:
        return [job.id, n]

app.register("sender", Sender())
"""


def test_real_workers_hand_it_in_on_threads_loops_and_in_processes(tmp_path: Path):
    (tmp_path / "shop.py").write_text(PROGRAM)
    tasks = ["plain", "coroutine", "isolated", "isolated_coroutine", "sender"]
    with Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        jobs = [app.enqueue(task, {"n": n}) for n, task in enumerate(tasks)]
        subprocess.run(
            [sys.executable, "-m", "packhorse", "work", "shop.py", "--max", "1", "--burst"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=True,
            capture_output=True,
            timeout=PATIENCE,
        )

        assert [job.result for job in jobs] == [[job.id, n] for n, job in enumerate(jobs)]
    other = Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}")
    with other, pytest.raises(BadArguments, match="has no argument 'job'"):  # as workers have announced it
        other.enqueue("plain", {"n": 1, "job": 2})


# --- what cannot be meant ---------------------------------------------------------------------------------------------


def two(job: JobContext, ctx: JobContext) -> None: ...


def starred(*jobs: JobContext) -> None: ...


def handle(job: JobHandle[int], user_id: int, email: str, more: int) -> None: ...


def record(user_id: int, job: Job) -> None: ...


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        (two, r"two\(\): 'job' and 'ctx' are both the running job - write def two\(job: JobContext, ctx\), with one"),
        (starred, r"starred\(\): 'jobs' collects arguments, .* - write def starred\(job: JobContext\)"),
        (handle, r"handle\(\): 'job' cannot be stored .* - write def handle\(job: JobContext, user_id, email, …\)"),
        (record, r"record\(\): 'job' cannot be stored .* - write def record\(job: JobContext, user_id\)"),
    ],
)
def test_a_shape_that_cannot_be_meant_is_refused_with_one_that_can(app: Packhorse, task: Any, sentence: str):
    with pytest.raises(BadValue, match=sentence):
        app.task(task)


def test_the_running_job_cannot_be_given_by_who_enqueues(app: Packhorse):
    task: Any = app.task(with_keywords)

    with pytest.raises(BadArguments, match="gets 'job' from its worker: it is the running job"):
        task.enqueue(job=1)


def test_a_parameter_without_a_hint_is_an_argument_and_its_absence_raises(app: Packhorse):
    def plain(job, user_id):  # type: ignore[no-untyped-def]
        return job

    task: Any = app.task(plain)

    with pytest.raises(BadArguments, match=r"needs the argument 'job' - if 'job' is meant .* write job: JobContext"):
        task.enqueue(user_id=7)
