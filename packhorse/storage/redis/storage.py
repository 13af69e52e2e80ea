"""The Redis storage: the engine over Redis transactions, with a hot path, pruner, lists and history of its own."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from packhorse.core import clock
from packhorse.core.event import Event
from packhorse.core.job import Job, NewJob, State, Token
from packhorse.core.outcome import Outcome, Verdict
from packhorse.storage.contract import BATCH, OTHER_QUEUES
from packhorse.storage.engine import Engine
from packhorse.storage.records import (
    AbortRequest,
    CheckIn,
    CheckInAnswer,
    ClientInfo,
    Count,
    Enqueued,
    EventFilter,
    FailureGroup,
    Filter,
    Health,
    HeartbeatReply,
    LogLine,
    OperationSums,
    Page,
    Point,
    PollResult,
    Pruned,
    QueueInfo,
    Retention,
    ScheduleInfo,
    Span,
    Tally,
    TaskInfo,
    Tick,
    WorkerInfo,
)
from packhorse.storage.redis import records
from packhorse.storage.redis.address import Address
from packhorse.storage.redis.health import connections_of, health_of
from packhorse.storage.redis.history import History
from packhorse.storage.redis.hot_path import HotPath
from packhorse.storage.redis.keys import Keys
from packhorse.storage.redis.lists import Lists, tallies_in
from packhorse.storage.redis.notifier import Notifier
from packhorse.storage.redis.pruner import Pruner
from packhorse.storage.redis.records import pairs
from packhorse.storage.redis.rows import stop_of, to_json
from packhorse.storage.redis.server import Server
from packhorse.storage.redis.transaction import Transaction
from packhorse.storage.redis.transfer import Copier
from packhorse.storage.redis.writer import Writer
from packhorse.storage.transfer import Dumped, Move, Section, decode, poll_result, problems
from packhorse.storage.unowned_jobs import UnownedSearch

R = TypeVar("R")

_FRESH = 0.02
"""Seconds for which `next_due` returns what an empty reserve learned: an idle worker asks for both in a row."""


class Redis(Engine[Transaction]):
    """Jobs in a Redis or Valkey. Open it with `open_storage("redis://localhost")`.

    Any number of processes and machines may share it. The clock is the server's.
    """

    def __init__(self, address: Address, *, now: clock.Now | None = None) -> None:
        known_names: dict[tuple[str, str], float] = {}
        self._now = now
        self._server = Server(address, now, on_connect=known_names.clear)
        self._keys = Keys(self._server.prefix)
        self._notifier = Notifier(self._server)
        self._writer = Writer(self._server, self._keys, now)
        self._hot_path = HotPath(self._server, self._writer, self._notifier, now, known_names)
        self._pruner = Pruner(self._server, self._keys, self._writer)
        self._lists = Lists(self._server, self._keys)
        self._history = History(self._server, self._keys)

    @classmethod
    def from_url(cls, url: str, *, now: clock.Now | None = None) -> Redis:
        """See `address.py` for the forms and options of the URL. Connects on first use."""
        return cls(Address.parse(url), now=now)

    def _write(self, name: str, work: Callable[[Transaction], R]) -> R:
        return self._writer.write(name, work, finds_unowned=name == "rescue" and self._unowned.is_time())

    @functools.cached_property
    def _unowned(self) -> UnownedSearch:
        return UnownedSearch()

    # --- life -------------------------------------------------------------------------------------------------------

    def now(self) -> int:
        return self._server.now()

    def close(self) -> None:
        self._hot_path.forget_names()
        self._notifier.close()
        self._server.close()

    def health(self) -> Health:
        health = health_of(self._server, self._notifier)
        return replace(health, problems=[*problems(self.move()), *health.problems])

    def measured(self) -> list[OperationSums]:
        return self._server.meter.sums()

    def connections(self) -> tuple[int, int]:
        return connections_of(self._server, self._notifier)

    # --- the hot path -----------------------------------------------------------------------------------------------

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return self._hot_path.enqueue(jobs)

    def reserve(self, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        return self._hot_path.reserve(owner, queues, limit)

    supports_threaded_wait = True

    def wait_and_reserve(self, owner: str, queues: Mapping[str, int], limit: int, timeout: float) -> list[Job]:
        if self._now is not None:  # the server does not have the clock of a test
            return super().wait_and_reserve(owner, queues, limit, timeout)
        return self._hot_path.wait_and_reserve(owner, queues, limit, timeout)

    def start(self, tokens: Sequence[Token], agos: Sequence[int] = ()) -> list[Verdict]:
        return self._hot_path.start(tokens, agos)

    def finish(self, outcomes: Sequence[Outcome]) -> list[Verdict]:
        return self._hot_path.finish(outcomes)

    def finish_and_reserve(
        self, outcomes: Sequence[Outcome], owner: str, queues: Mapping[str, int], limit: int
    ) -> tuple[list[Verdict], list[Job]]:
        return self._hot_path.finish_and_reserve(outcomes, owner, queues, limit)

    def check_in(self, checkins: Sequence[CheckIn]) -> list[CheckInAnswer]:
        return self._hot_path.check_in(checkins)

    def append_log(self, token: Token, lines: Sequence[LogLine], *, keep: int = 1_000) -> Verdict:
        return self._hot_path.append_log(token, lines, keep)

    # --- jobs -------------------------------------------------------------------------------------------------------

    def get(self, job_id: str) -> Job | None:
        found = self._lists.get_many([job_id])
        return found[0] if found else None

    def get_many(self, job_ids: Sequence[str]) -> list[Job]:
        return self._lists.get_many(job_ids)

    def find(self, where: Filter, *, cursor: str | None = None, limit: int = 50) -> Page:
        return self._lists.find(where, cursor=cursor, limit=limit)

    def find_by_id(self, part: str, *, cursor: str | None = None, limit: int = 50) -> Page:
        return self._lists.find_by_id(part, cursor=cursor, limit=limit)

    def count(self, where: Filter, *, cap: int = 10_000) -> Count:
        return self._lists.count(where, cap=cap)

    def tallies(self) -> list[Tally]:
        return self._lists.tallies()

    # --- queues, tasks and schedules ----------------------------------------------------------------------------------

    def queues(self) -> list[QueueInfo]:
        names, tallies, waits, ends = self._server.run("queues")
        counts: dict[str, dict[State, int]] = {}
        for tally in tallies_in(tallies):
            numbers = counts.setdefault(tally.queue, {})
            numbers[tally.state] = numbers.get(tally.state, 0) + tally.number
        oldest, end_of, found = dict(pairs(waits)), dict(pairs(ends)), []
        for packed_name, pause in sorted(pairs(names)):
            name, since = packed_name.decode(), oldest.get(packed_name)
            queue = records.queue_in(name, pause, end_of.get(packed_name))
            waits_since = None if since is None else int(since)
            found.append(replace(queue, counts=counts.get(name, {}), oldest_queued_at=waits_since))
        return found

    def tasks(self) -> list[TaskInfo]:
        (reply,) = self._server.send("tasks", ("HGETALL", self._keys.tasks))
        return [records.task_in(name.decode(), packed) for name, packed in sorted(pairs(reply))]

    def schedules(self) -> list[ScheduleInfo]:
        (reply,) = self._server.send("schedules", ("HGETALL", self._keys.schedules))
        found = [records.schedule_in(name.decode(), packed) for name, packed in pairs(reply)]
        return sorted(found, key=lambda one: (one.next_at, one.name))

    def ticks(self, name: str, *, limit: int = 50) -> list[Tick]:
        if limit < 1:
            return []
        (reply,) = self._server.send("ticks", ("ZREVRANGE", self._keys.ticks_of(name), 0, limit - 1))
        return [records.tick_in(packed) for packed in reply]

    # --- workers and clients ------------------------------------------------------------------------------------------

    def workers(self) -> list[WorkerInfo]:
        names, reports, beats = self._server.run("workers")
        report_of, beat_of = dict(pairs(reports)), dict(pairs(beats))
        found = [
            records.worker_in(owner.decode(), packed, beat_of.get(owner), report_of.get(owner, b"{}"))
            for owner, packed in pairs(names)
        ]
        return sorted(found, key=lambda worker: (worker.joined_at, worker.id))

    def heartbeat(self, reports: Mapping[str, Mapping[str, Any]]) -> HeartbeatReply:
        """A script of its own: every foreman calls this all the time, for many workers, in one round trip."""
        words = [word for owner, report in reports.items() for word in (owner, to_json(report))]
        now, unknown, stops = self._server.run("beat", BATCH, *words)
        return HeartbeatReply(int(now), [owner.decode() for owner in unknown], _abort_requests_in(stops))

    def abort_requests(self, owners: Sequence[str]) -> list[AbortRequest]:
        return _abort_requests_in(self._server.run("stops", BATCH, *dict.fromkeys(owners)))

    def clients(self) -> list[ClientInfo]:
        names, beats, numbers = self._server.run("clients")
        beat_of = dict(pairs(beats))
        found = [
            records.client_in(client.decode(), packed, beat_of.get(client), number)
            for (client, packed), number in zip(pairs(names), numbers, strict=True)
        ]
        return sorted(found, key=lambda client: (client.joined_at, client.id))

    def leave_client(self, client_id: str) -> bool:
        self._pruner.drop_subscriptions("leave_client", client_id)
        return super().leave_client(client_id)

    def subscribers(self, job_id: str) -> list[str]:
        (reply,) = self._server.send("subscribers", ("SMEMBERS", self._keys.sub(job_id)))
        return sorted(client.decode() for client in reply)

    def outcomes_for(self, client_id: str, *, limit: int = 100) -> list[Job]:
        return self._lists.outcomes_for(client_id, limit)

    # --- maintenance --------------------------------------------------------------------------------------------------

    def next_due(self) -> int | None:
        learned, self._writer.next_due = self._writer.next_due, None
        if learned is not None and time.monotonic() - learned.received_at < _FRESH:
            return learned.due_in
        (seconds, micros), first = self._server.send(
            "next_due", ("TIME",), ("ZRANGE", self._keys.due, 0, 0, "WITHSCORES")
        )
        now = int(seconds) * clock.SECOND + int(micros) if self._now is None else self._now()
        due_in = max(0, int(float(first[1])) - now) if first else None
        # A storage that is being moved promotes nothing: a worker that waited for that would never sleep again.
        return None if due_in == 0 and self.move() is not None else due_in

    def poll(self, foreman: str, owners: Sequence[str], *, after: int = 0) -> PollResult:
        reply = self._server.run("outlook", foreman, after, *dict.fromkeys(owners))
        now, stops, queued, ordered, held, mark, *times, looked_to, order = reply
        due_at, expire_at, next_at, resume_at = (int(float(at)) if at else None for at in times)
        return poll_result(
            int(now),
            decode(mark),
            stops=bool(stops),
            queued=bool(queued),
            ordered=bool(ordered),
            looked_to=int(looked_to),
            held=bool(held),
            due_at=due_at,
            expire_at=expire_at,
            next_at=next_at,
            resume_at=resume_at,
            order=order.decode(),
        )

    def prune(self, keep: Retention, *, limit: int = 1_000, at: int | None = None) -> Pruned:
        return self._pruner.prune(keep, limit, at)

    def roll_up(self) -> None:
        self._pruner.roll_up()

    # --- history ----------------------------------------------------------------------------------------------------

    def events(self, where: EventFilter, *, limit: int = 100, newest_first: bool = False) -> list[Event]:
        return self._history.events(where, limit=limit, newest_first=newest_first)

    def log_lines(self, job_id: str, *, after: int = 0, limit: int = 1_000) -> list[LogLine]:
        return self._history.log_lines(job_id, after=after, limit=limit)

    def failures(self, *, limit: int = 50, span: Span | None = None) -> list[FailureGroup]:
        return self._history.failures(limit=limit, span=span)

    def series(self, span: Span, *, queue: str | None = None, task: str | None = None) -> list[Point]:
        return self._history.series(span, queue=queue, task=task)

    def totals(self) -> dict[str, int]:
        return self._history.totals()

    # --- moving to another storage ------------------------------------------------------------------------------------

    @property
    def _copier(self) -> Copier:  # an attribute would be a cycle, which keeps connections of a dropped storage open
        return Copier(self, self._server, self._keys, self._writer)

    def move(self) -> Move | None:
        return self._writer.read_mark()

    def set_move(self, move: Move | None, *, expected: Move | None) -> bool:
        return self._copier.set_move(move, expected)

    def dump(self, section: Section, *, cursor: str | None = None, limit: int = BATCH) -> Dumped:
        return self._copier.dump(section, cursor, limit)

    def load(self, section: Section, rows: Sequence[Any], move: Move, *, expected: Move) -> bool:
        return self._copier.load(section, rows, move, expected)

    # --- wake-up ----------------------------------------------------------------------------------------------------

    def wait(self, timeout: float, queues: Sequence[str] = ()) -> bool:
        # A token wakes any waiting worker and is passed on, so it need not be known that other queues count, too.
        return self._notifier.wait(timeout, [queue for queue in queues if queue != OTHER_QUEUES])

    def interrupt(self) -> None:
        self._notifier.interrupt()


def _abort_requests_in(reply: Sequence[Sequence[bytes]]) -> list[AbortRequest]:
    """The requests of a reply, in the order in which the jobs were added."""
    by_age = sorted(reply, key=lambda one: int(one[0]))
    requests = (stop_of(job_id.decode(), owner.decode(), head) for _, owner, job_id, head in by_age)
    return [request for request in requests if request is not None]
