"""The plain data that goes into a storage and comes out of it, besides jobs, outcomes and events.

Frozen, in the order of the groups of `contract.py`. Every storage answers with these, and they go to a manager and come
back as they are (`rpc.py`): a field that is added needs a default.
"""

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
from packhorse.core.event import Kind, Subject
from packhorse.core.job import HELD, Job, NewJob, Operation, Reason, State, Token, is_legal
from packhorse.core.metrics import CAUSE_LEVELS, DAYS, HOURS, LEVELS, MINUTES, Level

# --- in and out ---------------------------------------------------------------------------------------------------


class Placement(StrEnum):
    """What became of a job that was to be added."""

    ADDED = "added"
    KEPT = "kept"  # the id or the unique key was there already; that job stays as it was
    REPLACED = "replaced"  # the waiting holder of the unique key took the new arguments


class Enqueued(msgspec.Struct, frozen=True, gc=False):
    """The answer to one enqueued job: the id that now stands for it."""

    job_id: str
    placement: Placement = Placement.ADDED

    @property
    def is_new(self) -> bool:
        return self.placement is Placement.ADDED


class Argument(msgspec.Struct, frozen=True):
    """A value somewhere in a job's arguments: `path` leads there through objects, and of a list any member will do.
    `value` is as a user writes it; `storage/argument_filter.py` says when it is there."""

    path: tuple[str, ...]
    value: str

    def __post_init__(self) -> None:
        if len(self.path) > DEPTH_LIMIT:
            what = f"a filter looks {len(self.path):,} levels deep into arguments"
            raise BadValue(what, hint=f"arguments have at most {DEPTH_LIMIT} levels")


class Filter(msgspec.Struct, frozen=True):
    """Which jobs are meant; what is None or empty does not matter. All conditions must hold. Limits are within."""

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
    min_waited: int | None = None  # how long it was in line before that, or is
    max_waited: int | None = None
    asked_at: int | None = None  # until then what runs or is in line has taken its time; None: that is left out
    forced: bool = False  # only jobs that go before all others, and past a pause
    created_from: int | None = None
    created_to: int | None = None
    id: str | None = None  # it begins so, letter by letter
    args: tuple[Argument, ...] = ()
    error: str | None = None  # found in the error, whatever the case
    text: str | tuple[str, ...] | None = None  # found in id, task, arguments or error, whatever the case; several: each
    order: str | None = None  # "created": by the newest, whatever the states; else each list has its natural order

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts that must all be found."""
        if self.text is None:
            return ()
        return (self.text,) if isinstance(self.text, str) else self.text


class Page(msgspec.Struct, frozen=True):
    """Some of the jobs that were asked for. `next` continues; it may be set although `jobs` is short or empty,
    because one call looks at a bounded number of jobs."""

    jobs: list[Job]
    next: str | None = None


class Count(msgspec.Struct, frozen=True):
    """How many there are; `exact` is False when counting stopped at the cap ("10,000 or more")."""

    number: int
    exact: bool = True


class Tally(msgspec.Struct, frozen=True):
    """How many jobs of one task stand in one state of one queue, kept up to date by every change."""

    queue: str
    task: str
    state: State
    number: int


def look_into(lines: int) -> int:
    """How many jobs of each of so many lines are looked at for the one that has waited longest.

    The line of a rank is in the order of arrival. A job that was to run at once, and has been in line since it was
    created, has waited longer than all behind it: if such a one is the first, nothing else is looked at. One that has
    come back, or was not due before, keeps the place of its arrival however short it has waited: if such a one is the
    first, the oldest is sought among the first hundred; among fewer where more than a hundred lines begin so, and where
    more than a thousand do, it is the first again.

    >>> look_into(1), look_into(400), look_into(1_000), look_into(1_001)
    (100, 25, 10, 1)
    """
    return 1 if lines > 1_000 else min(100, 10_000 // max(1, lines))


class QueueInfo(msgspec.Struct, frozen=True):
    """A queue as operators see it."""

    name: str
    counts: dict[State, int] = {}
    paused_at: int | None = None
    paused_by: str | None = None
    paused_why: str | None = None
    paused_until: int | None = None  # None: until somebody resumes it
    oldest_queued_at: int | None = None  # since when the oldest job in line waits; see `look_into`

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None

    def is_over(self, now: int) -> bool:
        """Is it paused still, although the time for which it was is over?"""
        return self.is_paused and self.paused_until is not None and self.paused_until <= now

    def stays(self, duration: int | None, now: int) -> bool:
        """Is it paused, and stays as it is, although somebody wants a pause for so long? One without an end takes the
        place of one that has an end, and any that of one whose time is over."""
        return self.is_paused and not self.is_over(now) and (duration is not None or self.paused_until is None)


PAUSE_IS_OVER = "its time is over"
"""Why a queue was resumed that nobody has resumed."""


class TaskInfo(msgspec.Struct, frozen=True):
    """A task name that somebody enqueued or a worker announced."""

    name: str
    queue: str
    options: dict[str, Any] = {}
    announced_at: int | None = None  # None: no worker has ever said that it knows this task


# --- steering -----------------------------------------------------------------------------------------------------


class JobVersion(msgspec.Struct, frozen=True, gc=False):
    """How a job was when somebody chose it, so that what is done to it later is done to what was seen."""

    state: State
    updated_at: int
    fence: int

    @classmethod
    def of(cls, job: Job) -> JobVersion:
        return cls(job.state, job.updated_at, job.fence)

    def is_still(self, job: Job) -> bool:
        """Has nothing happened to it since? That a held one goes on in the same hands, begins and gives signs of life,
        is nothing."""
        if job.state in HELD and self.state in HELD:
            return job.fence == self.fence
        return job.state is self.state and job.updated_at == self.updated_at


class ActionResult(msgspec.Struct, frozen=True):
    """The answer to steering one job. `state` is its state now; None: there is no such job."""

    job_id: str
    changed: bool
    state: State | None = None
    conflict: str | None = None  # the job that holds the unique key which this one would need again
    stale: bool = False  # it is no longer as it was seen, and was left alone


def left_alone(operation: Operation, job: Job, seen: JobVersion | None) -> ActionResult | None:
    """The answer for a job to which this is not done: it is not as it was seen, or its state does not allow it. None:
    it may be done. Storages ask under the job's lock."""
    if seen is not None and not seen.is_still(job):
        return ActionResult(job.id, False, job.state, stale=True)
    return None if is_legal(operation, job.state) else ActionResult(job.id, False, job.state)


def seen_by_id(job_ids: Sequence[str], seen: Sequence[JobVersion]) -> dict[str, JobVersion]:
    """What was seen of each; of none, if nothing was."""
    return dict(zip(job_ids, seen, strict=True)) if seen else {}


# --- workers and clients ------------------------------------------------------------------------------------------


TELLS_RESULTS = "tells_results"
"""In the `info` of a foreman: does its app have result handlers?"""
LEASE_S = "lease_s"
"""Where the record of a foreman or a worker says for how many seconds it may be silent. Storages read it, too."""
_LONGEST_LEASE_S = 86_400  # as the settings allow
START = "start"
"""Where such a record tells one start of a process from the next: any text that is new with each."""
USUAL_LEASE = 15 * SECOND
BY_TURNS, BY_AGE = "turns", "created"
"""The orders in which queues of one rank are served: each in its turn, or the one with the oldest job first."""
JOINED_ANEW = "its worker joined anew; the process before had fallen silent"


class WorkerInfo(msgspec.Struct, frozen=True):
    """A process that runs jobs, or a foreman. `id` is random for every start of ours; host and pid are for people."""

    id: str
    subject: Subject = Subject.WORKER
    foreman: str | None = None
    host: str = ""
    pid: int = 0
    queues: list[str] = []
    concurrency: int = 0
    info: dict[str, Any] = {}
    report: dict[str, Any] = {}  # what it is doing, overwritten by each heartbeat
    joined_at: int = 0
    beat_at: int = 0

    @property
    def code_version(self) -> str | None:
        """The version of the user's own code that it runs, if it was told one."""
        told = self.info.get("code_version")
        return told if isinstance(told, str) else None

    def told(self, /, **facts: Any) -> dict[str, Any]:
        """What an event about it tells: these facts, and its record without what heartbeats overwrite."""
        lasting = [name for name in self.__struct_fields__ if name not in ("subject", "report", "beat_at")]
        record = {name: getattr(self, name) for name in lasting}
        return {**facts, "object": {**record, "subject": self.subject.value}}

    def lease_for(self, looker: int) -> int:
        """How long it may be silent before somebody with this lease believes it dead: never less than it says itself.
        One of an older program does not say."""
        told = self.info.get(LEASE_S)
        if not isinstance(told, int | float) or told != told:
            return looker
        return max(looker, round(max(0, min(told, _LONGEST_LEASE_S)) * SECOND))

    def is_beating(self, first: int, last: int, lease: int) -> bool:
        """Does it live, for somebody with this lease who looked at some time between these two? A beat far in the
        future is a clock that was wrong: it would keep a dead worker alive for ever."""
        lease = self.lease_for(lease)
        return first - lease <= self.beat_at <= last + 2 * lease

    def takes_over(self, holder: WorkerInfo | None, now: int, lease: int) -> bool:
        """Joining under this id, which the holder has: are the holder's jobs to be taken back first? Not if there is no
        holder, or if it is this very process, whose call was repeated. Raises WorkerExists while the holder lives."""
        if holder is None or self._is_process_of(holder):
            return False
        if holder.is_beating(now, now, lease):
            raise WorkerExists(self.id)
        return True

    def check_given_up_by(self, foreman: str | None, now: int) -> None:
        """Raises WorkerExists if it lives and this is neither its foreman nor itself: others cannot know that it is
        dead."""
        is_its_own = foreman is not None and foreman in (self.id, self.foreman)
        if not is_its_own and self.is_beating(now, now, USUAL_LEASE):
            raise WorkerExists(self.id)

    def _is_process_of(self, holder: WorkerInfo) -> bool:
        return self.info.get(START) is not None and self.info.get(START) == holder.info.get(START)

    def brings_version(self, others: Iterable[WorkerInfo]) -> bool:
        """Is it a worker with a version of the code that none of the others has?"""
        version = self.code_version
        is_told = version is not None and self.subject is Subject.WORKER
        return is_told and all(each.code_version != version for each in others if each.subject is Subject.WORKER)


class AbortRequest(msgspec.Struct, frozen=True):
    """A held job that should end."""

    token: Token
    reason: Reason


class HeartbeatReply(msgspec.Struct, frozen=True):
    """The answer to a heartbeat."""

    now: int
    unknown: list[str]  # owners that the storage does not know, or no longer: they must join anew
    stops: list[AbortRequest]


class PollResult(msgspec.Struct, frozen=True):
    """What a foreman has to see to, and when; all of one moment. The times are microseconds from then on, 0 when it is
    time already. They are None when nothing comes, and when it is time but nothing may be done, because the storage is
    moved."""

    now: int  # the storage's clock
    stops: bool = False  # one of the crew holds a job that should stop
    queued: bool = False  # a job is in line, of whatever queue
    ordered: bool = False  # there is an order for the foreman, or there may be one
    looked_to: int = 0  # no order up to this event is missing in that, nor will one come; 0: one may still come
    due_in: int | None = None  # the next scheduled or retrying job
    expires_in: int | None = None  # the next job that will have waited or lived for too long
    ticks_in: int | None = None  # the next slot of a schedule
    resumes_in: int | None = None  # the next end of a pause
    moved: bool = False  # the storage bears the mark of a move
    held: bool = False  # a worker, of whatever foreman or of none, has a job in its hands
    order: str = BY_TURNS  # how queues of one rank are served, by all workers of this storage


class CheckIn(msgspec.Struct, frozen=True):
    """A job's own sign of life."""

    token: Token
    message: str | None = None
    progress: int | None = None
    progress_text: str | None = None
    is_logged: bool = False  # what it says is in the job's log already


class CheckInAnswer(StrEnum):
    GO_ON = "go_on"
    STOP = "stop"  # an abort was asked
    STALE = "stale"  # the job belongs to somebody else by now


NOBODY_HOLDS = "it was held by nobody"
"""Why a job was taken back that was reserved or running and had no owner."""


class Rescued(msgspec.Struct, frozen=True):
    """One job that was taken back."""

    job_id: str
    owner: str
    state: State


class ClientInfo(msgspec.Struct, frozen=True):
    """Somebody who enqueues or subscribes; it goes when it has been silent for too long. `subscriptions` is told by
    `clients`: the number of jobs whose outcome it wants and has not acknowledged."""

    id: str
    name: str = ""
    info: dict[str, Any] = {}
    joined_at: int = 0
    beat_at: int = 0
    subscriptions: int = 0


MOST_MISSED = 500
"""Jobs that the event of a client that timed out names, so that it can want them again when it is back."""


# --- schedules ----------------------------------------------------------------------------------------------------


class ScheduleInfo(msgspec.Struct, frozen=True):
    """A recurring plan. `next_at` is the slot that the next tick stands for."""

    name: str
    task: str
    cron: str
    tz: str = "UTC"
    args: str = "{}"
    queue: str | None = None
    options: dict[str, Any] = {}
    missed: str = "one"  # none | one | all: what to do about slots that passed while nobody was there
    overlap: str = "allow"  # allow | skip: when the last job is still unfinished
    next_at: int = 0
    last_at: int | None = None
    last_job_id: str | None = None
    paused_at: int | None = None
    paused_by: str | None = None
    updated_at: int = 0

    def is_same_plan(self, old: ScheduleInfo) -> bool:
        """Do both mean the same moments?"""
        return (self.cron, self.tz) == (old.cron, old.tz)

    def following(self, old: ScheduleInfo | None) -> ScheduleInfo:
        """This schedule written over `old`: history and pause stay, and the next slot if the plan is the same."""
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
        """May a tick stand for this slot now? Not if it is paused, or another foreman was first."""
        return self.paused_at is None and self.next_at == slot <= now

    def ticked(self, slot: int, next_at: int, ticks: Sequence[Tick], enqueued: Sequence[Enqueued]) -> ScheduleInfo:
        """After these ticks, which brought these jobs."""
        last_at = max([slot, *(one.slot for one in ticks)])
        last_job_id = enqueued[-1].job_id if enqueued else self.last_job_id
        return replace(self, next_at=next_at, last_at=last_at, last_job_id=last_job_id)

    def turned(self, paused: bool, now: int, by: str | None) -> ScheduleInfo | None:
        """Paused or resumed; None if it is so already."""
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


def told_ticks(ticks: Sequence[Tick], jobs: Sequence[NewJob], enqueued: Sequence[Enqueued]) -> list[Tick]:
    """The ticks as they turned out: a job for which a twin stands in was skipped in favour of that one."""
    answers = {new.id: answer for new, answer in zip(jobs, enqueued, strict=False)}
    told = []
    for one in ticks:
        answer = answers.get(one.job_id or "")
        if answer is not None and answer.job_id != one.job_id:
            one = replace(one, job_id=answer.job_id, outcome="skipped")
        told.append(one)
    return told


def skipped_ticks(ticks: Sequence[Tick]) -> list[Tick]:
    """The ticks of jobs that another of their kind kept out."""
    return [replace(one, outcome="skipped", job_id=None) for one in ticks]


# --- records ------------------------------------------------------------------------------------------------------


class EventFilter(msgspec.Struct, frozen=True):
    """Which events are meant; what is None or empty does not matter."""

    job_id: str | None = None
    subject: Subject | None = None
    kind: Kind | None = None
    queue: str | None = None
    owner: str | None = None
    after: int | None = None  # ids greater than this
    before: int | None = None  # ids smaller than this
    kinds: frozenset[Kind] = frozenset()  # one of these


class LogKind(StrEnum):
    LOG = "log"
    PROGRESS = "progress"
    CHECKIN = "checkin"
    ERROR = "error"


def log_kind(word: object) -> LogKind:
    """The kind of a stored line; a plain one, if somebody has garbled that."""
    return _LOG_KINDS.get(word, LogKind.LOG)


_LOG_KINDS: dict[object, LogKind] = {kind.value: kind for kind in LogKind}

LONGEST_LINE = 10_000
"""Characters of a log line that are kept."""
_DROPPED = re.compile(r"… (\d+) earlier lines were dropped …")


def dropped_lines(number: int) -> str:
    """Stands in a log in the place of so many lines.

    >>> dropped_lines(2001)
    '… 2001 earlier lines were dropped …'
    """
    return f"… {number} earlier lines were dropped …"


def dropped_in(message: str) -> int:
    """How many lines this one stands for; 0: it is none of ours."""
    found = _DROPPED.fullmatch(message)
    return int(found[1]) if found else 0


def lost_with(messages: Iterable[str]) -> int:
    """How many lines of a job are lost when these go: some may stand for others."""
    return sum(dropped_in(message) or 1 for message in messages)


class LogLevel(StrEnum):
    """How grave a line is. What a job says in passing, its progress and its check-ins, is as `debug` is."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    def reaches(self, least: LogLevel) -> bool:
        """Is it this level, or above it?"""
        return _RISING.index(self) >= _RISING.index(least)


_RISING = tuple(LogLevel)
_LEVELS = {**{level.value: level for level in LogLevel}, "critical": LogLevel.ERROR}
_LOGGED = re.compile(r"([a-z]+) \S+: ")  # as `worker/capture.py` writes what comes by Python's logging


class LogLine(msgspec.Struct, frozen=True):
    """A line that a job wrote. Who writes it down says in which attempt that was, and how long ago; the storage gives
    it its time and its id."""

    message: str
    kind: LogKind = LogKind.LOG
    at: int = 0
    attempt: int = 0  # when it is written: 0 is the present one
    id: int = 0
    ago: int = 0

    @property
    def level(self) -> LogLevel:
        """By its kind, and by the word with which a line of Python's logging begins; else `info`."""
        if self.kind is not LogKind.LOG:
            return LogLevel.ERROR if self.kind is LogKind.ERROR else LogLevel.DEBUG
        logged = _LOGGED.match(self.message)
        return _LEVELS.get(logged[1], LogLevel.INFO) if logged else LogLevel.INFO


class FailureGroup(msgspec.Struct, frozen=True):
    """All failures of one cause, told as one. Versions are those of the user's own code, as far as they were told."""

    cause: str
    task: str
    pattern: str
    place: str | None
    number: int
    first_at: int
    last_at: int
    last_job_id: str
    silenced_until: int | None = None  # somebody knows of it, and does not want to be told before then
    silenced_by: str | None = None
    first_version: str | None = None  # None: the first failure told none
    last_version: str | None = None  # of the last failure that told one
    silenced_version: str | None = None  # the silence ends with the first failure of another version
    counts: dict[int, int] = {}  # how many in each interval, by its beginning, if they were asked for

    def is_silenced(self, now: int) -> bool:
        if self.silenced_until is None:
            return self.silenced_version is not None
        return self.silenced_until > now

    @property
    def has_silence(self) -> bool:
        """Was it silenced, be it over or not?"""
        return self.silenced_until is not None or self.silenced_version is not None

    def known_version(self) -> str:
        """The version that it was last seen with; BadValue if no failure has told one."""
        if self.last_version is None:
            raise BadValue(
                "no failure of this cause has told the version of its code",
                hint="set code_version for your workers (PACKHORSE_CODE_VERSION), or silence it for a time",
            )
        return self.last_version

    def heard(self, version: str | None) -> FailureGroup:
        """The group after one more failure, of this version."""
        if version is None:
            return self
        if self.silenced_version not in (None, version):
            self = replace(self, silenced_until=None, silenced_by=None, silenced_version=None)
        return replace(self, last_version=version)


class Span(StrEnum):
    """How far a chart looks back, and so how fine its points are."""

    TWO_HOURS = "2h"  # a point a minute
    TWO_DAYS = "48h"  # a point an hour
    NINETY_DAYS = "90d"  # a point a day

    @property
    def length(self) -> int:
        return {"2h": 2 * HOUR, "48h": 48 * HOUR, "90d": 90 * DAY}[self.value]

    @property
    def level(self) -> Level:
        """The fineness of its points."""
        return {"2h": MINUTES, "48h": HOURS, "90d": DAYS}[self.value]

    @property
    def levels(self) -> list[str]:
        """The names of the levels that its points are made of: its own, and the finer ones not yet folded into it."""
        return [level.name for level in LEVELS if level.width <= self.level.width]

    @property
    def cause_levels(self) -> list[str]:
        """The same for what is counted by cause."""
        return [level.name for level in CAUSE_LEVELS if level.width <= self.level.width]


class Point(msgspec.Struct, frozen=True):
    """What happened to one task of one queue in one interval.

    `values` has the counts `added, completed, failed, dead, aborted, halted`, `retried` of jobs that had ended, and
    `deleted`, `moved_out` and `moved_in` (from one queue to another) of those that had not; the sums `ran` and `waited`
    (microseconds); and how many attempts had waited, and ran, for at most so long and longer than the step before:
    `wait_1ms`, `wait_1.5ms` … `run_100000s`, `run_longer`.
    """

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
        """The longer of both, of everything."""
        longer = {name: max(getattr(self, name), getattr(other, name)) for name in self.__struct_fields__}
        return Retention(**longer)

    def of(self, state: State) -> int:
        """How long a job is kept that ended in this state."""
        return {"completed": self.completed, "dead": self.dead, "aborted": self.aborted}[state]


class Pruned(msgspec.Struct, frozen=True):
    """What `prune` removed. `more` says that it stopped at its limit and should be called again."""

    jobs: int = 0
    events: int = 0
    clients: int = 0
    more: bool = False


class OperationTimes(msgspec.Struct, frozen=True):
    """How one kind of call has gone in this process, in microseconds. `wait` is the time before the storage was
    free for it (a lock, a connection): contention. `run` is the storage's own time: load."""

    name: str
    calls: int
    wait_mean: int
    wait_max: int
    run_mean: int
    run_p95: int
    run_max: int


class OperationSums(msgspec.Struct, frozen=True):
    """The same with sums in the place of means: what several processes have measured can be put together, and what came
    since somebody looked last can be told."""

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
    """How the storage is. `problems` are sentences for people; an empty list means well. `notes` are what is good to
    know and can wait."""

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
