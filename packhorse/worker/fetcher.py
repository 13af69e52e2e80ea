"""The fetcher: reserves jobs for one worker.

It decides when to ask the storage and for how many jobs, calls it, looks for jobs that came with a lost answer, and
admits only the jobs that may run here. It also finds new queues that hold jobs of this worker's tasks.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from packhorse.core.errors import BadValue
from packhorse.core.job import HELD, QUEUED, Job
from packhorse.core.outcome import Outcome, Verdict
from packhorse.storage.contract import BATCH, Storage
from packhorse.storage.records import BY_AGE, Filter
from packhorse.worker.admission import Admission
from packhorse.worker.config import WorkerConfig
from packhorse.worker.executors.pool import ExecutorPool
from packhorse.worker.finisher import Finisher
from packhorse.worker.held_job import HeldJob
from packhorse.worker.outage import Outage
from packhorse.worker.queues import LOOK_AGAIN, LOOK_ALONE

LATE_CHECKS = (10.0, 60.0, 300.0)
"""Seconds after a lost answer at which to look again for its jobs. The call may still hang in the storage, behind a
lock or a commit that waits for a replica, when the first look finds nothing."""


class Fetcher:
    """Asks the storage for jobs. Only the loop calls it, or the thread that waits in the loop's place."""

    def __init__(
        self, storage: Storage, config: WorkerConfig, executors: ExecutorPool, finisher: Finisher, outage: Outage
    ) -> None:
        self._storage = storage
        self._owner = config.owner
        self._max_jobs = config.limits.max_jobs
        self._is_alone = config.is_alone or config.foreman is None
        self._executors = executors
        self._finisher = finisher
        self._admission = Admission(storage, config.owner, executors, outage)
        self.pace = executors.pace
        self.queues = executors.served_queues
        self.takes_jobs = True
        self.found_nothing = False  # the last answer had no jobs, after all outcomes were written
        self.next_ask = 0.0
        self._by_age = False
        self._is_woken = False  # there may be work, in whatever queue
        self._answer_was_lost = False
        self._late_checks: list[float] = []  # when to look again for jobs of a lost answer

    # --- when, and how many -----------------------------------------------------------------------------------------

    def wanted(self, now: float, held: int, ending: int = 0) -> int:
        """How many jobs to ask for now. The worker holds so many, and is about to write the end of some of them."""
        if not self.takes_jobs or now < self.next_ask or self._finisher.outcomes.is_full:
            return 0
        if not self._executors.may_begin():
            return 0
        wanted = min(BATCH, self.pace.wanted(held - ending))
        if self._max_jobs is None:
            return wanted
        return max(0, min(wanted, self._max_jobs - self._finisher.done - held))  # what it may still run

    def ask_again(self) -> None:
        """Ask the storage in the next turn, whatever the last answer was."""
        self.found_nothing = False
        self.pace.wake()
        self.next_ask = 0.0

    def wake(self) -> None:
        """The storage has said that there may be work."""
        self.pace.wake()
        self._is_woken = self.queues.has_more

    def set_order(self, order: str) -> None:
        """Reserve in this order, which the storage keeps for all workers."""
        self._by_age = order == BY_AGE

    # --- asking -----------------------------------------------------------------------------------------------------

    @property
    def can_finish_and_reserve(self) -> bool:
        """Can one call do both?"""
        return not self._by_age

    def finish_and_reserve(self, outcomes: list[Outcome], wanted: int) -> tuple[list[Verdict], list[Job]]:
        """Write outcomes and reserve jobs in one round trip. BadValue: the storage refuses the outcomes, and has
        reserved nothing."""
        try:
            return self._storage.finish_and_reserve(outcomes, self._owner, self.queues.queues, wanted)
        except BadValue:
            raise
        except Exception:
            self._answer_was_lost = True
            raise

    def reserve(self, wanted: int) -> list[Job]:
        try:
            if self._by_age:
                return reserve_by_age(self._storage, self._owner, self.queues.queues, wanted)
            return self._storage.reserve(self._owner, self.queues.queues, wanted)
        except Exception:
            self._answer_was_lost = True
            raise

    def wait_and_reserve(self, wanted: int, seconds: float) -> list[Job]:
        """Wait until there are jobs, and reserve them."""
        asked_at = time.monotonic()
        try:
            if self._by_age:
                self._storage.wait(seconds, list(self.queues.to_wait_for))
                jobs = self.reserve(wanted)
            else:
                jobs = self._storage.wait_and_reserve(self._owner, self.queues.to_wait_for, wanted, seconds)
        except Exception:
            self._answer_was_lost = True
            raise
        if jobs:
            self.pace.wake()
        self._is_woken = self.queues.has_more and (self._is_woken or time.monotonic() - asked_at < seconds)
        return jobs

    def note_answer(self, wanted: int, got: int, now: float) -> None:
        """The storage has answered. Decide when to ask next, and whether to look for other queues."""
        self.found_nothing = wanted > 0 and not got
        self._is_woken = self._is_woken and self.found_nothing
        if self.found_nothing and self._should_look_for_queues() and self.look_for_queues():
            self.pace.wake()
            self.next_ask = 0.0
        elif wanted:
            self.pace.note_answer(wanted, got)
            self.next_ask = 0.0 if got >= wanted else now + self.pace.idle_wait
            if self._is_woken:
                self.next_ask = min(self.next_ask, now + LOOK_AGAIN)

    # --- what came in -----------------------------------------------------------------------------------------------

    def admit(self, jobs: Sequence[Job]) -> list[HeldJob]:
        """Hold the jobs that may run here; the others are handed back in the next turn."""
        return self._admission.admit(jobs)

    def refuse(self, jobs: Sequence[Job], why: str) -> None:
        """Hand these jobs back in the next turn."""
        self._admission.refuse(jobs, why)

    def hand_back_refused(self) -> None:
        self._admission.hand_back()

    def lose_answer(self) -> None:
        """The thread that asked has died: its answer may have brought jobs."""
        self._answer_was_lost = True

    def find_lost(self, held_jobs: Mapping[str, HeldJob]) -> list[Job]:
        """The jobs that the storage has given to this worker with an answer that was lost; mostly none."""
        if not self._answer_was_lost and (not self._late_checks or time.monotonic() < self._late_checks[0]):
            return []
        page = self._storage.find(Filter(states=HELD, owner=self._owner), limit=BATCH)
        jobs = page.jobs
        while page.next is not None:
            page = self._storage.find(Filter(states=HELD, owner=self._owner), cursor=page.next, limit=BATCH)
            jobs += page.jobs
        now = time.monotonic()
        if self._answer_was_lost:
            self._late_checks = [now + seconds for seconds in LATE_CHECKS]
        else:
            self._late_checks = [at for at in self._late_checks if at > now]
        self._answer_was_lost = False
        return [job for job in jobs if (held := held_jobs.get(job.id)) is None or held.job.fence != job.fence]

    # --- queues -----------------------------------------------------------------------------------------------------

    def look_for_queues(self) -> bool:
        """Serve every queue that holds jobs of a known task. True: there is a new one."""
        return self.queues.has_more and self.queues.look_into(self._storage.tallies())

    def look_for_queues_if_alone(self) -> None:
        """Without a foreman a worker that is never idle has to look, too."""
        if self._is_alone and self.queues.should_look(LOOK_ALONE):
            self.look_for_queues()

    def _should_look_for_queues(self) -> bool:
        """After an empty answer: was the worker woken for a queue that it does not serve yet? A foreman names new
        queues as well."""
        if not (self._is_woken or self._is_alone):
            return False
        if not self.queues.should_look(LOOK_AGAIN if self._is_woken else LOOK_ALONE):
            return False
        self._is_woken = False
        return True


# --- the order "created" ----------------------------------------------------------------------------------------------


def reserve_by_age(storage: Storage, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
    """`storage.reserve` in the order in which jobs were created, by rank and then by age, across these queues.

    A storage shares the turns of one rank among the queues and takes the first job of each. So look first in which
    queues the oldest jobs wait, and take as many from each. Two workers that do so at the same time may get each
    other's neighbours, but no job is passed over.
    """
    shares = _queues_of_oldest(storage, queues, limit)
    taken = _take(storage, owner, queues, shares)
    if not taken and shares:  # paused queues may hold the oldest jobs
        paused = {queue.name for queue in storage.queues() if queue.is_paused}
        open_queues = {name: weight for name, weight in queues.items() if name not in paused}
        taken = _take(storage, owner, queues, _queues_of_oldest(storage, open_queues, limit)) if open_queues else []
    if not taken:  # some may be due; and the storage raises if it does not know this worker
        taken = storage.reserve(owner, queues, limit)
    return sorted(taken, key=lambda job: (job.rank, job.seq))


def _queues_of_oldest(storage: Storage, queues: Collection[str], limit: int) -> Counter[str]:
    """How many of the next jobs wait in each of these queues; the queue of the first job comes first."""
    where = Filter(states=frozenset({QUEUED}), queues=frozenset(queues))
    return Counter(job.queue for job in storage.find(where, limit=limit).jobs)


def _take(storage: Storage, owner: str, queues: Mapping[str, int], shares: Counter[str]) -> list[Job]:
    return [job for queue, share in shares.items() for job in storage.reserve(owner, {queue: queues[queue]}, share)]
