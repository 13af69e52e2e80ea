"""The SQLite storage alone, on a file of its own, with the machine's clock."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.storage.sqlite import SQLite


@pytest.fixture(autouse=True)
def tmp_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In place of pytest's own, whose path is too long for sockets. Waiters that find no room beside their file are
    in it too, so nothing is left behind."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def storage(path: Path) -> Iterator[SQLite]:
    storage = SQLite(path)
    yield storage
    storage.close()
