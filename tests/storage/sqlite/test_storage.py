"""Addresses, paths, the file's mode, and life beside a user's own tables."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse.conformance.builders import add, find_all, ids, in_every_state, join, new_job
from packhorse.core.errors import BadURL, StorageUnavailable
from packhorse.storage import open_storage
from packhorse.storage.sqlite import SQLite
from packhorse.storage.sqlite.database import Options
from tests.children import PATIENCE, until

# --- addresses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///jobs.db", "{here}/jobs.db"),
        ("sqlite:///data/jobs.db", "{here}/data/jobs.db"),
        ("sqlite:///./jobs.db", "{here}/jobs.db"),
        ("sqlite:////var/lib/jobs.db", "/var/lib/jobs.db"),
        ("sqlite:///my%20jobs.db", "{here}/my jobs.db"),
        ("sqlite:///my jobs.db", "{here}/my jobs.db"),
        ("sqlite:///%C5%BEito.db", "{here}/žito.db"),
        ("sqlite:///žito.db", "{here}/žito.db"),
        ("sqlite:///what%3F.db", "{here}/what?.db"),
        ("sqlite:///a+b.db", "{here}/a+b.db"),
        ("sqlite:///50%25.db", "{here}/50%.db"),
        ("sqlite:///jobs.db?patience=5s", "{here}/jobs.db"),
        ("sqlite:///jobs.db?", "{here}/jobs.db"),
    ],
)
def test_the_address_names_the_file(url: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    storage = SQLite.from_url(url)

    assert storage.path == Path(path.format(here=tmp_path))


def test_opening_is_left_to_the_first_use(path: Path) -> None:
    storage = SQLite.from_url(f"sqlite:///{path}")

    assert not path.exists()

    add(storage)
    assert path.exists()
    storage.close()


def test_a_relative_path_means_the_directory_in_which_it_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    storage = open_storage("sqlite:///jobs.db")

    monkeypatch.chdir(tmp_path / "elsewhere")
    add(storage)

    assert (tmp_path / "jobs.db").exists()
    storage.close()


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("", Options(synchronous="full", patience=30.0)),
        ("synchronous=normal", Options(synchronous="normal")),
        ("synchronous=OFF", Options(synchronous="off")),
        ("patience=5", Options(patience=5.0)),
        ("patience=250ms", Options(patience=0.25)),
        ("patience=1m30s", Options(patience=90.0)),
        ("patience=0", Options(patience=0.0)),
        ("patience=2s&synchronous=full", Options(patience=2.0)),
    ],
)
def test_the_address_may_choose_options(query: str, options: Options) -> None:
    assert SQLite.from_url(f"sqlite:///jobs.db?{query}")._db.options == options


@pytest.mark.parametrize(("word", "number"), [("full", 2), ("normal", 1), ("off", 0)])
def test_every_commit_is_flushed_as_the_address_says(word: str, number: int, path: Path) -> None:
    storage = SQLite.from_url(f"sqlite:///{path}?synchronous={word}")
    add(storage)

    writer = storage._db._writer
    assert writer is not None
    assert writer.execute("PRAGMA synchronous").fetchone() == (number,)
    assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert storage.health().facts["synchronous"] == word
    assert any("synchronous=off" in problem for problem in storage.health().problems) == (word == "off")
    storage.close()


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("sqlite://", r"names no file - write sqlite:///jobs\.db"),
        ("sqlite:///", "names no file"),
        ("sqlite:////", "names no file"),
        ("sqlite://jobs.db", "names no file"),
        ("sqlite://localhost/jobs.db", "names no file"),
        ("sqlite:///?patience=5s", "names no file"),
        ("sqlite:///:memory:", r"in memory cannot be shared - use memory://"),
        ("sqlite:///:memory:?patience=5s", "in memory cannot be shared"),
        ("sqlite:///jobs.db?synchronous=maybe", r"synchronous cannot be 'maybe' - use full, normal or off"),
        ("sqlite:///jobs.db?synchronous=", "synchronous cannot be ''"),
        ("sqlite:///jobs.db?patience=soon", "patience cannot be understood: 'soon'"),
        ("sqlite:///jobs.db?patience=-1", "patience cannot be understood: '-1'"),
        ("sqlite:///jobs.db?patience=", "patience cannot be understood"),
        ("sqlite:///jobs.db?patience=99999999999999999", "patience is too long"),
        ("sqlite:///jobs.db?timeout=5", r"there is no option 'timeout' - the options are synchronous and patience"),
        ("sqlite:///jobs.db?mode=ro&patience=5s", "there is no option 'mode'"),
        ("jobs.db", "is not a storage address"),
        ("sqlite:jobs.db", "is not a storage address"),
        ("sqlite:///a%00b.db", "null|NUL|byte"),
    ],
)
def test_an_address_that_cannot_be_meant_is_refused(url: str, complaint: str) -> None:
    with pytest.raises(BadURL, match=complaint):
        open_storage(url)


# --- paths ----------------------------------------------------------------------------------------------------------

NAMES = [
    "with spaces and 'quotes'.db",
    "žito – ビール – 🐴.db",
    "per%cent?.db",
    "#hash;semicolon&.db",
    "-dash.db",
    "no-extension",
    "x" * 200,
]


@pytest.fixture(params=NAMES, ids=[name[:12] for name in NAMES])
def named(request: pytest.FixtureRequest, path: Path) -> Iterator[SQLite]:
    storage = SQLite(path.with_name(request.param))
    yield storage
    storage.close()


def test_a_file_may_have_any_name(named: SQLite) -> None:
    add(named, "job")

    again = SQLite(named.path)

    assert ids(find_all(again)) == ["job"]
    assert named.path.exists()
    again.close()


def test_the_notifier_notifies_whatever_the_files_name_is(named: SQLite) -> None:
    """Also where the path is too long for a socket: then the sockets are in the temporary directory."""
    neighbour = SQLite(named.path)
    named.reserve(join(named), {"mail": 1}, 1)
    woken: list[bool] = []
    waiter = threading.Thread(target=lambda: woken.append(named.wait(PATIENCE)), daemon=True)
    waiter.start()
    until(lambda: named._notifier.directory.exists() and any(named._notifier.directory.iterdir()), "it sleeps")

    neighbour.enqueue([new_job()])

    waiter.join(PATIENCE)
    assert woken == [True]
    neighbour.close()


def test_a_name_as_long_as_the_file_system_allows_is_well(tmp_path: Path) -> None:
    storage = SQLite(tmp_path / ("x" * 247))  # with -journal, which SQLite may add, 255

    add(storage)

    assert storage.wait(0) is True  # it has never looked
    storage.close()


def test_a_deep_path_is_well(tmp_path: Path) -> None:
    directory = tmp_path.joinpath(*["deep" * 10] * 8)
    directory.mkdir(parents=True)
    storage = SQLite(directory / "jobs.db")

    add(storage, "job")

    assert ids(find_all(storage)) == ["job"]
    storage.close()


def test_a_link_to_the_file_is_the_file(path: Path) -> None:
    path.with_name("link.db").symlink_to(path)
    storage, through_link = SQLite(path), SQLite(path.with_name("link.db"))

    add(storage, "job-1")
    add(through_link, "job-2")

    assert ids(find_all(storage)) == ids(find_all(through_link)) == ["job-2", "job-1"]
    storage.close()
    through_link.close()


# --- the file's mode ------------------------------------------------------------------------------------------------


def modes(path: Path) -> dict[str, str]:
    return {one.name: oct(stat.S_IMODE(one.stat().st_mode)) for one in path.parent.iterdir()}


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_new_file_is_its_owners_alone(mask: int, storage: SQLite, path: Path) -> None:
    before = os.umask(mask)
    try:
        add(storage)
        storage.reserve(join(storage), {"print": 1}, 1)
        assert storage.wait(0) in (True, False)
    finally:
        os.umask(before)

    assert modes(path) == {
        "jobs.db": "0o600",
        "jobs.db-wal": "0o600",
        "jobs.db-shm": "0o600",
        "jobs.db-wake": "0o700",
    }


def test_a_file_that_was_there_keeps_its_mode(storage: SQLite, path: Path) -> None:
    path.touch(mode=0o640)

    add(storage)

    assert set(modes(path).values()) == {"0o640"}


# --- beside a user's own tables -------------------------------------------------------------------------------------

OWN = """
PRAGMA user_version = 7;
PRAGMA application_id = 1234;
CREATE TABLE job (id INTEGER PRIMARY KEY, title TEXT);
CREATE TABLE event (id INTEGER PRIMARY KEY AUTOINCREMENT, job INTEGER REFERENCES job (id));
CREATE INDEX job_title ON job (title);
CREATE VIEW titles AS SELECT title FROM job;
CREATE TRIGGER on_job AFTER INSERT ON job BEGIN INSERT INTO event (job) VALUES (new.id); END;
INSERT INTO job (title) VALUES ('baker'), ('smith');
"""


def dump(path: Path) -> list[str]:
    """Everything in the file that is not ours."""
    connection = sqlite3.connect(path)
    lines = [line for line in connection.iterdump() if "packhorse" not in line]
    lines += [str(connection.execute(f"PRAGMA {name}").fetchone()) for name in ("user_version", "application_id")]
    connection.close()
    return lines


def test_a_users_own_tables_stay_as_they_are(storage: SQLite, path: Path) -> None:
    own = sqlite3.connect(path)
    own.executescript(OWN)
    own.close()
    before = dump(path)

    in_every_state(storage)
    storage.close()

    assert dump(path) == before
    assert len(before) > 8


def test_everything_of_ours_says_so_in_its_name(storage: SQLite, path: Path) -> None:
    add(storage)

    connection = sqlite3.connect(path)
    names = [name for (name,) in connection.execute("SELECT tbl_name FROM sqlite_schema")]
    connection.close()

    assert [name for name in names if not name.startswith("packhorse_")] == []
    assert "packhorse_job" in names


def test_a_users_own_table_with_our_name_is_refused(path: Path) -> None:
    own = sqlite3.connect(path)
    own.execute("CREATE TABLE packhorse_job (mine TEXT)")
    own.close()

    with pytest.raises(StorageUnavailable, match="packhorse_job already exists"):
        SQLite(path).enqueue([new_job()])
    assert "CREATE TABLE packhorse_job (mine TEXT)" in _schema(path)


def _schema(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    told = [sql for (sql,) in connection.execute("SELECT sql FROM sqlite_schema")]
    connection.close()
    return told


def test_foremen_write_the_log_back_into_the_file(storage: SQLite, tmp_path: Path):
    add(storage)
    before = _jobs_without_the_log(storage.path, tmp_path / "before.db")

    storage.poll("a foreman", [])

    assert before is None
    assert _jobs_without_the_log(storage.path, tmp_path / "after.db") == 1


def test_a_foreman_looks_though_the_log_cannot_be_written_back(
    storage: SQLite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    add(storage)

    class FullDisk(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if "checkpoint" in sql:
                raise sqlite3.OperationalError("database or disk is full")
            return super().execute(sql, *values)

    monkeypatch.setattr(storage._db._file, "connect", lambda: sqlite3.connect(storage.path, factory=FullDisk))

    for _ in range(3):
        storage._db._next_fold = 0.0
        assert storage.poll("a foreman", []).queued
        add(storage)

    assert [record.getMessage() for record in caplog.records] == [
        f"{storage.path}: its log could not be written back, and grows: database or disk is full"
    ]


def _jobs_without_the_log(path: Path, copy: Path) -> int | None:
    """How many jobs are in the file itself; None: not even their table."""
    shutil.copy(path, copy)
    connection = sqlite3.connect(copy)
    try:
        number: int = connection.execute("SELECT count(*) FROM packhorse_job").fetchone()[0]
    except sqlite3.OperationalError:
        return None
    finally:
        connection.close()
    return number


# --- heartbeats -----------------------------------------------------------------------------------------------------


def test_a_heartbeat_leaves_the_rest_of_the_record_as_it_is(storage: SQLite, path: Path) -> None:
    """Even where the record cannot be decoded: an operator may still want to see it."""
    join(storage, "ann")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("""UPDATE packhorse_worker SET info = '{"a": broken'""")
        reply = storage.heartbeat({"ann": {"running": 2}, "nobody": {}})
        row = connection.execute("SELECT info, report, beat_at FROM packhorse_worker").fetchone()

    assert row == ('{"a": broken', '{"running":2}', reply.now)
    assert reply.unknown == ["nobody"]
