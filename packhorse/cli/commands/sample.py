"""The sample app of `packhorse demo`: a task of every kind. Some fail on purpose."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from packhorse import Packhorse, current_job

app = Packhorse()


@app.task
def echo(text: str) -> str:
    """A short task."""
    return text


@app.task(weight=3)
def fibonacci(n: int) -> int:
    """A little arithmetic."""
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


@app.task(priority=5)
def render(pages: int) -> str:
    """A long task, which reports its progress."""
    job = current_job()
    for page in range(1, pages + 1):
        job.log(f"page {page} of {pages}")
        if job.progress(100 * page // pages, f"page {page}"):
            return "stopped"
        time.sleep(0.2)
    return f"{pages} pages"


@app.task
async def fetch(seconds: float) -> str:
    """A coroutine that waits."""
    await asyncio.sleep(seconds)
    return "fetched"


@app.task(retries=2, backoff=0.3)
def fail(why: str) -> None:
    """Fails on purpose, three times."""
    raise ValueError(f"cannot {why}")


@app.task(isolate=True)
def isolated(text: str) -> int:
    """Runs in a process of its own; its output goes into its log."""
    print(f"{text} from process {os.getpid()}")  # noqa: T201 - that is the point
    return os.getpid()


@app.task(isolate=True)
def crash() -> None:
    """Kills its process every time: after three halts it is dead. No other job is harmed."""
    os.abort()


@app.task(isolate=True)
def crash_once(marker: str) -> str:
    """Kills its process the first time."""
    if not Path(marker).exists():
        Path(marker).touch()
        os.abort()
    return "survived"


@app.task(timeout=0.5, retries=0)
def too_slow() -> None:
    """Exceeds its time limit, and is stopped."""
    time.sleep(60)


@app.task
def checkin_loop(seconds: float) -> str:
    """Checks in until it is asked to stop."""
    job, until = current_job(), time.monotonic() + seconds
    while time.monotonic() < until:
        if job.checkin("still at it"):
            return "stopped"
        time.sleep(0.05)
    return "done"


@app.schedule("@every 2s")
@app.task
def tick() -> None:
    """Every two seconds."""
