"""Health, values that MySQL cannot take, the server's clock, and events for who follows them."""

from __future__ import annotations

import contextlib
import json
import string
import time
from collections.abc import Iterator, Sequence

import pytest
from pymysql.constants import COMMAND

from packhorse.conformance.builders import (
    FAILURE,
    add,
    find_all,
    finish,
    history,
    ids,
    join,
    new_job,
    new_jobs,
    recount,
    run,
    tallies,
)
from packhorse.core.clock import SECOND
from packhorse.core.errors import BadURL, BadValue, StorageError, StorageNotFound, StorageUnavailable
from packhorse.core.event import Kind
from packhorse.core.job import DEAD, RETRYING
from packhorse.core.outcome import Completed, Failed, Verdict
from packhorse.storage.mysql import MySQL
from packhorse.storage.mysql.connection import MySQLConnection, Result
from packhorse.storage.queries import Place
from packhorse.storage.records import ClientInfo, EventFilter, Filter, LogLine
from packhorse.storage.sql import lists
from packhorse.storage.sql.lists import Index
from packhorse.storage.sql.server import FOLD_AFTER
from tests.mysql_server import KIND, new_database_url, shared_mysql
from tests.storage.mysql.conftest import Observer

pytestmark = pytest.mark.usefixtures("exact_lines")

_PUT = "INSERT INTO packhorse_event (at, kind, subject, queue) VALUES (%s, 'paused', 'queue', 'mail')"


def test_who_only_looks_makes_no_tables(observer: Observer) -> None:
    observer.connection.cursor().execute("CREATE DATABASE never_filled")
    storage = MySQL.from_url(shared_mysql().url_of("never_filled"))
    storage.require_existing()

    for look in (storage.queues, storage.now, storage.health):
        with pytest.raises(StorageNotFound, match="never_filled has no Packhorse jobs in it"):
            look()

    storage.close()
    cursor = observer.connection.cursor()
    assert cursor.execute("SHOW TABLES IN never_filled") == 0
    cursor.execute("DROP DATABASE never_filled")


def test_a_misspelt_option_is_told_with_the_nearest() -> None:
    with pytest.raises(BadURL, match=r"there is no option 'patiance'; did you mean 'patience'\?"):
        MySQL.from_url("mysql://localhost/shop?patiance=3s")


def test_a_server_that_is_not_there_is_told_at_once() -> None:
    storage = MySQL.from_url("mysql://ann:secret@127.0.0.1:1/shop?patience=3m")
    began_at = time.monotonic()

    with pytest.raises(StorageUnavailable) as caught:
        storage.tallies()

    assert time.monotonic() - began_at < 60, "it is not waited for"
    assert "secret" not in str(caught.value)


def test_a_database_that_is_not_there_is_told() -> None:
    storage = MySQL.from_url(shared_mysql().url_of("nowhere"))

    with pytest.raises(StorageUnavailable, match="CREATE DATABASE"):
        storage.tallies()


def test_two_databases_do_not_know_each_other(storage: MySQL) -> None:
    other = MySQL.from_url(new_database_url())
    add(storage, "here")

    assert other.get("here") is None
    other.close()


def test_names_that_look_alike_are_different(storage: MySQL) -> None:
    names = ["Mail", "mail", "mäil", "mail ", " mail", "MAIL", "\uff4dail"]
    storage.enqueue([new_job(f"id-{name}", queue=name) for name in names])
    join(storage)

    assert {queue.name for queue in storage.queues()} == set(names)
    assert [ids(storage.reserve("ann", {name: 1}, 10)) for name in names] == [[f"id-{name}"] for name in names]
    assert storage.get("ID-mail") is None
    assert storage.get("id-mail  ") is None


def test_letters_are_searched_for_whatever_their_case_and_others_as_they_are(storage: MySQL) -> None:
    every = "".join(chr(code) for code in range(32, 0x250)) + "\u212a İıſ ßẞ 🐎"
    add(storage, "upper", args=json.dumps(every, ensure_ascii=False))

    for letter in [*string.ascii_letters, "%", "_", "\\", "'", '"', "č", "Ä", "ä", "🐎"]:
        assert ids(find_all(storage, Filter(text=letter))) == ["upper"], letter
    add(storage, "accented", args='"ČÄ"')
    assert ids(find_all(storage, Filter(text="čä"))) == []
    assert ids(find_all(storage, Filter(text="ČÄ"))) == ["accented"]


def test_text_that_the_server_cannot_take_is_refused(storage: MySQL) -> None:
    add(storage, "known")

    for call in (lambda: storage.get("\ud800"), lambda: storage.enqueue([new_job(args="\udc80")])):
        with pytest.raises(BadValue):
            call()
    with pytest.raises(BadValue):
        storage.enqueue([new_job("x" * 300)])

    assert ids(find_all(storage)) == ["known"]


def test_any_other_text_comes_back_as_it_was(storage: MySQL) -> None:
    line = "".join(chr(code) for code in range(1, 0x80)) + "'\\''%s%%$1?č🐎\u2028"
    text = f" \t\r\n{json.dumps(line, ensure_ascii=False)}\n"
    job = add(storage, args=text, meta=text)

    assert (job.args, job.meta) == (text, text)
    (taken,) = storage.reserve(join(storage), {"mail": 1}, 1)
    assert taken.args == text
    storage.append_log(taken.token, [LogLine(line)])
    assert [written.message for written in storage.log_lines(job.id)] == [line]


def test_arguments_longer_than_a_packet_are_refused_and_many_long_ones_are_not(storage: MySQL) -> None:
    storage.enqueue([new_job(args=f'"{"x" * 900_000}"') for _ in range(20)])
    with pytest.raises((BadValue, StorageUnavailable), match="too long"):
        storage.enqueue([new_job(args=f'"{"x" * 20_000_000}"')])

    assert len(find_all(storage)) == 20


def test_time_is_the_servers_whatever_its_zone(storage: MySQL, observer: Observer) -> None:
    ((now,),) = observer.execute("SELECT unix_timestamp(sysdate(6)) * 1000000")
    with storage._db.lent() as connection:
        connection.script(["SET time_zone = '+05:00'"])
    job = add(storage)

    assert abs(job.created_at - int(now)) < 60 * SECOND
    assert abs(storage.now() - job.created_at) < 60 * SECOND


def test_sessions_are_set_as_the_storage_needs_them(storage: MySQL) -> None:
    with storage._db.lent() as connection:
        ((mode, wait, names),) = connection.rows(
            "SELECT @@sql_mode, @@innodb_lock_wait_timeout, @@character_set_client"
        )
        # The one word is MariaDB's, the other one MySQL's.
        ((_, isolation), *_) = connection.rows(
            "SHOW VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation')"
        )

    assert "STRICT_ALL_TABLES" in mode
    assert (wait, isolation, names) == (5, "READ-COMMITTED", "utf8mb4")


def test_defaults_of_a_server_that_would_undo_what_we_do_are_overruled(url: str, observer: Observer) -> None:
    odd = {"completion_type": "CHAIN", "unique_checks": "OFF", "sql_safe_updates": "ON", "sql_select_limit": "1"}
    for name, value in odd.items():
        observer.execute(f"SET GLOBAL {name} = {value}")
    try:
        with contextlib.closing(MySQL.from_url(url)) as storage, storage._db.lent() as connection:
            ((*found,),) = connection.rows(f"SELECT {', '.join(f'@@{name}' for name in odd)}")
    finally:
        for name in odd:
            observer.execute(f"SET GLOBAL {name} = DEFAULT")

    assert found[:3] == ["NO_CHAIN", 1, 0]
    assert found[3] > 1_000_000


@pytest.fixture
def small_packets(observer: Observer) -> Iterator[None]:
    """The server takes no more than a megabyte at once."""
    ((usual,),) = observer.execute("SELECT @@GLOBAL.max_allowed_packet")
    observer.execute("SET GLOBAL max_allowed_packet = 1048576")
    yield
    observer.execute(f"SET GLOBAL max_allowed_packet = {usual}")


@pytest.mark.parametrize("sign", ["x", '\\"', "ж", "🐎"])
def test_many_jobs_fit_into_small_packets(storage: MySQL, url: str, small_packets: None, sign: str) -> None:
    storage.close()
    text = f'"{sign * 1_000}"'
    jobs = [new_job(args=text, **options) for options in ({}, {"meta": "{}"}) for _ in range(500)]

    storage.enqueue(jobs[:500])
    storage.enqueue(jobs[500:])
    with shared_mysql().connect(database=storage.address.database) as connection:
        storage.enqueue_within(connection, guests := [new_job(args=text) for _ in range(500)])
        connection.commit()
    taken = storage.reserve(join(storage), {"mail": 1}, 1_000)
    storage.finish([Completed(job.token, job.args) for job in taken])

    assert storage.count(Filter()).number == len(jobs) + len(guests)
    assert {job.result for job in storage.get_many(ids(taken))} == {text}


def test_what_is_longer_than_a_packet_is_not_taken_for_an_outage(storage: MySQL, small_packets: None) -> None:
    """Who takes it for one sends it again and again."""
    add(storage, "known")
    storage.close()
    (held,) = storage.reserve(join(storage), {"mail": 1}, 1)

    for size in (1_048_576, 30_000_000):
        with pytest.raises(BadValue, match=r"too long .* max_allowed_packet"):
            storage.finish([Completed(held.token, f'"{"x" * size}"')])

    assert storage.finish([Completed(held.token)]) == [Verdict.ACCEPTED]


def test_health_tells_what_an_operator_should_know(storage: MySQL, monkeypatch: pytest.MonkeyPatch) -> None:
    add(storage)
    monkeypatch.setattr("packhorse.storage.mysql.storage._LONG_HISTORY", -1)

    health = storage.health()

    assert (health.kind, health.facts["isolation"]) == (KIND, "READ COMMITTED")
    assert health.version[0].isdigit()
    assert (health.size or 0) > 0
    assert health.latency > 0
    assert health.connections_open == 1
    assert any("old versions of rows" in problem for problem in health.problems)


def test_what_was_counted_is_folded_and_stays_right(storage: MySQL, observer: Observer) -> None:
    join(storage)
    for _ in range(FOLD_AFTER // 2 + 50):
        storage.enqueue([new_job()])
    while jobs := storage.reserve("ann", {"mail": 1}, 100):
        storage.finish([Completed(job.token) for job in jobs])

    ((unfolded,),) = observer.execute("SELECT count(*) FROM packhorse_delta")
    assert unfolded < FOLD_AFTER
    assert tallies(storage) == recount(storage)
    storage.roll_up()
    assert observer.execute("SELECT count(*) FROM packhorse_delta") == ((0,),)
    assert tallies(storage) == recount(storage)
    assert storage.totals()["completed"] == FOLD_AFTER // 2 + 50


def test_a_database_that_was_dropped_is_told() -> None:
    storage = MySQL.from_url(new_database_url())
    add(storage)
    with shared_mysql().connect() as admin:
        admin.cursor().execute(f"DROP DATABASE {storage.address.database}")

    with pytest.raises(StorageError):
        storage.tallies()
    storage.close()


def test_whoever_follows_events_misses_none_that_was_committed_late(storage: MySQL, database: str) -> None:
    first = add(storage, "first")
    (added,) = history(storage, first.id)
    late = Observer(shared_mysql(), database=database)
    late.execute(_PUT, (storage.now(),))
    add(storage, "second")

    seen_before = storage.events(EventFilter(after=added.id))
    late.connection.commit()
    seen_after = storage.events(EventFilter(after=added.id))

    assert seen_before == []  # the second job's event comes after one that nobody can see yet
    assert [event.kind for event in seen_after] == [Kind.PAUSED, Kind.ADDED]
    late.connection.close()


def test_an_old_event_does_not_wait_for_a_transaction_that_nobody_ends(
    storage: MySQL, database: str, observer: Observer
) -> None:
    add(storage)
    forgotten = Observer(shared_mysql(), database=database)
    forgotten.execute(_PUT, (1,))
    add(storage)
    for event in storage.events(EventFilter()):
        observer.execute("UPDATE packhorse_event SET at = at - 11000000 WHERE id = %s", (event.id,))

    assert len(storage.events(EventFilter(after=0))) == 2
    forgotten.connection.close()


@pytest.mark.parametrize("is_over", [True, False], ids=["with the end", "late"])
def test_a_start_is_as_new_as_its_telling(storage: MySQL, database: str, observer: Observer, *, is_over: bool) -> None:
    job = add(storage)
    join(storage)
    observer.execute("UPDATE packhorse_job SET queued_at = queued_at - 60000000")
    (taken,) = storage.reserve("ann", {"mail": 1}, 1)
    last = history(storage, job.id)[-1].id
    open_still = Observer(shared_mysql(), database=database)
    open_still.execute(_PUT, (storage.now(),))

    if is_over:
        storage.finish([Completed(taken.token, ran=30 * SECOND)])
    else:
        storage.start([taken.token], [30 * SECOND])
    seen_before = storage.events(EventFilter(after=last))
    open_still.connection.commit()
    kinds = [event.kind for event in storage.events(EventFilter(after=last))]

    assert seen_before == []  # whoever saw the start would never come back for what was put in before it
    assert kinds == [Kind.PAUSED, Kind.STARTED, *([Kind.COMPLETED] if is_over else [])]
    open_still.connection.close()


def test_of_very_many_queues_each_has_its_turn(storage: MySQL) -> None:
    names = [f"queue-{number:03}" for number in range(120)]
    join(storage)
    storage.enqueue([new_job(f"{name}-{n}", queue=name) for name in names for n in range(2)])
    storage.enqueue([new_job("urgent", queue=names[-1], priority=10)])
    weights = dict.fromkeys(names, 1)

    first = storage.reserve("ann", weights, 30)
    served = [job.queue for job in first[1:]]
    while jobs := storage.reserve("ann", weights, 30):
        served += [job.queue for job in jobs]

    assert first[0].id == "urgent"
    assert len(set(served[:120])) > 90, "turns go round"
    assert sorted(served) == sorted([*names, *names])


def test_a_pause_that_another_process_made_is_seen(storage: MySQL, url: str) -> None:
    other = MySQL.from_url(url)
    join(storage)
    storage.enqueue(new_jobs(5))
    assert len(storage.reserve("ann", {"mail": 1}, 1)) == 1
    other.pause("mail")
    assert storage.reserve("ann", {"mail": 1}, 1) == []
    other.force_start([find_all(other)[0].id])
    assert len(storage.reserve("ann", {"mail": 1}, 5)) == 1
    other.resume("mail")
    assert len(storage.reserve("ann", {"mail": 1}, 5)) == 3
    other.close()


def test_a_job_that_another_process_has_taken_back_is_not_completed_from_memory(storage: MySQL, url: str) -> None:
    other = MySQL.from_url(url)
    join(storage)
    storage.enqueue(new_jobs(3))
    jobs = storage.reserve("ann", {"mail": 1}, 3)
    other.release([jobs[1].token], "handed back")

    verdicts = storage.finish([Completed(job.token) for job in jobs])

    assert [verdict.value for verdict in verdicts] == ["accepted", "stale", "accepted"]
    assert tallies(storage) == recount(storage)
    other.close()


def test_an_interrupt_while_events_are_followed_comes_through(storage: MySQL, monkeypatch: pytest.MonkeyPatch) -> None:
    add(storage)
    script = MySQLConnection.script

    def interrupted(connection: MySQLConnection, statements: Sequence[str]) -> list[Result]:
        if any("LOCK IN SHARE MODE" in statement for statement in statements):
            connection.driver._execute_command(COMMAND.COM_QUERY, statements[0].encode())
            connection.driver._read_packet()  # of several: the others are on their way
            raise KeyboardInterrupt
        return script(connection, statements)

    with monkeypatch.context() as in_the_middle:
        in_the_middle.setattr(MySQLConnection, "script", interrupted)
        with pytest.raises(KeyboardInterrupt):
            storage.events(EventFilter(after=0))

    assert [event.kind for event in storage.events(EventFilter(after=0))] == [Kind.ADDED]


def test_a_cause_with_many_jobs_is_listed_as_one_with_few(storage: MySQL, monkeypatch: pytest.MonkeyPatch) -> None:
    join(storage)
    for retry_in in (None, 9 * SECOND, None, 5 * SECOND):
        finish(storage, Failed(run(storage, add(storage)).token, FAILURE, retry_in=retry_in))
    wheres = [Filter(frozenset({state}), cause=FAILURE.cause("send")) for state in (DEAD, RETRYING)]
    few = [find_all(storage, where, limit=1) for where in wheres]

    monkeypatch.setattr(lists, "_FEW_JOBS", 1)

    assert [find_all(storage, where, limit=1) for where in wheres] == few
    assert [len(jobs) for jobs in few] == [2, 2]


def test_a_page_is_full_although_one_of_its_jobs_goes_while_it_is_read(
    storage: MySQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [add(storage, queue="mail") for _ in range(5)]
    ask = Index._ask

    def ask_and_delete(self: Index, columns: str, where: Filter, places: list[Place]) -> list[object]:
        found = ask(self, columns, where, places)
        if columns == "seq":
            storage.delete([jobs[-1].id])
        return found

    monkeypatch.setattr(Index, "_ask", ask_and_delete)
    page = storage.find(Filter(queue="mail"), limit=2)

    assert ids(page.jobs) == [jobs[3].id, jobs[2].id]
    assert ids(storage.find(Filter(queue="mail"), cursor=page.next, limit=2).jobs) == [jobs[1].id, jobs[0].id]


def test_a_transaction_that_began_before_a_client_joined_enqueues_for_it(storage: MySQL, database: str) -> None:
    """The default of the server is that a transaction sees what was there at its first read."""
    add(storage)
    with contextlib.closing(shared_mysql().connect(database=database)) as caller:
        with caller.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT count(*) FROM packhorse_job")
        storage.join_client(ClientInfo("shop"))
        storage.enqueue_within(caller, [new_job("a", subscriber="shop")])
        caller.commit()

    assert storage.subscribers("a") == ["shop"]
