"""A tour through the contract: every operation of a storage at least once, on jobs in every state.

The tests of this directory watch the commands that the server runs meanwhile. A new operation of the contract fails the
tour until it is called here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from packhorse.conformance.builders import FAILURE, LEASE, in_every_state, in_state, new_job, new_jobs, unique
from packhorse.core.clock import HOUR, MINUTE, SECOND
from packhorse.core.event import ForemanAction, ForemanOrder, Kind, Subject
from packhorse.core.job import FINAL, HELD, QUEUED, RETRYING, SCHEDULED, State
from packhorse.core.outcome import Completed, Failed, Halted, Released, Snoozed, Stopped
from packhorse.storage.contract import Storage
from packhorse.storage.records import (
    CheckIn,
    ClientInfo,
    EventFilter,
    Filter,
    LogLine,
    Retention,
    ScheduleInfo,
    Span,
    TaskInfo,
    Tick,
    WorkerInfo,
)
from packhorse.storage.transfer import Move, Section, Stage

AT_ONCE = Retention(completed=0, dead=0, aborted=0, events=0, clients=0)


class Recorder:
    """A storage that notes which of its operations were used."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.used: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.used.add(name)
        return getattr(self._storage, name)


def take_tour(storage: Storage, look: Callable[[], object] = lambda: None) -> None:
    """Call every operation. `look` runs between the parts."""
    recorder: Any = Recorder(storage)
    for part in (_jobs, _lists, _work, _steering, _schedules, _processes, _records, _upkeep, _moving):
        part(recorder)
        look()
    recorder.health()
    recorder.interrupt()
    recorder.wait(0)
    recorder.close()
    missing = Storage.__abstractmethods__ - recorder.used
    assert not missing, f"the tour leaves out {sorted(missing)}"


def _jobs(storage: Any) -> None:
    storage.join_client(ClientInfo("carl"))
    storage.enqueue(new_jobs(120))
    storage.enqueue([new_job(delay=HOUR, expires=HOUR), new_job(subscriber="carl", total_timeout=HOUR)])
    storage.enqueue([new_job("twin", unique=unique(on_conflict="replace"))] * 2)
    storage.enqueue([new_job("other twin", unique=unique(on_conflict="replace"))])
    storage.get("twin")
    storage.get_many(["twin", "nobody"])


def _lists(storage: Any) -> None:
    in_every_state(storage, args='{"a": "hay"}')
    wheres = [Filter(), Filter(HELD), Filter(FINAL), Filter(frozenset({QUEUED})), Filter(queue="mail")]
    wheres += [Filter(frozenset({SCHEDULED, RETRYING})), Filter(frozenset({QUEUED}), queue="mail"), Filter(owner="ann")]
    wheres += [Filter(text="hay"), Filter(schedule="x"), Filter(halted=True), Filter(unique_key="k"), Filter(cause="c")]
    for where in wheres:
        page = storage.find(where, limit=3)
        storage.find(where, cursor=page.next, limit=3)
        storage.count(where, cap=2)
    storage.tallies()
    storage.queues()
    storage.tasks()
    storage.announce([TaskInfo("send", "mail", {"n": 1}), TaskInfo("sing", "songs")])


def _work(storage: Any) -> None:
    storage.leave("ann", why="restarted")
    storage.join(WorkerInfo("ann"))
    first, second, third, *rest = storage.reserve("ann", {"mail": 1, "other": 2}, 20)
    storage.start([job.token for job in (first, second, third)])
    storage.check_in([CheckIn(first.token, "half way", 50, "pages")])
    storage.append_log(first.token, [LogLine("one"), LogLine("two"), LogLine("three")], keep=2)
    storage.finish([Failed(first.token, FAILURE, retry_in=SECOND), Failed(second.token, FAILURE)])
    endings: list[Callable[..., Any]] = [
        Completed,
        lambda token: Snoozed(token, HOUR),
        lambda token: Halted(token, "x"),
    ]
    endings += [lambda token: Stopped(token), lambda token: Released(token, "later")]
    outcomes = [ending(job.token) for ending, job in zip(endings, rest, strict=False)]
    storage.finish_and_reserve(outcomes, "ann", {"mail": 1}, 5)
    storage.release([third.token, rest[-1].token], "enough")


def _steering(storage: Any) -> None:
    jobs = {state: job.id for state, job in in_every_state(storage).items()}
    storage.set_priority(list(jobs.values()), 7, by="eve")
    storage.set_queue([jobs[State.QUEUED], jobs[State.DEAD]], "slow")
    storage.force_start([jobs[State.SCHEDULED]])
    storage.retry([jobs[State.DEAD], jobs[State.RETRYING]])
    storage.abort([jobs[State.RUNNING], jobs[State.QUEUED]])
    storage.delete([jobs[State.COMPLETED]])
    storage.pause("mail", by="eve", why="rest")
    storage.resume("mail")
    storage.pause("slow", duration=3_600_000_000)


def _schedules(storage: Any) -> None:
    slot = storage.now()
    storage.put_schedules([ScheduleInfo(name, "send", "0 7 * * *", next_at=slot) for name in ("nightly", "daily")])
    storage.tick("nightly", slot, slot + HOUR, [new_job(schedule="nightly")], [Tick("nightly", slot, "enqueued", 0)])
    storage.pause_schedule("nightly", True)
    storage.record_operator_event("nightly", Kind.SKIPPED, slot=slot, by="eve")
    storage.schedules()
    storage.ticks("nightly")
    storage.remove_schedule("nightly")


def _processes(storage: Any) -> None:
    storage.join(WorkerInfo("bob", subject=Subject.FOREMAN))
    storage.heartbeat({"ann": {"running": 1}, "bob": {}, "ghost": {}})
    storage.abort_requests(["ann", "bob"])
    storage.record_stat("ann", {"completed": 1})
    storage.order("ann", ForemanOrder(ForemanAction.QUIET), by="op")
    storage.workers()
    storage.leave("bob")
    ended = [in_state(storage, state).id for state in sorted(FINAL)]
    storage.join_client(ClientInfo("dora"))
    storage.subscribe("dora", ended)
    storage.subscribe("carl", [*ended, "nobody"])
    storage.subscribers(ended[0])
    storage.outcomes_for("carl")
    storage.acknowledge("carl", ended[:2])
    storage.clients()
    storage.leave_client("carl")
    storage.record_operator_event("s1", Kind.SIGNED_OUT, by="ann")


def _records(storage: Any) -> None:
    for newest_first in (False, True):
        storage.events(EventFilter(), newest_first=newest_first)
        storage.events(EventFilter(job_id="twin"), newest_first=newest_first)
        storage.events(EventFilter(subject=Subject.WORKER, after=2, before=10_000), newest_first=newest_first)
        storage.events(EventFilter(kind=Kind.DELETED, queue="mail", owner="ann"), newest_first=newest_first)
    for job in storage.find(Filter(), limit=200).jobs:
        storage.log_lines(job.id)
    for group in storage.failures():
        storage.silence_failure(group.cause, HOUR, by="ann")
        storage.silence_failure(group.cause, None)
    storage.silence_failure("nothing fails so", HOUR)
    for span in Span:
        storage.series(span, queue="mail")
    storage.totals()


def _upkeep(storage: Any) -> None:
    storage.enqueue([new_job(delay=1), new_job(expires=1)])
    storage.next_due()
    storage.poll("foreman", ["ann", "bob"])
    storage.promote()
    storage.expire()
    storage.rescue_owner("ann", foreman="ann", why="signal 9", limit=1)
    storage.rescue(lease=LEASE, why="silence")
    storage.prune(Retention())
    storage.prune(AT_ONCE, limit=3)
    storage.roll_up()
    storage.roll_up()
    storage.enqueue([new_job(delay=MINUTE)])


def _moving(storage: Any) -> None:
    mark = Move("copy", Stage.FILLING, "memory://", 1)
    storage.set_move(mark, expected=None)
    rows = {section: storage.dump(section, limit=2).rows for section in Section}
    rows.update({section: _strangers(storage, section, some) for section, some in rows.items()})
    for section in (Section.QUEUES, *Section):
        after = replace(mark, at=mark.at + 1)
        storage.load(section, rows[section], after, expected=mark)
        mark = after
        for _ in rows:
            storage.dump(section, cursor=storage.dump(section, limit=1).next, limit=1)
    assert storage.move() == mark
    storage.set_move(None, expected=mark)


def _strangers(storage: Any, section: Section, rows: list[Any]) -> list[Any]:
    """Rows as another storage would have them, that are not here yet."""
    newest = storage.events(EventFilter(), limit=1, newest_first=True)[0].id
    if section is Section.JOBS:
        return [replace(job, id=f"stranger-{job.id}", seq=job.seq + 10_000, unique_key=None) for job in rows]
    if section is Section.EVENTS:
        event = rows[0]
        return [replace(event, id=newest + 7, job_id="nobody"), replace(event, id=newest + 8, job_id="nobody")]
    return [] if section in (Section.LOCKS, Section.LOG, Section.QUEUES, Section.MEASURES) else rows
