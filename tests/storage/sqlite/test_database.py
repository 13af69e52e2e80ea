"""Connections and group commit: threads that write at once share a commit, readers never wait, locks are waited for."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse.conformance.builders import add, find_all, ids, join, kinds, new_job, new_jobs, recount, tallies, unique
from packhorse.core.errors import NotUnique, StorageError, StorageUnavailable
from packhorse.core.job import NewJob
from packhorse.storage.records import Filter
from packhorse.storage.sqlite import SQLite, database
from packhorse.storage.sqlite.database import Options
from packhorse.storage.sqlite.transaction import SQLiteTransaction
from tests.children import PATIENCE, until
from tests.storage.sqlite.tracing import traced

HOLD_THE_LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
"""


class Caller(threading.Thread):
    """A thread that makes one call and keeps what came of it."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.call = call
        self.answer: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self.call()
        except BaseException as error:
            self.error = error


def finish_all(callers: list[Caller], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    for caller in callers:
        caller.join(max(0.0, deadline - time.monotonic()))
        assert not caller.is_alive(), "a thread hangs"


@contextlib.contextmanager
def occupied(
    storage: SQLite, then: Callable[[SQLiteTransaction], object] = lambda tx: None, *, seconds: float = PATIENCE
) -> Iterator[None]:
    """A block during which a transaction of this process is open; `then` has been done in it, not yet committed.

    It is committed at the end of the block, or after so many seconds.
    """
    began, may_end = threading.Event(), threading.Event()

    def work(tx: SQLiteTransaction) -> None:
        then(tx)
        began.set()
        may_end.wait(seconds)

    occupier = Caller(lambda: storage._db.write("occupy", work))
    assert began.wait(PATIENCE)
    try:
        yield
    finally:
        may_end.set()
        finish_all([occupier])


def call_together(storage: SQLite, calls: list[Callable[[], object]]) -> list[Caller]:
    """Make these calls, each from its own thread, so that all of them come to share a transaction."""
    with occupied(storage):
        callers = [Caller(call) for call in calls]
        until(lambda: len(storage._db._pending) == len(calls), "every thread has asked")
    finish_all(callers)
    return callers


def enqueue_unchecked(storage: SQLite, *jobs: NewJob) -> Any:
    """As if the checks before the call had overlooked something."""
    return SQLite.enqueue.__wrapped__(storage, jobs)  # type: ignore[attr-defined]


def enqueueing(storage: SQLite, *jobs: NewJob) -> Callable[[], object]:
    return lambda: storage.enqueue(jobs)


@contextlib.contextmanager
def locked(path: Path, how: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
    """A block during which another connection holds the file's lock; it may let go earlier."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute(f"BEGIN {how}")
    try:
        yield other
    finally:
        if other.in_transaction:
            other.execute("ROLLBACK")
        other.close()


# --- group commit ---------------------------------------------------------------------------------------------------


def test_threads_that_write_at_once_share_one_commit(path: Path) -> None:
    told: list[str] = []
    with traced(told.append):
        storage = SQLite(path)
        join(storage)
    told.clear()

    callers = call_together(storage, [enqueueing(storage, new_job(f"job-{n}")) for n in range(8)])

    assert told.count("COMMIT") == 2  # the one that made them wait, and theirs
    assert [[one.job_id for one in caller.answer] for caller in callers] == [[f"job-{n}"] for n in range(8)]
    assert sorted(ids(find_all(storage))) == [f"job-{n}" for n in range(8)]
    storage.close()


def test_a_commit_is_shared_by_so_many_calls_and_no_more(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "SHARED_COMMIT", 3)
    told: list[str] = []
    with traced(told.append):
        storage = SQLite(path)
        join(storage)
    told.clear()

    call_together(storage, [enqueueing(storage, new_job()) for _ in range(8)])

    assert told.count("COMMIT") == 1 + 3
    assert storage.count(Filter()).number == 8
    storage.close()


def test_calls_that_share_a_commit_happen_in_the_order_of_asking(storage: SQLite) -> None:
    join(storage)

    with occupied(storage):
        callers = []
        for n in range(8):
            callers.append(Caller(enqueueing(storage, new_job(f"job-{n}"))))
            until(lambda n=n: len(storage._db._pending) == n + 1, "the thread has asked")  # type: ignore[misc]
    finish_all(callers)

    assert ids(storage.reserve(join(storage), {"mail": 1}, 8)) == [f"job-{n}" for n in range(8)]


def test_one_call_that_is_refused_does_not_harm_those_that_share_its_commit(storage: SQLite) -> None:
    holder = add(storage, unique=unique("k"))
    refused = enqueueing(storage, new_job("first-half"), new_job(unique=unique("k", on_conflict="reject")))
    good = [enqueueing(storage, new_job(f"job-{n}")) for n in range(7)]

    callers = call_together(storage, [*good[:4], refused, *good[4:]])

    errors = [caller.error for caller in callers]
    assert isinstance(errors[4], NotUnique)
    assert [error for error in errors if error is not errors[4]] == [None] * 7
    assert sorted(ids(find_all(storage))) == sorted([holder.id, *(f"job-{n}" for n in range(7))])
    assert kinds(storage, "first-half") == []
    assert tallies(storage) == recount(storage)


def test_one_call_that_the_database_refuses_does_not_harm_those_that_share_its_commit(storage: SQLite) -> None:
    broken: list[Any] = [new_job("first-half"), new_job("broken", timeout="soon")]
    good = [enqueueing(storage, new_job(f"job-{n}")) for n in range(7)]

    callers = call_together(storage, [lambda: enqueue_unchecked(storage, *broken), *good])

    assert isinstance(callers[0].error, StorageError)
    assert [caller.error for caller in callers[1:]] == [None] * 7
    assert sorted(ids(find_all(storage))) == [f"job-{n}" for n in range(7)]
    assert tallies(storage) == recount(storage)


def test_when_the_file_is_in_trouble_every_call_of_the_commit_is_told(storage: SQLite) -> None:
    join(storage)

    def meet_trouble(tx: SQLiteTransaction) -> None:
        tx.execute("SELECT * FROM a_table_that_went_away")

    callers = call_together(
        storage,
        [
            *(enqueueing(storage, new_job()) for _ in range(3)),
            lambda: storage._db.write("trouble", meet_trouble),
            *(enqueueing(storage, new_job()) for _ in range(4)),
        ],
    )

    assert [type(caller.error) for caller in callers] == [StorageUnavailable] * 8
    assert find_all(storage) == []
    add(storage, "after")
    assert ids(find_all(storage)) == ["after"]


class ControlC:
    """Somebody presses Control-C, once, while one of these threads comes along here."""

    def __init__(self) -> None:
        self.threads: list[Caller] = []
        self.hit: Caller | None = None

    def __call__(self, *_: object) -> bool:
        here = threading.current_thread()
        if self.hit is None and isinstance(here, Caller) and here in self.threads:
            self.hit = here
            raise KeyboardInterrupt
        return False


@pytest.mark.parametrize(
    "place",
    [
        "in a call",
        "before commit",
        "after commit",
    ],
)
def test_an_interrupt_of_the_thread_that_commits_for_all_loses_nobodys_work(
    place: str, storage: SQLite, monkeypatch: pytest.MonkeyPatch
) -> None:
    join(storage)
    control_c, flush, record = ControlC(), SQLiteTransaction.flush, storage._db.meter.record
    calls = [enqueueing(storage, new_job(f"job-{n}")) for n in range(8)]
    if place == "in a call":
        calls.insert(4, lambda: storage._db.write("interrupted", control_c))
    elif place == "before commit":
        monkeypatch.setattr(SQLiteTransaction, "flush", lambda tx: control_c() or flush(tx))
    else:
        monkeypatch.setattr(storage._db.meter, "record", lambda *times: control_c() or record(*times))

    with occupied(storage):
        control_c.threads = callers = [Caller(call) for call in calls]
        until(lambda: len(storage._db._pending) == len(calls), "every thread has asked")
    finish_all(callers)

    assert control_c.hit is not None
    assert isinstance(control_c.hit.error, KeyboardInterrupt)
    assert [caller.error for caller in callers if caller is not control_c.hit] == [None] * (len(calls) - 1)
    stored = ids(find_all(storage))
    assert len(stored) >= 7
    assert [kinds(storage, job_id) for job_id in stored] == [["added"]] * len(stored)
    assert tallies(storage) == recount(storage)


def test_an_interrupted_call_is_not_carried_out_behind_its_callers_back(storage: SQLite) -> None:
    join(storage)
    tries: list[int] = []

    def enqueue_but_be_interrupted(tx: SQLiteTransaction) -> None:
        storage._hot_path.enqueue(tx, [new_job("interrupted")])
        tries.append(1)
        if len(tries) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        storage._db.write("enqueue", enqueue_but_be_interrupted)
    add(storage, "next")

    assert ids(find_all(storage)) == ["next"]


def test_a_call_that_is_interrupted_in_line_is_not_carried_out_behind_its_callers_back(storage: SQLite) -> None:
    join(storage)
    main = threading.main_thread().ident
    assert main is not None

    def interrupt_main() -> None:
        until(lambda: len(storage._db._pending) == 1, "the call waits for its turn")
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        with occupied(storage):
            interrupter = Caller(interrupt_main)
            with pytest.raises(KeyboardInterrupt):
                storage.enqueue([new_job("interrupted")])
            finish_all([interrupter])
    finally:
        signal.signal(signal.SIGUSR1, before)
    add(storage, "next")

    assert ids(find_all(storage)) == ["next"]


def test_names_of_an_enqueueing_that_was_undone_become_known_with_the_next(storage: SQLite) -> None:
    add(storage, unique=unique("k"), queue="mail", task="send")
    with pytest.raises(NotUnique):
        storage.enqueue([new_job(unique=unique("k", on_conflict="reject"), queue="print", task="page")])

    add(storage, queue="print", task="page")

    assert [queue.name for queue in storage.queues()] == ["mail", "print"]
    assert [task.name for task in storage.tasks()] == ["page", "send"]


def test_a_job_that_the_database_refuses_is_not_answered_as_kept(storage: SQLite) -> None:
    broken: Any = new_job("broken", timeout="soon")

    with pytest.raises(StorageError):
        enqueue_unchecked(storage, broken)


# --- reading --------------------------------------------------------------------------------------------------------


def test_readers_see_the_last_commit_and_never_wait_for_a_writer(storage: SQLite) -> None:
    add(storage, "before")

    with occupied(storage, lambda tx: storage._hot_path.enqueue(tx, [new_job("within")])):
        seen = [Caller(lambda: ids(find_all(storage))) for _ in range(4)]
        finish_all(seen)

    assert [caller.answer for caller in seen] == [["before"]] * 4
    assert sorted(ids(find_all(storage))) == ["before", "within"]


def test_threads_that_read_while_another_writes_see_whole_batches_only(storage: SQLite) -> None:
    storage.enqueue(new_jobs(3))
    done = threading.Event()

    def read() -> list[int]:
        numbers = []
        while not done.is_set():
            numbers.append(len(storage.find(Filter(), limit=1_000).jobs))
            numbers.append(sum(tally.number for tally in storage.tallies()))
        return numbers

    readers = [Caller(read) for _ in range(4)]
    for _ in range(60):
        storage.enqueue(new_jobs(3))
    done.set()
    finish_all(readers)

    assert [reader.error for reader in readers] == [None] * 4
    assert {number % 3 for reader in readers for number in reader.answer} == {0}
    assert storage.count(Filter()).number == 183


def test_connections_are_counted_and_closed(storage: SQLite) -> None:
    barrier = threading.Barrier(4)

    def read(connection: sqlite3.Connection) -> None:
        barrier.wait(PATIENCE)

    add(storage)
    finish_all([Caller(lambda: storage._db.read_with("read", read)) for _ in range(4)])

    assert storage.health().connections_open == 5
    assert storage.health().connections_in_use == 0
    storage.close()
    assert storage._db.connections() == (0, 0)


def test_a_connection_that_failed_to_open_is_not_counted(tmp_path: Path) -> None:
    storage = SQLite(tmp_path / "nowhere" / "jobs.db")

    with pytest.raises(StorageUnavailable):
        storage.get("job")

    assert storage._db.connections() == (0, 0)


# --- locks of other programs ----------------------------------------------------------------------------------------


def test_a_lock_that_another_process_holds_for_a_while_is_waited_for(storage: SQLite, path: Path) -> None:
    add(storage, "before")
    join(storage)
    words = [sys.executable, "-c", HOLD_THE_LOCK, path]
    holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"

    writers = [
        Caller(enqueueing(storage, new_job("within"))),
        Caller(lambda: storage.pause("print")),
        Caller(lambda: storage.heartbeat({"ann": {}})),
    ]
    until(lambda: storage.health().busy_retries > 0, "they wait")
    assert ids(find_all(storage)) == ["before"], "a reader does not wait"
    assert all(writer.is_alive() for writer in writers)
    holder.communicate("enough\n", timeout=PATIENCE)
    finish_all(writers)

    assert [writer.error for writer in writers] == [None] * 3
    assert sorted(ids(find_all(storage))) == ["before", "within"]
    assert holder.returncode == 0


def test_when_patience_is_over_the_caller_is_told_who_to_look_for(path: Path) -> None:
    storage = SQLite(path, options=Options(patience=0.05))
    join(storage)

    with locked(path), pytest.raises(StorageUnavailable) as raised:
        storage.enqueue([new_job("refused")])

    assert f"{path} is locked by another program" in str(raised.value)
    assert "find who holds it" in str(raised.value)
    assert storage.get("refused") is None
    add(storage, "after")
    assert ids(find_all(storage)) == ["after"]
    storage.close()


def test_every_thread_in_line_is_told_when_patience_is_over(path: Path) -> None:
    storage = SQLite(path, options=Options(patience=0.05))
    join(storage)

    with locked(path):
        callers = [Caller(enqueueing(storage, new_job())) for _ in range(4)]
        finish_all(callers)

    assert [type(caller.error) for caller in callers] == [StorageUnavailable] * 4
    assert find_all(storage) == []
    storage.close()


def test_patience_also_holds_while_the_file_is_opened(path: Path) -> None:
    storage = SQLite(path, options=Options(patience=0.05))
    sqlite3.connect(path).close()

    with locked(path, "EXCLUSIVE"):
        caller = Caller(enqueueing(storage, new_job()))
        caller.join(PATIENCE)
        told_in_time = not caller.is_alive()
    finish_all([caller])

    assert told_in_time
    assert isinstance(caller.error, StorageUnavailable)


def test_a_file_that_another_program_is_writing_to_is_waited_for_when_it_is_opened_first(path: Path) -> None:
    storage = SQLite(path)
    own = sqlite3.connect(path, isolation_level=None)
    own.execute("CREATE TABLE accounts (name TEXT)")
    own.close()

    with locked(path):
        caller = Caller(enqueueing(storage, new_job("patient")))
        caller.join(0.3)  # it should be waiting now
    finish_all([caller])

    assert caller.error is None
    assert ids(find_all(storage)) == ["patient"]
    storage.close()


# --- closing --------------------------------------------------------------------------------------------------------


def test_a_closed_storage_opens_again_when_used(storage: SQLite) -> None:
    add(storage, "before")

    storage.close()
    storage.close()

    assert ids(find_all(storage)) == ["before"]
    add(storage, "after")
    assert storage._db.version() > 0
    assert sorted(ids(find_all(storage))) == ["after", "before"]


def test_a_closed_storage_leaves_nothing_but_its_file(storage: SQLite, path: Path) -> None:
    add(storage)

    storage.close()

    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_closing_while_others_read_and_write_harms_none_of_them(storage: SQLite) -> None:
    add(storage)
    done = threading.Event()

    def use() -> int:
        number = 0
        while not done.is_set():
            storage.enqueue([new_job()])
            assert storage.get("nobody") is None
            number += 1
        return number

    users = [Caller(use) for _ in range(3)]
    for _ in range(50):
        storage.close()
    done.set()
    finish_all(users)

    assert [user.error for user in users] == [None] * 3
    assert storage.count(Filter()).number == 1 + sum(user.answer for user in users)


def test_closing_while_another_thread_waits_does_not_hang(storage: SQLite) -> None:
    add(storage)
    done = threading.Event()
    closings = [0]

    def look() -> None:
        for _ in range(200):
            seen = closings[0]
            storage._notifier.note_version()
            until(lambda seen=seen: closings[0] > seen, "it was closed again")  # type: ignore[misc]
        done.set()

    def close() -> None:
        while not done.is_set():
            storage.close()
            closings[0] += 1

    threads = [Caller(look), Caller(close)]
    in_time = done.wait(PATIENCE)
    done.set()

    if not in_time:
        storage._db._forget()  # or the fixture would hang too
    assert in_time
    finish_all(threads)
