"""What killed foremen leave in the temporary directory, and that nobody takes it from the living."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from packhorse.foreman.status_directory import BOARD, make_directory, remove_leftovers
from packhorse.worker.shared_status import SharedStatus
from tests.children import Parent, forked


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def make_old(directory: Path) -> None:
    os.utime(directory, (time.time() - 3_600,) * 2)


def leave_behind(directory: Path) -> None:
    """Have a foreman make a board there, and be killed."""

    def work(parent: Parent) -> None:
        board = SharedStatus.create(directory / BOARD, 2)
        parent.say("made")
        parent.wait_for_nod()
        board.close()

    with forked(work) as foreman:
        assert foreman.hear() == "made"
        make_old(directory)
        assert remove_leftovers() == 0, "its owner lives"


def test_a_directory_is_removed_when_its_owner_is_dead_and_not_before(temporary: Path) -> None:
    leave_behind(make_directory())

    assert remove_leftovers() == 1
    assert list(temporary.iterdir()) == []


def test_a_directory_whose_board_was_never_made_is_removed(temporary: Path) -> None:
    make_old(make_directory())

    assert remove_leftovers() == 1
    assert list(temporary.iterdir()) == []


def test_a_new_directory_without_a_board_is_left_alone(temporary: Path) -> None:
    directory = make_directory()

    assert remove_leftovers() == 0
    assert directory.exists()


def test_an_empty_directory_of_another_kind_is_left_alone(temporary: Path) -> None:
    state = temporary / "packhorse-state-1000"
    state.mkdir()
    make_old(state)

    assert remove_leftovers() == 0
    assert state.exists()


def test_a_new_directory_is_left_alone(temporary: Path) -> None:
    directory = make_directory()
    (directory / BOARD).touch()

    assert remove_leftovers() == 0
    assert (directory / BOARD).exists()


def test_what_is_no_status_directory_is_left_alone(temporary: Path) -> None:
    notes = temporary / "packhorse-notes"
    notes.mkdir()
    (notes / "letter").touch()
    link = temporary / "packhorse-link"
    link.symlink_to(notes)
    make_old(notes)

    assert remove_leftovers() == 0
    assert {path.name for path in temporary.iterdir()} == {"packhorse-notes", "packhorse-link"}
    assert (notes / "letter").exists()
