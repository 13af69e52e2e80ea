"""Enqueue, reserve and finish on SQLite: what every job passes through. The engine could do all of it.

Own code because it was measured: reading whole jobs and writing them one by one takes three times as long as statements
over many jobs, and each statement and row costs a release of the GIL, which is contended while jobs run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from operator import itemgetter
from typing import TypeVar

from packhorse.core import transitions
from packhorse.core.errors import WorkerNotFound
from packhorse.core.event import Kind
from packhorse.core.fair_share import FairShare, in_turns
from packhorse.core.job import RANK_FORCED, Job, NewJob, Token
from packhorse.core.outcome import Completed, Outcome, Verdict
from packhorse.storage.engine import attempts, maintenance, new_jobs
from packhorse.storage.records import Enqueued, Placement
from packhorse.storage.sql.rows import FIELDS, Row, from_json, job_of, to_json
from packhorse.storage.sql.storage import expire_all
from packhorse.storage.sql.transaction import KnownNames, Place, Write
from packhorse.storage.sqlite.notifier import Notifier
from packhorse.storage.sqlite.rows import LARGE_ARGS, reserved_plain_job
from packhorse.storage.sqlite.statements import SQL
from packhorse.storage.sqlite.transaction import SQLiteTransaction
from packhorse.storage.transfer import decode, may_go_on

R = TypeVar("R")

_seq_of = itemgetter(FIELDS.index("seq"))

_QUEUES_AT_A_TIME = 32
"""How many queues of one rank share a call: a job alone in its queue costs more than one among others."""
_LONG_RUN = 16
"""So many jobs with consecutive numbers, on average, are worth a statement of their own."""
_MOST_REMEMBERED = 10_000
"""How many reserved jobs are remembered; those of workers that died are never finished."""

_Ended = tuple[Job, Completed, int]
"""A job, its outcome, and when it started."""
_CompletedRow = tuple[int, int, int | None, str | None]
"""A completed job: its seq, how long ago it started, and ran until, its result."""


class _NotHeldError(Exception):
    """A job that this process has reserved is no longer held."""


class HotPath:
    """The fast calls of one storage."""

    def __init__(self, write: Write, notifier: Notifier, names: KnownNames, fair_share: FairShare) -> None:
        self._write = write
        self._notifier = notifier
        self._names = names
        self._fair_share = fair_share
        self._last_queue: dict[int, str] = {}  # by rank: the last of very many queues that was served
        self._reserved: dict[str, Job] = {}  # by this process, for the first time: finishing need not read them

    # --- enqueue --------------------------------------------------------------------------------------------------

    def enqueue(self, tx: SQLiteTransaction, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if any(new.unique or new.subscriber for new in jobs):
            if (mark := tx.execute(SQL["get_move"]).fetchone()) is not None:
                may_go_on(decode(mark[0]), "enqueue")
            return new_jobs.enqueue(tx, jobs)
        if not self._names.have_all(jobs):
            tx.know({new.queue for new in jobs}, {new.task: new.queue for new in reversed(jobs)})
        try:
            if len(jobs) == 1:
                tx.insert_one(jobs[0])
            else:
                tx.nested(lambda own: own.insert(jobs))
        except sqlite3.IntegrityError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_CONSTRAINT_UNIQUE:
                raise
            if len(jobs) == 1:
                return [Enqueued(jobs[0].id, Placement.KEPT)]
            return new_jobs.enqueue(tx, jobs)  # a call is repeated whose answer was lost
        return [Enqueued(new.id) for new in jobs]

    # --- reserve --------------------------------------------------------------------------------------------------

    def reserve(self, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        self._notifier.note_version(queues)
        jobs = self._write("reserve", lambda tx: self._reserve(tx, owner, queues, limit))
        self._notify_next(len(jobs), limit, queues)
        return jobs

    def _notify_next(self, number: int, limit: int, queues: Iterable[str]) -> None:
        """If this worker found nothing, the notification was for another. If it got all that it asked for, there may be
        more."""
        if number == 0:
            self._notifier.pass_on(queues)
        elif number >= limit:
            self._notifier.notify()

    def _reserve(self, tx: SQLiteTransaction, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        worker = tx.execute(SQL["worker_and_move"], (owner,)).fetchone()
        if worker is None:
            raise WorkerNotFound(owner)
        if worker[0] is not None:  # the storage is being moved: jobs are finished, and none is reserved
            return []
        maintenance.promote(tx, 100)
        if not expire_all(tx):
            return []
        paused = {row[0] for row in tx.execute(SQL["paused_queues"]).fetchall()}
        all_queues = list(queues)
        unpaused = [queue for queue in all_queues if queue not in paused]
        taken: list[Job] = []
        rank = tx.execute(SQL["next_rank"], (-1,)).fetchone()[0]
        while rank is not None and len(taken) < limit:
            wanted = limit - len(taken)
            served = all_queues if rank == RANK_FORCED else unpaused
            if rank in self._last_queue and _are_many_equals(served, queues):
                taken += self._take_round(tx, owner, rank, served, queues, wanted)
                continue
            counted = _longest_that_matters(served, queues, wanted)
            lengths = self._lengths(tx, rank, served, counted)
            if len(lengths) <= 1:  # its length does not matter; its turns count all the same
                batch = [job for queue in lengths for job in self._take(tx, owner, rank, queue, wanted)]
                self._fair_share.share(dict.fromkeys(lengths, len(batch)), queues, len(batch))
            else:
                heads = self._heads(tx, rank, self._fair_share.share(lengths, queues, wanted))
                batch = in_turns(self._take_heads(tx, owner, rank, heads), queues)
            taken += batch
            may_have_more = len(lengths) == _QUEUES_AT_A_TIME or (counted < wanted and counted in lengths.values())
            if not may_have_more:
                rank = tx.execute(SQL["next_rank"], (rank,)).fetchone()[0]
        return taken

    def _lengths(self, tx: SQLiteTransaction, rank: int, queues: Sequence[str], counted: int) -> dict[str, int]:
        """Which of these queues have jobs of this rank, and how many, up to what matters. A single queue is not
        counted. Of very many queues a part; the next call begins after it."""
        if len(queues) <= 1:
            return dict.fromkeys(queues, counted)
        asked = to_json(self._from_last(rank, queues) if len(queues) > _QUEUES_AT_A_TIME else queues)
        answer = tx.execute(SQL["lines_with_jobs"], (asked, rank, _QUEUES_AT_A_TIME, counted)).fetchone()
        found: dict[str, int] = dict(from_json(answer[0]))
        if len(found) == _QUEUES_AT_A_TIME:
            self._last_queue[rank] = next(reversed(found))
        return found

    def _from_last(self, rank: int, queues: Sequence[str]) -> list[str]:
        """These queues, beginning after the one that was served last."""
        last = self._last_queue.get(rank)
        start = queues.index(last) + 1 if last in queues else 0
        return [*queues[start:], *queues[:start]]

    def _take_round(
        self,
        tx: SQLiteTransaction,
        owner: str,
        rank: int,
        queues: Sequence[str],
        weights: Mapping[str, int],
        wanted: int,
    ) -> list[Job]:
        """Take the same number of jobs from each of the next of very many equal queues, without counting them. If that
        is not enough, the queues are few or short by now, and the next call counts."""
        fewest = -(-wanted // _QUEUES_AT_A_TIME)
        # A divisor of what is wanted: queues that are served together stay together, as do their jobs in the file.
        each = min(range(fewest, fewest + fewest // 3 + 1), key=lambda number: wanted % number)
        asked = (to_json(self._from_last(rank, queues)), rank, each, wanted)
        heads: dict[str, list[Row]] = {}
        for row in from_json(tx.execute(SQL["next_of_lines"], asked).fetchone()[0]):
            heads.setdefault(row[-2], []).append(row)
        jobs = self._take_heads(tx, owner, rank, heads)
        self._fair_share.share({queue: len(rows) for queue, rows in heads.items()}, weights, len(jobs))
        if len(jobs) < wanted:
            del self._last_queue[rank]
        else:
            self._last_queue[rank] = next(reversed(heads))
        return in_turns(jobs, weights)

    def _take(self, tx: SQLiteTransaction, owner: str, rank: int, queue: str, limit: int) -> list[Job]:
        """Take the first jobs of one queue."""
        rows = from_json(tx.execute(SQL["head_of_line"], (rank, queue, limit)).fetchone()[0])
        if not rows:
            return []
        first, last = rows[0][1], rows[-1][1]
        others = [row[1] for row in rows if not row[-1]]
        before = _jobs_by_seq(tx, others) if others else {}
        jobs = [
            reserved_plain_job(row[:-1], queue, rank, owner, tx.now)
            if row[-1]
            else transitions.reserved(before[row[1]], owner, tx.now).job
            for row in rows
        ]
        batched = [(job.id, job.fence) for job in jobs]
        batch = tx.events.add_batch(Kind.RESERVED, tx.now, [(queue, len(jobs))], "reserved", owner, batched)
        take = SQL["take_any"] if others else SQL["take_plain"]
        # Between the first and the last, the queue has these jobs and no others.
        tx.execute(take, (owner, tx.now, batch, rank, queue, first, last))
        if others:
            _move_old_batches(tx, others)
        self._note_taken(tx, queue, jobs)
        return jobs

    def _take_heads(self, tx: SQLiteTransaction, owner: str, rank: int, heads: Mapping[str, list[Row]]) -> list[Job]:
        """Take these first jobs of several queues: with one statement where all jobs of a queue are plain."""
        jobs: list[Job] = []
        counts: list[tuple[str, int]] = []
        others: list[Job] = []
        for queue, rows in heads.items():
            if not all(row[-1] for row in rows):
                others += self._take(tx, owner, rank, queue, len(rows))
                continue
            plain = [reserved_plain_job(row[:-2], queue, rank, owner, tx.now) for row in rows]
            counts.append((queue, len(plain)))
            self._note_taken(tx, queue, plain)
            jobs += plain
        if jobs:
            batched = [(job.id, job.fence) for job in jobs]
            batch = tx.events.add_batch(Kind.RESERVED, tx.now, counts, "reserved", owner, batched)
            tx.execute(SQL["take_scattered"], (owner, tx.now, batch, to_json([job.seq for job in jobs])))
        return jobs + others

    def _heads(self, tx: SQLiteTransaction, rank: int, shares: Mapping[str, int]) -> dict[str, list[Row]]:
        """The first jobs of these queues, of each as many as its share. One statement reads nearly equal shares."""
        heads: dict[str, list[Row]] = {queue: [] for queue in shares}
        most = max(shares.values(), default=0)
        is_even = most * len(shares) <= sum(shares.values()) + len(shares)
        for share in [most] if is_even else set(shares.values()):
            asked = to_json([queue for queue in shares if is_even or shares[queue] == share])
            for row in from_json(tx.execute(SQL["heads_of_lines"], (asked, rank, share)).fetchone()[0]):
                heads[row[-2]].append(row)
        return {queue: rows[: shares[queue]] for queue, rows in heads.items()}

    def _note_taken(self, tx: SQLiteTransaction, queue: str, jobs: Sequence[Job]) -> None:
        tasks = [job.task for job in jobs]
        for task in set(tasks):
            tx.move((queue, task, "queued"), (queue, task, "reserved"), tasks.count(task))
        if len(self._reserved) > _MOST_REMEMBERED:
            self._reserved.clear()
        self._reserved.update([(job.id, job) for job in jobs if job.fence == 1 and len(job.args) <= LARGE_ARGS])

    # --- finish ---------------------------------------------------------------------------------------------------

    def forget(self, tokens: Sequence[Token]) -> None:
        """These jobs start, and are no longer as they were reserved."""
        for token in tokens:
            self._reserved.pop(token.job_id, None)

    def finish(self, outcomes: Sequence[Outcome]) -> list[Verdict]:
        return self._write_twice("finish", lambda tx: self._finish(tx, outcomes)) if outcomes else []

    def finish_and_reserve(
        self, outcomes: Sequence[Outcome], owner: str, queues: Mapping[str, int], limit: int
    ) -> tuple[list[Verdict], list[Job]]:
        self._notifier.note_version(queues)

        def work(tx: SQLiteTransaction) -> tuple[list[Verdict], list[Job]]:
            return self._finish(tx, outcomes), self._reserve(tx, owner, queues, limit)

        verdicts, jobs = self._write_twice("finish_and_reserve", work)
        self._notify_next(len(jobs), limit, queues)
        return verdicts, jobs

    def _write_twice(self, name: str, work: Callable[[SQLiteTransaction], R]) -> R:
        """Run `work`. If a remembered job is no longer held, everything is undone and done again: what was remembered
        is forgotten by then, and all jobs are read."""
        try:
            return self._write(name, work)
        except _NotHeldError:
            return self._write(name, work)

    def _finish(self, tx: SQLiteTransaction, outcomes: Sequence[Outcome]) -> list[Verdict]:
        remembered = self._pop_completed(outcomes)
        if remembered:
            _complete_remembered(tx, list(remembered.values()))
        if len(remembered) == len(outcomes):
            return [Verdict.ACCEPTED] * len(outcomes)
        others = [outcome for outcome in outcomes if outcome.token.job_id not in remembered]
        verdicts = iter(attempts.finish(tx, others) if others else [])
        return [Verdict.ACCEPTED if outcome.token.job_id in remembered else next(verdicts) for outcome in outcomes]

    def _pop_completed(self, outcomes: Sequence[Outcome]) -> dict[str, tuple[Job, Completed]]:
        """The completed ones of the remembered jobs."""
        found: dict[str, tuple[Job, Completed]] = {}
        for outcome in outcomes:
            job = self._reserved.pop(outcome.token.job_id, None)
            if job is not None and type(outcome) is Completed and outcome.token.fence == job.fence:
                found[job.id] = (job, outcome)
        if len({outcome.token.job_id for outcome in outcomes}) < len(outcomes):
            return {}  # of several outcomes of one job the first counts, which needs the jobs to be read
        return found


def _are_many_equals(queues: Sequence[str], weights: Mapping[str, int]) -> bool:
    """Whether these are too many for one call, and have the same weight."""
    return len(queues) > _QUEUES_AT_A_TIME and len({weights[queue] for queue in queues}) == 1


def _longest_that_matters(queues: Sequence[str], weights: Mapping[str, int], wanted: int) -> int:
    """Up to how many jobs a queue's length matters. None of very many equal queues gets much more than its part."""
    if not _are_many_equals(queues, weights):
        return wanted
    return min(wanted, max(10, 4 * wanted // _QUEUES_AT_A_TIME))


def _jobs_by_seq(tx: SQLiteTransaction, seqs: Sequence[int]) -> dict[int, Job]:
    rows = tx.execute(SQL["jobs_by_seqs"], (to_json(seqs),)).fetchall()
    return {_seq_of(row): job_of(row) for row in rows}


def _move_old_batches(tx: SQLiteTransaction, seqs: Sequence[int]) -> None:
    """The row of a job that is reserved again and again must not grow forever."""
    for job_id, batches in tx.execute(SQL["long_packs"], (to_json(seqs),)).fetchall():
        tx.execute(SQL["put_old_packs"], (job_id, batches, tx.now))
        tx.execute(SQL["clear_packs"], (job_id,))


def _complete_remembered(tx: SQLiteTransaction, completed: Sequence[tuple[Job, Completed]]) -> None:
    """Complete jobs as `transitions.settled` does, without reading them. Raises `_NotHeldError` if one of them is no
    longer held as it was reserved."""
    now = tx.now
    runs: dict[Place, list[tuple[int, int]]] = {}
    alike: dict[str, dict[str, list[_Ended]]] = {}  # by owner and queue
    for job, outcome in completed:
        queued_at = job.queued_at or 0
        started_at = max(now - outcome.ago - outcome.ran, queued_at)
        alike.setdefault(outcome.token.owner, {}).setdefault(job.queue, []).append((job, outcome, started_at))
        runs.setdefault((job.queue, job.task, "reserved"), []).append((outcome.ran, started_at - queued_at))
    for owner, queues in alike.items():
        counts = [(queue, len(ended)) for queue, ended in queues.items()]
        ended = list(chain.from_iterable(queues.values()))
        started = [(job.id, 1, started_at - now) for job, _, started_at in ended]
        done = [(job.id, 1, 0, {"ran": outcome.ran}) for job, outcome, _ in ended]
        batches = tx.events.add_batch(Kind.STARTED, now, counts, "running", owner, started)
        batches += tx.events.add_batch(Kind.COMPLETED, now, counts, "completed", owner, done)
        rows = [
            (job.seq, now - started_at, now - started_at - outcome.ran if outcome.ran > 0 else None, outcome.result)
            for job, outcome, started_at in ended
        ]
        if _complete_rows(tx, owner, batches, rows) < len(rows):
            raise _NotHeldError
    tx.count_completed(runs)


def _complete_rows(tx: SQLiteTransaction, owner: str, batches: str, rows: list[_CompletedRow]) -> int:
    """Complete these rows. Returns how many of them were still held."""
    rows.sort()
    gaps = [place for place in range(1, len(rows)) if rows[place][0] - rows[place - 1][0] > 1]
    if len(gaps) * _LONG_RUN >= len(rows):
        return tx.execute(SQL["complete_scattered"], (owner, tx.now, batches, to_json(rows))).rowcount
    number = 0
    for start, end in pairwise([0, *gaps, len(rows)]):
        run = rows[start:end]
        seqs, starts, ends, results = zip(*run, strict=True)
        are_equal = results.count(results[0]) == len(results)  # as those of tasks that return nothing
        result = (None, results[0]) if are_equal else (to_json(results), None)
        values = (owner, tx.now, batches, seqs[0], seqs[-1], to_json(starts), to_json(ends), *result)
        number += tx.execute(SQL["complete_together"], values).rowcount
    return number
