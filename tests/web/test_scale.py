"""No page and no list looks at more jobs because there are more: counted in the steps of SQLite's own machine, on few
jobs and on many. `python -m bench.web` does the same with a million and a clock."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from bench.web.history import fill
from bench.web.requests import COUNTED, paths
from packhorse import Packhorse
from packhorse.storage import open_storage
from packhorse.storage.sql import lists
from packhorse.web import history, reader
from packhorse.web.application import make_application
from packhorse.web.pages import queues
from packhorse.web.security.access import decide_access
from packhorse.web.security.tokens import Tokens
from tests.web.conftest import BASE

FEW, MANY = 6_000, 24_000
_COUNTS = tuple(f"{words}&count=true" for words in COUNTED)
BOUND = 100  # jobs that one call may look at, instead of the usual thousands


@pytest.fixture
def hundreds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of all connections, in hundreds."""
    counted, connect = [0], sqlite3.connect

    def count() -> int:
        counted[0] += 1
        return 0

    def connect_counted(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_progress_handler(count, 100)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_counted)
    monkeypatch.setattr(lists, "AT_MOST", BOUND)
    monkeypatch.setattr(lists, "AT_A_TIME", BOUND)
    monkeypatch.setattr(lists.Index, "ids_at_a_time", BOUND)
    monkeypatch.setattr(reader, "_PATIENCE", 0.0)
    monkeypatch.setattr(reader, "_LOOKING", 0.0)
    monkeypatch.setattr(reader, "_COUNTED", BOUND)
    monkeypatch.setattr(reader, "_COUNTED_DEARLY", BOUND)
    monkeypatch.setattr(queues, "_COUNTED", BOUND)
    monkeypatch.setattr(history, "WINDOW", BOUND)
    monkeypatch.setattr(history, "LOOKS", 2)
    monkeypatch.setattr(history, "_PATIENCE", math.inf)
    return counted


def steps_of_everything(path: Path, number: int, hundreds: list[int]) -> dict[str, int]:
    """What each page and list costs, on so many jobs; ids and cursors are left out of the names."""
    storage = open_storage(f"sqlite:///{path}")
    fill(storage, number)
    app = Packhorse(storage=storage)
    found: dict[str, int] = {}
    with TestClient(make_application(app, decide_access("127.0.0.1", Tokens(), open_mount=True)), base_url=BASE) as web:
        for place, asked in enumerate(paths(lambda path: web.get(path).json())):
            if asked.endswith(_COUNTS):  # looks at ten thousand jobs: more than there are few
                continue
            app_of_one_look = make_application(app, decide_access("127.0.0.1", Tokens(), open_mount=True))
            with TestClient(app_of_one_look, base_url=BASE, follow_redirects=False) as fresh:
                before = hundreds[0]
                assert fresh.get(asked).status_code in (200, 303, 503)
                found[f"{place} {asked}"] = hundreds[0] - before
    storage.close()
    return found


def test_no_page_costs_more_because_there_are_more_jobs(tmp_path: Path, hundreds: list[int]):
    few = steps_of_everything(tmp_path / "few.db", FEW, hundreds)
    many = steps_of_everything(tmp_path / "many.db", MANY, hundreds)

    assert len(few) == len(many) > 60
    # Four times the jobs; twice the cost is not by their number: some have waited for times that nobody had before.
    pairs = [(asked, cost, costs_more) for (asked, cost), costs_more in zip(few.items(), many.values(), strict=True)]
    assert "\n".join(f"{pair}" for pair in pairs if pair[2] > 2 * pair[1] + 40) == ""
