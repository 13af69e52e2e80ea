"""The schema: made once however many come, refused when it cannot be used, usable by programs of the version before."""

from __future__ import annotations

import time
from types import SimpleNamespace

import psycopg
import pytest

from packhorse.conformance.builders import add, at_once, ids, new_job
from packhorse.core.errors import SchemaOutdated, SchemaTooNew
from packhorse.core.ids import new_id
from packhorse.storage import BATCH
from packhorse.storage.postgres import Postgres
from packhorse.storage.postgres import schema as schema_module
from packhorse.storage.postgres.schema import MIGRATIONS, SCHEMA, migrate, pending, prepare, script, versions
from packhorse.storage.records import WorkerInfo
from tests.postgres_server import PgBouncer, new_schema_url, shared_postgres

Observer = psycopg.Connection[tuple[object, ...]]
FILES = [name for _, name, _ in MIGRATIONS]
NEXT = (SCHEMA + 1, "999_colour.sql", "ALTER TABLE {schema}.packhorse_job ADD COLUMN colour text;")


@pytest.fixture
def url() -> str:
    return new_schema_url(bare=True)  # one that has served another test would be found with its tables


def test_of_many_that_come_at_once_one_makes_the_schema(url: str) -> None:
    storages = [Postgres.from_url(url) for _ in range(8)]

    at_once([lambda each=each, n=n: each.enqueue([new_job(f"job-{n}")]) for n, each in enumerate(storages)])

    assert sorted(ids(storages[0].get_many([f"job-{n}" for n in range(8)]))) == [f"job-{n}" for n in range(8)]
    for each in storages:
        each.close()


def test_an_older_schema_is_not_touched_unasked(storage: Postgres, schema: str) -> None:
    add(storage)

    with storage._db.lent() as connection:
        with pytest.raises(SchemaOutdated, match="packhorse migrate"):
            prepare(connection, schema, [*MIGRATIONS, NEXT])
        assert pending(connection, schema, [*MIGRATIONS, NEXT]) == [NEXT]
        assert migrate(connection, schema, [*MIGRATIONS, NEXT]) == ["999_colour.sql"]
        assert migrate(connection, schema, [*MIGRATIONS, NEXT]) == []
        assert versions(connection, schema) == (SCHEMA + 1, 1)
        prepare(connection, schema, [*MIGRATIONS, NEXT])


def test_a_program_of_the_version_before_goes_on_working(storage: Postgres, schema: str, url: str) -> None:
    add(storage, "before")
    with storage._db.lent() as connection:
        migrate(connection, schema, [*MIGRATIONS, NEXT])

    add(storage, "meanwhile")
    old = Postgres.from_url(url)

    assert ids(old.get_many(["before", "meanwhile"])) == ["before", "meanwhile"]
    old.close()


def test_jobs_of_both_programs_are_numbered_as_they_came(url: str, observer: Observer) -> None:
    storage = Postgres.from_url(url)
    schema = storage.options.schema

    def as_by_the_first(job_id: str) -> str:
        """The first program left every number to the sequence."""
        observer.execute(
            f"INSERT INTO {schema}.packhorse_job (id, task, queue, state, args, created_at, updated_at, priority, rank)"
            f" VALUES ('{job_id}', 'send', 'mail', 'queued', '{{}}', 1, 1, 1, 12)"
        )
        return job_id

    def many() -> list[str]:
        return [answer.job_id for answer in storage.enqueue([new_job(new_id()) for _ in range(BATCH)])]

    with storage._db.unprepared() as connection:
        migrate(connection, schema, MIGRATIONS[:1])
    came = [as_by_the_first("one"), as_by_the_first("two")]
    assert storage.migrate() == FILES[1:]
    add(storage, "three")  # makes the names known

    came += ["three", *many(), *many(), as_by_the_first("four"), *many(), as_by_the_first("five")]

    numbered = observer.execute(f"SELECT id FROM {schema}.packhorse_job ORDER BY seq").fetchall()
    assert [job_id for (job_id,) in numbered] == came
    storage.close()


@pytest.mark.parametrize("number", [BATCH, BATCH + 1])
def test_the_first_of_all_batches_is_numbered_from_one_on(
    storage: Postgres, schema: str, observer: Observer, number: int
) -> None:
    """Whoever takes from several queues looks for no number below it."""
    storage.join(WorkerInfo("ann"))
    storage._make_known([new_job("known")])  # else jobs do not go in as a batch

    def numbers_of_many() -> list[int]:
        many = [new_job(new_id()) for _ in range(number)]
        storage.enqueue(many)
        return sorted(
            job.seq for some in (many[:BATCH], many[BATCH:]) for job in storage.get_many([new.id for new in some])
        )

    assert numbers_of_many()[0] >= 1
    taken = 0
    while jobs := storage.reserve("ann", {"mail": 1, "news": 1}, BATCH):
        taken += len(jobs)
    assert taken == number
    observer.execute(f"TRUNCATE {schema}.packhorse_job RESTART IDENTITY")
    assert numbers_of_many()[0] >= 1


def test_a_schema_that_this_program_cannot_use_is_refused(
    storage: Postgres, schema: str, url: str, observer: Observer
) -> None:
    add(storage)
    observer.execute(f"UPDATE {schema}.packhorse_meta SET value = '{SCHEMA + 1}'")

    late = Postgres.from_url(url)
    with pytest.raises(SchemaTooNew, match="pip install"):
        late.tallies()


def test_a_migration_that_fails_leaves_nothing(storage: Postgres, schema: str, observer: Observer) -> None:
    add(storage)
    broken = (SCHEMA + 1, "999_broken.sql", "CREATE TABLE {schema}.half (id bigint); SELECT 1 / 0;")

    with storage._db.lent() as connection:
        with pytest.raises(psycopg.Error):
            migrate(connection, schema, [*MIGRATIONS, broken])
        assert versions(connection, schema) == (SCHEMA, 1)
    assert (
        observer.execute("SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = 'half'", [schema]).rowcount == 0
    )


@pytest.mark.parametrize("pooled", [False, True], ids=["alone", "behind a pooler"])
def test_a_table_that_an_open_transaction_has_used_is_waited_for_in_steps(
    url: str, pooled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bouncer = PgBouncer(shared_postgres()) if pooled else None
    name = url.partition("?")[2]
    storage = Postgres.from_url(f"{bouncer.url}?{name}&pgbouncer=1" if bouncer else url)
    add(storage)
    own = storage.options.schema
    somebody = psycopg.connect(shared_postgres().url)
    somebody.execute(f"SELECT count(*) FROM {own}.packhorse_job")
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        assert storage.get_many(["any"]) == []  # between two steps others have their turn
        somebody.rollback()

    monkeypatch.setattr(schema_module, "_LOCK_PATIENCE", "50ms")
    monkeypatch.setattr(schema_module, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    with storage._db.unprepared() as connection:
        assert migrate(connection, own, [*MIGRATIONS, NEXT]) == ["999_colour.sql"]

    assert len(pauses) == 1
    somebody.close()
    storage.close()
    if bouncer:
        bouncer.end()


def test_who_waits_for_somebody_elses_migration_finds_it_done(
    storage: Postgres, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(storage)
    somebody = psycopg.connect(shared_postgres().url)
    somebody.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 5040))", [f"packhorse schema {schema}"])

    def sleep(_: float) -> None:
        somebody.execute(f"ALTER TABLE {schema}.packhorse_job ADD COLUMN colour text")
        somebody.execute(f"UPDATE {schema}.packhorse_meta SET value = '{SCHEMA + 1}' WHERE key = 'schema'")
        somebody.commit()

    monkeypatch.setattr(schema_module, "_LOCK_PATIENCE", "50ms")
    monkeypatch.setattr(schema_module, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    with storage._db.unprepared() as connection:
        assert migrate(connection, schema, [*MIGRATIONS, NEXT]) == []

    somebody.close()


def test_the_script_does_what_the_migration_does() -> None:
    schema = "by_hand"
    with psycopg.connect(shared_postgres().url, autocommit=True) as admin:
        admin.execute("\n".join(sql for _, sql in script(schema, MIGRATIONS)))  # type: ignore[arg-type]
    storage = Postgres.from_url(f"{shared_postgres().url}?schema={schema}")

    add(storage, "first")

    assert storage.get("first") is not None
    storage.close()


def test_the_storage_says_what_it_would_do_and_does_it(url: str, observer: Observer) -> None:
    storage = Postgres.from_url(url)
    schema = storage.options.schema

    planned = storage.pending_migrations()

    assert [step.name for step in planned] == ["schema", *FILES, "version"]
    assert f'CREATE TABLE "{schema}".packhorse_job' in planned[1].sql
    assert observer.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema]).rowcount == 0
    assert storage.migrate() == FILES
    assert (storage.migrate(), storage.pending_migrations()) == ([], [])
    assert add(storage, "first").id == "first"
    storage.close()


def test_a_role_that_may_make_no_schema_works_in_one_that_was_made_for_it(observer: Observer) -> None:
    name = "made_beforehand"
    observer.execute(f"CREATE ROLE {name} LOGIN")
    observer.execute(f"CREATE SCHEMA {name} AUTHORIZATION {name}")
    storage = Postgres.from_url(f"{shared_postgres().url.replace('postgres@', f'{name}@')}?schema={name}")

    assert [step.name for step in storage.pending_migrations()] == [*FILES, "version"]
    assert add(storage, "first").id == "first"
    storage.close()
    observer.execute(f"DROP SCHEMA {name} CASCADE")
    observer.execute(f"DROP ROLE {name}")
