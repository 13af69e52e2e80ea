from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from tests.cli.conftest import Call
from tests.cli.yard import Yard


def test_an_empty_place_is_made_ready(here: Path, packhorse: Call):
    result = packhorse("migrate", "--url", "sqlite:///new.db")

    assert (result.exit_code, result.stdout) == (0, "applied 001_start.sql\n")
    assert sqlite3.connect(here / "new.db").execute("SELECT count(*) FROM packhorse_job").fetchone() == (0,)


def test_a_plan_changes_nothing(here: Path, packhorse: Call):
    result = packhorse("migrate", "--plan", "--url", "sqlite:///new.db")

    assert (result.exit_code, result.stdout) == (0, "001_start.sql\n")
    assert not (here / "new.db").exists()


def test_the_sql_makes_the_tables(here: Path, packhorse: Call):
    result = packhorse("migrate", "--sql", "--url", "sqlite:///new.db")

    by_hand = sqlite3.connect(":memory:")
    by_hand.executescript(result.stdout)
    assert by_hand.execute("SELECT count(*) FROM packhorse_job").fetchone() == (0,)


def test_up_to_date_tables_are_left_alone(yard: Yard, packhorse: Call):
    yard.add()

    assert packhorse("migrate", "--plan").stdout == ""
    assert "up to date" in packhorse("migrate").stderr
    assert packhorse("migrate", "--sql").stdout == ""


def test_json(yard: Yard, here: Path, packhorse: Call):
    yard.add()

    assert json.loads(packhorse("migrate", "--json").stdout) == {"applied": []}
    (step,) = json.loads(packhorse("migrate", "--plan", "--json", "--url", "sqlite:///new.db").stdout)
    assert step["name"] == "001_start.sql"
    assert "CREATE TABLE" in step["sql"]


def test_plan_and_sql_together_are_refused(here: Path, packhorse: Call):
    assert packhorse("migrate", "--plan", "--sql").exit_code == 2


def test_a_file_of_another_kind_is_told(here: Path, packhorse: Call):
    (here / "notes.txt").write_text("not a database, but long enough to be looked at" * 50)

    result = packhorse("migrate", "--plan", "--url", "sqlite:///notes.txt")

    assert result.exit_code == 4
    assert "is not a SQLite database" in result.stderr
