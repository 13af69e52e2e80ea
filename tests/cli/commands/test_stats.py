"""`packhorse stats`: how tasks and queues did."""

from __future__ import annotations

import json

import pytest

from packhorse.cli.commands.stats import span_for
from packhorse.core.clock import DAY, HOUR, SECOND
from packhorse.core.outcome import Completed, Failed
from packhorse.storage.records import Span, TaskInfo, WorkerInfo
from tests.cli.conftest import Call
from tests.cli.sample_storage import FAILURE, WORKER, SampleStorage
from tests.cli.test_terminal import on_terminal, plain


@pytest.fixture
def ran(sample: SampleStorage) -> SampleStorage:
    """Three runs of `resize` in the queue images, of which one failed, and a longer one of `report`."""
    for number, task in enumerate(["resize", "resize", "resize", "report"]):
        job = sample.start(sample.add(task, queue="images" if task == "resize" else "report"))
        if number == 1:
            sample.finish(Failed(job.token, FAILURE, ran=2_000))
        else:
            sample.finish(Completed(job.token, ran=2_000 if task == "resize" else 40 * SECOND))
    return sample


def test_tasks_are_told_by_the_time_that_they_took(ran: SampleStorage, packhorse: Call):
    lines = packhorse("stats").stdout.splitlines()

    assert lines[0].split() == [
        *("TASK", "RUNS", "RATE/S", "FAILED", "FAIL%", "HALTED"),
        *("WAIT50", "WAIT95", "WAIT99", "RUN50", "RUN95", "RUN99", "TIME", "SHARE"),
    ]
    assert [line.split()[:2] for line in lines[1:]] == [["report", "1"], ["resize", "3"], ["all", "4"]]
    assert lines[1].split()[9:] == ["40s", "40s", "40s", "40s", "100%"]
    assert lines[2].split()[3:5] == ["1", "33%"]
    assert lines[2].split()[9:12] == ["2ms", "2ms", "2ms"]


def test_a_dead_worker_counts_a_halt_and_neither_a_run_nor_a_failure(sample: SampleStorage, packhorse: Call):
    sample.halt(sample.add())
    sample.job("completed")

    header, row = (line.split() for line in packhorse("stats", "--range", "1h").stdout.splitlines())

    told = dict(zip(header, row, strict=True))
    assert (told["RUNS"], told["FAILED"], told["FAIL%"], told["HALTED"]) == ("1", "-", "-", "1")


def test_json_has_a_line_for_each_queue(ran: SampleStorage, packhorse: Call):
    told = [
        json.loads(line) for line in packhorse("stats", "--by", "queue", "--range", "1h", "--json").stdout.splitlines()
    ]

    assert [(each["by"], each["name"], each["runs"], each["failed"]) for each in told] == [
        ("queue", "report", 1, 0),
        ("queue", "images", 3, 1),
    ]
    assert told[0]["per_second"] == 1 / 3_600
    assert sum(each["share"] for each in told) == pytest.approx(1)


def test_a_queue_or_a_task_narrows_it(ran: SampleStorage, packhorse: Call):
    assert json.loads(packhorse("stats", "--queue", "images", "--json").stdout)["name"] == "resize"
    assert json.loads(packhorse("stats", "--task", "report", "--json").stdout)["name"] == "report"


@pytest.mark.parametrize(
    ("words", "text"),
    [(("--queue", "image"), "did you mean 'images'?"), (("--task", "resise"), "did you mean 'resize'?")],
)
def test_names_that_are_none_bring_the_nearest(ran: SampleStorage, packhorse: Call, words: tuple[str, str], text: str):
    result = packhorse("stats", *words)

    assert result.exit_code == 3
    assert text in result.stderr


def test_nothing_ran(sample: SampleStorage, packhorse: Call):
    sample.join()

    result = packhorse("stats", "--range", "2h")

    assert result.stdout == ""
    assert result.stderr == "Nothing was enqueued or run in the last 2h. Look further back: --range 7d\n"


@pytest.mark.parametrize("length", ["10s", "91d", "soon"])
def test_a_range_that_cannot_be_is_refused(ran: SampleStorage, packhorse: Call, length: str):
    assert packhorse("stats", "--range", length).exit_code == 2


@pytest.mark.parametrize(
    ("length", "span"),
    [(HOUR, Span.TWO_HOURS), (2 * HOUR, Span.TWO_HOURS), (DAY, Span.TWO_DAYS), (7 * DAY, Span.NINETY_DAYS)],
)
def test_the_finest_series_is_taken_that_reaches_so_far(length: int, span: Span):
    assert span_for(length) is span


@pytest.mark.parametrize("command", ["tasks", "stats"])
def test_they_fit_a_narrow_screen(ran: SampleStorage, command: str):
    ran.add("a_task_with_a_name_that_nobody_would_want_to_type_" + "x" * 60)

    _, seen = on_terminal(ran, command, width=80)

    assert max(map(len, plain(seen).splitlines())) <= 80


@pytest.mark.parametrize("words", [(), ("--range", "1h"), ("--range", "7d"), ("--queue", "for-dead")])
def test_below_the_table_stands_what_ended_since_ever_and_today(
    sample: SampleStorage, packhorse: Call, words: tuple[str, ...]
):
    sample.job("completed")
    sample.job("dead")

    told = packhorse("stats", *words).stderr

    assert "in all 2 ended, 1 failed; today " in told  # which may be another day by now
    assert packhorse("stats", "--quiet", *words).stderr == ""


def test_the_calls_of_workers_are_told_with_waiting_and_running_apart(sample: SampleStorage, packhorse: Call):
    sample.join()
    sample.storage.join(WorkerInfo("second"))
    sample.storage.heartbeat(
        {
            WORKER: {"storage": {"finish": [3, 300, 200, 9_000, 4_000, 5_000], "reserve": [1, 0, 0, 100, 100, 100]}},
            "second": {"storage": {"finish": [1, 100, 100, 3_000, 3_000, 3_000]}},
        }
    )

    result = packhorse("stats", "storage")
    listed = [json.loads(line) for line in packhorse("stats", "storage", "--json").stdout.splitlines()]

    assert [line.split() for line in result.stdout.splitlines()[1:]] == [
        ["finish", "4", "0.1ms", "0.2ms", "3ms", "4ms", "5ms"],
        ["reserve", "1", "0ms", "0ms", "0.1ms", "0.1ms", "0.1ms"],
    ]
    assert "reported by 2 workers; WAIT is contention, RUN is load" in result.stderr
    assert listed[0] == {
        "name": "finish",
        "calls": 4,
        "wait_mean": 0.0001,
        "wait_max": 0.0002,
        "run_mean": 0.003,
        "run_p95": 0.004,
        "run_max": 0.005,
    }


def test_without_workers_nobody_tells_how_calls_go(sample: SampleStorage, packhorse: Call):
    sample.add()

    assert "No worker reports its calls" in packhorse("stats", "storage").stderr


@pytest.mark.parametrize("needless", [["--by", "queue"], ["--range", "1h"], ["--queue", "a"], ["--task", "a"]])
def test_what_means_nothing_beside_the_storage_is_refused(sample: SampleStorage, packhorse: Call, needless: list[str]):
    refused = packhorse("stats", "storage", *needless)

    assert refused.exit_code == 2
    assert f"{needless[0]} means nothing beside storage" in refused.stderr


def test_a_habit_of_the_environment_is_no_option_beside_the_storage(
    sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch
):
    sample.add()
    monkeypatch.setenv("PACKHORSE_STATS_BY", "queue")
    monkeypatch.setenv("PACKHORSE_RANGE", "7d")

    assert packhorse("stats", "storage").exit_code == 0


def test_every_task_is_told_with_its_jobs(sample: SampleStorage, packhorse: Call):
    sample.job("dead", task="resize", queue="images")
    sample.add("report")
    sample.storage.announce(
        [TaskInfo("resize", "images", {"max_attempts": 4, "timeout": 30 * SECOND, "memory_limit": 512 << 20})]
    )

    lines = packhorse("tasks").stdout.splitlines()

    assert [line.split()[0] for line in lines[1:]] == ["report", "resize", "send_notice"]
    row = next(line.split() for line in lines if line.startswith("resize"))
    assert row[:6] == ["resize", "images", "0", "0", "1", "1"]
    assert "max_attempts=4 timeout=30s memory_limit=512MiB" in next(line for line in lines if line.startswith("resize"))


def test_a_task_that_no_worker_knows_is_marked(sample: SampleStorage, packhorse: Call):
    sample.join()
    sample.add("mystery")

    result = packhorse("tasks")
    told = {
        each["name"]: each["announced_at"] for each in map(json.loads, packhorse("tasks", "--json").stdout.splitlines())
    }

    assert "? No worker knows mystery" in result.stderr
    assert told["mystery"] is None
    assert told["resize"] is not None


def test_no_task_yet(sample: SampleStorage, packhorse: Call):
    sample.storage.pause("mail")

    assert "No task is known yet" in packhorse("tasks").stderr
