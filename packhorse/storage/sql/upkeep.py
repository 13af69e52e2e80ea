"""Upkeep: promote, expire, rescue, prune, roll up. Every process may do it at any time; each call is one step."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any

from packhorse.core import transitions
from packhorse.core.event import Kind, Subject, subject_of
from packhorse.core.job import FINAL, Job
from packhorse.core.metrics import CAUSE_DAYS, FOLDS
from packhorse.storage.records import MOST_MISSED, NOBODY_HOLDS, PollResult, Pruned, Rescued, Retention
from packhorse.storage.sql.keeper import Keeper
from packhorse.storage.sql.rows import job_of, to_json, worker_of
from packhorse.storage.sql.transaction import Transaction
from packhorse.storage.transfer import decode, outlook_of
from packhorse.storage.unowned_jobs import Unowned


class Upkeep(Keeper):
    @functools.cached_property
    def _unowned(self) -> Unowned:
        return Unowned()

    def promote(self, *, limit: int = 500) -> int:
        return self._write("promote", lambda tx: self._promote(tx, limit))

    def next_due(self) -> int | None:
        ((due_at,),) = self._db.read("next_due", self._sql["next_due"])
        return self._unless_moved(None if due_at is None else due_at - self.now())

    def _unless_moved(self, due_in: int | None) -> int | None:
        """Of a storage that is moved nothing is promoted: whoever waited for that would never sleep again."""
        if due_in is None or due_in > 0:
            return due_in
        return None if self.move() is not None else 0

    def poll(self, foreman: str, owners: Sequence[str], *, after: int = 0) -> PollResult:
        asked = (self._moment(), to_json(list(owners)), foreman, after)
        (row,) = self._db.read("outlook", self._sql["outlook"], asked)
        now, stops, queued, ordered, held, mark, due_at, expire_at, next_at, resume_at, order = row
        return outlook_of(
            now,
            decode(mark),
            stops=bool(stops),
            queued=bool(queued),
            ordered=bool(ordered),
            held=bool(held),
            due_at=due_at,
            expire_at=expire_at,
            next_at=next_at,
            resume_at=resume_at,
            order=order,
        )

    def expire(self, *, limit: int = 500) -> int:
        return self._write("expire", lambda tx: self._expire(tx, limit))

    # --- rescue ---------------------------------------------------------------------------------------------------

    def rescue(
        self, *, lease: int, why: str, recovered: bool = False, limit: int = 500, at: int | None = None
    ) -> list[Rescued]:
        # Counted from the call, not from the moment when the file is free: while another program kept it locked nobody
        # could beat, and whoever called before that would else find everybody silent.
        called_at = self.now() if at is None else at
        unowned = self._unowned_queues()
        if not unowned and not self._may_have_lost(called_at, lease):
            return []

        def work(tx: Transaction) -> list[Rescued]:
            alive = (min(called_at, tx.now), max(called_at, tx.now), lease)
            lost = [job_of(row) for row in tx.execute(self._sql["lost_jobs"], (*alive, limit)).fetchall()]
            taken = self._take_back(tx, lost, why, (), recovered)
            self._strike_off(tx, tx.execute(self._sql["silent_workers"], alive).fetchall(), why)
            for queue in unowned:
                stray = [job_of(row) for row in tx.execute(self._sql["unowned_jobs"], (queue, limit)).fetchall()]
                self._unowned.found(queue, len(stray))
                taken += self._take_back(tx, stray, NOBODY_HOLDS, (), recovered)
            return taken

        return self._write("rescue", work)

    def _unowned_queues(self) -> list[str]:
        """The queues in which somebody's job may be held by nobody. Only now and then is that worth a look."""
        if not self._unowned.is_time():
            return []
        return self._unowned.worth_a_look(queue for (queue,) in self._db.read("rescue", self._sql["unowned_queues"]))

    def _may_have_lost(self, called_at: int, lease: int) -> bool:
        """May anybody be silent, or hold jobs without being known? Where a transaction takes several trips it is worth
        a look before, for mostly there is nobody."""
        return True

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
        def work(tx: Transaction) -> list[Rescued]:
            row = tx.execute(self._sql["lock_worker"], (owner,)).fetchone()
            if row is not None:
                worker_of(row).check_given_up_by(foreman, tx.now)
            lost = [job_of(row) for row in tx.execute(self._sql["jobs_of_owner"], (owner, limit)).fetchall()]
            taken = self._take_back(tx, lost, why, ran, recovered)
            self._strike_off(tx, tx.execute(self._sql["idle_worker"], (owner,)).fetchall(), why)
            return taken

        return self._write("rescue_owner", work)

    def _take_back(
        self, tx: Transaction, jobs: Sequence[Job], why: str, ran: Collection[str], recovered: bool
    ) -> list[Rescued]:
        taken = []
        for job in jobs:
            change = transitions.rescued(job, tx.now, why, ran=job.id in ran, recovered=recovered)
            taken.append(Rescued(job.id, job.owner or "", self._keep(tx, job, change).state))
        return taken

    def _strike_off(self, tx: Transaction, workers: Sequence[tuple[str, str]], why: str) -> None:
        """Only workers that hold nothing any more: a worker's record is what its jobs are found by."""
        for owner, subject in workers:
            worker = self._worker(tx, owner)
            told = {"why": why} if worker is None else worker.told(why=why)
            tx.execute(self._sql["delete_worker"], (owner,))
            self._record_about(tx, subject_of(subject), Kind.DIED, owner=owner, **told)

    # --- prune ----------------------------------------------------------------------------------------------------

    def prune(self, keep: Retention, *, limit: int = 1_000, at: int | None = None) -> Pruned:
        def work(tx: Transaction) -> Pruned:
            now = tx.now if at is None else min(at, tx.now)
            clients, more_clients = self._prune_clients(tx, now - keep.clients, limit)
            jobs, more_jobs = self._prune_jobs(tx, keep, now, limit)
            events, more_events = self._prune_events(tx, now - keep.events, limit)
            return Pruned(jobs, events, clients, more_clients or more_jobs or more_events)

        return self._write("prune", work) if at is None or self._may_have_old(keep, at) else Pruned()

    def _may_have_old(self, keep: Retention, now: int) -> bool:
        """May anything be older than it is kept? As `_may_have_lost`."""
        return True

    def _prune_clients(self, tx: Transaction, before: int, limit: int) -> tuple[int, bool]:
        silent = tx.execute(self._sql["silent_clients"], (before, limit + 1)).fetchall()
        for (client_id,) in silent[:limit]:
            wanted = [row[0] for row in tx.execute(self._sql["wanted_by"], (client_id, MOST_MISSED)).fetchall()]
            tx.execute(self._sql["delete_client"], (client_id,))
            tx.execute(self._sql["delete_subscriptions"], (client_id,))
            self._record_about(tx, Subject.CLIENT, Kind.TIMED_OUT, owner=client_id, jobs=wanted or None)
        return len(silent[:limit]), len(silent) > limit

    def _prune_jobs(self, tx: Transaction, keep: Retention, now: int, limit: int) -> tuple[int, bool]:
        old: list[Job] = []
        for state in sorted(FINAL):
            asked = (state.value, now - keep.of(state), tx.now, limit + 1)
            old += [job_of(row) for row in tx.execute(self._sql["prunable_jobs"], asked).fetchall()]
        old.sort(key=lambda job: (job.finished_at, job.seq))
        going = self._unsubscribed(tx, old[:limit])
        self._remove(tx, going, "retention")
        return len(going), len(old) > limit

    def _unsubscribed(self, tx: Transaction, jobs: list[Job]) -> list[Job]:
        """Without those that somebody has subscribed to while they were being looked up and locked."""
        return jobs

    def _prune_events(self, tx: Transaction, before: int, limit: int) -> tuple[int, bool]:
        tx.execute(self._sql["delete_ticks"], (limit, before))
        tx.execute(self._sql["delete_replaced"], (limit, before))
        tx.execute(self._sql["delete_failures"], (before,))
        return self._drop_events(tx, before, limit)

    def _drop_events(self, tx: Any, before: int, limit: int) -> tuple[int, bool]:
        """At most `limit` events that are over; and whether there are more."""
        oldest = tx.execute(self._sql["oldest_event"]).fetchone()
        if oldest is None or oldest[0] > before:
            return 0, False
        past = [row[0] for row in tx.execute(self._sql["old_events"], (limit + 1, before)).fetchall()]
        tx.execute(self._sql["delete_events"], (to_json(past[:limit]),))
        return len(past[:limit]), len(past) > limit

    def roll_up(self) -> None:
        self._write("roll_up", self._roll_up)

    def _roll_up(self, tx: Transaction) -> None:
        for level, coarser in FOLDS:
            last = tx.now - level.keep - level.width
            tx.execute(self._sql["fold_measures"], (coarser.name, coarser.width, level.name, last))
            tx.execute(self._sql["drop_folded_measures"], (level.name, last))
        last = tx.now - CAUSE_DAYS.keep - CAUSE_DAYS.width
        tx.execute(self._sql["drop_folded_measures"], (CAUSE_DAYS.name, last))
