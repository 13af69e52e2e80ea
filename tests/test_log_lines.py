from __future__ import annotations

import json
import logging
import sys

import pytest

from packhorse.log_lines import LOG_FORMATS, formatter_of


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
