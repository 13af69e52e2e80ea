"""Upkeep, in memory: promote, expire, rescue, prune, roll up. Whoever comes second finds nothing left to do."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from packhorse.core import transitions
from packhorse.core.event import Kind, Subject
from packhorse.core.job import FINAL, HELD, QUEUED, Job
from packhorse.core.metrics import CAUSE_DAYS, FOLDS
from packhorse.storage.memory.keeper import Keeper, atomic
from packhorse.storage.records import MOST_MISSED, Outlook, Pruned, Rescued, Retention
from packhorse.storage.transfer import outlook_of


class Upkeep(Keeper):
    @atomic
    def promote(self, *, limit: int = 500) -> int:
        due = [job for job in self._jobs.values() if job.due_at is not None and job.due_at <= self.now()]
        due.sort(key=lambda job: (job.due_at, job.seq))
        for job in due[:limit]:
            self._keep(job, transitions.promoted(job, self.now()))
        return len(due[:limit])

    @atomic
    def next_due(self) -> int | None:
        times = [job.due_at for job in self._jobs.values() if job.due_at is not None]
        due_in = max(0, min(times) - self.now()) if times else None
        return None if due_in == 0 and self._move is not None else due_in

    @atomic
    def outlook(self, foreman: str, owners: Sequence[str], *, after: int = 0) -> Outlook:
        jobs = self._jobs.values()
        orders = (event.id for event in self._events if event.kind is Kind.ORDERED and event.owner == foreman)
        slots = (schedule.next_at for schedule in self._schedules.values() if schedule.paused_at is None)
        paused = (queue for queue in self._queues.values() if queue.is_paused)
        pauses = (queue.paused_until for queue in paused if queue.paused_until is not None)
        return outlook_of(
            self.now(),
            self._move,
            stops=any(job.owner in owners and job.abort_reason is not None for job in jobs),
            queued=any(job.state is QUEUED for job in jobs),
            ordered=any(number > after for number in orders),
            held=any(job.state in HELD for job in jobs),
            due_at=min((job.due_at for job in jobs if job.due_at is not None), default=None),
            expire_at=min((job.expire_at for job in jobs if job.expire_at is not None), default=None),
            next_at=min(slots, default=None),
            resume_at=min(pauses, default=None),
            order=self._order,
        )

    @atomic
    def expire(self, *, limit: int = 500) -> int:
        over = [job for job in self._jobs.values() if job.expire_at is not None and job.expire_at <= self.now()]
        over.sort(key=lambda job: (job.expire_at, job.seq))
        for job in over[:limit]:
            self._keep(job, transitions.expired(job, self.now()))
        return len(over[:limit])

    @atomic
    def rescue(
        self, *, lease: int, why: str, recovered: bool = False, limit: int = 500, at: int | None = None
    ) -> list[Rescued]:
        now = self.now()
        asked_at = now if at is None else at
        first, last = min(asked_at, now), max(asked_at, now)
        alive = {worker.id for worker in self._workers.values() if worker.is_beating(first, last, lease)}
        lost = [job for job in self._jobs.values() if job.state in HELD and job.owner not in alive]
        taken = self._take_back(lost[:limit], why, (), recovered)
        for worker in [worker for worker in self._workers if worker not in alive]:
            self._strike_off(worker, why)
        return taken

    @atomic
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
        if owner in self._workers:
            self._workers[owner].check_given_up_by(foreman, self.now())
        lost = [job for job in self._jobs.values() if job.owner == owner]
        taken = self._take_back(lost[:limit], why, ran, recovered)
        self._strike_off(owner, why)
        return taken

    def _take_back(self, jobs: list[Job], why: str, ran: Collection[str], recovered: bool) -> list[Rescued]:
        taken = []
        for job in jobs:
            change = transitions.rescued(job, self.now(), why, ran=job.id in ran, recovered=recovered)
            taken.append(Rescued(job.id, job.owner or "", self._keep(job, change).state))
        return taken

    def _strike_off(self, owner: str, why: str) -> None:
        if owner in self._workers and not any(job.owner == owner for job in self._jobs.values()):
            worker = self._workers.pop(owner)
            self._record_about(worker.subject, Kind.DIED, owner=owner, **worker.told(why=why))

    @atomic
    def prune(self, keep: Retention, *, limit: int = 1_000, at: int | None = None) -> Pruned:
        now = self.now() if at is None else min(at, self.now())
        before = now - keep.events
        newest = self._event_id  # it stays: a storage that numbers its events by the last one must not begin anew
        silent = [client for client in self._clients.values() if client.beat_at <= now - keep.clients]
        silent.sort(key=lambda client: (client.beat_at, client.id))
        for client in silent[:limit]:
            wanted = sorted(job_id for job_id, clients in self._subscribers.items() if client.id in clients)
            self._forget_client(client.id)
            self._record_about(Subject.CLIENT, Kind.TIMED_OUT, owner=client.id, jobs=wanted[:MOST_MISSED] or None)
        old = [job for job in self._jobs.values() if self._is_prunable(job, keep, now)]
        old.sort(key=lambda job: (job.finished_at, job.seq))
        for job in old[:limit]:
            self._remove(job, "retention")
        past = self._past_events(before, limit + 1, newest)
        gone = frozenset(past[:limit])
        self._events = [event for event in self._events if event.id not in gone]
        self._ticks = [one for place, one in enumerate(self._ticks) if place >= limit or one.at > before]
        oldest = list(self._replaced.items())[:limit]
        for call in [call for call, (_, replaced_at) in oldest if replaced_at <= before]:
            del self._replaced[call]
        self._failures = {cause: group for cause, group in self._failures.items() if group.last_at > before}
        more = max(len(silent), len(old), len(past)) > limit
        return Pruned(len(old[:limit]), len(gone), len(silent[:limit]), more)

    def _past_events(self, before: int, most: int, newest: int) -> list[int]:
        """The ids of events that are over, among the oldest; none if the very oldest is not."""
        if not self._events or self._events[0].at > before:
            return []
        return [event.id for event in self._events[:most] if event.at <= before and event.id != newest]

    def _is_prunable(self, job: Job, keep: Retention, now: int) -> bool:
        if job.state not in FINAL or job.persistent or self._subscribers.get(job.id):
            return False
        if job.finished_at is None or job.finished_at > now - keep.of(job.state):
            return False
        holder = self._holder(job.unique_key) if job.unique_key else None
        return holder is None or holder.id != job.id

    @atomic
    def roll_up(self) -> None:
        for level, coarser in FOLDS:
            for key in list(self._measures):
                name, at, queue, task, counted = key
                if name == level.name and at + level.width <= self.now() - level.keep:
                    target = (coarser.name, coarser.start_of(at), queue, task, counted)
                    self._measures[target] = self._measures.get(target, 0) + self._measures.pop(key)
        last = self.now() - CAUSE_DAYS.keep - CAUSE_DAYS.width
        for key in [key for key in self._measures if key[0] == CAUSE_DAYS.name and key[1] <= last]:
            del self._measures[key]
