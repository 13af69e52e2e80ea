"""The storage contract: everything that can be done with stored jobs, and what each call guarantees.

Rules that hold for every storage:

1. A call is one atomic step. A process that is killed in the middle leaves the state before or after, never between.
   Only what concerns more than `BATCH` jobs of one worker or client may take several steps.
2. A change of state and its event are one write. Nothing else writes events, so history cannot disagree with state.
3. A worker's write carries its token (job, owner, fence). If the job has changed hands, the write changes nothing and
   returns `stale`. Repeating a call whose answer was lost is harmless: an accepted outcome is `repeated`, a released
   job is `stale`.
4. Time is the storage's clock. Callers send durations; tests pass a storage its own `now`.
5. What all storages have in common is written once: what an operation does to a job (`core/transitions.py`), the
   operations (`storage/engine/`), the checks of arguments (`checks.py`: an invalid value raises `BadValue`, and nothing
   is stored), the handling of damaged records (`broken_records.py`: no call fails on one, and no worker gets one).
6. Calls are synchronous, and safe from many threads. Lists hold up to `BATCH` items.

Errors: `StorageUnavailable` and its subclasses when the storage cannot answer. Then nothing was changed, or the caller
cannot know and repeats the call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from packhorse.core import clock
from packhorse.core.errors import BadValue
from packhorse.core.event import Event, ForemanOrder, Kind
from packhorse.core.job import Job, NewJob, Token
from packhorse.core.outcome import Outcome, Verdict
from packhorse.storage.broken_records import ANSWERS, with_checked_jobs
from packhorse.storage.checks import WRITES, checked
from packhorse.storage.records import (
    USUAL_LEASE,
    AbortRequest,
    ActionResult,
    CheckIn,
    CheckInAnswer,
    ClientInfo,
    Count,
    Enqueued,
    EventFilter,
    FailureGroup,
    Filter,
    Health,
    HeartbeatReply,
    JobVersion,
    LogLine,
    Migration,
    OperationSums,
    Page,
    Point,
    PollResult,
    Pruned,
    QueueInfo,
    Rescued,
    Retention,
    ScheduleInfo,
    Span,
    Tally,
    TaskInfo,
    Tick,
    WorkerInfo,
)
from packhorse.storage.transfer import Dumped, Move, Section

BATCH = 1_000
OTHER_QUEUES = "*"
"""Stands for other queues among those of `wait` and `wait_and_reserve`. A job that enters a queue which no waiting
worker names, for the first time in a while, wakes all that say this: they look whether it is for them."""


def named_queues(queues: Mapping[str, int]) -> Mapping[str, int]:
    """Return these queues without `OTHER_QUEUES`."""
    if OTHER_QUEUES not in queues:
        return queues
    return {name: weight for name, weight in queues.items() if name != OTHER_QUEUES}


class Storage(ABC):
    """Where jobs live. Open one with `packhorse.storage.open_storage(url)`."""

    def __init_subclass__(cls, **words: Any) -> None:
        """Put the same checks around the calls of every storage: of arguments (`checks.py`) and of the jobs that it
        returns (`broken_records.py`)."""
        super().__init_subclass__(**words)
        for name, call in list(vars(cls).items()):
            if (name in WRITES or name in ANSWERS) and not getattr(call, "__isabstractmethod__", False):
                seen = with_checked_jobs(name, call) if name in ANSWERS else call
                setattr(cls, name, checked(name, seen, getattr(Storage, name)) if name in WRITES else seen)

    event_stride = 1
    """The difference between the ids of two neighbouring events that are not of one batch."""

    # --- life -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def close(self) -> None:
        """Close files and connections. A second call does nothing; the storage opens again when it is used."""

    def require_existing(self) -> None:  # noqa: B027 - most storages have nothing to make
        """Never create or upgrade tables from now on: every call but `migrate` raises `StorageNotFound` or
        `SchemaOutdated` instead. A SQLite file that is missing is still created: callers can see for themselves whether
        it exists. Storages without tables ignore this."""

    @abstractmethod
    def now(self) -> int:
        """The storage's clock: microseconds since 1970."""

    def approximate_now(self) -> int:
        """About what `now` would return, by the clock of this machine. No request."""
        return clock.now()

    @abstractmethod
    def health(self) -> Health:
        """Latency, size, connections, contention, and what an operator should know."""

    def measured(self) -> list[OperationSums]:
        """How long the calls of this process took, as far as it measures that. No request."""
        return []

    def connections(self) -> tuple[int, int]:
        """How many connections this process has open, and how many of them are in use. No request."""
        return 0, 0

    def pending_migrations(self) -> list[Migration]:
        """What `migrate` would do, in order. Changes nothing."""
        return []

    def migrate(self) -> list[str]:
        """Bring the tables up to date. Return the names of the migrations that were applied. Safe from many hosts at
        the same time; programs of the version before continue to work."""
        return []

    # --- jobs -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Store new jobs, all or none, in their order; wake a worker.

        A job whose id is stored already is `kept`, so repeating a call adds nothing. Nor does repeating a call that
        has replaced the call of another job: it returns the same answer, whatever has become of that job. Such a call
        is remembered as long as events are (`prune`).
        A job whose unique key another job holds is `kept` or `replaced`, as its lock says. `reject` raises `NotUnique`,
        and an unknown subscriber raises `ClientNotFound`; then none of the batch is stored. Tasks and queues become
        known here."""

    def enqueue_within(self, connection: object, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """`enqueue` as a part of the caller's own transaction on the same database: the jobs exist if and when that
        commits. Raises `BadValue` for a connection that the storage cannot use."""
        raise BadValue(
            f"this storage cannot enqueue by {type(connection).__name__}: it is not in that database",
            hint="enqueue without connection= once your transaction is committed",
        )

    def can_be_read_beside(self, connection: object) -> bool:
        """Return whether this storage can be read while the transaction of this connection is open. False: its tables
        do not exist yet, and until that transaction ends only `enqueue_within` can create them."""
        return True

    def get(self, job_id: str) -> Job | None:
        """The job, or None."""
        found = self.get_many([job_id])
        return found[0] if found else None

    @abstractmethod
    def get_many(self, job_ids: Sequence[str]) -> list[Job]:
        """The jobs that exist among these, in the order of the ids."""

    @abstractmethod
    def find(self, where: Filter, *, cursor: str | None = None, limit: int = 50) -> Page:
        """Jobs that fit, one page. Queued jobs by rank, then age; scheduled and retrying ones by when they are due;
        finished ones by the latest; any other mixture by the newest. One call looks at a bounded number of jobs."""

    def find_by_id(self, part: str, *, cursor: str | None = None, limit: int = 50) -> Page:
        """Jobs whose id begins or ends with this text; at most `limit` of those that begin with it. One call looks at a
        bounded number of ids, so `next` may be set although `jobs` is empty. Storages that can search ids alone
        override this: that is much faster."""
        page = self.find(Filter(text=part), cursor=cursor, limit=limit)
        return Page([job for job in page.jobs if job.id.startswith(part) or job.id.endswith(part)], page.next)

    @abstractmethod
    def count(self, where: Filter, *, cap: int = 10_000) -> Count:
        """How many jobs fit: exact by state, queue and task; otherwise counted up to `cap`."""

    @abstractmethod
    def tallies(self) -> list[Tally]:
        """Exact numbers of jobs by queue, task and state, without counting them."""

    @abstractmethod
    def queues(self) -> list[QueueInfo]:
        """Every queue that was ever enqueued to, paused or announced."""

    @abstractmethod
    def tasks(self) -> list[TaskInfo]:
        """Every task that was ever enqueued or announced."""

    @abstractmethod
    def announce(self, tasks: Sequence[TaskInfo], *, order: str | None = None) -> None:
        """Store which tasks a worker knows. `order` sets for all workers of this storage how they serve queues of one
        rank: by `turns`, or by the age of their jobs (`created`). None leaves it as it is; `poll` returns it."""

    # --- attempts: every call has a token or an owner -----------------------------------------------------------------

    @abstractmethod
    def reserve(self, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        """Take up to `limit` queued jobs of these queues for one worker; `queues` maps each to its weight.

        Promotes due jobs and aborts expired ones first. Order: lowest rank first; within a rank, queues take turns by
        weight; within a queue, first in, first out. A paused queue gives only forced jobs. The fence of each job rises,
        and it belongs to `owner` alone until it is finished, released or rescued. Raises `WorkerNotFound` when the
        owner has not joined or was removed."""

    @abstractmethod
    def start(self, tokens: Sequence[Token], agos: Sequence[int] = ()) -> list[Verdict]:
        """Mark reserved jobs as running, before they run or later. `agos` says how long ago each began: `started_at`
        and the event have that time, but never a time before the job was queued. Counts the attempt."""

    @abstractmethod
    def finish(self, outcomes: Sequence[Outcome]) -> list[Verdict]:
        """Store outcomes: the new state, the event, the counts for charts. A stale outcome changes nothing and does not
        affect the others. A job that was never marked as running is marked on the way. The job keeps how long the
        attempt ran, as its worker measured it."""

    @abstractmethod
    def release(self, tokens: Sequence[Token], why: str) -> list[Verdict]:
        """Hand jobs back unharmed: queued again with their rank, nothing counted."""

    @abstractmethod
    def check_in(self, checkins: Sequence[CheckIn]) -> list[CheckInAnswer]:
        """Store signs of life of jobs, with progress and message; also as log lines, unless they are in the log
        already. Return for each whether the job should stop."""

    @abstractmethod
    def append_log(self, token: Token, lines: Sequence[LogLine], *, keep: int = 1_000) -> Verdict:
        """Add lines to a job's log, also shortly after its attempt ended. Each line has its own time (`ago`) and
        attempt; by default the present one. Above `keep` lines the oldest are dropped, and the first says how many.
        Without lines nothing changes."""

    def finish_and_reserve(
        self, outcomes: Sequence[Outcome], owner: str, queues: Mapping[str, int], limit: int
    ) -> tuple[list[Verdict], list[Job]]:
        """`finish`, then `reserve`; storages that can do both in one round trip override this."""
        return self.finish(outcomes), self.reserve(owner, queues, limit)

    supports_threaded_wait = False
    """Whether any thread may call `wait_and_reserve`, also the one that runs the job."""

    def wait_and_reserve(self, owner: str, queues: Mapping[str, int], limit: int, timeout: float) -> list[Job]:
        """`wait`, then `reserve`, for a worker that is idle; storages that can do both in one round trip override this.
        An `interrupt` ends the wait; jobs that were reserved nevertheless are returned."""
        self.wait(timeout, list(queues))
        return self.reserve(owner, named_queues(queues), limit)

    # --- operators; `by` is the person --------------------------------------------------------------------------------
    # A job whose state does not allow the operation is left alone: its result has `changed` False and its state. `seen`
    # has the version of each job that the operator saw: a job that has changed since is left alone too, as `stale`.

    @abstractmethod
    def abort(
        self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[JobVersion] = ()
    ) -> list[ActionResult]:
        """Waiting jobs become aborted. Held jobs are asked to stop (see `heartbeat`), and end as aborted unless they
        complete first."""

    @abstractmethod
    def force_start(
        self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[JobVersion] = ()
    ) -> list[ActionResult]:
        """Waiting jobs go next, before any delay, retry wait, or pause of their queue."""

    @abstractmethod
    def set_priority(
        self, job_ids: Sequence[str], priority: int, *, by: str | None = None, seen: Sequence[JobVersion] = ()
    ) -> list[ActionResult]:
        """Waiting jobs move in line immediately; held ones when they are queued again."""

    @abstractmethod
    def retry(
        self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[JobVersion] = ()
    ) -> list[ActionResult]:
        """Dead and aborted jobs are queued with all their attempts again; retrying ones are queued now."""

    @abstractmethod
    def delete(
        self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[JobVersion] = ()
    ) -> list[ActionResult]:
        """Delete waiting and finished jobs with their log lines; their events stay."""

    @abstractmethod
    def set_queue(
        self,
        job_ids: Sequence[str],
        queue: str,
        *,
        by: str | None = None,
        seen: Sequence[JobVersion] = (),
        options: Mapping[str, Any] | None = None,
    ) -> list[ActionResult]:
        """Move jobs that are not held to another queue, which becomes known. Queued ones stand there by their rank and
        age. A job that is in that queue already is left alone. `options` are new values of what `job.SETTLED_LATER`
        names: a job whose task was unknown when it was enqueued gets them from its task."""

    @abstractmethod
    def pause(self, queue: str, *, by: str | None = None, why: str | None = None, duration: int | None = None) -> bool:
        """Reserve only forced jobs from this queue, until `resume`. With `duration` a foreman resumes it in time. A
        pause without an end replaces one that has an end, and any pause replaces one that is over. False: the queue was
        paused already and stays as it was."""

    @abstractmethod
    def resume(self, queue: str, *, by: str | None = None, over: bool = False) -> bool:
        """Undo `pause` and wake a worker. `over` undoes only a pause whose time is over, so that every foreman may try.
        False: the queue was not paused, or its time is not over."""

    # --- maintenance: any number of processes may call these at the same time -----------------------------------------

    @abstractmethod
    def promote(self, *, limit: int = 500) -> int:
        """Queue scheduled and retrying jobs that are due; wake workers. Return how many."""

    def next_due(self) -> int | None:
        """Microseconds until the next scheduled or retrying job is due (0 when one is due now). None: there is none, or
        the storage is closed and cannot promote it."""
        return self.poll("", []).due_in

    @abstractmethod
    def expire(self, *, limit: int = 500) -> int:
        """Abort jobs that waited or lived too long; held ones are asked to stop. Return how many."""

    @abstractmethod
    def rescue(
        self, *, lease: int, why: str, recovered: bool = False, limit: int = 500, at: int | None = None
    ) -> list[Rescued]:
        """Take back the jobs of workers that have not beaten for `lease`, are unknown, or have beaten in the future. A
        longer lease in the `info` of the worker (`lease_s`, in seconds) counts instead.

        Silence is counted up to `at`: a time at which the caller made sure that the storage's clock can be trusted; by
        default the time of the call.

        Workers that hold nothing any more are removed, with the event `died`. Only jobs that had begun count a halt; at
        `max_halts` they are dead."""

    @abstractmethod
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
        """Take back the jobs of one worker immediately, because its foreman saw it die. `foreman` is the id of that
        foreman, or of the worker itself; if it is neither and the worker has beaten within its lease, `WorkerExists` is
        raised. `ran` names the jobs that had begun although the storage does not know it. Removes the worker when it
        holds nothing any more."""

    @abstractmethod
    def prune(self, keep: Retention, *, limit: int = 1_000, at: int | None = None) -> Pruned:
        """Remove finished jobs, events and silent clients that are older than their retention. Persistent jobs, jobs
        with subscribers, jobs that hold a unique key, and the newest event stay. Age is counted up to `at`, as in
        `rescue`."""

    @abstractmethod
    def roll_up(self) -> None:
        """Fold the minutes of the charts into hours and the hours into days, once they are old enough."""

    # --- schedules --------------------------------------------------------------------------------------------------

    @abstractmethod
    def put_schedules(self, schedules: Sequence[ScheduleInfo]) -> None:
        """Store schedules by name. One whose cron text and zone are unchanged keeps its next slot and its pause."""

    @abstractmethod
    def schedules(self) -> list[ScheduleInfo]:
        """All schedules, the next one first."""

    @abstractmethod
    def tick(
        self, name: str, slot: int, next_at: int, jobs: Sequence[NewJob], ticks: Sequence[Tick]
    ) -> list[Enqueued] | None:
        """Move a schedule from `slot` to `next_at`, enqueue its jobs and record the ticks; but only if the schedule
        still stands at `slot`, which is due, and is not paused. None: another foreman was first. Jobs that their unique
        key refuses are skipped, and the ticks say so."""

    @abstractmethod
    def ticks(self, name: str, *, limit: int = 50) -> list[Tick]:
        """The latest ticks of a schedule, the newest first."""

    @abstractmethod
    def pause_schedule(self, name: str, paused: bool, *, by: str | None = None) -> bool:
        """Stop or restart a schedule. False: unknown, or nothing to change."""

    @abstractmethod
    def record_operator_event(
        self, name: str, kind: Kind, *, job: str | None = None, slot: int | None = None, by: str | None = None
    ) -> None:
        """Record what an operator did with a schedule: `run_now` names the job, `skipped` the slot that is left out.
        With `signed_out`, `name` is a web session that is over: every web server of this storage reads that."""

    @abstractmethod
    def remove_schedule(self, name: str, *, by: str | None = None) -> bool:
        """Delete a schedule; its jobs stay. False: unknown."""

    # --- workers and clients ----------------------------------------------------------------------------------------

    @abstractmethod
    def join(self, worker: WorkerInfo, *, lease: int = USUAL_LEASE) -> None:
        """A worker or a foreman starts. Its id is new for every process. If a living process has the id, `WorkerExists`
        is raised; if that process has been silent for `lease`, its jobs are taken back first, as by `rescue_owner`.
        Repeating the call is harmless if `start` in its `info` says that it is the same process. The first worker with
        a new version of the code records the event `deployed` of its foreman."""

    @abstractmethod
    def heartbeat(self, reports: Mapping[str, Mapping[str, Any]]) -> HeartbeatReply:
        """One heartbeat for many owners, a foreman and its workers: stores their reports, records no event. Returns
        which owners are unknown, because they were removed, and which of their jobs should stop."""

    @abstractmethod
    def abort_requests(self, owners: Sequence[str]) -> list[AbortRequest]:
        """Which held jobs of these owners should stop. A read, cheap enough for every second."""

    @abstractmethod
    def poll(self, foreman: str, owners: Sequence[str], *, after: int = 0) -> PollResult:
        """What a foreman with these workers has to do, and when; one small read for every second. `after` is an event:
        the foreman has read all orders up to it. The later it is, the less there is to search."""

    @abstractmethod
    def leave(self, owner: str, *, why: str = "stopped", ran: Collection[str] = ()) -> None:
        """An orderly end: release what the worker still holds and remove it, with the event `killed`. `ran` names the
        jobs that had begun although the storage does not know it."""

    @abstractmethod
    def record_stat(self, owner: str, report: Mapping[str, Any]) -> None:
        """Record what a worker has done so far, as an event; every few minutes, and at its end."""

    @abstractmethod
    def order(self, owner: str, order: ForemanOrder, *, by: str | None = None) -> bool:
        """Record an operator's order to a foreman, as the event `ordered`, which the foreman polls. Repeating it is
        harmless. False: the foreman is unknown."""

    @abstractmethod
    def workers(self) -> list[WorkerInfo]:
        """Every worker and foreman, in one read."""

    @abstractmethod
    def join_client(self, client: ClientInfo) -> None:
        """A client makes itself known, or shows that it is alive."""

    @abstractmethod
    def leave_client(self, client_id: str) -> bool:
        """A client leaves, with its subscriptions. False: unknown."""

    @abstractmethod
    def clients(self) -> list[ClientInfo]:
        """Every client."""

    @abstractmethod
    def subscribe(self, client_id: str, job_ids: Sequence[str]) -> int:
        """The client wants the outcomes of these jobs; they are kept until it has acknowledged them. Return how many of
        the jobs exist. Raises `ClientNotFound`."""

    @abstractmethod
    def subscribers(self, job_id: str) -> list[str]:
        """The clients that still want the outcome of this job."""

    @abstractmethod
    def outcomes_for(self, client_id: str, *, limit: int = 100) -> list[Job]:
        """The finished jobs whose outcomes this client wants and has not acknowledged, the oldest first."""

    @abstractmethod
    def acknowledge(self, client_id: str, job_ids: Sequence[str]) -> int:
        """The client has handled these outcomes. A job without another subscriber is deleted, unless it is persistent.
        Return how many of the jobs were finished and its own."""

    # --- history ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def events(self, where: EventFilter, *, limit: int = 100, newest_first: bool = False) -> list[Event]:
        """Events that fit, by rising id, or by falling id."""

    @abstractmethod
    def log_lines(self, job_id: str, *, after: int = 0, limit: int = 1_000) -> list[LogLine]:
        """A job's log, by rising id."""

    @abstractmethod
    def failures(self, *, limit: int = 50, span: Span | None = None) -> list[FailureGroup]:
        """Failures grouped by cause, the latest first; with `span`, how many of each there were over that time."""

    @abstractmethod
    def silence_failure(
        self, cause: str, duration: int | None, *, version: str | None = None, by: str | None = None
    ) -> bool:
        """Silence the failures of this cause for `duration`: they are counted but shown apart. With `version` the
        silence ends with the first failure of another version of the code. With neither, show them again. An event says
        who did it. False: no failure has this cause."""

    @abstractmethod
    def series(self, span: Span, *, queue: str | None = None, task: str | None = None) -> list[Point]:
        """What happened over time, for charts."""

    @abstractmethod
    def totals(self) -> dict[str, int]:
        """The same counts over all time."""

    # --- copying to another storage: used by `copy_store.py` ----------------------------------------------------------
    # A storage with a mark is closed: it refuses what people ask for (`StorageClosed`) and has nothing to do for
    # workers and chores; see `transfer.py`. Reads are always answered.

    @abstractmethod
    def move(self) -> Move | None:
        """The mark of this storage, if it has one."""

    @abstractmethod
    def set_move(self, move: Move | None, *, expected: Move | None) -> bool:
        """Set or remove the mark. False: the present mark is not the expected one, and nothing was changed. When this
        returns, no call that the mark forbids is still running."""

    @abstractmethod
    def dump(self, section: Section, *, cursor: str | None = None, limit: int = BATCH) -> Dumped:
        """One page of the rows of a section, as long as nothing changes; events by rising id. Numbers and times are as
        they are stored."""

    @abstractmethod
    def load(self, section: Section, rows: Sequence[Any], move: Move, *, expected: Move) -> bool:
        """Store rows that another storage has dumped, with their numbers and times, without new events or counts, and
        replace the expected mark by `move`, in one step. False: the present mark is not the expected one, because these
        rows are stored already or another process was faster; nothing was changed."""

    # --- wake-up: a hint that saves latency; polling alone is always enough -------------------------------------------

    @abstractmethod
    def wait(self, timeout: float, queues: Sequence[str] = ()) -> bool:
        """Wait until there may be new work, or for `timeout` seconds; return whether it was woken. `queues` are those
        whose jobs should wake it, as for `reserve`, and perhaps `OTHER_QUEUES`; none means all. One enqueue wakes one
        waiter of those that named its queue, not all. May wake without need. Many threads may wait at the same time,
        for different queues; `interrupt` in another thread wakes them too."""

    @abstractmethod
    def interrupt(self) -> None:
        """Wake all threads of this process that wait or are about to: there is something else to do."""
