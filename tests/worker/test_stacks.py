"""Where a worker stands: its threads, its coroutines and its children, each with its job."""

from __future__ import annotations

import sys
from pathlib import Path

from packhorse.core.job import RUNNING
from packhorse.worker import stacks
from tests.children import until
from tests.worker.worker_subprocess import WorkerSubprocess


def deep(levels: int) -> str:
    return deep(levels - 1) if levels else stacks.text_of(stacks._frames_to(sys._getframe()))


def test_of_a_deep_stack_the_innermost_frames_are_told():
    text = deep(100)

    assert text.startswith("  …")
    assert text.splitlines()[-2].endswith("in deep")
    assert 10 < text.count("in deep") <= 40
    assert len(text) <= 6_100


def test_a_worker_says_where_every_job_of_its_stands(tmp_path: Path):
    worker = WorkerSubprocess(tmp_path).start()
    end = str(tmp_path / "end")
    running = {
        "wait_for": worker.enqueue("wait_for", path=end),
        "sleep": worker.enqueue("sleep", seconds=60),
        "stop_when_asked": worker.enqueue("stop_when_asked", began=str(tmp_path / "began")),
    }
    try:
        until(lambda: all(worker.job(job).state is RUNNING for job in running.values()), "all run")
        until((tmp_path / "began").exists, "the child has begun")

        worker.channel.send({"do": "stacks", "order": 7})
        until(lambda: any(message["say"] == "stack" for message in list(worker.said)), "the child has answered")

        (told,) = [message for message in list(worker.said) if message["say"] == "stacks"]
        (child,) = [message for message in list(worker.said) if message["say"] == "stack"]
        found = {item["job_id"]: item for item in [*told["items"], child["stack"]]}
        assert (told["order"], told["more"], child["order"]) == (7, 1, 7)
        for name, job in running.items():
            assert found[job.id]["title"].endswith(f": {name}")
            assert f"in {name}\n" in found[job.id]["text"]
            assert "worker/attempt.py" not in found[job.id]["text"]  # nor what calls that
        assert not any("packhorse-slot" in item["title"] for item in told["items"])  # what waits for a job
    finally:
        Path(end).touch()
        worker.close()
