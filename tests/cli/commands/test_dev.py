"""What `dev` watches, and what that costs."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from packhorse.cli.commands import dev
from packhorse.cli.commands.dev import _saved, _watch
from tests.children import PATIENCE, until


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_what_is_installed_or_hidden_is_not_watched(tmp_path: Path):
    write(tmp_path / "venv" / "pyvenv.cfg")
    write(tmp_path / "tools" / "my env" / "pyvenv.cfg")
    mine = {write(tmp_path / name) for name in ("jobs.py", "shop/mail.py", "environment/venv.py")}
    for name in (
        "venv/lib/python3.12/site-packages/a.py",
        "tools/my env/lib/b.py",
        "vendor/site-packages/c.py",
        "web/node_modules/d.py",
        ".git/e.py",
        "shop/__pycache__/f.py",
    ):
        write(tmp_path / name)

    assert set(_saved(tmp_path)) == mine


def test_a_project_inside_of_a_virtual_environment_is_watched(tmp_path: Path):
    write(tmp_path / "pyvenv.cfg")
    mine = write(tmp_path / "jobs.py")

    assert set(_saved(tmp_path)) == {mine}


def test_looking_takes_a_small_part_of_a_core_however_many_files_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    looks: list[float] = []
    rests: list[float] = []

    def slow(directory: Path) -> dict[Path, int]:
        looks.append(0.0)
        until_then = time.thread_time() + 0.05
        while time.thread_time() < until_then:
            pass
        return {}

    class Over(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            rests.append(timeout or 0.0)
            return len(rests) > 2

    monkeypatch.setattr(dev, "_saved", slow)
    _watch(tmp_path, {}, lambda: None, Over())

    assert len(looks) == 2
    assert rests[0] == 0.5
    assert rests[1] >= 20 * 0.05


def test_a_save_is_still_seen(tmp_path: Path):
    file = write(tmp_path / "jobs.py", "a = 1")
    seen, asked, over = _saved(tmp_path), threading.Event(), threading.Event()
    watching = threading.Thread(target=_watch, args=(tmp_path, seen, asked.set, over), daemon=True)
    watching.start()
    file.write_text("a = 2")

    until(asked.is_set, "the workers are to be replaced")
    over.set()
    watching.join(PATIENCE)
