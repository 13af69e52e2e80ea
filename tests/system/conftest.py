"""Deployments for tests: real foremen, workers and children on a SQLite file of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.storage.conftest import ADDRESSES, give_back, storages
from tests.system.deployment import LEASES, Deployment

Tell = Callable[[str], None]
S = TypeVar("S", bound=Deployment)


@contextmanager
def managed(deployment: S) -> Iterator[S]:
    """A deployment for the length of the block; what its processes wrote is shown when the test fails."""
    try:
        yield deployment
    finally:
        deployment.close()
        if deployment.log.exists():
            print(deployment.log.read_text())


def retry_with_longer_lease(make: Callable[[Path], S], directory: Path, trial: Callable[[S, float], None]) -> None:
    """Let the trial come to its end at a deployment of its own, with a lease. Where the machine left somebody without a
    processor for as long as that, who then was taken for dead: again, with a longer one."""
    for lease in LEASES:
        (directory / f"{lease:g}s").mkdir()
        with managed(make(directory / f"{lease:g}s")) as deployment:
            try:
                trial(deployment, lease)
                return
            except AssertionError:
                if lease == LEASES[-1] or not deployment.has_heard_silence():
                    raise


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with managed(Deployment(tmp_path)) as deployment:
        yield deployment


@pytest.fixture(params=storages("sqlite", "redis", but="memory"))
def any_deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    """One on each storage. `make test` runs a file and a server; conformance covers rescue and release on all."""
    url = ADDRESSES[request.param](tmp_path)
    with managed(Deployment(tmp_path, url)) as deployment:
        yield deployment
    give_back(url)


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Tell:
    """Says something on the screen, also when all is well."""

    def say(text: str) -> None:
        with capsys.disabled():
            print(f" [{text}] ", end="", flush=True)

    return say
