"""Transactions: if a value that was read has changed, nothing is written, and the operation runs again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from packhorse.conformance.builders import add, at_once, history, kinds, recount, stored, unique
from packhorse.core import transitions
from packhorse.core.errors import StorageUnavailable
from packhorse.core.event import Kind, Subject
from packhorse.core.job import QUEUED, SCHEDULED
from packhorse.storage.engine.history import record_about
from packhorse.storage.records import ClientInfo, EventFilter, WorkerInfo
from packhorse.storage.redis import Redis
from packhorse.storage.redis.rows import entries_of
from packhorse.storage.redis.server import load_scripts
from packhorse.storage.redis.transaction import Transaction

Meddling = Callable[[Redis], object]

MEDDLING: dict[str, tuple[Callable[[Transaction, Redis], object], Meddling]] = {
    "a job": (lambda tx, storage: tx.jobs(["a"]), lambda storage: storage.set_priority(["a"], 9)),
    "a job that was not there": (lambda tx, storage: tx.jobs(["new"]), lambda storage: add(storage, "new")),
    "a field": (
        lambda tx, storage: tx.field(storage._keys.clients, "web"),
        lambda storage: storage.join_client(ClientInfo("web")),
    ),
    "a score": (
        lambda tx, storage: tx.scores(storage._keys.beats, ["ann"]),
        lambda storage: storage.leave("ann"),
    ),
    "a set": (
        lambda tx, storage: tx.members([storage._keys.sub("a")]),
        lambda storage: (storage.join_client(ClientInfo("web")), storage.subscribe("web", ["a"])),
    ),
    "a text": (
        lambda tx, storage: tx.text(storage._keys.counter("event")),
        lambda storage: add(storage, "new"),
    ),
    "how much a worker holds": (
        lambda tx, storage: tx.held_jobs(["ann"], 10),
        lambda storage: storage.reserve("ann", {"mail": 1}, 1),
    ),
    "a unique key": (
        lambda tx, storage: tx.holders(["k"]),
        lambda storage: add(storage, "new", unique=unique("k")),
    ),
}


@pytest.fixture(autouse=True)
def furnished(storage: Redis) -> None:
    storage.join(WorkerInfo("ann"))
    add(storage, "a")
    add(storage, "b")


@pytest.mark.parametrize("what", MEDDLING)
def test_nothing_is_written_when_something_read_has_changed(storage: Redis, what: str) -> None:
    read, meddle = MEDDLING[what]
    before = storage.get("b")

    def work(tx: Transaction) -> None:
        read(tx, storage)
        job = tx.jobs(["b"])["b"]
        meddle(storage)
        tx.keep(job, transitions.aborted(job, tx.now, "tester"))

    is_written, _ = storage._writer.attempt("test", work)

    assert not is_written
    assert storage.get("b") == before
    assert Kind.ABORTED not in kinds(storage, "b")
    assert storage.tallies() == recount(storage)


def test_after_a_lost_race_the_operation_runs_again(storage: Redis) -> None:
    states = []

    def work(tx: Transaction) -> None:
        job = tx.jobs(["a"])["a"]
        if not states:
            storage.set_priority(["a"], 9)
        states.append(job.priority)
        tx.keep(job, transitions.aborted(job, tx.now, "tester"))

    storage._write("test", work)

    assert states == [1, 9]
    assert kinds(storage, "a") == [Kind.ADDED, Kind.PRIORITY_CHANGED, Kind.ABORTED]


def test_an_operation_that_loses_every_race_raises_an_error_that_names_it(
    storage: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage._server, "pause", lambda attempt: None)

    def work(tx: Transaction) -> None:
        job = tx.jobs(["a"])["a"]
        storage.set_priority(["a"], 9 if job.priority == 1 else 1)
        tx.keep(job, transitions.aborted(job, tx.now, "tester"))

    with pytest.raises(StorageUnavailable, match=r"abort lost \d+ races"):
        storage._write("abort", work)
    assert stored(storage, "a").state is QUEUED


def test_many_concurrent_changes_of_one_job_all_happen(storage: Redis) -> None:
    priorities = list(range(2, 10))

    steered = at_once([lambda p=p: storage.set_priority(["a"], p) for p in priorities])

    assert all(answer.changed for (answer,) in steered)
    found = [event.data for event in history(storage, "a") if event.kind is Kind.PRIORITY_CHANGED]
    assert sorted(facts["to"] for facts in found if facts) == priorities
    # Each saw what the one before had left.
    assert [facts["from"] for facts in found if facts][1:] == [facts["to"] for facts in found if facts][:-1]


def test_a_transaction_sees_its_own_writes(storage: Redis) -> None:
    def work(tx: Transaction) -> tuple[int, set[str], bytes | None]:
        job = tx.jobs(["a"])["a"]
        tx.keep(job, transitions.reprioritised(job, 9, tx.now, None))
        tx.put_field(storage._keys.clients, "web", "{}")
        tx.subscribe("a", "web")
        return tx.jobs(["a"])["a"].priority, tx.subscribers(["a"])["a"], tx.field(storage._keys.clients, "web")

    assert storage._write("test", work) == (9, {"web"}, b"{}")


def test_a_part_that_fails_is_undone_alone(storage: Redis) -> None:
    def part(tx: Transaction) -> None:
        job = tx.jobs(["a"])["a"]
        tx.keep(job, transitions.aborted(job, tx.now, "tester"))
        record_about(tx, Subject.QUEUE, Kind.PAUSED, queue="mail")
        tx.do("SET", storage._keys.counter("line"), 77)
        raise ValueError("no")

    def work(tx: Transaction) -> None:
        job = tx.jobs(["b"])["b"]
        tx.keep(job, transitions.aborted(job, tx.now, "tester"))
        with pytest.raises(ValueError, match="no"):
            tx.nested(part)

    storage._write("test", work)

    assert kinds(storage, "a") == [Kind.ADDED]
    assert kinds(storage, "b") == [Kind.ADDED, Kind.ABORTED]
    assert storage.events(EventFilter(subject=Subject.QUEUE)) == []
    assert storage._server.send("test", ("GET", storage._keys.counter("line"))) == [None]


def test_a_transaction_that_only_reads_sends_no_script(storage: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    def must_not_run(*_: object, **__: object) -> None:
        raise AssertionError("a script was sent")

    monkeypatch.setattr(storage._server, "run", must_not_run)

    assert storage._write("test", lambda tx: len(tx.jobs(["a", "b", "c"]))) == 2


def test_a_transaction_that_was_written_is_not_written_again_when_it_is_sent_again(storage: Redis) -> None:
    tx = storage._writer.transaction("test")
    job = tx.jobs(["a"])["a"]
    tx.keep(job, transitions.reprioritised(job, 9, tx.now, None))
    words = tx.words()

    assert storage._server.run("apply", *words) == 1
    assert storage._server.run("apply", *words) == 0  # another call with the same change
    (reply,) = storage._server.send(
        "test", ("EVAL", load_scripts(with_flags=False)["apply"].text, 1, storage._server.prefix, "", "1", *words)
    )  # fmt: skip

    assert reply == 1  # the same, whose answer was lost
    assert kinds(storage, "a") == [Kind.ADDED, Kind.PRIORITY_CHANGED]


def test_a_long_history_is_complete_although_the_head_names_only_the_latest_events(storage: Redis) -> None:
    for number in range(120):
        storage.set_priority(["a"], 1 + number % 10)

    found = history(storage, "a")
    (head,) = storage._server.send("test", ("GET", storage._keys.head("a")))
    assert len(found) == 121
    assert [event.id for event in found] == sorted(event.id for event in found)
    assert len(entries_of(head)) <= 33
    storage.delete(["a"])
    assert len(history(storage, "a")) == 122


def test_an_id_that_is_used_again_has_the_events_of_both_jobs(storage: Redis) -> None:
    storage.delete(["a"])
    add(storage, "a", delay=60_000_000)

    assert kinds(storage, "a") == [Kind.ADDED, Kind.DELETED, Kind.ADDED]
    assert stored(storage, "a").state is SCHEDULED
