"""The loop: the one thread of a worker that talks to the storage.

Each turn it takes the outcomes that have gathered and asks for as many new jobs as there is room for, both in one round
trip, then hands the jobs to the executors. In between it has the timeouts look after the held jobs and the log writer
write down
what they say, and hands back what it cannot run soon. However many slots a worker has, the storage sees one caller.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import inf

from packhorse.core.clock import SECOND
from packhorse.core.errors import BadValue, StorageUnavailable
from packhorse.core.job import HELD, Job, Reason
from packhorse.core.outcome import Failed, Outcome, Released, Verdict
from packhorse.storage.contract import BATCH, Storage
from packhorse.storage.records import BY_AGE, Filter
from packhorse.worker import lock, unreturned
from packhorse.worker.activity_log import tell_ended, tell_failed, tell_taken
from packhorse.worker.admission import Admission
from packhorse.worker.by_age import reserve_by_age
from packhorse.worker.config import WorkerConfig
from packhorse.worker.durations import TaskDurations
from packhorse.worker.executors.delegation import Delegation, delegate
from packhorse.worker.executors.pool import ExecutorPool
from packhorse.worker.fetcher import Fetcher
from packhorse.worker.held_job import HeldJob
from packhorse.worker.job_log_writer import JobLogWriter
from packhorse.worker.logging import about
from packhorse.worker.outage import Outage
from packhorse.worker.outcomes import of_told
from packhorse.worker.queues import LOOK_AGAIN, LOOK_ALONE
from packhorse.worker.refusals import finish_in_portions
from packhorse.worker.spooler import OutcomeSpooler, dated
from packhorse.worker.timeouts import Timeouts
from packhorse.worker.wakeup import Wakeup

log = logging.getLogger("packhorse.worker")

STALL = 0.003
"""Seconds without a job begun, after which such jobs get all slots: one of them takes longer than the last did."""
MARK_AFTER = 0.2
"""Seconds. Whatever runs longer is marked as running, so that everybody can see it."""
VISIT = 0.25
"""Seconds between two visits of the held jobs."""
_USUAL_SLEEP = 1.0
"""Seconds between two turns at most, while there is anything to look after."""
HOARD_LIMIT = 1.0
"""Seconds that a job may wait in the buffer before it is handed back for others to run."""
LOOK = 0.05
"""Seconds between two looks at the slots while jobs wait for them."""
LOOKS = 3
"""A job that was found running so often takes long: not the machine has stood still, for the loop was awake."""
DOUBTS = (10.0, 60.0, 300.0)
"""Seconds after which it is looked again for what a question has brought whose answer was lost. It may lie at the
storage, behind one that blocks, or its commit behind a replica that is away, for longer than the first look takes."""


class WorkerLoop:
    """Reserves, finishes, and looks after what is in between. `on_stored` is told of each outcome that was accepted."""

    def __init__(
        self,
        storage: Storage,
        config: WorkerConfig,
        executors: ExecutorPool,
        log_writer: JobLogWriter,
        wakeup: Wakeup,
        on_stored: Callable[[Job, Outcome], object] | None = None,
        spooler: OutcomeSpooler | None = None,
    ) -> None:
        self._storage = storage
        self._owner = config.owner
        self._by_age = False
        self._in_program = config.in_program
        self._is_alone = config.is_alone or config.foreman is None
        self._max_jobs = config.limits.max_jobs
        self._executors = executors
        self._slots = executors.slots
        self._served_queues = executors.served_queues
        self.finisher = executors.finisher
        self._log_writer = log_writer
        self._on_stored = on_stored
        self._spooler = spooler or OutcomeSpooler(None, executors.finisher)
        self.wakeup = wakeup
        self._fetcher = Fetcher(config.concurrency)
        self._timeouts = Timeouts(executors, config.limits, in_program=config.in_program)
        self._durations = TaskDurations()
        self._outage = Outage()
        self._admission = Admission(storage, config.owner, executors, self._outage)
        self.held_jobs: dict[str, HeldJob] = {}
        self._handed_back: list[HeldJob] = []  # while they ran, when the worker ended
        self._may_hold_more = False  # the answer to a `reserve` was lost
        self._looks: list[float] = []  # when to look for it again: it may be on its way still
        self._goes_itself = False  # the last delegate was disturbed
        self._is_woken = False  # there may be work, of whatever queue
        self.takes_jobs = True
        self.found_nothing = False  # when the storage was last asked, after all that was to be written down
        self.done = self.failed = 0
        self.ran = 0  # microseconds, of all that was done
        self._seen_begun, self._seen_at = -1, 0.0  # how many had begun when it was last looked at
        self._next_visit = self._next_ask = self._next_look = 0.0

    # --- from other threads ---------------------------------------------------------------------------------------

    @property
    def busy(self) -> list[HeldJob]:
        """The jobs that run now."""
        return self._slots.busy

    def stop_job(self, job_id: str, fence: int, reason: Reason) -> None:
        """An operator wants this job to end."""
        self._timeouts.stop_job(job_id, fence, reason)
        self._next_visit = 0.0
        self.wakeup.ring()

    @property
    def has_run_on(self) -> bool:
        """Does a job still run that was given up?"""
        return bool(self._timeouts.run_on)

    def hand_all_back(self, why: str) -> None:
        """Hand back what has not begun."""
        for held in list(self.held_jobs.values()):
            self._executors.hand_back(held, why)

    def serve(self, found: Mapping[str, Collection[str]]) -> None:
        """The foreman has seen jobs of these tasks wait in these queues."""
        if self._served_queues.add(found):
            self._next_ask = 0.0
            self.wakeup.ring()

    def follow(self, order: str) -> None:
        """Serve queues of one rank in this order: the storage's."""
        self._by_age = order == BY_AGE

    def look_now(self) -> None:
        """The foreman has seen jobs in line, of which the storage may have told nobody."""
        self._next_ask = 0.0
        self.wakeup.ring()

    # --- one turn -------------------------------------------------------------------------------------------------

    def turn(self, most_sleep: float = 1.0) -> None:
        """Look after the held jobs, write down, take in, or else sleep a little. Called again and again by the
        worker."""
        now = time.monotonic()
        if self._slots.is_narrow:
            self._widen(now)
        if now >= self._next_look:
            self._look_at_slots(now)
        is_visit = now >= self._next_visit
        if is_visit:
            self._visit(now)
        try:
            if now >= self._outage.next_try:
                is_busy = self._exchange(now)
                self._write_starts()
                if is_visit:
                    self._write_down(now)
                if is_busy:
                    return  # without a sleep: this may have been the last that the worker waited for
            self._sleep(most_sleep)
        except StorageUnavailable as error:
            self._outage.noticed(error, len(self.finisher))
        if self._outage.is_under_way:
            self._spooler.keep()

    def _widen(self, now: float) -> None:
        """Short jobs run one after the other; should one of them hold up the rest, they get all slots."""
        if self._slots.begun != self._seen_begun:
            self._seen_begun, self._seen_at = self._slots.begun, now
        elif now - self._seen_at >= STALL:
            lock.relax()
            self._slots.widen()

    def _exchange(self, now: float) -> bool:
        """Outcomes out, jobs in. False: there was nothing to exchange."""
        self._admission.give_back()
        self._find_lost()
        batch = self.finisher.take(self._outage.most)
        wanted = self._wanted(len(self.held_jobs) - len(batch), now)
        if not batch and wanted == 0:
            return False
        verdicts, jobs = self._call(batch, wanted)
        self._outage.ended()
        self._settle(batch, verdicts)
        self._take_in(jobs, wanted, now)
        return True

    def _take_in(self, jobs: Sequence[Job], wanted: int, now: float) -> None:
        self.found_nothing = wanted > 0 and not jobs
        self._is_woken = self._is_woken and self.found_nothing
        if self.found_nothing and self._may_serve_more() and self.look_for_queues():
            self._fetcher.woken()
            self._next_ask = 0.0
            return
        if wanted:
            self._fetcher.found(wanted, len(jobs))
            self._next_ask = 0.0 if len(jobs) >= wanted else now + self._fetcher.idle_wait
            if self._is_woken:
                self._next_ask = min(self._next_ask, now + LOOK_AGAIN)
        if jobs:
            self._dispatch(jobs)
        self._tell_finisher()
        # Only now that the jobs are seated: the storage may be away. Who is never idle must look, too.
        if jobs and self._is_alone and self._served_queues.should_look(LOOK_ALONE):
            self.look_for_queues()

    def _may_serve_more(self) -> bool:
        """Nothing was found: was it woken for a queue that is not served here yet? A foreman would tell of one, too."""
        if not (self._is_woken or self._is_alone):
            return False
        if not self._served_queues.should_look(LOOK_AGAIN if self._is_woken else LOOK_ALONE):
            return False
        self._is_woken = False
        return True

    def look_again(self) -> None:
        """Ask the storage at the next turn, whatever was found before."""
        self.found_nothing = False
        self._fetcher.woken()
        self._next_ask = 0.0

    def look_for_queues(self) -> bool:
        """Serve every queue that holds jobs of a task known here. True: there is another one now."""
        return self._served_queues.has_more and self._served_queues.look_into(self._storage.tallies())

    def _wanted(self, in_hand: int, now: float) -> int:
        if not self.takes_jobs or now < self._next_ask or self.finisher.is_full or not self._executors.may_begin():
            return 0
        wanted = min(BATCH, self._fetcher.wanted(in_hand))
        if self._max_jobs is None:
            return wanted
        return max(0, min(wanted, self._max_jobs - self.done - len(self.held_jobs)))  # what is left of its allowance

    def _call(self, batch: list[tuple[HeldJob, Outcome]], wanted: int) -> tuple[list[Verdict], list[Job]]:
        try:
            self._log_writer.write_down([held for held, _ in batch])
            outcomes = dated(batch)
            if not outcomes:
                return [], self._reserve(wanted)
            try:
                if not wanted or self._by_age:
                    return self._storage.finish(outcomes), self._reserve(wanted)
                return self._storage.finish_and_reserve(outcomes, self._owner, self._served_queues.queues, wanted)
            except BadValue:
                return self._finish_in_portions(batch), self._reserve(wanted)
        except Exception:
            self.finisher.give_back(batch)
            self._may_hold_more = self._may_hold_more or wanted > 0
            raise

    def _reserve(self, wanted: int) -> list[Job]:
        if not wanted:
            return []
        take = partial(reserve_by_age, self._storage) if self._by_age else self._storage.reserve
        return take(self._owner, self._served_queues.queues, wanted)

    def _finish_in_portions(self, batch: list[tuple[HeldJob, Outcome]]) -> list[Verdict]:
        """Not together, because the storage does not take them so. `batch` has what was written from then on."""
        written = finish_in_portions(batch, lambda portion: self._storage.finish(dated(portion)))
        for held in written.lost:
            self._forget(held)
            self._slots.clear(held)
        self.finisher.lost += len(written.lost)
        self.finisher.give_back(written.left)
        batch[:] = written.batch
        return written.verdicts

    def _settle(self, batch: Sequence[tuple[HeldJob, Outcome]], verdicts: Sequence[Verdict]) -> None:
        runs = []
        self.finisher.answered()
        tell_ended(batch, verdicts)
        for (held, outcome), verdict in zip(batch, verdicts, strict=True):
            self._forget(held)
            self._slots.clear(held)
            if verdict is Verdict.STALE:
                told = "job %s has changed hands; what came of it here is dropped"
                log.warning(told, held.job.id, extra=about(held.job))
                continue
            if self._on_stored is not None:
                self._on_stored(held.job, outcome)
            if type(outcome) is not Released:
                self._count(held, outcome)
                runs.append(outcome.ran)
        self._fetcher.note(runs)
        self._spooler.settled()

    def _count(self, held: HeldJob, outcome: Outcome) -> None:
        self.done += 1
        self.ran += outcome.ran
        self._durations.note(held.task.name, outcome.ran)
        if type(outcome) is Failed:
            self.failed += 1
            tell_failed(held, outcome)

    def _forget(self, held: HeldJob) -> None:
        if self.held_jobs.get(held.job.id) is held:
            del self.held_jobs[held.job.id]

    def _tell_finisher(self) -> None:
        self.finisher.in_hand = len(self.held_jobs)
        self.finisher.enough = max(1, self._fetcher.buffer // 2)

    # --- seating --------------------------------------------------------------------------------------------------

    def _dispatch(self, jobs: Sequence[Job]) -> None:
        held_jobs = self._admission.admit(jobs)
        self.held_jobs.update({held.job.id: held for held in held_jobs})
        tell_taken(held_jobs)
        kinds = {(held.task.name, held.is_async) for held in held_jobs}
        long = {task for task, _ in kinds if self._durations.are_long(task)}
        for held in held_jobs:
            if held.job.losses > 0 or held.job.max_halts <= 1 or held.task.name in long:
                held.starts_first = True
        are_short = all(not is_async and self._durations.are_short(task) for task, is_async in kinds)
        if are_short:
            lock.hurry()
        else:
            lock.relax()
        self._slots.line_up(held_jobs, narrow=are_short)
        self._write_starts()

    def _find_lost(self) -> None:
        """A `reserve` whose answer was lost may have given us jobs that we do not know of."""
        if not self._may_hold_more and (not self._looks or time.monotonic() < self._looks[0]):
            return
        page = self._storage.find(Filter(states=HELD, owner=self._owner), limit=BATCH)
        jobs = page.jobs
        while page.next is not None:
            page = self._storage.find(Filter(states=HELD, owner=self._owner), cursor=page.next, limit=BATCH)
            jobs += page.jobs
        now = time.monotonic()
        self._looks = (
            [now + doubt for doubt in DOUBTS] if self._may_hold_more else [at for at in self._looks if at > now]
        )
        self._may_hold_more = False
        self._dispatch([job for job in jobs if not self._is_held(job)])

    def _is_held(self, job: Job) -> bool:
        held = self.held_jobs.get(job.id)
        return held is not None and held.job.fence == job.fence

    def _write_starts(self) -> None:
        """Say in the storage that those run whose start must be known first, and let them; where that fails they do
        not."""
        if not self._executors.starts:
            return
        given = [(held, slot) for held, slot in self._executors.starts.take() if not held.is_claimed]
        try:
            self._write_ends()  # whoever had a slot before is not shown as running any more
            stale = self._log_writer.mark([held for held, _ in given])
        except StorageUnavailable as error:
            self._outage.noticed(error, len(self.finisher))
            for held, _ in given:
                self._executors.hand_back(held, "its start could not be written down")
            return
        for held, slot in given:
            if held in stale:
                log.warning("job %s has changed hands before it began here", held.job.id, extra=about(held.job))
                held.claim()
                held.settle()
                self._slots.give_up(held)
                self._forget(held)
            else:
                self._executors.executor_of(held).begin(held, slot)

    def _write_ends(self) -> None:
        """The outcomes that have gathered, due or not."""
        batch = self.finisher.take_now(self._outage.most)
        if batch:
            verdicts, _ = self._call(batch, wanted=0)
            self._settle(batch, verdicts)

    # --- looking after the held jobs ----------------------------------------------------------------------------------

    def _visit(self, now: float) -> None:
        """What needs no storage."""
        begun = [held for held in self.held_jobs.values() if held.began_at is not None and not held.is_marked]
        self._next_visit = min([now + VISIT, *(at for at in map(_mark_at, begun) if at > now)])
        self._executors.note_look()
        left = self._timeouts.look_around(self.held_jobs, now)
        if left is not None:
            self._next_visit = min(self._next_visit, now + left)
        if not self._executors.may_begin():
            self.hand_all_back("the heartbeats of its worker do not get through")
        for held in list(self.held_jobs.values()):
            if held.began_at is None and now - held.reserved_at > HOARD_LIMIT:
                # Else the same jobs would be reserved again at once.
                self._fetcher.hoarded()
                self._executors.hand_back(held, "another job took too long before it")

    def _look_at_slots(self, now: float) -> None:
        """Hand back what waits behind jobs that take longer than those before them: another worker may be idle."""
        self._next_look = now + LOOK
        waiting = self._slots.waiting
        if not waiting:
            return
        long = 0.0
        for held in self._slots.busy:
            held.looks += 1
            if held.looks >= LOOKS and held.began_at is not None:
                long += now - held.began_at
        too_many = waiting - self._fetcher.room(long / self._slots.number)
        if too_many > 0:
            self._hand_back_latest(too_many, now)

    def _hand_back_latest(self, number: int, now: float) -> None:
        for held in reversed(list(self.held_jobs.values())):
            if number > 0 and held.began_at is None and now - held.reserved_at > LOOK * (LOOKS - 1):
                self._fetcher.hoarded()
                number -= self._executors.hand_back(held, "another job took too long before it")

    def _write_down(self, now: float) -> None:
        """What the jobs have said, and which of them run for long."""
        held_jobs = [held for held in self.held_jobs.values() if held.began_at is not None and not held.is_settled]
        for held in self._log_writer.write_down(held_jobs):
            self._timeouts.end(held, Reason.ABORTED, "it was aborted")
        self._log_writer.mark([held for held in held_jobs if _mark_at(held) <= now])

    def write_down_the_rest(self, until: float) -> None:
        """The last outcomes, before the worker goes; fewer at once while the storage does not take them. Raises
        StorageUnavailable if it takes none until then."""
        lock.relax()
        while batch := self.finisher.take_now(self._outage.most):
            try:
                verdicts, _ = self._call(batch, wanted=0)
            except StorageUnavailable as error:
                self._outage.most = len(batch)  # which is halved
                self._outage.noticed(error, len(self.finisher))
                self._spooler.keep()
                if time.monotonic() >= until:
                    raise
                time.sleep(max(0.0, min(until, self._outage.next_try) - time.monotonic()))
            else:
                self._outage.ended()
                self._settle(batch, verdicts)

    def hand_back_the_running(self, why: str, until: float) -> None:
        """Hand back what still runs. Whose attempt has ended by now is not among them: its outcome was first. Raises
        StorageUnavailable as `write_down_the_rest`."""
        while True:
            for held in list(self.held_jobs.values()):
                if held.is_settled:  # its outcome is on its way
                    continue
                self._note_run(held)
                ran = max(1, held.ran) if held.is_claimed else 0
                self.finisher.put(held, of_told(held) or Released(held.job.token, why, ran=ran))
            self.write_down_the_rest(until)
            if not self.held_jobs or time.monotonic() >= until:
                return
            time.sleep(0.001)  # the thread of one that has just ended is about to put its outcome in

    def leave_the_running(self) -> list[str]:
        """When all is written down that can be: the jobs that still run, for which nobody waits any more."""
        for held in list(self.held_jobs.values()):  # of these the storage could not be told
            if not held.is_settled:
                self._note_run(held)
                if not held.settle():
                    held.has_returned = True
        left = (
            [*self._timeouts.run_on, *self._handed_back] if self._in_program else []
        )  # else they end with the process
        return [held.job.id for held in left if not held.has_returned]

    def _note_run(self, held: HeldJob) -> None:
        """Before its job is in other hands: no pool of this process may begin it beside this run."""
        if self._in_program and held.is_claimed:
            unreturned.note(held)
            self._handed_back.append(held)

    # --- sleeping -------------------------------------------------------------------------------------------------

    def _sleep(self, most: float) -> None:
        """Until an outcome comes in, a job may be there to fetch, or a held job wants a visit. Who is only idle is
        woken by
        the storage, and may sleep for longer."""
        now = time.monotonic()
        if self._has_starts(now):
            return
        longest, most = most, min(most, _USUAL_SLEEP)
        if self.held_jobs:
            most = min(most, max(0.0, self._next_visit - now))
        if self._slots.is_narrow:
            most = min(most, STALL)
        if self._slots.waiting:
            most = min(most, max(0.0, self._next_look - now))
        if now < self._outage.next_try:
            self._doze(min(most, self._outage.next_try - now))
        elif (due_in := self.finisher.due_in()) is not None:
            self._doze(min(most, due_in))
        elif self._wanted(len(self.held_jobs), max(now, self._next_ask)) == 0:
            self._doze(most)
        elif self._next_ask > now:
            is_idle = not (self.held_jobs or self._slots.is_narrow or self._slots.waiting)
            self._sleep_in_storage(min(longest if is_idle else most, self._idle_wait(self._next_ask - now)))

    def _has_starts(self, now: float) -> bool:
        """Are there starts to be written now?"""
        return bool(self._executors.starts) and now >= self._outage.next_try

    def _idle_wait(self, wait: float) -> float:
        """Not past the moment when the next scheduled or retrying job is due."""
        if wait < 0.05:
            return wait
        due = self._storage.next_due()
        return wait if due is None else min(wait, due / SECOND)

    def _sleep_in_storage(self, seconds: float) -> None:
        lock.relax()
        self.wakeup.place = "storage"
        try:
            # Looked at only now that a ring would be heard: what came in before must not wait for the next one.
            if self.finisher or self._executors.starts:
                self._next_ask = 0.0
            elif self.held_jobs:
                if self._storage.wait(seconds, list(self._served_queues.to_wait_for)):
                    self._fetcher.woken()
                    self._is_woken = self._served_queues.has_more
                self._next_ask = 0.0
            else:
                self._wait_for_jobs(seconds)
        finally:
            self.wakeup.place = None

    def _wait_for_jobs(self, seconds: float) -> None:
        """While nothing is here. No more than can begin at once: should this process be frozen meanwhile, they would
        have to wait until it is missed."""
        wanted = min(self._fetcher.slots, self._wanted(0, self._next_ask))
        if wanted == 0:
            return
        work = partial(self._take_when_rung, wanted, seconds)
        delegation = Delegation.NOBODY
        if self._storage.supports_threaded_wait and not self._goes_itself:
            delegation = delegate(self._executors.threads.lend, work, self._storage.interrupt)
        # Should it have been our own fault, it is raised when the loop does the same itself, the next time.
        self._goes_itself = delegation is Delegation.DISTURBED
        if delegation is Delegation.DISTURBED:
            self._may_hold_more = True
        elif delegation is Delegation.NOBODY:
            work()
        if self.held_jobs:
            self._doze(STALL)  # so that they begin while nobody else wants the interpreter's lock

    def _take_when_rung(self, wanted: int, seconds: float) -> None:
        """Also done by a delegate, while the loop sleeps."""
        began_at = time.monotonic()
        try:
            jobs = self._reserve_when_rung(wanted, seconds)
        except Exception:
            self._may_hold_more = True
            raise
        finally:
            self.wakeup.place = None  # who rings need not call anybody back any more
        if jobs:
            self._fetcher.woken()
        self._is_woken = self._served_queues.has_more and (self._is_woken or time.monotonic() - began_at < seconds)
        if self.takes_jobs and self._executors.may_begin():
            self._take_in(jobs, wanted, time.monotonic())
            if len(jobs) == 1:
                lock.relax()  # until it has begun
        else:
            self._admission.refuse(jobs, "its worker takes no more jobs")

    def _reserve_when_rung(self, wanted: int, seconds: float) -> list[Job]:
        if not self._by_age:
            return self._storage.wait_and_reserve(self._owner, self._served_queues.to_wait_for, wanted, seconds)
        self._storage.wait(seconds, list(self._served_queues.to_wait_for))
        return self._reserve(wanted)

    def _doze(self, seconds: float) -> None:
        self.wakeup.place = "here"
        try:
            due_in = self.finisher.due_in()
            if due_in is not None and time.monotonic() >= self._outage.next_try:
                seconds = min(seconds, due_in)
            if seconds > 0 and not self._has_starts(time.monotonic()):
                self.wakeup.sleep_here(seconds)
        finally:
            self.wakeup.place = None


def _mark_at(held: HeldJob) -> float:
    """When to mark it as running."""
    return inf if held.is_marked or held.began_at is None else held.began_at + MARK_AFTER
