"""docs/remote.md: every exchange on the page, played in its order by a program that knows nothing but HTTP."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.testclient import TestClient

from packhorse.web.application import make_application
from packhorse.web.security.access import decide_access
from packhorse.web.security.operator import Operator, Role
from packhorse.web.security.tokens import Tokens
from tests.cli.yard import Yard
from tests.web.conftest import BASE, patient_app

PAGE = Path(__file__).parents[2] / "docs" / "remote.md"
TOKEN = "3f0c9a0d1b6e4c77"


class Exchange(NamedTuple):
    """What is sent, and what the page says comes back."""

    method: str
    path: str
    headers: dict[str, str]
    body: str
    status: int
    answer: Any


def exchanges() -> Iterator[Exchange]:
    for block in re.findall(r"```http\n(.*?)```", PAGE.read_text(), re.DOTALL):
        head, *body, told = block.strip().split("\n\n")
        request, *headers = head.splitlines()
        status, _, answer = told.partition(" ")
        words = (line.split(": ", 1) for line in headers)
        yield Exchange(*request.split(), dict(words), "".join(body), int(status), json.loads(answer))


def fits(told: Any, came: Any) -> bool:
    """Is all that the page tells in what came?"""
    if isinstance(told, dict):
        return isinstance(came, dict) and all(name in came and fits(told[name], came[name]) for name in told)
    if isinstance(told, list):
        return isinstance(came, list) and len(told) == len(came) and all(map(fits, told, came))
    return bool(told == came)


@pytest.fixture
def manager(yard: Yard) -> Iterator[TestClient]:
    tokens = Tokens([(TOKEN, Operator("farm", Role.WORK))])
    application = make_application(patient_app(yard), decide_access("127.0.0.1", tokens))
    with TestClient(application, base_url=BASE) as client:
        yield client


def test_the_exchange_on_the_page_is_as_it_says(manager: TestClient):
    played = list(exchanges())

    for each in played:
        came = manager.request(
            each.method, each.path, headers={**each.headers, "content-type": "application/json"}, content=each.body
        )
        assert came.status_code == each.status, (each, came.text)
        assert fits(each.answer, came.json()), (each, came.text)

    calls = {each.path.rpartition("/")[2] for each in played}
    needed = "announce join reserve start check_in append_log beat finish subscribe outcomes_for acknowledge leave"
    assert calls >= set(needed.split())


def test_without_the_header_nobody_is_let_in(manager: TestClient):
    assert manager.post("/api/v1/work/beat", json={"reports": {}}).status_code == 401
