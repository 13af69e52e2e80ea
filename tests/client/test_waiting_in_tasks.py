"""A task that waits for another job is refused, wherever it runs, unless it says that it knows what it does."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from packhorse import Packhorse, State, WaitRefused
from packhorse.core.context import CURRENT, JobContext
from packhorse.storage import open_storage
from packhorse.testing import testing
from tests.children import PATIENCE, ROOT
from tests.worker.factories import RecordingLink, a_job

JOBS = """
import asyncio
from packhorse import Packhorse

app = Packhorse("sqlite:///jobs.db")

@app.task
def quick() -> str:
    return "quick"

def parent() -> str:
    return quick.enqueue().wait(timeout=3)

async def aparent() -> str:
    return await (await quick.aenqueue()).aresult(timeout=3)

async def off_the_loop() -> str:
    return await asyncio.to_thread(parent)

def allowed() -> str:
    return quick.enqueue().wait(timeout=60, in_task=True)

async def aallowed() -> str:
    return await (await quick.aenqueue()).aresult(timeout=60, in_task=True)

for function in (parent, aparent, off_the_loop, allowed, aallowed):
    app.register(function.__name__, function, retries=0)
    app.register(f"isolated_{function.__name__}", function, retries=0, isolate=True)
"""
REFUSED = ["parent", "aparent", "off_the_loop", "isolated_parent", "isolated_aparent"]
ALLOWED = ["allowed", "aallowed", "isolated_allowed", "isolated_aallowed"]


def ran(folder: Path, tasks: list[str], slots: int) -> list[Any]:
    """The jobs of these tasks, which a real worker with so many slots has run."""
    (folder / "shop.py").write_text(JOBS)
    with Packhorse(f"sqlite:///{folder / 'jobs.db'}") as app:
        jobs = [app.enqueue(task, max_attempts=3) for task in tasks]
        words = ["work", "shop.py", "--max", "1", "--concurrency", str(slots), "--burst"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(
            [sys.executable, "-m", "packhorse", *words],
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
            timeout=PATIENCE,
        )
        return [job.refresh() for job in jobs]


def test_a_task_that_waits_is_refused_on_a_thread_on_the_loop_and_in_a_process(tmp_path: Path):
    jobs = ran(tmp_path, REFUSED, slots=1)

    for job in jobs:
        assert job.error.type == "WaitRefused", job.error
        assert (job.state, job.failures) == (State.DEAD, 1)  # it would be refused each time
        assert "a task must not wait for another job" in job.why()
        assert f"the task {job.task} (job {job.id}) must not wait for job " in job.error.message
        assert "in_task=True" in job.error.message


def test_a_task_that_says_so_waits_for_a_job_in_another_slot(tmp_path: Path):
    jobs = ran(tmp_path, ALLOWED, slots=len(ALLOWED) + 1)

    assert [job.result for job in jobs] == ["quick"] * len(ALLOWED)


def test_a_task_that_waits_is_refused_in_a_test_too():
    app = Packhorse()

    @app.task
    def child() -> int:
        return 1

    @app.task
    def parent() -> int:
        return child.enqueue().wait()

    with testing(app) as t:
        parent.enqueue()

        with pytest.raises(WaitRefused, match="the task parent"):
            t.drain(raises=True)


def test_a_client_waits_for_no_outcomes_inside_a_task_but_may_look():
    app = Packhorse(open_storage("memory://"))
    mark = CURRENT.set(JobContext(a_job(), {}, RecordingLink()))

    async def awaiting(**options: Any) -> list[Any]:
        return [job async for job in client.aoutcomes(**options)]

    try:
        with app.client("billing") as client:
            for wait in (lambda: list(client.outcomes()), lambda: client.handle(print, timeout=1)):
                with pytest.raises(WaitRefused, match="the outcomes of other jobs"):
                    wait()
            with pytest.raises(WaitRefused):
                asyncio.run(awaiting(timeout=1))
            assert list(client.outcomes(timeout=0)) == asyncio.run(awaiting(timeout=0)) == []
            assert list(client.outcomes(timeout=0.01, in_task=True)) == []
    finally:
        CURRENT.reset(mark)
        app.close()
