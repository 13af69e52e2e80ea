"""The notifier: one enqueue wakes one waiter, of those that serve the queue; polling heals what it misses."""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from packhorse.conformance.builders import add, join, new_job
from packhorse.core.clock import SECOND
from packhorse.core.job import NewJob
from packhorse.storage.postgres import Postgres, notifier
from packhorse.storage.sql.rows import to_json
from tests.children import PATIENCE, until

Observer = psycopg.Connection[tuple[object, ...]]


class Waiter:
    """A process that found nothing in its queues and went to sleep."""

    def __init__(self, url: str, name: str, *queues: str) -> None:
        self.storage = Postgres.from_url(url)
        join(self.storage, name)
        assert self.storage.reserve(name, dict.fromkeys(queues, 1), 10) == []
        self.woken: list[bool] = []
        self._thread = threading.Thread(target=self._sleep, args=(queues,), daemon=True)
        self._thread.start()

    def _sleep(self, queues: tuple[str, ...]) -> None:
        self.woken.append(self.storage.wait(PATIENCE, queues))

    @property
    def is_asleep(self) -> bool:
        return not self.woken

    def end(self) -> None:
        while self._thread.is_alive():
            self.storage.interrupt()
            self._thread.join(0.01)
        self.storage.close()


@contextlib.contextmanager
def asleep(url: str, observer: Observer, *queues: tuple[str, ...]) -> Iterator[list[Waiter]]:
    schema = url.rpartition("=")[2]
    waiters = [Waiter(url, f"w{number}", *served) for number, served in enumerate(queues)]
    until(lambda: number_asleep(observer, schema) == len(waiters), "all wait")
    try:
        yield waiters
    finally:
        for waiter in waiters:
            waiter.end()


def number_asleep(observer: Observer, schema: str) -> int:
    ((number,),) = observer.execute(f"SELECT count(*) FROM {schema}.packhorse_sleeper").fetchall()
    assert isinstance(number, int)
    return number


def test_one_enqueueing_wakes_one_waiter(storage: Postgres, url: str, observer: Observer) -> None:
    add(storage, queue="other")
    with asleep(url, observer, ("mail",), ("mail",), ("mail",)) as waiters:
        storage.enqueue([new_job()])
        until(lambda: any(waiter.woken for waiter in waiters), "one wakes")
        time.sleep(0.1)  # nobody else shall, so there is nothing to wait for

        assert sum(waiter.is_asleep for waiter in waiters) == 2
        assert number_asleep(observer, storage.options.schema) == 2


def test_only_a_waiter_that_serves_the_queue_is_woken(storage: Postgres, url: str, observer: Observer) -> None:
    with asleep(url, observer, ("print",), ("print", "mail"), ("print",)) as waiters:
        storage.enqueue([new_job(queue="mail")])
        until(lambda: waiters[1].woken, "the one that serves it wakes")

        assert [waiter.is_asleep for waiter in waiters] == [True, False, True]


def test_whoever_gets_all_that_was_asked_for_wakes_the_next(storage: Postgres, url: str, observer: Observer) -> None:
    join(storage)
    with asleep(url, observer, ("mail",), ("mail",)) as waiters:
        storage.enqueue([new_job() for _ in range(10)])
        until(lambda: any(waiter.woken for waiter in waiters), "one wakes")
        assert len(storage.reserve("ann", {"mail": 1}, 3)) == 3
        until(lambda: all(waiter.woken for waiter in waiters), "the other wakes")


def test_nobody_is_notified_when_nobody_sleeps(storage: Postgres, url: str, observer: Observer) -> None:
    observer.execute("LISTEN packhorse_spy")
    add(storage)

    ((queued,),) = observer.execute("SELECT pg_notification_queue_usage()").fetchall()

    assert queued == 0
    assert number_asleep(observer, storage.options.schema) == 0


def test_work_that_came_in_before_one_waits_is_seen(storage: Postgres) -> None:
    join(storage)
    assert storage.reserve("ann", {"mail": 1}, 10) == []
    storage.enqueue([new_job()])

    assert storage.wait(PATIENCE, ["mail"]) is True


def test_a_paused_queue_keeps_nobody_awake(storage: Postgres) -> None:
    join(storage)
    storage.pause("mail")
    storage.enqueue([new_job()])
    assert storage.reserve("ann", {"mail": 1}, 10) == []

    assert storage.wait(0.05, ["mail"]) is False


def test_a_job_that_is_due_soon_wakes_a_waiter_so_that_it_asks_again(
    storage: Postgres, url: str, observer: Observer
) -> None:
    with asleep(url, observer, ("mail",)) as (waiter,):
        storage.enqueue([NewJob("far", "send", "mail", delay=3_600_000_000)])
        storage.enqueue([NewJob("soon", "send", "mail", delay=500_000)])
        until(lambda: waiter.woken, "it wakes")


def test_a_connection_that_listens_is_replaced_when_the_server_cuts_it(
    storage: Postgres, url: str, observer: Observer
) -> None:
    with asleep(url, observer, ("mail",)) as (waiter,):
        storage.enqueue([new_job()])
        until(lambda: waiter.woken, "it wakes")
        listener = waiter.storage._notifier._listener
        assert listener is not None
        observer.execute("SELECT pg_terminate_backend(%s)", [listener.driver.info.backend_pid])
        until(lambda: _has_hung_up(listener.driver), "it is cut")
        waiter.storage.reserve("w0", {"mail": 1}, 10)

        assert waiter.storage.wait(0.1, ["mail"]) is False


def test_a_connection_on_which_something_was_said_is_not_taken_for_a_broken_one(
    storage: Postgres, url: str, observer: Observer
) -> None:
    with asleep(url, observer, ("mail",)) as (waiter,):
        storage.enqueue([new_job()])
        until(lambda: waiter.woken, "it wakes")
        own = waiter.storage._notifier
        (listener, (standing,)) = (own._listener, own._idle)
        assert listener is not None
        observer.execute("SELECT pg_notify(%s, '')", [standing.channel])
        until(lambda: _has_something_to_read(listener.driver), "it has come in")

        assert listener.is_open()
        waiter.storage.reserve("w0", {"mail": 1}, 10)
        waiter.storage.wait(0.05, ["mail"])
        assert own._listener is listener


def _has_something_to_read(connection: notifier.Pg) -> bool:
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _has_hung_up(connection: notifier.Pg) -> bool:
    """Has the server closed its end? It has left the list of those that are connected a moment before."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


def test_a_row_that_stands_is_not_written_again_and_still_wakes(
    storage: Postgres, url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "_ROW_AFTER_WAIT", 60.0)
    waiter = Postgres.from_url(url)
    join(waiter)
    for _ in range(notifier._TIMEOUTS + 2):
        waiter.reserve("ann", {"mail": 1}, 1)
        assert waiter.wait(0.03, ["mail"]) is False
    written = asleep_since(storage, schema)
    for _ in range(5):
        waiter.reserve("ann", {"mail": 1}, 1)
        assert waiter.wait(0.03, ["mail"]) is False
    assert asleep_since(storage, schema) == written != []

    add(storage)  # between two sleeps

    assert waiter.wait(PATIENCE, ["mail"]) is True
    assert asleep_since(storage, schema) == []
    waiter.close()


def test_a_worker_that_finds_work_without_a_notification_removes_its_row(
    storage: Postgres, url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notification for a busy worker would wake no other."""
    monkeypatch.setattr(notifier, "_ROW_AFTER_WAIT", 60.0)
    waiter = Postgres.from_url(url)
    join(waiter)
    for _ in range(notifier._TIMEOUTS + 1):
        waiter.reserve("ann", {"mail": 1}, 1)
        assert waiter.wait(0.03, ["mail"]) is False
    assert len(asleep_since(storage, schema)) == 1
    with storage._db.lent() as connection:  # as if the notification was lost
        connection.rows(storage._sql["enqueue"], (to_json([new_job()]), None, False))

    assert len(waiter.reserve("ann", {"mail": 1}, 1)) == 1
    assert asleep_since(storage, schema) == []
    waiter.close()


def asleep_since(storage: Postgres, schema: str) -> list[tuple[str]]:
    """The versions of the rows of those who sleep."""
    with storage._db.lent() as connection:
        return connection.rows(f"SELECT xmin::text FROM {schema}.packhorse_sleeper ORDER BY 1")


def test_a_nap_is_woken_too_and_the_sleep_after_it_costs_no_write(
    storage: Postgres, url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "_ROW_AFTER_SHORT_WAIT", 60.0)
    waiter = Postgres.from_url(url)
    join(waiter)
    waiter.reserve("ann", {"mail": 1}, 1)
    assert waiter.wait(0.01, ["mail"]) is False
    written = asleep_since(storage, schema)
    assert waiter.wait(0.02, ["mail"]) is False
    assert asleep_since(storage, schema) == written != []

    add(storage)

    until(lambda: waiter.wait(0.01, ["mail"]), "it is woken, be it in its next short wait")
    assert asleep_since(storage, schema) == []
    waiter.close()


def test_a_worker_that_sleeps_on_without_a_notification_looks_every_other_time(
    storage: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lasts in ("_ROW_AFTER_WAIT", "_ROW_AFTER_SHORT_WAIT"):
        monkeypatch.setattr(notifier, lasts, 10 * PATIENCE)  # however slow this machine is just now
    join(storage, "ann")
    assert storage.reserve("ann", {"mail": 1}, 10) == []

    def wait_briefly() -> bool:
        """Did it look afterwards?"""
        before = looks(storage)
        assert storage.wait_and_reserve("ann", {"mail": 1}, 10, 0.01) == []
        return looks(storage) > before

    assert all(wait_briefly() for _ in range(notifier._TIMEOUTS))  # the row may have come too late for somebody
    looked_at, due_in = storage._hot_path.found_nothing or (0.0, None)
    storage._hot_path.found_nothing = (looked_at + PATIENCE, due_in)  # on however slow a machine
    assert not wait_briefly()
    assert storage.next_due() is None
    storage._hot_path.found_nothing = (looked_at - PATIENCE, due_in)
    assert wait_briefly()


def test_a_worker_that_sleeps_on_looks_when_a_job_is_due_or_was_brought(
    storage: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "_ROW_AFTER_WAIT", 10 * PATIENCE)
    join(storage, "ann")
    assert storage.reserve("ann", {"mail": 1}, 10) == []
    for _ in range(notifier._TIMEOUTS + 1):
        assert storage.wait_and_reserve("ann", {"mail": 1}, 10, 0.01) == []
    looked_at, _ = storage._hot_path.found_nothing or (0.0, None)

    storage._hot_path.found_nothing = (looked_at + PATIENCE, round(-2 * PATIENCE * SECOND))
    before = looks(storage)
    assert storage.wait_and_reserve("ann", {"mail": 1}, 10, 0.01) == []
    assert looks(storage) > before
    brought = add(storage)
    assert [job.id for job in storage.wait_and_reserve("ann", {"mail": 1}, 10, PATIENCE)] == [brought.id]


def looks(storage: Postgres) -> int:
    return sum(each.calls for each in storage._db.meter.report() if each.name == "reserve")


# --- many waiters with one storage, as at a manager ------------------------------------------------------------------


class Waiters:
    """Threads that wait with one storage."""

    def __init__(self, url: str) -> None:
        self.storage = Postgres.from_url(url)
        self.woken: list[tuple[str, ...]] = []
        self._threads: list[threading.Thread] = []

    def sleep(self, *queues: str) -> None:
        self._threads.append(threading.Thread(target=self._sleep, args=(queues,), daemon=True))
        self._threads[-1].start()

    def _sleep(self, queues: tuple[str, ...]) -> None:
        if self.storage.wait(PATIENCE, queues):
            self.woken.append(queues)

    def end(self) -> None:
        for thread in self._threads:
            while thread.is_alive():
                self.storage.interrupt()
                thread.join(0.01)
        self.storage.close()


@pytest.fixture
def waiting(storage: Postgres, url: str) -> Iterator[Waiters]:
    join(storage)  # which makes the tables
    waiting = Waiters(url)
    yield waiting
    waiting.end()


def test_all_waiters_of_a_storage_have_one_connection_to_listen(
    waiting: Waiters, observer: Observer, schema: str
) -> None:
    before = listeners(observer)
    for _ in range(40):
        waiting.sleep("mail")
    until(lambda: number_asleep(observer, schema) == 40, "all wait")

    assert len(listeners(observer) - before) == 1


def listeners(observer: Observer) -> set[object]:
    """The sessions whose last statement was to listen. Others, of the pool, have done something else since."""
    return {pid for (pid,) in observer.execute("SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN packhorse%'")}


def test_the_right_one_of_many_is_woken_whoever_listens(
    waiting: Waiters, storage: Postgres, observer: Observer, schema: str
) -> None:
    queues = ["print", "mail", "print", "pics", "mail"]
    for number, queue in enumerate(queues, 1):
        waiting.sleep(queue)
        until(lambda number=number: number_asleep(observer, schema) == number, "it waits")

    expected: list[tuple[str, ...]] = []
    for queue in ("mail", "pics", "print", "mail", "print"):
        expected.append((queue,))
        storage.enqueue([new_job(queue=queue)])
        until(lambda: len(waiting.woken) >= len(expected), "one wakes")
        assert waiting.woken == expected
        assert number_asleep(observer, schema) == 5 - len(expected)


def test_a_waiter_goes_on_listening_for_the_others_when_the_first_has_left(
    waiting: Waiters, storage: Postgres, observer: Observer, schema: str
) -> None:
    first = threading.Thread(target=waiting.storage.wait, args=(0.5, ["print"]))
    first.start()
    until(lambda: number_asleep(observer, schema) == 1, "it waits")
    waiting.sleep("mail")
    until(lambda: number_asleep(observer, schema) == 2, "the other one too")
    first.join(PATIENCE)

    storage.enqueue([new_job()])

    until(lambda: waiting.woken == [("mail",)], "the other one is woken")


def test_a_notification_for_a_waiter_that_just_woke_reaches_another_with_the_same_queues(
    waiting: Waiters, storage: Postgres, observer: Observer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "_ROW_AFTER_SHORT_WAIT", 10 * PATIENCE)
    waiting.storage.wait(0.01, ["mail"])  # its row stands on
    assert number_asleep(observer, schema) == 1
    (empty,) = waiting.storage._notifier._idle
    waiting.storage._notifier._idle.clear()
    waiting.sleep("mail")
    until(lambda: number_asleep(observer, schema) == 2, "another one waits")
    with observer.transaction():
        observer.execute(f"DELETE FROM {schema}.packhorse_sleeper WHERE channel = %s", [empty.channel])
        observer.execute("SELECT pg_notify(%s, '')", [empty.channel])

    until(lambda: waiting.woken == [("mail",)], "it is woken in its place")


def test_waiters_look_for_work_when_the_server_cuts_the_connection(
    waiting: Waiters, storage: Postgres, observer: Observer, schema: str
) -> None:
    for queue in ("mail", "print"):
        waiting.sleep(queue)
    until(lambda: number_asleep(observer, schema) == 2 and waiting.storage._notifier._reader, "both wait")
    listener = waiting.storage._notifier._listener
    assert listener is not None

    observer.execute("SELECT pg_terminate_backend(%s)", [listener.driver.info.backend_pid])

    until(lambda: sorted(waiting.woken) == [("mail",), ("print",)], "nobody sleeps on")
    waiting.sleep("mail")
    until(lambda: waiting.storage._notifier._listener not in (None, listener), "there is a new one")
