"""What is different on a terminal: a real one, made with `pty`."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable

import pytest

from packhorse.core.job import Job, State
from packhorse.core.outcome import Completed, Outcome
from packhorse.storage import Storage
from packhorse.storage.records import CheckIn
from tests.children import PATIENCE, ROOT
from tests.cli.manual_worker import worker
from tests.cli.sample_storage import SampleStorage


def on_terminal(
    sample: SampleStorage,
    *words: str,
    keys: str = "",
    width: int = 100,
    stdin: bytes | None = None,
    seen_so_far: Callable[[bytes], None] = lambda seen: None,
    **environment: str,
) -> tuple[int, str]:
    """Run the program on a terminal of its own. `keys` are typed when it asks; `stdin` comes through a pipe;
    `seen_so_far` is told again and again what is on the screen."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    child = subprocess.Popen(
        [sys.executable, "-m", "packhorse", *words],
        stdin=subprocess.PIPE if stdin is not None else theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=sample.directory,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TERM": "xterm-256color",
            "COLUMNS": "",
            "LINES": "",
            **environment,
        },
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(1, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    if stdin is not None and child.stdin is not None:
        child.stdin.write(stdin)
        child.stdin.close()
    try:
        seen = _talk(ours, keys, seen_so_far)
        return child.wait(PATIENCE), seen
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        os.close(ours)


def _talk(ours: int, keys: str, seen_so_far: Callable[[bytes], None]) -> str:
    seen = b""
    while select.select([ours], [], [], PATIENCE)[0]:
        try:
            part = os.read(ours, 65_536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        seen += part
        seen_so_far(seen)
        if keys and b"[y/N]" in seen:
            os.write(ours, keys.encode())
            keys = ""
    return seen.decode().replace("\r\n", "\n")


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def test_a_list_has_short_ids_relative_times_and_colours(sample: SampleStorage):
    job = sample.job("dead")

    code, seen = on_terminal(sample, "jobs")

    assert code == 0
    assert "\x1b[31m" in seen
    assert job.id[-8:] in plain(seen)
    assert job.id not in plain(seen)
    assert re.search(r"\d+m?s ago|now", plain(seen))


def test_a_table_fits_the_screen(sample: SampleStorage):
    for _ in range(3):
        sample.add("send_notice", {"email": "ann@example.org", "text": "hello " * 50}, queue="mail")

    _, seen = on_terminal(sample, "jobs", width=80)

    lines = plain(seen).splitlines()
    assert len(lines) == 4
    assert all(len(line) <= 80 for line in lines)
    assert all(line.rstrip().endswith("…") for line in lines[1:])


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_forbidden(sample: SampleStorage, environment: dict[str, str]):
    job = sample.job("dead")

    for words in (["jobs"], ["job", job.id], ["jobs", "--nonsense"], ["queues"], ["check"], []):
        _, seen = on_terminal(sample, *words, **environment)
        assert "\x1b[" not in seen, words


def test_color_never_holds_for_errors_too(sample: SampleStorage):
    sample.add()

    assert "\x1b[" not in on_terminal(sample, "job", "deadbeef", "--color", "never")[1]
    assert "\x1b[" not in on_terminal(sample, "jobs", "--nonsense", "--color", "never")[1]
    assert "\x1b[31m" in on_terminal(sample, "job", "deadbeef", "--color", "always", NO_COLOR="1")[1]


@pytest.mark.parametrize(
    ("keys", "code", "state"), [("y\n", 0, State.QUEUED), ("n\n", 5, State.DEAD), ("\n", 5, State.DEAD)]
)
def test_more_than_one_job_is_asked_about(sample: SampleStorage, keys: str, code: int, state: State):
    jobs = [sample.job("dead", queue=f"q{number}") for number in range(4)]

    ended, seen = on_terminal(sample, "retry", "--where", "dead", keys=keys)

    assert "retry 4 jobs:" in seen
    assert seen.count("resize(image_id=7)") == 3
    assert "and 1 more" in seen
    assert ended == code
    assert {sample.get(job.id).state for job in jobs} == {state}


def test_one_is_asked_at_the_terminal_also_when_ids_come_through_a_pipe(sample: SampleStorage):
    jobs = [sample.job("dead", queue=f"q{number}") for number in range(2)]

    ended, seen = on_terminal(sample, "retry", "-", keys="y\n", stdin="\n".join(job.id for job in jobs).encode())

    assert ended == 0
    assert "2 queued again" in seen


def test_run_draws_a_bar(sample: SampleStorage):
    (sample.directory / "jobs.py").write_text(
        "from packhorse import Packhorse\napp = Packhorse()\n@app.task\ndef resize(image_id: int) -> str: ...\n"
    )

    is_seen = threading.Event()

    def work(storage: Storage, job: Job) -> Outcome:
        storage.check_in([CheckIn(job.token, None, 50, "rendering")])
        is_seen.wait(PATIENCE)
        return Completed(job.token, '"done"')

    def look(seen: bytes) -> None:
        if b"rendering" in seen:
            is_seen.set()

    with worker(sample.url, work, "resize"):
        code, seen = on_terminal(sample, "run", "resize", "7", seen_so_far=look)

    assert "━━━━━━━━━━━━" in plain(seen)
    assert "50 %  rendering" in plain(seen)
    assert code == 0
    assert plain(seen).rstrip().endswith('"done"')


def test_the_page_of_a_job_offers_what_can_be_done(sample: SampleStorage):
    job = sample.job("dead")

    _, seen = on_terminal(sample, "job", job.id[-8:])

    short = job.id[-8:]
    assert f"next: packhorse job {short} --trace · packhorse retry {short} · packhorse delete {short}" in plain(seen)


def test_pauses_are_told_below_the_queues(sample: SampleStorage):
    sample.add(queue="mail")
    sample.storage.pause("mail", by="ann", why="no server")

    _, seen = on_terminal(sample, "queues")

    assert "mail (paused)" in plain(seen)
    assert "mail is paused by ann" in plain(seen)


def test_utc_shows_the_zone(sample: SampleStorage):
    job = sample.add()

    _, local = on_terminal(sample, "job", job.id, TZ="Asia/Tokyo")
    _, utc = on_terminal(sample, "job", job.id, "--utc", TZ="Asia/Tokyo")

    def hour(text: str) -> int:
        found = re.search(r"enqueued\s+\S+ (\d\d):", plain(text))
        assert found
        return int(found[1])

    assert (hour(local) - hour(utc)) % 24 == 9
