"""An estate: a storage with something of everything in it, and all that can be read from a storage, to compare two."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from packhorse.conformance.builders import (
    FAILURE,
    add,
    find_all,
    finish,
    history,
    in_every_state,
    in_state,
    new_job,
    new_jobs,
    run,
    unique,
)
from packhorse.core.clock import DAY, HOUR, MINUTE, SECOND, ManualClock
from packhorse.core.event import Subject
from packhorse.core.job import COMPLETED, HELD, QUEUED, State
from packhorse.core.outcome import Completed, Failed, Halted
from packhorse.storage.contract import Storage
from packhorse.storage.records import (
    CheckIn,
    ClientInfo,
    EventFilter,
    Filter,
    LogLine,
    ScheduleInfo,
    Span,
    TaskInfo,
    Tick,
    WorkerInfo,
)


def fill(storage: Storage, clock: ManualClock) -> None:
    """Jobs in every state that no worker holds, in queues, with locks and subscribers; schedules, charts, old
    events."""
    storage.join(WorkerInfo("foreman", Subject.FOREMAN, host="mule"))
    storage.announce([TaskInfo("send", "mail", {"retries": 3, "über": [1.5, None]}), TaskInfo("never", "never")])
    for client in ("carl", "dora"):
        storage.join_client(ClientInfo(client, f"the shop of {client}", {"pid": 7}))
    for lived in (False, True):
        _end_held(storage, in_every_state(storage, lived=lived, subscriber="carl"))
    _odd_jobs(storage)
    clock.turn(4 * HOUR // SECOND)
    storage.roll_up()
    _lines(storage)
    _gone_jobs(storage)
    _schedules(storage, clock)
    storage.pause("mail", by="ann", why="the server is being moved")
    storage.pause("unused")
    storage.pause("for a while", duration=30 * HOUR)
    storage.record_stat("foreman", {"done": 3, "rss": 96.5})
    storage.leave("ann")


def _end_held(storage: Storage, jobs: dict[State, Any]) -> None:
    storage.finish([Completed(job.token, '"späť"', ran=3 * SECOND) for state, job in jobs.items() if state in HELD])


def _odd_jobs(storage: Storage) -> None:
    add(storage, "with a blank, and ünïcode", queue="q: 🐴/∑", task="täsk.näme", args='{"naïve":"\\u0000 🐴"}')
    add(storage, args='{"x":"' + "y" * 5_000 + '"}', meta='{"a":1}', backoff='{"type":"none"}', created_by="ann")
    add(storage, persistent=True, priority=10, timeout=MINUTE, idle_timeout=SECOND, expires=DAY, total_timeout=2 * DAY)
    add(storage, delay=30 * DAY, unique=unique("later", period=DAY), schedule="nightly", max_attempts=1, max_halts=9)
    holder = add(storage, queue="locked", unique=unique("k", until="start"))
    storage.enqueue([new_job("twin", queue="locked", args='{"n":2}', unique=unique("k", on_conflict="replace"))])
    storage.subscribe("dora", [holder.id])
    ended = in_state(storage, COMPLETED, unique=unique("kept", period=365 * DAY), subscriber="dora")
    storage.subscribe("carl", [ended.id])
    running = run(storage, add(storage, queue="halting"))
    storage.check_in([CheckIn(running.token, "half way", 50, "pages")])
    storage.append_log(running.token, [LogLine("a line"), LogLine("λ another\n🐴")])
    finish(storage, Halted(running.token, "killed by signal 9", SECOND))
    broken = run(storage, add(storage, queue="failing", task="resize"))
    finish(storage, Failed(broken.token, replace(FAILURE, version="v1"), retry_in=HOUR, ran=20))
    storage.silence_failure(storage.failures()[0].cause, 2 * DAY, by="ann")
    storage.silence_failure(storage.failures()[0].cause, 365 * DAY, version="v1", by="ann")


def _lines(storage: Storage) -> None:
    """Jobs of several ranks, one line of them changed about by an operator."""
    jobs = new_jobs(12, queue="line")
    storage.enqueue([*jobs[:6], *new_jobs(7, queue="other", priority=5), *jobs[6:]])
    storage.force_start([jobs[3].id], by="ann")
    storage.set_priority([jobs[8].id, jobs[1].id], 9, by="boris")
    storage.abort([jobs[5].id], by="ann")


def _gone_jobs(storage: Storage) -> None:
    """Their events stay; and there is a gap in the numbers."""
    jobs = new_jobs(5, queue="gone")
    storage.enqueue(jobs)
    storage.delete([job.id for job in jobs], by="ann")


def _schedules(storage: Storage, clock: ManualClock) -> None:
    now = clock()
    storage.put_schedules(
        [
            ScheduleInfo("nightly", "send", "0 7 * * *", "Europe/Ljubljana", '{"n":1}', "mail", {"p": 1}, next_at=now),
            ScheduleInfo("paused", "send", "* * * * *", next_at=now + HOUR),
        ]
    )
    for slot in (now, now + MINUTE):
        clock.turn(60)
        new = new_job(f"nightly-{slot}", queue="mail", schedule="nightly")
        storage.tick("nightly", slot, slot + MINUTE, [new], [Tick("nightly", slot, "enqueued", 0, new.id)])
    storage.pause_schedule("paused", True, by="ann")


def read_everything(storage: Storage) -> dict[str, Any]:
    """The results of all reading operations, without workers."""
    jobs = find_all(storage)
    queues = [queue.name for queue in storage.queues()]
    clients = [client.id for client in storage.clients()]
    return {
        "jobs": jobs,
        "lines": {name: find_all(storage, Filter(states=frozenset({QUEUED}), queue=name)) for name in queues},
        "by state": {state: find_all(storage, Filter(states=frozenset({state}))) for state in State},
        "events": storage.events(EventFilter(), limit=100_000),
        "newest events": storage.events(EventFilter(), limit=7, newest_first=True),
        "histories": {job.id: history(storage, job.id) for job in jobs},
        "events about": {subject: storage.events(EventFilter(subject=subject), limit=9_999) for subject in Subject},
        "logs": {job.id: storage.log_lines(job.id) for job in jobs},
        "tallies": storage.tallies(),
        "queues": storage.queues(),
        "tasks": storage.tasks(),
        "schedules": storage.schedules(),
        "ticks": {one.name: storage.ticks(one.name) for one in storage.schedules()},
        "clients": storage.clients(),
        "subscribers": {job.id: storage.subscribers(job.id) for job in jobs},
        "outcomes": {client: storage.outcomes_for(client) for client in clients},
        "failures": storage.failures(),
        "failures over time": {span: storage.failures(span=span) for span in Span},
        "series": {span: _points(storage, span) for span in Span},
        "totals": storage.totals(),
        "next due": storage.next_due(),
        # `moved` and `looked_to` describe the storage, not what it contains.
        "outlook": replace(storage.poll("unknown", []), moved=False, looked_to=0),
    }


def _points(storage: Storage, span: Span) -> list[Any]:
    return [(point.at, point.queue, point.task, sorted(point.values.items())) for point in storage.series(span)]


def as_closed(told: dict[str, Any]) -> dict[str, Any]:
    """The same for a storage that was moved: nothing is due any more."""
    seen = told["outlook"]
    times = {name: getattr(seen, name) or None for name in ("due_in", "expires_in", "ticks_in")}
    return told | {"next due": None, "outlook": replace(seen, **times)}


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, part in expected.items():
        assert found[name] == part, name
