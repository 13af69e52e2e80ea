"""`packhorse demo`: sample jobs of every kind on a temporary storage."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from packhorse.cli.commands import sample
from packhorse.cli.context import CommandContext
from packhorse.cli.errors import ExitCode
from packhorse.cli.options import command
from packhorse.cli.output import say
from packhorse.client.job import JobHandle
from packhorse.core.job import FINAL, HELD
from packhorse.monitor.text import count_text
from packhorse.storage import open_storage

_TIMEOUT = 90.0


@command("demo", "packhorse demo", "packhorse demo --once")
@click.option("--once", is_flag=True, help="Exit when the sample is done, also on a terminal.")
def demo(context: CommandContext, once: bool) -> int:
    """See it work: sample jobs of every kind on a temporary SQLite file. Some fail on purpose. On a terminal it runs
    until Ctrl-C, else until the sample is done."""
    keeps_running = sys.stdout.isatty() and not once
    with tempfile.TemporaryDirectory(prefix="packhorse-demo-") as folder:
        url = f"sqlite:///{Path(folder) / 'jobs.db'}"
        sample.app.use(open_storage(url))
        with _workers(url):
            jobs = _enqueue(folder)
            _print_start(url, keeps_running)
            is_done = _abort_and_wait(jobs)
            _summary(jobs)
            if keeps_running:
                _keep_running()
        sample.app.close()
    return ExitCode.OK if is_done else ExitCode.TIMED_OUT


@contextmanager
def _workers(url: str) -> Iterator[None]:
    """A foreman with two workers, as `packhorse work` starts it. The table shows what failed, so it logs nothing."""
    words = ["work", "packhorse.cli.commands.sample:app", "--url", url, "--min", "2", "--max", "2", "-c", "5"]
    worker = subprocess.Popen(
        [sys.executable, "-m", "packhorse", *words, "--quiet", "--log-level", "critical", "--parent", str(os.getpid())],
        start_new_session=True,
    )
    try:
        yield
    finally:
        worker.terminate()
        try:
            worker.wait(15)
        except subprocess.TimeoutExpired:
            worker.kill()


def _enqueue(folder: str) -> dict[str, JobHandle[object]]:
    """Enqueue jobs of every kind."""
    for number in range(200):
        sample.fibonacci.enqueue(number)
    return {
        "quick": sample.echo.enqueue("hello"),
        "slow, with progress": sample.render.enqueue(10),
        "a coroutine": sample.fetch.enqueue(1.0),
        "delayed by 2 s": sample.echo.enqueue_in(2, "later"),
        "failing": sample.fail.enqueue("open the door"),
        "isolated": sample.isolated.enqueue("hello"),
        "crashing once": sample.crash_once.enqueue(str(Path(folder) / "crashed")),
        "crashing always": sample.crash.enqueue(),
        "over its time": sample.too_slow.enqueue(),
        "aborted": sample.checkin_loop.enqueue(60),
    }


def _print_start(url: str, keeps_running: bool) -> None:
    say(f"Two workers run 210 sample jobs and a schedule on {url}")
    if keeps_running:
        say("Look at it from another terminal:")
        for words in ("web", "jobs", "jobs dead", "queues", "workers", "events -f"):
            say(f"  packhorse {words} --url {url}")
    say("")


def _abort_and_wait(jobs: dict[str, JobHandle[object]]) -> bool:
    """Abort the job that would never end, once it runs, and wait for all."""
    until = time.monotonic() + _TIMEOUT
    aborted: set[str] = set()
    while time.monotonic() < until:
        for name, job in jobs.items():
            job.refresh()
            if name == "aborted" and job.state in HELD and name not in aborted:
                aborted.add(name)
                job.abort(by="the demo")
        if (
            all(job.state in FINAL for job in jobs.values())
            and sample.app.count(state="waiting", task="fibonacci") == 0
        ):
            return True
        time.sleep(0.1)
    return False


def _summary(jobs: dict[str, JobHandle[object]]) -> None:
    say(f"{'JOB':22}{'STATE':12}{'ATTEMPTS':>9}{'HALTS':>7}  RESULT OR ERROR")
    for name, job in jobs.items():
        record = job.refresh().record
        result = record.result if record.error is None else (job.error.summary() if job.error else "")
        say(f"{name:22}{record.state:12}{record.attempts:>9}{record.halts:>7}  {(result or '')[:60]}")
    counts = sample.app.storage.totals()
    ticks = sample.app.storage.ticks("tick")
    say("")
    say(
        f"{counts.get('completed', 0)} completed, {count_text(counts.get('failed', 0), 'failed attempt')}, "
        f"{counts.get('dead', 0)} dead, {counts.get('aborted', 0)} aborted, "
        f"{count_text(counts.get('halted', 0), 'halt')}; "
        f"the schedule ticked {count_text(len(ticks), 'time')}. Nothing was lost."
    )


def _keep_running() -> None:
    say("\nThe schedule keeps running. Ctrl-C ends the demo.")
    try:
        while True:
            sample.fibonacci.enqueue(os.getpid() % 100)
            time.sleep(1)
    except KeyboardInterrupt:
        say("")
