"""Sites for tests: real foremen, workers and children on a SQLite file of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.storage.conftest import ADDRESSES, give_back, storages
from tests.system.sites import LEASES, Site

Tell = Callable[[str], None]
S = TypeVar("S", bound=Site)


@contextmanager
def attended(site: S) -> Iterator[S]:
    """A site for the length of the block; what its processes wrote is shown when the test fails."""
    try:
        yield site
    finally:
        site.close()
        if site.log.exists():
            print(site.log.read_text())


def hold_trial(make: Callable[[Path], S], directory: Path, trial: Callable[[S, float], None]) -> None:
    """Let the trial come to its end at a site of its own, with a lease. Where the machine left somebody without a
    processor for as long as that, who then was taken for dead: again, with a longer one."""
    for lease in LEASES:
        (directory / f"{lease:g}s").mkdir()
        with attended(make(directory / f"{lease:g}s")) as site:
            try:
                trial(site, lease)
                return
            except AssertionError:
                if lease == LEASES[-1] or not site.has_heard_silence():
                    raise


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with attended(Site(tmp_path)) as site:
        yield site


@pytest.fixture(params=storages("sqlite", "redis", but="memory"))
def any_site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """One on each storage. `make test` runs a file and a server; conformance covers rescue and release on all."""
    url = ADDRESSES[request.param](tmp_path)
    with attended(Site(tmp_path, url)) as site:
        yield site
    give_back(url)


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Tell:
    """Says something on the screen, also when all is well."""

    def say(text: str) -> None:
        with capsys.disabled():
            print(f" [{text}] ", end="", flush=True)

    return say
