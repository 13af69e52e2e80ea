"""The cards of a job's page. Each function computes the values of one part of `job.html`.

`JobView` reads everything once; the page combines the parts. Text that others wrote is escaped here.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import msgspec

from packhorse.core.event import Event, Kind
from packhorse.core.job import DEAD, FINAL, HELD, RETRYING, RUNNING, WAITING, Job
from packhorse.core.outcome import Failure
from packhorse.core.version import __version__
from packhorse.monitor.serializers import object_fields
from packhorse.monitor.stacks import stacks_of
from packhorse.monitor.text import attempt_text, python_text, state_text
from packhorse.storage.records import FailureGroup, LogLevel, LogLine, WorkerInfo
from packhorse.web.api.jobs import short_call
from packhorse.web.context import Call
from packhorse.web.pages.error_text import Piece, issue_text, pieces_of
from packhorse.web.pages.filters import capital, pretty, span, with_commands, with_moment
from packhorse.web.pages.jobs import operations_for, queue_names
from packhorse.web.pages.timeline import timeline_of
from packhorse.web.pages.workers import may_order, stood_at
from packhorse.web.security.redaction import HIDDEN
from packhorse.web.text import safe

EVENTS = 500
"""The most events of one job that its page reads."""
LEVELS = {"": "all", LogLevel.INFO: "info+", LogLevel.WARNING: "warning+", LogLevel.ERROR: "error"}
"""The levels to choose from: as in the address, and as on the page."""
_FEW_EVENTS = 30
_LINES = 1_000
_LOOKS = 50  # pages read to find the end of a log; a job keeps 1,000 lines unless the settings say more


class JobView(NamedTuple):
    """A job, and what else its page needs."""

    call: Call
    job: Job
    now: int
    events: list[Event]
    failure: Failure | None
    worker: WorkerInfo | None  # the process that runs it
    cause: FailureGroup | None  # all failures of its kind
    level: str  # of the log: one of `LEVELS`

    @classmethod
    def of(cls, call: Call, job: Job, level: str = "") -> Self:
        return cls(
            call,
            job,
            call.reader.now(),
            call.reader.history.of_job(job.id, EVENTS),
            Failure.from_json(job.error) if job.error else None,
            _worker(call, job.owner),
            _cause(call, job),
            level if level in LEVELS else "",
        )


def cards_of(seen: JobView) -> dict[str, Any]:
    """Return everything that `job.html` shows of a job."""
    parts = (_heading, _sentence, _failure, _attempts, _standing, _log, _history, _arguments, _result, _facts)
    return {name: value for part in parts for name, value in part(seen).items()}


def _heading(seen: JobView) -> dict[str, Any]:
    """Its name, and the actions on it."""
    job = seen.job
    return {
        "job": job,
        "state": state_text(job),
        "call": safe(short_call(job)),
        "operations": operations_for(job),
        "queue_names": queue_names(seen.call.reader),
        "is_live": job.state not in FINAL,
        "is_held": job.state in HELD,
        "is_waiting": job.state in WAITING,
    }


def _sentence(seen: JobView) -> dict[str, Any]:
    """What happened to it."""
    why = capital(_why(seen.call, seen.job, seen.failure))
    return {
        "why": with_commands(with_moment(why, seen.job.finished_at, seen.now)),
        "failure": seen.failure,
        "has_failed": seen.failure is not None and seen.job.state in (DEAD, RETRYING),
        "same": seen.cause.number if seen.cause else 0,
        "since": seen.cause.first_version if seen.cause else None,
    }


def _failure(seen: JobView) -> dict[str, Any]:
    """Its traceback, and the text for an issue."""
    failure = seen.failure
    if failure is None:
        return {"pieces": [], "issue": ""}
    pieces = pieces_of(failure.traceback) if failure.traceback else []
    return {"pieces": pieces, "issue": issue_of(seen.call, seen.job, failure, pretty(seen.job.args)[0])}


def _attempts(seen: JobView) -> dict[str, Any]:
    versions = _code_versions_of(seen.call, seen.events)
    life = timeline_of(seen.job, seen.events, seen.now, versions)
    return {"life": life, "kept": life.kept(seen.failure)}


def _standing(seen: JobView) -> dict[str, Any]:
    """Where it is in its code: the stack that its worker reported, if it did."""
    return {"may_ask": seen.job.state is RUNNING and may_order(seen.call), "stood": _stood(seen)}


def _log(seen: JobView) -> dict[str, Any]:
    lines, number, last = _last_lines(seen.call, seen.job.id, LogLevel(seen.level or LogLevel.DEBUG))
    return {"lines": lines, "line_count": number, "last_line": last, "level": seen.level, "levels": LEVELS}


def _history(seen: JobView) -> dict[str, Any]:
    return {"events": seen.events[-_FEW_EVENTS:][::-1], "event_count": len(seen.events)}


class JobThen(NamedTuple):
    """A job as it was after the event with this id."""

    id: int
    text: str
    unknown: list[str]


def then_of(event: Event) -> JobThen | None:
    """Return the job after this event, as JSON."""
    fields = object_fields(event)
    if fields is None:
        return None
    unknown = fields.pop("unknown", [])
    text = msgspec.json.format(msgspec.json.encode(fields), indent=2).decode()
    return JobThen(event.id, safe(text), unknown)


def _arguments(seen: JobView) -> dict[str, Any]:
    shown, is_cut = pretty(seen.job.args)
    is_whole = not is_cut and seen.job.args != HIDDEN
    return {"args": shown, "args_cut": is_cut, "as_python": safe(python_text(seen.job)) if is_whole else ""}


def _result(seen: JobView) -> dict[str, Any]:
    shown, is_cut = pretty(seen.job.result)
    return {"result": shown, "result_cut": is_cut}


def _facts(seen: JobView) -> dict[str, Any]:
    return {
        "tries": attempt_text(seen.job),
        "worker": seen.worker,
        "code_version": _code_version(seen.call, seen.job, seen.failure),
        "time_left": _time_left(seen.job, seen.now),
        "memory_limit": _memory_limit(seen.call, seen.job),
        "copied_from": _copied_from(seen.events),
        "subscribers": seen.call.web.storage.subscribers(seen.job.id),
        "meta": pretty(seen.job.meta)[0],
        "kept_until": _kept_until(seen.call, seen.job),
    }


# --- facts, in few words ----------------------------------------------------------------------------------------------


def issue_of(call: Call, job: Job, failure: Failure, args: str) -> str:
    """Describe the failure as text for an issue, with the versions it ran on where they are known."""
    health = call.web.cache.health()
    versions = [*_ran_on(call, job), f"{health.kind} {health.version}"]
    if (code := _code_version(call, job, failure)) is not None:
        versions.insert(0, f"own code {code}")
    cause, why = _cause(call, job), _why(call, job, failure)
    same = cause.number if cause else 0
    names = call.web.redaction.names(job.task)
    text = issue_text(job, short_call(job), failure, args=args, why=why, same=same, versions=versions, names=names)
    return safe(text)


def _why(call: Call, job: Job, failure: Failure | None) -> str:
    """Say why the job is in its state, without the error, which the page shows before it."""
    why = call.reader.why(job.id, span)
    return why.partition(f" with {failure.type}")[0] if failure is not None and job.state is DEAD else why


def _worker(call: Call, owner: str | None) -> WorkerInfo | None:
    return next((each for each in call.reader.workers() if each.id == owner), None)


def _memory_limit(call: Call, job: Job) -> int | None:
    """The memory limit of its process, as its task announced it."""
    limits = (task.options.get("memory_limit") for task in call.reader.tasks() if task.name == job.task)
    limit = next(limits, None)
    return limit if isinstance(limit, int) else None


def _cause(call: Call, job: Job) -> FailureGroup | None:
    return next((group for group in call.reader.failures() if group.cause == job.cause), None)


def _code_versions(call: Call) -> dict[str, str]:
    """The version of the user's code on each present worker."""
    return {each.id: each.code_version for each in call.reader.workers() if each.code_version is not None}


def _code_versions_of(call: Call, events: list[Event]) -> dict[str, str]:
    """The same, with workers that exited in the last day if one of them ran the job of these events."""
    versions = _code_versions(call)
    if not versions or all(event.owner in versions for event in events if event.kind is Kind.STARTED):
        return versions
    starts = [each.began for each in call.reader.exited_workers() if each.began is not None]
    gone = {event.owner: (event.data or {}).get("version") for event in starts}
    return {owner: version for owner, version in gone.items() if owner and isinstance(version, str)} | versions


def _code_version(call: Call, job: Job, failure: Failure | None) -> str | None:
    """The version that ran the job last, from its failure or its worker."""
    from_failure = failure.version if failure is not None and job.state not in HELD else None
    return from_failure or _code_versions(call).get(job.owner or job.last_owner or "")


def _ran_on(call: Call, job: Job) -> list[str]:
    """The versions of its worker if it is still there; else those of the web."""
    worker = _worker(call, job.owner or job.last_owner)
    facts = worker.info if worker is not None else {}
    packhorse = f"Packhorse {facts['version']}" if "version" in facts else f"Packhorse {__version__} (of the web)"
    return [packhorse, *([f"Python {facts['python']}"] if "python" in facts else [])]


def _stood(seen: JobView) -> tuple[int, list[Piece]] | None:
    """The stack of this attempt that an operator last asked its worker for, and its time."""
    worker, job = seen.worker, seen.job
    reported = stacks_of(worker) if worker is not None and job.state in HELD else None
    found = reported.of_job(job.id) if reported else None
    if worker is None or reported is None or found is None or stood_at(worker, reported) < (job.started_at or 0):
        return None
    return stood_at(worker, reported), pieces_of(found.text)


def _last_lines(call: Call, id: str, level: LogLevel) -> tuple[list[LogLine], int, int]:
    """The last lines of this level or above, their number, and the id of the last line of any level, as far as the log
    was read."""
    lines: list[LogLine] = []
    number = last = 0
    for _ in range(_LOOKS):
        page = call.reader.log_lines(id, last, _LINES)
        found = [line for line in page if line.level.reaches(level)]
        lines, number, last = [*lines, *found][-_LINES:], number + len(found), page[-1].id if page else last
        if len(page) < _LINES:
            break
    return lines, number, last


def _time_left(job: Job, now: int) -> int | None:
    """How long this attempt may still run."""
    if job.state is not RUNNING or job.timeout is None or job.started_at is None:
        return None
    return max(0, job.started_at + job.timeout - now)


def _copied_from(events: list[Event]) -> str | None:
    found = [(event.data or {}).get("copied_from") for event in events if event.kind is Kind.ADDED]
    return str(found[0]) if found and found[0] else None


def _kept_until(call: Call, job: Job) -> int | None:
    settings = call.web.app.settings
    keep = {"completed": settings.keep_completed, "dead": settings.keep_dead, "aborted": settings.keep_aborted}
    if job.persistent or job.finished_at is None or job.state not in keep:
        return None
    return job.finished_at + keep[job.state]
