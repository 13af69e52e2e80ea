"""The directories that killed foremen leave behind, and that those of living ones stay."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from packhorse.foreman.processes import STATUS_FILE, make_status_directory, remove_stale_directories
from packhorse.worker.shared_status import SharedStatus
from tests.children import Parent, forked


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def make_old(directory: Path) -> None:
    os.utime(directory, (time.time() - 3_600,) * 2)


def leave_behind(directory: Path) -> None:
    """Have a foreman make a shared status there, and be killed."""

    def work(parent: Parent) -> None:
        status = SharedStatus.create(directory / STATUS_FILE, 2)
        parent.send("made")
        parent.wait()
        status.close()

    with forked(work) as foreman:
        assert foreman.receive() == "made"
        make_old(directory)
        assert remove_stale_directories() == 0, "its owner lives"


def test_a_directory_is_removed_when_its_owner_is_dead_and_not_before(temporary: Path) -> None:
    leave_behind(make_status_directory())

    assert remove_stale_directories() == 1
    assert list(temporary.iterdir()) == []


def test_a_directory_whose_board_was_never_made_is_removed(temporary: Path) -> None:
    make_old(make_status_directory())

    assert remove_stale_directories() == 1
    assert list(temporary.iterdir()) == []


def test_a_new_directory_without_a_board_is_left_alone(temporary: Path) -> None:
    directory = make_status_directory()

    assert remove_stale_directories() == 0
    assert directory.exists()


def test_an_empty_directory_of_another_kind_is_left_alone(temporary: Path) -> None:
    state = temporary / "packhorse-state-1000"
    state.mkdir()
    make_old(state)

    assert remove_stale_directories() == 0
    assert state.exists()


def test_a_new_directory_is_left_alone(temporary: Path) -> None:
    directory = make_status_directory()
    (directory / STATUS_FILE).touch()

    assert remove_stale_directories() == 0
    assert (directory / STATUS_FILE).exists()


def test_what_is_no_status_directory_is_left_alone(temporary: Path) -> None:
    notes = temporary / "packhorse-notes"
    notes.mkdir()
    (notes / "letter").touch()
    link = temporary / "packhorse-link"
    link.symlink_to(notes)
    make_old(notes)

    assert remove_stale_directories() == 0
    assert {path.name for path in temporary.iterdir()} == {"packhorse-notes", "packhorse-link"}
    assert (notes / "letter").exists()
