"""An app for workers in processes of their own. Tasks that wait do so for a file, and leave files to be seen by."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from packhorse import Packhorse, current_job

app = Packhorse("sqlite:///not-used.db")  # every worker gets another with --url


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.task
def pid() -> int:
    return os.getpid()


@app.task
def wait_for(path: str) -> str:
    """On a thread: until the file is there, or a check-in says stop."""
    while not Path(path).exists():
        if current_job().checkin():
            return "stopped"
        time.sleep(0.002)
    return "done"


@app.task
def stubborn(path: str) -> None:
    """On a thread: until the file is there, whatever anybody says."""
    while not Path(path).exists():
        time.sleep(0.002)


@app.task
async def sleep(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"


# --- isolated -------------------------------------------------------------------------------------------------------


@app.task(isolate=True)
def isolated_pid() -> int:
    return os.getpid()


@app.task(isolate=True)
async def isolated_coroutine(number: int) -> int:
    await asyncio.sleep(0)
    return number + 1


@app.task(isolate=True)
def speak() -> None:
    job = current_job()
    print("one\ntwo")
    print("odd \udc80 text")
    print("to stderr", file=sys.stderr)
    logging.getLogger("shop").info("logged")
    job.log("told")
    job.progress(70, "most of it")
    print("10 %\r50 %", end="\r", flush=True)
    print("100 %\r\nno newline", end="")


@app.task(isolate=True)
def print_much(size: int) -> None:
    print("x" * size)


@app.task(isolate=True, retries=0)
def raise_error() -> None:
    raise ValueError("in the child")


@app.task(isolate=True, retries=0)
def exit_politely() -> None:
    sys.exit(3)


@app.task(isolate=True, max_halts=2)
def segfault() -> None:
    ctypes.string_at(0)


@app.task(isolate=True, max_halts=1)
def exit_hard(code: int) -> None:
    os._exit(code)


@app.task(isolate=True)
def clean_up(began: str, cleaned: str) -> None:
    """Runs until it is asked to stop; then it takes a moment to clean up."""
    try:
        Path(began).touch()
        time.sleep(60)
    finally:
        time.sleep(0.05)
        Path(cleaned).touch()


@app.task(isolate=True)
async def clean_up_coroutine(began: str, cleaned: str) -> None:
    try:
        Path(began).touch()  # noqa: ASYNC240 - nobody else is on this loop
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.05)
        Path(cleaned).touch()  # noqa: ASYNC240


@app.task(isolate=True, retries=0)
async def cancel_itself() -> None:
    raise asyncio.CancelledError


@app.task(isolate=True)
def stop_when_asked(began: str) -> str:
    """Ends when a check-in says so; a signal does not interrupt it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(began).touch()
    while not current_job().checkin():
        time.sleep(0.002)
    return "as you wish"


@app.task(isolate=True)
def deaf(began: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(began).touch()
    time.sleep(60)


@app.task(timeout=0.2, retries=0)
def too_slow() -> None:
    time.sleep(60)


@app.task(isolate=True, memory_limit="96MiB", retries=0)
def hog(mebibytes: int) -> None:
    held = bytearray(mebibytes << 20)
    held[:: os.sysconf("SC_PAGE_SIZE")] = b"x" * len(held[:: os.sysconf("SC_PAGE_SIZE")])
    time.sleep(60)


@app.task(isolate=True)
def have_child(path: str, *, then: str) -> Any:
    """Starts a process of its own and leaves its number in the file."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path(path + ".new").write_text(f"{os.getpid()} {child.pid}")
    Path(path + ".new").rename(path)
    if then == "wait":
        time.sleep(60)
    elif then == "die":
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(isolate=True)
def kill_the_fork_server(wait_for: str) -> None:
    while not Path(wait_for).exists():
        time.sleep(0.002)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


@app.task(isolate=True)
def enqueue_another() -> str:
    return add.enqueue(1, 2).id
