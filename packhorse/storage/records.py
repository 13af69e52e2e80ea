"""Plain data that goes into a storage and comes out of it, besides jobs, outcomes and events.

All frozen, in the order of the groups of `contract.py`. Remote workers exchange these records with their manager
(`rpc.py`), so a new field needs a default."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from packhorse.core.clock import DAY, HOUR, SECOND
from packhorse.core.codec import DEPTH_LIMIT
from packhorse.core.errors import BadValue, WorkerExists
from packhorse.core.event import Event, Kind, Subject
from packhorse.core.job import HELD, Job, NewJob, Operation, Reason, State, Token, is_legal
from packhorse.core.metrics import CAUSE_LEVELS, DAYS, HOURS, LEVELS, MINUTES, Level

# --- jobs ---------------------------------------------------------------------------------------------------------


class Placement(StrEnum):
    """What became of a new job."""

    ADDED = "added"
    KEPT = "kept"  # the id or the unique key was there already; that job stays as it was
    REPLACED = "replaced"  # the waiting holder of the unique key took the new arguments


class Enqueued(msgspec.Struct, frozen=True, gc=False):
    """The result for one new job: the id of the job that stands for it."""

    job_id: str
    placement: Placement = Placement.ADDED

    @property
    def is_new(self) -> bool:
        return self.placement is Placement.ADDED


class Argument(msgspec.Struct, frozen=True):
    """A value in the arguments of a job: `path` leads to it through objects; in a list, any member matches. `value` is
    as a user writes it; see `storage/argument_filter.py`."""

    path: tuple[str, ...]
    value: str

    def __post_init__(self) -> None:
        if len(self.path) > DEPTH_LIMIT:
            what = f"a filter looks {len(self.path):,} levels deep into arguments"
            raise BadValue(what, hint=f"arguments have at most {DEPTH_LIMIT} levels")


class Filter(msgspec.Struct, frozen=True):
    """Which jobs are wanted. All conditions must hold; None and empty mean any. Limits are inclusive."""

    states: frozenset[State] = frozenset()
    queue: str | None = None
    task: str | None = None
    queues: frozenset[str] = frozenset()  # one of these; `mail.*` are all whose names begin with `mail.`
    tasks: frozenset[str] = frozenset()
    owner: str | None = None
    schedule: str | None = None
    unique_key: str | None = None
    cause: str | None = None  # of its last failure; see `failures`
    halted: bool | None = None  # its last worker died while it ran
    min_priority: int | None = None
    max_priority: int | None = None
    min_attempts: int | None = None
    max_attempts: int | None = None
    min_took: int | None = None  # how long the latest attempt ran, or runs: see `Job.took`
    max_took: int | None = None
    min_waited: int | None = None  # how long it was queued before that, or is
    max_waited: int | None = None
    asked_at: int | None = None  # counts running and queued jobs up to this time; None: leaves them out
    forced: bool = False  # only forced jobs
    created_from: int | None = None
    created_to: int | None = None
    id: str | None = None  # it begins with this
    args: tuple[Argument, ...] = ()
    error: str | None = None  # found in the error, ignoring case
    text: str | tuple[str, ...] | None = None  # found in id, task, arguments or error, ignoring case; several: all
    order: str | None = None  # "created": the newest first, in any state; else the natural order of the list

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts that must be found."""
        if self.text is None:
            return ()
        return (self.text,) if isinstance(self.text, str) else self.text


class Page(msgspec.Struct, frozen=True):
    """One page of jobs. `next` continues; it may be set although `jobs` is short or empty, because one call looks at a
    bounded number of jobs."""

    jobs: list[Job]
    next: str | None = None


class Count(msgspec.Struct, frozen=True):
    """How many there are; `exact` is False when counting stopped at the cap ("10,000 or more")."""

    number: int
    exact: bool = True


class Tally(msgspec.Struct, frozen=True):
    """How many jobs of one task are in one state of one queue. Every change updates it."""

    queue: str
    task: str
    state: State
    number: int


def search_depth(lines: int) -> int:
    """How deep `queues` looks into each of this many lines for the job that has waited longest.

    The line of a rank is in order of arrival. A job that was queued when it was created has waited longer than all
    behind it: if it is the first, nothing else is read. A job that came back to the line, or was scheduled before,
    keeps the place of its arrival however short it has waited: if it is the first, the oldest is sought among the first
    hundred. With more than a hundred such lines it is sought among fewer, and with more than a thousand the first one
    counts.

    >>> search_depth(1), search_depth(400), search_depth(1_000), search_depth(1_001)
    (100, 25, 10, 1)"""
    return 1 if lines > 1_000 else min(100, 10_000 // max(1, lines))


class QueueInfo(msgspec.Struct, frozen=True):
    """A queue as operators see it."""

    name: str
    counts: dict[State, int] = {}
    paused_at: int | None = None
    paused_by: str | None = None
    paused_why: str | None = None
    paused_until: int | None = None  # None: until an operator resumes it
    oldest_queued_at: int | None = None  # since when the oldest queued job waits; see `search_depth`

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None

    def is_over(self, now: int) -> bool:
        """Return whether it is still paused although the time of the pause is over."""
        return self.is_paused and self.paused_until is not None and self.paused_until <= now

    def stays(self, duration: int | None, now: int) -> bool:
        """Return whether a new pause of this duration changes nothing. A pause without an end replaces one that has an
        end; any pause replaces one that is over."""
        return self.is_paused and not self.is_over(now) and (duration is not None or self.paused_until is None)


PAUSE_IS_OVER = "its time is over"
"""Why a queue was resumed without an operator."""


class TaskInfo(msgspec.Struct, frozen=True):
    """A task that was enqueued or that a worker announced."""

    name: str
    queue: str
    options: dict[str, Any] = {}
    announced_at: int | None = None  # None: no worker has announced this task


# --- operators -----------------------------------------------------------------------------------------------------


class JobVersion(msgspec.Struct, frozen=True, gc=False):
    """The version of a job that an operator saw, so that an action applies to what was seen."""

    state: State
    updated_at: int
    fence: int

    @classmethod
    def of(cls, job: Job) -> JobVersion:
        return cls(job.state, job.updated_at, job.fence)

    def is_still(self, job: Job) -> bool:
        """Return whether the job has not changed since. Start and check-ins of a held job are no change."""
        if job.state in HELD and self.state in HELD:
            return job.fence == self.fence
        return job.state is self.state and job.updated_at == self.updated_at


class ActionResult(msgspec.Struct, frozen=True):
    """The result of an operator action on one job. `state` is its state now; None: the job does not exist."""

    job_id: str
    changed: bool
    state: State | None = None
    conflict: str | None = None  # the job that holds the unique key of this one
    stale: bool = False  # it has changed since it was seen, and was left alone


def refusal_for(operation: Operation, job: Job, seen: JobVersion | None) -> ActionResult | None:
    """Return the result for a job that stays as it is: it is not as `seen`, or its state does not allow the operation.
    None: go ahead. Called under the job's lock."""
    if seen is not None and not seen.is_still(job):
        return ActionResult(job.id, False, job.state, stale=True)
    return None if is_legal(operation, job.state) else ActionResult(job.id, False, job.state)


def seen_by_id(job_ids: Sequence[str], seen: Sequence[JobVersion]) -> dict[str, JobVersion]:
    """The version of each job that was seen; empty if none was given."""
    return dict(zip(job_ids, seen, strict=True)) if seen else {}


# --- workers and clients ------------------------------------------------------------------------------------------


HAS_RESULT_HANDLERS = "tells_results"
"""In the `info` of a foreman: whether its app has result handlers."""
LEASE_S = "lease_s"
"""In the `info` of a foreman or worker: for how many seconds it may be silent. Storages read it."""
_LONGEST_LEASE_S = 86_400  # as the settings allow
START = "start"
"""In the same `info`: a text that is new with each start of a process."""
USUAL_LEASE = 15 * SECOND
BY_TURNS, BY_AGE = "turns", "created"
"""In which order workers serve queues of one rank: in turns, or the queue with the oldest job first."""
REJOINED = "its worker joined again; the process before was silent"


class WorkerInfo(msgspec.Struct, frozen=True):
    """A worker process, or a foreman. `id` is random for every start; host and pid are for people."""

    id: str
    subject: Subject = Subject.WORKER
    foreman: str | None = None
    host: str = ""
    pid: int = 0
    queues: list[str] = []
    concurrency: int = 0
    info: dict[str, Any] = {}
    report: dict[str, Any] = {}  # what it is doing; each heartbeat overwrites it
    joined_at: int = 0
    beat_at: int = 0

    @property
    def code_version(self) -> str | None:
        """The version of the user's own code, if it is known."""
        version = self.info.get("code_version")
        return version if isinstance(version, str) else None

    def event_facts(self, /, **facts: Any) -> dict[str, Any]:
        """Facts for an event about it: these, and its record without what heartbeats overwrite."""
        lasting = [name for name in self.__struct_fields__ if name not in ("subject", "report", "beat_at")]
        record = {name: getattr(self, name) for name in lasting}
        return {**facts, "object": {**record, "subject": self.subject.value}}

    def lease_for(self, looker: int) -> int:
        """How long it may be silent before a process with this lease takes it for dead: at least its own lease, if it
        has one."""
        own = self.info.get(LEASE_S)
        if not isinstance(own, int | float) or own != own:
            return looker
        return max(looker, round(max(0, min(own, _LONGEST_LEASE_S)) * SECOND))

    def is_beating(self, first: int, last: int, lease: int) -> bool:
        """Return whether it is alive for a process with this lease that looked between `first` and `last`. A beat far
        in the future comes from a wrong clock, and would keep a dead worker alive indefinitely."""
        lease = self.lease_for(lease)
        return first - lease <= self.beat_at <= last + 2 * lease

    def takes_over(self, holder: WorkerInfo | None, now: int, lease: int) -> bool:
        """Return whether joining under the id of this holder first takes back its jobs. Not if there is no holder, or
        if it is this very process, repeating the call. Raises `WorkerExists` while the holder is alive."""
        if holder is None or self._is_process_of(holder):
            return False
        if holder.is_beating(now, now, lease):
            raise WorkerExists(self.id)
        return True

    def check_may_take_back(self, foreman: str | None, now: int) -> None:
        """Raise `WorkerExists` if it is alive and this is neither its foreman nor itself: others cannot know that it is
        dead."""
        is_its_own = foreman is not None and foreman in (self.id, self.foreman)
        if not is_its_own and self.is_beating(now, now, USUAL_LEASE):
            raise WorkerExists(self.id)

    def _is_process_of(self, holder: WorkerInfo) -> bool:
        return self.info.get(START) is not None and self.info.get(START) == holder.info.get(START)

    def has_new_version(self, others: Iterable[WorkerInfo]) -> bool:
        """Return whether it is a worker with a version of the code that no other worker has."""
        version = self.code_version
        is_told = version is not None and self.subject is Subject.WORKER
        return is_told and all(each.code_version != version for each in others if each.subject is Subject.WORKER)


class AbortRequest(msgspec.Struct, frozen=True):
    """A held job that should stop."""

    token: Token
    reason: Reason


class HeartbeatReply(msgspec.Struct, frozen=True):
    """The answer to a heartbeat."""

    now: int
    unknown: list[str]  # owners that the storage does not know: they must join again
    stops: list[AbortRequest]


class PollResult(msgspec.Struct, frozen=True):
    """What a foreman has to do, and when; all of one moment. The times are in microseconds from then; 0 means now.
    None: nothing comes, or it is time but the storage is closed."""

    now: int  # the storage's clock
    stops: bool = False  # one of its workers holds a job that should stop
    queued: bool = False  # a job is queued, in any queue
    ordered: bool = False  # there is, or may be, an order for the foreman
    looked_to: int = 0  # no order up to this event is missing or will come later; 0: one may
    due_in: int | None = None  # the next scheduled or retrying job
    expires_in: int | None = None  # the next job that expires
    ticks_in: int | None = None  # the next slot of a schedule
    resumes_in: int | None = None  # the next end of a pause
    moved: bool = False  # the storage has the mark of a move
    held: bool = False  # any worker of any foreman holds a job
    order: str = BY_TURNS  # how queues of one rank are served, by all workers of this storage


class CheckIn(msgspec.Struct, frozen=True):
    """A job's own sign of life."""

    token: Token
    message: str | None = None
    progress: int | None = None
    progress_text: str | None = None
    is_logged: bool = False  # the job's log has it already


class CheckInAnswer(StrEnum):
    GO_ON = "go_on"
    STOP = "stop"  # an abort was requested
    STALE = "stale"  # the job belongs to another worker now


NO_OWNER = "it had no owner"
"""Why a job was taken back that was reserved or running and had no owner."""


class Rescued(msgspec.Struct, frozen=True):
    """One job that was taken back."""

    job_id: str
    owner: str
    state: State


class ClientInfo(msgspec.Struct, frozen=True):
    """A process that enqueues or subscribes; it is pruned when it has been silent for too long. `clients` fills in
    `subscriptions`: the number of jobs whose outcome it wants and has not acknowledged."""

    id: str
    name: str = ""
    info: dict[str, Any] = {}
    joined_at: int = 0
    beat_at: int = 0
    subscriptions: int = 0


MOST_MISSED = 500
"""How many jobs the event of a client that timed out names, so that the client can subscribe to them again."""


# --- schedules ----------------------------------------------------------------------------------------------------


class ScheduleInfo(msgspec.Struct, frozen=True):
    """A recurring job. `next_at` is the slot of the next tick."""

    name: str
    task: str
    cron: str
    tz: str = "UTC"
    args: str = "{}"
    queue: str | None = None
    options: dict[str, Any] = {}
    missed: str = "one"  # none | one | all: which of the slots that passed while no foreman was there tick
    overlap: str = "allow"  # allow | skip: when the last job is still unfinished
    next_at: int = 0
    last_at: int | None = None
    last_job_id: str | None = None
    paused_at: int | None = None
    paused_by: str | None = None
    updated_at: int = 0

    def is_same_plan(self, old: ScheduleInfo) -> bool:
        """Return whether both have the same times."""
        return (self.cron, self.tz) == (old.cron, old.tz)

    def replacing(self, old: ScheduleInfo | None) -> ScheduleInfo:
        """This schedule stored over `old`: it keeps history and pause, and the next slot if the times are the same."""
        if old is None:
            return self
        return replace(
            self,
            next_at=old.next_at if self.is_same_plan(old) else self.next_at,
            last_at=old.last_at,
            last_job_id=old.last_job_id,
            paused_at=old.paused_at,
            paused_by=old.paused_by,
        )

    def is_due(self, slot: int, now: int) -> bool:
        """Return whether this slot may tick now. Not if the schedule is paused, or another foreman was first."""
        return self.paused_at is None and self.next_at == slot <= now

    def after_ticks(self, slot: int, next_at: int, ticks: Sequence[Tick], enqueued: Sequence[Enqueued]) -> ScheduleInfo:
        """The schedule after these ticks, which enqueued these jobs."""
        last_at = max([slot, *(one.slot for one in ticks)])
        last_job_id = enqueued[-1].job_id if enqueued else self.last_job_id
        return replace(self, next_at=next_at, last_at=last_at, last_job_id=last_job_id)

    def with_pause(self, paused: bool, now: int, by: str | None) -> ScheduleInfo | None:
        """The schedule paused or resumed; None if it is so already."""
        if (self.paused_at is not None) == paused:
            return None
        return replace(self, paused_at=now if paused else None, paused_by=by if paused else None)


class Tick(msgspec.Struct, frozen=True):
    """One slot of a schedule and what became of it."""

    schedule: str
    slot: int
    outcome: str  # enqueued | skipped | missed
    at: int
    job_id: str | None = None


def actual_ticks(ticks: Sequence[Tick], jobs: Sequence[NewJob], enqueued: Sequence[Enqueued]) -> list[Tick]:
    """The ticks with their real outcome: a job that was kept out by its unique key was skipped in favour of the
    holder."""
    answers = {new.id: answer for new, answer in zip(jobs, enqueued, strict=False)}
    actual = []
    for one in ticks:
        answer = answers.get(one.job_id or "")
        if answer is not None and answer.job_id != one.job_id:
            one = replace(one, job_id=answer.job_id, outcome="skipped")
        actual.append(one)
    return actual


def skipped_ticks(ticks: Sequence[Tick]) -> list[Tick]:
    """The ticks of jobs that were refused for their unique key."""
    return [replace(one, outcome="skipped", job_id=None) for one in ticks]


# --- history ------------------------------------------------------------------------------------------------------


class EventFilter(msgspec.Struct, frozen=True):
    """Which events are wanted; None and empty mean any."""

    job_id: str | None = None
    subject: Subject | None = None
    kind: Kind | None = None
    queue: str | None = None
    owner: str | None = None
    after: int | None = None  # ids greater than this
    before: int | None = None  # ids smaller than this
    kinds: frozenset[Kind] = frozenset()  # one of these

    def matches(self, event: Event) -> bool:
        return (
            self.job_id in (None, event.job_id)
            and self.subject in (None, event.subject)
            and self.kind in (None, event.kind)
            and (not self.kinds or event.kind in self.kinds)
            and self.queue in (None, event.queue)
            and self.owner in (None, event.owner)
            and (self.after is None or event.id > self.after)
            and (self.before is None or event.id < self.before)
        )


class LogKind(StrEnum):
    LOG = "log"
    PROGRESS = "progress"
    CHECKIN = "checkin"
    ERROR = "error"


def log_kind(word: object) -> LogKind:
    """The kind of a stored line; `log` if the stored word is unknown."""
    return _LOG_KINDS.get(word, LogKind.LOG)


_LOG_KINDS: dict[object, LogKind] = {kind.value: kind for kind in LogKind}

LONGEST_LINE = 10_000
"""How many characters of a log line are kept."""
_DROPPED = re.compile(r"… (\d+) earlier lines were dropped …")


def dropped_lines(number: int) -> str:
    """The message that replaces this many dropped lines in a log.

    >>> dropped_lines(2001)
    '… 2001 earlier lines were dropped …'"""
    return f"… {number} earlier lines were dropped …"


def dropped_in(message: str) -> int:
    """How many dropped lines this message stands for; 0: it is an ordinary line."""
    found = _DROPPED.fullmatch(message)
    return int(found[1]) if found else 0


def count_lost(messages: Iterable[str]) -> int:
    """How many lines are lost with these messages, some of which may stand for others."""
    return sum(dropped_in(message) or 1 for message in messages)


class LogLevel(StrEnum):
    """How severe a line is. Progress and check-ins count as `debug`."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    def reaches(self, least: LogLevel) -> bool:
        """Return whether it is this level, or above it."""
        return _RISING.index(self) >= _RISING.index(least)


_RISING = tuple(LogLevel)
_LEVELS = {**{level.value: level for level in LogLevel}, "critical": LogLevel.ERROR}
_LOGGED = re.compile(r"([a-z]+) \S+: ")  # as the worker writes what comes from Python's logging


class LogLine(msgspec.Struct, frozen=True):
    """A line that a job wrote. The writer says in which attempt and how long ago; the storage adds time and id."""

    message: str
    kind: LogKind = LogKind.LOG
    at: int = 0
    attempt: int = 0  # 0 when it is written: the present one
    id: int = 0
    ago: int = 0

    @property
    def level(self) -> LogLevel:
        """By its kind, and by the level at the beginning of a line from Python's logging; else `info`."""
        if self.kind is not LogKind.LOG:
            return LogLevel.ERROR if self.kind is LogKind.ERROR else LogLevel.DEBUG
        logged = _LOGGED.match(self.message)
        return _LEVELS.get(logged[1], LogLevel.INFO) if logged else LogLevel.INFO


class FailureGroup(msgspec.Struct, frozen=True):
    """All failures of one cause. Versions are those of the user's own code, as far as they are known."""

    cause: str
    task: str
    pattern: str
    place: str | None
    number: int
    first_at: int
    last_at: int
    last_job_id: str
    silenced_until: int | None = None
    silenced_by: str | None = None
    first_version: str | None = None  # None: unknown
    last_version: str | None = None  # of the last failure whose version is known
    silenced_version: str | None = None  # the silence ends with the first failure of another version
    counts: dict[int, int] = {}  # by the start of each interval, if requested

    def is_silenced(self, now: int) -> bool:
        if self.silenced_until is None:
            return self.silenced_version is not None
        return self.silenced_until > now

    @property
    def has_silence(self) -> bool:
        """Return whether it was silenced, also if the silence is over."""
        return self.silenced_until is not None or self.silenced_version is not None

    def known_version(self) -> str:
        """The version of its last failure; `BadValue` if none is known."""
        if self.last_version is None:
            raise BadValue(
                "no failure of this cause has a version of its code",
                hint="set code_version for your workers (PACKHORSE_CODE_VERSION), or silence it for a time",
            )
        return self.last_version

    def with_failure(self, version: str | None) -> FailureGroup:
        """The group after one more failure, of this version."""
        if version is None:
            return self
        if self.silenced_version not in (None, version):
            self = replace(self, silenced_until=None, silenced_by=None, silenced_version=None)
        return replace(self, last_version=version)


class Span(StrEnum):
    """How far a chart looks back, which sets how fine its points are."""

    TWO_HOURS = "2h"  # a point a minute
    TWO_DAYS = "48h"  # a point an hour
    NINETY_DAYS = "90d"  # a point a day

    @property
    def length(self) -> int:
        return {"2h": 2 * HOUR, "48h": 48 * HOUR, "90d": 90 * DAY}[self.value]

    @property
    def level(self) -> Level:
        """The level of its points."""
        return {"2h": MINUTES, "48h": HOURS, "90d": DAYS}[self.value]

    @property
    def levels(self) -> list[str]:
        """The names of the levels that make up its points: its own, and the finer ones that are not folded into it
        yet."""
        return [level.name for level in LEVELS if level.width <= self.level.width]

    @property
    def cause_levels(self) -> list[str]:
        """The same for what is counted by cause."""
        return [level.name for level in CAUSE_LEVELS if level.width <= self.level.width]


class Point(msgspec.Struct, frozen=True):
    """What happened to one task of one queue in one interval.

    `values` has the counts `added, completed, failed, dead, aborted, halted`; `retried` of jobs that had ended;
    `deleted`, `moved_out` and `moved_in` (from one queue to another) of those that had not; the sums `ran` and `waited`
    (microseconds); and how many attempts waited, and ran, for at most so long and longer than the step before:
    `wait_1ms`, `wait_1.5ms` … `run_100000s`, `run_longer`."""

    at: int
    queue: str
    task: str
    values: dict[str, int]


class Retention(msgspec.Struct, frozen=True):
    """How long finished things are kept, in microseconds."""

    completed: int = DAY
    dead: int = 30 * DAY
    aborted: int = 30 * DAY
    events: int = 30 * DAY
    clients: int = HOUR

    def at_least(self, other: Retention) -> Retention:
        """For each of them the longer of both."""
        longer = {name: max(getattr(self, name), getattr(other, name)) for name in self.__struct_fields__}
        return Retention(**longer)

    def of(self, state: State) -> int:
        """How long a job is kept that ended in this state."""
        return {"completed": self.completed, "dead": self.dead, "aborted": self.aborted}[state]


class Pruned(msgspec.Struct, frozen=True):
    """What `prune` removed. `more`: it stopped at its limit and should be called again."""

    jobs: int = 0
    events: int = 0
    clients: int = 0
    more: bool = False


class OperationTimes(msgspec.Struct, frozen=True):
    """How long one kind of call took in this process, in microseconds. `wait` is the time until the storage was free (a
    lock, a connection): contention. `run` is the storage's own time: load."""

    name: str
    calls: int
    wait_mean: int
    wait_max: int
    run_mean: int
    run_p95: int
    run_max: int


class OperationSums(msgspec.Struct, frozen=True):
    """The same as sums, so that the numbers of several processes can be added, and the difference to an earlier report
    be taken."""

    name: str
    calls: int
    wait: int
    wait_max: int
    run: int
    run_p95: int
    run_max: int

    @property
    def times(self) -> OperationTimes:
        return OperationTimes(
            name=self.name,
            calls=self.calls,
            wait_mean=round(self.wait / self.calls),
            wait_max=self.wait_max,
            run_mean=round(self.run / self.calls),
            run_p95=self.run_p95,
            run_max=self.run_max,
        )


class Health(msgspec.Struct, frozen=True):
    """The state of a storage. `problems` are sentences for people; empty means healthy. `notes` are good to know and
    can wait."""

    kind: str
    url: str  # without passwords
    version: str
    schema: int
    latency: int  # of one small read, just now
    size: int | None = None
    free: int | None = None
    connections_open: int = 0
    connections_in_use: int = 0
    busy_retries: int = 0
    operations: list[OperationTimes] = []
    facts: dict[str, Any] = {}
    problems: list[str] = []
    notes: list[str] = []


class Migration(msgspec.Struct, frozen=True):
    """One numbered step from an older form of the tables to the present one."""

    name: str
    sql: str
