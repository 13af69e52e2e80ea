"""Calls whose answer was lost after the server had done them: repeating them leaves what one of them would have left.

Each operation is done twice: on a storage that is spoken to directly, and on one behind a line that loses the answer to
the first script, then to the second, and so on. After it both must hold exactly the same. Losing an answer and a
refused write look the same from here, so this also sees operations that are done in several steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from packhorse.conformance.builders import FAILURE, WORKER, find_all, ids, in_state, join, new_job, unique
from packhorse.core.clock import HOUR, SECOND, ManualClock
from packhorse.core.errors import StorageUnavailable
from packhorse.core.event import Kind, Subject
from packhorse.core.job import COMPLETED, DEAD, HELD, QUEUED, RESERVED, RETRYING, RUNNING, Job, Reason
from packhorse.core.outcome import Completed, Failed, Released, Snoozed, Stopped
from packhorse.storage import open_storage
from packhorse.storage.contract import Storage
from packhorse.storage.records import (
    CheckIn,
    ClientInfo,
    EventFilter,
    Filter,
    LogLine,
    Retention,
    ScheduleInfo,
    TaskInfo,
    Tick,
    WorkerInfo,
)
from tests.proxy import Proxy, proxy_to
from tests.redis_server import fresh_url, shared_server

SLOT = 1_800_000_000 * SECOND

Operation = Callable[[Storage, dict[str, Job]], object]

OPERATIONS: dict[str, Operation] = {
    "enqueue": lambda storage, jobs: storage.enqueue([new_job("a"), new_job("b", delay=HOUR), new_job("c")]),
    "enqueue unique": lambda storage, jobs: storage.enqueue([new_job("a", unique=unique("k")), new_job("b")]),
    "enqueue a twin": lambda storage, jobs: storage.enqueue([new_job("a", unique=unique("held"))]),
    "enqueue in place": lambda storage, jobs: storage.enqueue(
        [new_job("a", args='{"x":1}', unique=unique("held", on_conflict="replace"))]
    ),
    "enqueue for a client": lambda storage, jobs: storage.enqueue([new_job("a", subscriber="web")]),
    "start": lambda storage, jobs: storage.start([jobs["reserved"].token]),
    "complete": lambda storage, jobs: storage.finish([Completed(jobs["running"].token, result="1", ran=5)]),
    "complete unstarted": lambda storage, jobs: storage.finish([Completed(jobs["reserved"].token, ran=5)]),
    "fail": lambda storage, jobs: storage.finish([Failed(jobs["running"].token, FAILURE, retry_in=HOUR)]),
    "break": lambda storage, jobs: storage.finish([Failed(jobs["running"].token, FAILURE)]),
    "snooze": lambda storage, jobs: storage.finish([Snoozed(jobs["running"].token, delay=HOUR)]),
    "stop": lambda storage, jobs: storage.finish([Stopped(jobs["running"].token, Reason.ABORTED)]),
    "hand back": lambda storage, jobs: storage.finish([Released(jobs["running"].token, "why")]),
    "finish a mixture": lambda storage, jobs: storage.finish(
        [Completed(jobs["running"].token, ran=5), Failed(jobs["reserved"].token, FAILURE)]
    ),
    "release": lambda storage, jobs: storage.release([jobs["reserved"].token], "why"),
    "check in": lambda storage, jobs: storage.check_in([CheckIn(jobs["running"].token, "half", 50, "pages")]),
    "append to the log": lambda storage, jobs: storage.append_log(jobs["running"].token, [LogLine("x"), LogLine("y")]),
    "abort": lambda storage, jobs: storage.abort([jobs["queued"].id, jobs["running"].id], by="ann"),
    "force start": lambda storage, jobs: storage.force_start([jobs["retrying"].id], by="ann"),
    "set queue": lambda storage, jobs: storage.set_queue([jobs["queued"].id], "slow", by="ann"),
    "set priority": lambda storage, jobs: storage.set_priority([jobs["queued"].id], 9, by="ann"),
    "retry": lambda storage, jobs: storage.retry([jobs["dead"].id], by="ann"),
    "delete": lambda storage, jobs: storage.delete([jobs["dead"].id, jobs["queued"].id], by="ann"),
    "pause": lambda storage, jobs: storage.pause("mail", by="ann", why="storm"),
    "resume": lambda storage, jobs: storage.resume("paused", by="ann"),
    "promote": lambda storage, jobs: storage.promote(),
    "expire": lambda storage, jobs: storage.expire(),
    "rescue": lambda storage, jobs: storage.rescue(lease=SECOND, why="silent"),
    "rescue an owner": lambda storage, jobs: storage.rescue_owner(WORKER, foreman=WORKER, why="died"),
    "prune": lambda storage, jobs: storage.prune(Retention(completed=0, dead=0, events=0, clients=0)),
    "roll up": lambda storage, jobs: storage.roll_up(),
    "put a schedule": lambda storage, jobs: storage.put_schedules([schedule("nightly")]),
    "tick": lambda storage, jobs: storage.tick(
        "daily", SLOT, SLOT + HOUR, [new_job("a")], [Tick("daily", SLOT, "enqueued", 0, "a")]
    ),
    "pause a schedule": lambda storage, jobs: storage.pause_schedule("daily", True, by="ann"),
    "record a deed": lambda storage, jobs: storage.record_operator_event("daily", Kind.RUN_NOW, job="a", by="ann"),
    "remove a schedule": lambda storage, jobs: storage.remove_schedule("daily", by="ann"),
    "join": lambda storage, jobs: storage.join(WorkerInfo(id="bob", host="here", pid=1)),
    "beat": lambda storage, jobs: storage.heartbeat({WORKER: {"jobs": 3}, "nobody": {}}),
    "leave": lambda storage, jobs: storage.leave(WORKER, why="stopped"),
    "record a stat": lambda storage, jobs: storage.record_stat(WORKER, {"done": 3}),
    "join a client": lambda storage, jobs: storage.join_client(ClientInfo(id="shop", name="Shop")),
    "leave a client": lambda storage, jobs: storage.leave_client("web"),
    "subscribe": lambda storage, jobs: storage.subscribe("web", [jobs["queued"].id, jobs["completed"].id]),
    "acknowledge": lambda storage, jobs: storage.acknowledge("web", [jobs["wanted"].id]),
    "announce": lambda storage, jobs: storage.announce([TaskInfo("send", "mail", {"retries": 3})]),
}


def schedule(name: str) -> ScheduleInfo:
    return ScheduleInfo(name, task="send", cron="0 7 * * *", next_at=SLOT)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with proxy_to(shared_server().port) as proxy:
        yield proxy


def furnish(storage: Storage) -> dict[str, Job]:
    """Something of everything, the same each time."""
    join(storage)
    storage.join_client(ClientInfo(id="web"))
    jobs = {
        state.value: in_state(storage, state, queue=f"line-{state.value}")
        for state in (QUEUED, RESERVED, RUNNING, RETRYING, COMPLETED, DEAD)
    }
    storage.enqueue([new_job("holder", unique=unique("held")), new_job("due", delay=SECOND)])
    storage.enqueue([new_job("expiring", expires=SECOND)])
    jobs["wanted"] = in_state(storage, COMPLETED, queue="line-wanted", subscriber="web")
    storage.pause("paused")
    storage.put_schedules([schedule("daily")])
    return jobs


def all_of(storage: Storage) -> dict[str, Any]:
    """Everything that a storage shows, without the numbers that each may give as it likes."""
    jobs = [replace(job, seq=0) for job in find_all(storage)]
    return {
        "jobs": jobs,
        "lines": {job.id: [replace(line, id=0) for line in storage.log_lines(job.id)] for job in jobs},
        "in line": ids(find_all(storage, Filter(states=frozenset({QUEUED})))),
        "held": ids(find_all(storage, Filter(states=HELD, owner=WORKER))),
        "events": [replace(event, id=0) for event in storage.events(EventFilter(), limit=1_000)],
        "tallies": sorted((one.queue, one.task, one.state, one.number) for one in storage.tallies() if one.number),
        "queues": storage.queues(),
        "tasks": storage.tasks(),
        "totals": storage.totals(),
        "failures": storage.failures(),
        "schedules": storage.schedules(),
        "ticks": storage.ticks("daily"),
        "workers": storage.workers(),
        "clients": storage.clients(),
        "outcomes": [replace(job, seq=0) for job in storage.outcomes_for("web")],
        "subscribers": {job.id: storage.subscribers(job.id) for job in jobs},
        "stops": storage.abort_requests([WORKER]),
        "next due": storage.next_due(),
        "outlook": storage.poll("nobody", [WORKER]),
    }


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_whose_reply_was_lost_is_done_once(name: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch):
    expected = _after(OPERATIONS[name], fresh_url(), monkeypatch)
    found: list[dict[str, Any]] = []

    for number in itertools.count(1):
        proxy.lose_answers(b"EVAL", first=number)
        after = _after(OPERATIONS[name], fresh_url(), monkeypatch, proxy)
        if not proxy.lost:
            break  # it sends fewer scripts than that
        found.append(after)

    assert found
    assert [after for after in found if after != expected] == []


def _after(
    operation: Operation, url: str, monkeypatch: pytest.MonkeyPatch, proxy: Proxy | None = None
) -> dict[str, Any]:
    """What there is after an operation, which is done through the proxy where one is given."""
    monkeypatch.setattr("packhorse.conformance.builders._numbers", iter(range(10**6)))
    clock = ManualClock(SLOT - 2 * HOUR)
    storage = open_storage(url, now=clock)
    jobs = furnish(storage)
    clock.turn("2h")
    disturbed = storage if proxy is None else open_storage(proxy.instead_of(url), now=clock)
    try:
        operation(disturbed, jobs)
        return all_of(storage)
    finally:
        disturbed.close()
        storage.close()


# --- reserving is not repeated --------------------------------------------------------------------------------------


@pytest.fixture
def behind(proxy: Proxy) -> Iterator[Storage]:
    storage = open_storage(proxy.instead_of(fresh_url()))
    join(storage)
    storage.enqueue([new_job(f"job-{number}") for number in range(10)])
    storage.finish_and_reserve([], WORKER, {"other": 1}, 1)
    storage.reserve(WORKER, {"other": 1}, 1)
    yield storage
    storage.close()


def test_jobs_of_a_reserve_whose_reply_was_lost_are_found_by_their_owner(behind: Storage, proxy: Proxy):
    proxy.lose_answers(b"EVAL")

    with pytest.raises(StorageUnavailable):
        behind.reserve(WORKER, {"mail": 1}, 4)

    held = find_all(behind, Filter(states=HELD, owner=WORKER))
    assert sorted(ids(held)) == ["job-0", "job-1", "job-2", "job-3"]
    assert ids(behind.reserve(WORKER, {"mail": 1}, 100)) == [f"job-{number}" for number in range(4, 10)]


def test_outcomes_sent_together_with_a_lost_reserve_are_stored_once(behind: Storage, proxy: Proxy):
    first = behind.reserve(WORKER, {"mail": 1}, 4)
    outcomes = [Completed(job.token, ran=1) for job in first]
    proxy.lose_answers(b"EVAL")

    with pytest.raises(StorageUnavailable):
        behind.finish_and_reserve(outcomes, WORKER, {"mail": 1}, 4)
    verdicts, _ = behind.finish_and_reserve(outcomes, WORKER, {"mail": 1}, 0)

    assert [verdict.value for verdict in verdicts] == ["repeated"] * 4
    assert len(find_all(behind, Filter(states=frozenset({COMPLETED})))) == 4
    assert len(find_all(behind, Filter(states=HELD, owner=WORKER))) == 4
    finished = behind.events(EventFilter(subject=Subject.JOB), limit=1_000)
    assert [event.kind.value for event in finished].count("completed") == 4
