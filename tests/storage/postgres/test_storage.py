"""Addresses, health, values that PostgreSQL cannot take, and the server's clock."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from packhorse.conformance.builders import (
    add,
    at_once,
    find_all,
    history,
    ids,
    join,
    kinds,
    new_job,
    new_jobs,
    recount,
    tallies,
    unique,
)
from packhorse.core.clock import HOUR, SECOND
from packhorse.core.errors import BadURL, BadValue, StorageClosed, StorageError, StorageNotFound, StorageUnavailable
from packhorse.core.event import ForemanAction, ForemanOrder, Kind
from packhorse.core.ids import new_id
from packhorse.core.job import SCHEDULED
from packhorse.core.outcome import Completed, Failed, Failure, Verdict
from packhorse.foreman.heartbeat import ForemanRecord
from packhorse.foreman.poller import Orders
from packhorse.storage import open_storage
from packhorse.storage.postgres import Postgres
from packhorse.storage.postgres.database import Options
from packhorse.storage.postgres.driver_errors import without_password
from packhorse.storage.records import EventFilter, Filter, Placement
from packhorse.storage.sql.server import FOLD_AFTER
from packhorse.storage.transfer import Move, Stage, encode
from tests.children import until
from tests.postgres_server import PgBouncer, new_database_url, shared_postgres

pytestmark = pytest.mark.usefixtures("exact_lines")

Observer = psycopg.Connection[tuple[object, ...]]


def test_options_are_read_from_the_address() -> None:
    storage = Postgres.from_url(
        "postgres://ann:secret@db:5433/shop?schema=jobs&pgbouncer=1&connections=3&patience=2s&sslmode=require"
    )

    assert storage.options == Options("jobs", True, 3, 2.0)
    assert storage._db.address == "postgresql://ann:secret@db:5433/shop?sslmode=require"


@pytest.mark.parametrize(
    "query", ["schema=", f"schema={'x' * 64}", "connections=0", "connections=many", "patience=soon"]
)
def test_an_option_that_makes_no_sense_is_refused(query: str) -> None:
    with pytest.raises(BadURL):
        open_storage(f"postgresql://localhost/shop?{query}")


@pytest.mark.parametrize("form", ["postgresql:///postgres?host={0}&port={1}", "postgresql://{2}:{1}/postgres"])
def test_a_server_may_be_asked_by_its_socket(form: str) -> None:
    server = shared_postgres()
    directory = str(server.directory)
    url = form.format(directory, server.port, quote(directory, safe=""))
    storage = Postgres.from_url(f"{url}{'&' if '?' in url else '?'}user=postgres&schema=by_socket")

    add(storage, "first")

    assert storage.get("first") is not None
    assert storage.health().url.startswith("postgresql://")
    storage.close()


def test_a_number_sign_may_stand_in_a_password() -> None:
    storage = Postgres.from_url("postgresql://ann:s#cret@db/shop?schema=jobs")

    assert storage.options.schema == "jobs"
    assert conninfo_to_dict(storage._db.address) == {
        "user": "ann",
        "password": "s#cret",
        "host": "db",
        "dbname": "shop",
    }


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:secret@[::1/shop",
        "postgresql://ann:secret%zz@db/shop",
        "postgresql://ann:secret\u2100@db/shop",
        "postgresql://ann:secret@db/shop?pgbouncer=perhaps",
    ],
)
def test_an_address_that_nobody_understands_is_refused(url: str) -> None:
    with pytest.raises(BadURL) as caught:
        open_storage(url)

    assert "secret" not in str(caught.value)


def test_an_option_that_the_driver_does_not_understand_is_told_as_one_of_the_address() -> None:
    with pytest.raises(BadURL, match="connect_timeout"):
        Postgres.from_url("postgresql://ann:secret@127.0.0.1:1/shop?connect_timeout=soon").tallies()


def test_a_misspelt_option_is_told_with_the_nearest() -> None:
    with pytest.raises(BadURL, match=r"there is no option 'shema'; did you mean 'schema'\?"):
        open_storage("postgresql://localhost/shop?shema=x3")
    with pytest.raises(BadURL, match=r"did you mean 'sslmode'\?"):
        open_storage("postgresql://localhost/shop?sslmod=require")


def test_who_cannot_connect_is_told_what_to_try() -> None:
    host = shared_postgres().url.partition("@")[2].partition("/")[0]
    hints = {
        f"{shared_postgres().url}_not": "createdb postgres_not",
        f"postgresql://nobody_such@{host}/postgres": "createuser nobody_such",
        "postgresql://ann:secret@127.0.0.1:1/shop": "pg_isready -h 127.0.0.1 -p 1",
        f"{shared_postgres().url}?sslmode=perhaps": "in the address",
        f"{shared_postgres().url}?sslmode=require": "?sslmode=prefer",
    }

    for url, hint in hints.items():
        with pytest.raises(StorageUnavailable, match="cannot be reached") as caught:
            Postgres.from_url(url).tallies()
        assert hint in (caught.value.hint or "")


def test_who_only_looks_makes_no_schema(observer: Observer) -> None:
    url = f"{shared_postgres().url}?schema=never_made"
    storage = Postgres.from_url(url)
    storage.require_existing()

    for look in (storage.queues, storage.now, storage.health):
        with pytest.raises(StorageNotFound, match="never_made"):
            look()

    storage.close()
    assert observer.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'never_made'").fetchall() == []


def test_who_only_looks_sees_what_is_there(storage: Postgres, url: str) -> None:
    storage.enqueue(new_jobs(1))
    looking = Postgres.from_url(url)
    looking.require_existing()

    assert looking.count(Filter()).number == 1
    looking.close()


@pytest.mark.parametrize("name", ["it's", "a?b", "a$1", 'a"b', "1st", "wörk", "x', 1)); DROP TABLE public.users --"])
def test_a_schema_whose_name_could_be_read_as_something_else_is_refused(name: str) -> None:
    with pytest.raises(BadURL, match="letters"):
        open_storage(f"postgresql://localhost/shop?schema={quote(name)}")


def test_a_password_is_never_shown() -> None:
    assert without_password("postgresql://ann:s@cret@db/shop?sslmode=require") == "postgresql://ann@db/shop"


def test_a_server_that_is_not_there_is_told_at_once() -> None:
    storage = Postgres.from_url("postgresql://ann:secret@127.0.0.1:1/shop?patience=3m")
    began_at = time.monotonic()

    with pytest.raises(StorageUnavailable) as caught:
        storage.tallies()

    assert time.monotonic() - began_at < 60, "it is not waited for"
    assert "secret" not in str(caught.value)


def test_two_schemas_do_not_know_each_other(storage: Postgres) -> None:
    other = Postgres.from_url(f"{shared_postgres().url}?schema=Another_1")
    add(storage, "here")

    assert other.get("here") is None
    other.close()


@pytest.mark.parametrize("text", ["nothing\0here", "\ud800"])
def test_text_that_the_server_cannot_take_is_refused(storage: Postgres, text: str) -> None:
    add(storage, "known")

    with pytest.raises(BadValue):
        storage.enqueue([new_job(args=text)])

    assert ids(find_all(storage)) == ["known"]


def test_time_is_the_servers(storage: Postgres, observer: Observer) -> None:
    ((now,),) = observer.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").fetchall()
    job = add(storage)

    assert isinstance(now, int)
    assert 0 <= job.created_at - now < 60 * SECOND
    assert 0 <= storage.now() - job.created_at < 60 * SECOND


def test_health_tells_of_a_transaction_that_stays_open(
    storage: Postgres, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.storage.postgres.storage._LONG_TRANSACTION", -1)
    observer.execute("BEGIN")

    health = storage.health()

    assert health.kind == "postgresql"
    assert health.version.startswith("1")
    assert health.size is not None
    assert health.size > 0
    assert any("a transaction has been open" in problem for problem in health.problems)
    observer.execute("ROLLBACK")


def test_what_was_counted_is_folded_and_stays_right(storage: Postgres, schema: str, observer: Observer) -> None:
    join(storage)
    for _ in range(FOLD_AFTER // 2):
        storage.enqueue([new_job()])
    while jobs := storage.reserve("ann", {"mail": 1}, 100):
        storage.finish([Completed(job.token) for job in jobs])

    ((unfolded,),) = observer.execute(f"SELECT count(*) FROM {schema}.packhorse_delta").fetchall()
    assert isinstance(unfolded, int)
    assert unfolded < FOLD_AFTER
    assert tallies(storage) == recount(storage)
    storage.roll_up()
    assert observer.execute(f"SELECT count(*) FROM {schema}.packhorse_delta").fetchall() == [(0,)]
    assert tallies(storage) == recount(storage)
    assert storage.totals()["completed"] == FOLD_AFTER // 2


@pytest.mark.parametrize("has_failed", [False, True], ids=["completed", "failed"])
def test_what_batches_of_many_tasks_have_counted_is_folded(
    storage: Postgres, schema: str, observer: Observer, has_failed: bool
) -> None:
    failure = Failure("ValueError", "broke")
    join(storage)
    for _ in range(4):
        storage.enqueue([new_job(task=f"task-{number}") for number in range(200)])
        jobs = storage.reserve("ann", {"mail": 1}, 200)
        storage.start([job.token for job in jobs])
        storage.finish([Failed(job.token, failure) if has_failed else Completed(job.token) for job in jobs])

    ((unfolded,),) = observer.execute(f"SELECT count(*) FROM {schema}.packhorse_delta").fetchall()
    assert isinstance(unfolded, int)
    assert unfolded < FOLD_AFTER
    assert tallies(storage) == recount(storage)


def test_who_finds_no_job_in_many_queues_folds_nothing(storage: Postgres) -> None:
    join(storage)
    queues = {f"queue-{number}": 1 for number in range(FOLD_AFTER)}

    storage.reserve("ann", queues, 10)

    assert "fold" not in [each.name for each in storage.health().operations]


def test_behind_pgbouncer_nothing_of_the_session_is_used(storage: Postgres, url: str, observer: Observer) -> None:
    pooled = Postgres.from_url(f"{url}&pgbouncer=1&connections=1")
    join(pooled)
    for _ in range(10):
        pooled.enqueue(new_jobs(2))
        jobs = pooled.reserve("ann", {"mail": 1}, 2)
        pooled.finish([Completed(job.token) for job in jobs])

    with pooled._db.lent() as connection:
        assert connection.rows("SELECT name FROM pg_prepared_statements") == []
        assert connection.rows("SELECT pg_listening_channels()") == []
    assert pooled.wait(0.1, ["mail"]) is False
    pooled.enqueue(new_jobs(1))
    assert pooled.wait(60, ["mail"]) is True
    pooled.close()


def test_a_schema_that_was_dropped_is_told(storage: Postgres, schema: str, observer: Observer) -> None:
    add(storage)
    observer.execute(f"DROP SCHEMA {schema} CASCADE")

    with pytest.raises(StorageError):
        storage.tallies()


def test_jobs_pass_through_a_real_pgbouncer_in_transaction_mode(storage: Postgres, url: str) -> None:
    bouncer = PgBouncer(shared_postgres())
    pooled = Postgres.from_url(f"{bouncer.url}?{url.partition('?')[2]}&pgbouncer=1")
    names = [f"w{number}" for number in range(6)]
    for name in names:
        join(pooled, name)

    def work(name: str) -> list[str]:
        done: list[str] = []
        outcomes: list[Completed] = []
        for _ in range(20):
            pooled.enqueue(new_jobs(5))
            pooled.enqueue([new_job(unique=unique(f"key-{name}"))])
            verdicts, jobs = pooled.finish_and_reserve(outcomes, name, {"mail": 1, "other": 1}, 10)
            assert set(verdicts) <= {Verdict.ACCEPTED}
            outcomes = [Completed(job.token) for job in jobs]
            done += [job.id for job in jobs]
        pooled.finish(outcomes)
        return done

    done = [job_id for each in at_once([lambda name=name: work(name) for name in names]) for job_id in each]

    assert len(done) == len(set(done)) >= 500
    assert tallies(pooled) == recount(pooled)
    pooled.close()
    bouncer.end()


def test_whoever_follows_events_misses_none_that_was_committed_late(
    storage: Postgres, schema: str, observer: Observer
) -> None:
    first = add(storage, "first")
    (added,) = history(storage, first.id)
    late = psycopg.connect(shared_postgres().url)
    put = f"INSERT INTO {schema}.packhorse_event (at, kind, subject, queue) VALUES (%s, 'paused', 'queue', 'mail')"
    late.execute(put, [storage.now()])
    add(storage, "second")

    seen_before = storage.events(EventFilter(after=added.id))
    late.commit()
    seen_after = storage.events(EventFilter(after=added.id))

    assert seen_before == []  # the second job's event comes after one that nobody can see yet
    assert [event.kind for event in seen_after] == [Kind.PAUSED, Kind.ADDED]
    late.close()


def test_an_old_event_does_not_wait_for_a_transaction_that_nobody_ends(storage: Postgres, schema: str) -> None:
    add(storage)
    forgotten = psycopg.connect(shared_postgres().url)
    put = f"INSERT INTO {schema}.packhorse_event (at, kind, subject, queue) VALUES (1, 'paused', 'queue', 'mail')"
    forgotten.execute(put)
    add(storage)
    with psycopg.connect(shared_postgres().url) as admin:
        admin.execute(f"UPDATE {schema}.packhorse_event SET at = at - 11000000")

    assert len(storage.events(EventFilter(after=0))) == 2
    forgotten.close()


@pytest.mark.parametrize("is_over", [True, False], ids=["with the end", "late"])
def test_a_start_is_as_new_as_its_telling(storage: Postgres, schema: str, *, is_over: bool) -> None:
    job = add(storage)
    join(storage)
    (taken,) = storage.reserve("ann", {"mail": 1}, 1)
    last = history(storage, job.id)[-1].id
    with psycopg.connect(shared_postgres().url) as own:
        storage.enqueue_within(own, [new_job("late")])
        with psycopg.connect(shared_postgres().url) as admin:
            admin.execute(f"UPDATE {schema}.packhorse_job SET queued_at = queued_at - 60000000")
        if is_over:
            storage.finish([Completed(taken.token, ran=30 * SECOND)])
        else:
            storage.start([taken.token], [30 * SECOND])

        assert storage.events(EventFilter(after=last)) == []
        own.commit()

    kinds = [event.kind for event in storage.events(EventFilter(after=last))]
    assert kinds == [Kind.ADDED, Kind.STARTED, *([Kind.COMPLETED] if is_over else [])]


def test_whoever_follows_events_is_shown_none_behind_one_that_is_not_shown_yet(storage: Postgres, schema: str) -> None:
    add(storage, "first")
    (added,) = history(storage, "first")
    with psycopg.connect(shared_postgres().url) as own:
        storage.enqueue_within(own, [new_job("late")])
        add(storage, "second")
        add(storage, "third")
        with psycopg.connect(shared_postgres().url) as admin:  # as if written by a clock that runs behind
            admin.execute(f"UPDATE {schema}.packhorse_event SET at = at - 11000000 WHERE job_id = 'third'")

        assert storage.events(EventFilter(after=added.id)) == []
        own.commit()

    assert [event.job_id for event in storage.events(EventFilter(after=added.id))] == ["late", "second", "third"]


def test_an_order_is_heard_beside_a_transaction_that_stays_open(storage: Postgres) -> None:
    foreman = ForemanRecord(storage, {})
    foreman.join()
    orders = Orders(storage, foreman, wake=lambda: None)
    orders.step()
    with psycopg.connect(shared_postgres().url) as own:
        own.execute("SELECT pg_current_xact_id()")  # others can see that it writes something
        storage.order(foreman.id, ForemanOrder(ForemanAction.QUIET))
        orders.step()
        orders.step()

        assert list(orders.take()) == [ForemanOrder(ForemanAction.QUIET)]


def test_what_the_address_says_about_the_connection_is_kept(storage: Postgres) -> None:
    add(storage)
    own = Postgres.from_url(
        f"{shared_postgres().url}?schema={storage.options.schema}&application_name=shop&options=-c%20work_mem%3D5MB"
    )

    with own._db.lent() as connection:
        ((name, memory, scans),) = connection.rows(
            "SELECT current_setting('application_name'), current_setting('work_mem'), current_setting('enable_seqscan')"
        )

    assert (name, memory, scans) == ("shop", "5MB", "off")
    own.close()


def test_sessions_do_not_wait_for_ever(storage: Postgres) -> None:
    with storage._db.lent() as connection:
        limits = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
        assert [connection.rows("SELECT current_setting($1)", (name,)) for name in limits] == [
            [("30s",)],
            [("5s",)],
            [("1min",)],
        ]


REPEATABLE_READ = "options=-c%20default_transaction_isolation%3Drepeatable%5C%20read"


@pytest.mark.parametrize("extra", ["", "&pgbouncer=1"])
def test_whoever_waited_for_a_lock_sees_what_its_holder_wrote_whatever_the_servers_default_is(
    url: str, observer: Observer, extra: str
) -> None:
    storage = Postgres.from_url(f"{url}&{REPEATABLE_READ}{extra}")
    storage.enqueue([new_job()])
    mark = Move("copy", Stage.CLOSING, "redis://elsewhere", 1)
    observer.execute("BEGIN")
    observer.execute(storage._sql["stop_writing"])
    observer.execute(f"LOCK TABLE {storage.options.schema}.packhorse_job IN SHARE ROW EXCLUSIVE MODE")
    put = f"INSERT INTO {storage.options.schema}.packhorse_meta (key, value) VALUES ('move', %s)"
    observer.execute(put, [encode(mark)])

    with ThreadPoolExecutor() as threads:
        calls = [threads.submit(storage.enqueue, [new]) for new in (new_job(), new_job(unique=unique()))]
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
        until(lambda: observer.execute(waiting).rowcount == len(calls), "both wait")
        observer.execute("COMMIT")

    assert [type(call.exception()) for call in calls] == [StorageClosed, StorageClosed]
    assert len(find_all(storage)) == 1
    storage.close()


def test_behind_pgbouncer_every_statement_brings_its_settings_and_leaves_none(url: str) -> None:
    pooled = Postgres.from_url(f"{url}&pgbouncer=1&{REPEATABLE_READ}")
    names = ("statement_timeout", "lock_timeout", "transaction_isolation")
    asked = "SELECT " + ", ".join(f"current_setting('{name}')" for name in names)

    with pooled._db.lent() as connection:
        with connection.pipeline() as pipeline:
            piped = pipeline.execute(asked)
        assert connection.rows(asked) == piped.fetchall() == [("30s", "5s", "read committed")]
        assert connection.driver.execute(asked).fetchall() == [("0", "0", "repeatable read")]
    assert pooled._db.write("test", lambda tx: tx.execute(asked).fetchall()) == [("30s", "5s", "read committed")]
    pooled.migrate()
    pooled.close()


def test_behind_pgbouncer_a_statement_does_not_wait_for_ever_either(
    url: str, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = ("BEGIN", "SELECT set_config('lock_timeout', '50ms', true)")
    monkeypatch.setattr("packhorse.storage.postgres.database._POOLED", quick)
    monkeypatch.setattr("packhorse.storage.postgres.database.TRIES", 2)
    pooled = Postgres.from_url(f"{url}&pgbouncer=1")
    pooled.enqueue([new_job()])
    observer.execute("BEGIN")
    observer.execute(f"LOCK TABLE {pooled.options.schema}.packhorse_job")

    with pytest.raises(StorageUnavailable, match="held up"):
        pooled.enqueue([new_job()])
    observer.execute("ROLLBACK")

    assert pooled.enqueue([new_job()])[0].placement is Placement.ADDED
    pooled.close()


def test_of_very_many_queues_each_has_its_turn(storage: Postgres) -> None:
    names = [f"queue-{number:03}" for number in range(250)]
    join(storage)
    storage.enqueue([new_job(f"{name}-{n}", queue=name) for name in names for n in range(2)])
    storage.enqueue([new_job("urgent", queue=names[-1], priority=10)])
    weights = dict.fromkeys(names, 1)

    first = storage.reserve("ann", weights, 50)
    served = [job.queue for job in first[1:]]
    while jobs := storage.reserve("ann", weights, 50):
        served += [job.queue for job in jobs]

    assert first[0].id == "urgent"
    assert len(set(served[:250])) > 150, "turns go round"
    assert sorted(served) == sorted([*names, *names])


# --- many at once -----------------------------------------------------------------------------------------------------


def test_jobs_that_differ_in_ids_and_arguments_only_are_stored_as_they_are(storage: Postgres) -> None:
    storage.enqueue([new_job("first")])  # now the names are known, and the short way is taken
    alike = [new_job(f"job-{n}", args=f'{{"n":{n}}}', priority=3, delay=HOUR, meta='{"a":1}') for n in range(5)]

    assert [answer.placement for answer in storage.enqueue(alike)] == [Placement.ADDED] * 5
    assert [answer.placement for answer in storage.enqueue([*alike, new_job("job-5")])] == [Placement.KEPT] * 5 + [
        Placement.ADDED
    ]

    jobs = storage.get_many([new.id for new in alike])
    assert [(job.args, job.priority, job.rank, job.meta, job.state) for job in jobs] == [
        (new.args, 3, 10, '{"a":1}', SCHEDULED) for new in alike
    ]
    assert [job.seq for job in jobs] == sorted(job.seq for job in jobs)
    (added,) = history(storage, "job-3")
    assert added.data == {"due_at": jobs[3].due_at}
    assert tallies(storage) == recount(storage)


def test_arguments_may_be_written_in_several_lines(storage: Postgres) -> None:
    storage.enqueue([new_job("first")])
    lines = ['{\n"n": 1}', "{}", '{"n": 3}']

    storage.enqueue([new_job(f"job-{n}", args=text) for n, text in enumerate(lines)])

    assert [job.args for job in storage.get_many(["job-0", "job-1", "job-2"])] == lines


@pytest.fixture
def odd_role(observer: Observer) -> Iterator[str]:
    """Its sessions begin otherwise than others."""
    role = f"odd_{os.getpid()}"
    observer.execute(f"CREATE ROLE {role} LOGIN SUPERUSER".encode())
    odd = {
        "client_encoding": "'LATIN1'",
        "standard_conforming_strings": "off",
        "array_nulls": "off",
        "search_path": "''",
    }
    for name, value in odd.items():
        observer.execute(f"ALTER ROLE {role} SET {name} = {value}".encode())
    yield role
    observer.execute(f"DROP ROLE {role}".encode())


@pytest.mark.parametrize("way", ["", "&pgbouncer=1"])
def test_what_a_role_has_set_for_its_sessions_does_not_matter(
    storage: Postgres, url: str, odd_role: str, way: str
) -> None:
    add(storage)  # makes the tables, which would else be the role's own
    with contextlib.closing(Postgres.from_url(url.replace("postgres@", f"{odd_role}@") + way)) as odd:
        job = add(odd, "č-🐎", args='{"to":"č 🐎"}')

        assert ids(find_all(odd, Filter(text="č 🐎"))) == [job.id]
        assert [found.id for found in odd.find_by_id("č").jobs] == [job.id]
        assert [taken.args for taken in odd.reserve(join(odd), {"mail": 1}, 2)] == ["{}", job.args]
        odd.pause("mail")
        assert [event.job_id for event in odd.events(EventFilter(kind=Kind.PAUSED))] == [None]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_in_another_encoding_is_read_like_any(encoding: str) -> None:
    url = new_database_url(f"ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    with contextlib.closing(Postgres.from_url(url)) as storage:
        add(storage, "somebody's")
        batch = [new_job(new_id()) for _ in range(3)]
        storage.enqueue(batch)

        assert kinds(storage, "somebody's") == kinds(storage, batch[1].id) == [Kind.ADDED]
        assert [job.id for job in storage.find_by_id("some").jobs] == ["somebody's"]
        assert [job.id for job in storage.find_by_id(batch[1].id[-12:]).jobs] == [batch[1].id]
