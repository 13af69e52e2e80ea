from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from packhorse.core.context import CURRENT, JobContext
from packhorse.storage.records import LogKind, LogLine
from packhorse.worker import attempt
from packhorse.worker.logging import LOG_FORMATS, TRACEBACK, about, capture_logging, formatter_of
from tests.worker.conftest import WorkerHarness
from tests.worker.factories import RESULT_LIMIT, RecordingLink, a_job, chain_of, task_of


def record(message: str, *, failed: bool = False) -> logging.LogRecord:
    info = None
    if failed:
        try:
            raise ValueError("no")
        except ValueError:
            info = sys.exc_info()
    made = logging.LogRecord("packhorse", logging.WARNING, "a.py", 1, message, None, info)
    made.created = 0.5
    return made


def test_text_is_for_people():
    assert formatter_of("text").format(record("all is well")).endswith(" WARNING all is well")


def test_json_has_everything_on_one_line():
    line = formatter_of("json").format(record("two\nlines", failed=True))

    fields = json.loads(line)
    assert "\n" not in line
    assert fields["error"].endswith("ValueError: no")
    assert fields == fields | {
        "at": "1970-01-01T00:00:00.500Z",
        "level": "warning",
        "logger": "packhorse",
        "message": "two\nlines",
    }


@pytest.mark.parametrize(
    ("message", "written"), [("well", "well"), ("all is well", '"all is well"'), ("a\nb", '"a\\nb"'), ("", '""')]
)
def test_logfmt_quotes_what_needs_it(message: str, written: str):
    line = formatter_of("logfmt").format(record(message))

    assert line == f"at=1970-01-01T00:00:00.500Z level=warning logger=packhorse message={written}"


@pytest.mark.parametrize("name", LOG_FORMATS)
def test_every_format_has_its_formatter(name: str):
    assert "well" in formatter_of(name).format(record("well"))


# --- what a line is about ---------------------------------------------------------------------------------------------

JOB = a_job(failures=1)
ABOUT = {"job_id": "job-1", "task": "send", "queue": "send", "attempt": 2}


def test_a_line_about_a_job_has_it_as_fields():
    made = record("it failed")
    made.__dict__ |= {**about(JOB), TRACEBACK: "Traceback …\nValueError: no\n"}

    fields = json.loads(formatter_of("json").format(made))
    logfmt = formatter_of("logfmt").format(made)

    assert fields == fields | ABOUT | {"error": "Traceback …\nValueError: no\n"}
    assert TRACEBACK not in fields
    assert "job_id=job-1 task=send queue=send attempt=2" in logfmt
    assert 'error="Traceback …\\nValueError: no\\n"' in logfmt


def test_what_a_task_logs_while_it_runs_has_its_job_as_fields():
    token = CURRENT.set(JobContext(JOB, {}, RecordingLink()))
    try:
        line = formatter_of("json").format(record("from a task"))
    finally:
        CURRENT.reset(token)

    assert json.loads(line).items() >= ABOUT.items()
    assert "job_id" not in json.loads(formatter_of("json").format(record("from nobody")))


def test_extra_is_there_whatever_it_is_and_hides_nothing():
    made = record("sold")
    made.__dict__ |= {"order": 7, "what": object, "level": "mine", "two words": "a b", "nested": {"a": [1]}}

    fields = json.loads(formatter_of("json").format(made))
    logfmt = formatter_of("logfmt").format(made)

    assert (fields["order"], fields["what"], fields["nested"]) == (7, "<class 'object'>", {"a": [1]})
    assert fields["level"] == "warning"
    assert list(fields)[:4] == ["at", "level", "logger", "message"]
    assert "order=7" in logfmt
    assert 'two_words="a b"' in logfmt


def test_text_shows_the_traceback_of_errors_only():
    made = record("it failed")
    made.__dict__ |= {**about(JOB), TRACEBACK: "Traceback …\nValueError: no\n"}
    warned = formatter_of("text").format(made)
    made.levelno, made.levelname = logging.ERROR, "ERROR"

    assert warned.endswith("it failed")
    assert formatter_of("text").format(made).endswith("it failed\n    Traceback …\n    ValueError: no")


def test_no_text_of_a_job_can_pass_for_another_line_of_the_log() -> None:
    error = "boom\n2026-11-18 08:00:00,000 ERROR forged\r2026\u20282026 \x1b[31m"
    record = logging.LogRecord("packhorse.worker", logging.ERROR, "", 0, "job failed: %s", (error,), None)
    record.traceback = f"Traceback\nValueError: {error}"

    first, *others = formatter_of("text").format(record).splitlines()

    assert first.endswith("job failed: boom")
    assert others
    assert all(line.startswith("    ") for line in others)
    assert "\x1b" not in "".join(others)


# --- what jobs log ----------------------------------------------------------------------------------------------------


log = logging.getLogger("shop.mail")


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    level = root.level
    yield root
    root.setLevel(level)


def run_plain(function: Any, line: RecordingLink) -> None:
    task = task_of(function, "send")
    attempt.run(a_job(), task, chain_of(task), line, RESULT_LIMIT)


def test_a_record_becomes_a_line_of_the_job():
    line = RecordingLink()

    with capture_logging():
        run_plain(lambda: log.warning("no answer from %s", "smtp"), line)

    assert line.lines == [("log", "warning shop.mail: no answer from smtp")]


@pytest.mark.parametrize(
    ("level", "told"), [("INFO", "info"), ("WARNING", "warning"), ("ERROR", "error"), ("CRITICAL", "error")]
)
def test_a_line_knows_the_level_of_the_record(level: str, told: str):
    line = RecordingLink()

    with capture_logging():
        run_plain(lambda: log.log(logging.getLevelNamesMapping()[level], "no answer"), line)

    ((kind, message),) = line.lines
    assert LogLine(message, LogKind(kind)).level == told


def test_information_is_captured_and_details_are_not():
    line = RecordingLink()

    def task() -> None:
        log.info("sent")
        log.debug("in 3 ms")

    with capture_logging():
        run_plain(task, line)

    assert [message for _, message in line.lines] == ["info shop.mail: sent"]


def test_nothing_is_captured_outside_of_a_job_or_of_the_block():
    line = RecordingLink()

    with capture_logging():
        log.warning("nobody's")
    run_plain(lambda: log.warning("too late"), line)

    assert line.lines == []


def test_our_own_records_stay_out_and_those_of_a_namesake_do_not():
    line = RecordingLink()

    def task() -> None:
        logging.getLogger("packhorse.worker").warning("ours")
        logging.getLogger("packhorse_shop").warning("theirs")

    with capture_logging():
        run_plain(task, line)

    assert [message for _, message in line.lines] == ["warning packhorse_shop: theirs"]


def test_an_error_is_logged_with_its_traceback():
    line = RecordingLink()

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
    line = RecordingLink()

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
    lines = [RecordingLink() for _ in range(4)]
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
    lines = [RecordingLink() for _ in range(4)]

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
    line = RecordingLink()
    mark = CURRENT.set(JobContext(a_job(), {}, line))

    try:
        with capture_logging():
            log.info("x" * 50_000)
    finally:
        CURRENT.reset(mark)

    assert len(line.lines[0][1]) == 10_001


# --- a line for each job ----------------------------------------------------------------------------------------------


@pytest.fixture
def logged(harness: WorkerHarness) -> WorkerHarness:
    @harness.app.task
    def add(a: int, b: int) -> int:
        return a + b

    @harness.app.task(retries=0)
    def fail() -> None:
        raise ValueError("no")

    harness.open()
    return harness


def test_what_is_taken_and_how_it_ends_is_told(logged: WorkerHarness, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "packhorse.jobs"):
        job = logged.app.enqueue("add", {"a": 1, "b": 2})
        logged.finish(job)
        failed = logged.app.enqueue("fail")
        logged.finish(failed)

    told = [record.getMessage() for record in caplog.records if record.name == "packhorse.jobs"]
    assert told[0] == f"> add(a=1, b=2)  (job {job.id})"
    assert told[1].startswith("< add completed in ")
    assert told[1].endswith(f": 3  (job {job.id})")
    assert told[2:] == [f"> fail()  (job {failed.id})"]  # its failure is a warning of the worker's


def test_nothing_is_told_if_nobody_listens(logged: WorkerHarness, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, "packhorse.jobs"):
        logged.finish(logged.app.enqueue("add", {"a": 1, "b": 2}))

    assert [record for record in caplog.records if record.name == "packhorse.jobs"] == []
