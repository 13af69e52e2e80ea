"""Reserving in several rounds: what a round has taken is handed out, whatever becomes of the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest

from packhorse.conformance.builders import WORKER, add, ids, join, new_job
from packhorse.core.errors import StorageUnavailable
from packhorse.core.job import HELD
from packhorse.storage.postgres import Postgres
from packhorse.storage.postgres.connection import PostgresConnection
from packhorse.storage.postgres.database import TRIES
from packhorse.storage.records import Filter
from packhorse.storage.sql.transaction import Cursor

pytestmark = pytest.mark.usefixtures("exact_lines")

QUEUES = {"mail": 1, "other": 1}
Trouble = Callable[[int], None]


@pytest.fixture
def contested(storage: Postgres) -> Iterator[Postgres]:
    """Somebody else is about to take a job of the second queue, so the first round gets three jobs of four."""
    storage.enqueue([new_job(f"{queue}-{number}", queue=queue) for queue in QUEUES for number in range(2)])
    join(storage)
    with psycopg.connect(storage._db.address) as rival:
        rival.execute(f"SELECT 1 FROM {storage.options.schema}.packhorse_job WHERE id = 'other-0' FOR UPDATE")
        yield storage
        rival.rollback()


def test_jobs_of_the_first_round_are_kept_when_the_second_must_see_to_time_first(
    contested: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = add(contested, delay=3_600_000_000)

    def make_due(call: int) -> None:
        if call == 3:  # the second round looks for lines
            with psycopg.connect(contested._db.address) as admin:
                admin.execute(
                    f"UPDATE {contested.options.schema}.packhorse_job SET due_at = 1 WHERE due_at IS NOT NULL"
                )

    _interfere(monkeypatch, make_due)

    taken = ids(contested.reserve(WORKER, QUEUES, 10))

    assert sorted(taken) == sorted(["mail-0", "mail-1", "other-1", late.id])
    assert sorted(taken) == sorted(_held(contested))


def test_jobs_of_the_first_round_are_kept_when_the_second_is_repeated(
    contested: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(call: int) -> None:
        if call == 3:
            raise psycopg.errors.LockNotAvailable("as while somebody makes an index")

    _interfere(monkeypatch, refuse)

    taken = ids(contested.reserve(WORKER, QUEUES, 4))

    assert contested._db.meter.busy_retries == 1
    assert sorted(taken) == ["mail-0", "mail-1", "other-1"]
    assert sorted(taken) == sorted(_held(contested))


def test_jobs_of_the_first_round_are_kept_when_the_second_fails_for_good(
    contested: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(call: int) -> None:
        if call >= 3:
            raise psycopg.OperationalError("the connection is lost")

    with monkeypatch.context() as for_a_while:
        _interfere(for_a_while, fail)
        taken = ids(contested.reserve(WORKER, QUEUES, 4))

    assert sorted(taken) == ["mail-0", "mail-1", "other-1"]
    assert sorted(taken) == sorted(_held(contested))


def test_a_reservation_that_took_nothing_tells_what_failed(
    contested: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def refuse(call: int) -> None:
        calls.append(call)
        raise psycopg.errors.LockNotAvailable("as while somebody makes an index")

    with monkeypatch.context() as for_a_while:
        _interfere(for_a_while, refuse)
        with pytest.raises(StorageUnavailable):
            contested.reserve(WORKER, QUEUES, 4)

    assert len(calls) == TRIES
    assert _held(contested) == []


def _interfere(monkeypatch: pytest.MonkeyPatch, trouble: Trouble) -> None:
    """Before each statement on a connection, the first of which has the number 1."""
    numbers = iter(range(1, 1000))
    real = PostgresConnection.execute

    def execute(self: PostgresConnection, sql: str, values: Sequence[Any] = ()) -> Cursor:
        trouble(next(numbers))
        return real(self, sql, values)

    monkeypatch.setattr(PostgresConnection, "execute", execute)


def _held(storage: Postgres) -> list[str]:
    return ids(storage.find(Filter(states=HELD, owner=WORKER)).jobs)
