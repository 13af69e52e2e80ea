"""Sites for tests: real foremen, workers and children on a SQLite file of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.system.sites import Site

Tell = Callable[[str], None]


@contextmanager
def attended(site: Site) -> Iterator[Site]:
    """A site for the length of the block; what its processes wrote is shown when the test fails."""
    yield site
    site.close()
    if site.log.exists():
        print(site.log.read_text())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with attended(Site(tmp_path)) as site:
        yield site


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Tell:
    """Says something on the screen, also when all is well."""

    def say(text: str) -> None:
        with capsys.disabled():
            print(f" [{text}] ", end="", flush=True)

    return say
