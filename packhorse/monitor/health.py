"""Is all well? `CHECKS` is the one list: `doctor`, `status`, `check`, the banners of the pages, `/healthz` and
`/readyz` run the checks in it that are theirs. A check yields findings: what is wrong, or that all is well.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple, Protocol, TypeGuard

from packhorse.core.clock import MINUTE, SECOND
from packhorse.core.errors import StorageError
from packhorse.core.event import Subject
from packhorse.core.job import HELD, QUEUED, WAITING, State
from packhorse.core.version import __version__
from packhorse.monitor.liveness import (
    IdleReason,
    accepting_workers,
    idle_foremen,
    idle_text,
    is_alive,
    resume_command,
)
from packhorse.monitor.schedules import late_by
from packhorse.monitor.served_queues import tasks_by_queue, why_unserved
from packhorse.monitor.stats import RunStats, stats_by_queue
from packhorse.monitor.text import count_text, held_back_text, pause_text, span_text
from packhorse.storage import Storage
from packhorse.storage.records import (
    Filter,
    Health,
    Point,
    QueueInfo,
    ScheduleInfo,
    Span,
    Tally,
    WorkerInfo,
)
from packhorse.storage.transfer import Move, Stage, closed

MAX_AGE = 5 * MINUTE
"""How long a job may wait before that is a problem, unless the operator says otherwise."""
_DELAYED = frozenset({State.SCHEDULED, State.RETRYING})
_LATE = MINUTE
_FLOW_PERIOD = 10 * MINUTE
_DEPLOY_TIME = 10 * MINUTE
_MAX_SKEW = 2.0  # seconds
_MAX_NAMES = 3
_MAX_TEXT = 120  # characters of text that others wrote


class Severity(StrEnum):
    OK = "ok"
    NOTE = "note"  # worth knowing; nothing is broken
    BAD = "bad"


class Finding(NamedTuple):
    """What a check found: a summary in a clause, details, and in `fix` the command or advice that helps. `queue` is the
    one queue that it is about."""

    name: str
    severity: Severity
    summary: str
    detail: str = ""
    fix: str | None = None
    queue: str | None = None

    @property
    def is_ok(self) -> bool:
        """Is nothing broken?"""
        return self.severity is not Severity.BAD

    @property
    def sentence(self) -> str:
        return f"{self.summary}; {self.detail}" if self.detail else self.summary


class Source(Protocol):
    """Where the facts come from: a storage, or what an operator may see of one."""

    def now(self) -> int: ...
    def workers(self) -> list[WorkerInfo]: ...
    def queues(self) -> list[QueueInfo]: ...
    def tallies(self) -> list[Tally]: ...
    def schedules(self) -> list[ScheduleInfo]: ...
    def series(self, span: Span) -> list[Point]: ...
    def health(self) -> Health: ...
    def move(self) -> Move | None: ...


class Facts:
    """What the checks look at; each part is read when a check first needs it. `span` formats durations."""

    def __init__(
        self,
        source: Source,
        lease: int,
        *,
        max_age: int = MAX_AGE,
        span: Callable[[int], str] = span_text,
    ) -> None:
        self._source = source
        self.lease = lease
        self.max_age = max_age
        self.span = span

    @property
    def storage(self) -> Storage:
        """The storage itself, for checks that write or search. The pages have none: each sees what its operator may."""
        assert isinstance(self._source, Storage)
        return self._source

    @cached_property
    def now(self) -> int:
        return self._source.now()

    @cached_property
    def workers(self) -> list[WorkerInfo]:
        return self._source.workers()

    @cached_property
    def queues(self) -> list[QueueInfo]:
        return self._source.queues()

    @cached_property
    def schedules(self) -> list[ScheduleInfo]:
        return self._source.schedules()

    @cached_property
    def health(self) -> Health:
        return self._source.health()

    @cached_property
    def move(self) -> Move | None:
        return self._source.move()

    @cached_property
    def tasks_by_queue(self) -> dict[str, set[str]]:
        return tasks_by_queue(self._source.tallies())

    @cached_property
    def flows(self) -> dict[str, RunStats]:
        """What each queue received and ended in the last ten minutes."""
        return flows_of(self._source.series(Span.TWO_HOURS), self.now)

    def alive(self, subject: Subject) -> list[WorkerInfo]:
        """The foremen or workers with a heartbeat within their lease."""
        return [each for each in self.workers if each.subject is subject and is_alive(each, self.now, self.lease)]

    @cached_property
    def accepting(self) -> list[WorkerInfo]:
        """The workers that are alive and take jobs."""
        return accepting_workers(self.workers, self.now, self.lease)

    @property
    def waiting(self) -> int:
        return sum(queue.counts.get(state, 0) for queue in self.queues for state in WAITING)

    @property
    def waiting_text(self) -> str:
        return "no jobs wait" if not self.waiting else count_text(self.waiting, "job waits", "jobs wait")

    @cached_property
    def lines(self) -> list[QueueInfo]:
        """The queues that are not paused and have jobs that may start, the longest wait first."""
        lines = [each for each in self.queues if each.oldest_queued_at is not None and not each.is_paused]
        return sorted(lines, key=lambda queue: queue.oldest_queued_at or 0)

    def wait(self, queue: QueueInfo) -> int:
        """How long the oldest job of the queue has waited."""
        return 0 if queue.oldest_queued_at is None else self.now - queue.oldest_queued_at


def flows_of(points: Iterable[Point], now: int) -> dict[str, RunStats]:
    return stats_by_queue(point for point in points if point.at > now - _FLOW_PERIOD)


# --- the storage ------------------------------------------------------------------------------------------------------


def check_moved(facts: Facts) -> Iterator[Finding]:
    if facts.move is not None and facts.move.stage is Stage.MOVED:
        yield _closed(facts.move)


def check_move(facts: Facts) -> Iterator[Finding]:
    """A storage that is being moved or filled takes no changes."""
    if facts.move is not None and facts.move.stage is not Stage.MOVED:
        yield _closed(facts.move)


def _closed(move: Move) -> Finding:
    reason = closed(move)
    return Finding("storage", Severity.BAD, reason.what, fix=reason.hint)


def check_writable(facts: Facts) -> Iterator[Finding]:
    """Does the storage answer and take writes?"""
    try:
        facts.storage.heartbeat({})  # a write that changes nothing
        if facts.move is not None:
            yield _closed(facts.move)
            return
        health = facts.health
    except StorageError as error:
        yield _unreachable(error)
        return
    summary = f"the storage answers in {health.latency / 1000:.1f} ms and takes writes"
    yield Finding("storage", Severity.OK, summary, "; ".join(health.problems))


def check_readable(facts: Facts) -> Iterator[Finding]:
    """Does the storage answer?"""
    try:
        facts.storage.now()
        facts.storage.totals()
    except StorageError as error:
        yield _unreachable(error)
        return
    yield Finding("storage", Severity.OK, "the storage answers")


def _unreachable(error: StorageError) -> Finding:
    return Finding("storage", Severity.BAD, error.what, error.why or "")


def check_storage(facts: Facts) -> Iterator[Finding]:
    """The problems that the storage itself reports."""
    known = closed(facts.move).what if facts.move else None
    problems = [problem for problem in facts.health.problems if problem != known]
    for problem in problems:
        yield Finding("storage", Severity.NOTE, problem, fix="packhorse storage")
    if not problems:
        yield Finding("storage", Severity.OK, f"{facts.health.kind} {facts.health.version} reports no problems")


# --- foremen and workers ----------------------------------------------------------------------------------------------


def check_foremen(facts: Facts) -> Iterator[Finding]:
    """A foreman that is quiet, keeps no workers, or whose workers die at start leaves every job where it is."""
    alive, every = facts.alive(Subject.FOREMAN), [each for each in facts.workers if each.subject is Subject.FOREMAN]
    if not every:
        yield Finding("foreman", Severity.BAD, "no foreman is running", fix="packhorse work")
        return
    if not alive:
        silence = facts.span(min(facts.now - foreman.beat_at for foreman in every))
        yield Finding("foreman", Severity.BAD, f"no foreman has sent a heartbeat for {silence}", fix="packhorse work")
        return
    idle, dying = idle_foremen(alive, facts.now, facts.lease), [each for each in alive if _is_without_workers(each)]
    problems = [idle_text(idle)] if len(idle) == len(alive) else [idle_text([each]) for each in idle]
    problems += [_no_workers_text(foreman) for foreman in dying]
    severity = Severity.BAD if len(idle) + len(dying) >= len(alive) else Severity.OK
    number = count_text(len(alive), "foreman alive", "foremen alive")
    fix = resume_command(idle) if len(idle) == len(alive) else None
    yield Finding("foreman", severity, number, "; ".join(filter(None, problems)) if idle or dying else "", fix)


def _is_without_workers(foreman: WorkerInfo) -> bool:
    """Do all its workers die when they start?"""
    report = foreman.report
    return report.get("state") == "working" and not report.get("online") and "next_start_in" in report


def _no_workers_text(foreman: WorkerInfo) -> str:
    problem = foreman.report.get("problem")
    return f"the foreman {foreman.host}:{foreman.pid} has no worker{f': {problem}' if problem else ''}"


def check_silent_workers(facts: Facts) -> Iterator[Finding]:
    workers = [each for each in facts.workers if each.subject is Subject.WORKER]
    alive = facts.alive(Subject.WORKER)
    silent = [each for each in workers if each not in alive]
    if not alive:
        yield from _no_worker(facts, workers)
    elif silent:
        one = f"{silent[0].host} pid {silent[0].pid}, " if len(silent) == 1 else ""
        since = facts.span(facts.now - max(worker.beat_at for worker in silent))
        summary = f"{count_text(len(silent), 'worker has', 'workers have')} fallen silent"
        yield Finding("silence", Severity.BAD, summary, f"{one}for {since}", "look at that machine")
    else:
        yield Finding("silence", Severity.OK, "every worker has sent a heartbeat within its lease")


def _no_worker(facts: Facts, workers: Sequence[WorkerInfo]) -> Iterator[Finding]:
    foremen = facts.alive(Subject.FOREMAN)
    if not foremen:
        if not facts.waiting and not workers:
            return  # nothing was ever started, and nothing waits
        detail = facts.waiting_text
        if workers:
            held = sum(queue.counts.get(state, 0) for queue in facts.queues for state in HELD)
            holding = f", holding {count_text(held, 'job')}" if held else ""
            since = facts.span(facts.now - max(worker.beat_at for worker in workers))
            detail = f"{detail}; the last fell silent {since} ago{holding}"
        yield Finding("silence", Severity.BAD, "no worker is running", detail, "packhorse work")
        return
    # A foreman starts workers when there is work, so this is wrong only if it takes long.
    is_late = any(facts.wait(queue) > _LATE for queue in facts.lines)
    if is_late and len(idle_foremen(foremen, facts.now, facts.lease)) < len(foremen):
        problem = next((each.report["problem"] for each in foremen if each.report.get("problem")), None)
        detail = f"{facts.waiting_text}; {problem[:_MAX_TEXT]}" if isinstance(problem, str) else facts.waiting_text
        yield Finding("silence", Severity.BAD, "the foreman has no worker", detail, "packhorse workers --gone")


def check_idle(facts: Facts) -> Iterator[Finding]:
    """Foremen that are alive and take no jobs: a problem if no other foreman does."""
    found = [
        each for each in idle_foremen(facts.workers, facts.now, facts.lease) if each.idle is not IdleReason.STOPPING
    ]
    if found and not facts.accepting:
        yield Finding("crew", Severity.BAD, "no jobs are taken", idle_text(found), resume_command(found))
    elif found:
        yield Finding("crew", Severity.NOTE, "some workers take no jobs", idle_text(found), resume_command(found))


def check_clocks(facts: Facts) -> Iterator[Finding]:
    """Jobs use only the clock of the storage, but the logs of several machines are hard to compare."""
    skews = {each.host: each.report.get("skew") for each in facts.alive(Subject.FOREMAN)}
    wrong = {host: SECOND * skew for host, skew in skews.items() if _is_skewed(skew)}
    if wrong:
        host, skew = max(wrong.items(), key=lambda item: abs(item[1]))
        others = f", and {count_text(len(wrong) - 1, 'other machine')}" if len(wrong) > 1 else ""
        way = "ahead" if skew > 0 else "behind"
        detail = f"the clock of {host[:_MAX_TEXT]} is {facts.span(round(abs(skew)))} {way}{others}"
        yield Finding("clock", Severity.NOTE, "clocks differ", detail, "use the same time server on every machine")


def _is_skewed(skew: object) -> TypeGuard[float]:
    return isinstance(skew, int | float) and abs(skew) > _MAX_SKEW


def check_versions(facts: Facts) -> Iterator[Finding]:
    """Usual during a deployment, and sometimes forgotten after one."""
    found = Counter(
        str(each.info["version"])[:_MAX_TEXT] for each in facts.alive(Subject.FOREMAN) if "version" in each.info
    )
    if set(found) - {__version__}:
        run = [f"{count_text(number, 'foreman runs', 'foremen run')} {name}" for name, number in sorted(found.items())]
        detail = f"{', '.join(run[:_MAX_NAMES])}; this is {__version__}"
        yield Finding("versions", Severity.NOTE, "versions are mixed", detail, "update every machine")


def check_code_versions(facts: Facts) -> Iterator[Finding]:
    """Workers run several versions of the user's code for longer than a deployment takes."""
    alive = facts.alive(Subject.WORKER)
    since: dict[str, int] = {}
    for each in alive:
        if each.code_version is not None:
            since[each.code_version] = min(since.get(each.code_version, facts.now), each.joined_at)
    if len(since) > 1 and facts.now - max(since.values()) > _DEPLOY_TIME:
        newest = sorted(since, key=lambda version: -since[version])
        run = [
            f"{count_text(sum(each.code_version == version for each in alive), 'worker runs', 'workers run')}"
            f" {version[:_MAX_TEXT]}"
            for version in newest
        ]
        detail = f"{', '.join(run[:_MAX_NAMES])}{' …' if len(run) > _MAX_NAMES else ''}"
        yield Finding("code", Severity.NOTE, "versions of your code are mixed", detail)


# --- queues and schedules ---------------------------------------------------------------------------------------------


def check_served(facts: Facts) -> Iterator[Finding]:
    """Jobs in a queue that no worker serves wait for good. A foreman may be about to start a worker that does, so a
    lease is allowed."""
    if not facts.accepting:
        return  # another check reports that
    named = {queue for worker in facts.accepting for queue in worker.queues}
    late = [line for line in facts.lines if line.name not in named and facts.wait(line) > facts.lease]
    found = [
        (line, reason)
        for line in late
        if (reason := why_unserved(facts.accepting, line.name, facts.tasks_by_queue.get(line.name, ())))
    ]
    if len(found) == 1:
        ((line, reason),) = found
        waits = count_text(line.counts.get(QUEUED, 0), "job waits", "jobs wait")
        detail = f"{waits}; its oldest job has waited {facts.span(facts.wait(line))}"
        yield Finding("served", Severity.BAD, reason.what, detail, reason.hint, line.name)
    elif found:
        number, oldest = len(found), facts.span(facts.wait(found[0][0]))
        detail = f"the oldest job has waited {oldest}: {_names([line.name for line, _ in found])}"
        yield Finding("served", Severity.BAD, f"no running worker serves {number:,} queues", detail, "packhorse work")
    else:
        yield Finding("served", Severity.OK, "workers serve every queue in which jobs wait")


def check_behind(facts: Facts) -> Iterator[Finding]:
    """Queues that workers serve, and that still receive more than they end."""
    if not facts.accepting:
        return
    late = [line for line in facts.lines if facts.wait(line) > _LATE]
    found = [
        line
        for line in late
        if (flow := facts.flows.get(line.name))
        and flow.added > _ended(flow)
        and not why_unserved(facts.accepting, line.name, facts.tasks_by_queue.get(line.name, ()))
    ]
    if not found:
        return
    first = found[0]
    waited = f"the oldest job has waited {facts.span(facts.wait(first))}"
    if len(found) == 1:
        flow = facts.flows[first.name]
        detail = f"{waited}; in ten minutes {flow.added:,} jobs came and {_ended(flow):,} ended"
        summary = f"the queue {first.name} is falling behind"
        yield Finding("behind", Severity.BAD, summary, detail, "packhorse scale +2 --all", first.name)
    else:
        detail = f"{waited}: {_names([line.name for line in found])}"
        summary = f"{len(found):,} queues are falling behind"
        yield Finding("behind", Severity.BAD, summary, detail, "packhorse scale +2 --all")


def _ended(flow: RunStats) -> int:
    return flow.completed + flow.dead + flow.aborted


def check_oldest(facts: Facts) -> Iterator[Finding]:
    paused = held_back_text(facts.queues).removeprefix("; ")
    if not facts.lines:
        yield Finding("oldest", Severity.OK, "no job waits in line", paused)
        return
    first = facts.lines[0]
    age = facts.wait(first)
    severity = Severity.OK if age <= facts.max_age else Severity.BAD
    limit = "" if severity is Severity.OK else f"{facts.span(facts.max_age)} is allowed"
    summary = f"the oldest waiting job, of {first.name}, has waited {facts.span(age)}"
    fix = None if severity is Severity.OK else "packhorse scale +2 --all"
    yield Finding("oldest", severity, summary, "; ".join(filter(None, (limit, paused))), fix, first.name)


def check_schedules(facts: Facts) -> Iterator[Finding]:
    late = {each.name: by for each in facts.schedules if (by := late_by(each, facts.now)) is not None}
    if not late:
        return
    number = len(facts.alive(Subject.FOREMAN))
    running = count_text(number, "foreman is running and has", "foremen are running and have")
    why = f"{running} not enqueued it" if number else "no foreman is running"
    due, fix = f"{facts.span(max(late.values()))} ago", "packhorse schedules" if number else "packhorse work"
    if len(late) == 1:
        yield Finding(
            "schedules", Severity.NOTE, f"the schedule {next(iter(late))} is late", f"it was due {due}: {why}", fix
        )
    else:
        detail = f"the first was due {due}: {_names(list(late))}; {why}"
        yield Finding("schedules", Severity.NOTE, f"{len(late):,} schedules are late", detail, fix)


def check_paused_queues(facts: Facts) -> Iterator[Finding]:
    paused = [queue for queue in facts.queues if queue.is_paused and queue.counts.get(State.QUEUED, 0)]
    if len(paused) == 1:
        (queue,) = paused
        waits = count_text(queue.counts[State.QUEUED], "job waits", "jobs wait")
        detail = f"{waits} in it; paused{pause_text(queue, facts.now)}"
        fix = f"packhorse resume {shlex.quote(queue.name)}"
        yield Finding("paused", Severity.NOTE, f"the queue {queue.name} is paused", detail, fix, queue.name)
    elif paused:
        number = sum(queue.counts[State.QUEUED] for queue in paused)
        detail = f"{count_text(number, 'job waits', 'jobs wait')} in {_names([queue.name for queue in paused])}"
        yield Finding("paused", Severity.NOTE, f"{len(paused):,} queues are paused", detail)


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMES]) + (" …" if len(names) > _MAX_NAMES else "")


def check_overdue(facts: Facts) -> Iterator[Finding]:
    """Jobs that are due are queued only if a foreman does its chores."""
    first = facts.storage.find(Filter(states=_DELAYED), limit=1).jobs
    late = facts.now - (first[0].due_at or facts.now) if first else 0
    if late <= facts.max_age:
        yield Finding("due", Severity.OK, "no job is overdue")
        return
    summary = f"a job of {first[0].queue} has been due for {facts.span(late)} and is not queued"
    yield Finding("due", Severity.BAD, summary, fix="a foreman queues it: packhorse work")


# --- the list ---------------------------------------------------------------------------------------------------------


class Caller(StrEnum):
    """Who runs checks."""

    DOCTOR = "doctor"
    STATUS = "status"  # and `top`
    OVERVIEW = "overview"  # the banners of the first web page
    PAGES = "pages"  # the banners of the other web pages
    CHECK = "check"
    HEALTHZ = "healthz"  # for alarms: a few cheap checks
    READYZ = "readyz"  # for load balancers: can this server answer?


_REPORTS = frozenset({Caller.DOCTOR, Caller.STATUS, Caller.OVERVIEW, Caller.PAGES})
_ALL = frozenset(Caller) - {Caller.READYZ}


class Check(NamedTuple):
    """A check and its callers: all but `/readyz`, unless it says otherwise. If a check with `stops` finds something
    bad, the later ones do not run."""

    find: Callable[[Facts], Iterator[Finding]]
    callers: frozenset[Caller] = _ALL
    stops: bool = False


CHECKS: tuple[Check, ...] = (
    Check(check_readable, frozenset({Caller.READYZ})),
    Check(check_writable, frozenset({Caller.CHECK, Caller.HEALTHZ}), stops=True),
    Check(check_moved, _REPORTS, stops=True),
    Check(check_move, _REPORTS),
    Check(check_foremen, frozenset({Caller.DOCTOR, Caller.CHECK, Caller.HEALTHZ})),
    Check(check_silent_workers, _REPORTS),
    Check(check_idle, _REPORTS),
    Check(check_served, _REPORTS | {Caller.CHECK}),
    Check(check_behind, _REPORTS),
    Check(check_oldest, frozenset({Caller.DOCTOR, Caller.CHECK})),
    Check(check_overdue, frozenset({Caller.DOCTOR, Caller.CHECK})),
    Check(check_schedules, _REPORTS),
    Check(check_paused_queues, _REPORTS),
    Check(check_clocks, _REPORTS),
    Check(check_versions, _REPORTS),
    Check(check_code_versions, _REPORTS),
    # Shown in the overview, not on every page: such a problem may last, and the storage page shows it too.
    # `doctor` runs it with its own checks of the storage.
    Check(check_storage, frozenset({Caller.STATUS, Caller.OVERVIEW})),
)
"""Every check, the most important first."""


def findings(facts: Facts, caller: Caller) -> Iterator[Finding]:
    """What the checks of this caller find."""
    for check in CHECKS:
        if caller in check.callers:
            found = list(check.find(facts))
            yield from found
            if check.stops and not all(finding.is_ok for finding in found):
                return
