"""Across fork: a child goes on with the same storage object, and neither it nor its parent is harmed.

SQLite keeps one table of locks for all connections of a process, and a child inherits that table without the locks.
So it is not enough that the child opens connections of its own: these tests look at what the file is left with.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from packhorse.conformance.builders import add, find_all, ids, join, kinds, new_job, recount, tallies
from packhorse.storage.records import Filter
from packhorse.storage.sqlite import SQLite, database
from packhorse.storage.sqlite.database import Options
from tests.children import PATIENCE, Parent, forked, in_child, program, running, until
from tests.storage.sqlite.test_database import Caller, finish_all, occupied


def integrity(path: Path) -> str:
    connection = sqlite3.connect(path)
    (told,) = connection.execute("PRAGMA integrity_check").fetchone()
    connection.close()
    return str(told)


def test_a_child_goes_on_with_the_same_storage(storage: SQLite, path: Path) -> None:
    add(storage, "parent-1")

    def work() -> list[str]:
        storage.enqueue([new_job("child-1")])
        taken = storage.reserve(join(storage), {"mail": 1}, 10)
        storage.release([job.token for job in taken], "seen")
        return ids(taken)

    seen = in_child(work)
    add(storage, "parent-2")

    assert seen == ["parent-1", "child-1"]
    assert sorted(ids(find_all(storage))) == ["child-1", "parent-1", "parent-2"]
    assert tallies(storage) == recount(storage)
    assert integrity(path) == "ok"


def test_parent_and_children_write_at_the_same_time(storage: SQLite, path: Path) -> None:
    add(storage, "before")

    def work(name: str) -> str:
        for number in range(20):
            storage.enqueue([new_job(f"{name}-{number}-{one}") for one in range(3)])
            assert storage.find(Filter(), limit=1).jobs
        return "done"

    with (
        forked(lambda parent: parent.send(work("ann"))) as ann,
        forked(lambda parent: parent.send(work("bob"))) as bob,
    ):
        work("parent")
        assert (ann.receive(), bob.receive()) == ("done", "done")

    assert storage.count(Filter()).number == 1 + 3 * 60
    assert tallies(storage) == recount(storage)
    assert integrity(path) == "ok"


def test_a_child_uses_none_of_its_parents_connections(storage: SQLite) -> None:
    add(storage, "before")
    join(storage)
    storage.reserve("ann", {"print": 1}, 1)
    used: list[str] = []
    for connection in [storage._db._writer, storage._db._version_reader, *storage._db._readers]:
        assert connection is not None
        connection.set_trace_callback(used.append)

    def work() -> list[str]:
        storage.enqueue([new_job("child")])
        assert ids(storage.reserve("ann", {"mail": 1}, 10)) == ["before", "child"]
        storage.close()
        return used

    assert in_child(work) == []


def test_what_a_child_stores_is_not_lost_when_its_parent_closes(storage: SQLite, path: Path) -> None:
    add(storage, "parent")

    def work(parent: Parent) -> None:
        storage.enqueue([new_job("child-1")])
        parent.send("open")
        parent.wait()
        parent.send([one.placement for one in storage.enqueue([new_job("child-2")])])

    with forked(work) as child:
        assert child.receive() == "open"
        storage.close()
        child.proceed()
        assert child.receive() == ["added"]

    assert sorted(ids(find_all(storage))) == ["child-1", "child-2", "parent"]
    assert integrity(path) == "ok"


def test_a_fork_while_another_thread_writes_lets_the_child_read(storage: SQLite) -> None:
    add(storage, "before")

    with (
        occupied(storage, lambda tx: storage._hot_path.enqueue(tx, [new_job("within")]), seconds=0.3),
        forked(lambda parent: parent.send(ids(find_all(storage)))) as child,
    ):
        seen = child.receive()

    assert "before" in seen


def test_a_fork_while_another_thread_writes_lets_the_child_write_after_it(path: Path) -> None:
    storage = SQLite(path, options=Options(patience=PATIENCE))
    add(storage, "before")

    def work(parent: Parent) -> None:
        parent.send("begins")
        storage.enqueue([new_job("child")])
        parent.send("stored")

    with contextlib.ExitStack() as stack:
        with occupied(storage, lambda tx: storage._hot_path.enqueue(tx, [new_job("within")]), seconds=0.3):
            child = stack.enter_context(forked(work))
            assert child.receive() == "begins"
        assert child.receive() == "stored"

    assert sorted(ids(find_all(storage))) == ["before", "child", "within"]
    storage.close()


def test_a_fork_while_threads_wait_in_line_leaves_their_work_to_the_parent(storage: SQLite) -> None:
    add(storage, "before")

    with occupied(storage, seconds=0.3):
        waiting = Caller(lambda: storage.enqueue([new_job("parent")]))
        until(lambda: storage._db._pending or not waiting.is_alive(), "the thread waits in line")
        in_child(lambda: len(find_all(storage)))
    finish_all([waiting])

    assert waiting.error is None
    assert kinds(storage, "parent") == ["added"]


def test_a_fork_while_another_thread_is_being_measured_does_not_hang_the_child(storage: SQLite) -> None:
    add(storage, "before")
    measured, may_end = threading.Event(), threading.Event()

    def be_measured() -> None:
        with storage._db.meter._lock:
            measured.set()
            may_end.wait(PATIENCE)

    thread = Caller(be_measured)
    assert measured.wait(PATIENCE)
    try:
        assert in_child(lambda: ids(find_all(storage)), seconds=PATIENCE / 2) == ["before"]
    finally:
        may_end.set()
        finish_all([thread])


def test_a_fork_waits_for_a_connection_that_another_thread_is_opening(
    storage: SQLite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite holds locks of the whole process meanwhile, which nobody in the child would ever let go."""
    monkeypatch.setattr(database, "_FORK_PATIENCE", PATIENCE)
    storage.enqueue([new_job("before")])  # the file is open for writing, and not yet for reading
    connect, opening, may_open = storage._db._file.connect, threading.Event(), threading.Event()
    done: list[str] = []

    def connect_slowly() -> sqlite3.Connection:
        opening.set()
        assert may_open.wait(PATIENCE)
        done.append("opened")
        return connect()

    monkeypatch.setattr(storage._db._file, "connect", connect_slowly)
    reader = Caller(lambda: storage.get("before"))
    assert opening.wait(PATIENCE)
    forker = Caller(lambda: storage._db.prepare_fork() and done.append("may fork"))
    forker.join(0.1)  # it should be waiting now
    may_open.set()
    finish_all([forker])
    storage._db.resume_after_fork()
    finish_all([reader])

    assert done == ["opened", "may fork"]
    assert reader.answer.id == "before"


def test_a_process_may_fork_again_and_again_while_its_threads_go_on(storage: SQLite) -> None:
    """In a child, which may hang."""

    def work() -> int:
        done = threading.Event()

        def use(call: Callable[[], object]) -> None:
            while not done.is_set():
                call()

        calls = [storage._notifier.note_version, lambda: storage.get("job"), lambda: storage.enqueue([new_job()])]
        users = [Caller(lambda call=call: use(call)) for call in calls]  # type: ignore[misc]
        for _ in range(50):
            child = os.fork()
            if child == 0:
                os._exit(0 if storage.get("before") else 1)
            assert os.waitpid(child, 0)[1] == 0
        done.set()
        finish_all(users)
        return sum(user.error is None for user in users)

    add(storage, "before")

    assert in_child(work, seconds=2 * PATIENCE) == 3  # each fork waits for the disk
    assert tallies(storage) == recount(storage)


def test_a_child_that_ends_in_an_ordinary_way_leaves_its_parents_file_alone(path: Path) -> None:
    parent = program("tests.storage.sqlite.forking", path)
    with running(parent):
        told, complaint = parent.communicate(timeout=PATIENCE)

    assert (parent.returncode, complaint) == (0, "")
    assert told.split() == ["child-ended", "parent-stored"]
    storage = SQLite(path)
    assert ids(find_all(storage)) == ["after", "before"]
    storage.close()
    assert integrity(path) == "ok"
