"""Actions on many jobs: first a page that says how many and shows some, then the action, in steps of two seconds.

It works on what was seen: the form carries the filter and the moment of the list, and what came or changed later is
left alone; of those that were ticked, what changes after the question. More than a hundred want their number typed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from packhorse.core.errors import BadValue, QueueNotFound
from packhorse.core.job import Job, Operation
from packhorse.monitor.actions import JobAction
from packhorse.monitor.filters import chooses_some, parse_words_apart, split_words
from packhorse.storage.records import Filter
from packhorse.web.api.problem import Problem, problem_of
from packhorse.web.context import Call
from packhorse.web.pages.jobs import OPERATIONS, UNKNOWN_QUEUE, queue_names, row_of
from packhorse.web.pages.page import PageRequest, PageResponse, Redirect, address, form_action
from packhorse.web.security.operator import Role

MOST_UNTYPED = 100
_EXAMPLES = 3


class BulkSelection(NamedTuple):
    """The jobs to which something is to be done: how many, and some of them."""

    number: int
    exact: bool
    examples: list[Job]
    ids: list[str]  # those that were ticked; empty: all that fit


@form_action("/bulk")
def bulk(call: Call, request: PageRequest) -> PageResponse | Redirect:
    """The ticked jobs, or all that fit: ask, or do it."""
    operation = _operation(request.field("action"))
    call.operator.require(Role.ADMIN if operation is Operation.DELETE else Role.OPERATE)
    action = _action(request, operation)
    ids = request.fields("id") if request.field("scope") != "all" else []
    if not ids and request.field("scope") != "all":
        raise BadValue("no job was ticked", hint="tick some, or choose all that fit the filter")
    try:
        if action.queue == "":
            raise BadValue("to which queue?", hint="write its name")
        call.actions.check(action, new_queue_hint=UNKNOWN_QUEUE)
    except (BadValue, QueueNotFound) as error:
        # The question again, with the field that is wrong; what was ticked stays so.
        selection = _ticked(call, ids) if ids else _fitting(call, action, _where(call, request))
        return _ask(call, request, action, selection, problem_of(error))
    return _do_to_ticked(call, request, action, ids) if ids else _do_to_fitting(call, request, action)


def _do_to_ticked(call: Call, request: PageRequest, action: JobAction, ids: list[str]) -> PageResponse | Redirect:
    if request.field("sure") != "yes" and (len(ids) > 1 or action.operation is Operation.DELETE):
        return _ask(call, request, action, _ticked(call, ids))
    is_asked = request.field("sure") == "yes" and request.field("seen_at")
    seen_at = _number(request.field("seen_at")) if is_asked else None
    done = call.actions.apply_to_ids(action, ids[:1_000], seen_at)
    return _back(request, action.operation, done.changed, sum(done.skipped.values()))


def _ticked(call: Call, ids: list[str]) -> BulkSelection:
    jobs = call.web.storage.get_many(ids[:1_000])
    shown = [call.reader.get(job.id) for job in jobs[:_EXAMPLES] if call.operator.sees(job.queue)]
    return BulkSelection(len(ids), True, shown, ids)


def _where(call: Call, request: PageRequest) -> Filter:
    seen_at = _number(request.field("seen_at")) if request.field("seen_at") else call.reader.now()
    words = split_words([request.field("filter")]) if request.field("filter") else []
    where = parse_words_apart(words, seen_at)
    if not chooses_some(words, seen_at):
        raise BadValue("without a filter this would mean every job", hint="choose a state, a queue or a task first")
    return where


def _fitting(call: Call, action: JobAction, where: Filter) -> BulkSelection:
    possible = action.legal(where)
    count = call.reader.count(possible)
    return BulkSelection(count.number, count.exact, call.reader.find(possible, None, _EXAMPLES).jobs, [])


def _do_to_fitting(call: Call, request: PageRequest, action: JobAction) -> PageResponse | Redirect:
    where = _where(call, request)
    seen_at = _number(request.field("seen_at"))
    expected = request.field("expected")
    if request.field("sure") != "yes" or not _is_typed(request):
        return _ask(call, request, action, _fitting(call, action, where))
    done = call.actions.apply_to_matching(action, where, seen_at, request.field("cursor") or None)
    changed = done.changed + _number(request.field("changed") or "0")
    skipped = sum(done.skipped.values()) + _number(request.field("skipped") or "0")
    if done.next is None:
        return _back(request, action.operation, changed, skipped)
    return progress_page(
        action, request.field("filter"), seen_at, (changed, skipped), expected, done.next, request.field("back")
    )


def progress_page(
    action: JobAction, words: str, seen_at: int, done: tuple[int, int], expected: str, cursor: str, back: str
) -> PageResponse:
    """A page that continues the action; `done` is how many jobs were changed and skipped."""
    context = {
        **_form_fields(action),
        "filter_text": words,
        "seen_at": seen_at,
        "changed": done[0],
        "skipped": done[1],
        "expected": expected,
        "next": cursor,
        "back": back,
    }
    return PageResponse("bulk_going.html", f"{OPERATIONS[action.operation]} jobs", context)


def _is_typed(request: PageRequest) -> bool:
    expected = request.field("expected")
    many = expected.isdigit() and int(expected) > MOST_UNTYPED
    return not many or request.field("typed").replace(",", "").replace("+", "") == expected


def _ask(
    call: Call, request: PageRequest, action: JobAction, selection: BulkSelection, problem: Problem | None = None
) -> PageResponse:
    now = call.reader.now()
    context = {
        **_form_fields(action),
        "number": selection.number,
        "exact": selection.exact,
        "rows": [row_of(job, now) for job in selection.examples],
        "ids": selection.ids,
        "scope": request.field("scope"),
        "filter_text": request.field("filter"),
        "seen_at": request.field("seen_at") if request.field("seen_at") and not selection.ids else str(now),
        "problem": problem,
        "queue_names": queue_names(call.reader),
        "back": request.field("back"),
        "must_type": selection.number > MOST_UNTYPED and not selection.ids,
        "is_wrong": request.field("sure") == "yes",
    }
    title = f"{OPERATIONS[action.operation]} {selection.number:,} jobs?"
    return PageResponse("bulk.html", title, context, status=problem.status if problem else 200)


def _form_fields(action: JobAction) -> dict[str, Any]:
    """The fields of the form that repeats the action."""
    return {
        "operation": action.operation.value,
        "word": OPERATIONS[action.operation],
        "priority": action.priority,
        "queue_name": action.queue,
        "is_new": action.new_queue,
    }


def _back(request: PageRequest, operation: Operation, changed: int, skipped: int) -> Redirect:
    back = request.field("back")
    path = back if back.startswith(("/jobs", "/failures", "/queues")) else "/jobs"
    joint = "&" if "?" in path else "?"
    said = address("", said="bulk", did=operation.value, changed=changed, skipped=skipped)
    return Redirect(f"{path}{joint}{said[1:]}")


def _action(request: PageRequest, operation: Operation) -> JobAction:
    if operation is Operation.SET_PRIORITY:
        return JobAction(operation, priority=_number(request.field("priority")))
    if operation is Operation.SET_QUEUE:
        return JobAction(operation, queue=request.field("queue"), new_queue=bool(request.field("new")))
    return JobAction(operation)


def _operation(word: str) -> Operation:
    try:
        operation = Operation(word)
    except ValueError:
        raise BadValue(f"{word!r} is not an action on jobs") from None
    if operation not in OPERATIONS:
        raise BadValue(f"{word!r} is not an action on jobs")
    return operation


def _number(text: str) -> int:
    if not text.isdigit() or len(text) > 18:
        raise BadValue(f"{text[:20]!r} is not a number", hint="go back and try again")
    return int(text)
