"""Every statement of the PostgreSQL storage is used, whole, and understood by today's schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse import storage as storage_package
from packhorse.conformance.builders import cases
from packhorse.storage.postgres import Postgres
from packhorse.storage.postgres.statements import numbered, quoted, statements_for
from tests.postgres_server import new_schema_url

STORAGE = Path(storage_package.__file__).parent
NAMES = list(statements_for("packhorse"))


@pytest.fixture(scope="module")
def made() -> Iterator[Postgres]:
    storage = Postgres.from_url(new_schema_url())
    storage.tallies()
    yield storage
    storage.close()


@cases("name", NAMES)
def test_a_statement_is_understood_by_todays_schema(name: str, made: Postgres) -> None:
    with made._db.lent() as connection:
        connection.begin(f"PREPARE tried AS {made._sql[name]}\n; DEALLOCATE tried")


@cases("name", NAMES)
def test_a_statement_has_all_its_parts_and_is_one(name: str) -> None:
    text = statements_for("packhorse")[name]

    assert not re.search(r"\{[a-z_]+\}", text)
    assert ";" not in re.sub(r"--.*", "", text)


def test_every_statement_is_used() -> None:
    code = "".join(file.read_text("utf-8") for place in ("postgres", "sql") for file in (STORAGE / place).glob("*.py"))

    assert [name for name in NAMES if f'sql["{name}"]' not in code and f"sql['{name}']" not in code] == []


def test_marks_become_numbers() -> None:
    assert numbered("a = ? AND b IN (?, ?)") == "a = $1 AND b IN ($2, $3)"


def test_a_name_may_have_anything_in_it() -> None:
    assert quoted('a "b"') == '"a ""b"""'
