"""Failures are kept as text, and those of one cause are recognised."""

from __future__ import annotations

import json
from typing import Any

import pytest

from packhorse.core.outcome import MESSAGE_LIMIT, NAME_LIMIT, TRACEBACK_LIMIT, Failure


def raised(error: BaseException) -> Failure:
    try:
        raise error
    except type(error) as caught:
        return Failure.of(caught)


def test_a_failure_names_type_message_and_place() -> None:
    failure = raised(ValueError("no such image: 17"))

    assert (failure.type, failure.message) == ("ValueError", "no such image: 17")
    assert failure.place is not None
    assert failure.place.startswith(__file__)
    assert "raise error" in (failure.traceback or "")


def test_the_place_of_a_failure_is_in_ones_own_code() -> None:
    try:
        json.loads("{'thumbs'")
    except ValueError as error:
        failure = Failure.of(error)

    assert (failure.place or "").startswith(__file__)
    assert failure.function == "test_the_place_of_a_failure_is_in_ones_own_code"
    assert "json/decoder.py" in (failure.traceback or "")


def test_a_failure_in_a_library_alone_has_its_place_there() -> None:
    scope: dict[str, Any] = {}
    file = "/srv/venv/lib/python3.12/site-packages/lib/core.py"
    exec(compile("def outer():\n    inner()\ndef inner():\n    raise ValueError('no')\n", file, "exec"), scope)
    try:
        scope["outer"]()
    except ValueError as error:
        # The frame of this test is the user's own; without it, there are the library's only.
        failure = Failure.of(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))

    assert (failure.place, failure.function) == (f"{file}:4", "inner")


def test_a_failure_survives_as_json() -> None:
    failure = raised(RuntimeError('quotes " and ünïcode \N{SNOWMAN}'))

    assert Failure.from_json(failure.to_json()) == failure


def test_failures_that_differ_in_numbers_ids_and_values_have_one_cause() -> None:
    first = Failure("ValueError", "cannot decode image 17 of 'ann' at 0x7f3a", place="shop.py:41")
    second = Failure("ValueError", "cannot decode image 4021 of 'bob' at 0x81ee", place="shop.py:41")

    assert first.cause("resize") == second.cause("resize")
    assert first.pattern() == "ValueError: cannot decode image <…> of <…> at <…>"


def test_failures_that_differ_in_whose_address_it_was_have_one_cause() -> None:
    first = Failure("Bounced", "550 no such user ann@example.org")
    second = Failure("Bounced", "550 no such user bob.b+shop@mail.example.co.uk")

    assert first.cause("notify") == second.cause("notify")
    assert first.pattern() == "Bounced: <…> no such user <…>"


IDS = [
    "req_88bf",
    "req_1c0a9e",
    "4f2c1b8",
    "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    "web-7f9c6d-x2k4z",
    "ch_3MqLiJLkdIwHu7ix0",
    "ORD-2024-AB12",
]


def test_failures_that_differ_in_an_id_of_letters_and_digits_have_one_cause() -> None:
    patterns = {Failure("GatewayTimeout", f"request {one} failed").pattern() for one in IDS}

    assert patterns == {"GatewayTimeout: request <…> failed"}


@pytest.mark.parametrize(
    ("message", "pattern"),
    [
        ("connection to 10.0.0.7:5432 refused", "connection to <…> refused"),
        ("late: 2026-11-18T10:00:00.123+00:00, again", "late: <…>, again"),
        ("port=443): GET /v1/orders/17/items?page=2", "port=<…>): GET /<…>/orders/<…>/items?page=<…>"),
        ("-5 is less than 0.5", "<…> is less than <…>"),
        ("can't open it, don't try 'a b' or \"c\"", "can't open it, don't try <…> or <…>"),
        ("no digits-in_these.words", "no digits-in_these.words"),
    ],
)
def test_what_varies_is_masked_by_whole_words(message: str, pattern: str) -> None:
    assert Failure("E", message).pattern() == f"E: {pattern}"


def test_the_type_of_a_failure_is_shown_as_it_is() -> None:
    assert Failure("S3UploadError", "no").pattern() == "S3UploadError: no"


def test_another_task_type_or_place_is_another_cause() -> None:
    failure = Failure("ValueError", "no", place="shop.py:41")
    others = [
        failure.cause("other"),
        Failure("KeyError", "no", place="shop.py:41").cause("resize"),
        Failure("ValueError", "no", place="shop.py:42").cause("resize"),
    ]

    assert failure.cause("resize") not in others


def fails_in(source: str) -> Failure:
    scope: dict[str, Any] = {}
    exec(compile(source, "shop.py", "exec"), scope)
    try:
        scope["send"]()
    except ValueError as error:
        return Failure.of(error)
    raise AssertionError("it should have failed")


def test_a_line_that_is_added_above_makes_no_new_cause() -> None:
    before = fails_in("def send():\n    raise ValueError('no')\n")
    after = fails_in("import os\ndef send():\n    raise ValueError('no')\n")

    assert (before.place, after.place) == ("shop.py:2", "shop.py:3")
    assert before.cause("send") == after.cause("send")


def test_the_same_error_in_another_function_is_another_cause() -> None:
    first = fails_in("def send():\n    raise ValueError('no')\n")
    second = fails_in("def look():\n    raise ValueError('no')\ndef send():\n    look()\n")

    assert first.cause("send") != second.cause("send")


def test_a_long_message_and_a_deep_traceback_lose_their_middle() -> None:
    failure = raised(ValueError("begin " + "x" * 100_000 + " end"))

    assert len(failure.message) < MESSAGE_LIMIT + 100
    assert failure.message.startswith("begin")
    assert failure.message.endswith("end")
    assert "characters left out" in failure.message
    assert len(failure.traceback or "") < TRACEBACK_LIMIT + 100


def test_text_that_no_storage_takes_is_escaped() -> None:
    failure = raised(ValueError("nul \0 and surrogate \udc80"))

    assert failure.message == "nul \\0 and surrogate \\udc80"


def test_an_exception_without_a_message_is_its_type() -> None:
    assert raised(KeyError()).summary() == "KeyError"


def test_an_exception_whose_own_code_fails_is_a_failure_all_the_same() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise KeyError("text")

    class Worse(Broken):
        @property
        def __cause__(self) -> BaseException:  # type: ignore[override]
            raise KeyError("cause")

    assert raised(Broken()).message == "(its message cannot be shown: __str__ raised KeyError)"
    assert "Broken" in (raised(Broken()).traceback or "")
    assert raised(Worse()).traceback is None
    assert (raised(Worse()).place or "").startswith(__file__)


def test_a_place_that_is_not_utf_8_is_escaped() -> None:
    scope: dict[str, object] = {}
    exec(compile("def fail():\n    raise ValueError('no')\n", "/srv/\udcff/mail.py", "exec"), scope)
    try:
        scope["fail"]()  # type: ignore[operator]
    except ValueError as error:
        failure = Failure.of(error)

    assert failure.place == "/srv/\\udcff/mail.py:2"
    assert Failure.from_json(failure.to_json()) == failure


def test_a_type_whose_name_no_storage_takes_is_escaped_and_shortened() -> None:
    class Odd(Exception):
        __qualname__ = "Odd\udcff\0" + "x" * 10_000

    failure = raised(Odd())

    assert failure.type.startswith("Odd\\udcff\\0xxx")
    assert len(failure.type) < NAME_LIMIT + 100
    assert Failure.from_json(failure.to_json()) == failure
