"""Jobs under an id that their caller chose, unique keys of one form for every caller, and invalid ids."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from packhorse import BadArguments, BadValue, JobExists, Packhorse, Worker
from packhorse.client.announcements import announce
from packhorse.storage import Storage, open_storage
from tests.storage.conftest import ADDRESSES, chosen_storages, give_back

ID = "order-2026-17"


@pytest.fixture(params=chosen_storages())
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    url = ADDRESSES[request.param](tmp_path)
    storage = open_storage(url)
    yield storage
    storage.close()
    give_back(url)


def charge(order: float, currency: str = "EUR") -> None: ...


def test_the_same_call_under_its_id_adds_one_job_and_says_so(storage: Storage) -> None:
    app = Packhorse(storage)
    task = app.task(charge)

    first, again = task.using(id=ID).enqueue(17), task.using(id=ID).enqueue(17.0)
    by_name = app.enqueue("charge", {"order": 17}, id=ID)
    (many,) = app.enqueue_many([app.call("charge", {"order": 17}, id=ID)])
    later = asyncio.run(app.aenqueue("charge", {"order": 17}, id=ID))

    assert [job.id for job in (first, again, by_name, many, later)] == [ID] * 5
    assert [job.is_new for job in (first, again, by_name, many, later)] == [True, False, False, False, False]
    assert app.count() == 1


def test_other_arguments_under_the_same_id_are_refused_and_never_dropped(storage: Storage) -> None:
    app = Packhorse(storage)
    app.task(charge)
    app.enqueue("charge", {"order": 17}, id=ID)

    with pytest.raises(JobExists, match="its arguments differ"):
        app.enqueue("charge", {"order": 18}, id=ID)
    with pytest.raises(JobExists, match="its arguments differ"):
        app.enqueue_many([app.call("charge", {"order": 18}, id=ID)])
    with pytest.raises(JobExists, match="its arguments differ"):
        asyncio.run(app.aenqueue("charge", {"order": 18}, id=ID))
    with pytest.raises(JobExists, match="its task and arguments differ"):
        app.enqueue("other", id=ID, known=False)

    assert app.get(ID).args == {"order": 17}


@pytest.mark.parametrize("id", ["short", "with space", "a" * 65, "", 7])
def test_an_id_that_no_job_may_have_is_refused(id: Any) -> None:
    with pytest.raises(BadValue, match="id must be 8 to 64 letters"):
        Packhorse("memory://").enqueue("charge", id=id)


@pytest.mark.parametrize("args", [{"order": 1}, {"order": 1.0}, {"order": 1, "currency": "EUR"}])
def test_a_unique_key_is_the_same_for_every_caller(storage: Storage, args: dict[str, Any]) -> None:
    app = Packhorse(storage)
    task = app.task(charge)
    announce(storage, app.announcements())
    first = task.enqueue_unique(1)

    twin = Packhorse(storage).enqueue_unique("charge", args)
    unchecked = Packhorse(storage).enqueue_unique("charge", args, known=False)

    assert (twin.id, twin.is_new, unchecked.id) == (first.id, False, first.id)
    assert Packhorse(storage).enqueue_unique("charge", {"order": 1.5}).is_new


# --- what is refused at once --------------------------------------------------------------------------------------


def rows() -> Iterator[int]:
    yield 1


async def pages() -> AsyncIterator[int]:
    yield 1


class Rows(Worker):
    def run(self) -> Iterator[int]:
        yield 1


@pytest.mark.parametrize("target", [rows, pages, Rows(), Rows])
def test_a_generator_is_no_task(target: Any) -> None:
    with pytest.raises(BadValue, match="is a generator function") as refused:
        Packhorse("memory://").register("rows", target)

    assert "return a list instead of yielding" in str(refused.value.hint)


def test_a_function_around_a_generator_may_be_one() -> None:
    def listed() -> list[int]:
        return list(rows())

    listed.__wrapped__ = rows  # type: ignore[attr-defined]
    Packhorse("memory://").register("rows", listed)


@dataclass
class Address:
    to: str


def test_bytes_are_no_text() -> None:
    app = Packhorse("memory://")

    @app.task
    def send(to: str, data: bytes = b"", either: bytes | str = "", anything: Any = None) -> None: ...

    with pytest.raises(BadArguments, match=r"the argument 'to' is bytes, and must be text"):
        send.enqueue(b"ann")
    with pytest.raises(BadArguments, match=r"the argument 'to' is bytes, and must be text"):
        app.enqueue("send", {"to": b"ann"})
    send.enqueue("ann", data=b"\x00", either=b"x", anything=b"x")


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"listed": ["ann", b"bob"]}, r"'listed', at listed\[1\],"),
        ({"listed": None, "named": {"ann": b"a@b"}}, r"'named', at named\[\.\.\.\],"),
        ({"named": {"ann": bytearray(b"a@b")}}, r"'named', at named\[\.\.\.\],"),
        ({"address": Address(b"ann")}, r"'address', at address\.to,"),  # type: ignore[arg-type]
        ({"addresses": [Address("ann"), Address(b"bob")]}, r"'addresses', at addresses\[1\]\.to,"),  # type: ignore[arg-type]
        ({"other": b"x"}, "'other'"),
    ],
)
def test_bytes_are_no_text_wherever_they_stand(arguments: dict[str, Any], where: str) -> None:
    app = Packhorse("memory://")

    @app.task
    def send(
        listed: list[str] | None = None,
        named: dict[str, str] | None = None,
        address: Address | None = None,
        addresses: list[Address] | None = None,
        **others: str,
    ) -> None: ...

    with pytest.raises(BadArguments, match=rf"the argument {where} is (bytes|bytearray), and must be text"):
        send.enqueue(**arguments)
    send.enqueue(listed=["ann"], named={"ann": "a@b"}, address=Address("ann"), other="x")


def test_further_arguments_by_position_take_no_bytes_for_text() -> None:
    app = Packhorse("memory://")

    @app.task
    def send(*to: str) -> None: ...

    with pytest.raises(BadArguments, match=r"the argument 'to', at to\[1\], is bytes, and must be text"):
        send.enqueue("ann", b"bob")  # type: ignore[arg-type]
