"""Arguments and results must come back as they were sent, or be refused by name before they are stored."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import re
import subprocess
import sys
import uuid
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.codec import (
    DEPTH_LIMIT,
    PAYLOAD_LIMIT,
    Signature,
    canonical_json,
    decode_result,
    encode_args,
    encode_result,
)
from packhorse.core.errors import BadArguments, BadResult, PayloadTooLarge

if TYPE_CHECKING:
    from fractions import Fraction


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Address:
    street: str
    since: date | None = None


@dataclasses.dataclass
class Shop:
    name: str
    addresses: list[Address]


class Point(NamedTuple):
    x: int
    y: float


class Options(TypedDict, total=False):
    depth: int
    until: datetime


class Order(msgspec.Struct):
    id: uuid.UUID
    total: Decimal


class User:
    pass


@dataclasses.dataclass(eq=False)
class Touchy:
    size: float | None

    def __eq__(self, other: object) -> bool:
        raise AttributeError("compare me with my own kind only")

    __hash__ = None  # type: ignore[assignment]


class Tagged(str):
    def __str__(self) -> str:
        return "something else"


def send_notice(user_id: int, email: str, urgent: bool = False) -> str:
    return f"{user_id} {email} {urgent}"


def untyped(value, other=None):  # type: ignore[no-untyped-def]
    return value


def everything(first: int, /, second: date, *rest: date, last: int = 0, **more: Decimal) -> tuple[Any, ...]:
    return first, second, rest, last, more


def carried(hint: Any, value: Any) -> Any:
    """What a task with this hint would be called with."""

    def task(value):  # type: ignore[no-untyped-def]
        return value

    task.__annotations__ = {"value": hint}
    signature = Signature.of(task)
    return signature.decode(signature.encode((value,), {}))["value"]


# --- Binding ---


def test_positional_arguments_are_stored_by_name() -> None:
    text = Signature.of(send_notice).encode((7, "a@b.c"), {})

    assert json.loads(text) == {"user_id": 7, "email": "a@b.c"}


def test_arguments_that_were_not_given_are_not_stored() -> None:
    signature = Signature.of(send_notice)

    assert "urgent" not in signature.bind((7,), {"email": "a@b.c"})
    assert signature.decode('{"user_id":7,"email":"a@b.c"}') == {"user_id": 7, "email": "a@b.c"}


@pytest.mark.parametrize(
    ("args", "kwargs", "sentence", "argument"),
    [
        ((), {"user_id": 1, "emial": "x"}, "send_notice() has no argument 'emial'; did you mean 'email'?", "emial"),
        ((1, "x"), {"zzz": 1}, "send_notice() has no argument 'zzz'; it takes user_id, email, urgent", "zzz"),
        ((), {"user_id": 1}, "send_notice() needs the argument 'email'", "email"),
        ((), {}, "send_notice() needs the arguments 'user_id' and 'email'", "user_id"),
        ((1, "x", True, 4), {}, "send_notice() got too many arguments by position: 4, and it takes 3", None),
        ((1, "x"), {"email": "y"}, "send_notice() got two values for the argument 'email'", "email"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_in_a_sentence(
    args: tuple[Any, ...], kwargs: dict[str, Any], sentence: str, argument: str | None
) -> None:
    with pytest.raises(BadArguments) as caught:
        Signature.of(send_notice).encode(args, kwargs)

    assert str(caught.value) == sentence
    assert caught.value.argument == argument


def test_the_same_function_has_one_signature() -> None:
    assert Signature.of(send_notice) is Signature.of(send_notice)


def test_every_kind_of_parameter_survives_the_journey() -> None:
    signature = Signature.of(everything)
    day = date(2024, 5, 6)

    text = signature.encode((1, day, day), {"last": 9, "price": Decimal("1.10")})
    args, kwargs = signature.call_with(signature.decode(text))

    assert json.loads(text) == {
        "first": 1,
        "second": "2024-05-06",
        "rest": ["2024-05-06"],
        "last": 9,
        "price": "1.10",
    }
    assert everything(*args, **kwargs) == (1, day, (day,), 9, {"price": Decimal("1.10")})


def test_positional_only_arguments_are_passed_by_position_also_without_further_ones() -> None:
    def task(first: int, second: int = 2, /, third: int = 3) -> tuple[int, int, int]:
        return first, second, third

    signature = Signature.of(task)

    args, kwargs = signature.call_with(signature.decode('{"first":1,"third":9}'))

    assert task(*args, **kwargs) == (1, 2, 9)


@pytest.mark.parametrize("name", ["first", "rest"])
def test_a_keyword_that_clashes_with_a_positional_name_is_refused(name: str) -> None:
    with pytest.raises(BadArguments, match=f"takes '{name}' by position"):
        Signature.of(everything).encode((1, date(2024, 1, 1)), {name: 1})


def test_a_stored_extra_keyword_of_the_wrong_type_is_named() -> None:
    with pytest.raises(BadArguments, match=r"argument 'price'.*\(it is \[\]\)"):
        Signature.of(everything).decode('{"first":1,"second":"2024-05-06","price":[]}')


def test_a_partial_takes_what_is_left() -> None:
    signature = Signature.of(functools.partial(send_notice, 7, urgent=True))

    assert signature.name == "send_notice"
    assert signature.decode(signature.encode(("a@b.c",), {})) == {"email": "a@b.c"}


def test_a_bound_method_does_not_take_self() -> None:
    class Mailer:
        def run(self, when: date) -> None: ...

    signature = Signature.of(Mailer().run)

    assert signature.name == "Mailer.run"
    assert signature.decode(signature.encode((date(2024, 1, 2),), {})) == {"when": date(2024, 1, 2)}


def test_an_object_that_can_be_called_is_a_task_too_even_if_it_cannot_be_hashed() -> None:
    class Mailer:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, when: date) -> None: ...

    class QuickMailer(Mailer):
        pass

    signature = Signature.of(QuickMailer())

    assert signature.decode('{"when":"2024-01-02"}') == {"when": date(2024, 1, 2)}


def test_a_decorated_function_shows_its_inner_signature() -> None:
    def traced(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    assert Signature.of(traced(send_notice)).names == ("user_id", "email", "urgent")


def test_an_async_function_is_read_like_any_other() -> None:
    async def task(when: date) -> Decimal:
        return Decimal(0)

    signature = Signature.of(task)

    assert signature.decode('{"when":"2024-01-02"}') == {"when": date(2024, 1, 2)}
    assert signature.result_hint is Decimal


def test_a_hint_that_exists_only_for_the_type_checker_is_explained_when_it_is_needed() -> None:
    def task(part: Fraction) -> Fraction:
        return part

    signature = Signature.of(task)

    with pytest.raises(BadArguments, match=r"hint of the argument 'part' cannot be found.*TYPE_CHECKING"):
        signature.prepare()
    assert signature.result_hint is Any


def test_a_builtin_without_a_signature_is_refused() -> None:
    with pytest.raises(BadArguments, match="does not say which arguments it takes"):
        Signature.of(max)


# --- There and back ---

AWARE = datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, 7),
        (float, 1.5),
        (str, "žluťoučký 🐎 \\u0000 \u2028"),
        (None | int, None),
        (datetime, AWARE),
        (datetime, AWARE.replace(tzinfo=None)),
        (datetime, AWARE.astimezone(UTC)),
        (date, date(2024, 5, 6)),
        (time, time(7, 8, 9)),
        (timedelta, timedelta(days=-1, seconds=3, microseconds=1)),
        (uuid.UUID, uuid.UUID(int=7)),
        (Decimal, Decimal("1.10")),
        (Colour, Colour.RED),
        (Level, Level.HIGH),
        (Literal["a", "b"], "a"),
        (bytes, b"\x00\xff"),
        (set[int], {1, 2}),
        (frozenset[date], frozenset({date(2024, 5, 6)})),
        (tuple[int, str], (1, "a")),
        (tuple[date, ...], (date(2024, 5, 6),)),
        (dict[int, date], {1: date(2024, 5, 6)}),
        (dict[uuid.UUID, str], {uuid.UUID(int=7): "x"}),
        (Shop, Shop("A", [Address("B", date(2024, 5, 6))])),
        (Point, Point(1, 2.5)),
        (Options, {"depth": 1, "until": AWARE}),
        (Order, Order(uuid.UUID(int=7), Decimal("9.90"))),
        (list[Order | None], [None, Order(uuid.UUID(int=7), Decimal("9.90"))]),
        (Annotated[int, msgspec.Meta(ge=1)], 1),
        (Path, Path("a/b.txt")),
        (Tagged, Tagged("plain")),
        (list[Path] | None, [Path("a")]),
        (Any, {"a": [1, None, True, "x", {"b": 1.5}]}),
    ],
)
def test_a_value_comes_back_by_its_hint(hint: Any, value: Any) -> None:
    came = carried(hint, value)

    assert came == value
    assert type(came) is type(value)


def test_a_whole_number_is_accepted_for_a_float() -> None:
    assert carried(float, 3) == 3.0


def test_an_argument_whose_default_is_none_may_be_none() -> None:
    def task(limit: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    assert Signature.of(task).decode('{"limit":null}') == {"limit": None}


@pytest.mark.parametrize("bits", [63, 64, 65, 128, 2000])
def test_integers_of_any_size_come_back_equal(bits: int) -> None:
    for number in (2**bits - 1, 2**bits, -(2**bits) - 1):
        assert carried(int, number) == carried(Any, number) == number


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (date | str, date(2024, 5, 6)),
        (str | date, date(2024, 5, 6)),
        (date | str, "soon"),
        (list[datetime | str], [AWARE, "soon"]),
        (dict[str, Address | Shop], {"a": Shop("A", []), "b": Address("B")}),
        (Address | dict[str, int], {"a": 1}),
        (bytes | Decimal | None, None),
    ],
)
def test_a_union_whose_members_look_alike_in_json_gives_the_member_that_was_sent(hint: Any, value: Any) -> None:
    came = carried(hint, value)

    assert came == value
    assert type(came) is type(value)


def test_text_that_fits_no_member_of_a_union_is_refused() -> None:
    with pytest.raises(BadArguments, match=r"argument 'value'.*expected date \| UUID, got str"):
        carried(date | uuid.UUID, "soon")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('aé\\"[{]}🐎\n'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_plain_json_values_come_back_equal(value: Any) -> None:
    if "\\u0000" in json.dumps(value):
        return

    assert decode_result(encode_result(value)) == value
    assert Signature.of(untyped).decode(Signature.of(untyped).encode((value,), {})) == {"value": value}


# --- What does not fit by type ---


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            '{"user_id":"12","email":"x"}',
            "send_notice(): argument 'user_id': expected int, got str (it is '12')",
        ),
        ('{"user_id":1.5,"email":"x"}', "send_notice(): argument 'user_id': expected int, got float (it is 1.5)"),
        ('{"user_id":1}', "send_notice() needs the argument 'email'"),
        ('{"user_id":1,"emial":"x"}', "send_notice() has no argument 'emial'; did you mean 'email'?"),
        ("[1]", "the stored arguments of send_notice() cannot be read (expected object, got array)"),
        ('{"user_id":', "the stored arguments of send_notice() cannot be read (input data was truncated)"),
        ('{"user_id":"12",', "send_notice(): argument 'user_id': expected int, got str"),
    ],
)
def test_stored_arguments_that_do_not_fit_are_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(BadArguments) as caught:
        Signature.of(send_notice).decode(text)

    assert str(caught.value) == sentence


def test_a_mismatch_deep_inside_an_argument_says_where() -> None:
    def task(shop: Shop) -> None: ...

    with pytest.raises(BadArguments, match=r"argument 'shop' at shop\.addresses\[0\]\.street: expected str, got int"):
        Signature.of(task).decode('{"shop":{"name":"A","addresses":[{"street":1}]}}')


@pytest.mark.parametrize(
    ("hint", "text"), [(User, "{}"), (Path, "1"), (set[list[int]], "[[1]]"), (int, "[" * 5000), (int, "1e999")]
)
def test_what_cannot_be_read_is_a_bad_argument_and_no_other_error(hint: Any, text: str) -> None:
    def task(value):  # type: ignore[no-untyped-def]
        return value

    task.__annotations__ = {"value": hint}

    with pytest.raises(BadArguments):
        Signature.of(task).decode(f'{{"value":{text}}}')


def test_a_hint_that_json_can_never_fill_is_refused_when_the_worker_prepares() -> None:
    def task(value: Annotated[str, msgspec.Meta(ge=1)]) -> None: ...

    with pytest.raises(BadArguments, match="hint of the argument 'value' cannot be read from JSON"):
        Signature.of(task).prepare()


@pytest.mark.parametrize("given", [((msgspec.UNSET,), {}), ((), {"value": msgspec.UNSET})], ids=["by place", "by name"])
def test_an_argument_is_never_left_out_because_its_value_is_one_that_msgspec_leaves_out(given: Any):
    def with_default(value: Any = 7) -> None: ...

    def without(value: Any) -> None: ...

    for function in (with_default, without):
        with pytest.raises(BadArguments, match="argument 'value'"):
            Signature.of(function).encode(*given)


# --- What cannot become JSON ---


def deep(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def circle() -> Any:
    value: dict[str, Any] = {"name": "x"}
    value["children"] = [value]
    return value


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (User(), "argument 'value': <User object> cannot become JSON - pass its id, or make it a dataclass"),
        ({"a b": [1, User()]}, "argument 'value' at value['a b'][1]: <User object> cannot become JSON"),
        (Shop("x", [User()]), "argument 'value' at value.addresses[0]: <User object> cannot become JSON"),  # type: ignore[list-item]
        (Order(User(), Decimal(1)), "argument 'value' at value.id: <User object> cannot become JSON"),  # type: ignore[arg-type]
        (User, "argument 'value': <type object> cannot become JSON"),
        ((n for n in "ab"), "argument 'value': <generator object> cannot become JSON"),
        ({(1, 2): 3}, "argument 'value': the key (1, 2) cannot become JSON"),
        ([{None: 3}], "argument 'value' at value[0]: the key None cannot become JSON"),
        (math.nan, "argument 'value': nan cannot become JSON, which has no NaN or Infinity"),
        ({"a": (None, -math.inf)}, "argument 'value' at value.a[1]: -inf cannot become JSON"),
        (Point(1, math.inf), "argument 'value' at value[1]: inf cannot become JSON"),
        (OrderedDict(a=None, b=math.nan), "argument 'value' at value.b: nan cannot become JSON"),
        (Touchy(math.nan), "argument 'value' at value.size: nan cannot become JSON"),
        (Address(math.nan), "argument 'value' at value.street: nan cannot become JSON"),  # type: ignore[arg-type]
        ("a\ud800", "argument 'value': text with half a character (a lone surrogate) cannot become JSON"),
        ({"\ud800": 1}, "argument 'value': text with half a character"),
        (["a\0b"], "argument 'value' at value[0]: the text has a NUL character ('\\0'), which no storage accepts"),
        ("\\\\\0", "argument 'value': the text has a NUL character"),
        ([10**5000], "argument 'value' at value[0]: an integer of more than 4,300 digits cannot become JSON"),
        (circle(), "argument 'value': it contains itself"),
        (deep(DEPTH_LIMIT), "argument 'value': it is nested deeper than 64 levels"),
        (deep(100_000), "argument 'value': it is nested deeper than 64 levels"),
        ([["[{" * 99], deep(DEPTH_LIMIT)], "argument 'value': it is nested deeper than 64 levels"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_name(value: Any, sentence: str) -> None:
    with pytest.raises(BadArguments) as caught:
        Signature.of(untyped).encode((value,), {"other": None})

    assert str(caught.value).startswith(f"untyped(): {sentence}")
    assert caught.value.argument == "value"


@pytest.mark.parametrize(
    "value",
    [
        "\\u0000",
        "null",
        {"null": None},
        deep(DEPTH_LIMIT - 1),
        ["[" * 99, '"[' * 99, "\\", '\\"[', "]" * 99] * 3,
        [{"a": [1]}] * 200,
        Decimal("NaN"),
        OrderedDict(a=None),
        Touchy(None),
    ],
)
def test_what_only_looks_dangerous_is_taken(value: Any) -> None:
    assert json.loads(Signature.of(untyped).encode((value,), {}))


def test_a_dict_of_arguments_is_encoded_without_the_function() -> None:
    assert encode_args({"user_id": 7, "day": date(2024, 5, 6)}) == '{"user_id":7,"day":"2024-05-06"}'


def test_a_dict_of_arguments_needs_text_for_names() -> None:
    with pytest.raises(BadArguments, match="the names of arguments must be text, not 1"):
        encode_args({1: 2})  # type: ignore[dict-item]


def test_a_dict_of_arguments_with_a_bad_value_names_it() -> None:
    with pytest.raises(BadArguments, match=r"^argument 'user': <User object> cannot become JSON"):
        encode_args({"user": User()})


# --- Size ---


def test_the_limit_counts_bytes_of_utf_8() -> None:
    text = "é" * (PAYLOAD_LIMIT // 2)

    with pytest.raises(PayloadTooLarge) as caught:
        encode_args({"text": text})

    assert caught.value.size == PAYLOAD_LIMIT + len('{"text":""}')
    assert str(caught.value).startswith("the arguments are 1,048,587 bytes as JSON; the limit is 1,048,576")


def test_a_payload_just_at_the_limit_is_taken() -> None:
    assert encode_args({"a": "xx"}, limit=10) == '{"a":"xx"}'

    with pytest.raises(PayloadTooLarge, match="the arguments of untyped"):
        Signature.of(untyped).encode(("x" * 100,), {}, limit=100)


# --- Checking at once ---


def test_a_call_that_the_worker_would_reject_raises_immediately() -> None:
    def resize(image_id: int, widths: list[int] | None = None, **more: float) -> None: ...

    signature = Signature.of(resize)

    for kwargs, words in (
        ({"image_id": "x"}, "argument 'image_id': expected int, got str (it is 'x')"),
        ({"image_id": 1, "widths": [1, "b"]}, r"argument 'widths' at widths[1]: expected int, got str"),
        ({"image_id": 1, "gamma": "high"}, "argument 'gamma': expected float, got str"),
    ):
        with pytest.raises(BadArguments, match=re.escape(words)):
            signature.encode((), kwargs)
    assert signature.encode((7,), {"gamma": 2}) == '{"image_id":7,"gamma":2}'


def test_a_hint_that_cannot_be_read_is_left_to_the_worker() -> None:
    def later(when: Unheard) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert Signature.of(later).encode((), {"when": 1}) == '{"when":1}'


# --- Results ---


def test_a_result_comes_back_by_the_return_hint() -> None:
    text = encode_result(Shop("A", [Address("B")]))

    assert decode_result(text) == {"name": "A", "addresses": [{"street": "B", "since": None}]}
    assert decode_result(text, Shop) == Shop("A", [Address("B")])


def test_a_result_that_cannot_become_json_says_so() -> None:
    with pytest.raises(BadResult, match=r"^the result at \[0\]: <User object> cannot become JSON") as caught:
        encode_result([User()])
    assert caught.value.hint == "return its id, or make it a dataclass"
    with pytest.raises(
        BadResult, match=r"^the result at \[1\]: the text has a NUL character \('\\0'\), which no storage"
    ):
        encode_result(["a", "a\0b"])
    with pytest.raises(PayloadTooLarge, match=r"the data of the result are .* or raise `result_limit`"):
        encode_result("x" * 100, limit=10)


def test_a_stored_result_of_another_type_is_refused() -> None:
    with pytest.raises(BadResult, match="the stored result cannot be read: expected int, got str"):
        decode_result('"x"', int)


# --- Pydantic, where it is installed ---


def test_a_pydantic_model_comes_back_as_one() -> None:
    pydantic = pytest.importorskip("pydantic")
    strict = pydantic.ConfigDict(strict=True)
    fields = {"when": (datetime, ...), "size": (int, pydantic.Field(alias="Size"))}
    model = pydantic.create_model("Parcel", __config__=strict, **fields)
    parcel = model(when=AWARE, Size=3)

    assert carried(model, parcel) == parcel
    assert carried(list[model | None], [parcel, None]) == [parcel, None]  # type: ignore[valid-type]


def test_what_a_pydantic_model_refuses_is_a_bad_argument() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Parcel", size=(int, ...))

    with pytest.raises(BadArguments, match=r"argument 'value': size: Input should be a valid integer"):
        carried(model, {"size": "big"})


def test_nan_inside_a_pydantic_model_is_found() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Parcel", size=(float, ...))

    with pytest.raises(BadArguments, match=r"argument 'value'.*cannot become JSON"):
        encode_args({"value": model(size=math.nan)})


def test_pydantic_is_not_imported_for_others() -> None:
    code = "import sys, packhorse.core.codec; sys.exit('pydantic' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- Canonical text ---


def test_canonical_json_does_not_depend_on_order() -> None:
    one = canonical_json({"a": {"x": 1, "y": 2}, "b": {3, 1, 2}})
    two = canonical_json({"b": {2, 3, 1}, "a": {"y": 2, "x": 1}})

    assert one == two == b'{"a":{"x":1,"y":2},"b":[1,2,3]}'
