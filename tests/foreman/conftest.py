"""Starts foremen with fake workers on a SQLite file of their own, and leaves nothing of them behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from packhorse.storage import open_storage
from packhorse.storage.contract import Storage
from tests.children import program, until
from tests.foreman.watching import QUICK, RunningForeman, Start, remaining_children


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=off"


@pytest.fixture
def storage(url: str) -> Iterator[Storage]:
    storage = open_storage(url)
    yield storage
    storage.close()


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where foremen put their temporary files."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    return scratch


def last_output(foreman: RunningForeman) -> str:
    """The rest of its output. A stopped worker keeps its end of the pipe open, and one that is just starting may stop
    itself after SIGCONT, so send it repeatedly."""
    while True:
        for pid in remaining_children([foreman]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            return str(foreman.process.communicate(timeout=0.2)[1])


@pytest.fixture
def start(url: str, storage: Storage, scratch: Path) -> Iterator[Start]:
    """Starts foremen, and sees to it at the end that neither they nor their workers are left."""
    foremen: list[RunningForeman] = []

    def begin(
        online: int = 1,
        *,
        mode: str = "obedient",
        chores: str = "none",
        patience: str = "30s",  # with the storage
        options: dict[str, Any] | None = None,
        **settings: Any,
    ) -> RunningForeman:
        asked = {
            "url": f"{url}&patience={patience}",
            "mode": mode,
            "chores": chores,
            "options": options or {},
            "settings": {**QUICK, **settings},
        }
        foreman = RunningForeman(program("tests.foreman.run_foreman", json.dumps(asked)), storage)
        foremen.append(foreman)
        until(lambda: len(foreman.workers()) >= online or foreman.is_over(), f"{online} workers are online")
        return foreman

    yield begin
    for foreman in foremen:
        if not foreman.is_over():
            foreman.process.kill()
        print(last_output(foreman))  # shown when a test fails
    until(lambda: not remaining_children(foremen), "no worker is left behind")
