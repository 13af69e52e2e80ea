"""The tables: made once however many come, refused when unusable, usable by programs of the version before."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest

from packhorse.conformance.builders import add, at_once, ids, new_job
from packhorse.core.errors import SchemaOutdated, SchemaTooNew, StorageNotFound
from packhorse.storage.mysql import MySQL, schema
from packhorse.storage.mysql.connection import MySQLConnection
from packhorse.storage.mysql.schema import MIGRATIONS, SCHEMA, migrate, pending, prepare, script, versions
from tests.children import PATIENCE
from tests.mysql_server import new_database_url, shared_mysql
from tests.storage.mysql.conftest import Observer

STEPS = [name for _, name, _ in MIGRATIONS]
NEXT = (SCHEMA + 1, "002_colour.sql", "ALTER TABLE {schema}.packhorse_job ADD COLUMN colour varchar(20);\n")


@pytest.fixture
def url() -> str:
    return new_database_url(bare=True)  # not to be given back: these tables are changed


def test_of_many_that_come_at_once_one_makes_the_tables(url: str) -> None:
    storages = [MySQL.from_url(url) for _ in range(8)]

    at_once([lambda each=each, n=n: each.enqueue([new_job(f"job-{n}")]) for n, each in enumerate(storages)])

    assert sorted(ids(storages[0].get_many([f"job-{n}" for n in range(8)]))) == [f"job-{n}" for n in range(8)]
    for each in storages:
        each.close()


def test_tables_that_another_program_is_just_making_are_waited_for(storage: MySQL, database: str) -> None:
    add(storage)
    looked = threading.Event()

    with storage._db.lent() as maker, storage._db.lent() as connection, schema._migration_lock(maker, database):
        newcomer = threading.Thread(target=prepare, args=(_Watched(connection, looked), database, [*MIGRATIONS, NEXT]))
        newcomer.start()
        assert looked.wait(PATIENCE), "it has seen the old version, and asks for its turn"
        schema._apply(maker, database, *NEXT[::2])
    newcomer.join(PATIENCE)

    assert not newcomer.is_alive()


class _Watched:
    """A connection that says when somebody waits for the lock of a migration."""

    def __init__(self, connection: MySQLConnection, looked: threading.Event) -> None:
        self._connection, self._looked = connection, looked

    def execute(self, statement: str, words: tuple[Any, ...]) -> Any:
        self._looked.set()
        return self._connection.execute(statement, words)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_older_tables_are_not_touched_unasked(storage: MySQL, database: str) -> None:
    add(storage)

    with storage._db.lent() as connection:
        with pytest.raises(SchemaOutdated, match="packhorse migrate"):
            prepare(connection, database, [*MIGRATIONS, NEXT])
        assert pending(connection, database, [*MIGRATIONS, NEXT]) == [NEXT]
        assert migrate(connection, database, [*MIGRATIONS, NEXT]) == ["002_colour.sql"]
        assert migrate(connection, database, [*MIGRATIONS, NEXT]) == []
        assert versions(connection, database) == (SCHEMA + 1, 1)
        prepare(connection, database, [*MIGRATIONS, NEXT])


def test_a_program_of_the_version_before_goes_on_working(storage: MySQL, database: str, url: str) -> None:
    add(storage, "before")
    with storage._db.lent() as connection:
        migrate(connection, database, [*MIGRATIONS, NEXT])

    add(storage, "meanwhile")
    old = MySQL.from_url(url)

    assert ids(old.get_many(["before", "meanwhile"])) == ["before", "meanwhile"]
    old.close()


def test_tables_that_this_program_cannot_use_are_refused(storage: MySQL, url: str, observer: Observer) -> None:
    add(storage)
    observer.execute(f"UPDATE packhorse_meta SET value = '{SCHEMA + 1}' WHERE `key` IN ('schema', 'oldest_program')")

    late = MySQL.from_url(url)
    with pytest.raises(SchemaTooNew, match="pip install"):
        late.tallies()


def test_a_migration_that_was_cut_off_is_taken_up_where_it_stopped(
    storage: MySQL, database: str, observer: Observer
) -> None:
    add(storage)
    text = NEXT[2] + "ALTER TABLE {schema}.packhorse_job ADD COLUMN size int NOT NULL DEFAULT {number};\n"

    with storage._db.lent() as connection:
        with pytest.raises(pymysql.Error):
            migrate(
                connection, database, [*MIGRATIONS, (SCHEMA + 1, "002_colour.sql", text.replace("{number}", "'big'"))]
            )
        assert versions(connection, database) == (SCHEMA, 1)
        migrate(connection, database, [*MIGRATIONS, (SCHEMA + 1, "002_colour.sql", text.replace("{number}", "1"))])
        assert versions(connection, database) == (SCHEMA + 1, 1)

    assert observer.execute("SELECT colour, size FROM packhorse_job") == ((None, 1),)


def test_a_table_that_an_open_transaction_has_used_is_waited_for_in_steps(
    storage: MySQL, database: str, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(storage)
    observer.execute("BEGIN")
    observer.execute("SELECT count(*) FROM packhorse_job")
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        assert storage.get_many(["any"]) == []  # between two steps others have their turn
        observer.execute("COMMIT")

    monkeypatch.setattr(schema, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    with storage._db.lent() as connection:
        connection.rows("SET SESSION lock_wait_timeout = 1")
        migrate(connection, database, [*MIGRATIONS, NEXT])

        assert versions(connection, database) == (SCHEMA + 1, 1)
    assert len(pauses) == 1


def test_what_was_made_but_not_written_down_is_not_made_twice(
    storage: MySQL, database: str, observer: Observer
) -> None:
    add(storage)
    observer.execute("ALTER TABLE packhorse_job ADD COLUMN colour text")  # and then it was killed

    with storage._db.lent() as connection:
        migrate(connection, database, [*MIGRATIONS, NEXT])
        assert versions(connection, database) == (SCHEMA + 1, 1)


def test_the_script_does_what_the_migration_does(url: str) -> None:
    storage = MySQL.from_url(url)
    with Observer(shared_mysql(), client_flag=pymysql.constants.CLIENT.MULTI_STATEMENTS).connection as admin:
        cursor = admin.cursor()
        cursor.execute("\n".join(sql for _, sql in script(storage.address.database, MIGRATIONS)))
        while cursor.nextset():
            pass
        admin.commit()

    assert storage.pending_migrations() == []
    assert add(storage, "first").id == "first"
    storage.close()


def test_the_storage_says_what_it_would_do_and_does_it(url: str) -> None:
    storage = MySQL.from_url(url)
    name = storage.address.database

    planned = storage.pending_migrations()

    assert [step.name for step in planned] == [*STEPS, "version"]
    assert f"`{name}`.packhorse_job" in planned[0].sql
    with shared_mysql().connect() as admin, admin.cursor() as cursor:
        assert cursor.execute(f"SHOW TABLES FROM {name}") == 0
    assert storage.migrate() == STEPS
    assert (storage.migrate(), storage.pending_migrations()) == ([], [])
    assert add(storage, "first").id == "first"
    storage.close()


def test_whoever_only_looks_makes_nothing(url: str) -> None:
    looking = MySQL.from_url(url)
    looking.require_existing()

    with pytest.raises(StorageNotFound, match="has no Packhorse jobs"):
        looking.tallies()
    assert looking.migrate() == STEPS
    assert looking.tallies() == []
    looking.close()


def test_every_text_is_compared_by_its_bytes(storage: MySQL, database: str, observer: Observer) -> None:
    add(storage)

    found = observer.execute(
        "SELECT DISTINCT collation_name FROM information_schema.columns"
        " WHERE table_schema = %s AND collation_name IS NOT NULL",
        (database,),
    )

    assert [name for (name,) in found] in (["utf8mb4_nopad_bin"], ["utf8mb4_0900_bin"])
