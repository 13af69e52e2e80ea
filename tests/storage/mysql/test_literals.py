"""Values into statements: nothing that a user writes can be taken for SQL, in whatever session."""

from __future__ import annotations

import pytest

from packhorse.storage.mysql import MySQL
from packhorse.storage.mysql.literals import RawSQL, literal, portable_literal, rendered
from packhorse.storage.mysql.statements import quoted, said
from tests.mysql_server import shared_mysql

AWKWARD = [
    "'",
    '"',
    "\\",
    "\\'",
    "'; DROP TABLE x; -- ",
    "%s %",
    "$1 ?",
    "a\0b\n\r\x1a\t",
    "č 🐎",
    "  spaces  ",
    "`",
    "",
]


def test_marks_are_filled_in() -> None:
    assert rendered("a = $2 AND b = $1", (1, "x")) == "a = 'x' AND b = 1"
    assert rendered("a IN ($1*)", ('["x", "y"]',)) == "a IN ('x','y')"
    assert rendered("a IN ($1*)", ("[]",)) == "a IN (NULL)"
    assert rendered("VALUES $1()", ([(1, None), (True, RawSQL("now()"))],)) == "VALUES (1,NULL),(1,now())"


def test_a_value_that_looks_like_a_mark_is_left_alone() -> None:
    assert rendered("a = $1 AND b = $2", ("$2", "x")) == "a = '$2' AND b = 'x'"


@pytest.mark.parametrize("text", AWKWARD)
def test_the_server_reads_what_was_written(storage: MySQL, text: str) -> None:
    with storage._db.lent() as connection:
        assert connection.rows("SELECT $1, $2", (text, 7)) == [(text, 7)]


@pytest.mark.parametrize("mode", ["", "NO_BACKSLASH_ESCAPES,ANSI_QUOTES"])
@pytest.mark.parametrize("charset", ["utf8mb4", "latin1"])
def test_in_somebody_elses_session_too(storage: MySQL, mode: str, charset: str) -> None:
    with shared_mysql().connect(charset=charset, sql_mode=mode) as connection, connection.cursor() as cursor:
        for text in AWKWARD:
            cursor.execute(f"SELECT hex({portable_literal(text)})")
            assert cursor.fetchall() == ((text.encode().hex().upper(),),)


def test_only_our_own_text_is_raw() -> None:
    assert (literal(RawSQL("now()")), literal("now()")) == ("now()", "'now()'")


def test_pairs_are_compared_as_an_index_can_follow() -> None:
    assert said("(a, b) > (?, ?) LIMIT ?") == "a >= $1 AND (a > $1 OR b > $2) LIMIT $3"
    assert said("x = ? AND (a, b) < (?, ?)") == "x = $1 AND a <= $2 AND (a < $2 OR b < $3)"
    assert said("(a, `b`, c) > (?, ?, ?)") == "a >= $1 AND (a > $1 OR `b` >= $2 AND (`b` > $2 OR c > $3))"


def test_a_name_may_have_anything_in_it() -> None:
    assert quoted("a `b`") == "`a ``b```"
