"""The command line under test: called in this process, in a directory of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from packhorse.cli.main import cli
from tests.cli.sample_storage import SampleStorage

Call = Callable[..., Result]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory, which is the current one; nothing of it stays behind in the interpreter."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("PACKHORSE_"):
            monkeypatch.delenv(name)
    for name in ("COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "PAGER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def sample(here: Path) -> Iterator[SampleStorage]:
    """A packhorse.db in the current directory."""
    sample = SampleStorage(here)
    yield sample
    sample.close()


@pytest.fixture
def packhorse(here: Path) -> Call:
    """Call the program: `packhorse("jobs", "dead")`; what it prints, and its exit code, are in the result."""

    def call(*words: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(cli, list(words), input=stdin)

    return call
