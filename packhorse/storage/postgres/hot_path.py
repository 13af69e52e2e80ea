"""Enqueue, reserve, start and finish on PostgreSQL: what every job passes through. The engine could do all of it.

Own code because it was measured: each of these is one statement, and the finish of one batch goes with the reserve of
the next in one round trip; the engine would need a transaction of several for each.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import msgspec
import psycopg
from msgspec.structs import replace

from packhorse.core.clock import SECOND
from packhorse.core.errors import StorageError, WorkerNotFound
from packhorse.core.fair_share import FairShare, in_turns
from packhorse.core.job import RANK_FORCED, RANKS, Job, NewJob, Token
from packhorse.core.outcome import Completed, Outcome, Verdict
from packhorse.storage.contract import named_queues
from packhorse.storage.engine import attempts, maintenance
from packhorse.storage.postgres import event_batches
from packhorse.storage.postgres.connection import PostgresConnection
from packhorse.storage.postgres.database import Database
from packhorse.storage.postgres.notifier import Notifier
from packhorse.storage.postgres.transaction import PostgresTransaction
from packhorse.storage.records import Enqueued, Placement
from packhorse.storage.sql.rows import job_of, to_json
from packhorse.storage.sql.scan_cursor import ScanCursor
from packhorse.storage.sql.server import ServerStorage
from packhorse.storage.sql.storage import expire_all
from packhorse.storage.sql.transaction import Shared

_TRIES = 3
_QUEUES_AT_A_TIME = 100
"""How many queues share the turns of one call."""
_LOOK_EVERY = 1.9
"""Seconds between two looks of a waiting worker that was not notified. Enqueueing a job that is due within two seconds
notifies, so none that was not there at the last look comes before the next."""

# The values of `enqueue_one`, except the last, the time.
_values_of_one = attrgetter(
    "id", "task", "queue", "args", "priority", "delay", "due_at", "max_attempts", "max_halts", "timeout",
    "idle_timeout", "expires", "total_timeout", "persistent", "created_by", "schedule", "backoff", "meta",
)  # fmt: skip

_options_of = attrgetter(
    "delay", "due_at", "max_attempts", "max_halts", "timeout", "idle_timeout", "expires", "total_timeout", "persistent",
    "created_by", "schedule", "backoff", "meta",
)  # fmt: skip
_NO_OPTIONS = _options_of(NewJob("", "", ""))


class _Line(msgspec.Struct):
    """How many to take of a queue's jobs, of ranks from `low` to `high`, beginning with the seq `start`."""

    queue: str
    low: int
    high: int
    share: int
    start: int = 0


class _Start(msgspec.Struct):
    """The seq with which the search for jobs of a queue and a rank begins."""

    queue: str
    rank: int
    start: int


class _Started(msgspec.Struct):
    """A job that runs, as the statement reads it."""

    job_id: str
    owner: str
    fence: int
    ago: int


class _Completed(msgspec.Struct):
    """An outcome as the statement reads it."""

    id: str
    owner: str
    fence: int
    result: str | None
    ran: int
    ago: int


class HotPath:
    """The fast calls of one storage."""

    def __init__(
        self, storage: ServerStorage, db: Database, shared: Shared, notifier: Notifier, fair_share: FairShare
    ) -> None:
        self._storage = storage
        self._db = db
        self._sql = shared.sql
        self._notifier = notifier
        self._names = shared.names
        self._fair_share = fair_share
        self.cursor = ScanCursor(slow=0.01)
        self._last_queue = ""  # the last of very many queues that was served
        self.found_nothing: tuple[float, int | None] | None = None  # when, and how long it was until the next is due
        self._empty_for: str | None = None  # the worker that looked

    # --- enqueue --------------------------------------------------------------------------------------------------

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued] | None:
        """None: the jobs need a transaction."""
        if len(jobs) > 1 and self._enqueue_alike(jobs):
            self._storage.note_deltas(2)
            return [Enqueued(new.id) for new in jobs]
        if any(new.unique or new.subscriber for new in jobs) or not self._names.have_all(jobs):
            return None
        if len(jobs) == 1 and jobs[0].copied_from is None and jobs[0].chosen is None:
            rows = self._enqueue_alone(jobs[0])
        else:
            rows = self._db.run("enqueue", self._sql["enqueue"], (to_json(jobs), self._storage.moment(), True))
        self._storage.note_deltas(2 * len({(new.queue, new.task) for new in jobs}))
        if not rows:
            # Their ids are stored already, or the storage is moved, or was a moment ago. A transaction finds out, as
            # the mark does not change while it runs.
            return None
        return placements(jobs, {row[0] for row in rows})

    def _enqueue_alone(self, new: NewJob) -> list[Any]:
        if _options_of(new) == _NO_OPTIONS:
            values = (new.id, new.task, new.queue, new.args, new.priority, self._storage.moment())
            return self._db.run("enqueue", self._sql["enqueue_plain"], values)
        return self._db.run("enqueue", self._sql["enqueue_one"], (*_values_of_one(new), self._storage.moment()))

    def _enqueue_alike(self, jobs: Sequence[NewJob]) -> bool:
        """Store jobs that differ only in ids and arguments, as those of a loop do. False: nothing was stored."""
        first = jobs[0]
        is_unusual = first.unique or first.subscriber or first.copied_from is not None or first.chosen is not None
        if is_unusual or not self._names.have_all(jobs[:1]):
            return False
        job_ids, blank = [new.id for new in jobs], replace(first, id="", args="")
        bounds = event_batches.bounds(job_ids)  # also None for more jobs than one value of the sequence stands for
        if bounds is None or any(replace(new, id="", args="") != blank for new in jobs):
            return False
        ids, args = "\n".join(job_ids), "\n".join([new.args for new in jobs])
        if ids.count("\n") + args.count("\n") > 2 * len(jobs) - 2:
            return False
        _, task, queue, _, *rest = _values_of_one(first)
        values = (ids, task, queue, args, *rest, self._storage.moment(), len(jobs), *bounds)
        try:
            return bool(self._db.run("enqueue", self._sql["enqueue_alike"], values))
        except StorageError as error:
            if isinstance(error.__cause__, psycopg.errors.UniqueViolation):
                return False  # a call is repeated whose answer was lost
            raise

    # --- reserve --------------------------------------------------------------------------------------------------

    def reserve(self, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        self.found_nothing = None
        taken: list[Job] = []  # each batch in it is committed, so a later error must not lose it
        try:
            is_late = self._db.read_with(
                "reserve", lambda connection: self._take(connection, owner, queues, limit, taken)
            )
            if is_late and self._storage.write("promote", _promote_and_expire):
                self._db.read_with(
                    "reserve", lambda connection: self._take(connection, owner, queues, limit, taken, anyway=True)
                )
        except StorageError:
            if not taken:
                raise
        self._storage.note_deltas(_counted_for(taken))
        if taken:
            self._notifier.remove_rows(queues)
        else:
            self.found_nothing, self._empty_for = self._storage.due_seen, owner
        return taken

    def wait_and_reserve(self, owner: str, queues: Mapping[str, int], limit: int, timeout: float) -> list[Job]:
        is_notified = self._notifier.wait(timeout, list(queues))
        queues = named_queues(queues)
        looked = self.found_nothing if self._empty_for == owner else None
        if is_notified or looked is None or self._storage.has_test_clock or not self._notifier.has_lasting_row(queues):
            return self.reserve(owner, queues, limit)
        ago = time.monotonic() - looked[0]
        due_in = None if looked[1] is None else looked[1] - round(ago * SECOND)
        if ago >= _LOOK_EVERY or (due_in is not None and due_in <= 0):
            return self.reserve(owner, queues, limit)
        self._storage.due_seen = (time.monotonic(), due_in)
        return []

    def _take(
        self,
        connection: PostgresConnection,
        owner: str,
        queues: Mapping[str, int],
        limit: int,
        taken: list[Job],
        *,
        anyway: bool = False,
    ) -> bool:
        """Add jobs to `taken`. True: jobs are due or have expired, and must be promoted or aborted first."""
        for _ in range(_TRIES):  # others may take what was seen
            wanted = limit - len(taken)
            lines = self._lines(connection, owner, queues, wanted, anyway)
            if not lines:
                return lines is None
            rows = connection.execute(self._sql["take"], self._asked(owner, lines, wanted, anyway)).fetchall()
            batch, is_late = self._taken(connection, owner, queues, rows, wanted)
            taken += batch
            missed = sum(line.share for line in lines) - len(batch) if len(queues) > 1 else 0
            if is_late or len(taken) >= limit or missed <= 0:
                return is_late
        return False

    def _asked(self, owner: str, lines: Sequence[_Line], limit: int, anyway: bool) -> tuple[Any, ...]:
        return owner, self._storage.moment(), to_json(lines), limit, anyway

    def _lines(
        self, connection: PostgresConnection, owner: str, queues: Mapping[str, int], limit: int, anyway: bool = False
    ) -> list[_Line] | None:
        """What to take from where; None: jobs are due or have expired. A single queue needs no turns."""
        if len(queues) == 1:
            connection.searched_for, connection.paused = 0, ()
            return self._single_queue(queues, limit)
        most = max(_QUEUES_AT_A_TIME, limit)  # each has one job at least
        statement, asked = self._where(queues)
        began_at = time.perf_counter()
        rows = connection.execute(
            statement, (asked, limit, owner, self._storage.moment(), anyway, self._last_queue, most)
        ).fetchall()
        connection.searched_for, connection.paused = round((time.perf_counter() - began_at) * SECOND), rows[0][6] or ()
        if len(rows) == most:
            self._last_queue = self._behind(rows)
        is_known, is_late, due_in = rows[0][:3]
        if not is_known:
            raise WorkerNotFound(owner)
        self._storage.due_seen = (time.monotonic(), due_in)
        return None if is_late else self._shares([row[3:6] for row in rows if row[3] is not None], queues, limit)

    def _where(self, queues: Mapping[str, int]) -> tuple[str, str]:
        """The statement that looks for queues with jobs, and what to ask it."""
        if not self.cursor.is_set(queues):
            return self._sql["lines"], to_json(sorted(queues))
        starts = [
            _Start(queue, rank, start)
            for queue in sorted(queues)
            for low, high, start in self.cursor.ranges(queue)
            for rank in range(low, high + 1)
        ]
        return self._sql["lines_from"], to_json(starts)

    def _behind(self, rows: Sequence[tuple[Any, ...]]) -> str:
        """The last queue of the lowest rank: the next call begins after it."""
        lowest: list[str] = [queue for _, _, _, rank, queue, *_ in rows if rank == rows[0][3]]
        return max((queue for queue in lowest if queue > self._last_queue), default=lowest[-1])

    def _single_queue(self, queues: Mapping[str, int], limit: int) -> list[_Line]:
        if not self.cursor.is_set(queues):
            return [_Line(queue, RANKS[0], RANKS[-1], limit) for queue in queues]
        return [
            _Line(queue, low, high, limit, start) for queue in queues for low, high, start in self.cursor.ranges(queue)
        ]

    def _shares(self, rows: Sequence[tuple[int, str, int]], weights: Mapping[str, int], limit: int) -> list[_Line]:
        """Share the jobs: rank by rank, in turns by weight."""
        lines: list[_Line] = []
        for rank, group in itertools.groupby(rows, key=itemgetter(0)):
            lengths = {queue: length for _, queue, length in group}
            shares = self._fair_share.share(lengths, weights, limit)
            lines += [
                _Line(queue, rank, rank, share, self.cursor.start(queue, rank)) for queue, share in shares.items()
            ]
            limit -= sum(shares.values())
            if limit <= 0:
                break
        return lines

    def _taken(
        self,
        connection: PostgresConnection,
        owner: str,
        queues: Mapping[str, int],
        rows: Sequence[tuple[Any, ...]],
        wanted: int,
    ) -> tuple[list[Job], bool]:
        is_known, is_late, due_in, took = rows[0][:4]
        if not is_known:
            raise WorkerNotFound(owner)
        jobs = [job_of(row[4:]) for row in rows if row[4] is not None]
        if not jobs:
            self._storage.due_seen = (time.monotonic(), due_in)
        if len(queues) == 1:  # its turns count, though there is no other queue
            for _, group in itertools.groupby(jobs, key=lambda job: job.rank):
                number = len(list(group))
                self._fair_share.share(dict.fromkeys(queues, number), queues, number)
        # The jobs of a paused queue were skipped, and may come before all that were found: the cursor does not pass
        # them. A single queue may be paused if it gave only forced jobs.
        is_unpaused = len(queues) > 1 or (jobs and jobs[-1].rank > RANK_FORCED)
        scanned = [queue for queue in queues if queue not in connection.paused] if is_unpaused else []
        self.cursor.note(scanned, jobs, (took + connection.searched_for) / SECOND, is_all=len(jobs) < wanted)
        return jobs if len(queues) == 1 else in_turns(jobs, queues), is_late

    # --- start ----------------------------------------------------------------------------------------------------

    def start(self, tokens: Sequence[Token], agos: Sequence[int] = ()) -> list[Verdict]:
        if not tokens:
            return []
        # Of two starts of one job the first counts.
        each = dict(zip(reversed(tokens), reversed(agos or [0] * len(tokens)), strict=True))
        once = [_Started(token.job_id, token.owner, token.fence, ago) for token, ago in each.items()]
        once.sort(key=lambda started: started.job_id)
        rows = self._db.run("start", self._sql["start_jobs"], (to_json(once), self._storage.moment()))
        self._storage.note_deltas(rows[0][1] if rows else 0)
        started = {job_id for job_id, _ in rows}
        held_by_id = {} if len(started) == len(tokens) else self._held_now(tokens)
        verdicts = []
        for token in tokens:
            held = held_by_id.get(token.job_id)
            if token.job_id in started and (held is None or attempts.is_held_by(held, token)):
                started.discard(token.job_id)
                verdicts.append(Verdict.ACCEPTED)
            elif held is not None and attempts.is_held_by(held, token):
                verdicts.append(Verdict.REPEATED)
            else:
                verdicts.append(Verdict.STALE)
        return verdicts

    def _held_now(self, tokens: Sequence[Token]) -> dict[str, Job]:
        return {job.id: job for job in self._storage.get_many([token.job_id for token in tokens])}

    # --- finish ---------------------------------------------------------------------------------------------------

    def finish(self, outcomes: Sequence[Outcome]) -> list[Verdict]:
        if not outcomes:
            return []
        if not _are_plain(outcomes):
            return self._storage.write("finish", lambda tx: self._finish(tx, outcomes))
        rows = self._db.run("finish", self._sql["complete"], (_rows(outcomes), self._storage.moment(), None))
        self._storage.note_deltas(rows[0][1] if rows else 0)
        return self._verdicts(outcomes, rows)

    def finish_and_reserve(
        self, outcomes: Sequence[Outcome], owner: str, queues: Mapping[str, int], limit: int
    ) -> tuple[list[Verdict], list[Job]]:
        if not outcomes:
            return [], self.reserve(owner, queues, limit)
        if not _are_plain(outcomes):
            verdicts = self._storage.write("finish", lambda tx: self._finish(tx, outcomes, owner))
            return verdicts, self.reserve(owner, queues, limit)
        accepted, (taken, is_late) = self._db.read_with(
            "finish_and_reserve", lambda connection: self._complete_and_take(connection, outcomes, owner, queues, limit)
        )
        self._storage.note_deltas((accepted[0][1] if accepted else 0) + _counted_for(taken))
        verdicts = self._verdicts(outcomes, accepted)
        return verdicts, self.reserve(owner, queues, limit) if is_late else taken

    def _complete_and_take(
        self,
        connection: PostgresConnection,
        outcomes: Sequence[Outcome],
        owner: str,
        queues: Mapping[str, int],
        limit: int,
    ) -> tuple[list[Any], tuple[list[Job], bool]]:
        """One round trip for a single queue; two when turns must be shared in between."""
        asked = (_rows(outcomes), self._storage.moment(), owner)
        lines = self._lines(connection, owner, queues, limit)
        if lines is None:
            return connection.execute(self._sql["complete"], asked).fetchall(), ([], True)
        with connection.pipeline() as pipeline:  # one transaction, committed when all has been sent
            completed = pipeline.execute(self._sql["complete"], asked)
            taken = pipeline.execute(self._sql["take"], self._asked(owner, lines, limit, anyway=False))
        return completed.fetchall(), self._taken(connection, owner, queues, taken.fetchall(), limit)

    def _verdicts(self, outcomes: Sequence[Outcome], rows: Sequence[tuple[str, int]]) -> list[Verdict]:
        if len(rows) == len(outcomes):
            return [Verdict.ACCEPTED] * len(outcomes)
        accepted = {row[0] for row in rows}
        held_by_id = self._held_now([outcome.token for outcome in outcomes if outcome.token.job_id not in accepted])
        verdicts = []
        for outcome in outcomes:
            held = held_by_id.get(outcome.token.job_id)
            if outcome.token.job_id in accepted:
                verdicts.append(Verdict.ACCEPTED)
            else:
                ended = held is not None and attempts.was_ended_by(held, outcome.token)
                verdicts.append(Verdict.REPEATED if ended else Verdict.STALE)
        return verdicts

    def _finish(
        self, tx: PostgresTransaction, outcomes: Sequence[Outcome], reserving: str | None = None
    ) -> list[Verdict]:
        """Finish any outcomes, one by one."""
        if reserving is not None and tx.execute(self._sql["worker_exists"], (reserving,)).fetchone() is None:
            raise WorkerNotFound(reserving)
        return attempts.finish(tx, outcomes)


def _promote_and_expire(tx: PostgresTransaction) -> bool:
    maintenance.promote(tx, 100)
    return expire_all(tx)


def _are_plain(outcomes: Sequence[Outcome]) -> bool:
    """Whether all of them completed, each another job."""
    return all(type(outcome) is Completed for outcome in outcomes) and (
        len(outcomes) == 1 or len({outcome.token.job_id for outcome in outcomes}) == len(outcomes)
    )


def _counted_for(taken: Sequence[Job]) -> int:
    """How many rows the statement that took these jobs has added to those to be folded."""
    return 2 * len({(job.queue, job.task) for job in taken})


def _rows(outcomes: Sequence[Any]) -> str:
    """In the order of their ids, in which all transactions lock jobs."""
    rows = [
        _Completed(one.token.job_id, one.token.owner, one.token.fence, one.result, one.ran, one.ago) for one in outcomes
    ]
    rows.sort(key=lambda one: one.id)
    return to_json(rows)


def placements(jobs: Sequence[NewJob], added: set[str]) -> list[Enqueued]:
    """What became of new jobs, of which these ids were stored."""
    if len(added) == len(jobs):
        return [Enqueued(new.id) for new in jobs]
    results = []
    for new in jobs:
        results.append(Enqueued(new.id, Placement.ADDED if new.id in added else Placement.KEPT))
        added.discard(new.id)  # the same id once more in one call
    return results
