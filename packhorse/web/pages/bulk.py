"""Doing something to many jobs: first a page that says how many and shows some, then the deed, in steps of two seconds.

It works on what was seen: the form carries the filter and the moment of the list, and what came or changed later is
left alone. More than a hundred jobs want their number typed.
"""

from __future__ import annotations

from typing import NamedTuple

from packhorse.errors import BadValue, QueueNotFound
from packhorse.filter_words import parse_parts, say_which, split_words
from packhorse.job import Job, Operation
from packhorse.storage.records import Filter
from packhorse.web.api.problem import Problem, problem_of
from packhorse.web.pages.jobs import OPERATIONS, UNKNOWN_QUEUE, queue_names, row_of
from packhorse.web.pages.page import Asked, Elsewhere, Shown, address, deed
from packhorse.web.security.operator import Role
from packhorse.web.site import Call

MOST_UNTYPED = 100
_EXAMPLES = 3


class Target(NamedTuple):
    """What is set, by the operations that set something."""

    priority: int | None = None
    queue: str | None = None
    new: bool = False  # the queue need not be known yet


@deed("/bulk")
def bulk(call: Call, asked: Asked) -> Shown | Elsewhere:
    """The ticked jobs, or all that fit: ask, or do it."""
    operation = _operation(asked.field("action"))
    call.operator.require(Role.ADMIN if operation is Operation.DELETE else Role.OPERATE)
    to = _target(asked, operation)
    ids = asked.fields("id") if asked.field("scope") != "all" else []
    if not ids and asked.field("scope") != "all":
        raise BadValue("no job was ticked", hint="tick some, or choose all that fit the filter")
    try:
        if to.queue == "":
            raise BadValue("to which queue?", hint="write its name")
        call.steps.check(operation, to.priority, to.queue, unknown=UNKNOWN_QUEUE, new=to.new)
    except (BadValue, QueueNotFound) as error:
        return _put_right(call, asked, operation, ids, to, problem_of(error))
    if ids:
        return _ticked(call, asked, operation, ids, to)
    return _fitting(call, asked, operation, to)


def _ticked(call: Call, asked: Asked, operation: Operation, ids: list[str], to: Target) -> Shown | Elsewhere:
    if asked.field("sure") != "yes" and (len(ids) > 1 or operation is Operation.DELETE):
        return _ask_of_ticked(call, asked, operation, ids, to)
    done = call.steps.steer_these(operation, ids[:1_000], to.priority, to.queue, new=to.new)
    return _back(asked, operation, done.changed, sum(done.skipped.values()))


def _ask_of_ticked(
    call: Call, asked: Asked, operation: Operation, ids: list[str], to: Target, problem: Problem | None = None
) -> Shown:
    jobs = call.site.storage.get_many(ids[:1_000])
    shown = [call.reader.get(job.id) for job in jobs[:_EXAMPLES] if call.operator.sees(job.queue)]
    return _ask(call, asked, operation, len(ids), True, shown, ids, to, problem)


def _put_right(call: Call, asked: Asked, operation: Operation, ids: list[str], to: Target, problem: Problem) -> Shown:
    """The question, with the field that is wrong; what was ticked stays so."""
    if ids:
        return _ask_of_ticked(call, asked, operation, ids, to, problem)
    return _ask_of_fitting(call, asked, operation, _where(call, asked), to, problem)


def _where(call: Call, asked: Asked) -> Filter:
    seen_at = _number(asked.field("seen_at")) if asked.field("seen_at") else call.reader.now()
    words = split_words([asked.field("filter")]) if asked.field("filter") else []
    where = parse_parts(words, seen_at)
    if not say_which(words, seen_at):
        raise BadValue("without a filter this would mean every job", hint="choose a state, a queue or a task first")
    return where


def _ask_of_fitting(
    call: Call, asked: Asked, operation: Operation, where: Filter, to: Target, problem: Problem | None = None
) -> Shown:
    possible = call.steps.possible(operation, where)
    count = call.reader.count(possible)
    examples = call.reader.find(possible, None, _EXAMPLES).jobs
    return _ask(call, asked, operation, count.number, count.exact, examples, [], to, problem)


def _fitting(call: Call, asked: Asked, operation: Operation, to: Target) -> Shown | Elsewhere:
    where = _where(call, asked)
    seen_at = _number(asked.field("seen_at"))
    expected = asked.field("expected")
    if asked.field("sure") != "yes" or not _is_typed(asked):
        return _ask_of_fitting(call, asked, operation, where, to)
    cursor = asked.field("cursor") or None
    done = call.steps.steer_many(operation, where, seen_at, cursor, to.priority, to.queue, new=to.new)
    changed = done.changed + _number(asked.field("changed") or "0")
    skipped = sum(done.skipped.values()) + _number(asked.field("skipped") or "0")
    if done.next is None:
        return _back(asked, operation, changed, skipped)
    return going(
        operation, asked.field("filter"), seen_at, (changed, skipped), expected, done.next, asked.field("back"), to
    )


def going(
    operation: Operation,
    words: str,
    seen_at: int,
    done: tuple[int, int],
    expected: str,
    cursor: str,
    back: str,
    to: Target = Target(),  # noqa: B008 - it never changes
) -> Shown:
    """The page from which it goes on; `done` is how many were changed and left alone."""
    context = {
        "operation": operation.value,
        "word": OPERATIONS[operation],
        "filter_text": words,
        "seen_at": seen_at,
        "priority": to.priority,
        "queue_name": to.queue,
        "is_new": to.new,
        "changed": done[0],
        "skipped": done[1],
        "expected": expected,
        "next": cursor,
        "back": back,
    }
    return Shown("bulk_going.html", f"{OPERATIONS[operation]} jobs", context)


def _is_typed(asked: Asked) -> bool:
    expected = asked.field("expected")
    many = expected.isdigit() and int(expected) > MOST_UNTYPED
    return not many or asked.field("typed").replace(",", "").replace("+", "") == expected


def _ask(
    call: Call,
    asked: Asked,
    operation: Operation,
    number: int,
    exact: bool,
    examples: list[Job],
    ids: list[str],
    to: Target,
    problem: Problem | None = None,
) -> Shown:
    now = call.reader.now()
    context = {
        "operation": operation.value,
        "word": OPERATIONS[operation],
        "number": number,
        "exact": exact,
        "rows": [row_of(job, now) for job in examples],
        "ids": ids,
        "scope": asked.field("scope"),
        "filter_text": asked.field("filter"),
        "seen_at": asked.field("seen_at") or str(now),
        "priority": to.priority,
        "queue_name": to.queue,
        "is_new": to.new,
        "problem": problem,
        "queue_names": queue_names(call.reader),
        "back": asked.field("back"),
        "must_type": number > MOST_UNTYPED and not ids,
        "is_wrong": asked.field("sure") == "yes",
    }
    title = f"{OPERATIONS[operation]} {number:,} jobs?"
    return Shown("bulk.html", title, context, status=problem.status if problem else 200)


def _back(asked: Asked, operation: Operation, changed: int, skipped: int) -> Elsewhere:
    back = asked.field("back")
    path = back if back.startswith(("/jobs", "/failures", "/queues")) else "/jobs"
    joint = "&" if "?" in path else "?"
    said = address("", said="bulk", did=operation.value, changed=changed, skipped=skipped)
    return Elsewhere(f"{path}{joint}{said[1:]}")


def _target(asked: Asked, operation: Operation) -> Target:
    if operation is Operation.SET_PRIORITY:
        return Target(priority=_number(asked.field("priority")))
    if operation is Operation.SET_QUEUE:
        return Target(queue=asked.field("queue"), new=bool(asked.field("new")))
    return Target()


def _operation(word: str) -> Operation:
    try:
        operation = Operation(word)
    except ValueError:
        raise BadValue(f"{word!r} cannot be done to jobs") from None
    if operation not in OPERATIONS:
        raise BadValue(f"{word!r} cannot be done to jobs")
    return operation


def _number(text: str) -> int:
    if not text.isdigit() or len(text) > 18:
        raise BadValue(f"{text[:20]!r} is not a number", hint="go back and try again")
    return int(text)
