"""SQL by name: what the files of one database hold, and that all of it is whole, understood and used."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from packhorse.conformance.builders import cases
from packhorse.storage import sql
from packhorse.storage.sql.statements import load_migrations, load_statements
from packhorse.storage.sqlite.schema import MIGRATIONS, prepare
from packhorse.storage.sqlite.statements import SQL

SHARED = Path(sql.__file__).parent
SQLITE = SHARED.parent / "sqlite"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a database that is called `toy`."""
    directory = tmp_path / "sql" / "toy"
    (directory / "migrations").mkdir(parents=True)
    monkeypatch.setattr(resources, "files", lambda package: tmp_path)
    return directory


@pytest.fixture(scope="module")
def connection() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    prepare(connection, Path("nowhere"))
    yield connection
    connection.close()


# --- loading --------------------------------------------------------------------------------------------------------


def test_statements_are_found_by_name_in_all_files(files: Path) -> None:
    (files / "a.sql").write_text("-- name: one\nSELECT 1\n\n-- name: two\n-- Why.\nSELECT 2\n")
    (files / "b.sql").write_text("-- name: three  \nSELECT\n  3\n")
    (files / "notes.txt").write_text("-- name: four\nSELECT 4\n")

    assert load_statements("toy") == {"one": "SELECT 1", "two": "-- Why.\nSELECT 2", "three": "SELECT\n  3"}


def test_parts_are_filled_in(files: Path) -> None:
    (files / "a.sql").write_text("-- name: one\nSELECT {job}, '{}' FROM {table} -- {job}\n")

    assert load_statements("toy", job="id, seq", table="job")["one"] == "SELECT id, seq, '{}' FROM job -- id, seq"


def test_two_statements_of_one_name_are_refused(files: Path) -> None:
    (files / "a.sql").write_text("-- name: one\nSELECT 1\n")
    (files / "b.sql").write_text("-- name: one\nSELECT 2\n")

    with pytest.raises(ValueError, match=r"two statements are called one; the second is in b\.sql"):
        load_statements("toy")


def test_what_stands_before_the_first_name_is_left_out(files: Path) -> None:
    (files / "a.sql").write_text("-- About this file.\n\n-- name: one\nSELECT 1\n")

    assert load_statements("toy") == {"one": "SELECT 1"}


def test_text_may_be_in_any_alphabet(files: Path) -> None:
    (files / "a.sql").write_text("-- name: one\nSELECT 'žito …'\n", "utf-8")

    assert load_statements("toy") == {"one": "SELECT 'žito …'"}


def test_migrations_come_in_the_order_of_their_numbers(files: Path) -> None:
    (files / "migrations" / "002_more.sql").write_text("SELECT 2;")
    (files / "migrations" / "001_start.sql").write_text("SELECT 1;")
    (files / "migrations" / "010_last.sql").write_text("SELECT 10;")
    (files / "migrations" / "notes.txt").write_text("")

    assert load_migrations("toy") == [
        (1, "001_start.sql", "SELECT 1;"),
        (2, "002_more.sql", "SELECT 2;"),
        (10, "010_last.sql", "SELECT 10;"),
    ]


# --- SQLite's own ---------------------------------------------------------------------------------------------------


@cases("name", SQL)
def test_a_statement_is_understood_by_todays_schema(name: str, connection: sqlite3.Connection) -> None:
    numbered = [int(number) for number in re.findall(r"\?(\d+)", SQL[name])]
    values = [None] * (max(numbered) if numbered else SQL[name].count("?"))

    connection.execute(f"EXPLAIN {SQL[name]}", values)


@cases("name", SQL)
def test_a_statement_has_all_its_parts_and_is_one(name: str) -> None:
    assert not re.search(r"\{\w+\}", SQL[name])
    assert ";" not in SQL[name]


def test_every_statement_is_used() -> None:
    code = "".join(file.read_text("utf-8") for place in (SQLITE, SHARED) for file in place.glob("*.py"))

    unused = [name for name in SQL if f'SQL["{name}"]' not in code and f'sql["{name}"]' not in code]
    assert unused == []


def test_the_migrations_are_there() -> None:
    assert MIGRATIONS[0][:2] == (1, "001_start.sql")
    assert "CREATE TABLE packhorse_job" in MIGRATIONS[0][2]
