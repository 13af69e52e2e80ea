"""Every statement of the MySQL storage is used, whole, and understood by today's tables; none needs MariaDB alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse import storage as storage_package
from packhorse.conformance.builders import cases
from packhorse.storage.mysql import MySQL
from packhorse.storage.mysql.literals import RawSQL, rendered
from packhorse.storage.mysql.schema import MIGRATIONS
from packhorse.storage.mysql.statements import NOW, statements_for
from tests.mysql_server import new_database_url

STORAGE = Path(storage_package.__file__).parent
NAMES = list(statements_for("packhorse"))
_ROWS = {
    "insert_jobs": 25,
    "insert_plain_jobs": 13,
    "lock_keys": 1,
    "put_locks": 5,
    "put_events": 9,
    "put_deltas": 6,
}
# Words that MySQL 8 reserves and MariaDB does not, or that only one of the two knows.
_RESERVED_BY_MYSQL = [
    "cube",
    "dense_rank",
    "empty",
    "first_value",
    "function",
    "groups",
    "lag",
    "last_value",
    "lateral",
    "lead",
    "of",
    "rank",
    "row",
    "rows",
    "system",
    "window",
    "key",
    "keys",
    "lines",
    "column",
    "condition",
]
_ONLY_MARIADB = ["RETURNING", "FETCH FIRST", "SET STATEMENT", "IF NOT EXISTS packhorse", "NEXTVAL", "JSON_TABLE"]


@pytest.fixture(scope="module")
def made() -> Iterator[MySQL]:
    storage = MySQL.from_url(new_database_url())
    storage.tallies()
    yield storage
    storage.close()


@cases("name", NAMES)
def test_a_statement_is_understood_by_todays_tables(name: str, made: MySQL) -> None:
    text = made._sql[name]
    values = [1 if f"${place}*" not in text else "[1]" for place in range(1, 60)]
    if name in _ROWS:
        values = [[tuple([1] * _ROWS[name])]]
    if name == "gate":
        values[1] = RawSQL(NOW)
    if name == "beat":
        values[1] = RawSQL("CASE id WHEN 1 THEN 1 END")
    with made._db.lent() as connection:
        spoken = rendered(text, values)
        connection.script([spoken if spoken.startswith(("SHOW", "SET")) else f"EXPLAIN {spoken}"])


@cases("name", NAMES)
def test_a_statement_has_all_its_parts_and_is_one(name: str) -> None:
    text = statements_for("packhorse")[name]

    assert not re.search(r"\{[a-z_]+\}", text)
    assert ";" not in text
    assert "--" not in text


def test_every_statement_is_used() -> None:
    code = "".join(file.read_text("utf-8") for place in ("mysql", "sql") for file in (STORAGE / place).glob("*.py"))

    spellings = ('sql["{}"]', '_render("{}"', "_render('{}'")
    assert [name for name in NAMES if not any(spelling.format(name) in code for spelling in spellings)] == []


@cases("name", [*NAMES, *(name for _, name, _ in MIGRATIONS)])
def test_a_statement_says_nothing_that_mysql_would_not_understand(name: str) -> None:
    text = statements_for("packhorse").get(name) or {one[1]: one[2] for one in MIGRATIONS}[name]
    bare = re.sub(r"`[^`]*`|'[^']*'|--.*", "", text)

    assert [word for word in _ONLY_MARIADB if word in bare] == []
    names = re.findall(r"(?<![.\w])([a-z_]+)(?!\w)", bare)  # our names are small, the words of SQL are not
    assert sorted(set(names) & set(_RESERVED_BY_MYSQL)) == []
