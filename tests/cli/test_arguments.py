from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from packhorse.cli.arguments import bind_arguments, named_arguments, read_arguments
from packhorse.cli.errors import CommandError
from packhorse.core.codec import Signature
from packhorse.core.errors import BadArguments


def resize(image_id: int, width: int = 800) -> None: ...


def notify(phone: str, when: date | None = None, *, tags: list[str] = []) -> None: ...  # noqa: B006 - never called


def add(*numbers: float) -> None: ...


def place(x: int, y: int, /) -> None: ...


def anything(first, **rest) -> None: ...


def fit(function: Any, *words: str, args: str | None = None) -> Any:
    return bind_arguments(read_arguments(words, args, None), Signature.of(function))


@pytest.mark.parametrize(
    ("function", "words", "arguments"),
    [
        (resize, ["1407", "width=800"], {"image_id": 1407, "width": 800}),
        (resize, ["image_id=7"], {"image_id": 7}),
        (resize, ["width:=9", "image_id:=7"], {"image_id": 7, "width": 9}),
        (notify, ["phone=112"], {"phone": "112"}),
        (notify, ["112", "when=2030-01-31"], {"phone": "112", "when": "2030-01-31"}),
        (notify, ["true", 'tags:=["a","b"]'], {"phone": "true", "tags": ["a", "b"]}),
        (notify, ['"a=b"'], {"phone": "a=b"}),
        (notify, ["phone="], {"phone": ""}),
        (add, ["1", "2.5"], [1, 2.5]),
        (place, ["3", "-4"], [3, -4]),
        (anything, ["1", "more=[1, 2]", "text=007"], {"first": 1, "more": [1, 2], "text": "007"}),
    ],
)
def test_words_become_the_functions_arguments(function: Any, words: list[str], arguments: Any):
    assert fit(function, *words) == arguments


def test_arguments_may_come_as_json_and_be_completed_by_words():
    assert fit(resize, "width=9", args='{"image_id": 7}') == {"image_id": 7, "width": 9}
    assert fit(resize, args="[7, 9]") == {"image_id": 7, "width": 9}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["seven"], "expected int"),
        ([], "needs the argument 'image_id'"),
        (["1", "2", "3"], "too many"),
        (["7", "hight=3"], "has no argument 'hight'"),
        (["7", "image_id=8"], "image_id"),
    ],
)
def test_arguments_that_the_worker_would_refuse_are_refused_at_once(words: list[str], complaint: str):
    with pytest.raises(BadArguments, match=complaint):
        fit(resize, *words)


def test_a_value_that_fits_neither_as_json_nor_as_text_is_told_as_it_was_written():
    def buy(order: dict[str, int]) -> None: ...

    with pytest.raises(BadArguments, match="expected object, got int") as raised:
        fit(buy, "7")

    assert raised.value.why == "it is 7"


@pytest.mark.parametrize(
    ("words", "args", "complaint"),
    [
        (["width:=[1"], None, "width is not JSON"),
        ([], "{'a': 1}", "--args is not JSON"),
        ([], "17", "must be a JSON object"),
        (["a=1", "a=2"], None, "a is given twice"),
        (["a=1"], '{"a": 2}', "a is given twice"),
    ],
)
def test_what_cannot_be_read_is_named(words: list[str], args: str | None, complaint: str):
    with pytest.raises(CommandError, match=complaint):
        read_arguments(tuple(words), args, None)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path):
    with pytest.raises(CommandError, match="cannot read"):
        read_arguments((), None, str(tmp_path / "none.json"))


def test_values_without_a_name_are_refused_where_the_function_is_not_known():
    assert named_arguments(read_arguments(("a=1", "b=x"), None, None), "resize") == {"a": 1, "b": "x"}

    with pytest.raises(CommandError, match="need names") as raised:
        named_arguments(read_arguments(("1",), None, None), "resize")

    assert "--app" in (raised.value.hint or "")


def test_big_numbers_survive():
    assert named_arguments(read_arguments(("n=123456789012345678901234567890",), None, None), "x") == {
        "n": 123456789012345678901234567890
    }
