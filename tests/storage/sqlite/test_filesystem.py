"""File systems and libraries that cannot be relied upon are told of, and no others."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from packhorse.storage.sqlite import SQLite
from packhorse.storage.sqlite.filesystem import file_system_problem, library_note

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:40 / /mnt/team rw,relatime shared:9 - nfs4 server:/team rw,vers=4.2
24 23 8:2 / /mnt/team/local rw - xfs /dev/sdb rw
25 22 0:41 / /mnt/two\\040words rw - cifs //server/share rw
26 22 0:42 / /mnt/ssh rw - fuse.sshfs host:/ rw
27 22 0:43 / /mnt/twice rw - nfs server:/ rw
28 22 8:3 / /mnt/twice rw - ext4 /dev/sdc rw
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS)
    return path


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("/mnt/team/jobs.db", "nfs4"),
        ("/mnt/team/deep/down/jobs.db", "nfs4"),
        ("/mnt/two words/jobs.db", "cifs"),
        ("/mnt/ssh/jobs.db", "fuse.sshfs"),
    ],
)
def test_a_network_file_system_is_told_of(mounts: Path, file: str, kind: str) -> None:
    told = file_system_problem(Path(file), mounts)

    assert told is not None
    assert told.startswith(f"{file} is on a network file system ({kind})")


@pytest.mark.parametrize(
    "file", ["/srv/jobs.db", "/mnt/teamwork/jobs.db", "/mnt/team/local/jobs.db", "/mnt/twice/jobs.db"]
)
def test_a_local_one_is_not(mounts: Path, file: str) -> None:
    assert file_system_problem(Path(file), mounts) is None


def test_where_the_system_does_not_tell_nothing_is_said(tmp_path: Path) -> None:
    assert file_system_problem(Path("/mnt/team/jobs.db"), tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("version", "is_told"),
    [((3, 40, 1), True), ((3, 51, 2), True), ((3, 51, 3), False), ((3, 53, 0), False), ((4, 0, 0), False)],
)
def test_a_library_with_the_wal_reset_fault_is_told_of(version: tuple[int, ...], is_told: bool) -> None:
    assert (library_note(version) is not None) is is_told


def test_health_tells_of_both(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse.storage.sqlite.filesystem._file_system", lambda path, mounts: "nfs")
    storage = SQLite(path)

    health = storage.health()

    storage.close()
    assert "network file system (nfs)" in health.problems[0]
    assert not any("WAL-reset" in problem for problem in health.problems)
    assert (sqlite3.sqlite_version_info < (3, 51, 3)) == any("WAL-reset" in note for note in health.notes)
