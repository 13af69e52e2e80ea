"""The web under test: a storage with jobs, and a client that speaks to the application as a browser would."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from packhorse import Packhorse
from packhorse.storage import open_storage
from packhorse.web import history, reader
from packhorse.web.application import Application, make_application
from packhorse.web.pages import filter_chips
from packhorse.web.security.access import decide_access
from packhorse.web.security.operator import Operator, Role
from packhorse.web.security.tokens import Tokens
from packhorse.web.server import WebServer
from tests.children import PATIENCE
from tests.cli.yard import Yard
from tests.storage.conftest import ADDRESSES, storages

BASE = "http://127.0.0.1:5040"
SECRETS = {role: f"secret-of-{role.word}-0123456789" for role in Role}
MAIL_SECRET = "secret-of-mail-0123456789"


def all_tokens() -> Tokens:
    """A token for each role, and one for the queue mail only."""
    known = [(secret, Operator(role.word, role)) for role, secret in SECRETS.items()]
    return Tokens([*known, (MAIL_SECRET, Operator("mail", Role.ADMIN, frozenset({"mail"})))])


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


_ON_EVERY_STORAGE = {"test_jobs", "test_nouns", "test_pages", "test_storage"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The API and the pages say the same on every storage; `make test` shows it on two. Other tests need only one."""
    if metafunc.module.__name__.rpartition(".")[2] in _ON_EVERY_STORAGE and "yard" in metafunc.fixturenames:
        metafunc.parametrize("yard", storages("sqlite", "redis"), indirect=True)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine, too, everything is counted that a page has time for elsewhere."""
    monkeypatch.setattr(reader, "_COUNTING", PATIENCE)
    monkeypatch.setattr(reader, "_LOOKING", PATIENCE)
    monkeypatch.setattr(history, "_PATIENCE", PATIENCE)
    monkeypatch.setattr(filter_chips, "_TRYING", PATIENCE)


@pytest.fixture
def yard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    if (name := getattr(request, "param", "sqlite")) != "sqlite":
        yard.close()
        yard.storage = open_storage(ADDRESSES[name](tmp_path))
    yield yard
    yard.close()


def patient_app(yard: Yard) -> Packhorse:
    """The workers of a yard give no sign of life after they have joined; nobody is gone before the test is over."""
    return Packhorse(storage=yard.storage, lease="10m")


@pytest.fixture
def application(yard: Yard) -> Application:
    """Open to everybody on this machine."""
    return make_application(patient_app(yard), decide_access("127.0.0.1", Tokens(), open_mount=True))


@pytest.fixture
def guarded(yard: Yard) -> Application:
    """Open to those with a token only."""
    return make_application(patient_app(yard), decide_access("127.0.0.1", all_tokens()))


_BLOCKS = (
    "dd|details|dialog|div|dl|dt|figcaption|figure|form|h[1-3]|legend|li|main|nav|ol|option|p|section|select|summary"
    "|table|tbody|td|th|thead|tr|ul|datalist|template"
)


def as_read(html: str) -> str:
    """The page with the white space that a browser sees: runs are one space, and none is beside a block."""
    parts = re.split(r"(<(?:pre|textarea)\b.*?</(?:pre|textarea)>)", html, flags=re.DOTALL)
    for place in range(0, len(parts), 2):
        text = re.sub(r"\s+", " ", parts[place])
        parts[place] = re.sub(rf" ?(</?(?:{_BLOCKS})\b[^>]*>) ?", r"\1", text)
    return "".join(parts)


class PageClient(TestClient):
    """A client that hands out pages as a browser reads them."""

    def request(self, *args: Any, **kwargs: Any) -> httpx.Response:  # type: ignore[override]
        response = super().request(*args, **kwargs)
        if "text/html" in response.headers.get("content-type", ""):
            response._text = as_read(response.text)  # type: ignore[attr-defined]
        return response


@pytest.fixture
def web(application: Application) -> Iterator[TestClient]:
    with PageClient(application, base_url=BASE, follow_redirects=False) as client:
        yield client


@pytest.fixture
def guarded_web(guarded: Application) -> Iterator[TestClient]:
    with PageClient(guarded, base_url=BASE, follow_redirects=False) as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The Chromium on PATH, which requirements/servers.sh sees to; Playwright's own is never fetched."""
    from playwright import sync_api as playwright  # takes a moment, and few tests need it

    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    assert program, "the tests need a Chromium on PATH: `make servers` installs it, or says how"
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=2_000 * PATIENCE)
        playwright.expect.set_options(timeout=1_000 * PATIENCE)
        yield browser
        browser.close()


@contextmanager
def served(application: Application) -> Iterator[str]:
    """The application behind a real server on a free port of this machine; its address."""
    with running_server(application) as server:
        yield server.url.removesuffix("/")


@contextmanager
def running_server(application: Application) -> Iterator[WebServer]:
    """The server itself, which ends its streams in its own thread when it is told to stop."""
    server = WebServer(application, "127.0.0.1", 0)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server goes on"
