from __future__ import annotations

import json
import logging
import sys

import pytest

from packhorse.core.context import CURRENT, JobContext
from packhorse.worker.logging import LOG_FORMATS, TRACEBACK, about, formatter_of
from tests.worker.making import RememberingLine, a_job


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
    token = CURRENT.set(JobContext(JOB, {}, RememberingLine()))
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
