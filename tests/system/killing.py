"""A process that lets its children die in the middle of one operation, again and again, a little later each time.

Run by `test_killed_in_the_middle.py`. It has one thread, so that it may fork, and pays for the start of the
interpreter once. It reads orders from stdin, a JSON object a line, and answers with what became of the files.

A child dies in one of two ways. By `statement`: it kills itself just before the n-th statement that SQLite is given.
By `write`: the system kills it when the write-ahead log grows over a limit, in the middle of a page; that is how a
process dies while it commits.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.storage.sqlite.tracing import traced
from tests.system.sample_storage import BY_NAME, migrate, open_sample

FIRST_WRITE, STEP = 1_000, 4_120
"""The log grows by a page and its header at a time: each limit lies within the next page."""


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        killed, done = die_everywhere(**order)
        print(json.dumps({"killed": killed, "done": done}), flush=True)


def die_everywhere(operation: str, way: str, template: str, directory: str) -> tuple[list[str], str]:
    """The files of the children that were killed, and that of the one which came through."""
    killed: list[str] = []
    for number in range(1, 1_000):
        path = Path(directory) / f"{number:03}.db"
        if template:
            shutil.copyfile(template, path)
        if not die_in(lambda path=path, number=number: run(operation, way, path, number)):  # type: ignore[misc]
            return killed, str(path)
        killed.append(str(path))
    raise AssertionError(f"{operation} does not come to an end")


def die_in(work: Callable[[], None]) -> bool:
    """Was the child that did this killed?"""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)  # without closing: as if killed just after
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXFSZ)
        return True
    assert os.WEXITSTATUS(status) == 0, "the operation failed; see above"
    return False


def run(operation: str, way: str, path: Path, number: int) -> None:
    """One operation, with its death in the n-th place."""
    told = 0
    is_armed = False

    def count(sql: str) -> None:
        nonlocal told
        told += is_armed
        if told == number and way == "statement":
            os.kill(os.getpid(), signal.SIGKILL)

    with traced(count):
        work = prepared(operation, path)
        is_armed = True
        if way == "write":
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (FIRST_WRITE + (number - 1) * STEP,) * 2)
        work()


def prepared(operation: str, path: Path) -> Callable[[], object]:
    """The operation, with everything done that comes before it."""
    storage = open_sample(path)
    if operation == "make":
        return storage.queues
    if operation == "migrate":
        return lambda: migrate(path)
    storage.queues()  # opens both connections
    return lambda: BY_NAME[operation].call(storage)


if __name__ == "__main__":
    main()
