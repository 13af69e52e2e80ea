"""One job: what happened in one sentence, its life, its failure, its log, its arguments, and what can be done."""

from __future__ import annotations

import json
from typing import Any

from packhorse import __version__
from packhorse.errors import BadValue, JobNotFound
from packhorse.event import Event, Kind
from packhorse.failure import Failure
from packhorse.id_part import WHOLE
from packhorse.job import (
    ABORTED,
    COMPLETED,
    DEAD,
    FINAL,
    HELD,
    QUEUED,
    RETRYING,
    RUNNING,
    WAITING,
    Job,
    Operation,
    rank_of,
)
from packhorse.job_text import python_text, state_text, try_text
from packhorse.stacks import stacks_of
from packhorse.storage.records import LogLine, WorkerInfo
from packhorse.web.api.jobs import short_call
from packhorse.web.api.problem import Problem
from packhorse.web.pages.find import LIKE_AN_ID
from packhorse.web.pages.issue_text import issue_text
from packhorse.web.pages.jobs import UNKNOWN_QUEUE, operations_for, queue_names
from packhorse.web.pages.life import life_of
from packhorse.web.pages.page import Asked, Elsewhere, Shown, deed, page, put_right, undoable
from packhorse.web.pages.traceback import Piece, pieces_of
from packhorse.web.pages.words import capital, pretty, safe, with_commands, with_moment
from packhorse.web.pages.workers import may_order, stood_at
from packhorse.web.security.operator import Role
from packhorse.web.site import Call

_LINES = 1_000
_LOOKS = 50  # for the end of a log; a job keeps a thousand lines unless it is told to keep more
_EVENTS = 500
_FEW_EVENTS = 30
_KEPT_AS = {"completed": "keep_completed", "dead": "keep_dead", "aborted": "keep_aborted"}


@page("/jobs/{id}", "jobs")
def job(call: Call, asked: Asked, id: str) -> Shown | Elsewhere:
    """Everything about one job; of one that is gone, its history. A part of an id leads to its job."""
    if len(id) < WHOLE and LIKE_AN_ID.fullmatch(id):
        found = call.reader.with_part(id)
        if len(found) == 1 and found[0].id != id:
            return Elsewhere(f"/jobs/{found[0].id}")
    return _job_page(call, asked, id)


def _job_page(call: Call, asked: Asked, id: str, problem: Problem | None = None) -> Shown:
    """`problem`: what was wrong with the form that moves it, or sets its priority."""
    try:
        record = call.reader.get(id)
    except JobNotFound:
        return _gone(call, id)
    now = call.reader.now()
    events = call.reader.history.of_job(id, _EVENTS)
    lines, line_count = _log(call, id)
    failure = Failure.from_json(record.error) if record.error else None
    shown_args, args_cut = pretty(record.args)
    shown_result, result_cut = pretty(record.result)
    return Shown(
        "job.html",
        f"{record.task} {record.state}",
        {
            "job": record,
            "state": state_text(record),
            "call": safe(short_call(record)),
            "tries": try_text(record),
            "why": with_commands(with_moment(capital(_why(call, record, failure)), record.finished_at, now)),
            "failure": failure,
            "pieces": pieces_of(failure.traceback) if failure and failure.traceback else [],
            "same": _same(call, record),
            "since": _since(call, record),
            "issue": issue_of(call, record, failure, shown_args) if failure is not None else "",
            "life": life_of(record, events, now, _code_versions_of(call, events)),
            "code_version": _code_version(call, record, failure),
            "lines": lines,
            "line_count": line_count,
            "last_line": lines[-1].id if lines else 0,
            "args": shown_args,
            "args_cut": args_cut,
            "args_size": len(record.args),
            "result": shown_result,
            "result_cut": result_cut,
            "meta": pretty(record.meta)[0],
            "events": events[-_FEW_EVENTS:][::-1],
            "event_count": len(events),
            "copied_from": _copied_from(events),
            "subscribers": call.site.storage.subscribers(id),
            "operations": operations_for(record),
            "queue_names": queue_names(call.reader),
            "is_live": record.state not in FINAL,
            "is_held": record.state in HELD,
            "may_ask": record.state is RUNNING and may_order(call),
            "stood": _stood(call, record),
            "worker": _worker(call, record),
            "time_left": _time_left(record, now),
            "as_python": "" if args_cut else safe(python_text(record)),
            "is_waiting": record.state in WAITING,
            "has_failed": failure is not None and record.state in (DEAD, RETRYING),
            "is_completed": record.state is COMPLETED,
            "kept_until": _kept_until(call, record),
            "problem": problem,
            "typed": {name: asked.field(name) for name in ("queue", "priority", "new")},
        },
        topics=(f"job:{id}",),
        status=problem.status if problem else 200,
    )


def _why(call: Call, record: Job, failure: Failure | None) -> str:
    """Why it is where it is; the error itself stands before it already."""
    why = call.reader.why(record.id)
    return why.partition(f" with {failure.type}")[0] if failure is not None and record.state is DEAD else why


def issue_of(call: Call, record: Job, failure: Failure, args: str) -> str:
    """The failure as text for an issue, with what it ran on as far as that is known."""
    health = call.site.glance.health()
    versions = [*_ran_on(call, record), f"{health.kind} {health.version}"]
    if (code := _code_version(call, record, failure)) is not None:
        versions.insert(0, f"own code {code}")
    same, why = _same(call, record), _why(call, record, failure)
    return safe(issue_text(record, short_call(record), failure, args=args, why=why, same=same, versions=versions))


def _code_versions(call: Call) -> dict[str, str]:
    """The version of the user's code that each worker runs, of those that are there."""
    return {each.id: each.code_version for each in call.reader.workers() if each.code_version is not None}


def _code_versions_of(call: Call, events: list[Event]) -> dict[str, str]:
    """The same with those that have ended in the last day, if one of them ran the job that these events are of."""
    versions = _code_versions(call)
    if not versions or all(event.owner in versions for event in events if event.kind is Kind.STARTED):
        return versions
    told = [each.began for each in call.reader.departures() if each.began is not None]
    gone = {event.owner: (event.data or {}).get("version") for event in told}
    return {owner: version for owner, version in gone.items() if owner and isinstance(version, str)} | versions


def _code_version(call: Call, record: Job, failure: Failure | None) -> str | None:
    """The version that ran it last: as its failure tells, or as its worker does."""
    told = failure.version if failure is not None and record.state not in HELD else None
    return told or _code_versions(call).get(record.owner or record.last_owner or "")


def _ran_on(call: Call, record: Job) -> list[str]:
    """The versions of its worker, which is known as long as that is there; if it is not, of the web."""
    owner = record.owner or record.last_owner
    worker = next((each for each in call.reader.workers() if each.id == owner), None)
    told = worker.info if worker is not None else {}
    packhorse = f"Packhorse {told['version']}" if "version" in told else f"Packhorse {__version__} (of the web)"
    return [packhorse, *([f"Python {told['python']}"] if "python" in told else [])]


def _stood(call: Call, record: Job) -> tuple[int, list[Piece]] | None:
    """Where this attempt stood when somebody last asked its worker, and when that was."""
    info = next((each for each in call.reader.workers() if each.id == record.owner), None)
    told = stacks_of(info) if info is not None and record.state in HELD else None
    found = told.of_job(record.id) if told else None
    if info is None or told is None or found is None or stood_at(info, told) < (record.started_at or 0):
        return None
    return stood_at(info, told), pieces_of(found.text)


def _log(call: Call, id: str) -> tuple[list[LogLine], int]:
    """The last lines of its log, and how many there are, as far as they were gone through."""
    lines, number = call.reader.log_lines(id, 0, _LINES), 0
    page = lines
    for _ in range(_LOOKS):
        number += len(page)
        if len(page) < _LINES:
            break
        page = call.reader.log_lines(id, page[-1].id, _LINES)
        lines = [*lines, *page][-_LINES:]
    return lines, number


def _worker(call: Call, record: Job) -> WorkerInfo | None:
    """The process that runs it."""
    return next((each for each in call.reader.workers() if each.id == record.owner), None)


def _time_left(record: Job, now: int) -> int | None:
    """How long this attempt may still run."""
    if record.state is not RUNNING or record.timeout is None or record.started_at is None:
        return None
    return max(0, record.started_at + record.timeout - now)


def _gone(call: Call, id: str) -> Shown:
    """What is still known of a job that was deleted or pruned; JobNotFound if that is nothing."""
    events = call.reader.history.of_job(id, _EVENTS)
    settings, ended = call.site.app.settings, next((one for one in reversed(events) if one.state in _KEPT_AS), None)
    context = {
        "id": id,
        "events": events[::-1],
        "life": life_of(None, events, call.reader.now()),
        "last": events[-1],
        "queue": events[-1].queue,
        "kept": settings.shown(_KEPT_AS[ended.state or ""]) if ended else None,
    }
    return Shown("job_gone.html", "This job is gone", context, status=404)


def _same(call: Call, record: Job) -> int:
    """How many failures of this kind there were, this one among them."""
    return next((group.number for group in call.reader.failures() if group.cause == record.cause), 0)


def _since(call: Call, record: Job) -> str | None:
    """The version of the code with which it was first seen to fail so."""
    return next((group.first_version for group in call.reader.failures() if group.cause == record.cause), None)


def _copied_from(events: list[Event]) -> str | None:
    found = [(event.data or {}).get("copied_from") for event in events if event.kind is Kind.ADDED]
    return str(found[0]) if found and found[0] else None


def _kept_until(call: Call, record: Job) -> int | None:
    settings = call.site.app.settings
    keep = {"completed": settings.keep_completed, "dead": settings.keep_dead, "aborted": settings.keep_aborted}
    if record.persistent or record.finished_at is None or record.state not in keep:
        return None
    return record.finished_at + keep[record.state]


# --- what can be done -------------------------------------------------------------------------------------------------


@deed("/jobs/{id}/retry")
def retry(call: Call, asked: Asked, id: str) -> Elsewhere:
    """All its tries again."""
    call.steps.steer(Operation.RETRY, id)
    return Elsewhere(f"/jobs/{id}?said=retried")


@deed("/jobs/{id}/abort")
def abort(call: Call, asked: Asked, id: str) -> Elsewhere:
    """Stop it for good."""
    is_awaited = bool(call.site.storage.subscribers(id))  # who waits for it has heard that it was aborted
    before = call.steps.steer(Operation.ABORT, id)
    if not is_awaited and _can_be_retried_to(before, call.site.storage.get(id)):
        return undoable(call, f"/jobs/{id}", "aborted", id)
    return Elsewhere(f"/jobs/{id}?said=aborted")


def _can_be_retried_to(before: Job, after: Job | None) -> bool:
    """Is a job that was aborted what and where it was, once it is retried? Not if that would give it back tries or
    time, nor take a better place from it, nor if it has been in a worker's hands in between."""
    was_plain = before.state is QUEUED and before.rank == rank_of(before.priority)
    has_no_past = not (before.failures or before.halts or before.expires or before.total_timeout)
    was_left = after is not None and after.state is ABORTED and after.fence == before.fence
    return was_plain and has_no_past and was_left


@deed("/jobs/{id}/force_start")
def force_start(call: Call, asked: Asked, id: str) -> Elsewhere:
    """Run it next."""
    call.steps.steer(Operation.FORCE_START, id)
    return Elsewhere(f"/jobs/{id}?said=started")


@deed("/jobs/{id}/set_priority")
def set_priority(call: Call, asked: Asked, id: str) -> Shown | Elsewhere:
    """Move it in line."""
    return put_right(lambda: _set_priority(call, asked, id), lambda problem: _job_page(call, asked, id, problem))


def _set_priority(call: Call, asked: Asked, id: str) -> Elsewhere:
    text = asked.field("priority")
    if not text.isdigit() or len(text) > 2:
        raise BadValue(f"{text[:20]!r} is not a priority", hint="write a number from 1 to 10")
    call.steps.steer(Operation.SET_PRIORITY, id, int(text))
    return Elsewhere(f"/jobs/{id}?said=moved")


@deed("/jobs/{id}/set_queue")
def set_queue(call: Call, asked: Asked, id: str) -> Shown | Elsewhere:
    """Put it in another queue; `new` makes that."""
    return put_right(lambda: _set_queue(call, asked, id), lambda problem: _job_page(call, asked, id, problem))


def _set_queue(call: Call, asked: Asked, id: str) -> Elsewhere:
    new, queue = bool(asked.field("new")), asked.field("queue")
    call.steps.steer(Operation.SET_QUEUE, id, queue=queue, unknown=UNKNOWN_QUEUE, new=new)
    return Elsewhere(f"/jobs/{id}?said=requeued")


@deed("/jobs/{id}/stack")
def stack(call: Call, asked: Asked, id: str) -> Elsewhere:
    """Have its worker say where it stands."""
    owner = call.reader.stored(id).owner
    is_told = owner is not None and bool(call.steps.stacks(owner))
    return Elsewhere(f"/jobs/{id}?said={'stacks' if is_told else 'no_stacks'}")


@page("/jobs/{id}/delete", "jobs")
def ask_to_delete(call: Call, asked: Asked, id: str) -> Shown:
    """Is that meant?"""
    record = call.reader.get(id)
    return Shown("job_delete.html", "Delete this job?", {"job": record, "call": safe(short_call(record))})


@deed("/jobs/{id}/delete", Role.ADMIN)
def delete(call: Call, asked: Asked, id: str) -> Elsewhere:
    """Remove it."""
    call.steps.steer(Operation.DELETE, id)
    return Elsewhere("/jobs?said=deleted")


@page("/jobs/{id}/copy", "jobs")
def edit(call: Call, asked: Asked, id: str) -> Shown:
    """A form with its arguments, for a copy."""
    record = call.reader.get(id)
    args = json.dumps(json.loads(record.args), indent=2, ensure_ascii=False)
    return _copy_form(record, {"args": args, "queue": record.queue, "priority": str(record.priority), "delay": ""})


@deed("/jobs/{id}/copy")
def copy(call: Call, asked: Asked, id: str) -> Shown | Elsewhere:
    """Enqueue the copy."""
    record = call.reader.get(id)
    typed = {name: asked.field(name) for name in ("args", "queue", "priority", "delay")}
    return put_right(lambda: _copy(call, id, typed), lambda problem: _copy_form(record, typed, problem))


def _copy_form(record: Job, typed: dict[str, str], problem: Problem | None = None) -> Shown:
    context = {"job": record, "call": safe(short_call(record)), "typed": typed, "problem": problem}
    return Shown("job_copy.html", "Edit and run a copy", context, status=problem.status if problem else 200)


def _copy(call: Call, id: str, typed: dict[str, str]) -> Elsewhere:
    options: dict[str, Any] = {name: typed[name] for name in ("queue", "delay") if typed[name]}
    if typed["priority"]:
        options["priority"] = _whole(typed["priority"], "the priority")
    handle = call.steps.copy(id, json_object(typed["args"]), options)
    return Elsewhere(f"/jobs/{handle.id}?said=copied")


def json_object(text: str) -> dict[str, Any]:
    """The JSON object that a user typed; BadValue says where it is wrong."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise BadValue(f"the arguments are not JSON: {error}", hint='e.g. {"user_id": 7}') from None
    if not isinstance(value, dict):
        raise BadValue("the arguments must be an object", hint='e.g. {"user_id": 7}')
    return value


def _whole(text: str, what: str) -> int:
    if not text.isdigit() or len(text) > 9:
        raise BadValue(f"{what} must be a whole number, not {text[:20]!r}")
    return int(text)
