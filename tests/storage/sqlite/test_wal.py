"""Room for the log of a SQLite file."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from packhorse.core.ids import new_id
from packhorse.core.job import NewJob
from packhorse.storage.sqlite import SQLite
from packhorse.storage.sqlite.wal import MOST, STEP, allocate


def a_job() -> NewJob:
    return NewJob(new_id(), "noop", "noop", "{}")


def test_a_log_that_has_outgrown_its_room_is_lengthened_by_zeros(tmp_path: Path) -> None:
    log = tmp_path / "jobs.db-wal"
    log.write_bytes(b"x" * (STEP + 10))
    allocate(log)
    assert log.read_bytes() == b"x" * (STEP + 10) + bytes(STEP - 10)


@pytest.mark.parametrize("length", [0, STEP, MOST, MOST + 1])
def test_a_log_that_is_new_or_has_room_or_is_long_stays_as_it_is(tmp_path: Path, length: int) -> None:
    log = tmp_path / "jobs.db-wal"
    log.touch()
    os.truncate(log, length)
    allocate(log)
    assert log.stat().st_size == length


def test_a_log_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    allocate(tmp_path / "jobs.db-wal")
    assert list(tmp_path.iterdir()) == []


def test_a_log_with_room_is_read_to_its_last_commit_after_a_crash(tmp_path: Path) -> None:
    storage = SQLite(tmp_path / "jobs.db")
    for _ in range(5):
        storage.enqueue([a_job()])
    log = (tmp_path / "jobs.db-wal").read_bytes()
    assert len(log) == STEP
    assert log.endswith(bytes(STEP // 2))
    left = tmp_path / "left.db"  # what a power cut leaves: nobody has closed anything
    left.write_bytes((tmp_path / "jobs.db").read_bytes())
    (tmp_path / "left.db-wal").write_bytes(log)
    storage.close()
    with sqlite3.connect(left) as found:
        assert found.execute("SELECT count(*) FROM packhorse_job").fetchone() == (5,)
        assert found.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    found.close()
