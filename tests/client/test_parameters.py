"""The parameters of a task, announced by a worker and checked by programs without its code. They never reject what the
worker would accept."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import decimal
import enum
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from packhorse.client.announcements import Parameter, Parameters, parameters_of, signature_of
from packhorse.client.app import Packhorse
from packhorse.core.codec import Signature, encode_args
from packhorse.core.errors import BadArguments
from packhorse.storage.memory import Memory
from packhorse.storage.records import TaskInfo


@dataclasses.dataclass
class Address:
    street: str
    number: int = 1


class Colour(enum.Enum):
    RED = "red"

    @classmethod
    def _missing_(cls, value: object) -> Colour | None:
        return cls.RED if value == "rouge" else None


def resize(image: int, width: int = 800, *, kind: Literal["png", "jpg"] = "png", to: Address | None = None) -> None: ...


def total(first: int, /, *numbers: float, currency: str) -> None: ...


def anything(name, **others: int) -> None: ...  # type: ignore[no-untyped-def]


def many(
    when: dt.datetime,
    price: decimal.Decimal,
    colour: Colour,
    ids: set[uuid.UUID],
    pair: tuple[int, str],
    by_name: dict[str, list[int]],
    place: Path,
    day: dt.date | str,
    address: Address,
    missing: NoSuchClass = None,  # type: ignore[name-defined] # noqa: F821
) -> None: ...


MANY: dict[str, Any] = {
    "when": "2030-01-31T07:00:00Z",
    "price": 1.5,
    "colour": "rouge",
    "ids": ["7f8b3c52-6a8e-4d5e-9b0a-0d7c9f6f0a11"],
    "pair": [1, "a"],
    "by_name": {"a": [1]},
    "place": "/tmp",
    "day": "today",
    "address": {"street": "High"},
}


def told(function: Callable[..., Any], **defaults: Any) -> Signature:
    """The signature as it is on the other side of a storage."""
    plain = json.loads(msgspec.json.encode(parameters_of(Signature.of(function))))
    signature = signature_of("it", msgspec.convert(plain, Parameters), defaults)
    assert signature is not None
    return signature


def test_names_schemas_and_required_parameters_are_announced():
    assert parameters_of(Signature.of(resize)) == Parameters(
        (
            Parameter("image", {"type": "integer"}, True, True),
            Parameter("width", {"type": "integer"}, False, True),
            Parameter("kind", {"enum": ["jpg", "png"]}),
            Parameter("to", {"anyOf": [{"type": "object"}, {"type": "null"}]}),
        )
    )


@pytest.mark.parametrize(
    ("args", "culprit", "words"),
    [
        ({}, "image", "it() needs the argument 'image'"),
        ({"image": "seven"}, "image", "it(): argument 'image': expected int, got str"),
        ({"image": 7, "widht": 1}, "widht", "it() has no argument 'widht'; did you mean 'width'?"),
        ({"image": 7, "kind": "gif"}, "kind", "it(): argument 'kind': invalid enum value 'gif'"),
        ({"image": 7, "to": "home"}, "to", "it(): argument 'to': expected object | null, got str"),
        ({"image": True}, "image", "it(): argument 'image': expected int, got bool"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(args: dict[str, Any], culprit: str, words: str):
    with pytest.raises(BadArguments) as refused:
        told(resize).encode((), args)

    assert (refused.value.argument, refused.value.what) == (culprit, words)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (resize, {"image": 7}),
        (resize, {"image": 7, "width": 1, "kind": "jpg", "to": {"street": "High", "number": 2}}),
        (resize, {"image": 7, "to": None}),
        (total, {"first": 1, "numbers": [1, 2.5], "currency": "EUR"}),
        (anything, {"name": [1, {"a": None}], "more": 7}),
        (many, {name: value for name, value in MANY.items() if name != "missing"}),
        (many, {**MANY, "price": "1.5", "day": "2030-01-31", "missing": 7}),
    ],
)
def test_what_the_worker_takes_is_not_refused(function: Callable[..., Any], args: dict[str, Any]):
    if function is not many:  # one of its hints cannot be found, which is an error where it is run
        Signature.of(function).decode(encode_args(args))

    assert json.loads(told(function).encode((), args)) == args


def test_values_by_place_find_their_names():
    assert told(resize).bind((7, 20), {}) == {"image": 7, "width": 20}
    assert told(total).bind((7,), {"currency": "EUR"}) == {"first": 7, "currency": "EUR"}
    with pytest.raises(BadArguments, match="too many"):
        told(resize).bind((7, 20, "png"), {})


@pytest.mark.parametrize(
    "parameters",
    [
        Parameters((Parameter("not a name"),)),
        Parameters((Parameter("a"), Parameter("a"))),
        Parameters((Parameter("a", has_place=True), Parameter("b", is_needed=True, has_place=True))),
    ],
)
def test_what_no_function_could_take_is_not_checked(parameters: Parameters):
    assert signature_of("it", parameters, {}) is None


@pytest.mark.parametrize(
    "schema",
    [{"type": "wurst"}, {"anyOf": 7}, {"enum": [[1]]}, {"type": "array", "items": {"type": 3}}, {"oneOf": []}],
)
def test_a_schema_that_is_not_understood_allows_everything(schema: dict[str, Any]):
    signature = signature_of("it", Parameters((Parameter("a", schema),)), {})

    assert signature is not None
    assert signature.encode((), {"a": {"b": [1]}}) == '{"a":{"b":[1]}}'


# --- through an app ---------------------------------------------------------------------------------------------------


@pytest.fixture
def storage() -> Memory:
    return Memory()


def announce(storage: Memory, function: Callable[..., Any], **options: Any) -> None:
    app = Packhorse(storage)
    app.register("resize", function, **options)
    storage.announce(app.announcements())


def test_a_job_by_name_is_checked_by_what_workers_announced(storage: Memory):
    announce(storage, resize)
    client = Packhorse(storage)

    with pytest.raises(BadArguments, match=r"resize\(\) has no argument 'widht'"):
        client.enqueue("resize", {"image": 7, "widht": 20})
    with pytest.raises(BadArguments, match="expected int, got str"):
        asyncio.run(client.aenqueue("resize", {"image": "seven"}))

    assert client.enqueue("resize", [7, 20]).args == {"image": 7, "width": 20}
    assert client.enqueue("resize", {"image": "seven"}, known=False).args == {"image": "seven"}
    assert client.enqueue("nobody_knows_it", {"image": "seven"}).args == {"image": "seven"}


def test_before_it_refuses_it_asks_for_newer_announcements(storage: Memory):
    announce(storage, resize)
    client = Packhorse(storage)
    client.enqueue("resize", {"image": 7})

    announce(storage, lambda image, height=0: None)

    assert client.enqueue("resize", {"image": "seven", "height": 3}).args == {"image": "seven", "height": 3}
    announce(storage, lambda image, depth=0: None)
    assert asyncio.run(client.aenqueue("resize", {"image": 7, "depth": 3})).args == {"image": 7, "depth": 3}


def test_an_announcement_of_other_times_is_not_checked(storage: Memory):
    announce(storage, resize)
    (now,) = storage.tasks()
    for parameters in (None, "odd", {"each": 7}):
        storage.announce([TaskInfo("resize", "resize", {**now.options, "parameters": parameters})])

        assert Packhorse(storage).enqueue("resize", {"image": "seven"}).args == {"image": "seven"}


def test_a_copy_is_checked_only_if_its_arguments_are_new(storage: Memory):
    announce(storage, resize)
    job = Packhorse(storage).enqueue("resize", {"image": "seven"}, known=False)

    assert job.copy(priority=9).args == {"image": "seven"}
    assert job.copy(args={"image": 7}).args == {"image": 7}
    with pytest.raises(BadArguments, match="expected int, got str"):
        job.copy(args={"image": "eight"})
