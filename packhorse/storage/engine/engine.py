"""The storage engine: every operation of the contract that changes something, over the storage's own transaction.

A storage is a subclass that supplies `_write`, the transaction, and its queries. It overrides the hot calls (enqueue,
reserve, finish, finish_and_reserve) where a faster way was measured.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from packhorse.core.event import ForemanOrder, Kind, operator_event_fields
from packhorse.core.fair_share import FairShare
from packhorse.core.job import Job, NewJob, Token
from packhorse.core.outcome import Outcome, Verdict
from packhorse.storage.contract import Storage
from packhorse.storage.engine import (
    attempts,
    history,
    maintenance,
    new_jobs,
    operator,
    subscribers,
    workers,
)
from packhorse.storage.engine import schedules as _schedules
from packhorse.storage.records import (
    USUAL_LEASE,
    ActionResult,
    CheckIn,
    CheckInAnswer,
    ClientInfo,
    Enqueued,
    HeartbeatReply,
    JobVersion,
    LogLine,
    Pruned,
    Rescued,
    Retention,
    ScheduleInfo,
    TaskInfo,
    Tick,
    WorkerInfo,
)
from packhorse.storage.transaction import FullTransaction, Transaction

R = TypeVar("R")
T = TypeVar("T", bound=Transaction)
"""The storage's class of transactions; see `storage/transaction.py`."""


def _full(tx: Transaction) -> FullTransaction:
    """A storage whose transaction is not full overrides the operations that use this."""
    return cast(FullTransaction, tx)


class Engine(Storage, Generic[T]):
    """Operations over `T`, the storage's transaction."""

    _fair_share: FairShare

    @abstractmethod
    def _write(self, name: str, work: Callable[[T], R]) -> R:
        """Run `work` in a transaction and commit it; `name` is the operation, for statistics. May run it again."""

    # --- enqueue ------------------------------------------------------------------------------------------------------

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return self._write("enqueue", lambda tx: new_jobs.enqueue(tx, jobs)) if jobs else []

    def announce(self, tasks: Sequence[TaskInfo], *, order: str | None = None) -> None:
        def work(tx: T) -> None:
            if order is not None:
                tx.put_order(order)
            tx.know({task.queue for task in tasks}, {task.name: task.queue for task in tasks})
            for task in tasks:
                tx.put(TaskInfo(task.name, task.queue, task.options, tx.now))

        self._write("announce", work)

    # --- attempts -----------------------------------------------------------------------------------------------------

    def reserve(self, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        return self._write("reserve", lambda tx: attempts.reserve(_full(tx), owner, queues, limit, self._fair_share))

    def start(self, tokens: Sequence[Token], agos: Sequence[int] = ()) -> list[Verdict]:
        return self._write("start", lambda tx: attempts.start(tx, tokens, agos))

    def finish(self, outcomes: Sequence[Outcome]) -> list[Verdict]:
        return self._write("finish", lambda tx: attempts.finish(tx, outcomes))

    def release(self, tokens: Sequence[Token], why: str) -> list[Verdict]:
        return self._write("release", lambda tx: attempts.release(tx, tokens, why))

    def check_in(self, checkins: Sequence[CheckIn]) -> list[CheckInAnswer]:
        return self._write("check_in", lambda tx: attempts.check_in(_full(tx), checkins))

    def append_log(self, token: Token, lines: Sequence[LogLine], *, keep: int = 1_000) -> Verdict:
        return self._write("append_log", lambda tx: attempts.append_log(_full(tx), token, lines, keep))

    # --- operators ----------------------------------------------------------------------------------------------------

    def abort(
        self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[JobVersion] = ()
    ) -> list[ActionResult]:
        return self._write("abort", lambda tx: operator.abort(tx, job_ids, by, seen))

    def force_start(
        self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[JobVersion] = ()
    ) -> list[ActionResult]:
        return self._write("force_start", lambda tx: operator.force_start(tx, job_ids, by, seen))

    def set_priority(
        self, job_ids: Sequence[str], priority: int, *, by: str | None = None, seen: Sequence[JobVersion] = ()
    ) -> list[ActionResult]:
        return self._write("set_priority", lambda tx: operator.set_priority(tx, job_ids, priority, by, seen))

    def set_queue(
        self,
        job_ids: Sequence[str],
        queue: str,
        *,
        by: str | None = None,
        seen: Sequence[JobVersion] = (),
        options: Mapping[str, Any] | None = None,
    ) -> list[ActionResult]:
        return self._write("set_queue", lambda tx: operator.set_queue(tx, job_ids, queue, by, seen, options))

    def retry(
        self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[JobVersion] = ()
    ) -> list[ActionResult]:
        return self._write("retry", lambda tx: operator.retry(tx, job_ids, by, seen))

    def delete(
        self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[JobVersion] = ()
    ) -> list[ActionResult]:
        return self._write("delete", lambda tx: operator.delete(tx, job_ids, by, seen))

    def pause(self, queue: str, *, by: str | None = None, why: str | None = None, duration: int | None = None) -> bool:
        return self._write("pause", lambda tx: operator.pause(tx, queue, by, why, duration))

    def resume(self, queue: str, *, by: str | None = None, over: bool = False) -> bool:
        return self._write("resume", lambda tx: operator.resume(tx, queue, by, over))

    def silence_failure(
        self, cause: str, duration: int | None, *, version: str | None = None, by: str | None = None
    ) -> bool:
        return self._write("silence_failure", lambda tx: history.silence_failure(tx, cause, duration, version, by))

    # --- maintenance --------------------------------------------------------------------------------------------------

    def promote(self, *, limit: int = 500) -> int:
        return self._write("promote", lambda tx: maintenance.promote(tx, limit))

    def expire(self, *, limit: int = 500) -> int:
        return self._write("expire", lambda tx: maintenance.expire(tx, limit))

    def rescue(
        self, *, lease: int, why: str, recovered: bool = False, limit: int = 500, at: int | None = None
    ) -> list[Rescued]:
        # Counted from the call: while `_write` waits for a lock, workers cannot beat and would all seem silent.
        called_at = self.now() if at is None else at
        return self._write("rescue", lambda tx: workers.rescue(tx, lease, why, recovered, limit, called_at))

    def rescue_owner(
        self,
        owner: str,
        *,
        why: str,
        foreman: str | None = None,
        ran: Collection[str] = (),
        recovered: bool = False,
        limit: int = 500,
    ) -> list[Rescued]:
        return self._write(
            "rescue_owner", lambda tx: workers.rescue_owner(tx, owner, why, foreman, ran, recovered, limit)
        )

    def prune(self, keep: Retention, *, limit: int = 1_000, at: int | None = None) -> Pruned:
        if at is not None and not self._may_have_old(keep, at):
            return Pruned()
        return self._write("prune", lambda tx: maintenance.prune(_full(tx), keep, limit, at))

    def roll_up(self) -> None:
        self._write("roll_up", lambda tx: maintenance.roll_up(_full(tx)))

    def _may_have_old(self, keep: Retention, now: int) -> bool:
        """Return whether `prune` may find anything. A storage overrides this where one read saves a transaction."""
        return True

    # --- schedules ----------------------------------------------------------------------------------------------------

    def put_schedules(self, schedules: Sequence[ScheduleInfo]) -> None:
        self._write("put_schedules", lambda tx: _schedules.put(tx, schedules))

    def tick(
        self, name: str, slot: int, next_at: int, jobs: Sequence[NewJob], ticks: Sequence[Tick]
    ) -> list[Enqueued] | None:
        return self._write("tick", lambda tx: _schedules.tick(tx, name, slot, next_at, jobs, ticks))

    def pause_schedule(self, name: str, paused: bool, *, by: str | None = None) -> bool:
        return self._write("pause_schedule", lambda tx: _schedules.pause(tx, name, paused, by))

    def remove_schedule(self, name: str, *, by: str | None = None) -> bool:
        return self._write("remove_schedule", lambda tx: _schedules.remove(tx, name, by))

    def record_operator_event(
        self, name: str, kind: Kind, *, job: str | None = None, slot: int | None = None, by: str | None = None
    ) -> None:
        about = operator_event_fields(kind, name)
        self._write("record_operator_event", lambda tx: history.record_about(tx, **about, job=job, slot=slot, by=by))

    # --- workers and clients ------------------------------------------------------------------------------------------

    def join(self, worker: WorkerInfo, *, lease: int = USUAL_LEASE) -> None:
        # Read outside of the transaction: two workers that join at the same time may both report a new version.
        brings = worker.code_version is not None and worker.has_new_version(self.workers())
        while not self._write("join", lambda tx: workers.join(tx, worker, lease, has_new_version=brings)):
            pass

    def heartbeat(self, reports: Mapping[str, Mapping[str, Any]]) -> HeartbeatReply:
        now, unknown = self._write("beat", lambda tx: workers.heartbeat(tx, reports))
        return HeartbeatReply(now, unknown, self.abort_requests(list(reports)))

    def leave(self, owner: str, *, why: str = "stopped", ran: Collection[str] = ()) -> None:
        while not self._write("leave", lambda tx: workers.leave(tx, owner, why, ran)):
            pass

    def record_stat(self, owner: str, report: Mapping[str, Any]) -> None:
        self._write(
            "record_stat",
            lambda tx: workers.record_event(tx, owner, Kind.STAT, lambda worker: worker.event_facts(**report)),
        )

    def order(self, owner: str, order: ForemanOrder, *, by: str | None = None) -> bool:
        return self._write("order", lambda tx: workers.record_event(tx, owner, Kind.ORDERED, lambda _: order.facts(by)))

    def join_client(self, client: ClientInfo) -> None:
        self._write("join_client", lambda tx: subscribers.join(tx, client))

    def leave_client(self, client_id: str) -> bool:
        return self._write("leave_client", lambda tx: subscribers.leave(tx, client_id))

    def subscribe(self, client_id: str, job_ids: Sequence[str]) -> int:
        return self._write("subscribe", lambda tx: subscribers.subscribe(tx, client_id, job_ids))

    def acknowledge(self, client_id: str, job_ids: Sequence[str]) -> int:
        return self._write("acknowledge", lambda tx: subscribers.acknowledge(tx, client_id, job_ids))
