"""The storage contract: everything that can be done with stored jobs, and what each call guarantees.

Rules that hold for every storage:

1. A call is one atomic step. Whoever is killed in the middle of it leaves the state before or after, never between.
2. A change of state and its event are one write. Nobody else writes events, so history cannot disagree with state.
3. A worker's write carries its token (job, owner, fence). If the job has changed hands, nothing is changed, and the
   worker is told so. Repeating a call whose answer was lost is harmless: an outcome that was taken is answered
   `repeated`, a job that was handed back, `stale`.
4. Time is the storage's clock. Callers send durations; tests may hand a storage its own `now`.
5. What is common to all storages is done once, above (`app/`) or beside (`changes.py`): encoding, checking what
   users wrote, deciding what an outcome does to a job. What is written is checked here, before each call (`checks.py`):
   a value that breaks a rule is a BadValue, and nothing is stored. A stored record that cannot be right ends no call:
   it is answered as a `BrokenJob`, and no worker is handed one (`broken_records.py`).
6. Calls are plain and synchronous, and safe from many threads at once. Lists may hold up to `BATCH` items.

Errors: `StorageUnavailable` and its kin when the storage cannot answer; then nothing was changed, or the caller cannot
know and repeats the call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from packhorse.core import clock
from packhorse.core.errors import BadValue
from packhorse.core.event import Event, ForemanOrder, Kind
from packhorse.core.job import Job, NewJob, Token
from packhorse.core.outcome import Outcome, Verdict
from packhorse.storage.broken_records import ANSWERS, looked_through
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
"""Among the queues that `wait` and `wait_and_reserve` are told, this stands for those that nobody who sleeps has
named: a job that comes into such a queue for the first time in a while wakes all who said so, to see whether it is for
them."""


def named_queues(queues: Mapping[str, int]) -> Mapping[str, int]:
    """These queues without the mark for others."""
    if OTHER_QUEUES not in queues:
        return queues
    return {name: weight for name, weight in queues.items() if name != OTHER_QUEUES}


class Storage(ABC):
    """Where jobs live. Open one with `packhorse.storage.open_storage(url)`."""

    def __init_subclass__(cls, **words: Any) -> None:
        """Whatever a storage writes is checked before, and the jobs that it answers with are looked at, by the same
        rules on all of them: `checks.py`, `broken_records.py`."""
        super().__init_subclass__(**words)
        for name, call in list(vars(cls).items()):
            if (name in WRITES or name in ANSWERS) and not getattr(call, "__isabstractmethod__", False):
                seen = looked_through(name, call) if name in ANSWERS else call
                setattr(cls, name, checked(name, seen, getattr(Storage, name)) if name in WRITES else seen)

    event_stride = 1
    """By how much the ids of events rise from one to the next, where they are not of one batch."""

    # --- life -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def close(self) -> None:
        """Let go of files and connections. Calling it twice is harmless; the storage opens again when used."""

    def require_existing(self) -> None:  # noqa: B027 - most storages have nothing to make
        """From now on tables that are missing are not made: every call but `migrate` raises `StorageNotFound`. For
        those who only look. Whether there is a SQLite file the caller can see, so one is made as ever; but an older one
        is not changed: then it is `SchemaOutdated`. Storages without tables take no notice."""

    @abstractmethod
    def now(self) -> int:
        """The storage's clock: microseconds since 1970."""

    def approximate_now(self) -> int:
        """About what `now` would answer, without asking anybody: by the clock of this machine."""
        return clock.now()

    @abstractmethod
    def health(self) -> Health:
        """How the storage is: latency, size, connections, contention, and what an operator should know."""

    def measured(self) -> list[OperationSums]:
        """How the calls of this process went, as far as it has measured that. Asks nobody."""
        return []

    def connections(self) -> tuple[int, int]:
        """How many connections to the storage this process has open, and how many of them are in use. Asks nobody."""
        return 0, 0

    def pending_migrations(self) -> list[Migration]:
        """What `migrate` would do, in order. Looks only; nothing is changed or made."""
        return []

    def migrate(self) -> list[str]:
        """Bring the storage's tables up to date. Answers the names of the migrations that were applied. Safe from many
        hosts at once; programs of the version before go on working meanwhile."""
        return []

    # --- in and out -----------------------------------------------------------------------------------------------

    @abstractmethod
    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Store new jobs, all or none, in their order; wake a worker.

        An id that is stored already is left alone and answered `kept`, so repeating a lost call adds nothing; nor does
        repeating one that has replaced another job's call, whatever became of that job and of its unique key since; it
        is answered as it was. Such a call is remembered until `prune`, for as long as events are kept.
        A job with a unique key that another holds is `kept` or `replaced` as its lock says; `reject` raises
        `NotUnique` and stores none of the batch; so does a subscriber that is unknown (`ClientNotFound`). Names of
        tasks and queues become known here.
        """

    def enqueue_within(self, connection: object, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """`enqueue` as a part of the caller's own transaction on the same database: the jobs are there if and when it
        commits, and vanish with it. Raises BadValue for a connection that the storage cannot use."""
        raise BadValue(
            f"this storage cannot enqueue by {type(connection).__name__}: it is not in that database",
            hint="enqueue without connection= once your transaction is committed",
        )

    def can_be_read_beside(self, connection: object) -> bool:
        """Whether anything can be read here while the transaction of this connection is open. False: its tables are
        still to be made, and nobody can make them before that ends but by `enqueue_within`."""
        return True

    @abstractmethod
    def get(self, job_id: str) -> Job | None:
        """The job, or None."""

    @abstractmethod
    def get_many(self, job_ids: Sequence[str]) -> list[Job]:
        """The jobs that exist among these, in the order asked."""

    @abstractmethod
    def find(self, where: Filter, *, cursor: str | None = None, limit: int = 50) -> Page:
        """Jobs that fit, a page at a time. Queued ones by rank, then age, scheduled and retrying ones by when they are
        due, finished ones by the latest, any other mixture by the newest. One call looks at a bounded number of jobs.
        """

    def find_by_id(self, part: str, *, cursor: str | None = None, limit: int = 50) -> Page:
        """Jobs whose id begins or ends with this, letter by letter; of those that begin so, at most `limit`.
        One call looks at a bounded number of ids, so `next` may be set although `jobs` is empty. A storage that can
        tell from its ids alone does so: that is much faster than this."""
        page = self.find(Filter(text=part), cursor=cursor, limit=limit)
        return Page([job for job in page.jobs if job.id.startswith(part) or job.id.endswith(part)], page.next)

    @abstractmethod
    def count(self, where: Filter, *, cap: int = 10_000) -> Count:
        """How many jobs fit: exact by state, queue and task, else counted up to `cap`."""

    @abstractmethod
    def tallies(self) -> list[Tally]:
        """Exact numbers of jobs by queue, task and state, without counting them."""

    @abstractmethod
    def queues(self) -> list[QueueInfo]:
        """Every queue that was ever enqueued to, paused, or announced."""

    @abstractmethod
    def tasks(self) -> list[TaskInfo]:
        """Every task name that was ever enqueued or announced."""

    @abstractmethod
    def announce(self, tasks: Sequence[TaskInfo], *, order: str | None = None) -> None:
        """A worker says which tasks it knows. `order` sets for all workers of this storage how queues of one rank are
        served: by `turns`, or by the age of their jobs (`created`). None leaves that alone; `poll` answers it."""

    # --- working: every call carries a token or an owner ------------------------------------------------------------

    @abstractmethod
    def reserve(self, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        """Take up to `limit` waiting jobs of these queues for one worker; `queues` gives each its weight.

        Promotes due jobs and aborts expired ones first. Order: lowest rank; within a rank turns by weight; within a
        queue first in, first out. Paused queues give only forced jobs. Each job's fence rises; it belongs to `owner`
        alone until finished, released or rescued. Raises `WorkerNotFound` when the owner has not joined or was struck
        off.
        """

    @abstractmethod
    def start(self, tokens: Sequence[Token], agos: Sequence[int] = ()) -> list[Verdict]:
        """Mark reserved jobs as running, before they run, or later: `agos` says how long ago each began, and that is
        what `started_at` and the event tell, but never a moment before the job came into line. Counts the attempt."""

    @abstractmethod
    def finish(self, outcomes: Sequence[Outcome]) -> list[Verdict]:
        """Write outcomes down: the new state, the event, the counts for charts. A stale one among them changes
        nothing and harms none of the others. A job that was never marked as running is marked on the way. How long the
        attempt ran, as its worker measured it, stays with the job: it ran that long from `started_at` on."""

    @abstractmethod
    def release(self, tokens: Sequence[Token], why: str) -> list[Verdict]:
        """Hand jobs back unharmed: in line again with their rank, nothing counted."""

    @abstractmethod
    def check_in(self, checkins: Sequence[CheckIn]) -> list[CheckInAnswer]:
        """A job's sign of life, with progress and message; also kept as log lines, unless it says that they are in the
        log already. Tells whether it should stop."""

    @abstractmethod
    def append_log(self, token: Token, lines: Sequence[LogLine], *, keep: int = 1_000) -> Verdict:
        """Add lines to a job's log, also just after its attempt ended. Each has the time at which it was said, so long
        `ago`, and the attempt that its worker names, or else the present one. Above `keep` lines the oldest go, and the
        first says how many have gone so far. Without lines nothing changes, whatever `keep` says."""

    def finish_and_reserve(
        self, outcomes: Sequence[Outcome], owner: str, queues: Mapping[str, int], limit: int
    ) -> tuple[list[Verdict], list[Job]]:
        """`finish`, then `reserve`; storages that can do both in one round trip do."""
        return self.finish(outcomes), self.reserve(owner, queues, limit)

    supports_threaded_wait = False
    """Whether it is all the same which thread calls `wait_and_reserve`: then that may be the one that runs the job."""

    def wait_and_reserve(self, owner: str, queues: Mapping[str, int], limit: int, timeout: float) -> list[Job]:
        """`wait`, then `reserve`, for a worker that has nothing to do; storages that can do both in one round trip do.
        An `interrupt` ends the wait; what was reserved all the same is answered."""
        self.wait(timeout, list(queues))
        return self.reserve(owner, named_queues(queues), limit)

    # --- steering: what operators do; `by` is who ---------------------------------------------------------------------
    # A job whose state does not allow the step is left alone; its answer has `changed` False and the state it is in.
    # `seen` says of each of them how it was when it was chosen: one to which something has happened since is left alone
    # too, and answered `stale`. Without it, what is asked for is done whatever has happened.

    @abstractmethod
    def abort(
        self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[JobVersion] = ()
    ) -> list[ActionResult]:
        """Waiting jobs become aborted; held ones are asked to stop (see `heartbeat`) and end as aborted unless they
        complete first."""

    @abstractmethod
    def force_start(
        self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[JobVersion] = ()
    ) -> list[ActionResult]:
        """Waiting jobs go next, whatever their delay, retry wait, or a pause of their queue."""

    @abstractmethod
    def set_priority(
        self, job_ids: Sequence[str], priority: int, *, by: str | None = None, seen: Sequence[JobVersion] = ()
    ) -> list[ActionResult]:
        """Waiting jobs move in line at once; of held ones it counts when they come in line again."""

    @abstractmethod
    def retry(
        self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[JobVersion] = ()
    ) -> list[ActionResult]:
        """Dead and aborted jobs are queued with all their tries again; retrying ones are queued now."""

    @abstractmethod
    def delete(
        self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[JobVersion] = ()
    ) -> list[ActionResult]:
        """Waiting and finished jobs go for good, with their log lines; their events stay."""

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
        """Jobs that nobody holds and that may still run go to another queue, which becomes known here; those in line
        stand there at once, by their rank and age. A job that is in it already is left alone.
        `options` are other values of what `job.SETTLED_LATER` names, to be set in the same step: a job whose task was
        not known when it was enqueued gets them from its task."""

    @abstractmethod
    def pause(self, queue: str, *, by: str | None = None, why: str | None = None, duration: int | None = None) -> bool:
        """Nothing but forced jobs is reserved from this queue until `resume`, which a foreman calls when `duration` is
        over. A pause that has no end takes the place of one that has, and any takes that of one whose time is over.
        False: it was paused already, and stays as it was."""

    @abstractmethod
    def resume(self, queue: str, *, by: str | None = None, over: bool = False) -> bool:
        """Undo `pause` and wake a worker. With `over` only a pause whose time is over is undone, so that everybody may
        try at once. False: it was not paused, or its time is not over."""

    # --- upkeep: safe to run from every process at once ---------------------------------------------------------------

    @abstractmethod
    def promote(self, *, limit: int = 500) -> int:
        """Queue the scheduled and retrying jobs that are due; wake workers. Answers how many."""

    @abstractmethod
    def next_due(self) -> int | None:
        """Microseconds until the next scheduled or retrying job is due (0 when one is already), or None; also None
        when one is due that cannot be queued, because the storage is moved."""

    @abstractmethod
    def expire(self, *, limit: int = 500) -> int:
        """Abort jobs that waited or lived too long; held ones are asked to stop. Answers how many."""

    @abstractmethod
    def rescue(
        self, *, lease: int, why: str, recovered: bool = False, limit: int = 500, at: int | None = None
    ) -> list[Rescued]:
        """Take back the jobs of workers that have not beaten for `lease`, or are unknown, or beat in the future. A
        worker whose record says in its `info` that its own lease is longer (`lease_s`, in seconds) has that.

        Silence is counted up to `at`: the storage's time when the caller made sure that its clock can be believed;
        None: the time of the call. A clock that is set after that makes nobody silent.

        Workers that hold nothing any more are struck off, with the event `died`. Only jobs that had begun count a
        halt; at `max_halts` they are dead.
        """

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
        """Take back one worker's jobs at once, because its foreman saw it die. `foreman` is the id of that foreman, or
        of the worker itself; raises `WorkerExists` if it is neither and the worker has beaten within its lease. `ran`
        names the jobs that had begun although the storage was not told. Strikes the worker off when it holds nothing
        any more."""

    @abstractmethod
    def prune(self, keep: Retention, *, limit: int = 1_000, at: int | None = None) -> Pruned:
        """Remove finished jobs, events and silent clients that are older than their retention. Persistent jobs,
        jobs with subscribers, holders of a unique key whose period still runs, and the newest event stay. Age is
        counted up to `at`, as silence is by `rescue`."""

    @abstractmethod
    def roll_up(self) -> None:
        """Fold the minutes of the charts into hours and the hours into days, once they are old enough."""

    # --- schedules --------------------------------------------------------------------------------------------------

    @abstractmethod
    def put_schedules(self, schedules: Sequence[ScheduleInfo]) -> None:
        """Write schedules by name. One whose cron text and zone are unchanged keeps its next slot and its pause."""

    @abstractmethod
    def schedules(self) -> list[ScheduleInfo]:
        """All schedules, the next one first."""

    @abstractmethod
    def tick(
        self, name: str, slot: int, next_at: int, jobs: Sequence[NewJob], ticks: Sequence[Tick]
    ) -> list[Enqueued] | None:
        """Turn a schedule from `slot` to `next_at`, enqueue its jobs and record the ticks, if the schedule still
        stands at `slot`, which is due, and is not paused. None: somebody else was first. Jobs that their unique
        key refuses are skipped, and the ticks say so."""

    @abstractmethod
    def ticks(self, name: str, *, limit: int = 50) -> list[Tick]:
        """The latest ticks of a schedule, the newest first."""

    @abstractmethod
    def pause_schedule(self, name: str, paused: bool, *, by: str | None = None) -> bool:
        """Stop or restart a schedule. False: unknown, or it was so already."""

    @abstractmethod
    def record_operator_event(
        self, name: str, kind: Kind, *, job: str | None = None, slot: int | None = None, by: str | None = None
    ) -> None:
        """Write down, as an event and nothing else, what an operator did with a schedule: `run_now` names the job that
        came of it, `skipped` the slot that is left out. With `signed_out`, `name` is that of a session of the web that
        is over: every web server of this storage reads it."""

    @abstractmethod
    def remove_schedule(self, name: str, *, by: str | None = None) -> bool:
        """Forget a schedule; the jobs that it made stay. False: unknown."""

    # --- workers and clients ----------------------------------------------------------------------------------------

    @abstractmethod
    def join(self, worker: WorkerInfo, *, lease: int = USUAL_LEASE) -> None:
        """A worker or a foreman begins. Its id should be new for every process start. Under an id whose holder lives,
        `WorkerExists` is raised; from a holder that has been silent for `lease` all jobs are taken back first, as by
        `rescue_owner`. Repeating the call does no harm if the `info` says by `start` that it is the same process.
        A worker whose version of the code no other has is told of by an event `deployed` of its foreman."""

    @abstractmethod
    def heartbeat(self, reports: Mapping[str, Mapping[str, Any]]) -> HeartbeatReply:
        """One heartbeat for many owners (a foreman's whole crew and itself): overwrites their records, never an
        event. A struck-off owner is not revived but answered as unknown. Tells which of their jobs should stop."""

    @abstractmethod
    def abort_requests(self, owners: Sequence[str]) -> list[AbortRequest]:
        """Which held jobs of these owners should stop; a read, cheap enough to ask every second."""

    @abstractmethod
    def poll(self, foreman: str, owners: Sequence[str], *, after: int = 0) -> PollResult:
        """What lies ahead for a foreman whose crew are these owners; one small read, made every second. `after` is an
        event behind which all orders lie that it has not heard: the later, the less there is to look through."""

    @abstractmethod
    def leave(self, owner: str, *, why: str = "stopped", ran: Collection[str] = ()) -> None:
        """An ordered end: whatever it still holds is released, and its record goes, with the event `killed`. `ran`
        names the jobs that had begun although the storage was not told."""

    @abstractmethod
    def record_stat(self, owner: str, report: Mapping[str, Any]) -> None:
        """Write what a worker has done so far as an event; every few minutes, and at its end."""

    @abstractmethod
    def order(self, owner: str, order: ForemanOrder, *, by: str | None = None) -> bool:
        """An operator wants something of a foreman. It is kept as the event `ordered`, for which the foreman looks.
        Repeating it is harmless. False: the storage does not know this foreman, or no longer."""

    @abstractmethod
    def workers(self) -> list[WorkerInfo]:
        """Every worker and foreman, in one read."""

    @abstractmethod
    def join_client(self, client: ClientInfo) -> None:
        """A client makes itself known, or shows that it lives."""

    @abstractmethod
    def leave_client(self, client_id: str) -> bool:
        """A client goes, with its subscriptions. False: unknown."""

    @abstractmethod
    def clients(self) -> list[ClientInfo]:
        """Every client."""

    @abstractmethod
    def subscribe(self, client_id: str, job_ids: Sequence[str]) -> int:
        """The client wants the outcomes of these jobs; they are kept until it has acknowledged. Answers how many of
        them exist. Raises `ClientNotFound`."""

    @abstractmethod
    def subscribers(self, job_id: str) -> list[str]:
        """The clients that still hold this job."""

    @abstractmethod
    def outcomes_for(self, client_id: str, *, limit: int = 100) -> list[Job]:
        """The finished jobs that this client has subscribed to and not acknowledged, the oldest first."""

    @abstractmethod
    def acknowledge(self, client_id: str, job_ids: Sequence[str]) -> int:
        """The client has handled these outcomes. A job whose last subscriber this was goes, unless persistent.
        Answers how many were its own and finished."""

    # --- records ----------------------------------------------------------------------------------------------------

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
        """Somebody knows of these failures: for so long they are shown apart, but counted; with `version` only until
        one of another version of the code comes, and without an end if `duration` is None. Neither: they are to be
        shown again. An event says who wanted it, unless they were shown before. False: no failure has this cause."""

    @abstractmethod
    def series(self, span: Span, *, queue: str | None = None, task: str | None = None) -> list[Point]:
        """What happened over time, for charts."""

    @abstractmethod
    def totals(self) -> dict[str, int]:
        """The same counts since ever."""

    # --- moving to another storage: what `copy_store.py` does it with -------------------------------------------------
    # A storage that bears a mark refuses what people ask for (`StorageClosed`) and has nothing to do for workers and
    # chores; `transfer.py` says which calls go on at which stage. Reading is always answered.

    @abstractmethod
    def move(self) -> Move | None:
        """The mark of a move, if this storage bears one."""

    @abstractmethod
    def set_move(self, move: Move | None, *, expected: Move | None) -> bool:
        """Put a mark on this storage, or take it away. False: it does not bear the expected one, and nothing was
        changed. When this has answered, no call that the mark forbids is still under way."""

    @abstractmethod
    def dump(self, section: Section, *, cursor: str | None = None, limit: int = BATCH) -> Dumped:
        """The rows of a section, about so many at a time, as long as nothing changes; events by rising id. Numbers and
        times are as they are stored."""

    @abstractmethod
    def load(self, section: Section, rows: Sequence[Any], move: Move, *, expected: Move) -> bool:
        """Store rows that another storage has dumped, with their numbers and times, without events or counts of their
        own, and put the mark `move` in the place of the expected one, in one step. False: this storage does not bear
        the expected mark, because these rows are stored already or somebody else was quicker; nothing was changed."""

    # --- wake-up: a hint that saves latency; polling alone is always enough -------------------------------------------

    @abstractmethod
    def wait(self, timeout: float, queues: Sequence[str] = ()) -> bool:
        """Sleep until new work may be there, or `timeout` seconds are over; True when woken. `queues` are those for
        whose jobs one wants to be woken, as for `reserve`, and perhaps `OTHER_QUEUES`; none named: for any that come in
        meanwhile. One enqueueing wakes one sleeper of those who named its queue, not all. May wake for nothing.
        Another thread's `interrupt` wakes it too. Many threads may sleep at once, for different queues."""

    @abstractmethod
    def interrupt(self) -> None:
        """Wake all of this process's sleepers, and whoever is about to lie down: there is something else to do."""
