"""Closing a PostgreSQL storage for a move: it waits for others' transactions, and holds for those that began before."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from packhorse.conformance.builders import new_job
from packhorse.core.errors import StorageClosed, StorageUnavailable
from packhorse.storage.postgres import Postgres, database, transfer
from packhorse.storage.records import Filter, Placement
from packhorse.storage.transfer import Move, Stage
from tests.children import PATIENCE, until

MARK = Move("copy", Stage.CLOSING, "redis://elsewhere", 1)


def test_a_transaction_that_saw_the_storage_open_cannot_enqueue_once_it_is_closed(storage: Postgres) -> None:
    storage.tallies()
    with psycopg.connect(storage._db.address) as own:
        own.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        own.execute("SELECT 1")  # from now on it sees only what there is
        storage.set_move(MARK, expected=None)

        with pytest.raises(StorageClosed):
            storage.enqueue_within(own, [new_job()])


def test_closing_waits_for_a_transaction_that_has_enqueued(storage: Postgres) -> None:
    storage.tallies()
    with psycopg.connect(storage._db.address) as own:
        storage.enqueue_within(own, [new_job("ours")])
        closing = threading.Thread(target=storage.set_move, args=(MARK,), kwargs={"expected": None})
        closing.start()
        until(lambda: _waits(storage), "it waits for a lock")
        assert storage.move() is None
        own.commit()
        closing.join(PATIENCE)

    assert storage.move() == MARK
    assert [job.id for job in storage.find(Filter()).jobs] == ["ours"]


def test_others_write_while_closing_waits_for_a_transaction(
    storage: Postgres, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.enqueue([new_job()])
    monkeypatch.setitem(database._SESSION, "lock_timeout", "300s")  # it must not be this one that lets them pass
    mover = Postgres.from_url(url)
    with psycopg.connect(storage._db.address) as own:
        storage.enqueue_within(own, [new_job()])
        closing = threading.Thread(target=mover.set_move, args=(MARK,), kwargs={"expected": None})
        closing.start()
        until(lambda: _waits(storage), "it waits for a lock")

        storage.pause("mail")  # in a transaction
        storage.enqueue([new_job()])  # in one statement
        assert closing.is_alive()
        own.commit()
        closing.join(PATIENCE)

    assert storage.move() == MARK
    mover.close()


def test_whoever_keeps_a_storage_from_being_closed_is_named(storage: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_PATIENCE", 0.0)
    storage.tallies()
    with psycopg.connect(storage._db.address, application_name="shop") as own:
        storage.enqueue_within(own, [new_job()])

        with pytest.raises(StorageUnavailable, match=rf"{own.info.backend_pid} \(shop, for \d+ s\)"):
            storage.set_move(MARK, expected=None)
    assert storage.move() is None
    assert storage.set_move(MARK, expected=None)


def _waits(storage: Postgres) -> bool:
    return bool(storage._db.read("test", "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))


@pytest.mark.parametrize("priorities", [(1,), (1, 1, 1), (1, 2, 3)])
def test_a_job_that_came_just_when_the_storage_was_opened_again_is_stored(
    storage: Postgres, url: str, monkeypatch: pytest.MonkeyPatch, priorities: tuple[int, ...]
) -> None:
    storage.enqueue([new_job()])  # its names are known from now on
    mover = Postgres.from_url(url)
    mover.set_move(MARK, expected=None)
    real = storage._db.run

    def run(name: str, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        rows = real(name, sql, values)
        if name == "enqueue" and mover.move() is not None:
            assert rows == []
            mover.set_move(None, expected=MARK)
        return rows

    monkeypatch.setattr(storage._db, "run", run)
    jobs = [new_job(priority=priority) for priority in priorities]

    enqueued = storage.enqueue(jobs)

    assert {one.placement for one in enqueued} == {Placement.ADDED}
    assert len(storage.get_many([job.id for job in jobs])) == len(jobs)
    assert {one.placement for one in storage.enqueue(jobs)} == {Placement.KEPT}
    mover.close()
