"""The app that runs at a `Deployment`: tasks of every kind, each of which notes in the run log that it begins and ends.

Where a task takes `seconds`, that is for its first run: taken up again after a fault, it takes `again` seconds. Where
it is given a `gate`, its first run lasts until there is a file of that name.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from packhorse import Packhorse, current_job
from packhorse.core.outcome import Snooze
from tests.system.run_log import is_first_run, noted

MIB = 1 << 20

app = Packhorse()


def run_time(seconds: float, again: float = 0.0) -> float:
    """`seconds` in the first run, else `again`."""
    return seconds if seconds == again or is_first_run() else again


def is_open(gate: str) -> bool:
    """Is there nothing to wait for, or no longer?"""
    return not gate or Path(gate).exists() or not is_first_run()


# --- the three ways to run --------------------------------------------------------------------------------------------


@app.task
def nap(seconds: float = 0.0, again: float = 0.0, gate: str = "") -> None:
    with noted():
        while not is_open(gate):
            time.sleep(0.01)
        time.sleep(run_time(seconds, again))


@app.task
def held(gate: str) -> None:
    """Every run of it lasts until there is such a file."""
    with noted():
        while not Path(gate).exists():
            time.sleep(0.01)


@app.task
async def anap(seconds: float = 0.0, again: float = 0.0, gate: str = "") -> None:
    with noted():
        while not is_open(gate):  # noqa: ASYNC110 - it is another process that opens it
            await asyncio.sleep(0.01)
        await asyncio.sleep(run_time(seconds, again))


@app.task(isolate=True)
def inap(seconds: float = 0.0, again: float = 0.0, gate: str = "") -> None:
    with noted():
        while not is_open(gate):
            time.sleep(0.01)
        time.sleep(run_time(seconds, again))


@app.task
def checked(seconds: float, again: float = 0.0) -> str:
    """Checks in until its time is over or it is asked to stop."""
    with noted():
        until = time.monotonic() + run_time(seconds, again)
        while time.monotonic() < until:
            if current_job().checkin("at it"):
                return "stopped"
            time.sleep(0.02)
        return "done"


@app.task(isolate=True)
def ichecked(seconds: float) -> str:
    """The same, in a process of its own."""
    with noted():
        until = time.monotonic() + run_time(seconds)
        while time.monotonic() < until:
            if current_job().should_stop:
                return "stopped"
            time.sleep(0.02)
        return "done"


def _work_on(seconds: float) -> Iterator[float]:
    """Say how far it is, twelve times, and do not look at the answer."""
    for step in range(12):
        current_job().progress(step * 8)
        yield seconds / 12


@app.task
def deaf(seconds: float) -> str:
    with noted():
        for nap in _work_on(seconds):
            time.sleep(nap)
    return "done"


@app.task
async def adeaf(seconds: float) -> str:
    with noted():
        for nap in _work_on(seconds):
            try:
                await asyncio.sleep(nap)
            except asyncio.CancelledError:
                time.sleep(nap)  # noqa: ASYNC251 - whatever anybody says
    return "done"


@app.task(isolate=True)
def ideaf(seconds: float) -> str:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with noted():
        for nap in _work_on(seconds):
            time.sleep(nap)
    return "done"


@app.task(isolate=True)
def tick(path: str) -> None:
    """The first run notes the time in this file, over and over; the next does nothing."""
    with noted():
        while is_first_run():
            Path(f"{path}.new").write_text(str(time.time_ns() // 1_000))
            Path(f"{path}.new").replace(path)
            time.sleep(0.005)


# --- tasks that come back ---------------------------------------------------------------------------------------------


@app.task(retries=50, backoff=0.02)
def flaky() -> None:
    """Fails the first time."""
    with noted():
        if current_job().attempt == 1:
            raise ValueError("not at the first try")


@app.task
def drowsy() -> Snooze | None:
    """Asks once to be called later."""
    with noted():
        return current_job().snooze(0.05) if is_first_run() else None


# --- tasks that do harm -----------------------------------------------------------------------------------------------


@app.task
def stubborn() -> None:
    with noted():
        while True:
            pass


@app.task(isolate=False)
def hold_the_lock(seconds: float) -> None:
    """A call into C that keeps the interpreter's lock: no other thread of the worker does anything meanwhile."""
    with noted():
        ctypes.PyDLL(None).usleep(round(seconds * 1_000_000))


@app.task
def poison() -> None:
    """Kills its worker, always."""
    with noted():
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(max_halts=2, isolate=False)
def kill_all() -> None:
    """Kills its foreman, and its worker, before anyone can see that it has begun."""
    with noted():
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(isolate=True)
def segfault() -> None:
    with noted():
        ctypes.string_at(0)


@app.task
def segfault_once() -> None:
    """In a thread of the worker: it takes the whole process along."""
    with noted():
        if is_first_run():
            ctypes.string_at(0)


@app.task(memory_limit=128 * MIB, retries=1, backoff=0)
def hungry() -> None:
    """Takes more and more memory, and would stop far above its limit."""
    with noted():
        memory = []
        for _ in range(512):
            memory.append(bytearray(os.urandom(1)) * MIB)
            time.sleep(0.005)
        time.sleep(30)  # the periodic memory check may be late on a busy machine


@app.task
def start_a_sleeper(seconds: float) -> None:
    """Leaves a process of its own behind when it is killed."""
    with noted():
        subprocess.Popen(["sleep", "600"], start_new_session=False)
        time.sleep(run_time(seconds))


@app.task(isolate=True)
def start_a_sleeper_alone(seconds: float) -> None:
    with noted():
        subprocess.Popen(["sleep", "600"], start_new_session=False)
        time.sleep(run_time(seconds))


@app.task(isolate=True)
def start_daemons(seconds: float) -> None:
    """Leaves two processes in sessions of their own: a child, and one whose parent has ended."""
    with noted():
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        subprocess.run(["sh", "-c", "setsid sleep 600 &"], check=True)
        time.sleep(run_time(seconds))


# --- a queue that several tasks share, not all of which every worker knows --------------------------------------------


@app.task(queue="shared")
def known() -> None:
    with noted():
        pass


if os.environ.get("SITE_KNOWS_MORE"):

    @app.task(queue="shared")
    def little_known() -> None:
        with noted():
            pass
