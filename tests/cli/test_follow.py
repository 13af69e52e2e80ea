"""Following jobs and events: in a pipe, on a terminal, until Ctrl-C or until nobody reads."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from packhorse.cli import follow
from packhorse.core.event import Event
from packhorse.core.job import NewJob
from packhorse.core.outcome import Completed
from packhorse.storage import open_storage
from packhorse.storage.records import EventFilter
from tests.children import PATIENCE, ROOT
from tests.cli.sample_storage import SampleStorage
from tests.cli.terminal import Terminal


class Piped:
    """The program with a pipe behind it, from which lines are taken one by one."""

    def __init__(self, sample: SampleStorage, *words: str) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "packhorse", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=sample.directory,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self._rest = b""

    def line(self) -> str:
        """The next line that it prints."""
        assert self.child.stdout is not None
        deadline = time.monotonic() + PATIENCE
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self.child.stdout], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"no line came; so far: {self._rest!r}"
            read = os.read(self.child.stdout.fileno(), 65_536)
            assert read, f"it has ended: {self.child.stderr and self.child.stderr.read()!r}"
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def interrupt(self) -> tuple[int, bytes]:
        """Press Ctrl-C; its exit code, and what it says to that."""
        self.child.send_signal(signal.SIGINT)
        _, errors = self.child.communicate(timeout=PATIENCE)
        return self.child.returncode, errors


@contextmanager
def piped(sample: SampleStorage, *words: str) -> Iterator[Piped]:
    one = Piped(sample, *words)
    try:
        yield one
    finally:
        if one.child.poll() is None:
            one.child.kill()
        one.child.communicate()


def test_jobs_that_are_new_or_change_come_line_by_line(sample: SampleStorage):
    first, other = sample.add(queue="mail"), sample.job("dead", queue="resize")

    with piped(sample, "jobs", "--queue", "mail", "--follow") as seen:
        lines = [seen.line()]
        running = sample.start(first)
        while "running" not in lines[-1]:  # it may have been seen in the worker's hands before
            lines.append(seen.line())
        sample.finish(Completed(running.token))
        lines.append(seen.line())
        sample.job("dead", queue="resize")
        second = sample.add(queue="mail", args={"image_id": 8})
        lines.append(seen.line())
        ended = seen.interrupt()

    told = [line.split()[1:3] for line in lines]
    assert [one for one in told if one[1] != "reserved"] == [
        [first.id, "queued"],
        [first.id, "running"],
        [first.id, "completed"],
        [second.id, "queued"],
    ]
    assert lines[-1].endswith("mail  resize(image_id=8)")
    assert other.id not in "".join(lines)
    assert ended == (130, b"\n")


def test_only_jobs_that_fit_are_told_when_they_do(sample: SampleStorage):
    sample.job("completed")
    with piped(sample, "jobs", "dead", "--follow", "--fields", "id,state") as seen:
        sample.job("completed")
        dead = [sample.job("dead") for _ in range(3)]

        assert [json.loads(seen.line()) for _ in dead] == [{"id": job.id, "state": "dead"} for job in dead]


def test_those_that_are_there_come_first_and_the_last_changed_of_them_below(sample: SampleStorage):
    jobs = [sample.add() for _ in range(4)]
    sample.storage.set_priority([jobs[1].id], 7)

    with piped(sample, "jobs", "--ids", "-f", "-n", "0") as seen:
        ids = [seen.line() for _ in jobs]
        new = sample.add()
        assert seen.line() == new.id

    assert ids[-1] == jobs[1].id
    assert sorted(ids) == [job.id for job in jobs]


@pytest.mark.parametrize("words", [("jobs", "-f", "--json"), ("events", "-f")])
def test_it_ends_when_nobody_reads_any_more(sample: SampleStorage, words: tuple[str, ...]):
    sample.add()
    with piped(sample, *words) as seen:
        seen.line()
        assert seen.child.stdout is not None
        seen.child.stdout.close()

        assert seen.child.wait(PATIENCE) == 0
        assert seen.child.stderr is not None
        assert seen.child.stderr.read() == b""
        seen.child.stderr.close()
        seen.child.stdout = seen.child.stderr = None


def test_events_are_followed_from_the_latest_on(sample: SampleStorage):
    job = sample.add()
    with piped(sample, "events", "-f", "--kind", "completed", "--json") as seen:
        sample.job("dead")
        running = sample.start(job)
        sample.finish(Completed(running.token))

        assert json.loads(seen.line())["job_id"] == job.id
        assert seen.interrupt() == (130, b"\n")


def test_lines_fit_a_terminal_and_ctrl_c_leaves_it_in_order(sample: SampleStorage):
    job = sample.add(args={"text": "x" * 200})
    with Terminal(sample, "jobs", "--follow", width=80) as screen:
        screen.read_until("…")
        screen.write(b"\x03")

        assert screen.wait() == 130
        (line,) = [line for line in screen.seen.splitlines() if job.id[-8:] in line]
        assert "resize(text=" in line
        assert "Traceback" not in screen.seen


def test_a_quiet_queue_is_not_looked_over_from_its_last_event_again_and_again(monkeypatch: pytest.MonkeyPatch):
    storage = open_storage("memory://")
    monkeypatch.setattr(follow, "_SAFE_POINT_PAUSE", 0.0)
    monkeypatch.setattr(follow, "_PAUSE", 0.0)
    asked: list[int | None] = []
    events = storage.events

    def told(where: EventFilter, **kwargs: Any) -> list[Event]:
        if where.queue == "mail":
            asked.append(where.after)
            if len(asked) == 2:
                storage.enqueue([NewJob(f"b{number}", "bulk", "bulk") for number in range(3)])
            elif len(asked) == 6:
                storage.enqueue([NewJob("m", "mail", "mail")])
        return events(where, **kwargs)

    monkeypatch.setattr(storage, "events", told)

    event = next(follow.new_events(storage, EventFilter(queue="mail"), 0))

    assert event.job_id == "m"
    assert asked[-1] == 3
