"""What may be written: every call that changes something refuses wrong values, alike on every storage, and stores
nothing of them; whatever it takes can be read and shown."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from packhorse import Packhorse
from packhorse.conformance.builders import FAILURE, add, join, new_job, run, stored, unique
from packhorse.conformance.sample_data import read_everything
from packhorse.core.clock import END, LATEST, LONGEST, SECOND
from packhorse.core.errors import BadValue, PackhorseError
from packhorse.core.event import ForemanAction, ForemanOrder, Kind, Subject, kind_of
from packhorse.core.job import NewJob, Reason, Token
from packhorse.core.outcome import Completed, Failed, Halted, Released, Snoozed, Stopped
from packhorse.monitor.serializers import event_fields, job_fields, schedule_fields, worker_fields
from packhorse.storage.checks import WRITES, _new_jobs, _Wrong
from packhorse.storage.contract import Storage
from packhorse.storage.records import (
    CheckIn,
    ClientInfo,
    EventFilter,
    Filter,
    JobVersion,
    LogLine,
    Retention,
    ScheduleInfo,
    TaskInfo,
    Tick,
    WorkerInfo,
)
from tests.storage.conftest import ADDRESSES, give_back, storages

NUL, HALF = "a\0b", "a\ud800b"
WRONG_FOR_TEXT: list[Any] = [7, 1.5, True, b"x", ["x"], {"a": 1}, NUL, HALF, "x" * 1_000_001]
WRONG_FOR_NUMBERS: list[Any] = [
    "7", 1.5, float("nan"), float("inf"), True, b"7", [7], {"a": 7}, 2**63, -(2**63) - 1, 10**40,
]  # fmt: skip
WRONG_FOR_FLAGS: list[Any] = [0, 1, "yes", None, [True]]
WRONG_FOR_THE_REST: list[Any] = [7, "x", b"x", 1.5, True, [[[7]]], object()]
WRONG_JSON = [
    "{", "nope", '{"a":NaN}', '{"a":"\ud800"}', "[" * 100 + "]" * 100, "[" * 100_000, NUL, '{"a":[1e999]}', "7" * 5_000,
]  # fmt: skip

TOKEN = Token("held", "ann", 1)
EVERY_FIELD = NewJob(
    "whole", "send", "mail", '{"n":1}', 3, 5, None, 4, 3, 1, 2, 3, 4, unique("k"), False, "ann", None, "nightly",
    '{"type":"none"}', '{"a":1}', "another",
)  # fmt: skip

CALLS: dict[str, dict[str, Any]] = {
    "enqueue": {"jobs": [EVERY_FIELD]},
    "announce": {"tasks": [TaskInfo("send", "mail", {"retries": 3})], "order": "created"},
    "reserve": {"owner": "ann", "queues": {"mail": 1}, "limit": 0},
    "start": {"tokens": [TOKEN], "agos": [1]},
    "finish": {"outcomes": [Completed(TOKEN, '{"n":1}', 1, 1)]},
    "finish_and_reserve": {"outcomes": [], "owner": "ann", "queues": {"mail": 1}, "limit": 0},
    "release": {"tokens": [TOKEN], "why": "stopping"},
    "check_in": {"checkins": [CheckIn(TOKEN, "half way", 50, "pages")]},
    "append_log": {"token": TOKEN, "lines": [LogLine("a line")], "keep": 10},
    "abort": {"job_ids": ["none"], "by": "ann", "seen": []},
    "force_start": {"job_ids": ["none"], "by": "ann"},
    "set_priority": {"job_ids": ["none"], "priority": 3, "by": "ann"},
    "retry": {"job_ids": ["none"], "by": "ann"},
    "delete": {"job_ids": ["none"], "by": "ann"},
    "set_queue": {"job_ids": ["none"], "queue": "mail", "by": "ann"},
    "pause": {"queue": "mail", "by": "ann", "why": "repairs", "duration": SECOND},
    "resume": {"queue": "mail", "by": "ann"},
    "promote": {"limit": 10},
    "expire": {"limit": 10},
    "rescue": {"lease": 100 * SECOND, "why": "silent", "limit": 10},
    "rescue_owner": {"owner": "nobody", "why": "died", "ran": ["none"], "limit": 10},
    "prune": {"keep": Retention(), "limit": 10},
    "put_schedules": {"schedules": [ScheduleInfo("nightly", "send", "0 7 * * *", next_at=7, options={"skip": 7})]},
    "tick": {
        "name": "nightly",
        "slot": 5,
        "next_at": 9,
        "jobs": [new_job("slot")],
        "ticks": [Tick("nightly", 5, "enqueued", 5, "slot")],
    },
    "pause_schedule": {"name": "nightly", "paused": True, "by": "ann"},
    "record_operator_event": {"name": "nightly", "kind": Kind.RUN_NOW, "job": "whole", "slot": 5, "by": "ann"},
    "remove_schedule": {"name": "none", "by": "ann"},
    "join": {"worker": WorkerInfo("bob", host="mule", pid=7, queues=["mail"], info={"a": 1}, report={"b": 1})},
    "heartbeat": {"reports": {"ann": {"done": 3}}},
    "leave": {"owner": "nobody", "why": "stopped", "ran": ["none"]},
    "record_stat": {"owner": "ann", "report": {"done": 3}},
    "order": {"owner": "ann", "order": ForemanOrder(ForemanAction.SCALE, "bob", 1, 2, 3), "by": "ann"},
    "join_client": {"client": ClientInfo("carl", "the shop", {"pid": 7})},
    "leave_client": {"client_id": "none"},
    "subscribe": {"client_id": "none", "job_ids": ["none"]},
    "acknowledge": {"client_id": "none", "job_ids": ["none"]},
    "silence_failure": {"cause": "none", "duration": SECOND, "version": "v1", "by": "ann"},
}
"""A call of each kind that is right in every part."""

OUTCOMES = [
    Completed(TOKEN, '{"n":1}', 1, 1),
    Failed(TOKEN, FAILURE, 1, Reason.FAILED, 1, 1),
    Snoozed(TOKEN, 1, 1, 1),
    Stopped(TOKEN, Reason.ABORTED, FAILURE, 1, 1),
    Halted(TOKEN, "killed", 1, 1, "v1"),
    Released(TOKEN, "stopping", 1, 1, 1),
]


def spoiled(value: Any, kind: Any = None, name: str = "") -> Iterator[tuple[str, Any]]:
    """This value with one part of it wrong, for every part and every way; with the name of the part."""
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            for part, wrong in spoiled(getattr(value, field), name=field):
                yield f"{name}.{part}", msgspec.structs.replace(value, **{field: wrong})
        yield from ((name, wrong) for wrong in WRONG_FOR_THE_REST)
    elif isinstance(value, list):
        yield from ((name, wrong) for wrong in (7, "x", True))
        for part, wrong in spoiled(value[0], name=name) if value else ():
            yield part, [wrong]
    elif isinstance(value, dict):
        yield from ((name, wrong) for wrong in (7, "x", [1], {"a": object()}, {"a": HALF}))
    elif name in ("args", "meta", "result", "backoff"):
        yield from ((name, wrong) for wrong in [*WRONG_JSON, *WRONG_FOR_TEXT[:6]])
    elif isinstance(value, Enum):
        yield from ((name, wrong) for wrong in WRONG_FOR_THE_REST)
    elif isinstance(value, bool):
        yield from ((name, wrong) for wrong in WRONG_FOR_FLAGS)
    elif isinstance(value, int):
        yield from ((name, wrong) for wrong in WRONG_FOR_NUMBERS)
    elif isinstance(value, str):
        yield from ((name, wrong) for wrong in WRONG_FOR_TEXT)


def is_shown(storage: Storage) -> bool:
    """Can all that is stored be read, and shown as JSON?"""
    seen = read_everything(storage)
    told = [
        *map(job_fields, seen["jobs"]),
        *map(event_fields, seen["events"]),
        *map(schedule_fields, seen["schedules"]),
        *(worker_fields(one, is_alive=True, holds=0) for one in storage.workers()),
    ]
    return bool(msgspec.json.decode(msgspec.json.encode(told)))


@pytest.fixture(params=storages("memory", "sqlite"))
def address(request: pytest.FixtureRequest, swift_path: Path) -> Iterator[str]:
    """The checks stand before the storages, so `make test` needs few of them."""
    url = ADDRESSES[request.param](swift_path)
    yield url
    give_back(url)


def test_every_call_that_writes_is_tried_here() -> None:
    assert {*CALLS, "enqueue_within", "wait_and_reserve", "set_move", "load"} == WRITES
    reading = {
        "close", "require_existing", "now", "health", "measured", "pending_migrations", "migrate", "get", "get_many",
        "find", "find_by_id", "count", "tallies", "queues", "tasks", "next_due", "roll_up", "schedules", "ticks",
        "abort_requests", "poll", "workers", "clients", "subscribers", "outcomes_for", "events", "log_lines",
        "failures", "approximate_now", "connections", "can_be_read_beside", "series", "totals", "move", "dump", "wait",
        "interrupt",
    }  # fmt: skip
    calls = {name for name, what in vars(Storage).items() if inspect.isfunction(what) and not name.startswith("_")}
    assert calls - reading == WRITES


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_value_in_any_part_of_a_call_is_refused_and_nothing_is_stored(storage: Storage, name: str) -> None:
    join(storage)
    storage.join_client(ClientInfo("none"))
    call = CALLS[name]
    before = read_everything(storage)

    for parameter, value in call.items():
        for part, wrong in spoiled(value, name=parameter):
            with pytest.raises(BadValue) as refused:
                getattr(storage, name)(**{**call, parameter: wrong})
            assert refused.value.what.startswith(f"{name}: {parameter}"), (part, wrong)

    assert read_everything(storage) == before
    getattr(storage, name)(**call)
    add(storage)
    assert is_shown(storage)


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda one: type(one).__name__)
def test_a_wrong_value_in_an_outcome_is_refused_and_the_job_goes_on(storage: Storage, outcome: Any) -> None:
    job = run(storage, add(storage))
    outcome = replace(outcome, token=job.token)

    for part, wrong in spoiled([outcome], name="outcomes"):
        with pytest.raises(BadValue):
            storage.finish(wrong)
        with pytest.raises(BadValue):
            storage.finish_and_reserve(wrong, "ann", {"mail": 1}, 1)
        assert part

    assert stored(storage, job.id) == job


@pytest.mark.parametrize("field", NewJob.__struct_fields__)
def test_a_job_that_is_plain_otherwise_is_refused_for_any_of_its_fields(field: str) -> None:
    plain = NewJob("plain", "send", "mail")

    _new_jobs([plain])  # from now on its names are known

    for wrong in (object(), [7], {"a": 1}, 1.0, b"x"):
        with pytest.raises(_Wrong):
            _new_jobs([replace(plain, **{field: wrong})])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"due_at": LATEST + 1}, "due_at is 95617584000000001"),
        ({"due_at": -1}, "due_at is -1"),
        ({"delay": LONGEST + 1}, "delay is"),
        ({"total_timeout": LONGEST + 1}, "total_timeout is"),
        ({"priority": 11}, "priority is 11"),
        ({"priority": 0}, "priority is 0"),
        ({"max_attempts": -1}, "max_attempts is -1"),
        ({"max_halts": 0}, "max_halts is 0"),
        ({"queue": "."}, "queue is '.'"),
        ({"queue": ".."}, "queue is '..'"),
        ({"task": ".."}, "task is '..'"),
        ({"queue": ""}, "queue has 0 characters"),
        ({"task": "a\nb"}, "task has a line end"),
        ({"created_by": "\x1b[31mroot"}, "created_by has a line end or another control character"),
        ({"unique": unique("")}, "unique.key has 0 characters"),
        ({"unique": unique(on_conflict="fight")}, "unique.on_conflict must be keep, replace or reject"),
        ({"unique": unique(until="never")}, "unique.until must be finish or start"),
        ({"backoff": '{"type":"fibonacci"}'}, "backoff cannot be read: backoff type must be one of"),
        ({"args": '{"n":1e999}'}, "args is not JSON that can be read"),
        ({"meta": '{"n":[1e999]}'}, "meta is not JSON that can be read"),
    ],
)
def test_a_job_that_nobody_could_run_is_refused(storage: Storage, words: dict[str, Any], said: str) -> None:
    with pytest.raises(BadValue) as refused:
        storage.enqueue([new_job(), new_job("wrong", **words)])

    assert f"jobs[1].{said}" in refused.value.what
    assert storage.find(Filter()).jobs == []


def test_the_longest_that_is_taken_can_be_shown(storage: Storage) -> None:
    join(storage)
    add(storage, "late", due_at=LATEST, expires=LONGEST, total_timeout=LONGEST, timeout=LONGEST, idle_timeout=LONGEST)
    add(storage, "slow", delay=LONGEST, unique=unique("k", period=LONGEST))
    job = run(storage, add(storage, expires=LONGEST, total_timeout=LONGEST))
    storage.finish([Failed(job.token, FAILURE, retry_in=LONGEST, ran=LONGEST, ago=LONGEST)])
    storage.pause("mail", duration=LONGEST)
    storage.put_schedules([ScheduleInfo("rare", "send", "@every 1000w", next_at=END)])

    assert is_shown(storage)


@pytest.mark.parametrize("kind", ["exploded", "", "ADDED"])
def test_an_event_of_a_kind_that_nobody_knows_is_refused(storage: Storage, kind: str) -> None:
    with pytest.raises(BadValue, match="record_operator_event: kind must be a kind of event"):
        storage.record_operator_event("nightly", kind_of(kind))

    assert storage.events(EventFilter()) == []


@pytest.mark.parametrize("subject", [Subject.JOB, Subject.CLIENT, "worker", "runner"])
def test_only_workers_and_foremen_join(storage: Storage, subject: Any) -> None:
    with pytest.raises(BadValue, match=r"join: worker\.subject must be worker or foreman"):
        storage.join(WorkerInfo("ann", subject))

    assert storage.workers() == []


def test_what_enqueue_middleware_garbles_is_refused_before_it_is_stored(storage: Storage) -> None:
    app = Packhorse(storage=storage)

    @app.task
    def send(n: int) -> None: ...

    @app.enqueue_middleware
    def tag(new: NewJob, forward: Any) -> Any:
        return forward(replace(new, meta=typing.cast(Any, {"tenant": "acme"})))

    with pytest.raises(BadValue, match=r"enqueue: jobs\[0\].meta must be JSON text, not {'tenant': 'acme'}"):
        send.enqueue(1)

    assert storage.find(Filter()).jobs == []


def test_what_was_seen_is_checked_with_the_ids(storage: Storage) -> None:
    job = add(storage)

    with pytest.raises(PackhorseError, match=r"abort: seen\[0\].updated_at"):
        storage.abort([job.id], seen=[replace(JobVersion.of(job), updated_at=-1)])

    assert stored(storage, job.id) == job
