"""The schema: made in a new file, brought up to date in an older one, never left half done. A newer file says whether
this program may go on with it."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from packhorse.conformance.builders import add, find_all, finish, ids, new_job, new_jobs, recount, run, tallies
from packhorse.core.errors import SchemaOutdated, SchemaTooNew, StorageUnavailable
from packhorse.core.job import COMPLETED
from packhorse.core.outcome import Completed
from packhorse.storage.records import Filter
from packhorse.storage.sqlite import SQLite, schema
from packhorse.storage.sqlite.schema import MIGRATIONS, SCHEMA, Migration, prepare, split
from tests.children import PATIENCE, program, running

NEXT, AFTER_NEXT = SCHEMA + 1, SCHEMA + 2
ADD_COLOUR: Migration = (
    NEXT,
    f"{NEXT:03}_colour.sql",
    "-- Jobs have colours.\n"
    "ALTER TABLE packhorse_job ADD COLUMN colour TEXT NOT NULL DEFAULT 'red; green';\n"
    "CREATE TABLE packhorse_colour (name TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;\n",
)
ADD_SHAPE: Migration = (
    AFTER_NEXT,
    f"{AFTER_NEXT:03}_shape.sql",
    "UPDATE packhorse_job SET colour = 'blue';\nCREATE TABLE packhorse_shape (name TEXT) STRICT;\n",
)
FAILING: Migration = (
    AFTER_NEXT,
    f"{AFTER_NEXT:03}_failing.sql",
    "CREATE TABLE packhorse_shape (name TEXT) STRICT;\n"
    "UPDATE packhorse_job SET priority = 9;\n"
    "INSERT INTO packhorse_nothing (name) VALUES ('round');\n",
)


def known(*more: Migration) -> Sequence[Migration]:
    """The migrations of a program that knows some more."""
    return [*MIGRATIONS, *more]


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    yield connection
    connection.close()


@pytest.fixture
def first(path: Path, connection: sqlite3.Connection) -> Path:
    """A file that the very first program has made."""
    connection.execute("PRAGMA journal_mode = WAL")
    prepare(connection, path, MIGRATIONS[:1])
    connection.close()
    return path


@pytest.fixture
def older(path: Path) -> Path:
    """A file that today's program has written."""
    storage = SQLite(path)
    storage.enqueue([new_job("job-1"), new_job("job-2", args=f'"{"x" * 5_000}"'), *new_jobs(20)])
    storage.close()
    return path


def schema_of(path: Path) -> str:
    return meta(path)["schema"]


def meta(path: Path) -> dict[str, str]:
    connection = sqlite3.connect(path)
    told = dict(connection.execute("SELECT key, value FROM packhorse_meta"))
    connection.close()
    return told


def tables(path: Path) -> set[str]:
    connection = sqlite3.connect(path)
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    connection.close()
    return names


def content(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    lines = list(connection.iterdump())
    connection.close()
    return lines


def backup_of(path: Path, number: int = SCHEMA) -> Path:
    return path.with_name(f"{path.name}.schema{number}.bak")


# --- a new file -----------------------------------------------------------------------------------------------------


def test_a_new_file_gets_todays_schema(storage: SQLite, path: Path) -> None:
    add(storage)

    assert schema_of(path) == str(SCHEMA)
    assert storage.health().schema == SCHEMA
    assert not backup_of(path, 0).exists()


def test_a_file_that_is_up_to_date_is_left_alone(older: Path, connection: sqlite3.Connection) -> None:
    before = content(older)

    prepare(connection, older)

    assert content(older) == before
    assert not backup_of(older).exists()


def test_processes_that_make_the_file_at_once_do_not_disturb_each_other(path: Path) -> None:
    programs = [program("tests.storage.sqlite.opening", path, number) for number in range(8)]
    with running(*programs):
        for one in programs:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        for one in programs:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        told = [one.communicate(timeout=PATIENCE) for one in programs]

    assert [complaint for _, complaint in told] == [""] * 8
    storage = SQLite(path)
    assert sorted(ids(find_all(storage))) == [f"job-{number}" for number in range(8)]
    assert tallies(storage) == recount(storage)
    storage.close()


def test_an_old_sqlite_is_refused(storage: SQLite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "_OLDEST_SQLITE", (99, 0, 0))

    with pytest.raises(StorageUnavailable, match=r"this Python has SQLite 3\.\d+\.\d+; Packhorse needs 3\.37 or newer"):
        storage.enqueue([new_job()])


# --- an older file --------------------------------------------------------------------------------------------------


def test_an_older_file_is_brought_up_to_date_with_its_jobs(older: Path, connection: sqlite3.Connection) -> None:
    prepare(connection, older, known(ADD_COLOUR))

    assert schema_of(older) == str(NEXT)
    assert "packhorse_colour" in tables(older)
    assert connection.execute("SELECT count(*), min(colour) FROM packhorse_job").fetchone() == (22, "red; green")


def test_migrations_are_done_in_their_order_from_where_the_file_stands(
    older: Path, connection: sqlite3.Connection
) -> None:
    prepare(connection, older, known(ADD_COLOUR))
    prepare(connection, older, known(ADD_COLOUR, ADD_SHAPE))

    assert schema_of(older) == str(AFTER_NEXT)
    assert connection.execute("SELECT DISTINCT colour FROM packhorse_job").fetchall() == [("blue",)]
    assert backup_of(older, SCHEMA).exists()
    assert backup_of(older, NEXT).exists()


def test_several_migrations_are_one_step(older: Path, connection: sqlite3.Connection) -> None:
    prepare(connection, older, known(ADD_COLOUR, ADD_SHAPE))

    assert schema_of(older) == str(AFTER_NEXT)
    assert not backup_of(older, NEXT).exists()


def test_a_copy_of_the_file_as_it_was_is_left_behind(older: Path, connection: sqlite3.Connection) -> None:
    before = content(older)

    prepare(connection, older, known(ADD_COLOUR))

    assert content(backup_of(older)) == before
    copy = SQLite(backup_of(older))
    assert copy.count(Filter()).number == 22
    add(copy, "goes-on")
    copy.close()


def test_the_copy_has_what_is_not_yet_out_of_the_write_ahead_log(
    storage: SQLite, path: Path, connection: sqlite3.Connection
) -> None:
    add(storage, "in-the-log")

    prepare(connection, path, known(ADD_COLOUR))

    copy = sqlite3.connect(backup_of(path))
    assert copy.execute("SELECT id FROM packhorse_job").fetchall() == [("in-the-log",)]
    copy.close()


def test_the_copy_is_its_owners_alone_as_the_file_is(older: Path, connection: sqlite3.Connection) -> None:
    prepare(connection, older, known(ADD_COLOUR))

    assert stat.S_IMODE(backup_of(older).stat().st_mode) == 0o600


def test_the_copy_stays_the_older_one_when_two_processes_migrate_at_once(
    older: Path, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process is quicker by just so much that this one has seen the old schema and not yet copied it."""
    before = content(older)
    back_up = schema._back_up
    other = sqlite3.connect(older, isolation_level=None)

    def be_slower(connection: sqlite3.Connection, path: Path, present: int) -> None:
        monkeypatch.setattr(schema, "_back_up", back_up)
        prepare(other, path, known(ADD_COLOUR))
        back_up(connection, path, present)

    monkeypatch.setattr(schema, "_back_up", be_slower)
    prepare(connection, older, known(ADD_COLOUR))
    other.close()

    assert schema_of(older) == str(NEXT)
    assert content(backup_of(older)) == before


def test_a_copy_that_is_there_already_stays(older: Path, connection: sqlite3.Connection) -> None:
    """It was taken before anybody began."""
    backup_of(older).write_text("an earlier copy")

    prepare(connection, older, known(ADD_COLOUR))

    assert schema_of(older) == str(NEXT)
    assert backup_of(older).read_text() == "an earlier copy"


def test_half_a_copy_is_never_taken_for_a_whole(
    older: Path, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when the copy is half written, and has room again later."""
    before = content(older)
    connect = sqlite3.connect

    def connect_to_a_full_disk(*arguments: Any, **options: Any) -> sqlite3.Connection:
        target: sqlite3.Connection = connect(*arguments, **options)
        target.execute("PRAGMA max_page_count = 3")
        return target

    monkeypatch.setattr(sqlite3, "connect", connect_to_a_full_disk)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        prepare(connection, older, known(ADD_COLOUR))
    monkeypatch.undo()
    assert content(older) == before

    prepare(connection, older, known(ADD_COLOUR))

    assert content(backup_of(older)) == before


def test_a_migration_that_fails_leaves_everything_as_it_was(older: Path, connection: sqlite3.Connection) -> None:
    before = content(older)

    with pytest.raises(sqlite3.OperationalError, match="packhorse_nothing"):
        prepare(connection, older, known(ADD_COLOUR, FAILING))

    assert not connection.in_transaction
    assert content(older) == before
    storage = SQLite(older)
    add(storage, "goes-on")
    assert storage.count(Filter()).number == 23
    storage.close()


def test_a_failed_migration_is_done_when_it_has_been_mended(older: Path, connection: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.OperationalError):
        prepare(connection, older, known(ADD_COLOUR, FAILING))

    prepare(connection, older, known(ADD_COLOUR, ADD_SHAPE))

    assert schema_of(older) == str(AFTER_NEXT)


def test_a_new_file_whose_making_failed_has_none_of_our_tables(path: Path, connection: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.OperationalError):
        prepare(connection, path, known(ADD_COLOUR, FAILING))

    assert tables(path) == set()


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda storage: storage.queues(), id="queues"),
        pytest.param(lambda storage: storage.count(Filter()), id="count"),
        pytest.param(lambda storage: storage.pause("mail"), id="pause"),
    ],
)
def test_looking_does_not_change_an_older_file(call: Callable[[SQLite], object], first: Path) -> None:
    before = first.read_bytes()
    looking = SQLite(first)
    looking.require_existing()

    with pytest.raises(SchemaOutdated) as raised:
        call(looking)

    assert str(raised.value) == (
        f"{first} has schema 1; this Packhorse needs {SCHEMA}"
        " (an older version made it, and looking does not change it) - run: packhorse migrate"
    )
    looking.close()
    assert first.read_bytes() == before
    assert [one.name for one in first.parent.iterdir()] == [first.name]


def test_whoever_looks_may_ask_for_the_migration(first: Path) -> None:
    looking = SQLite(first)
    looking.require_existing()

    assert looking.migrate() == [name for _, name, _ in MIGRATIONS[1:]]
    assert looking.queues() == []
    looking.close()
    assert backup_of(first, 1).exists()


def test_looking_goes_on_when_another_program_has_brought_the_file_up_to_date(first: Path) -> None:
    looking = SQLite(first)
    looking.require_existing()
    with pytest.raises(SchemaOutdated):
        looking.queues()

    working = SQLite(first)
    add(working)
    working.close()

    assert looking.count(Filter()).number == 1
    looking.close()


# --- a newer file ---------------------------------------------------------------------------------------------------


def say_in(path: Path, **told: int) -> None:
    """What the program that brought the file up to date has left in it."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executemany("REPLACE INTO packhorse_meta (key, value) VALUES (?, ?)", [*told.items()])
    connection.close()


def test_a_file_says_which_programs_it_is_for(storage: SQLite, path: Path) -> None:
    add(storage)

    assert meta(path) == {"schema": str(SCHEMA), "oldest_program": "1"}


@pytest.mark.parametrize("oldest", [1, SCHEMA])
def test_a_program_goes_on_with_a_newer_file_that_is_for_it_too(oldest: int, older: Path) -> None:
    say_in(older, schema=NEXT + 6, oldest_program=oldest)
    before = meta(older)
    storage = SQLite(older)

    job = finish(storage, Completed(run(storage, add(storage, "goes-on", queue="late")).token))

    assert (job.id, job.state) == ("goes-on", COMPLETED)
    assert storage.count(Filter()).number == 23
    assert tallies(storage) == recount(storage)
    assert (storage.pending_migrations(), storage.migrate()) == ([], [])
    storage.close()
    assert meta(older) == before
    assert [one.name for one in older.parent.iterdir()] == [older.name]


def test_a_program_goes_on_while_a_newer_one_brings_the_file_up_to_date(
    storage: SQLite, path: Path, connection: sqlite3.Connection
) -> None:
    add(storage, "before")
    prepare(connection, path, known(ADD_COLOUR))

    add(storage, "after")
    storage.close()
    add(storage, "opened-anew")

    assert sorted(ids(find_all(storage))) == ["after", "before", "opened-anew"]
    assert schema_of(path) == str(NEXT)


def test_a_program_whose_migration_a_newer_one_has_overtaken_goes_on(
    first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer one is quicker by just so much that this one has seen the old schema."""
    back_up = schema._back_up

    def be_slower(connection: sqlite3.Connection, path: Path, present: int) -> None:
        back_up(connection, path, present)
        monkeypatch.undo()
        other = sqlite3.connect(path, isolation_level=None)
        prepare(other, path, known(ADD_COLOUR))
        other.close()

    monkeypatch.setattr(schema, "_back_up", be_slower)
    storage = SQLite(first)
    add(storage)
    storage.close()

    assert schema_of(first) == str(NEXT)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda storage: storage.enqueue([new_job()]), id="enqueue"),
        pytest.param(lambda storage: storage.get("job-1"), id="get"),
        pytest.param(lambda storage: storage.reserve("ann", {"mail": 1}, 1), id="reserve"),
    ],
)
def test_a_newer_file_that_is_not_for_this_program_is_refused_and_not_touched(
    call: Callable[[SQLite], object], older: Path, connection: sqlite3.Connection
) -> None:
    prepare(connection, older, known(ADD_COLOUR))
    connection.close()
    say_in(older, oldest_program=NEXT)
    backup_of(older).unlink()
    before = older.read_bytes()
    storage = SQLite(older)

    with pytest.raises(SchemaTooNew) as raised:
        call(storage)

    assert str(raised.value) == (
        f"{older} has schema {NEXT}; this Packhorse knows schemas up to {SCHEMA}"
        " - upgrade Packhorse in this program: pip install -U packhorse"
    )
    storage.close()
    assert older.read_bytes() == before
    assert [one.name for one in older.parent.iterdir()] == [older.name]


# --- migration files ------------------------------------------------------------------------------------------------


def test_migrations_are_numbered_from_one_without_a_gap() -> None:
    assert [number for number, _, _ in MIGRATIONS] == list(range(1, SCHEMA + 1))
    assert [name[:4] for _, name, _ in MIGRATIONS] == [f"{number:03}_" for number in range(1, SCHEMA + 1)]


@pytest.mark.parametrize(
    ("sql", "statements"),
    [
        ("", []),
        ("\n\n", []),
        ("SELECT 1;\nSELECT 2;\n", ["SELECT 1;", "SELECT 2;"]),
        ("SELECT\n  1\n;\n", ["SELECT\n  1\n;"]),
        ("-- why\nSELECT 1; -- and so\n", ["-- why\nSELECT 1; -- and so"]),
        ("SELECT 'a;\nb';\n", ["SELECT 'a;\nb';"]),
        (
            "CREATE TRIGGER t AFTER INSERT ON a BEGIN\n  DELETE FROM b;\n  DELETE FROM c;\nEND;\nSELECT 1;",
            ["CREATE TRIGGER t AFTER INSERT ON a BEGIN\n  DELETE FROM b;\n  DELETE FROM c;\nEND;", "SELECT 1;"],
        ),
    ],
)
def test_a_migration_is_split_into_its_statements(sql: str, statements: list[str]) -> None:
    assert split(sql) == statements


def test_a_migration_that_ends_in_the_middle_of_a_statement_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ends in the middle of a statement: 'SELECT 2'"):
        split("SELECT 1;\nSELECT 2\n")
