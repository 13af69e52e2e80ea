"""The desk: the one thread of a worker that talks to the storage.

Each turn it takes the outcomes that have gathered and asks for as many new jobs as there is room for, both in one round
trip, then hands the jobs to the executors. In between it has the warden look after the seats and the scribe write down
what they say, and hands back what it cannot run soon. However many slots a worker has, the storage sees one caller.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from packhorse.clock import SECOND
from packhorse.errors import BadValue, StorageUnavailable
from packhorse.job import HELD, Job, Reason
from packhorse.outcome import Failed, Outcome, Released, Verdict
from packhorse.storage.contract import BATCH, Storage
from packhorse.storage.records import Filter
from packhorse.worker import lock
from packhorse.worker.assignment import Assignment
from packhorse.worker.deputy import Deputed, depute
from packhorse.worker.durations import Durations
from packhorse.worker.fetcher import Fetcher
from packhorse.worker.floor import Floor
from packhorse.worker.nap import Nap
from packhorse.worker.outage import Outage
from packhorse.worker.reception import Reception
from packhorse.worker.refusals import finish_in_portions
from packhorse.worker.scribe import Scribe
from packhorse.worker.seat import Seat
from packhorse.worker.telling import tell_ended, tell_taken
from packhorse.worker.warden import Warden

log = logging.getLogger("packhorse.worker")

STALL = 0.003
"""Seconds without a job begun, after which such jobs get all slots: one of them takes longer than the last did."""
MARK_AFTER = 0.5
"""Seconds. Whatever runs longer is marked as running, so that everybody can see it."""
LATE = 20_000
"""Microseconds. An outcome that has waited longer for the storage is told how long."""
VISIT = 0.25
"""Seconds between two visits of the seats."""
HOARD_LIMIT = 1.0
"""Seconds that a job may wait in the buffer before it is handed back for others to run."""
DOUBTS = (10.0, 60.0, 300.0)
"""Seconds after which it is looked again for what a question has brought whose answer was lost. It may lie at the
storage, behind one that blocks, or its commit behind a replica that is away, for longer than the first look takes."""


class Desk:
    """Reserves, finishes, and looks after what is in between. `on_stored` is told of each outcome that was accepted."""

    def __init__(
        self,
        storage: Storage,
        assignment: Assignment,
        floor: Floor,
        scribe: Scribe,
        nap: Nap,
        on_stored: Callable[[Job, Outcome], object] | None = None,
    ) -> None:
        self._storage = storage
        self._owner = assignment.owner
        self._max_jobs = assignment.limits.max_jobs
        self._floor = floor
        self._slots = floor.slots
        self.finisher = floor.finisher
        self._scribe = scribe
        self._on_stored = on_stored
        self.nap = nap
        self._fetcher = Fetcher(assignment.concurrency)
        self._warden = Warden(floor, assignment.limits)
        self._durations = Durations()
        self._outage = Outage()
        self._reception = Reception(storage, assignment.owner, floor, self._outage)
        self.seats: dict[str, Seat] = {}
        self._may_hold_more = False  # the answer to a `reserve` was lost
        self._looks: list[float] = []  # when to look for it again: it may be on its way still
        self._goes_itself = False  # the last deputy was disturbed
        self.takes_jobs = True
        self.found_nothing = False  # when the storage was last asked, after all that was to be written down
        self.done = self.failed = 0
        self._seen_begun, self._seen_at = -1, 0.0  # how many had begun when it was last looked at
        self._next_visit = self._next_ask = 0.0

    # --- from other threads ---------------------------------------------------------------------------------------

    def stop_job(self, job_id: str, fence: int, reason: Reason) -> None:
        """An operator wants this job to end."""
        self._warden.stop_job(job_id, fence, reason)
        self._next_visit = 0.0
        self.nap.ring()

    def hand_all_back(self, why: str) -> None:
        """Hand back what has not begun."""
        for seat in list(self.seats.values()):
            self._floor.hand_back(seat, why)

    # --- one turn -------------------------------------------------------------------------------------------------

    def turn(self, most_sleep: float = 1.0) -> None:
        """Look after the seats, write down, take in, or else sleep a little. Called again and again by the worker."""
        now = time.monotonic()
        if self._slots.is_narrow:
            self._widen(now)
        is_visit = now >= self._next_visit
        if is_visit:
            self._visit(now)
        try:
            if now >= self._outage.next_try:
                is_busy = self._exchange(now)
                if is_visit:
                    self._write_down(now)
                if is_busy:
                    return  # without a sleep: this may have been the last that the worker waited for
            self._sleep(most_sleep)
        except StorageUnavailable as error:
            self._outage.noticed(error, len(self.finisher))

    def _widen(self, now: float) -> None:
        """Short jobs run one after the other; should one of them hold up the rest, they get all slots."""
        if self._slots.begun != self._seen_begun:
            self._seen_begun, self._seen_at = self._slots.begun, now
        elif now - self._seen_at >= STALL:
            lock.relax()
            self._slots.widen()

    def _exchange(self, now: float) -> bool:
        """Outcomes out, jobs in. False: there was nothing to exchange."""
        self._reception.give_back()
        self._find_lost()
        batch = self.finisher.take(self._outage.most)
        wanted = self._wanted(len(self.seats) - len(batch), now)
        if not batch and wanted == 0:
            return False
        verdicts, jobs = self._call(batch, wanted)
        self._outage.ended()
        self._settle(batch, verdicts)
        self._take_in(jobs, wanted, now)
        return True

    def _take_in(self, jobs: Sequence[Job], wanted: int, now: float) -> None:
        self.found_nothing = wanted > 0 and not jobs
        if wanted:
            self._fetcher.found(wanted, len(jobs))
            self._next_ask = 0.0 if len(jobs) >= wanted else now + self._fetcher.idle_wait
        if jobs:
            self._seat(jobs)
        self._tell_finisher()

    def _wanted(self, in_hand: int, now: float) -> int:
        if not self.takes_jobs or now < self._next_ask or self.finisher.is_full or not self._floor.may_begin():
            return 0
        wanted = min(BATCH, self._fetcher.wanted(in_hand))
        if self._max_jobs is None:
            return wanted
        return max(0, min(wanted, self._max_jobs - self.done - len(self.seats)))  # what is left of its allowance

    def _call(self, batch: list[tuple[Seat, Outcome]], wanted: int) -> tuple[list[Verdict], list[Job]]:
        try:
            self._scribe.write_down([seat for seat, _ in batch])
            outcomes = _dated(batch)
            if not outcomes:
                return [], self._reserve(wanted)
            try:
                if not wanted:
                    return self._storage.finish(outcomes), []
                return self._storage.finish_and_reserve(outcomes, self._owner, self._floor.queues, wanted)
            except BadValue:
                return self._finish_in_portions(batch), self._reserve(wanted)
        except Exception:
            self.finisher.give_back(batch)
            self._may_hold_more = self._may_hold_more or wanted > 0
            raise

    def _reserve(self, wanted: int) -> list[Job]:
        return self._storage.reserve(self._owner, self._floor.queues, wanted) if wanted else []

    def _finish_in_portions(self, batch: list[tuple[Seat, Outcome]]) -> list[Verdict]:
        """Not together, because the storage does not take them so. `batch` has what was written from then on."""
        written = finish_in_portions(batch, lambda portion: self._storage.finish(_dated(portion)))
        for seat in written.lost:
            self._forget(seat)
            self._slots.clear(seat)
        self.finisher.lost += len(written.lost)
        self.finisher.give_back(written.left)
        batch[:] = written.batch
        return written.verdicts

    def _settle(self, batch: Sequence[tuple[Seat, Outcome]], verdicts: Sequence[Verdict]) -> None:
        runs = []
        tell_ended(batch, verdicts)
        for (seat, outcome), verdict in zip(batch, verdicts, strict=True):
            self._forget(seat)
            self._slots.clear(seat)
            if verdict is Verdict.STALE:
                log.warning("job %s has changed hands; what came of it here is dropped", seat.job.id)
                continue
            if self._on_stored is not None:
                self._on_stored(seat.job, outcome)
            if type(outcome) is not Released:
                self._count(seat, outcome)
                runs.append(outcome.ran)
        self._fetcher.note(runs)

    def _count(self, seat: Seat, outcome: Outcome) -> None:
        self.done += 1
        self._durations.note(seat.task.name, outcome.ran)
        if type(outcome) is Failed:
            self.failed += 1
            next_try = "no more tries" if outcome.retry_in is None else f"again in {outcome.retry_in / SECOND:g} s"
            log.warning("job %s (%s) failed: %s; %s", seat.job.id, seat.task.name, outcome.failure.summary(), next_try)

    def _forget(self, seat: Seat) -> None:
        if self.seats.get(seat.job.id) is seat:
            del self.seats[seat.job.id]

    def _tell_finisher(self) -> None:
        self.finisher.in_hand = len(self.seats)
        self.finisher.enough = max(1, self._fetcher.buffer // 2)

    # --- seating --------------------------------------------------------------------------------------------------

    def _seat(self, jobs: Sequence[Job]) -> None:
        seats = self._reception.seats_for(jobs)
        self.seats.update({seat.job.id: seat for seat in seats})
        if first := self._marked_first(seats):
            self._mark_first(first)
            seats = [seat for seat in seats if not seat.is_settled]
        tell_taken(seats)
        kinds = {(seat.task.name, seat.is_async) for seat in seats}
        are_short = all(not is_async and self._durations.are_short(task) for task, is_async in kinds)
        if are_short:
            lock.hurry()
        else:
            lock.relax()
        self._slots.line_up(seats, narrow=are_short)

    def _find_lost(self) -> None:
        """A `reserve` whose answer was lost may have given us jobs that we do not know of."""
        if not self._may_hold_more and (not self._looks or time.monotonic() < self._looks[0]):
            return
        page = self._storage.find(Filter(states=HELD, owner=self._owner), limit=BATCH)
        held = page.jobs
        while page.next is not None:
            page = self._storage.find(Filter(states=HELD, owner=self._owner), cursor=page.next, limit=BATCH)
            held += page.jobs
        now = time.monotonic()
        self._looks = (
            [now + doubt for doubt in DOUBTS] if self._may_hold_more else [at for at in self._looks if at > now]
        )
        self._may_hold_more = False
        self._seat([job for job in held if not self._is_seated(job)])

    def _is_seated(self, job: Job) -> bool:
        seat = self.seats.get(job.id)
        return seat is not None and seat.job.fence == job.fence

    def _marked_first(self, seats: Sequence[Seat]) -> list[Seat]:
        """A job that was lost before may be the one that kills its workers: its next death must be counted."""
        long = {task for task in {seat.task.name for seat in seats} if self._durations.are_long(task)}
        return [seat for seat in seats if seat.job.losses > 0 or seat.task.name in long]

    def _mark_first(self, seats: Sequence[Seat]) -> None:
        """Say in the storage that these run, before they do; where that fails they do not."""
        try:
            stale = self._scribe.mark(seats)
        except StorageUnavailable as error:
            self._outage.noticed(error, len(self.finisher))
            for seat in seats:
                self._floor.hand_back(seat, "its start could not be written down")
            return
        for seat in stale:
            log.warning("job %s has changed hands before it began here", seat.job.id)
            seat.claim()
            seat.settle()
            self._forget(seat)

    # --- looking after the seats ----------------------------------------------------------------------------------

    def _visit(self, now: float) -> None:
        """What needs no storage."""
        self._next_visit = now + VISIT
        left = self._warden.look_around(self.seats, now)
        if left is not None:
            self._next_visit = min(self._next_visit, now + left)
        if not self._floor.may_begin():
            self.hand_all_back("the heartbeats of its worker do not get through")
        for seat in list(self.seats.values()):
            if seat.began_at is None and now - seat.seated_at > HOARD_LIMIT:
                # Else the same jobs would be reserved again at once.
                self._fetcher.hoarded()
                self._floor.hand_back(seat, "another job took too long before it")

    def _write_down(self, now: float) -> None:
        """What the jobs have said, and which of them run for long."""
        seats = [seat for seat in self.seats.values() if seat.began_at is not None and not seat.is_settled]
        for seat in self._scribe.write_down(seats):
            self._warden.end(seat, Reason.ABORTED, "it was aborted")
        self._scribe.mark([seat for seat in seats if not seat.is_marked and _is_long(seat, now)])

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
                if time.monotonic() >= until:
                    raise
                time.sleep(max(0.0, min(until, self._outage.next_try) - time.monotonic()))
            else:
                self._outage.ended()
                self._settle(batch, verdicts)

    # --- sleeping -------------------------------------------------------------------------------------------------

    def _sleep(self, most: float) -> None:
        """Until an outcome comes in, a job may be there to fetch, or a seat wants a visit."""
        now = time.monotonic()
        if self.seats:
            most = min(most, max(0.0, self._next_visit - now))
        if self._slots.is_narrow:
            most = min(most, STALL)
        if now < self._outage.next_try:
            self._doze(min(most, self._outage.next_try - now))
        elif (due_in := self.finisher.due_in()) is not None:
            self._doze(min(most, due_in))
        elif self._wanted(len(self.seats), max(now, self._next_ask)) == 0:
            self._doze(most)
        elif self._next_ask > now:
            self._sleep_in_storage(min(most, self._idle_wait(self._next_ask - now)))

    def _idle_wait(self, wait: float) -> float:
        """Not past the moment when the next scheduled or retrying job is due."""
        if wait < 0.05:
            return wait
        due = self._storage.next_due()
        return wait if due is None else min(wait, due / SECOND)

    def _sleep_in_storage(self, seconds: float) -> None:
        lock.relax()
        self.nap.place = "storage"
        try:
            # Looked at only now that a ring would be heard: what came in before must not wait for the next one.
            if self.finisher:
                self._next_ask = 0.0
            elif self.seats:
                if self._storage.wait(seconds, list(self._floor.queues)):
                    self._fetcher.woken()
                self._next_ask = 0.0
            else:
                self._wait_for_jobs(seconds)
        finally:
            self.nap.place = None

    def _wait_for_jobs(self, seconds: float) -> None:
        """While nothing is here. No more than can begin at once: should this process be frozen meanwhile, they would
        have to wait until it is missed."""
        wanted = min(self._fetcher.slots, self._wanted(0, self._next_ask))
        if wanted == 0:
            return
        work = partial(self._take_when_rung, wanted, seconds)
        deputed = Deputed.NOBODY
        if self._storage.any_thread_may_wait and not self._goes_itself:
            deputed = depute(self._floor.threads.lend, work, self._storage.interrupt)
        # Should it have been our own fault, it is raised when the desk does the same itself, the next time.
        self._goes_itself = deputed is Deputed.DISTURBED
        if deputed is Deputed.DISTURBED:
            self._may_hold_more = True
        elif deputed is Deputed.NOBODY:
            work()
        if self.seats:
            self._doze(STALL)  # so that they begin while nobody else wants the interpreter's lock

    def _take_when_rung(self, wanted: int, seconds: float) -> None:
        """Also done by a deputy, while the desk sleeps."""
        try:
            jobs = self._storage.reserve_when_rung(self._owner, self._floor.queues, wanted, seconds)
        except Exception:
            self._may_hold_more = True
            raise
        finally:
            self.nap.place = None  # who rings need not call anybody back any more
        if jobs:
            self._fetcher.woken()
        if self.takes_jobs and self._floor.may_begin():
            self._take_in(jobs, wanted, time.monotonic())
            if len(jobs) == 1:
                lock.relax()  # until it has begun
        else:
            self._reception.refuse(jobs, "its worker takes no more jobs")

    def _doze(self, seconds: float) -> None:
        self.nap.place = "here"
        try:
            due_in = self.finisher.due_in()
            if due_in is not None and time.monotonic() >= self._outage.next_try:
                seconds = min(seconds, due_in)
            if seconds > 0:
                self.nap.sleep_here(seconds)
        finally:
            self.nap.place = None


def _dated(batch: Sequence[tuple[Seat, Outcome]]) -> list[Outcome]:
    """The outcomes, with how long ago each ended where that shows: where its log tells of a moment before, or where
    the first of them, and so perhaps all, have waited long for the storage."""
    now = time.monotonic()
    is_late = bool(batch) and _ended_ago(*batch[0], now) > LATE
    return [
        replace(outcome, ago=max(0, _ended_ago(seat, outcome, now))) if is_late or seat.has_spoken else outcome
        for seat, outcome in batch
    ]


def _ended_ago(seat: Seat, outcome: Outcome, now: float) -> int:
    return 0 if seat.began_at is None else round((now - seat.began_at) * SECOND) - outcome.ran


def _is_long(seat: Seat, now: float) -> bool:
    return seat.began_at is not None and now - seat.began_at > MARK_AFTER
