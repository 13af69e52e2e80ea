"""The fetcher: reserves jobs for one worker.

It decides when to ask the storage and for how many jobs, calls it, looks for jobs that came with a lost answer, and
admits only the jobs that may run here. It also finds new queues that hold jobs of this worker's tasks.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from packhorse.core.clock import SECOND
from packhorse.core.errors import BadValue, StorageUnavailable, TaskNotFound
from packhorse.core.job import HELD, QUEUED, Job
from packhorse.core.outcome import Failure, Outcome, Released, Verdict
from packhorse.monitor.served_queues import serves
from packhorse.storage.contract import BATCH, Storage
from packhorse.storage.records import BY_AGE, Filter, Tally, WorkerInfo
from packhorse.worker.config import WorkerConfig
from packhorse.worker.executors.pool import ExecutorPool
from packhorse.worker.finisher import Finisher, finish_in_parts
from packhorse.worker.held_job import HeldJob, unreturned_ids
from packhorse.worker.logging import about
from packhorse.worker.outage import Outage
from packhorse.worker.queues import LOOK_AGAIN, LOOK_ALONE

log = logging.getLogger("packhorse.worker")

LATE_CHECKS = (10.0, 60.0, 300.0)
"""Seconds after a lost answer at which to look again for its jobs. The call may still hang in the storage, behind a
lock or a commit that waits for a replica, when the first look finds nothing."""
UNKNOWN_WAIT = 10 * SECOND
"""Delay of a job whose task this worker does not know."""
READ_EVERY = 1.0
"""Seconds between two reads of the other workers and of the waiting jobs, while jobs of unknown tasks come in."""
LOG_EVERY = 60.0
"""Seconds between two warnings about the same unknown task."""
DOUBLE_WAIT = 3 * SECOND
"""Delay of a job whose last run still continues. It doubles each time,"""
LONGEST_DOUBLE_WAIT = 30 * SECOND
"""up to this."""


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


# --- admission ------------------------------------------------------------------------------------------------------


class Admission:
    """Which of the reserved jobs may run in this worker. It keeps the others until they are handed back.

    A job of a task that this worker does not know waits for another worker. So does a job whose last run was given up
    and still continues, in another worker or on a thread of this program. Both are released with a delay, uncounted.
    """

    def __init__(self, storage: Storage, owner: str, executors: ExecutorPool, outage: Outage) -> None:
        self._storage = storage
        self._owner = owner
        self._executors = executors
        self._outage = outage
        self._refused: list[Outcome] = []
        self._delays: dict[str, int] = {}  # of jobs whose last run continues, by id
        self._workers: list[WorkerInfo] = []  # all workers,
        self._tallies: list[Tally] = []  # and the waiting jobs,
        self._read_at = float("-inf")  # as of this time
        self._warned_at: dict[str, float] = {}  # by unknown task

    def admit(self, jobs: Sequence[Job]) -> list[HeldJob]:
        """Hold the jobs that may run here now."""
        return [held for job in self._without_running(jobs) if (held := self._hold(job)) is not None]

    def refuse(self, jobs: Iterable[Job], why: str, delay: int = 0) -> None:
        """Hand these jobs back with the next `hand_back`."""
        self._refused += [Released(job.token, why, delay=delay) for job in jobs]

    def hand_back(self) -> None:
        """Release the refused jobs."""
        if not self._refused:
            return
        try:
            self._storage.finish(self._refused)
            self._refused = []
        except BadValue:
            batch = [(released.token.job_id, released) for released in self._refused]
            parts = finish_in_parts(batch, lambda part: self._storage.finish([outcome for _, outcome in part]))
            self._refused = [outcome for _, outcome in parts.left]

    def _hold(self, job: Job) -> HeldJob | None:
        """A held job; None: its task is unknown here, and it waits for another worker."""
        try:
            return self._executors.hold(job)
        except TaskNotFound as error:
            now = time.monotonic()
            is_new = now >= self._warned_at.get(job.task, float("-inf")) + LOG_EVERY
            log.log(
                logging.WARNING if is_new else logging.DEBUG,
                "job %s is handed back, as are others of its task: %s",
                *(job.id, error),
                extra=about(job),
            )
            if is_new:
                self._warned_at[job.task] = now
            self.refuse([job], f"{self._owner} does not know its task", UNKNOWN_WAIT)
            if self._executors.served_queues.is_of_others(job.queue) and self._should_leave(job):
                self._executors.served_queues.leave(job.queue)
            return None

    def _should_leave(self, job: Job) -> bool:
        """Should this worker stop serving the queue of this job, whose task it does not know?

        Yes, if another worker takes such jobs: this one must not delay them. Yes, if no job of a known task waits in
        the queue: this worker would only hand jobs back. No, if one does: it would wait behind them in vain. Yes, while
        the storage is away.
        """
        now = time.monotonic()
        if now >= self._read_at + READ_EVERY:
            self._read_at = now
            try:
                self._workers, self._tallies = self._storage.workers(), self._storage.tallies()
            except StorageUnavailable as error:
                self._workers, self._tallies = [], []
                self._outage.note(error, len(self._executors.outcomes))
        if any(each.id != self._owner and serves(each, job.queue, [job.task]) for each in self._workers):
            return True
        return not self._executors.served_queues.waits_in(job.queue, self._tallies)

    def _without_running(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """The jobs, without those whose last run was given up and still continues. Those wait until the run has
        returned or its worker is gone."""
        places = self._places_of_runs(jobs)
        if not places and not self._delays:
            return jobs
        for job in jobs:
            if job.id in places:
                longer = min(2 * self._delays.get(job.id, 0), LONGEST_DOUBLE_WAIT)
                self._delays[job.id] = max(DOUBLE_WAIT, longer)
                why = f"its last run was given up and still continues in {places[job.id]}"
                self.refuse([job], why, self._delays[job.id])
            else:
                self._delays.pop(job.id, None)
        return [job for job in jobs if job.id not in places]

    def _places_of_runs(self, jobs: Sequence[Job]) -> dict[str, str]:
        """Where the last run of a job still continues. Hardly any job has one, and every job is asked about."""
        here = unreturned_ids()
        places = {job.id: "this program" for job in jobs if job.id in here} if here else {}
        failed = [job for job in jobs if job.error is not None]
        workers = {job.id: worker for job in failed if (worker := Failure.goes_on_in(job.error)) is not None}
        alive = self._alive(set(workers.values())) if workers else set()
        return places | {job_id: f"worker {worker}" for job_id, worker in workers.items() if worker in alive}

    def _alive(self, workers: set[str]) -> set[str]:
        """Those of these workers that are not gone; all of them while the storage is away."""
        try:
            return workers & {each.id for each in self._storage.workers()}
        except StorageUnavailable as error:
            self._outage.note(error, len(self._executors.outcomes))
            return workers


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
