"""The desk: the one thread of a worker that talks to the storage.

Each turn it takes the outcomes that have gathered and asks for as many new jobs as there is room for, both in one round
trip, then hands the jobs to the executors. In between it has the warden look after the seats and the scribe write down
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
from packhorse.worker.assignment import Assignment
from packhorse.worker.by_age import reserve_by_age
from packhorse.worker.deputy import Deputed, depute
from packhorse.worker.durations import Durations
from packhorse.worker.ending import of_told
from packhorse.worker.fetcher import Fetcher
from packhorse.worker.floor import Floor
from packhorse.worker.log_format import about
from packhorse.worker.nap import Nap
from packhorse.worker.outage import Outage
from packhorse.worker.reception import Reception
from packhorse.worker.refusals import finish_in_portions
from packhorse.worker.scribe import Scribe
from packhorse.worker.seat import Seat
from packhorse.worker.served import LOOK_AGAIN, LOOK_ALONE
from packhorse.worker.telling import tell_ended, tell_failed, tell_taken
from packhorse.worker.undelivered import Undelivered, dated
from packhorse.worker.warden import Warden

log = logging.getLogger("packhorse.worker")

STALL = 0.003
"""Seconds without a job begun, after which such jobs get all slots: one of them takes longer than the last did."""
MARK_AFTER = 0.2
"""Seconds. Whatever runs longer is marked as running, so that everybody can see it."""
VISIT = 0.25
"""Seconds between two visits of the seats."""
_USUAL_SLEEP = 1.0
"""Seconds between two turns at most, while there is anything to look after."""
HOARD_LIMIT = 1.0
"""Seconds that a job may wait in the buffer before it is handed back for others to run."""
LOOK = 0.05
"""Seconds between two looks at the slots while jobs wait for them."""
LOOKS = 3
"""A job that was found running so often takes long: not the machine has stood still, for the desk was awake."""
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
        undelivered: Undelivered | None = None,
    ) -> None:
        self._storage = storage
        self._owner = assignment.owner
        self._by_age = False
        self._in_program = assignment.in_program
        self._is_alone = assignment.is_alone or assignment.foreman is None
        self._max_jobs = assignment.limits.max_jobs
        self._floor = floor
        self._slots = floor.slots
        self._served = floor.served
        self.finisher = floor.finisher
        self._scribe = scribe
        self._on_stored = on_stored
        self._undelivered = undelivered or Undelivered(None, floor.finisher)
        self.nap = nap
        self._fetcher = Fetcher(assignment.concurrency)
        self._warden = Warden(floor, assignment.limits, in_program=assignment.in_program)
        self._durations = Durations()
        self._outage = Outage()
        self._reception = Reception(storage, assignment.owner, floor, self._outage)
        self.seats: dict[str, Seat] = {}
        self._handed_back: list[Seat] = []  # while they ran, when the worker ended
        self._may_hold_more = False  # the answer to a `reserve` was lost
        self._looks: list[float] = []  # when to look for it again: it may be on its way still
        self._goes_itself = False  # the last deputy was disturbed
        self._is_woken = False  # there may be work, of whatever queue
        self.takes_jobs = True
        self.found_nothing = False  # when the storage was last asked, after all that was to be written down
        self.done = self.failed = 0
        self.ran = 0  # microseconds, of all that was done
        self._seen_begun, self._seen_at = -1, 0.0  # how many had begun when it was last looked at
        self._next_visit = self._next_ask = self._next_look = 0.0

    # --- from other threads ---------------------------------------------------------------------------------------

    @property
    def busy(self) -> list[Seat]:
        """The jobs that run now."""
        return self._slots.busy

    def stop_job(self, job_id: str, fence: int, reason: Reason) -> None:
        """An operator wants this job to end."""
        self._warden.stop_job(job_id, fence, reason)
        self._next_visit = 0.0
        self.nap.ring()

    @property
    def has_run_on(self) -> bool:
        """Does a job still run that was given up?"""
        return bool(self._warden.run_on)

    def hand_all_back(self, why: str) -> None:
        """Hand back what has not begun."""
        for seat in list(self.seats.values()):
            self._floor.hand_back(seat, why)

    def serve(self, found: Mapping[str, Collection[str]]) -> None:
        """The foreman has seen jobs of these tasks wait in these queues."""
        if self._served.add(found):
            self._next_ask = 0.0
            self.nap.ring()

    def follow(self, order: str) -> None:
        """Serve queues of one rank in this order: the storage's."""
        self._by_age = order == BY_AGE

    def look_now(self) -> None:
        """The foreman has seen jobs in line, of which the storage may have told nobody."""
        self._next_ask = 0.0
        self.nap.ring()

    # --- one turn -------------------------------------------------------------------------------------------------

    def turn(self, most_sleep: float = 1.0) -> None:
        """Look after the seats, write down, take in, or else sleep a little. Called again and again by the worker."""
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
            self._undelivered.keep()

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
            self._seat(jobs)
        self._tell_finisher()
        # Only now that the jobs are seated: the storage may be away. Who is never idle must look, too.
        if jobs and self._is_alone and self._served.should_look(LOOK_ALONE):
            self.look_for_queues()

    def _may_serve_more(self) -> bool:
        """Nothing was found: was it woken for a queue that is not served here yet? A foreman would tell of one, too."""
        if not (self._is_woken or self._is_alone):
            return False
        if not self._served.should_look(LOOK_AGAIN if self._is_woken else LOOK_ALONE):
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
        return self._served.has_more and self._served.look_into(self._storage.tallies())

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
            outcomes = dated(batch)
            if not outcomes:
                return [], self._reserve(wanted)
            try:
                if not wanted or self._by_age:
                    return self._storage.finish(outcomes), self._reserve(wanted)
                return self._storage.finish_and_reserve(outcomes, self._owner, self._served.queues, wanted)
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
        return take(self._owner, self._served.queues, wanted)

    def _finish_in_portions(self, batch: list[tuple[Seat, Outcome]]) -> list[Verdict]:
        """Not together, because the storage does not take them so. `batch` has what was written from then on."""
        written = finish_in_portions(batch, lambda portion: self._storage.finish(dated(portion)))
        for seat in written.lost:
            self._forget(seat)
            self._slots.clear(seat)
        self.finisher.lost += len(written.lost)
        self.finisher.give_back(written.left)
        batch[:] = written.batch
        return written.verdicts

    def _settle(self, batch: Sequence[tuple[Seat, Outcome]], verdicts: Sequence[Verdict]) -> None:
        runs = []
        self.finisher.answered()
        tell_ended(batch, verdicts)
        for (seat, outcome), verdict in zip(batch, verdicts, strict=True):
            self._forget(seat)
            self._slots.clear(seat)
            if verdict is Verdict.STALE:
                told = "job %s has changed hands; what came of it here is dropped"
                log.warning(told, seat.job.id, extra=about(seat.job))
                continue
            if self._on_stored is not None:
                self._on_stored(seat.job, outcome)
            if type(outcome) is not Released:
                self._count(seat, outcome)
                runs.append(outcome.ran)
        self._fetcher.note(runs)
        self._undelivered.settled()

    def _count(self, seat: Seat, outcome: Outcome) -> None:
        self.done += 1
        self.ran += outcome.ran
        self._durations.note(seat.task.name, outcome.ran)
        if type(outcome) is Failed:
            self.failed += 1
            tell_failed(seat, outcome)

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
        tell_taken(seats)
        kinds = {(seat.task.name, seat.is_async) for seat in seats}
        long = {task for task, _ in kinds if self._durations.are_long(task)}
        for seat in seats:
            if seat.job.losses > 0 or seat.job.max_halts <= 1 or seat.task.name in long:
                seat.starts_first = True
        are_short = all(not is_async and self._durations.are_short(task) for task, is_async in kinds)
        if are_short:
            lock.hurry()
        else:
            lock.relax()
        self._slots.line_up(seats, narrow=are_short)
        self._write_starts()

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

    def _write_starts(self) -> None:
        """Say in the storage that those run whose start must be known first, and let them; where that fails they do
        not."""
        if not self._floor.starts:
            return
        given = [(seat, slot) for seat, slot in self._floor.starts.take() if not seat.is_claimed]
        try:
            self._write_ends()  # whoever had a slot before is not shown as running any more
            stale = self._scribe.mark([seat for seat, _ in given])
        except StorageUnavailable as error:
            self._outage.noticed(error, len(self.finisher))
            for seat, _ in given:
                self._floor.hand_back(seat, "its start could not be written down")
            return
        for seat, slot in given:
            if seat in stale:
                log.warning("job %s has changed hands before it began here", seat.job.id, extra=about(seat.job))
                seat.claim()
                seat.settle()
                self._slots.give_up(seat)
                self._forget(seat)
            else:
                self._floor.executor_of(seat).begin(seat, slot)

    def _write_ends(self) -> None:
        """The outcomes that have gathered, due or not."""
        batch = self.finisher.take_now(self._outage.most)
        if batch:
            verdicts, _ = self._call(batch, wanted=0)
            self._settle(batch, verdicts)

    # --- looking after the seats ----------------------------------------------------------------------------------

    def _visit(self, now: float) -> None:
        """What needs no storage."""
        begun = [seat for seat in self.seats.values() if seat.began_at is not None and not seat.is_marked]
        self._next_visit = min([now + VISIT, *(at for at in map(_mark_at, begun) if at > now)])
        self._floor.note_look()
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

    def _look_at_slots(self, now: float) -> None:
        """Hand back what waits behind jobs that take longer than those before them: another worker may be idle."""
        self._next_look = now + LOOK
        waiting = self._slots.waiting
        if not waiting:
            return
        long = 0.0
        for seat in self._slots.busy:
            seat.looks += 1
            if seat.looks >= LOOKS and seat.began_at is not None:
                long += now - seat.began_at
        too_many = waiting - self._fetcher.room(long / self._slots.number)
        if too_many > 0:
            self._hand_back_latest(too_many, now)

    def _hand_back_latest(self, number: int, now: float) -> None:
        for seat in reversed(list(self.seats.values())):
            if number > 0 and seat.began_at is None and now - seat.seated_at > LOOK * (LOOKS - 1):
                self._fetcher.hoarded()
                number -= self._floor.hand_back(seat, "another job took too long before it")

    def _write_down(self, now: float) -> None:
        """What the jobs have said, and which of them run for long."""
        seats = [seat for seat in self.seats.values() if seat.began_at is not None and not seat.is_settled]
        for seat in self._scribe.write_down(seats):
            self._warden.end(seat, Reason.ABORTED, "it was aborted")
        self._scribe.mark([seat for seat in seats if _mark_at(seat) <= now])

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
                self._undelivered.keep()
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
            for seat in list(self.seats.values()):
                if seat.is_settled:  # its outcome is on its way
                    continue
                self._note_run(seat)
                ran = max(1, seat.ran) if seat.is_claimed else 0
                self.finisher.put(seat, of_told(seat) or Released(seat.job.token, why, ran=ran))
            self.write_down_the_rest(until)
            if not self.seats or time.monotonic() >= until:
                return
            time.sleep(0.001)  # the thread of one that has just ended is about to put its outcome in

    def leave_the_running(self) -> list[str]:
        """When all is written down that can be: the jobs that still run, for which nobody waits any more."""
        for seat in list(self.seats.values()):  # of these the storage could not be told
            if not seat.is_settled:
                self._note_run(seat)
                if not seat.settle():
                    seat.has_returned = True
        left = [*self._warden.run_on, *self._handed_back] if self._in_program else []  # else they end with the process
        return [seat.job.id for seat in left if not seat.has_returned]

    def _note_run(self, seat: Seat) -> None:
        """Before its job is in other hands: no pool of this process may begin it beside this run."""
        if self._in_program and seat.is_claimed:
            unreturned.note(seat)
            self._handed_back.append(seat)

    # --- sleeping -------------------------------------------------------------------------------------------------

    def _sleep(self, most: float) -> None:
        """Until an outcome comes in, a job may be there to fetch, or a seat wants a visit. Who is only idle is woken by
        the storage, and may sleep for longer."""
        now = time.monotonic()
        if self._has_starts(now):
            return
        longest, most = most, min(most, _USUAL_SLEEP)
        if self.seats:
            most = min(most, max(0.0, self._next_visit - now))
        if self._slots.is_narrow:
            most = min(most, STALL)
        if self._slots.waiting:
            most = min(most, max(0.0, self._next_look - now))
        if now < self._outage.next_try:
            self._doze(min(most, self._outage.next_try - now))
        elif (due_in := self.finisher.due_in()) is not None:
            self._doze(min(most, due_in))
        elif self._wanted(len(self.seats), max(now, self._next_ask)) == 0:
            self._doze(most)
        elif self._next_ask > now:
            is_idle = not (self.seats or self._slots.is_narrow or self._slots.waiting)
            self._sleep_in_storage(min(longest if is_idle else most, self._idle_wait(self._next_ask - now)))

    def _has_starts(self, now: float) -> bool:
        """Are there starts to be written now?"""
        return bool(self._floor.starts) and now >= self._outage.next_try

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
            if self.finisher or self._floor.starts:
                self._next_ask = 0.0
            elif self.seats:
                if self._storage.wait(seconds, list(self._served.to_wait_for)):
                    self._fetcher.woken()
                    self._is_woken = self._served.has_more
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
        if self._storage.supports_threaded_wait and not self._goes_itself:
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
        began_at = time.monotonic()
        try:
            jobs = self._reserve_when_rung(wanted, seconds)
        except Exception:
            self._may_hold_more = True
            raise
        finally:
            self.nap.place = None  # who rings need not call anybody back any more
        if jobs:
            self._fetcher.woken()
        self._is_woken = self._served.has_more and (self._is_woken or time.monotonic() - began_at < seconds)
        if self.takes_jobs and self._floor.may_begin():
            self._take_in(jobs, wanted, time.monotonic())
            if len(jobs) == 1:
                lock.relax()  # until it has begun
        else:
            self._reception.refuse(jobs, "its worker takes no more jobs")

    def _reserve_when_rung(self, wanted: int, seconds: float) -> list[Job]:
        if not self._by_age:
            return self._storage.wait_and_reserve(self._owner, self._served.to_wait_for, wanted, seconds)
        self._storage.wait(seconds, list(self._served.to_wait_for))
        return self._reserve(wanted)

    def _doze(self, seconds: float) -> None:
        self.nap.place = "here"
        try:
            due_in = self.finisher.due_in()
            if due_in is not None and time.monotonic() >= self._outage.next_try:
                seconds = min(seconds, due_in)
            if seconds > 0 and not self._has_starts(time.monotonic()):
                self.nap.sleep_here(seconds)
        finally:
            self.nap.place = None


def _mark_at(seat: Seat) -> float:
    """When to mark it as running."""
    return inf if seat.is_marked or seat.began_at is None else seat.began_at + MARK_AFTER
