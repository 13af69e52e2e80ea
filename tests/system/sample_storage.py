"""A small sample of stored things, and one call of every operation of the contract that changes it.

The clock stands still, so a call made twice on equal files leaves equal files. That is what lets
`test_killed_in_the_middle.py` say: the file is exactly as before, or exactly as after.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from packhorse.core.clock import DAY, HOUR, MINUTE, SECOND, ManualClock
from packhorse.core.event import ForemanAction, ForemanOrder, Kind
from packhorse.core.job import NewJob, Token, UniqueLock
from packhorse.core.outcome import Completed, Failed, Failure, Snoozed, Stopped
from packhorse.storage.contract import Storage
from packhorse.storage.records import (
    CheckIn,
    ClientInfo,
    LogLine,
    Retention,
    ScheduleInfo,
    TaskInfo,
    Tick,
    WorkerInfo,
)
from packhorse.storage.sqlite import SQLite
from packhorse.storage.sqlite.database import Options
from packhorse.storage.sqlite.schema import MIGRATIONS, SCHEMA, Migration, prepare
from packhorse.storage.transfer import Move, Section, Stage
from tests.unchecked import unchecked

BEGINNING = 1_800_000_000 * SECOND
NOW = BEGINNING + 40 * DAY
LEASE = 15 * SECOND
MARK = Move("copy", Stage.FILLING, "memory://", NOW)
LONG_ARGS = f'{{"text":"{"x" * 5_000}"}}'
FAILURE = Failure("ValueError", "no such address: 17", place="mail.py:12")
TOMORROW: Migration = (
    SCHEMA + 1,
    "tomorrow.sql",
    "ALTER TABLE packhorse_job ADD COLUMN colour TEXT NOT NULL DEFAULT 'red';\n"
    "CREATE INDEX packhorse_job_colour ON packhorse_job (colour);\n"
    "CREATE TABLE packhorse_colour (name TEXT) STRICT;\n"
    "INSERT INTO packhorse_colour (name) VALUES ('red');\n",
)
QUEUES = {"mail": 1, "print": 2, "waiting": 1}


def open_sample(path: Path) -> SQLite:
    """The sample as it is now."""
    return SQLite(path, now=ManualClock(NOW), options=Options(synchronous="off"))  # killing needs no flushing


def build(path: Path) -> None:
    """Make the sample in a file."""
    clock = ManualClock(BEGINNING)
    storage = SQLite(path, now=clock, options=Options(synchronous="off"))
    fill(storage, clock)
    storage.close()


def fill(storage: Storage, clock: ManualClock) -> None:
    """Make the sample: what happened forty days ago, and what is going on now."""
    clock.set(BEGINNING)
    _build_the_past(storage)
    clock.set(NOW - 10 * SECOND)
    _build_what_waits(storage)
    _build_what_is_held(storage)
    _build_what_ended(storage)
    clock.set(NOW)
    storage.heartbeat({"ann": {}})


def migrate(path: Path) -> None:
    """Bring the file to the schema of tomorrow."""
    connection = sqlite3.connect(path, isolation_level=None)
    prepare(connection, path, [*MIGRATIONS, TOMORROW])
    connection.close()


def job(job_id: str, queue: str = "mail", **options: object) -> NewJob:
    return NewJob(job_id, f"do_{queue}", queue, **options)  # type: ignore[arg-type]


def token(job_id: str) -> Token:
    """Ann's, of a job that she has reserved once."""
    return Token(job_id, "ann", 1)


def _hold(storage: Storage, owner: str, *job_ids: str, begun: bool = True) -> None:
    storage.enqueue([job(job_id, "held", total_timeout=60 * DAY) for job_id in job_ids])
    taken = storage.reserve(owner, {"held": 1}, 100)
    assert [one.id for one in taken] == list(job_ids)
    if begun:
        storage.start([one.token for one in taken])


def _build_the_past(storage: Storage) -> None:
    storage.join(WorkerInfo(id="bob", host="old"))
    storage.join_client(ClientInfo(id="silent-client"))
    _hold(storage, "bob", "old-1", "old-2", "old-3")
    storage.finish([Completed(Token(f"old-{n}", "bob", 1), ran=SECOND) for n in (1, 2, 3)])
    _hold(storage, "bob", "lost-1", "lost-2")
    _hold(storage, "bob", "lost-3", begun=False)


def _build_what_waits(storage: Storage) -> None:
    storage.enqueue([job(f"mail-{n}") for n in range(1, 6)])
    storage.enqueue([job("print-1", "print", priority=3), job("print-2", "print", priority=9)])
    storage.enqueue([job("long", "waiting", args=LONG_ARGS), job("paused", "paused")])
    storage.enqueue([job(f"due-{n}", "waiting", delay=SECOND) for n in (1, 2)])
    storage.enqueue([job("later", "waiting", delay=HOUR)])
    storage.enqueue([job(f"expired-{n}", "waiting", expires=SECOND) for n in (1, 2)])
    storage.enqueue([job("unique", "waiting", unique=UniqueLock("k"))])
    storage.pause("paused", by="eve")
    nightly = ScheduleInfo("nightly", "do_mail", "0 3 * * *", next_at=NOW - SECOND)
    weekly = ScheduleInfo("weekly", "do_mail", "0 3 * * 1", next_at=NOW + DAY)
    storage.put_schedules([nightly, weekly])


def _build_what_is_held(storage: Storage) -> None:
    storage.join(WorkerInfo(id="ann", host="new"))
    storage.join_client(ClientInfo(id="client"))
    _hold(storage, "ann", *(f"run-{n}" for n in range(1, 7)))
    _hold(storage, "ann", "reserved-1", "reserved-2", begun=False)
    storage.append_log(token("run-1"), [LogLine(f"line {n}") for n in range(5)])
    storage.abort(["run-6"], by="eve")
    storage.enqueue([job("overdue", "held", total_timeout=SECOND)])
    storage.reserve("ann", {"held": 1}, 1)


def _build_what_ended(storage: Storage) -> None:
    _hold(storage, "ann", "dead", "retrying", "completed-1", "completed-2")
    storage.finish(
        [
            Failed(token("dead"), FAILURE),
            Failed(token("retrying"), FAILURE, retry_in=SECOND),
            Completed(token("completed-1"), '"sent"'),
            Completed(token("completed-2"), '"sent"'),
        ]
    )
    storage.enqueue([job("aborted", "waiting")])
    storage.abort(["aborted"])
    storage.subscribe("client", ["completed-1", "completed-2", "mail-1"])


class Operation(NamedTuple):
    """One call. `method` is the contract's name for it; `repeats` says that making it again changes nothing more."""

    name: str
    method: str
    call: Callable[[Storage], object]
    repeats: bool = True


def _operation(method: str, call: Callable[[Storage], object], case: str = "", *, repeats: bool = True) -> Operation:
    return Operation(f"{method}-{case}" if case else method, method, call, repeats)


def _enqueue_within(storage: Any, jobs: list[NewJob]) -> None:
    """By a connection of the caller's own, who commits."""
    connection = sqlite3.connect(storage.path)
    storage.enqueue_within(connection, jobs)
    connection.commit()
    connection.close()


OPERATIONS = [
    # in and out
    _operation("enqueue", lambda s: s.enqueue([job("new")]), "one"),
    _operation(
        "enqueue",
        lambda s: s.enqueue([job("new-1", "new"), job("new-2", args=LONG_ARGS), job("new-3", delay=HOUR)]),
        "batch",
    ),
    _operation("enqueue", lambda s: s.enqueue([job("new-1"), job("mail-1"), job("new-2")]), "half-known"),
    _operation(
        "enqueue",
        lambda s: s.enqueue(
            [
                job("new-1", unique=UniqueLock("another")),
                job("new-2", unique=UniqueLock("k")),
                job("new-3", subscriber="client"),
            ]
        ),
        "unique",
    ),
    _operation(
        "enqueue",
        lambda s: s.enqueue([job("new", unique=UniqueLock("k", on_conflict="replace"), args=LONG_ARGS)]),
        "replacing",
        repeats=False,
    ),
    _operation(
        "enqueue_within", lambda s: _enqueue_within(s, [job("new-1"), job("new-2", unique=UniqueLock("another"))])
    ),
    _operation("announce", lambda s: s.announce([TaskInfo("do_mail", "mail"), TaskInfo("do_new", "new")])),
    # working
    _operation("reserve", lambda s: s.reserve("ann", QUEUES, 100)),
    _operation("start", lambda s: s.start([token("reserved-1"), token("reserved-2")])),
    _operation(
        "finish",
        lambda s: s.finish(
            [
                Completed(token("run-1"), '"sent"', ran=SECOND),
                Failed(token("run-2"), FAILURE, retry_in=MINUTE),
                Failed(token("run-3"), FAILURE),
                Snoozed(token("run-4"), delay=MINUTE),
                Failed(token("run-5"), FAILURE, retry_in=0),
                Stopped(token("run-6")),
                Completed(token("reserved-1"), ran=SECOND),
                Completed(Token("reserved-2", "bob", 1)),
            ]
        ),
    ),
    _operation("release", lambda s: s.release([token("run-1"), token("run-6"), token("reserved-1")], "stopping")),
    _operation(
        "check_in",
        lambda s: s.check_in([CheckIn(token("run-1"), "half", 50, "%"), CheckIn(token("run-6"), "on")]),
        repeats=False,
    ),
    _operation(
        "append_log", lambda s: s.append_log(token("run-1"), [LogLine("six"), LogLine("seven")], keep=3), repeats=False
    ),
    _operation(
        "finish_and_reserve",
        lambda s: s.finish_and_reserve([Completed(token("run-1")), Completed(token("run-2"))], "ann", QUEUES, 100),
    ),
    _operation("wait_and_reserve", lambda s: s.wait_and_reserve("ann", QUEUES, 100, 0.01)),
    # steering
    _operation("abort", lambda s: s.abort(["mail-1", "later", "retrying", "run-1", "run-6", "nobody"], by="eve")),
    _operation("force_start", lambda s: s.force_start(["mail-5", "later", "paused", "run-1"]), repeats=False),
    _operation("set_priority", lambda s: s.set_priority(["mail-5", "later", "run-1"], 10), repeats=False),
    _operation("set_queue", lambda s: s.set_queue(["mail-5", "later", "dead", "run-1"], "slow"), repeats=False),
    _operation("retry", lambda s: s.retry(["dead", "aborted", "retrying", "mail-1"], by="eve")),
    _operation("delete", lambda s: s.delete(["mail-1", "long", "unique", "completed-1", "dead", "run-1"], by="eve")),
    _operation("pause", lambda s: s.pause("mail", by="eve", why="a storm")),
    _operation("resume", lambda s: s.resume("paused", by="eve")),
    # upkeep
    _operation("promote", lambda s: s.promote()),
    _operation("expire", lambda s: s.expire()),
    _operation("rescue", lambda s: s.rescue(lease=LEASE, why="silent")),
    _operation("rescue_owner", lambda s: s.rescue_owner("ann", foreman="ann", why="died", ran=["reserved-1"])),
    _operation("prune", lambda s: s.prune(Retention())),
    _operation("roll_up", lambda s: s.roll_up()),
    # schedules
    _operation(
        "put_schedules",
        lambda s: s.put_schedules(
            [
                ScheduleInfo("nightly", "do_print", "0 3 * * *", next_at=NOW + DAY),
                ScheduleInfo("weekly", "do_mail", "0 4 * * 1", next_at=NOW + DAY),
                ScheduleInfo("hourly", "do_mail", "0 * * * *", next_at=NOW + HOUR),
            ]
        ),
    ),
    _operation(
        "tick",
        lambda s: s.tick(
            "nightly",
            NOW - SECOND,
            NOW + DAY,
            [job("tick-1"), job("tick-2")],
            [Tick("nightly", NOW - SECOND, "enqueued", NOW, "tick-2"), Tick("nightly", NOW - DAY, "missed", NOW)],
        ),
    ),
    _operation("pause_schedule", lambda s: s.pause_schedule("weekly", True, by="eve")),
    _operation(
        "record_operator_event",
        lambda s: s.record_operator_event("weekly", Kind.SKIPPED, slot=NOW, by="eve"),
        repeats=False,
    ),
    _operation("remove_schedule", lambda s: s.remove_schedule("weekly", by="eve")),
    # workers and clients
    _operation("join", lambda s: s.join(WorkerInfo(id="cid", host="new")), repeats=False),
    _operation("heartbeat", lambda s: s.heartbeat({"ann": {"running": 6}, "bob": {}, "nobody": {}})),
    _operation("leave", lambda s: s.leave("ann")),
    _operation("order", lambda s: s.order("ann", ForemanOrder(ForemanAction.STOP), by="eve"), repeats=False),
    _operation("record_stat", lambda s: s.record_stat("ann", {"completed": 2}), repeats=False),
    _operation("join_client", lambda s: s.join_client(ClientInfo(id="new-client", name="shop"))),
    _operation("leave_client", lambda s: s.leave_client("client")),
    _operation("subscribe", lambda s: s.subscribe("client", ["mail-2", "dead", "nobody"])),
    _operation("acknowledge", lambda s: s.acknowledge("client", ["completed-1", "completed-2", "mail-1"])),
    # records
    _operation("silence_failure", lambda s: s.silence_failure(s.failures()[0].cause, DAY, by="eve"), repeats=False),
    # moving
    _operation("set_move", lambda s: s.set_move(MARK, expected=None)),
    _operation(
        "load",
        lambda s: unchecked(s, "load")(  # the checks want a mark that is there
            Section.TICKS, [Tick("nightly", slot, "missed", NOW) for slot in (1, 2)], MARK, expected=None
        ),
    ),
]
BY_NAME = {operation.name: operation for operation in OPERATIONS}
assert len(BY_NAME) == len(OPERATIONS)

# Everything else in the contract.
ONLY_READING = frozenset(
    {
        *("approximate_now", "can_be_read_beside", "connections"),
        *("close", "now", "health", "wait", "interrupt", "pending_migrations", "require_existing", "measured"),
        "migrate",  # opening the file does it, which is killed in a test of its own
        *("get", "get_many", "find", "find_by_id", "count", "tallies", "queues", "tasks"),
        *("next_due", "schedules", "ticks"),
        *("abort_requests", "poll", "workers", "clients", "subscribers", "outcomes_for"),
        *("events", "log_lines", "failures", "series", "totals"),
        *("move", "dump"),
    }
)
