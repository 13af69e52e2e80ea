"""`packhorse top`: what is shown and what keys do, without a terminal and on a real one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest

from packhorse.cli.commands.top import Top
from packhorse.cli.context import CommandContext
from packhorse.cli.output import unpainted
from packhorse.cli.screen import GONE, RESIZED, Screen, fitted, keys_in
from packhorse.cli.table import width_of
from packhorse.core.clock import HOUR
from packhorse.core.errors import StorageUnavailable
from packhorse.core.job import State
from packhorse.core.outcome import Completed
from packhorse.storage.records import Filter, NewJob
from tests.children import ROOT
from tests.cli.conftest import Call
from tests.cli.sample_storage import WORKER, SampleStorage
from tests.cli.terminal import Terminal
from tests.cli.test_terminal import on_terminal, plain
from tests.unchecked import unchecked


@pytest.fixture
def top(sample: SampleStorage) -> Iterator[Top]:
    """On a storage with a job in every state."""
    sample.in_every_state()
    context = CommandContext()
    context.url = sample.url
    top = Top(context, 1.0, "ann")
    top.look()
    yield top
    context.close()


def screen(top: Top, width: int = 100, height: int = 24) -> str:
    lines = [unpainted(line) for line in top.lines(width, height)]
    assert len(lines) == height
    return "\n".join(lines)


def press(top: Top, *keys: str) -> str:
    for key in keys:
        top.press(key)
    return screen(top)


def test_it_begins_with_what_runs(top: Top):
    shown = screen(top)

    assert "1 running" in shown
    assert "resize(image_id=7)" in shown
    assert "40 % rendering" in shown
    assert "a abort" in shown


@pytest.mark.parametrize(
    ("key", "text"),
    [("2", "for-queued"), ("3", "ValueError: cannot decode image <…>"), ("4", "mule"), ("5", "send_notice")],
)
def test_numbers_turn_to_the_other_panes(top: Top, key: str, text: str):
    assert text in press(top, key)


def test_a_worker_is_as_busy_as_it_holds_jobs_whatever_its_last_heartbeat_said(top: Top, sample: SampleStorage):
    sample.storage.heartbeat({WORKER: {"busy": 4}})
    top.look()

    shown = press(top, "4")

    assert "2/4 slots busy" in shown
    (row,) = [line for line in shown.splitlines() if " worker " in line and "mule" in line]
    assert " 2/4 " in row


def test_tab_goes_round(top: Top):
    assert "for-queued" in press(top, "tab")
    assert "40 % rendering" in press(top, "tab", "tab", "tab", "tab")
    assert "send_notice" in press(top, "back tab")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (200, 60)])
def test_it_fits_the_screen(top: Top, width: int, height: int):
    for key in "12345":
        top.press(key)
        assert len(top.lines(width, height)) == height


def test_the_chosen_row_moves_and_stays_with_its_thing(top: Top):
    press(top, "2")
    names = [line.split()[0] for line in screen(top).splitlines() if line.startswith(("for-", "resize"))]

    top.press("j")
    top.press("down")
    top.press("k")

    marked = [line for line in top.lines(100, 24) if "\x1b[7m" in line]
    assert len(marked) == 1
    assert names[1] in marked[0]
    top.press("G")
    assert "resize" in next(line for line in top.lines(100, 24) if "\x1b[7m" in line)


def test_a_text_narrows_what_is_shown(top: Top):
    shown = press(top, "2", "/", *"dexd", "backspace", "backspace", *"ad", "enter")

    assert "for-dead" in shown
    assert "for-queued" not in shown
    assert "No row has" in press(top, "/", *"zzz", "enter")
    assert "for-queued" in press(top, "escape")


def test_enter_opens_a_job_and_escape_goes_back(top: Top):
    shown = press(top, "enter")

    assert "it runs on worker" in shown
    assert "template ok" in shown
    assert "40 % rendering" in press(top, "escape")


def test_enter_opens_a_cause_with_its_traceback(top: Top):
    shown = press(top, "3", "enter")

    assert "2 times" in shown
    assert 'File "jobs.py", line 4, in resize' in shown


def test_a_job_that_was_halted_is_at_the_same_try_as_in_lists(sample: SampleStorage, packhorse: Call):
    job = sample.add(max_attempts=4)
    sample.halt(job)
    job = sample.start(job)
    assert (job.attempts, job.failures) == (2, 0)

    context = CommandContext()
    context.url = sample.url
    top = Top(context, 1.0, "ann")
    top.look()
    shown = screen(top)
    context.close()

    (row,) = [line for line in packhorse("jobs", "running").stdout.splitlines() if job.id in line]
    assert "1/4" in row.split()
    assert "1/4" in shown


def test_a_cause_is_silenced_and_shown_as_such(top: Top, sample: SampleStorage):
    assert "silence this cause for a day?" in press(top, "3", "m")
    assert "it is silenced for a day" in press(top, "y")
    (group,) = sample.storage.failures()
    assert group.is_silenced(sample.storage.now())
    top.look()
    assert "resize (silenced)" in screen(top)

    assert "it is no longer silenced" in press(top, "m", "y")
    top.look()
    assert "(silenced)" not in screen(top)


def test_silenced_causes_are_below_the_others(sample: SampleStorage):
    for task in ("old", "new"):
        sample.job("dead", task=task, queue=task)
    newest = sample.storage.failures()[0]
    sample.storage.silence_failure(newest.cause, HOUR, version=None, by="ann")

    context = CommandContext()
    context.url = sample.url
    top = Top(context, 1.0, "ann")
    top.look()
    shown = press(top, "3")
    context.close()

    assert shown.index("old ") < shown.index("new (silenced)")


def test_a_job_is_aborted_only_after_a_yes(top: Top, sample: SampleStorage):
    (job,) = sample.storage.find(Filter(states=frozenset({State.RUNNING}))).jobs

    assert "abort job" in press(top, "a")
    assert "nothing changed" in press(top, "n")
    assert sample.get(job.id).abort_at is None
    assert "was asked to stop" in press(top, "a", "y")
    assert sample.get(job.id).abort_at is not None
    assert top.is_stale


def test_all_jobs_of_a_cause_are_retried(top: Top, sample: SampleStorage):
    assert "2 jobs are queued again" in press(top, "3", "r", "y")
    assert sample.storage.queues()
    assert all(not queue.counts.get(State.DEAD) for queue in sample.storage.queues())


def test_a_queue_is_paused_and_resumed(top: Top, sample: SampleStorage):
    assert "is paused" in press(top, "2", "p", "y")
    paused = [queue.name for queue in sample.storage.queues() if queue.is_paused]
    assert len(paused) == 1

    top.look()
    assert "is resumed" in press(top, "p", "y")
    assert not any(queue.is_paused for queue in sample.storage.queues())


def running(sample: SampleStorage, number: int) -> list[str]:
    """The ids of so many more jobs that run, the one that has run longest first."""
    sample.join()
    return [sample.start(sample.add(queue=f"q{place}", args={"image_id": place})).id for place in range(number)]


def test_the_cursor_stays_where_it_is_when_its_row_goes(top: Top, sample: SampleStorage):
    _, second, third = running(sample, 3)
    top.look()
    press(top, "j", "j")
    assert f"abort job {second[-8:]}?" in press(top, "a")
    press(top, "n")

    sample.finish(Completed(sample.get(second).token, result="1"))
    top.look()

    assert f"abort job {third[-8:]}?" in press(top, "a")


def test_a_row_that_moves_in_above_does_not_take_the_cursor(top: Top, sample: SampleStorage):
    (job,) = sample.storage.find(Filter(states=frozenset({State.RUNNING}))).jobs
    sample.start(sample.add(task="another", queue="q"))
    top.look()

    assert f"abort job {job.id[-8:]}?" in press(top, "a")


def test_enter_shows_the_jobs_of_a_queue_and_of_a_worker(top: Top, sample: SampleStorage):
    sample.add(queue="for-queued", args={"image_id": 8})

    press(top, "2", "/", *"for-queued", "enter")
    shown = press(top, "enter")
    assert "resize(image_id=7)" in shown
    assert "resize(image_id=8)" in shown
    assert "running" in press(top, "4", "j", "enter")
    assert "holds no job" in press(top, "escape", "k", "enter")


def test_a_search_narrows_as_it_is_typed(top: Top):
    shown = press(top, "2", "/", *"for-d")

    assert ("for-dead" in shown, "for-queued" in shown) == (True, False)
    assert "for-queued" in press(top, "escape")


def test_another_size_changes_no_question(top: Top):
    assert "abort job" in press(top, "a")
    assert "abort job" in press(top, RESIZED)


def test_without_a_terminal_it_ends(top: Top):
    top.press(GONE)

    assert top.is_over


def test_what_cannot_be_done_is_told(top: Top, sample: SampleStorage):
    press(top, "enter")
    shown = press(top, "r", "y")

    assert "cannot" in shown.splitlines()[-1]
    assert top.is_over is False


def test_help_lists_the_keys(top: Top):
    assert "pause or resume a queue" in press(top, "?")
    assert "pause or resume a queue" not in press(top, "?")


def test_q_ends_it(top: Top):
    top.press("q")

    assert top.is_over


def test_a_storage_that_is_away_is_told_and_what_was_seen_stays(
    top: Top, sample: SampleStorage, monkeypatch: pytest.MonkeyPatch
):
    def away(self: object) -> int:
        raise StorageUnavailable("the storage is away")

    monkeypatch.setattr(type(sample.storage), "now", away)
    top.look()

    shown = screen(top)
    assert "the storage is away; this is what was there before" in shown
    assert "40 % rendering" in shown


def test_hostile_text_reaches_no_terminal(sample: SampleStorage):
    evil = NewJob(id="evil", task="evil\x1b[2Jtask", queue="evil\x1b[2J", args='{"text": "\\u001b[2J\\u202e"}')
    unchecked(sample.storage, "enqueue")([evil])
    sample.join()
    (taken,) = unchecked(sample.storage, "reserve")(WORKER, {evil.queue: 1}, 1)
    sample.storage.start([taken.token])
    assert sample.get("evil").state is State.RUNNING
    context = CommandContext()
    context.url = sample.url
    top = Top(context, 1.0, None)

    for key in "12345":
        top.press(key)
        for line in top.lines(100, 24):
            rest = re.sub(r"\x1b\[\d*m", "", line)
            assert "\x1b" not in rest
            assert "\u202e" not in rest
            assert width_of(rest) <= 100
    context.close()


# --- where it cannot be drawn -----------------------------------------------------------------------------------------


def test_a_pipe_gets_one_frame(sample: SampleStorage, packhorse: Call):
    sample.in_every_state()

    result = packhorse("top")

    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert "resize(image_id=7)" in result.stdout


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": ""}])
def test_a_dumb_terminal_gets_one_frame(sample: SampleStorage, environment: dict[str, str]):
    sample.in_every_state()

    code, seen = on_terminal(sample, "top", **environment)

    assert code == 0
    assert "\x1b[?1049h" not in seen
    assert "resize(image_id=7)" in plain(seen)


def test_json_is_that_of_status(sample: SampleStorage, packhorse: Call):
    sample.add()

    assert '"totals":' in packhorse("top", "--json").stdout


# --- on a real terminal -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [b"q", b"\x03"])
def test_it_leaves_the_terminal_as_it_was(sample: SampleStorage, ending: bytes):
    sample.in_every_state()

    with Terminal(sample, "top") as terminal:
        before = terminal.attributes
        terminal.read_until("running")
        assert terminal.now()[3] & (termios.ICANON | termios.ECHO) == 0
        terminal.write(b"2")
        terminal.read_until("for-queued")
        terminal.write(ending)
        assert terminal.wait() == 0

        assert terminal.now() == before
        assert terminal.seen.endswith("\x1b[?25h\x1b[?1049l")
        assert terminal.seen.count("\x1b[?1049h") == 1


def test_it_is_drawn_anew_when_the_terminal_gets_another_size(sample: SampleStorage):
    sample.job("running")
    with Terminal(sample, "top", "--every", "60s", width=100, height=24) as terminal:
        terminal.read_until("q quit")
        terminal.resize(120, 30)
        terminal.read_until("q quit", times=2)
        terminal.write(b"q")

        assert terminal.wait() == 0


def test_a_signal_to_end_restores_it_too(sample: SampleStorage):
    sample.add()

    with Terminal(sample, "top") as terminal:
        terminal.read_until("running")
        terminal.child.send_signal(signal.SIGTERM)
        assert terminal.wait() == 128 + signal.SIGTERM

        assert terminal.now() == terminal.attributes
        assert "\x1b[?1049l" in terminal.seen


def test_it_can_be_suspended(sample: SampleStorage):
    sample.add()

    with Terminal(sample, "top") as terminal:
        terminal.read_until("running")
        terminal.child.send_signal(signal.SIGTSTP)
        _, status = os.waitpid(terminal.child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert terminal.now() == terminal.attributes

        terminal.child.send_signal(signal.SIGCONT)
        terminal.read_until("\x1b[?1049h", times=2)
        terminal.write(b"q")
        assert terminal.wait() == 0
        assert terminal.now() == terminal.attributes


def test_without_a_terminal_module_it_is_not_needed():
    # `top --once` and every other command must work where there is no `termios`, so only `top` imports it.
    script = (
        "import sys; sys.modules['termios'] = None; import packhorse.cli.commands.status, packhorse.cli.commands.jobs"
    )

    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_one_frame_in_a_pipe_tells_how_long_jobs_have_run(sample: SampleStorage, packhorse: Call):
    job = sample.job("running")

    lines = packhorse("top", "--once").stdout.splitlines()

    title = next(line for line in lines if line.startswith("ID "))
    ran = next(line for line in lines if job.id[-8:] in line).split()[title.split().index("RAN")]
    assert ran.endswith(("ms", "s"))


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("j", ["j"]),
        ("\x1b[A\x1b[B", ["up", "down"]),
        ("\x1bOA", ["up"]),
        ("\x1b", ["escape"]),
        ("\r\t\x7f", ["enter", "tab", "backspace"]),
        ("\x1b[5~\x1b[6~", ["page up", "page down"]),
        ("\x1b[1;5C", ["\x1b[1;5C"]),
        ("é漢", ["é", "漢"]),
        ("", []),
    ],
)
def test_keys_are_told_by_name(text: str, keys: list[str]):
    assert keys_in(text) == keys


def test_a_painted_line_is_cut_by_what_is_seen_of_it():
    line = "\x1b[31mred\x1b[0m and plain"

    assert fitted(line, 40) == line
    assert fitted(line, 6) == "\x1b[31mred\x1b[0m a…"
    assert fitted(line, 2) == "\x1b[31mr…\x1b[0m"
    assert fitted("漢字漢字", 5) == "漢字…"


def test_another_size_wakes_it_also_if_its_signal_comes_just_before_it_waits(monkeypatch: pytest.MonkeyPatch):
    ours, theirs = os.openpty()
    with os.fdopen(ours, "wb"), os.fdopen(theirs) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with Screen() as screen:
            signal.signal(signal.SIGWINCH, lambda number, frame: None)  # Python has not come to the handler yet
            signal.raise_signal(signal.SIGWINCH)

            assert screen.keys(0) == [RESIZED]
            assert screen.keys(0) == []
