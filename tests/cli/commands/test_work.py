"""`packhorse work` and `packhorse dev` as real processes: what they say, refuse and replace."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from packhorse import Packhorse
from packhorse.cli.commands import work
from packhorse.storage.records import TaskInfo
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


FAILING = """
import logging
from packhorse import Packhorse

app = Packhorse("sqlite:///jobs.db", heartbeat="0.2s", lease="10m")
log = logging.getLogger("shop")

@app.task(retries=0)
def send(order: int) -> None:
    log.warning("sending", extra={"order": order})
    raise ValueError("no such address")

@app.task(retries=0, isolate=True)
def apart(order: int) -> None:
    send(order)
"""


@pytest.mark.parametrize("task", ["send", "apart"])
def test_each_line_for_programs_says_which_job_it_is_about_and_none_is_plain(tmp_path: Path, start: Start, task: str):
    save(tmp_path, FAILING)
    with Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        job = app.enqueue(task, {"order": 7}, retries=0, known=False)
    work = start("work", "--max", "1", "--log-format", "json", "--burst")
    assert work.process.wait(PATIENCE) == 0

    first, *lines = [json.loads(line) for line in work.told().splitlines()]

    assert (first["message"], first["tasks"], first["max"]) == ("Packhorse starts", ["apart", "send"], 1)
    (own,) = [line for line in lines if line["logger"] == "shop"]
    (failed,) = [line for line in lines if line["level"] == "error"]
    about = {"job_id": job.id, "task": task, "queue": task, "attempt": 1}
    assert own.items() >= {**about, "message": "sending", "order": 7}.items()
    assert failed.items() >= about.items()
    assert "failed: ValueError: no such address; no more tries" in failed["message"]
    assert failed["error"].rstrip().endswith("ValueError: no such address")
    assert lines[-1]["message"] == "1 job ran"


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

    monkeypatch.setattr("packhorse.cli.commands.dev.web_beside", beside)
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


def test_a_burst_starts_no_worker_that_finds_nothing(tmp_path: Path, start: Start):
    (tmp_path / "jobs.py").write_text(APP.format(text="sent") + "with open('imports', 'a') as file: file.write('x')\n")
    with Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        for _ in range(30):
            app.enqueue("send", queue="post", known=False)
        burst = start("work", "--burst", "--max", "4", "-c", "30")
        assert burst.process.wait(PATIENCE) == 0

    assert "30 jobs ran" in burst.told()
    assert (tmp_path / "imports").read_text() == "xx", "the foreman and one worker"


# --- work -------------------------------------------------------------------------------------------------------------


def test_a_queue_that_nobody_knows_is_remarked_with_those_there_are(tmp_path: Path, start: Start):
    (tmp_path / "jobs.py").write_text(APP.format(text="sent"))

    work = start("work", "--burst", "--max", "1", "--queues", "post, posts,mail", "--quiet")

    assert work.process.wait(PATIENCE) == 0
    assert "there is no queue posts, mail yet; the queues are post" in work.told()


def test_it_says_which_queues_alone_it_serves_and_which_pattern_fits_none(tmp_path: Path, start: Start):
    (tmp_path / "jobs.py").write_text(APP.format(text="sent"))

    work = start("work", "--burst", "--max", "1", "--queues", "po*, bluk.*")

    assert work.process.wait(PATIENCE) == 0
    assert "serves only: po*, bluk.*\n" in work.told()
    assert "there is no queue bluk.* yet; the queues are post" in work.told()


def test_queues_that_are_there_are_not_remarked(tmp_path: Path, start: Start):
    (tmp_path / "jobs.py").write_text(APP.format(text="sent"))

    work = start("work", "--burst", "--max", "1", "--queues", "post", "--quiet")

    assert work.process.wait(PATIENCE) == 0
    assert "there is no queue" not in work.told()


def test_a_burst_of_a_queue_that_only_a_job_names_runs_it(tmp_path: Path, start: Start):
    (tmp_path / "jobs.py").write_text(APP.format(text="sent"))
    assert start("enqueue", "send", "--queue", "bulk").process.wait(PATIENCE) == 0

    work = start("work", "--burst", "--max", "1", "--queues", "bu*")

    assert work.process.wait(PATIENCE) == 0
    assert "1 job ran" in work.told()


def test_a_burst_tells_of_jobs_in_queues_that_it_does_not_serve(tmp_path: Path, start: Start):
    (tmp_path / "jobs.py").write_text(APP.format(text="sent"))
    with Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        for queue in ("bulk", "bulk", "post"):
            app.enqueue("send", queue=queue, known=False)

    told = []
    for queues in ("bulk.*", "post,bulk.*", "bulk,bulk.*"):
        work = start("work", "--burst", "--max", "1", "--queues", queues)
        assert work.process.wait(PATIENCE) == 0
        told.append(work.told())

    assert "bulk.* does not match the queue bulk: --queues 'bulk,bulk.*' serves both" in told[0]
    assert "\nno job was left to run; 3 jobs wait in queues that are not served here: bulk, post\n" in told[0]
    assert "\n1 job ran; 2 jobs wait in a queue that is not served here: bulk\n" in told[1]
    assert "\n2 jobs ran\n" in told[2]
    assert "does not fit" not in told[2]


@pytest.mark.parametrize("queues", ["", " , "])
def test_no_queue_at_all_is_refused(here: Path, packhorse: Call, queues: str):
    (here / "jobs.py").write_text(APP.format(text="sent"))

    result = packhorse("work", "--queues", queues)

    assert result.exit_code == 2
    assert "--queues names no queue" in result.stderr
    assert "leave it out for all" in result.stderr


@pytest.mark.parametrize("command", ["work", "jobs", "enqueue"])
@pytest.mark.parametrize("url", ["", " "])
def test_an_empty_url_is_refused_by_every_command(here: Path, packhorse: Call, command: str, url: str):
    (here / "jobs.py").write_text(APP.format(text="sent"))

    result = packhorse(command, "--url", url)

    assert result.exit_code == 2
    assert "--url is empty" in result.stderr


def test_a_restart_that_is_asked_for_while_the_app_is_imported_does_no_harm(tmp_path: Path, start: Start):
    slow = "import time\nfrom pathlib import Path\nPath('begun').touch()\n"
    slow += "while not Path('go').exists():\n    time.sleep(0.01)\n"
    (tmp_path / "jobs.py").write_text(APP.format(text="sent") + slow)
    work = start("work", "--max", "1")
    until((tmp_path / "begun").exists, "the app is being imported")

    work.process.send_signal(signal.SIGHUP)
    (tmp_path / "go").touch()

    work.until_told("rolling restart (SIGHUP)")
    assert result_of_a_job(tmp_path) == "sent"
    assert work.end() == 0


def test_a_hangup_reloads_the_settings_and_a_wrong_one_changes_nothing(tmp_path: Path, start: Start):
    (tmp_path / "jobs.py").write_text(APP.format(text="sent"))
    settings = tmp_path / "pyproject.toml"
    settings.write_text("[tool.packhorse]\nconcurrency = 2\nmax_workers = 1\n")
    work = start("work")
    with Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}") as app:

        def slots() -> list[int]:
            return [each.concurrency for each in app.storage.workers() if each.subject == "worker"]

        until(lambda: slots() == [2], "the first worker is online")
        settings.write_text("[tool.packhorse]\nconcurrency = 5\nmin_workers = 2\nmax_workers = 3\nstop_grace = '7s'\n")
        work.process.send_signal(signal.SIGHUP)
        until(lambda: slots() == [5, 5], "the fresh workers have as many slots as are set by now")
        settings.write_text("[tool.packhorse]\nconcurrency = 'many'\n")
        work.process.send_signal(signal.SIGHUP)
        work.until_told("the settings are unchanged")

    assert work.end() == 0
    assert "from 2 to 3 workers with 5 slots each" in work.told()
    assert "running jobs have 7 s to finish" in work.told()


def test_a_foreman_that_joins_again_leaves_what_newer_code_has_announced(tmp_path: Path, start: Start):
    (tmp_path / "jobs.py").write_text(APP.format(text="sent"))
    work = start("work", "--max", "1")
    with Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        result_of_a_job(tmp_path)
        newer = [TaskInfo("send", "newer", {"priority": 7})]
        app.storage.announce(newer)
        [first] = [each.id for each in app.storage.workers() if each.subject == "foreman"]

        app.storage.leave(first, why="for a test")

        until(
            lambda: [each.id for each in app.storage.workers() if each.subject == "foreman"] not in ([], [first]),
            "the foreman has joined again",
        )
        [known] = [task for task in app.storage.tasks() if task.name == "send"]
        assert (known.queue, known.options) == ("newer", {"priority": 7})
    assert work.end() == 0


def test_a_hangup_reloads_the_order_of_queues(tmp_path: Path, start: Start):
    (tmp_path / "jobs.py").write_text(APP.format(text="sent"))
    work = start("work", "--max", "1")
    with Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        result_of_a_job(tmp_path)
        assert app.storage.poll("nobody", []).order == "turns"
        (tmp_path / "pyproject.toml").write_text("[tool.packhorse]\norder = 'created'\n")

        work.process.send_signal(signal.SIGHUP)

        until(lambda: app.storage.poll("nobody", []).order == "created", "the order is that of the settings")
    assert work.end() == 0


def test_what_the_command_line_says_goes_before_settings_that_are_reloaded(tmp_path: Path, start: Start):
    (tmp_path / "jobs.py").write_text(APP.format(text="sent"))
    work = start("work", "--max", "1", "-c", "3")
    work.until_told("1 worker with 3 slots")
    (tmp_path / "pyproject.toml").write_text("[tool.packhorse]\nconcurrency = 5\nidle_stop = '5s'\n")

    work.process.send_signal(signal.SIGHUP)

    work.until_told("from 1 to 1 workers with 3 slots each")
    assert work.end() == 0


def test_a_foreman_that_is_asked_for_more_says_how_many_running_jobs_it_has_checked(tmp_path: Path, start: Start):
    slow = "\n@app.task\ndef wait() -> None:\n    import time\n    time.sleep(600)\n"
    (tmp_path / "jobs.py").write_text(APP.format(text="sent") + slow)
    work = start("work", "--max", "1", "--log-level", "debug", "--drain", "0s")
    with Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        for _ in range(5):
            app.enqueue("wait", known=False)

        work.until_told("1 workers with 5 running jobs")


def test_without_any_worker_a_job_can_be_enqueued_by_name_and_brings_one(tmp_path: Path, start: Start):
    (tmp_path / "jobs.py").write_text(APP.format(text="sent") + "\napp.schedule('0 3 * * *', name='daily')(send)\n")
    work = start("work", "--min", "0", "--max", "2")
    with Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        until(app.storage.workers, "the foreman is known")

        assert [worker.subject for worker in app.storage.workers()] == ["foreman"]
        assert [task.name for task in app.storage.tasks() if task.announced_at] == ["send"]
        assert [schedule.name for schedule in app.get_schedules()] == ["daily"]
        job = app.enqueue("send")
        assert job.wait(timeout=PATIENCE) == "sent"
        assert job.record.queue == "post"
    assert work.end() == 0


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


# --- in a terminal ----------------------------------------------------------------------------------------------------

TALKING = """
import time

@app.task
def talk() -> str:
    for number in range(60):
        print("at", number, flush=True)
        time.sleep(0.05)
    return "done"
"""


class InTerminal:
    """One of these commands in a terminal of its own, whose session it leads."""

    def __init__(self, folder: Path, *words: str, before: Callable[[], object] = lambda: None) -> None:
        self._master, slave = pty.openpty()
        self._text = b""

        def begin() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests under nohup has it ignored
            before()

        self.process = subprocess.Popen(
            [sys.executable, "-m", "packhorse", *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=begin,
        )
        os.close(slave)
        self._is_open = True
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while self._is_open:
            if select.select([self._master], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):
                    self._text += os.read(self._master, 65_536)

    def until_told(self, text: str) -> None:
        until(lambda: text.encode() in self._text or self.process.poll() is not None, f"it says {text!r}")
        assert text.encode() in self._text

    def close(self) -> None:
        """Close the terminal, as its window does."""
        if self._is_open:
            self._is_open = False
            self._reader.join()
            os.close(self._master)


@pytest.fixture
def in_terminal(tmp_path: Path) -> Iterator[Callable[..., InTerminal]]:
    started: list[InTerminal] = []
    (tmp_path / "jobs.py").write_text(APP.format(text="sent") + TALKING)

    def begin(*words: str, **options: Callable[[], object]) -> InTerminal:
        started.append(InTerminal(tmp_path, *words, **options))
        return started[-1]

    yield begin
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.wait()
        each.close()
        print(each._text.decode(errors="replace"))


@pytest.mark.parametrize("words", [("work",), ("up", "--port", "0"), ("dev", "--no-web")], ids=lambda words: words[0])
def test_when_the_terminal_is_closed_running_jobs_finish_and_it_ends(
    tmp_path: Path, in_terminal: Callable[..., InTerminal], words: tuple[str, ...]
):
    command = in_terminal(*words, "--max", "1")
    with Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        until(app.storage.tasks, "the foreman has announced its tasks")
        job = app.enqueue("talk")
        command.until_told("at 3")

        command.close()

        assert command.process.wait(PATIENCE) == 0
        assert (job.refresh().state, job.record.attempts) == ("completed", 1)


def test_a_terminal_that_is_closed_while_the_app_is_imported_ends_the_program_too(
    tmp_path: Path, in_terminal: Callable[..., InTerminal]
):
    (tmp_path / "jobs.py").write_text(
        "import pathlib, time\nprint('importing', flush=True)\n"
        "while not pathlib.Path('go').exists():\n    time.sleep(0.01)\n" + APP.format(text="sent")
    )
    work = in_terminal("work", "--quiet", "--max", "1")
    work.until_told("importing")

    work.close()
    (tmp_path / "go").touch()

    assert work.process.wait(PATIENCE) == 0


def test_a_hangup_while_the_terminal_is_there_restarts_the_workers(in_terminal: Callable[..., InTerminal]):
    work = in_terminal("work", "--max", "1")
    work.until_told("Ctrl-C once")

    work.process.send_signal(signal.SIGHUP)

    work.until_told("rolling restart (SIGHUP)")
    work.process.send_signal(signal.SIGTERM)
    assert work.process.wait(PATIENCE) == 0


def test_what_was_started_with_nohup_outlives_its_terminal(tmp_path: Path, in_terminal: Callable[..., InTerminal]):
    with (tmp_path / "jobs.py").open("a") as app:
        app.write("\nimport atexit, sys\natexit.register(lambda: sys.stderr.write('last words'))\n")
    work = in_terminal("work", "--max", "1", before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    work.until_told("Ctrl-C once")

    work.close()

    assert result_of_a_job(tmp_path) == "sent"
    work.process.send_signal(signal.SIGTERM)
    assert work.process.wait(PATIENCE) == 0


def test_dev_ends_with_a_hangup(in_terminal: Callable[..., InTerminal]):
    dev = in_terminal("dev", "--no-web", "--max", "1")
    dev.until_told("Ctrl-C once")

    dev.process.send_signal(signal.SIGHUP)

    assert dev.process.wait(PATIENCE) == 0


def test_a_limit_of_memory_that_has_no_effect_on_this_system_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    app = Packhorse("memory://")
    app.task(memory_limit="64MiB", name="resize")(lambda: None)
    for can_be_known, number in ((True, 0), (False, 1)):
        monkeypatch.setattr(work, "can_measure_memory", lambda known=can_be_known: known)
        work._warn_of_limits(app, {"max_rss": None})
        assert len(caplog.records) == number

    assert "has no effect here: memory_limit of resize" in caplog.text
    work._warn_of_limits(Packhorse("memory://"), {"max_rss": 1})
    assert "has no effect here: --max-rss" in caplog.text
