"""The loop: the one thread of a worker that talks to the storage.

Each turn writes the outcomes that have gathered and reserves as many jobs as there is room for, both in one round trip,
then hands the jobs to the executors. In between it watches the time limits of the held jobs, writes what they log, and
hands back jobs that it cannot run soon. However many slots a worker has, the storage sees one caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from typing import Literal

from packhorse.core.clock import SECOND
from packhorse.core.errors import StorageUnavailable
from packhorse.core.job import Job, Reason
from packhorse.core.outcome import Outcome, Released, Verdict
from packhorse.storage.contract import Storage
from packhorse.worker.config import WorkerConfig
from packhorse.worker.executors.pool import ExecutorPool, restore_switch_interval
from packhorse.worker.executors.thread import Delegation, delegate
from packhorse.worker.fetcher import Fetcher
from packhorse.worker.finisher import Batch, Finisher
from packhorse.worker.held_job import HeldJob, note_unreturned
from packhorse.worker.job_log import JobLogWriter
from packhorse.worker.logging import log_reserved, log_stale
from packhorse.worker.outage import Outage
from packhorse.worker.outcomes import of_stopped
from packhorse.worker.spool import OutcomeSpooler
from packhorse.worker.timeouts import Timeouts

STALL = 0.003
"""Seconds. If no job has begun for so long, one of the short jobs takes longer than the last did, and all get slots."""
MARK_AFTER = 0.2
"""Seconds after which a job is marked as running in the storage, so that everyone can see it."""
VISIT = 0.25
"""Seconds between two visits of the held jobs."""
BUFFER_LIMIT = 1.0
"""Seconds that a reserved job may wait here before it is handed back for other workers."""
SLOT_CHECK = 0.05
"""Seconds between two looks at the slots while jobs wait for them."""
LONG_AFTER_CHECKS = 3
"""A job that so many looks have found running takes long. Its start time alone would not prove that: the whole machine
may have been asleep."""
_LONGEST_SLEEP = 1.0
"""Seconds between two turns while there is anything to watch."""


class Wakeup:
    """Wakes the loop while it sleeps, from any thread. It sleeps in the storage, which wakes it when there may be jobs,
    or here, where only this process does.

    The loop sets `place` first and then looks once more whether there is something to do. So what comes in later finds
    it asleep and wakes it; while it is awake, `wake` costs next to nothing.
    """

    def __init__(self, storage: Storage) -> None:
        self.place: Literal["storage", "here"] | None = None
        self._storage = storage
        self._signals: SimpleQueue[None] = SimpleQueue()

    def wake(self) -> None:
        """There is something to do."""
        if self.place == "storage":
            self._storage.interrupt()
        elif self.place == "here":
            self._signals.put(None)

    def sleep_here(self, seconds: float) -> None:
        """Sleep until `wake`, or for so many seconds."""
        with suppress(Empty):
            self._signals.get(timeout=seconds)


class WorkerLoop:
    """The loop of one worker. `on_stored` gets each outcome that the storage has accepted."""

    def __init__(
        self,
        storage: Storage,
        config: WorkerConfig,
        executors: ExecutorPool,
        log_writer: JobLogWriter,
        wakeup: Wakeup,
        spooler: OutcomeSpooler,
        on_stored: Callable[[Job, Outcome], object] | None = None,
    ) -> None:
        self._storage = storage
        self._in_program = config.in_program
        self._executors = executors
        self._slots = executors.slots
        self._log_writer = log_writer
        self.wakeup = wakeup
        self.held_jobs: dict[str, HeldJob] = {}
        self._outage = Outage()
        self.outcomes = executors.outcomes
        self.finisher = Finisher(
            storage,
            self.outcomes,
            self._slots,
            self.held_jobs,
            executors.pace,
            log_writer,
            spooler,
            self._outage,
            on_stored,
        )
        self.fetcher = Fetcher(storage, config, executors, self.finisher, self._outage)
        self._timeouts = Timeouts(executors, config.limits, in_program=config.in_program)
        self._handed_back: list[HeldJob] = []  # while they ran, when the worker ended
        self._waits_itself = False  # the last thread that waited in the loop's place was interrupted
        self._begun, self._begun_at = -1, 0.0  # how many jobs had begun, and when that was last seen to change
        self._next_visit = self._next_slot_check = 0.0

    # --- from other threads ---------------------------------------------------------------------------------------

    @property
    def busy(self) -> list[HeldJob]:
        """The jobs that run now."""
        return self._slots.busy

    def stop_job(self, job_id: str, fence: int, reason: Reason) -> None:
        """An operator wants this job to stop."""
        self._timeouts.stop_job(job_id, fence, reason)
        self._next_visit = 0.0
        self.wakeup.wake()

    def serve(self, found: Mapping[str, Collection[str]]) -> None:
        """The foreman has seen jobs of these tasks in these queues."""
        if self.fetcher.queues.add(found):
            self.look_now()

    def look_now(self) -> None:
        """The foreman has seen waiting jobs; the storage may not have woken anyone for them."""
        self.fetcher.next_ask = 0.0
        self.wakeup.wake()

    # --- one turn -------------------------------------------------------------------------------------------------

    def turn(self, longest_sleep: float = 1.0) -> None:
        """Watch the held jobs, write outcomes and reserve jobs; if there is nothing to do, sleep a little. The worker
        calls it again and again."""
        now = time.monotonic()
        if self._slots.is_narrow:
            self._widen_if_stalled(now)
        if now >= self._next_slot_check:
            self._check_slots(now)
        is_visit = now >= self._next_visit
        if is_visit:
            self._visit(now)
        try:
            if now >= self._outage.next_try:
                is_busy = self._exchange(now)
                self._write_starts()
                if is_visit:
                    self._write_logs(now)
                if is_busy:
                    return  # without a sleep: this may have been the last thing that the worker waited for
            self._sleep(longest_sleep)
        except StorageUnavailable as error:
            self._outage.note(error, len(self.outcomes))
        if self._outage.is_on:
            self.finisher.keep()

    def _exchange(self, now: float) -> bool:
        """Write outcomes and reserve jobs. False: there was nothing to do."""
        self.fetcher.hand_back_refused()
        if lost := self.fetcher.find_lost(self.held_jobs):
            self._dispatch(lost)
        batch = self.outcomes.take(self._outage.most)
        wanted = self.fetcher.wanted(now, len(self.held_jobs), len(batch))
        if batch and wanted and self.fetcher.can_finish_and_reserve:
            jobs = self._finish_and_reserve(batch, wanted)
        elif batch or wanted:
            if batch:
                self.finisher.write(batch)
            jobs = self.fetcher.reserve(wanted) if wanted else []
            self._outage.end()
        else:
            return False
        self._take(jobs, wanted, now)
        return True

    def _finish_and_reserve(self, batch: Batch, wanted: int) -> list[Job]:
        """One round trip; several if the storage refuses the outcomes together."""
        jobs: list[Job] | None = None

        def both(outcomes: list[Outcome]) -> list[Verdict]:
            nonlocal jobs
            verdicts, jobs = self.fetcher.finish_and_reserve(outcomes, wanted)
            return verdicts

        self.finisher.write(batch, both)
        return self.fetcher.reserve(wanted) if jobs is None else jobs

    def _take(self, jobs: Sequence[Job], wanted: int, now: float) -> None:
        """The storage has answered with these jobs."""
        self.fetcher.note_answer(wanted, len(jobs), now)
        if jobs:
            self._dispatch(jobs)
        self.outcomes.in_hand = len(self.held_jobs)
        self.outcomes.enough = max(1, self.fetcher.pace.buffer // 2)
        if jobs:  # after the dispatch: the storage may be away by now
            self.fetcher.look_for_queues_if_alone()

    def _dispatch(self, jobs: Sequence[Job]) -> None:
        """Hand these jobs to the executors."""
        held_jobs = self.fetcher.admit(jobs)
        self.held_jobs.update({held.job.id: held for held in held_jobs})
        log_reserved(held_jobs)
        self._executors.line_up(held_jobs)
        self._write_starts()

    def _write_starts(self) -> None:
        """Store the start of the jobs that may not begin before, and let them begin. If that fails, hand them back."""
        if not self._executors.starts:
            return
        starting = [(held, slot) for held, slot in self._executors.starts.take() if not held.is_claimed]
        try:
            self.finisher.write_now()  # so that the job that had the slot before is not shown as running any more
            stale = self._log_writer.mark_running([held for held, _ in starting])
        except StorageUnavailable as error:
            self._outage.note(error, len(self.outcomes))
            for held, _ in starting:
                self._executors.hand_back(held, "its start could not be stored")
            return
        for held, slot in starting:
            if held in stale:
                log_stale(held, "it does not begin here")
                held.claim()
                held.settle()
                self._slots.give_up(held)
                self.finisher.forget(held)
            else:
                self._executors.executor_of(held).begin(held, slot)

    # --- watching the held jobs -------------------------------------------------------------------------------------

    def _visit(self, now: float) -> None:
        """Enforce time limits, and hand back what has waited too long. Needs no storage."""
        unmarked = [held for held in self.held_jobs.values() if held.began_at is not None and not held.is_marked]
        self._next_visit = min([now + VISIT, *(at for at in map(_mark_at, unmarked) if at > now)])
        self._executors.note_look()
        left = self._timeouts.enforce(self.held_jobs, now)
        if left is not None:
            self._next_visit = min(self._next_visit, now + left)
        if not self._executors.may_begin():
            self.hand_back_waiting("the heartbeats of its worker do not get through")
        for held in list(self.held_jobs.values()):
            if held.began_at is None and now - held.reserved_at > BUFFER_LIMIT:
                self.fetcher.pace.note_overfull()  # else the same jobs would be reserved again immediately
                self._executors.hand_back(held, "another job took too long before it")

    def _check_slots(self, now: float) -> None:
        """Hand back what waits behind jobs that take longer than those before them: another worker may be idle."""
        self._next_slot_check = now + SLOT_CHECK
        waiting = self._slots.waiting
        if not waiting:
            return
        seconds = 0.0
        for held in self._slots.busy:
            held.times_seen += 1
            if held.times_seen >= LONG_AFTER_CHECKS and held.began_at is not None:
                seconds += now - held.began_at
        too_many = waiting - self.fetcher.pace.room(seconds / self._slots.number)
        if too_many > 0:
            self._hand_back_latest(too_many, now)

    def _hand_back_latest(self, number: int, now: float) -> None:
        for held in reversed(list(self.held_jobs.values())):
            waits = now - held.reserved_at
            if number > 0 and held.began_at is None and waits > SLOT_CHECK * (LONG_AFTER_CHECKS - 1):
                self.fetcher.pace.note_overfull()
                number -= self._executors.hand_back(held, "another job took too long before it")

    def _widen_if_stalled(self, now: float) -> None:
        """Short jobs run one after the other. If one of them takes longer, let the others use all slots."""
        if self._slots.begun != self._begun:
            self._begun, self._begun_at = self._slots.begun, now
        elif now - self._begun_at >= STALL:
            self._executors.widen()

    def _write_logs(self, now: float) -> None:
        """Store what the jobs have logged, and which of them have run for a while."""
        running = [held for held in self.held_jobs.values() if held.began_at is not None and not held.is_settled]
        for held in self._log_writer.write(running):
            self._timeouts.stop(held, Reason.ABORTED, "it was aborted")
        self._log_writer.mark_running([held for held in running if _mark_at(held) <= now])

    # --- stopping ---------------------------------------------------------------------------------------------------

    @property
    def has_given_up_runs(self) -> bool:
        """Does a job that was given up still run?"""
        return bool(self._timeouts.given_up)

    def hand_back_waiting(self, why: str) -> None:
        """Hand back the jobs that have not begun."""
        for held in list(self.held_jobs.values()):
            self._executors.hand_back(held, why)

    def write_rest(self, until: float) -> None:
        """Write the last outcomes. Raise StorageUnavailable if the storage takes none until then."""
        restore_switch_interval()
        self.finisher.write_rest(until)

    def hand_back_running(self, why: str, until: float) -> None:
        """Hand back the jobs that still run. A job that has ended by now keeps its own outcome. Raise
        StorageUnavailable as `write_rest`."""
        while True:
            for held in list(self.held_jobs.values()):
                if held.is_settled:  # its outcome is on its way
                    continue
                self._note_run(held)
                ran = max(1, held.ran) if held.is_claimed else 0
                self.outcomes.put(held, of_stopped(held) or Released(held.job.token, why, ran=ran))
            self.write_rest(until)
            if not self.held_jobs or time.monotonic() >= until:
                return
            time.sleep(0.001)  # the thread of a job that has just ended is about to put its outcome in

    def leave_running(self) -> list[str]:
        """The ids of the jobs that still run when everything is written that can be. The worker waits no longer."""
        for held in list(self.held_jobs.values()):  # the storage does not know that these are given up
            if not held.is_settled:
                self._note_run(held)
                if not held.settle():
                    held.has_returned = True
        if not self._in_program:
            return []  # they end with the process
        left = [*self._timeouts.given_up, *self._handed_back]
        return [held.job.id for held in left if not held.has_returned]

    def _note_run(self, held: HeldJob) -> None:
        """Before the job gets another owner: no pool of this process may begin it beside this run."""
        if self._in_program and held.is_claimed:
            note_unreturned(held)
            self._handed_back.append(held)

    # --- sleeping -------------------------------------------------------------------------------------------------

    def _sleep(self, longest: float) -> None:
        """Sleep until an outcome comes in, a job may be there, or a held job needs a visit. An idle worker may sleep
        longer: the storage wakes it."""
        now = time.monotonic()
        if self._has_starts(now):
            return
        seconds = min(longest, _LONGEST_SLEEP)
        if self.held_jobs:
            seconds = min(seconds, max(0.0, self._next_visit - now))
        if self._slots.is_narrow:
            seconds = min(seconds, STALL)
        if self._slots.waiting:
            seconds = min(seconds, max(0.0, self._next_slot_check - now))
        next_ask = self.fetcher.next_ask
        if now < self._outage.next_try:
            self._sleep_here(min(seconds, self._outage.next_try - now))
        elif (due_in := self.outcomes.due_in()) is not None:
            self._sleep_here(min(seconds, due_in))
        elif self.fetcher.wanted(max(now, next_ask), len(self.held_jobs)) == 0:
            self._sleep_here(seconds)
        elif next_ask > now:
            is_idle = not (self.held_jobs or self._slots.is_narrow or self._slots.waiting)
            self._sleep_in_storage(min(longest if is_idle else seconds, self._until_due(next_ask - now)))

    def _has_starts(self, now: float) -> bool:
        """Are there starts to write now?"""
        return bool(self._executors.starts) and now >= self._outage.next_try

    def _until_due(self, seconds: float) -> float:
        """So many seconds, but not past the moment when the next scheduled or retrying job is due."""
        if seconds < 0.05:
            return seconds
        due = self._storage.next_due()
        return seconds if due is None else min(seconds, due / SECOND)

    def _sleep_in_storage(self, seconds: float) -> None:
        restore_switch_interval()
        self.wakeup.place = "storage"
        try:
            # Look only now that a wake-up would be noticed: what came in before must not wait for the next one.
            if self.outcomes or self._executors.starts:
                self.fetcher.next_ask = 0.0
            elif self.held_jobs:
                if self._storage.wait(seconds, list(self.fetcher.queues.to_wait_for)):
                    self.fetcher.wake()
                self.fetcher.next_ask = 0.0
            else:
                self._wait_for_jobs(seconds)
        finally:
            self.wakeup.place = None

    def _wait_for_jobs(self, seconds: float) -> None:
        """Sleep while this worker is idle, with the next question at the storage already. Ask for no more jobs than can
        begin immediately: if this process were frozen meanwhile, they would wait until its lease is over."""
        wanted = min(self.fetcher.pace.slots, self.fetcher.wanted(self.fetcher.next_ask, held=0))
        if wanted == 0:
            return
        work = partial(self._wait_and_take, wanted, seconds)
        delegation = Delegation.NO_THREAD
        if self._storage.supports_threaded_wait and not self._waits_itself:
            delegation = delegate(self._executors.threads.lend, work, self._storage.interrupt)
        # If the error is our own, the loop raises it the next time, when it waits itself.
        self._waits_itself = delegation is Delegation.INTERRUPTED
        if delegation is Delegation.INTERRUPTED:
            self.fetcher.lose_answer()
        elif delegation is Delegation.NO_THREAD:
            work()
        if self.held_jobs:
            self._sleep_here(STALL)  # so that they begin while no other thread wants the interpreter lock

    def _wait_and_take(self, wanted: int, seconds: float) -> None:
        """Wait for jobs and dispatch them. Another thread may do this while the loop sleeps."""
        try:
            jobs = self.fetcher.wait_and_reserve(wanted, seconds)
        finally:
            self.wakeup.place = None  # there is no call to interrupt any more
        if self.fetcher.takes_jobs and self._executors.may_begin():
            self._take(jobs, wanted, time.monotonic())
            if len(jobs) == 1:
                restore_switch_interval()  # until it has begun
        else:
            self.fetcher.refuse(jobs, "its worker takes no more jobs")

    def _sleep_here(self, seconds: float) -> None:
        self.wakeup.place = "here"
        try:
            due_in = self.outcomes.due_in()
            if due_in is not None and time.monotonic() >= self._outage.next_try:
                seconds = min(seconds, due_in)
            if seconds > 0 and not self._has_starts(time.monotonic()):
                self.wakeup.sleep_here(seconds)
        finally:
            self.wakeup.place = None


def _mark_at(held: HeldJob) -> float:
    """When to mark the job as running."""
    return inf if held.is_marked or held.began_at is None else held.began_at + MARK_AFTER
