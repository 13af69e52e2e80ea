"""What jobs say through `logging` goes into the log of the right job, whatever runs beside it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from packhorse.core.context import CURRENT, JobContext
from packhorse.storage.records import LogKind, LogLine
from packhorse.worker import attempt
from packhorse.worker.capture import capture_logging
from tests.worker.making import RESULT_LIMIT, RememberingLine, a_job, chain_of, task_of

log = logging.getLogger("shop.mail")


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    level = root.level
    yield root
    root.setLevel(level)


def run_plain(function: Any, line: RememberingLine) -> None:
    task = task_of(function, "send")
    attempt.run(a_job(), task, chain_of(task), line, RESULT_LIMIT)


def test_a_record_becomes_a_line_of_the_job():
    line = RememberingLine()

    with capture_logging():
        run_plain(lambda: log.warning("no answer from %s", "smtp"), line)

    assert line.lines == [("log", "warning shop.mail: no answer from smtp")]


@pytest.mark.parametrize(
    ("level", "told"), [("INFO", "info"), ("WARNING", "warning"), ("ERROR", "error"), ("CRITICAL", "error")]
)
def test_a_line_knows_the_level_of_the_record(level: str, told: str):
    line = RememberingLine()

    with capture_logging():
        run_plain(lambda: log.log(logging.getLevelNamesMapping()[level], "no answer"), line)

    ((kind, message),) = line.lines
    assert LogLine(message, LogKind(kind)).level == told


def test_information_is_captured_and_details_are_not():
    line = RememberingLine()

    def task() -> None:
        log.info("sent")
        log.debug("in 3 ms")

    with capture_logging():
        run_plain(task, line)

    assert [message for _, message in line.lines] == ["info shop.mail: sent"]


def test_nothing_is_captured_outside_of_a_job_or_of_the_block():
    line = RememberingLine()

    with capture_logging():
        log.warning("nobody's")
    run_plain(lambda: log.warning("too late"), line)

    assert line.lines == []


def test_our_own_records_stay_out_and_those_of_a_namesake_do_not():
    line = RememberingLine()

    def task() -> None:
        logging.getLogger("packhorse.worker").warning("ours")
        logging.getLogger("packhorse_shop").warning("theirs")

    with capture_logging():
        run_plain(task, line)

    assert [message for _, message in line.lines] == ["warning packhorse_shop: theirs"]


def test_an_error_is_logged_with_its_traceback():
    line = RememberingLine()

    def task() -> None:
        try:
            raise ValueError("oops")
        except ValueError:
            log.exception("it failed")

    with capture_logging():
        run_plain(task, line)

    ((_, message),) = line.lines
    assert message.startswith("error shop.mail: it failed\nTraceback")
    assert message.endswith("ValueError: oops")


def test_a_bad_record_does_not_harm_the_job(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    line = RememberingLine()

    def task() -> None:
        log.warning("%d mails", "many")
        log.warning("and on")

    with capture_logging():
        run_plain(task, line)

    assert [message for _, message in line.lines] == ["warning shop.mail: and on"]
    assert "%d mails" in capsys.readouterr().err


@pytest.mark.parametrize(("before", "during"), [("WARNING", "INFO"), ("DEBUG", "DEBUG"), ("NOTSET", "NOTSET")])
def test_the_level_is_lowered_for_jobs_and_never_raised(root: logging.Logger, before: str, during: str):
    root.setLevel(before)

    with capture_logging():
        level = logging.getLevelName(root.level)

    assert level == during
    assert logging.getLevelName(root.level) == before


def test_threads_speak_for_their_own_jobs():
    lines = [RememberingLine() for _ in range(4)]
    start = threading.Barrier(len(lines))

    def job(number: int) -> None:
        def task() -> None:
            for count in range(50):
                log.info("%d:%d", number, count)

        start.wait()
        run_plain(task, lines[number])

    with capture_logging():
        threads = [threading.Thread(target=job, args=(number,)) for number in range(len(lines))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    for number, line in enumerate(lines):
        assert [message for _, message in line.lines] == [f"info shop.mail: {number}:{count}" for count in range(50)]


def test_coroutines_speak_for_their_own_jobs():
    lines = [RememberingLine() for _ in range(4)]

    async def job(number: int) -> None:
        async def task() -> None:
            for count in range(10):
                log.info("%d:%d", number, count)
                await asyncio.sleep(0)
            await asyncio.to_thread(log.info, "%d from a thread", number)

        registered = task_of(task, "send")
        await attempt.arun(a_job(), registered, chain_of(registered), lines[number], RESULT_LIMIT)

    async def all_at_once() -> None:
        await asyncio.gather(*(asyncio.create_task(job(number)) for number in range(len(lines))))

    with capture_logging():
        asyncio.run(all_at_once())

    for number, line in enumerate(lines):
        told = [f"{number}:{count}" for count in range(10)] + [f"{number} from a thread"]
        assert [message for _, message in line.lines] == [f"info shop.mail: {one}" for one in told]


def test_a_very_long_record_is_shortened():
    line = RememberingLine()
    mark = CURRENT.set(JobContext(a_job(), {}, line))

    try:
        with capture_logging():
            log.info("x" * 50_000)
    finally:
        CURRENT.reset(mark)

    assert len(line.lines[0][1]) == 10_001
