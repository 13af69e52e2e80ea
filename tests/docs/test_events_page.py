"""docs/events.md lists every kind of event, what it is about, and what its data carries: no less and no more than a
storage writes."""

from __future__ import annotations

import re
from collections import defaultdict

from msgspec.structs import replace

from packhorse.conformance.builders import FAILURE, LEASE, add, finish, in_state, new_job, run, take, unique
from packhorse.core.clock import HOUR, ManualClock
from packhorse.core.event import Event, ForemanAction, ForemanOrder, Kind, Subject
from packhorse.core.job import COMPLETED, DEAD, QUEUED, RESERVED, RETRYING, RUNNING, SCHEDULED
from packhorse.core.outcome import Failed, Halted, Released, Snoozed, Stopped
from packhorse.storage.memory import Memory
from packhorse.storage.records import ClientInfo, EventFilter, Retention, ScheduleInfo, Tick, WorkerInfo
from tests.children import ROOT

PAGE = (ROOT / "docs" / "events.md").read_text("utf-8")
FIGURES = "its figures"


def rows() -> dict[str, tuple[set[str], set[str]]]:
    """Of each kind: what it is about, and what its data carries."""
    table = PAGE.partition("## Every kind")[2]
    found = re.findall(r"^\| (\w+) \| ([\w, ]+) \| [^|]+ \| ([\w, –]+) \|$", table, re.MULTILINE)
    return {kind: (words(of), words(data)) for kind, of, data in found if kind != "kind"}


def words(text: str) -> set[str]:
    return set() if text == "–" else set(text.split(", "))


def all_that_can_happen() -> list[Event]:
    """Every event that the page describes, from one storage."""
    clock = ManualClock()
    storage = Memory(clock)
    jobs(storage, clock)
    operators(storage)
    others(storage, clock)
    return storage.events(EventFilter(), limit=10_000)


def jobs(storage: Memory, clock: ManualClock) -> None:
    for state in (COMPLETED, DEAD, RETRYING, SCHEDULED, QUEUED):
        in_state(storage, state, begun=True)
    add(storage, delay=HOUR, copied_from="another", chosen=("queue",))
    failure = replace(FAILURE, version="v1")
    finish(storage, Failed(run(storage, add(storage, queue="again")).token, failure, retry_in=0, ran=9))
    finish(storage, Failed(run(storage, add(storage, queue="no more")).token, failure, ran=9))
    finish(storage, Halted(run(storage, add(storage, queue="halting")).token, "signal 9", version="v1", ran=9))
    finish(storage, Snoozed(run(storage, add(storage, queue="later")).token, delay=HOUR, ran=9))
    finish(storage, Stopped(run(storage, add(storage, queue="stopped")).token, ran=9))
    clock.turn("1h")
    storage.promote()
    doomed = in_state(storage, RUNNING, owner="bob", max_halts=2)
    storage.rescue_owner("bob", foreman="bob", why="it was killed")
    run(storage, doomed, "eve")
    storage.rescue_owner("eve", foreman="eve", why="it was killed")
    storage.enqueue([new_job(unique=unique("k")), new_job(delay=HOUR, unique=unique("k", on_conflict="replace"))])
    late = run(storage, add(storage, queue="handed back"))
    storage.finish([Released(late.token, "its task cannot run here", delay=HOUR, ran=9)])
    while_asked_to_stop(storage)


def while_asked_to_stop(storage: Memory) -> None:
    for place, end in enumerate(
        (
            lambda job: storage.finish([Failed(job.token, replace(FAILURE, version="v1"), retry_in=0)]),
            lambda job: storage.finish([Snoozed(job.token, delay=HOUR)]),
            lambda job: storage.rescue_owner(job.owner or "", foreman=job.owner or "", why="it was killed"),
        )
    ):
        job = run(storage, add(storage, queue=f"asked {place}"), "max")
        storage.abort([job.id])
        end(job)
    take(storage, add(storage, queue="lost"), "max")
    storage.rescue_owner("max", foreman="max", why="it was killed")


def operators(storage: Memory) -> None:
    waiting, held, dead = in_state(storage, QUEUED), in_state(storage, RESERVED), in_state(storage, DEAD)
    storage.force_start([waiting.id], by="ann")
    storage.set_priority([waiting.id], 5, by="ann")
    storage.set_queue([dead.id], "slow", by="ann", options={"max_halts": 2})
    storage.abort([waiting.id, held.id], by="ann")
    storage.retry([dead.id], by="ann")
    storage.delete([waiting.id], by="ann")
    storage.pause("mail", by="ann", why="maintenance", duration=1)
    storage.resume("mail", by="ann")
    storage.pause("over", duration=0)
    storage.resume("over", over=True)
    for duration in (HOUR, None):
        version = None if duration is None else "v1"
        storage.silence_failure(storage.failures()[0].cause, duration, version=version, by="ann")


def others(storage: Memory, clock: ManualClock) -> None:
    plan = ScheduleInfo("daily", "send", "0 7 * * *", next_at=clock())
    storage.put_schedules([plan])
    storage.tick("daily", plan.next_at, clock() + HOUR, [], [Tick("daily", plan.next_at, "missed", 0, None)])
    for paused in (True, False):
        storage.pause_schedule("daily", paused, by="ann")
    storage.record_operator_event("daily", Kind.RUN_NOW, job="a", by="ann")
    storage.record_operator_event("daily", Kind.SKIPPED, slot=clock(), by="ann")
    storage.remove_schedule("daily", by="ann")
    done = in_state(storage, COMPLETED)
    for client in ("shop", "post"):
        storage.join_client(ClientInfo(client, name="The Shop"))
    storage.subscribe("shop", [done.id])
    storage.acknowledge("shop", [done.id])
    storage.subscribe("post", [in_state(storage, COMPLETED).id])
    storage.leave_client("shop")
    storage.record_operator_event("s1", Kind.SIGNED_OUT, by="ann")
    for subject in (Subject.WORKER, Subject.FOREMAN):
        for name in ("stays", "goes"):
            storage.join(WorkerInfo(f"{subject}-{name}", subject, host="here", pid=7, info={"code_version": "v1"}))
        storage.leave(f"{subject}-goes", why="stopped")
    storage.record_stat("worker-stays", {"done": 7})
    storage.order("foreman-stays", ForemanOrder(ForemanAction.SCALE, least=1, most=2), by="olga")
    storage.order("foreman-stays", ForemanOrder(ForemanAction.STOP, worker="worker-stays", now=True))
    clock.turn("1h")
    storage.rescue(lease=LEASE, why="it was silent")
    storage.prune(Retention())


def test_the_page_lists_every_kind_in_the_order_of_the_code() -> None:
    assert list(rows()) == list(Kind)


def test_the_page_says_what_is_written() -> None:
    subjects: dict[str, set[str]] = defaultdict(set)
    facts: dict[str, set[str]] = defaultdict(set)
    for event in all_that_can_happen():
        subjects[event.kind].add(event.subject)
        facts[event.kind] |= {FIGURES} if event.kind is Kind.STAT else set(event.data or {})

    assert {kind: (subjects[kind], facts[kind]) for kind in Kind} == rows()
