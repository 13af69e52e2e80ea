"""The finisher: takes the outcomes of attempts and writes them to the storage.

Executors put outcomes in from their own threads. The loop takes them in batches and writes them, alone or together with
the next reserve. An outcome stays here until the storage has answered, so it survives an outage; the spooler keeps it
on disk meanwhile. A batch that the storage refuses is written in smaller parts.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from packhorse.core.clock import SECOND
from packhorse.core.errors import BadValue, StorageUnavailable
from packhorse.core.job import Job
from packhorse.core.outcome import Completed, Failed, Halted, Outcome, Released, Stopped, Verdict
from packhorse.storage.contract import Storage
from packhorse.worker.executors.slots import Slots
from packhorse.worker.held_job import HeldJob
from packhorse.worker.job_log import JobLogWriter
from packhorse.worker.logging import log_ended, log_failed, log_stale
from packhorse.worker.outage import Outage
from packhorse.worker.outcomes import of_returned, shortened
from packhorse.worker.pace import Pace
from packhorse.worker.shared_status import SharedStatus
from packhorse.worker.spool import OutcomeSpooler

log = logging.getLogger("packhorse.worker")

T = TypeVar("T")
Batch: TypeAlias = list[tuple[HeldJob, Outcome]]

LONG_RUN = 10_000
"""Microseconds. The outcome of a job that ran longer is written immediately."""
MAX_WAIT = 0.005
"""Seconds that an outcome may wait for others."""
MAX_KEPT = 1_000
"""Outcomes that may wait for the storage, or be lost because it refuses them, before the worker takes no more jobs."""
MAX_CALLS = 32
"""Calls of the storage for one refused batch; the rest waits. Meanwhile nothing watches the running jobs."""
LATE = 20_000
"""Microseconds. An outcome that has waited longer says for how long."""


class OutcomeQueue:
    """Outcomes on their way to the storage.

    The loop is woken immediately when that pays: the job was a long one, no other is about to end, or many outcomes
    wait. Otherwise it comes within milliseconds and takes them all. While the worker stops, every outcome wakes it: a
    second signal may kill the worker at any moment.
    """

    def __init__(
        self, wake: Callable[[], None], code_version: str | None = None, *, shared_status: SharedStatus | None = None
    ) -> None:
        self.wake = wake
        self._code_version = code_version
        self._shared_status = shared_status
        self._waiting: deque[tuple[HeldJob, Outcome]] = deque()
        self._taken: Batch = []  # the storage has not answered for these yet
        self._taken_at = 0.0
        self._is_urgent = False
        self._first_at = 0.0
        self.in_hand = 0  # how many jobs the worker holds; the loop sets it
        self.enough = 1  # so many outcomes are worth a write; the loop sets it
        self.is_stopping = False  # the worker stops: outcomes do not wait for others
        self.lost = 0  # outcomes that the storage refuses in every form

    def put(self, held: HeldJob, outcome: Outcome) -> None:
        """An attempt has ended. Drop its outcome if the job was settled before, by a timeout or an abort."""
        if not held.settle():
            held.has_returned = True
            return
        if self._shared_status is not None and held.place is not None:
            self._shared_status.end(held.place)
        if held.saw_stop:
            outcome = of_returned(held, outcome)
        if type(outcome) is not Completed:
            outcome = self._with_version(outcome)
            if type(outcome) is Failed:
                held.log(outcome.failure.summary(), "error")
        if not self._waiting:
            self._first_at = time.monotonic()
            self._is_urgent = False  # the last wake-up may have been for outcomes that are taken already
        self._waiting.append((held, outcome))
        waiting = len(self._waiting)
        is_urgent = waiting >= self.enough or waiting >= self.in_hand or outcome.ran >= LONG_RUN or self.is_stopping
        if is_urgent and not self._is_urgent:  # one wake-up is enough
            self._is_urgent = True
            self.wake()

    def _with_version(self, outcome: Outcome) -> Outcome:
        """A failure names the version of the user's code that it comes from."""
        version = self._code_version
        if version is None:
            return outcome
        if isinstance(outcome, Halted):
            return replace(outcome, version=version)
        if isinstance(outcome, Failed | Stopped) and outcome.failure is not None:
            return replace(outcome, failure=replace(outcome.failure, version=version))
        return outcome

    def due_in(self) -> float | None:
        """Seconds until the waiting outcomes should be written; None: none wait."""
        if not self._waiting:
            return None
        if self._is_urgent or self.is_stopping:
            return 0.0
        return max(0.0, self._first_at + MAX_WAIT - time.monotonic())

    def take(self, most: int) -> Batch:
        """The waiting outcomes, the oldest first, if they are due."""
        if self.due_in() != 0.0:
            return []
        self._is_urgent = False  # first: an outcome that comes too late to be taken now must wake the loop again
        return self.take_now(most)

    def take_now(self, most: int) -> Batch:
        """The waiting outcomes, due or not."""
        taken: Batch = []
        self._taken, self._taken_at = taken, time.monotonic()  # first: an outcome must never be in neither list
        while self._waiting and len(taken) < most:
            taken.append(self._waiting[0])
            self._waiting.popleft()
        return taken

    def put_back(self, batch: Batch) -> None:
        """The storage was away. The outcomes keep their place."""
        self._waiting.extendleft(reversed(batch))
        self._taken = []

    def answered(self) -> None:
        """The storage has answered for the outcomes that were taken."""
        self._taken = []

    def waiting_for(self) -> float:
        """Seconds that outcomes have waited for the storage: since they were taken, or while the loop does not come
        because another call takes long. 0: none wait."""
        if self._taken:
            return time.monotonic() - self._taken_at
        return time.monotonic() - max(self._first_at, self._taken_at) if self._waiting else 0.0

    def unwritten(self) -> list[Outcome]:
        """The outcomes that the storage does not have, taken or waiting. One may be listed twice."""
        waiting = list(self._waiting)  # first: what is taken meanwhile is in `_taken`
        return dated([*self._taken, *waiting])

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) + self.lost >= MAX_KEPT


class Finisher:
    """Writes the outcomes of one worker, and forgets their jobs. `on_stored` gets each outcome that the storage has
    accepted."""

    def __init__(
        self,
        storage: Storage,
        outcomes: OutcomeQueue,
        slots: Slots,
        held_jobs: dict[str, HeldJob],
        pace: Pace,
        log_writer: JobLogWriter,
        spooler: OutcomeSpooler,
        outage: Outage,
        on_stored: Callable[[Job, Outcome], object] | None = None,
    ) -> None:
        self._storage = storage
        self.outcomes = outcomes
        self._slots = slots
        self._held_jobs = held_jobs
        self._pace = pace
        self._log_writer = log_writer
        self._spooler = spooler
        self._outage = outage
        self._on_stored = on_stored
        self.done = self.failed = 0
        self.ran = 0  # microseconds, of all jobs that are done

    def write(self, batch: Batch, finish: Callable[[list[Outcome]], list[Verdict]] | None = None) -> None:
        """Write these outcomes, after the last log lines of their jobs; `finish` is the call of the storage, if it is
        not the plain one. If it fails, the outcomes keep their place and the error is raised."""
        try:
            self._log_writer.write([held for held, _ in batch])
            outcomes = dated(batch)
            try:
                written, verdicts = batch, (finish or self._storage.finish)(outcomes)
            except BadValue:
                written, verdicts = self._write_in_parts(batch)
        except Exception:
            self.outcomes.put_back(batch)
            raise
        self.outcomes.answered()
        self._outage.end()
        self._settle(written, verdicts)

    def write_now(self) -> None:
        """Write the outcomes that wait, due or not."""
        batch = self.outcomes.take_now(self._outage.most)
        if batch:
            self.write(batch)

    def write_rest(self, until: float) -> None:
        """Write the last outcomes before the worker ends, fewer at a time while the storage does not take them. Raise
        StorageUnavailable if it takes none until then."""
        while batch := self.outcomes.take_now(self._outage.most):
            try:
                self.write(batch)
            except StorageUnavailable as error:
                self._outage.most = len(batch)  # `note` halves it
                self._outage.note(error, len(self.outcomes))
                self._spooler.keep()
                if time.monotonic() >= until:
                    raise
                time.sleep(max(0.0, min(until, self._outage.next_try) - time.monotonic()))

    def keep(self) -> None:
        """The storage is away: keep the outcomes on disk as well."""
        self._spooler.keep()

    def forget(self, held: HeldJob) -> None:
        """The job is out of this worker's hands."""
        if self._held_jobs.get(held.job.id) is held:
            del self._held_jobs[held.job.id]
        self._slots.clear(held)

    def _write_in_parts(self, batch: Batch) -> tuple[Batch, list[Verdict]]:
        """Return what was written. The storage refuses the batch as a whole."""
        parts = finish_in_parts(batch, lambda part: self._storage.finish(dated(part)))
        for held in parts.lost:
            self.forget(held)
        self.outcomes.lost += len(parts.lost)
        self.outcomes.put_back(parts.left)
        return parts.written, parts.verdicts

    def _settle(self, batch: Batch, verdicts: Sequence[Verdict]) -> None:
        runs = []
        log_ended(batch, verdicts)
        for (held, outcome), verdict in zip(batch, verdicts, strict=True):
            self.forget(held)
            if verdict is Verdict.STALE:
                log_stale(held, "its outcome here is dropped")
                continue
            if self._on_stored is not None:
                self._on_stored(held.job, outcome)
            if type(outcome) is not Released:
                self._count(held, outcome)
                runs.append(outcome.ran)
        self._pace.note(runs)
        self._spooler.delivered()

    def _count(self, held: HeldJob, outcome: Outcome) -> None:
        self.done += 1
        self.ran += outcome.ran
        self._pace.tasks.note(held.task.name, outcome.ran)
        if type(outcome) is Failed:
            self.failed += 1
            log_failed(held, outcome)


def dated(batch: Sequence[tuple[HeldJob, Outcome]]) -> list[Outcome]:
    """The outcomes, with their age where it matters: if the job has log lines, which are older, or if the first
    outcome, and so perhaps all, has waited long for the storage."""
    now = time.monotonic()
    is_late = bool(batch) and _age(*batch[0], now) > LATE
    return [
        replace(outcome, ago=max(0, _age(held, outcome, now))) if is_late or held.has_logged else outcome
        for held, outcome in batch
    ]


def _age(held: HeldJob, outcome: Outcome, now: float) -> int:
    """Microseconds since the attempt ended."""
    return 0 if held.began_at is None else round((now - held.began_at) * SECOND) - outcome.ran


# --- refused batches --------------------------------------------------------------------------------------------------


class PartialWrite(NamedTuple, Generic[T]):
    """What became of a refused batch: the outcomes as they were written, with their verdicts; the owners of outcomes
    that the storage refuses in every form; and what was not tried yet."""

    written: list[tuple[T, Outcome]]
    verdicts: list[Verdict]
    lost: list[T]
    left: list[tuple[T, Outcome]]


def finish_in_parts(
    batch: Sequence[tuple[T, Outcome]], finish: Callable[[Sequence[tuple[T, Outcome]]], list[Verdict]]
) -> PartialWrite[T]:
    """Write a batch that the storage refuses as a whole, half by half.

    A server, or a proxy before it, may refuse what is too large. What it refuses alone is written in a short form; if
    it refuses that too, the outcome is lost, and its job stays with this worker until that ends. Whatever `finish`
    raises, but for BadValue, goes through: writing an outcome twice does no harm.
    """
    result: PartialWrite[T] = PartialWrite([], [], [], [])
    done, ends = 0, [len(batch), len(batch) // 2]  # where the next parts end, the first of them last
    for _ in range(MAX_CALLS):
        while ends and ends[-1] == done:
            ends.pop()
        if not ends:
            break
        part = batch[done : ends[-1]]
        try:
            verdicts = finish(part)
        except BadValue as error:
            if len(part) > 1:
                ends.append(done + len(part) // 2)
            else:
                _write_short(result, *part[0], error, finish)
                done += 1
        else:
            result.written.extend(part)
            result.verdicts.extend(verdicts)
            done += len(part)
    result.left.extend(batch[done:])
    return result


def _write_short(
    result: PartialWrite[T],
    owner: T,
    outcome: Outcome,
    error: BadValue,
    finish: Callable[[Sequence[tuple[T, Outcome]]], list[Verdict]],
) -> None:
    short = (owner, shortened(outcome, error))
    try:
        verdicts = finish([short])
    except BadValue as again:
        message = "job %s: the storage refuses its outcome in every form; the job stays here until this worker ends: %s"
        log.error(message, outcome.token.job_id, again)
        result.lost.append(owner)
    else:
        result.written.append(short)
        result.verdicts.extend(verdicts)
