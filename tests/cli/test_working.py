"""`packhorse work` and `packhorse dev` as real processes: what they say, refuse and replace."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from packhorse import Packhorse
from tests.children import PATIENCE, ROOT, until
from tests.cli.conftest import Call

APP = """
from packhorse import Packhorse

app = Packhorse("sqlite:///jobs.db", heartbeat="0.2s", lease="10m", abort_grace="10m")

@app.task(queue="post")
def send() -> str:
    return "{text}"
"""

Start = Callable[..., "Running"]


class Running:
    """One of these commands, in a directory of its own."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "packhorse", *words],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Whoever runs the tests in the background has SIGINT ignored, and children inherit that.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )

    def told(self) -> str:
        return self.log.read_text()

    def until_told(self, text: str, times: int = 1) -> None:
        until(lambda: self.told().count(text) >= times or self.process.poll() is not None, f"it says {text!r}")
        assert text in self.told()

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[Running] = []

    def begin(*words: str) -> Running:
        running.append(Running(tmp_path, *words))
        return running[-1]

    yield begin
    for each in running:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()
        print(each.told())


def result_of_a_job(folder: Path) -> object:
    with Packhorse(f"sqlite:///{folder / 'jobs.db'}") as app:
        return app.enqueue("send", queue="post").wait(timeout=PATIENCE)


def save(folder: Path, text: str) -> None:
    """In one step, as editors do: nobody shall read half of it."""
    (folder / "jobs.new").write_text(text)
    (folder / "jobs.new").replace(folder / "jobs.py")


# --- how log lines look -----------------------------------------------------------------------------------------------


def test_the_log_can_be_lines_of_json(tmp_path: Path, start: Start):
    save(tmp_path, APP.format(text="one"))
    work = start("work", "--max", "1", "--log-level", "debug", "--log-format", "json", "--quiet")
    assert result_of_a_job(tmp_path) == "one"
    work.until_told("send completed")
    work.end()

    lines = [json.loads(line) for line in work.told().splitlines()]

    assert {"at", "level", "logger", "message"} <= set(lines[0])
    assert {line["logger"] for line in lines if "send completed" in line["message"]} == {"packhorse.jobs"}


# --- dev --------------------------------------------------------------------------------------------------------------


def test_dev_tries_a_mended_file_at_once_and_a_broken_one_not_for_ever(tmp_path: Path, start: Start):
    (tmp_path / "jobs.py").write_text(APP.format(text="first"))
    dev = start("dev", "--max", "1", "--no-web")
    first = result_of_a_job(tmp_path)

    dev.until_told("  send in post   jobs.py:6\n")
    save(tmp_path, "def broken(:\n")
    dev.until_told("after the next restart")
    deaths = dev.told().count("have died young")
    save(tmp_path, APP.format(text="second"))
    dev.until_told("jobs.py was saved", times=2)
    until(lambda: result_of_a_job(tmp_path) == "second", "the new code runs")

    assert first == "first"
    assert dev.told().count("have died young") == deaths, "nothing broken was tried after that"
    assert dev.end() == 0


def test_dev_misses_no_file_that_is_saved_while_it_starts(tmp_path: Path, start: Start):
    save_once = "from pathlib import Path\nif not Path('late.py').exists():\n    Path('late.py').touch()\n"
    (tmp_path / "jobs.py").write_text(APP.format(text="sent") + save_once)
    dev = start("dev", "--max", "1", "--no-web")

    dev.until_told("late.py was saved")

    assert dev.end() == 0


def test_dev_serves_the_web_at_a_free_port_if_its_own_is_taken(tmp_path: Path, start: Start):
    save(tmp_path, APP.format(text="one"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (tmp_path / "pyproject.toml").write_text(f"[tool.packhorse]\nweb_port = {taken.getsockname()[1]}\n")
        dev = start("dev", "--max", "1")
        dev.until_told("Ctrl-C stops it")
        (address,) = re.findall(r"Packhorse is at (\S+)", dev.told())

        with urllib.request.urlopen(f"{address}api/v1/queues", timeout=PATIENCE) as answer:
            assert answer.status == 200
    assert "Nothing is queued yet. Try: packhorse run send" in dev.told()
    assert dev.end() == 0


def test_dev_ends_before_any_worker_starts_if_the_port_that_it_was_told_is_taken(here: Path, packhorse: Call):
    save(here, APP.format(text="one"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        result = packhorse("dev", "--port", str(port))

    assert result.exit_code == 2
    assert f"cannot listen at 127.0.0.1:{port}" in result.output
    assert "Workers are replaced" not in result.output


def test_dev_hands_its_port_to_the_web(here: Path, packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    save(here, APP.format(text="one"))
    handed: list[object] = []

    def beside(settings: object, options: dict[str, object], *, quiet: bool) -> None:
        handed.append(options["port"])
        raise KeyboardInterrupt

    monkeypatch.setattr("packhorse.cli.developing.web_beside", beside)
    packhorse("dev", "--port", "0")
    refused = packhorse("dev", "--port", "0", "--no-web")

    assert handed == [0]
    assert refused.exit_code == 2
    assert "leave one of them out" in refused.output


def test_dev_tells_of_each_job_that_begins_and_ends(tmp_path: Path, start: Start):
    (tmp_path / "jobs.py").write_text(APP.format(text="sent"))
    dev = start("dev", "--max", "1", "--no-web")

    result_of_a_job(tmp_path)

    dev.until_told("> send()")
    dev.until_told("< send completed in ")
    assert ': "sent"  (job ' in dev.told()


def test_work_tells_of_jobs_only_when_asked(tmp_path: Path, start: Start):
    (tmp_path / "jobs.py").write_text(APP.format(text="sent"))
    with Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        app.enqueue("send", queue="post", known=False)
        plain = start("work", "--burst", "--max", "1")
        assert plain.process.wait(PATIENCE) == 0
        told = plain.told()
        app.enqueue("send", queue="post")
        asked = start("work", "--burst", "--max", "1", "--log-level", "debug")
        assert asked.process.wait(PATIENCE) == 0
        assert app.count(state="completed") == 2

    assert "send completed" not in told
    assert "\n1 job ran\n" in told
    assert "\n1 worker with 10 slots\n" in told
    assert "< send completed in " in asked.told()


# --- work -------------------------------------------------------------------------------------------------------------


def test_a_queue_that_no_task_has_is_remarked_with_those_there_are(tmp_path: Path, start: Start):
    (tmp_path / "jobs.py").write_text(APP.format(text="sent"))

    work = start("work", "--burst", "--max", "1", "--queues", "post, posts,mail", "--quiet")

    assert work.process.wait(PATIENCE) == 0
    assert "no task has any of the queues posts, mail; the queues are post" in work.told()


def test_queues_that_are_there_are_not_remarked(tmp_path: Path, start: Start):
    (tmp_path / "jobs.py").write_text(APP.format(text="sent"))

    work = start("work", "--burst", "--max", "1", "--queues", "post", "--quiet")

    assert work.process.wait(PATIENCE) == 0
    assert "no task has" not in work.told()


@pytest.mark.parametrize("queues", ["", " , "])
def test_no_queue_at_all_is_refused(here: Path, packhorse: Call, queues: str):
    (here / "jobs.py").write_text(APP.format(text="sent"))

    result = packhorse("work", "--queues", queues)

    assert result.exit_code == 2
    assert "--queues names no queue" in result.stderr
    assert "the queues are post" in result.stderr


@pytest.mark.parametrize("command", ["work", "jobs", "enqueue"])
@pytest.mark.parametrize("url", ["", " "])
def test_an_empty_url_is_refused_by_every_command(here: Path, packhorse: Call, command: str, url: str):
    (here / "jobs.py").write_text(APP.format(text="sent"))

    result = packhorse(command, "--url", url)

    assert result.exit_code == 2
    assert "--url is empty" in result.stderr


def test_an_async_task_below_plain_middleware_is_aborted_without_harm_to_its_worker(tmp_path: Path, start: Start):
    text = (
        APP.format(text="sent")
        + """
import asyncio

@app.task
async def sleep() -> None:
    await asyncio.sleep(600)

@app.middleware
def around(job, call):
    return call()
"""
    )
    (tmp_path / "jobs.py").write_text(text)
    work = start("work", "--max", "1")
    with Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        job = app.enqueue("sleep")
        until(lambda: job.refresh().state == "running", "it runs")
        job.abort()
        until(lambda: job.refresh().is_finished, "it has ended")

    assert (job.state, job.record.failures, job.record.halts) == ("aborted", 0, 0)
    assert result_of_a_job(tmp_path) == "sent"
    assert "condemned" not in work.told()
    assert work.end() == 0
